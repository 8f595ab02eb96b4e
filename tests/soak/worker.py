"""A worker of the soak: runs one task in this process and says what came of it."""

import tempfile
import traceback
from pathlib import Path
from uuid import uuid4

import attrs

from roder_trio.testing import Victims, open_victims
from tests.soak.schedule import Schedule, Task
from tests.soak.storage import JsonlStorage, PostgresStorage, SqliteStorage, Storage
from tests.soak.trial import Counts, Trial

STORES = ("sqlite", "jsonl", "postgres")


@attrs.frozen
class Result:
    """What came of a task: its counts, and at a violation the name of the schedule and what was violated."""

    counts: Counts
    violated: str | None = None
    text: str = ""


def run_task(store: str, task: Task, url: str | None) -> Result:
    """Run the schedules of a task, up to the first violation. Blocks."""
    counts = Counts()
    with open_victims() as victims:
        for schedule in task.schedules():
            try:
                done = run_schedule(victims, schedule, store, url)
            except Exception:  # whatever it is, it is what the soak looks for
                return Result(counts, schedule.name, traceback.format_exc())
            counts += done
            if task.ends_with(done.kills):
                break
    return Result(counts)


def run_schedule(victims: Victims, schedule: Schedule, store: str, url: str | None = None) -> Counts:
    """Run one schedule on a new storage. Raises what violates a law."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        return Trial(victims, storage_of(store, Path(folder), url), Path(folder)).run(schedule)


def storage_of(store: str, folder: Path, url: str | None = None) -> Storage:
    """A new storage of this kind."""
    match store:
        case "sqlite":
            return SqliteStorage(folder)
        case "jsonl":
            return JsonlStorage(folder)
        case "postgres" if url is not None:
            return PostgresStorage(url, f"soak-{uuid4()}")
    raise ValueError(f"store must be one of {', '.join(STORES)}, not {store!r}; postgres needs a URL")
