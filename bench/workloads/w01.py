"""A trivial turn, each on a new thread, without a durable store; the peers have no store at all."""

from pathlib import Path

from bench.contestants import PEERS, best
from bench.measure import MILLI, Budget, Measured, Scale, interleaved, median
from bench.ours import Ours

TITLE = "trivial turn, new thread, memory store"
BUDGETS = (Budget("ours / best peer", 1.0),)
FLOOR = (
    "a turn is some 34 task switches in 15 rounds of trio's loop: caller, thread actor, job and accounting are tasks "
    "of their own, and trio's own code is about two fifths of a turn. No part of ours is above a tenth."
)


def measure(scale: Scale, folder: Path) -> Measured:
    """Take turns, a batch of each contestant a round."""
    found, each = Measured(), scale.of(100, 10)
    callers = {one.name: (lambda one=one: one().turns(each)) for one in (Ours, *PEERS)}
    times = {name: median(values) for name, values in interleaved(scale.of(10, 2), **callers).items()}
    for name, value in times.items():
        found.figures[f"{name}, ms"] = value * MILLI
    found.checks["ours / best peer"] = times[Ours.name] / best(times, PEERS)
    found.note("Our turns are kept, streamed to whoever subscribes, and counted; theirs are returned and gone.")
    return found
