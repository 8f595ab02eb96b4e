"""Trivial turns of 64 threads at once in SQLite, beside the peers' stored turns one after another."""

from pathlib import Path

from bench.contestants import DURABLE, best, durabilities, stored_turns
from bench.measure import Budget, Measured, Scale
from bench.ours import Ours

TITLE = "64 threads at once, SQLite"
BUDGETS = (Budget("turns a second / best peer's of W2", 10.0, at_least=True),)
THREADS = 64
FLOOR = (
    "turns side by side share commits, but the event loop and the writer's thread share one interpreter: a turn takes "
    "some 1 ms of each, cold caches apart, and waits for the lock between them."
)


def measure(scale: Scale, folder: Path) -> Measured:
    """Take turns with the peers of W2, so that the ratio is of one run."""
    found, turns = Measured(), scale.of(4, 1)
    together = {"64 at once": lambda: [Ours().at_once(THREADS, turns, folder)]}
    times = stored_turns(found, folder, scale.of(6, 2), scale.of(20, 4), together)
    found.figures["64 at once, turns a second"] = 1 / times["64 at once"]
    found.checks["turns a second / best peer's of W2"] = best(times, DURABLE) / times["64 at once"]
    durabilities(found)
    return found
