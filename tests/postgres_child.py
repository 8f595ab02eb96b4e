"""A process that owns a thread and works on it until it can't: `python -m tests.postgres_child URL TENANT TTL`.

It says `ready` when its turn is running and waited for, then one line for each thing that happens to it.
"""

import sys
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import inference, providers, stores
from roder_trio.testing._sample import Sample

THREAD = "shared"
USED = inference.Usage(rt.TokenUsage(3, 1, 4))


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def own(url: str, tenant: str, ttl: float) -> None:
    store = stores.PostgresThreadStore(url, tenant, lease_ttl=ttl)
    engine = providers.ScriptedEngine([[inference.MessageDelta("mine"), USED, trio.Event()]])
    async with rt.open_runtime(engines=[engine], store=store) as runtime:
        turn_id = await runtime.start_turn(THREAD, "work")
        await until_counted(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, runtime, turn_id)
            await wait_all_tasks_blocked()
            tell("ready")
        await late(store)
        try:
            await runtime.run_turn(THREAD, "again")
        except rt.ThreadOwnedElsewhere:
            tell("run", "ThreadOwnedElsewhere")
        await trio.to_thread.run_sync(sys.stdin.readline)


async def until_counted(runtime: rt.Runtime) -> None:
    """Wait until the usage of the running turn is stored."""
    while True:
        metadata = await runtime.load_metadata(THREAD)
        if metadata is not None and metadata.usage is not None:
            return
        await trio.sleep(0.01)


async def wait(runtime: rt.Runtime, turn_id: str) -> None:
    try:
        await runtime.wait_turn(THREAD, turn_id)
    except rt.LeaseLost:
        tell("turn", "LeaseLost")


async def late(store: Any) -> None:
    """Write past the runtime, as an append that was in flight would."""
    try:
        await store.append(THREAD, [Sample(THREAD).user("too late")])
    except rt.StorageError as error:
        tell("append", type(error).__name__)


if __name__ == "__main__":
    trio.run(own, sys.argv[1], sys.argv[2], float(sys.argv[3]))
