"""A trivial turn, each on a new thread, in SQLite; a turn that returned survives the loss of power."""

from pathlib import Path

from bench.contestant import new_database
from bench.contestants import AT_EXIT, DURABLE, best, durabilities, stored_turns
from bench.measure import MILLI, Budget, Measured, Scale, durable_appends
from bench.ours import Ours

TITLE = "trivial turn, new thread, SQLite with power durability"
BUDGETS = (
    Budget("turns a second / best peer's", 3.0, at_least=True),
    Budget("a turn less 3 durable appends", 0.8, "ms"),
)
APPEND = "durable append"
FLOOR = (
    "a turn has four changes that must be durable one after another: its thread, its opening, its usage, its end; the "
    "peers make two or three. Where the medium takes a tenth of a millisecond for a commit, as here, the rest decides: "
    "a turn in memory takes 1 ms, reading the new thread in a worker 0.7, and each change goes to the writer's thread "
    "and back, is encoded, folded into the metadata and sealed with checksums, in Python. See profile.md."
)


def measure(scale: Scale, folder: Path) -> Measured:
    """Take turns, and durable appends in the same rounds."""
    found, each = Measured(), scale.of(20, 4)
    appends = {APPEND: lambda: durable_appends(new_database(folder), each)}
    times = stored_turns(found, folder, scale.of(10, 2), each, appends)
    found.checks["turns a second / best peer's"] = best(times, DURABLE) / times[Ours.name]
    found.checks["a turn less 3 durable appends"] = (times[Ours.name] - 3 * times[APPEND]) * MILLI
    found.figures["turns a second / those of langgraph, stored at exit"] = times[AT_EXIT.name] / times[Ours.name]
    durabilities(found)
    found.note("Our turn includes the creation of its thread, a durable change of its own.")
    return found
