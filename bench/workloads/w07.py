"""Hydrating a long thread: from the state that is kept beside its log, and by folding all of it."""

import contextlib
import shutil
import sqlite3
import time
from functools import partial
from pathlib import Path

import orjson
import trio

import roder_trio as rt
from bench.contestant import QUESTION
from bench.measure import MILLI, Budget, Measured, Scale, interleaved, median
from bench.ours import CONFIG, BenchEngine

TITLE = "hydrate a thread of 10,000 records"
BUDGETS = (Budget("from a checkpoint / the full fold", 0.1), Budget("the full fold / bare read and parse", 2.5))
ROWS = "SELECT position, body FROM entry ORDER BY position"
FLOOR = (
    "reading and parsing the rows is about a quarter of a full fold, making the frozen objects of the records half "
    "(their constructors alone take as long as the whole bare read), the fold a sixth. Of a hydration from a kept "
    "state a third goes to the up to 500 records behind it, the rest to the items of the window."
)


def measure(scale: Scale, folder: Path) -> Measured:
    """Hydrate with and without the kept state, beside a bare read of the same rows."""
    path, without = folder / "kept.db", folder / "whole.db"
    trio.run(_fill, path, scale.of(10_000, 1000))
    shutil.copyfile(path, without)
    with contextlib.closing(sqlite3.connect(without)) as connection:
        connection.execute("DELETE FROM checkpoint")
        connection.commit()
    times = interleaved(
        scale.of(12, 3),
        checkpoint=partial(trio.run, _hydrate, path),
        fold=partial(trio.run, _hydrate, without),
        bare=partial(_bare, without),
    )
    kept, fold, bare = (median(times[name]) for name in ("checkpoint", "fold", "bare"))
    found = Measured(checks={"from a checkpoint / the full fold": kept / fold})
    found.checks["the full fold / bare read and parse"] = fold / bare
    found.figures |= {"from a checkpoint, ms": kept * MILLI, "the full fold, ms": fold * MILLI}
    found.figures["bare read and parse, ms"] = bare * MILLI
    return found


async def _fill(path: Path, records: int) -> None:
    """A thread of trivial turns, of five records each, its state kept as the store keeps it."""
    store = rt.stores.SqliteThreadStore(path, durability="process")
    async with rt.open_runtime(engines=[BenchEngine()], store=store, config=CONFIG) as runtime:
        thread = (await runtime.create_thread()).thread_id
        for _ in range(records // 5):
            await runtime.run_turn(thread, QUESTION)


async def _hydrate(path: Path) -> list[float]:
    async with (store := rt.stores.SqliteThreadStore(path, read_only=True)).open():
        thread = (await store.list_threads()).threads[0].thread_id
        began = time.perf_counter()
        assert await store.load_state(thread) is not None
        return [time.perf_counter() - began]


def _bare(path: Path) -> list[float]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM thread").fetchone()
        began = time.perf_counter()
        parsed = [orjson.loads(body) for _, body in connection.execute(ROWS)]
        assert parsed
        return [time.perf_counter() - began]
