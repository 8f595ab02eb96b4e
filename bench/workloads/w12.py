"""A reader of one event a second beside a turn that streams as fast as it can, well over 10,000 events a second."""

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import trio

import roder_trio as rt
from bench.contestant import QUESTION
from bench.measure import Budget, Measured, Scale, interleaved, median
from bench.ours import CONFIG, BenchEngine
from roder_trio import inference

TITLE = "a reader at 1 event a second beside 10,000 events a second"
BUDGETS = (Budget("turns slower by", 5.0, "%"), Budget("events kept for the reader / its buffer", 1.0))
BUFFER = 1024


FLOOR = "each event is offered to each reader once: a filter, a type check, a bounded deque; some 0.4 us of some 20."


def measure(scale: Scale, folder: Path) -> Measured:
    """Take turns: the same turn with a second, stalled reader and without it."""
    deltas, kept = scale.of(10_000, 2000), []
    times = interleaved(
        scale.of(14, 3),
        alone=partial(trio.run, _turn, deltas, None),
        beside=partial(trio.run, _turn, deltas, kept),
    )
    alone, beside = median(times["alone"]), median(times["beside"])
    found = Measured(checks={"turns slower by": (beside / alone - 1) * 100})
    found.checks["events kept for the reader / its buffer"] = max(kept) / BUFFER
    found.figures |= {"events a second, alone": deltas / alone, "events a second, beside it": deltas / beside}
    return found


async def _turn(deltas: int, kept: list[int] | None) -> list[float]:
    def answer() -> Iterable[Any]:
        yield inference.Usage(rt.TokenUsage(20, 4, 24))
        yield from (inference.MessageDelta("word ") for _ in range(deltas))
        yield inference.Completed("stop")

    async with rt.open_runtime(engines=[BenchEngine(answer, yields=False)], config=CONFIG) as runtime:
        thread = (await runtime.create_thread()).thread_id
        async with trio.open_nursery() as nursery:
            slow = None if kept is None else await nursery.start(_slow, runtime)
            began = time.perf_counter()
            async with runtime.turn(thread, QUESTION) as turn:
                async for _ in turn:
                    pass
            spent = time.perf_counter() - began
            if kept is not None:
                kept.append(slow.buffered)
            nursery.cancel_scope.cancel()
    return [spent]


async def _slow(runtime: rt.Runtime, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    async with runtime.subscribe_events(buffer=BUFFER) as events:
        task_status.started(events)
        async for _ in events:
            await trio.sleep(1)
