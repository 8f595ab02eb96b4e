"""A thread of 1,000 trivial turns in SQLite: what all of them take, whether the last cost more, and what they weigh."""

from pathlib import Path

from bench.contestants import AT_EXIT, DURABLE, durabilities
from bench.measure import MIB, MILLI, Budget, Measured, Scale, median, settle_heap
from bench.ours import Ours

TITLE = "one thread, 1,000 turns, SQLite"
BUDGETS = (
    Budget("best durable peer's total / ours", 15.0, at_least=True),
    Budget("turn 1,000 / turn 10", 1.2),
    Budget("file", 3.0, "MiB"),
)
NEAR = 10
"""Turns on each side of one whose median stands for it."""
FLOOR = (
    "a turn of ours is three durable appends of 1 ms and 1 ms of its own from the first turn to the last; the peers "
    "begin near 5 ms and copy more with each turn, so the ratio grows with the thread."
)


def measure(scale: Scale, folder: Path) -> Measured:
    """Run the thread of each contestant once."""
    found, turns = Measured(), scale.of(1000, 60)
    totals = {}
    settle_heap()
    for contestant in (Ours, *DURABLE, AT_EXIT):
        times, size = contestant().thread(turns, folder)
        totals[contestant.name] = sum(times)
        found.figures[f"{contestant.name}, s in total"] = sum(times)
        found.figures[f"{contestant.name}, ms of the last turns"] = median(times[-2 * NEAR :]) * MILLI
        found.figures[f"{contestant.name}, file in MiB"] = size / MIB
        if contestant is Ours:
            found.checks["turn 1,000 / turn 10"] = median(times[-2 * NEAR :]) / median(times[: 2 * NEAR])
            found.checks["file"] = size / MIB
    found.checks["best durable peer's total / ours"] = min(totals[one.name] for one in DURABLE) / totals[Ours.name]
    durabilities(found)
    return found
