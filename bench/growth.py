"""Measure whether a turn costs the same however long its thread is, and what an idle thread weighs.

Run as `python bench/growth.py [turns] [threads]`. Prints, for each store, the median time of a trivial turn over the
first and the last hundred turns of one thread and their ratio, the store's reads while they ran, and the resident
memory of idle threads. Figures of one run on a shared machine: compare ratios, not milliseconds.
"""

import gc
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import trio

import roder_trio as rt
from roder_trio import inference, providers, stores, testing

REPLY = [
    inference.Usage(rt.TokenUsage(20, 4, 24)),
    inference.MessageDelta("A short answer."),
    inference.Completed("stop"),
]
HUNDRED = 100


async def growth(name: str, store: rt.ThreadStore, turns: int) -> None:
    """Run trivial turns on one thread and print what the first and the last hundred cost."""
    counted = testing.FaultyStore(store)
    engine = providers.ScriptedEngine([REPLY] * turns)
    async with rt.open_runtime(engines=[engine], store=counted, config=rt.RuntimeConfig(default_model="m")) as runtime:
        thread = (await runtime.create_thread()).thread_id
        times = []
        for _ in range(turns):
            began = time.perf_counter()
            await runtime.run_turn(thread, "What is the answer?")
            times.append(time.perf_counter() - began)
    first, last = statistics.median(times[:HUNDRED]), statistics.median(times[-HUNDRED:])
    print(
        f"{name:8} {turns} turns: first hundred {first * 1e3:.3f} ms, last hundred {last * 1e3:.3f} ms, "
        f"ratio {last / first:.2f}, loads {counted.loads}"
    )


def resident_bytes() -> int:
    """The memory of this process that is in use, after a collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def weight(threads: int) -> None:
    """Print the resident memory that idle threads add, each after one trivial turn is not counted: only hydrated."""
    config = rt.RuntimeConfig(max_resident_threads=threads + 10, default_model="m")
    async with rt.open_runtime(engines=[providers.ScriptedEngine([])], config=config) as runtime:
        ids = [(await runtime.create_thread()).thread_id for _ in range(threads)]
        before = resident_bytes()
        for thread in ids:
            await runtime.thread_goal_get(thread)
        added = resident_bytes() - before
    print(f"idle     {threads} resident threads: {added / threads / 1024:.1f} KiB each")


def main() -> None:
    """Run all of it."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    trio.run(growth, "memory", stores.MemoryThreadStore(), turns)
    with tempfile.TemporaryDirectory() as directory:
        trio.run(growth, "jsonl", stores.JsonlThreadStore(directory), turns)
    trio.run(weight, threads)


if __name__ == "__main__":
    main()
