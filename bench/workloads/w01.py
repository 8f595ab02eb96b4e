"""A trivial turn, each on a new thread, without a durable store; the peers have no store at all."""

from pathlib import Path

from bench.contestants import PEERS, best
from bench.measure import MILLI, Budget, Measured, Scale, interleaved, median
from bench.ours import Ours

TITLE = "trivial turn, new thread, memory store"
BUDGETS = (Budget("ours / best peer", 1.0),)
FLOOR = (
    "a turn is some 20 task switches in 13 rounds of trio's loop and three new tasks: caller, thread actor and job are "
    "tasks of their own, and so is each append of usage. Five of the switches are the scripted engine's checkpoints, "
    "five the store's; the others hand a request over, or its answer. Beside them a turn enters some seven cancel "
    "scopes; trio's own code is a third of it, and no part of ours is above a tenth."
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
