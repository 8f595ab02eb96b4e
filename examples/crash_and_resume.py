"""Kill a process in the middle of a turn, then go on with its thread: what was shown and what was used is still there.

The child process runs the turn with a model that never comes to an end, and is killed with SIGKILL, so it can't tidy
up. The parent opens the same folder: the broken turn is closed, its text marked as cut off, and the thread goes on.
"""

import subprocess
import sys
import tempfile
from functools import partial

import trio

import roder_trio as rt
from roder_trio import inference, providers, stores

BROKEN = [
    inference.MessageDelta("The first half, "),
    inference.Usage(rt.TokenUsage(prompt_tokens=10, completion_tokens=4, total_tokens=14)),
    trio.Event(),
]
WHOLE = [
    inference.MessageDelta("and the second half."),
    inference.Usage(rt.TokenUsage(prompt_tokens=25, completion_tokens=5, total_tokens=30)),
    inference.Completed("stop"),
]


async def child(folder: str) -> None:
    engine = providers.ScriptedEngine([BROKEN])
    async with rt.open_runtime(engines=[engine], store=stores.JsonlThreadStore(folder)) as runtime:
        thread = await runtime.create_thread(title="Two halves")
        await runtime.start_turn(thread.thread_id, "Say it in two halves.")
        await until_saved(runtime, thread.thread_id)
        print(thread.thread_id, flush=True)
        await trio.sleep_forever()


async def until_saved(runtime: rt.Runtime, thread_id: str) -> None:
    """Wait until the store holds text and usage of the running turn, at most half a second after they came."""
    while True:  # a store has no events of its own to wait for
        await trio.sleep(0.05)
        snapshot = await runtime.load_thread(thread_id)
        counted = snapshot and snapshot.metadata and snapshot.metadata.usage
        if snapshot and counted and any(event.checkpoint for event in snapshot.item_events):
            return


async def parent(folder: str) -> None:
    command = [sys.executable, __file__, folder]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE, check=False))
        thread_id = (await process.stdout.receive_some()).decode().strip()
        process.kill()
    print(f"the child was killed: {process.returncode}")

    engine = providers.ScriptedEngine([WHOLE])
    async with rt.open_runtime(engines=[engine], store=stores.JsonlThreadStore(folder)) as runtime:
        outcome = await runtime.run_turn(thread_id, "Go on.")
        print(outcome.text, outcome.usage)
        snapshot = await runtime.load_thread(thread_id)
    assert snapshot is not None
    for turn in snapshot.turns:
        print(turn.status.value, turn.usage, *turn.items, sep="\n  ")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(child, sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            trio.run(parent, folder)
