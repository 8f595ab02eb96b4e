"""Idle threads that are hydrated: what each weighs while nothing happens on it."""

import subprocess
import sys
from pathlib import Path

import attrs
import trio

import roder_trio as rt
from bench.contestant import QUESTION
from bench.measure import KIB, Budget, Measured, Scale, resident_bytes, settle_heap
from bench.ours import CONFIG, BenchEngine

TITLE = "10,000 idle hydrated threads (limit raised)"
BUDGETS = (Budget("memory of each", 12.0, "KiB"),)
FLOOR = "each thread is one task with its frames, a mailbox, and the state that later turns are decided by."


def measure(scale: Scale, folder: Path) -> Measured:
    """Hydrate threads that hold one trivial turn each, in a runtime that did not run it."""
    count, path = scale.of(10_000, 500), folder / "idle.db"
    command = [sys.executable, "-m", "bench.workloads.w06", str(count), str(path)]
    subprocess.run(command, check=True)  # memory that was used before would hide what is used later
    return trio.run(_idle, count, path)


async def _idle(count: int, path: Path) -> Measured:
    config = attrs.evolve(CONFIG, max_resident_threads=count + 10)
    store = rt.stores.SqliteThreadStore(path)
    async with rt.open_runtime(engines=[BenchEngine()], store=store, config=config) as runtime:
        threads = await _threads(runtime)
        for thread in threads[:10]:
            await runtime.thread_goal_get(thread)
        settle_heap()
        before = resident_bytes()
        for thread in threads[10:]:
            await runtime.thread_goal_get(thread)
        each = (resident_bytes() - before) / (len(threads) - 10) / KIB
    found = Measured(checks={"memory of each": each})
    found.note("Memory is resident memory; each thread holds one trivial turn.")
    return found


async def _threads(runtime: rt.Runtime) -> list[str]:
    found, page = [], await runtime.list_threads(limit=500)
    while True:
        found += [one.thread_id for one in page.threads]
        if page.next_cursor is None:
            return found
        page = await runtime.list_threads(limit=500, cursor=page.next_cursor)


async def _store(count: int, path: str) -> None:
    """Store threads of one turn each, in a way that needn't survive the loss of power."""
    store = rt.stores.SqliteThreadStore(path, durability="process")
    async with rt.open_runtime(engines=[BenchEngine()], store=store, config=CONFIG) as runtime:
        limit = trio.CapacityLimiter(64)
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(_turn, runtime, limit)


async def _turn(runtime: rt.Runtime, limit: trio.CapacityLimiter) -> None:
    async with limit:
        thread = await runtime.create_thread()
        await runtime.run_turn(thread.thread_id, QUESTION)


if __name__ == "__main__":
    trio.run(_store, int(sys.argv[1]), sys.argv[2])
