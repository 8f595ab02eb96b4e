"""Hydrating a long thread: from the state that is kept beside its log, and by folding all of it."""

import contextlib
import sqlite3
import time
from functools import partial
from pathlib import Path

import orjson
import trio

import roder_trio as rt
from bench.measure import MILLI, Budget, Measured, Scale, interleaved, median
from roder_trio.schema.event import TurnCompleted, TurnStarted
from roder_trio.testing._sample import Sample

TITLE = "hydrate a thread of 10,000 records"
BUDGETS = (Budget("from a checkpoint / the full fold", 0.1), Budget("the full fold / bare read and parse", 2.5))
ROWS = "SELECT position, body FROM entry ORDER BY position"


def measure(scale: Scale, folder: Path) -> Measured:
    """Hydrate with and without the kept state, beside a bare read of the same rows."""
    path, without = folder / "kept.db", folder / "whole.db"
    trio.run(_fill, path, scale.of(10_000, 1000))
    trio.run(_fill, without, scale.of(10_000, 1000))
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
    """A thread of turns of some messages each, its state kept as the store keeps it."""
    store, sample = rt.stores.SqliteThreadStore(path, durability="process"), Sample("long")
    async with store.open():
        await store.create_thread(sample.metadata())
        turn = 0
        while sample.made < records:
            turn += 1
            name = f"turn-{turn}"
            batch = [sample.envelope(TurnStarted("p", "m"), name)]
            batch += [sample.user(f"message {number} of {turn}", name) for number in range(8)]
            batch.append(sample.envelope(TurnCompleted(rt.TokenUsage(1, 1, 2), "stop"), name))
            await store.append("long", batch)
    async with (reopened := rt.stores.SqliteThreadStore(path)).open():
        tail = [
            sample.envelope(TurnStarted("p", "m"), "t"),
            sample.envelope(TurnCompleted(rt.TokenUsage(1, 1, 2)), "t"),
        ]
        await reopened.append("long", tail)


async def _hydrate(path: Path) -> list[float]:
    async with (store := rt.stores.SqliteThreadStore(path, read_only=True)).open():
        await store.load_metadata("long")
        began = time.perf_counter()
        assert await store.load_state("long") is not None
        return [time.perf_counter() - began]


def _bare(path: Path) -> list[float]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM thread").fetchone()
        began = time.perf_counter()
        parsed = [orjson.loads(body) for _, body in connection.execute(ROWS)]
        assert parsed
        return [time.perf_counter() - began]
