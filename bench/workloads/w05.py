"""Turns that are parked on a model call: what each weighs, and how long it takes until all wait for the model."""

import time
from pathlib import Path

import trio

import roder_trio as rt
from bench.contestant import QUESTION
from bench.measure import KIB, Budget, Measured, Scale, resident_bytes, settle_heap
from bench.ours import CONFIG, BenchEngine

TITLE = "10,000 turns parked on a model call"
BUDGETS = (Budget("memory of each", 15.0, "KiB"), Budget("all started", 3.0, "s"))
FLOOR = (
    "each parked turn is two tasks of trio with fifteen frames (4 KiB), four cancel scopes with two sets each (3 KiB), "
    "and the thread's state, its stored records, the open attempt and the job's parts (some 50 objects, 9 KiB). Of the "
    "time, half is the collector's, which looks again and again at all that is parked."
)


def measure(scale: Scale, folder: Path) -> Measured:
    """Start the turns side by side on threads of the memory store."""
    return trio.run(_parked, scale.of(10_000, 500))


async def _parked(count: int) -> Measured:
    engine = BenchEngine(tuple, hangs=True)
    async with rt.open_runtime(engines=[engine], config=CONFIG) as runtime:
        threads = [(await runtime.create_thread()).thread_id for _ in range(count)]
        settle_heap()
        before, began = resident_bytes(), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for thread in threads:
                nursery.start_soon(runtime.start_turn, thread, QUESTION)
        while engine.active < count:
            await trio.lowlevel.checkpoint()
        spent = time.perf_counter() - began
        each = (resident_bytes() - before) / count / KIB
    found = Measured(checks={"memory of each": each, "all started": spent * (10_000 / count)})
    found.figures["turns started a second"] = count / spent
    found.note("Memory is resident memory; the thread, its actor and the open stream are in it.")
    return found
