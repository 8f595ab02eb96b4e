"""One long stream of small deltas on the SQLite store with one subscriber: what a delta costs, checkpoints included."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import trio

import roder_trio as rt
from bench.contestant import QUESTION, new_database
from bench.measure import MICRO, Budget, Measured, Scale, settle_heap
from bench.ours import CONFIG, BenchEngine
from roder_trio import inference, items

TITLE = "deltas: one stream of 100,000 small deltas, one subscriber"
BUDGETS = (Budget("a delta", 40.0, "us"),)


FLOOR = (
    "two frozen objects, a random id and a time for each delta are about a third; the rest is decoding, the job's and "
    "the reader's calls."
)


def measure(scale: Scale, folder: Path) -> Measured:
    """Read one stream to its durable end, once as many deltas come in one piece and once as each comes alone."""
    deltas, found = scale.of(100_000, 5000), Measured()
    settle_heap()
    for name, yields in (("together", False), ("alone", True)):
        wall, cpu = trio.run(_stream, new_database(folder), deltas, yields)
        found.figures[f"deltas that come {name}, us each"] = wall / deltas * MICRO
        found.figures[f"deltas that come {name}, us of CPU each"] = cpu / deltas * MICRO
        if not yields:
            found.checks["a delta"] = wall / deltas * MICRO
    found.note(
        "The budget is of deltas that come as many in one piece of the body; alone, each costs a checkpoint more."
    )
    return found


async def _stream(path: Path, deltas: int, yields: bool) -> tuple[float, float]:
    def answer() -> Iterable[Any]:
        yield inference.Usage(rt.TokenUsage(20, 4, 24))
        yield from (inference.MessageDelta("word ") for _ in range(deltas))
        yield inference.Completed("stop")

    engine, store, seen = BenchEngine(answer, yields=yields), rt.stores.SqliteThreadStore(path), 0
    async with rt.open_runtime(engines=[engine], store=store, config=CONFIG) as runtime:
        thread = (await runtime.create_thread()).thread_id
        began, cpu = time.perf_counter(), time.process_time()
        async with runtime.turn(thread, QUESTION) as turn:
            async for envelope in turn:
                match envelope.event:
                    case items.ThreadItemEvent(event=items.ItemDelta()):
                        seen += 1
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert turn.outcome.text == "word " * deltas
    assert 0 < seen <= deltas
    return wall, cpu
