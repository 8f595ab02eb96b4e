"""What all workloads measure with: times, memory, a bare SQLite commit, facts of the machine.

Times are seconds of the wall clock unless a name says otherwise. Contestants of one workload take turns in one process,
round by round, so that what else the machine does meets all of them.
"""

import contextlib
import gc
import importlib.metadata
import os
import platform
import resource
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import trio

from roder_trio import stores
from roder_trio.testing._sample import Sample

MILLI = 1e3
MICRO = 1e6
KIB = 1024
MIB = 1024**2
BODY = "x" * 200


class Unable(Exception):
    """A contestant can't run a workload; the text says why."""


@attrs.frozen
class Scale:
    """How much is measured: everything, or little to see that it works."""

    quick: bool = False

    def of(self, full: int, quick: int) -> int:
        """The count to measure."""
        return quick if self.quick else full


@attrs.define
class Measured:
    """What one run of a workload found. `figures` and `ratios` are by what they tell, unit included."""

    figures: dict[str, float] = attrs.field(factory=dict)
    checks: dict[str, float] = attrs.field(factory=dict)
    """Values of the budgets, by the names of the budgets."""
    notes: list[str] = attrs.field(factory=list)

    def note(self, text: str) -> None:
        """Note something once."""
        if text not in self.notes:
            self.notes.append(text)


@attrs.frozen
class Budget:
    """What a workload promises: a value that is at most, or at least, the limit."""

    name: str
    limit: float
    unit: str = "times"
    at_least: bool = False

    def holds(self, value: float) -> bool:
        """Whether a value keeps the promise."""
        return value >= self.limit if self.at_least else value <= self.limit

    def missed_by(self, value: float) -> float:
        """By how many percent of the limit a value misses it."""
        return abs(value - self.limit) / self.limit * 100


def interleaved(rounds: int, **contestants: Callable[[], list[float]]) -> dict[str, list[float]]:
    """All seconds that each contestant told, called in turn, in every round in another order."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    settle_heap()
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            found[name] += contestants[name]()
    return found


def settle_heap() -> None:
    """Collect, and let no later collection look at what the imports left: it would charge one's modules to another."""
    gc.collect()
    gc.freeze()


def median(values: list[float]) -> float:
    """The median; a name for all workloads."""
    return statistics.median(values)


def resident_bytes() -> int:
    """The memory of this process that is in use, after a collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class BareCommits:
    """Commits of one row each, in a file of their own, in the way that the store commits."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE row (number INTEGER PRIMARY KEY, body TEXT)")

    def commit(self) -> float:
        """Commit once and return its seconds."""
        began = time.perf_counter()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("INSERT INTO row (body) VALUES (?)", (BODY + BODY,))
        self._connection.execute("COMMIT")
        return time.perf_counter() - began

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


@contextlib.contextmanager
def bare_commits(path: Path) -> Iterator[BareCommits]:
    """A file for bare commits while the block runs."""
    commits = BareCommits(path)
    try:
        yield commits
    finally:
        commits.close()


def durable_appends(path: Path, count: int) -> list[float]:
    """Seconds of appends of one record each, one after another, to a new SQLite store with power durability."""

    async def run() -> list[float]:
        store, sample, times = stores.SqliteThreadStore(path), Sample("one"), []
        async with store.open():
            await store.create_thread(sample.metadata())
            for _ in range(count):
                record = sample.user(BODY)
                began = time.perf_counter()
                await store.append("one", [record])
                times.append(time.perf_counter() - began)
        return times

    return trio.run(run)


def machine_facts(folder: Path) -> dict[str, str]:
    """What the figures depend on; `folder` is where the stores are."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), processor)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": f"{processor}, {os.cpu_count()} cores",
        "memory": f"{memory / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system of the stores": _file_system(folder),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "load average at the end": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }


def _file_system(folder: Path) -> str:
    """The type of file system that holds a folder."""
    best, found = "", "unknown"
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, kind = line.split()[:3]
            inside = folder.is_relative_to(mount)
            if inside and len(mount) >= len(best):
                best, found = mount, kind
    return found


def versions() -> dict[str, str]:
    """The versions of what is measured."""
    names = ("roder_trio", "trio", "httpx", "pydantic-ai-slim", "openai-agents", "langgraph")
    names += ("langgraph-checkpoint-sqlite", "langchain-openai", "openai", "aiosqlite")
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
