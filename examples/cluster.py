"""Two processes on one PostgreSQL database: a thread is handed over by plan, then taken over after a SIGKILL.

Run it with the URL of a database that may be used: `python cluster.py postgresql://user:password@host/database`, or
with the URL in `RODER_TRIO_POSTGRES_URL`. It needs `roder_trio[postgres]`; its tables are made if they aren't there.
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import trio

import roder_trio as rt
from roder_trio import inference, providers, stores

LEASE = 8.0
"""Seconds after which the threads of B are free when it is dead; short, so nobody waits long. The default is 30."""


def answer(text: str) -> list[Any]:
    usage = inference.Usage(rt.TokenUsage(prompt_tokens=10, completion_tokens=4, total_tokens=14))
    return [inference.MessageDelta(text), usage, inference.Completed("stop")]


def opened(url: str, tenant: str, *steps: Any, **options: Any) -> AbstractAsyncContextManager[rt.Runtime]:
    """A runtime on the shared threads."""
    store = stores.PostgresThreadStore(url, tenant, **options)
    return rt.open_runtime(engines=[providers.ScriptedEngine(steps)], store=store)


async def work_elsewhere(url: str, tenant: str) -> None:
    """The other process: it does one turn as soon as it may, and is killed in the middle of its second."""
    thread_id = sys.stdin.readline().strip()
    endless = [inference.MessageDelta("B begins to say"), trio.Event()]
    async with opened(url, tenant, answer("B answers."), endless, lease_ttl=LEASE) as runtime:
        try:
            await runtime.run_turn(thread_id, "Who is there?")
        except rt.ThreadOwnedElsewhere:
            print("B is refused: the thread is owned elsewhere", flush=True)
        sys.stdin.readline()  # until A has left
        outcome = await runtime.run_turn(thread_id, "Who is there?")
        print(f"B owns the thread now: {outcome.text}", flush=True)
        async with runtime.turn(thread_id, "Go on.") as turn:
            async for envelope in turn:
                if envelope.kind == "item.delta":
                    print("B is in the middle of a turn", flush=True)


@asynccontextmanager
async def other_process(*arguments: str) -> AsyncIterator[trio.Process]:
    command = [sys.executable, __file__, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, **pipes, check=False))
        try:
            yield process
        finally:
            process.kill()


async def tell(process: trio.Process, line: str) -> None:
    """Say a line to the other process."""
    assert process.stdin is not None
    await process.stdin.send_all(f"{line}\n".encode())


async def heard(process: trio.Process) -> None:
    """Show the next line that the other process says."""
    await trio.lowlevel.checkpoint()
    line = b""
    assert process.stdout is not None
    while not line.endswith(b"\n"):
        part = await process.stdout.receive_some(1)
        if not part:
            raise EOFError("the other process has ended")
        line += part
    print(line.decode(), end="")


async def main(url: str) -> None:
    tenant = f"cluster-{uuid4()}"
    async with other_process(url, tenant) as process:
        async with opened(url, tenant, answer("A answers."), migrate=True) as runtime:
            thread_id = (await runtime.create_thread(title="Shared")).thread_id
            print("A owns the thread:", (await runtime.run_turn(thread_id, "Who is there?")).text)
            await tell(process, thread_id)
            await heard(process)
        print("A has left")  # which released its threads
        await tell(process, "")
        await heard(process)
        await heard(process)
    print("B was killed")

    print("A waits until the lease of the dead ends")
    async with opened(url, tenant, answer("A answers again.")) as runtime:
        while True:
            try:
                outcome = await runtime.run_turn(thread_id, "And now?")
            except rt.ThreadOwnedElsewhere as refusal:
                await trio.sleep(refusal.expires_in)
            else:
                break
        print("A owns the thread again:", outcome.text)
        snapshot = await runtime.load_thread(thread_id)
    assert snapshot is not None
    for turn in snapshot.turns:
        print(" ", turn.status.value, turn.usage.total_tokens if turn.usage else 0)


if __name__ == "__main__":
    given = sys.argv[1:] or [os.environ.get("RODER_TRIO_POSTGRES_URL", "")]
    if not given[0]:
        sys.exit(__doc__)
    if given[1:]:
        trio.run(work_elsewhere, given[0], given[1])
    else:
        trio.run(main, given[0])
