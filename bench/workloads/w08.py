"""Durable appends to the SQLite store: one writer beside bare commits, and 64 writers that share commits."""

import time
from pathlib import Path

import trio

import roder_trio as rt
from bench.contestant import new_database
from bench.measure import BODY, MILLI, BareCommits, Budget, Measured, Scale, durable_appends, interleaved, median
from roder_trio.testing._sample import Sample

TITLE = "durable append"
BUDGETS = (
    Budget("one append less a bare commit", 0.2, "ms"),
    Budget("64 writers' appends a second / one writer's", 10.0, at_least=True),
)
WRITERS = 64
FLOOR = (
    "to the writer's thread and back is 0.05 ms, the larger commit 0.12 (five pages against two). Statements, codec, "
    "the fold of the metadata and checksums take 0.15 ms of the writer's processor time, more while caches are cold; "
    "64 writers share none of it, so there an append is little else: 0.2 ms. See profile.md."
)


def measure(scale: Scale, folder: Path) -> Measured:
    """Take turns: bare commits, one writer, 64 writers."""
    each, bare = scale.of(60, 10), BareCommits(folder / "bare.db")
    times = interleaved(
        scale.of(10, 2),
        bare=lambda: [bare.commit() for _ in range(each)],
        one=lambda: durable_appends(new_database(folder), each),
        many=lambda: trio.run(_many, new_database(folder), scale.of(10, 3)),
    )
    bare.close()
    commit, one, many = (median(times[name]) for name in ("bare", "one", "many"))
    found = Measured(checks={"one append less a bare commit": (one - commit) * MILLI})
    found.checks["64 writers' appends a second / one writer's"] = one / many
    found.figures |= {"bare commit, ms": commit * MILLI, "one writer, ms": one * MILLI}
    found.figures["64 writers, appends a second"] = 1 / many
    return found


async def _many(path: Path, each: int) -> list[float]:
    store, samples = rt.stores.SqliteThreadStore(path), [Sample(f"t{number}") for number in range(WRITERS)]

    async def write(sample: Sample) -> None:
        for _ in range(each):
            await store.append(sample.thread_id, [sample.user(BODY)])

    async with store.open():
        for sample in samples:
            await store.create_thread(sample.metadata())
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for sample in samples:
                nursery.start_soon(write, sample)
        return [(time.perf_counter() - began) / (WRITERS * each)]
