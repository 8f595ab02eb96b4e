"""Measure what appends cost in each store, and whether the length of a thread matters to the SQLite one.

Run as `python bench/stores.py [records] [folder]`. For JSONL and SQLite it prints the median time of one durable
append after another, beside that of a bare SQLite commit in the same folder, and of 64 tasks that append at once, with
the commits that they shared. Then a SQLite thread grows to `records` (100,000 by default), and the time and the
statements of an append at the start and at the end are printed, with the hydration and pages of events at the end.
Figures of one run: compare them with each other.
"""

import contextlib
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from roder_trio import stores
from roder_trio.schema.event import TurnCompleted, TurnStarted
from roder_trio.schema.usage import TokenUsage
from roder_trio.testing._sample import Sample

ROUNDS = 300
TASKS = 64
EACH = 10
BATCH = 500


def bare_commits(path: Path) -> list[float]:
    """Seconds of commits of one row each, in the way that the store commits."""
    times = []
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE row (number INTEGER PRIMARY KEY, body TEXT)")
        for _ in range(ROUNDS):
            began = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO row (body) VALUES (?)", ("x" * 400,))
            connection.execute("COMMIT")
            times.append(time.perf_counter() - began)
    return times


async def timed(call: Callable[[], Awaitable[object]], rounds: int = ROUNDS) -> list[float]:
    """Seconds of some calls, one after another."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return times


async def appends(name: str, store: stores.JsonlThreadStore | stores.SqliteThreadStore) -> None:
    """Print what one writer and many at once see."""
    async with store.open():
        sample = Sample("one")
        await store.create_thread(sample.metadata())
        alone = await timed(lambda: store.append("one", [sample.user("x" * 200)]))
        many = [Sample(f"many-{number}") for number in range(TASKS)]
        for each in many:
            await store.create_thread(each.metadata())
        before = commits_of(store)
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for each in many:
                nursery.start_soon(append_each, store, each)
        spent = time.perf_counter() - began
        shared = commits_of(store) - before
    told = f", {shared} commits" if shared else ""
    print(
        f"{name:7} one append {statistics.median(alone) * 1e3:.3f} ms; {TASKS} tasks: "
        f"{TASKS * EACH / spent:.0f} appends/s{told}"
    )


async def append_each(store: stores.JsonlThreadStore | stores.SqliteThreadStore, sample: Sample) -> None:
    """Append some records, one by one."""
    for _ in range(EACH):
        await store.append(sample.thread_id, [sample.user("x" * 200)])


def commits_of(store: object) -> int:
    """The commits of a SQLite store so far; 0 of another."""
    writer = getattr(store, "_writer", None)
    return 0 if writer is None else int(writer.commits)


async def growth(path: Path, records: int) -> None:
    """Print what an append costs on a short thread and on a long one, and what reading the long one does."""
    store = stores.SqliteThreadStore(path)
    sample = Sample("long")
    async with store.open():
        await store.create_thread(sample.metadata())
        await tell(store, sample)
        while sample.made < records:
            began = sample.envelope(TurnStarted("p", "m"))
            filler = [sample.user(f"message {number}") for number in range(BATCH - 2)]
            ended = sample.envelope(TurnCompleted(TokenUsage(1, 1, 2), "stop"))
            await store.append("long", [began, *filler, ended])
        await tell(store, sample)
        for name, call in {
            "hydration": lambda: store.load_state("long"),
            "metadata": lambda: store.load_metadata("long"),
            "last page of events": lambda: store.load_events("long", sample.seq - BATCH),
            "whole thread": lambda: store.load_thread("long"),
        }.items():
            print(f"  {name}: {min(await timed(call, 3)) * 1e3:.2f} ms")


async def tell(store: stores.SqliteThreadStore, sample: Sample) -> None:
    """Print what an append costs now."""
    connection = store._writer.connection  # type: ignore[union-attr]  # noqa: SLF001 - to count
    statements: list[str] = []
    connection.set_trace_callback(statements.append)  # type: ignore[union-attr]
    await store.append("long", [sample.user("counted")])
    connection.set_trace_callback(None)  # type: ignore[union-attr]
    times = await timed(lambda: store.append("long", [sample.user("x" * 200)]), BATCH // 5)
    print(f"append at record {sample.made:6}: {len(statements)} statements, {statistics.median(times) * 1e3:.3f} ms")


def main() -> None:
    """Run all of it in a folder that is removed afterwards."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    parent = sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        base = Path(folder)
        print(f"a bare SQLite commit: {statistics.median(bare_commits(base / 'bare.db')) * 1e3:.3f} ms")
        trio.run(appends, "jsonl", stores.JsonlThreadStore(base / "journals"))
        trio.run(appends, "sqlite", stores.SqliteThreadStore(base / "threads.db"))
        trio.run(growth, base / "long.db", records)
        print(f"  file: {(base / 'long.db').stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
