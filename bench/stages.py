"""Where the time of a trivial turn goes, stage by stage, written to profile.md.

Run by `make bench PROFILE=1`. The stages are read from the clock, as medians of many turns; the share of each part of
the code is of calls under a profiler, which makes small functions look dearer than they are.
"""

import argparse
import cProfile
import itertools
import pstats
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import trio

import roder_trio as rt
from bench.contestant import QUESTION, new_database
from bench.measure import MICRO, bare_commits, durable_appends, machine_facts, median, settle_heap
from bench.ours import CONFIG, REPLY, BenchEngine, Ours
from bench.report import table
from roder_trio import stores

HERE = Path(__file__).parent
SHARES = 14
"""Parts of the code that are told."""

STAGES = (
    "creation of the thread",
    "hydration, admission, the opening decided",
    "append of the opening",
    "the job begins, the request is built",
    "the stream up to its usage, and to accounting",
    "append of the usage",
    "the rest of the stream, the end decided",
    "append of the end",
    "the outcome reaches the caller",
)

HEAD = """# Where the time of a turn goes

Written by `make bench PROFILE=1`. A trivial turn on a new thread, from `create_thread` to the outcome, stage by stage:
medians of {turns} turns, in microseconds.
"""


class _Marks:
    """Moments of one turn."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def note(self) -> None:
        self.at.append(time.perf_counter())


class _WatchedMemory(stores.MemoryThreadStore):
    marks: _Marks

    async def append(self, thread_id: str, records: Sequence[Any]) -> None:
        self.marks.note()
        await super().append(thread_id, records)
        self.marks.note()


class _WatchedSqlite(stores.SqliteThreadStore):
    marks: _Marks

    async def append(self, thread_id: str, records: Sequence[Any]) -> None:
        self.marks.note()
        await super().append(thread_id, records)
        self.marks.note()


async def _stages(store: Any, turns: int) -> list[float]:
    """Median seconds of each stage."""
    store.marks = marks = _Marks()

    def answer() -> Iterator[Any]:
        marks.note()
        yield from REPLY

    found: list[list[float]] = []
    async with rt.open_runtime(engines=[BenchEngine(answer)], store=store, config=CONFIG) as runtime:
        settle_heap()
        for _ in range(turns):
            marks.at.clear()
            marks.note()
            thread = (await runtime.create_thread()).thread_id
            marks.note()
            await runtime.run_turn(thread, QUESTION)
            marks.note()
            if len(marks.at) == len(STAGES) + 1:
                found.append([later - earlier for earlier, later in itertools.pairwise(marks.at)])
    return [median(list(values)) for values in zip(*found, strict=True)]


class _Timed(sqlite3.Connection):
    """A connection that keeps what each of its statements took."""

    spent: ClassVar[dict[str, list[float]]] = {}

    def execute(self, sql: str, *parameters: Any) -> Any:
        began = time.perf_counter()
        try:
            return super().execute(sql, *parameters)
        finally:
            self.spent.setdefault(sql, []).append(time.perf_counter() - began)

    def executemany(self, sql: str, *parameters: Any) -> Any:
        began = time.perf_counter()
        try:
            return super().executemany(sql, *parameters)
        finally:
            self.spent.setdefault(sql, []).append(time.perf_counter() - began)


@contextmanager
def _timed_connections() -> Iterator[dict[str, list[float]]]:
    """Let the connections that are made while the block runs be timed ones."""
    connect = sqlite3.connect
    _Timed.spent.clear()
    sqlite3.connect = lambda *given, **options: connect(*given, **{**options, "factory": _Timed})
    try:
        yield _Timed.spent
    finally:
        sqlite3.connect = connect


def _append_parts(folder: Path, count: int) -> dict[str, float]:
    """Median seconds of what an append consists of, with those of a bare commit."""
    with bare_commits(folder / "bare.db") as commits:
        bare = median([commits.commit() for _ in range(count)])
    with _timed_connections() as spent:
        whole = median(durable_appends(new_database(folder), count))
    commit = median(spent["COMMIT"])
    others = sum(median(times) for sql, times in spent.items() if sql != "COMMIT" and len(times) >= count)
    return {
        "a bare commit of one row, for comparison": bare,
        "COMMIT: the pages written and synced": commit,
        "other statements": others,
        "encoding, folding metadata, to the thread and back": whole - commit - others,
        "all of an append": whole,
    }


def _shares(turns: int) -> list[tuple[str, str, str]]:
    """Parts of the code with their shares of the time and their calls a turn, on the memory store."""
    profile = cProfile.Profile()
    Ours().turns(turns // 4)
    profile.enable()
    Ours().turns(turns)
    profile.disable()
    seconds, calls = Counter[str](), Counter[str]()
    for (path, _, name), (_, count, own, _, _) in pstats.Stats(profile).stats.items():
        part = _part(path, name)
        seconds[part] += own
        calls[part] += count
    total = seconds.total()
    shares = seconds.most_common(SHARES)
    return [(part, f"{own / total * 100:.1f}", f"{calls[part] / turns:.0f}") for part, own in shares]


def _part(path: str, name: str) -> str:
    if "/trio/" in path or "trio." in path:
        return "trio"
    if "roder_trio/" in path:
        return "/".join(path.rsplit("roder_trio/", maxsplit=1)[-1].split("/")[:2])
    if path.startswith("<attrs"):
        return "made by attrs: constructors"
    return "built in" if path == "~" else f"the standard library and others: {Path(path).name}"


def main() -> None:
    """Measure and write profile.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure little and print it")
    turns = 40 if (asked := parser.parse_args()).quick else 600
    with tempfile.TemporaryDirectory(dir=HERE) as folder:
        memory = trio.run(_stages, _WatchedMemory(), turns)
        sqlite = trio.run(_stages, _WatchedSqlite(new_database(Path(folder))), turns)
        parts = _append_parts(Path(folder), turns)
        facts = machine_facts(Path(folder))
    rows = [
        (name, f"{a * MICRO:.0f}", f"{b * MICRO:.0f}")
        for name, a, b in zip((*STAGES, "all"), (*memory, sum(memory)), (*sqlite, sum(sqlite)), strict=True)
    ]
    text = "\n".join(
        (
            HEAD.format(turns=turns),
            table(("stage", "memory store", "SQLite, power"), rows),
            "## One durable append\n\nMedians, in microseconds.\n",
            table(("part", "time"), ((name, f"{value * MICRO:.0f}") for name, value in parts.items())),
            "## Which code runs in a turn on the memory store\n",
            table(("code", "% of the time", "calls a turn"), _shares(turns)),
            "## Machine\n",
            table(("what", "which"), facts.items()),
        )
    )
    print(text)
    if not asked.quick:
        (HERE / "profile.md").write_text(text)


if __name__ == "__main__":
    main()
