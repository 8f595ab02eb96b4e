"""Measure a PostgreSQL database that holds many threads: sizes, claims, hydrations, appends, pages of listings.

Run as `python bench/postgres.py URL [threads] [seconds]`. It loads `threads` threads of one trivial turn each (200 000
unless told otherwise; again, only what lacks) into a tenant of its own, and measures each thing for `seconds` (5).
The figures of docs/scaling.md are from here. The database keeps the threads; drop it afterwards.
"""

import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
import psycopg
import trio

import roder_trio as rt
from roder_trio import codec, inference, providers, stores
from roder_trio.stores import _sql_record as records
from roder_trio.stores._listing import write_cursor
from roder_trio.testing._sample import Sample

TENANT = "bench"
TEMPLATE = "template-of-the-bench"
SLICE = 20_000
"""Threads that one transaction loads."""
REPLY = [
    inference.Usage(rt.TokenUsage(20, 4, 24)),
    inference.MessageDelta("A short answer, as one that a user reads at a glance and goes on from."),
    inference.Completed("stop"),
]

LOAD = """
WITH new AS (SELECT n, 'bench-' || n AS id FROM generate_series(%(first)s::int, %(last)s::int) AS n),
made AS (
    INSERT INTO thread (tenant, thread_id, metadata, updated_at, last_position, last_seq, last_item_seq)
    SELECT %(tenant)s, id, replace(%(metadata)s, %(template)s, id), %(at)s::timestamptz + n * interval '1 ms',
        %(count)s, %(count)s, %(count)s
    FROM new ON CONFLICT DO NOTHING RETURNING thread_id
),
leased AS (
    INSERT INTO lease (tenant, thread_id, owner, epoch, expires_at)
    SELECT %(tenant)s, thread_id, 'bench', 1, now() FROM made ON CONFLICT DO NOTHING
),
labelled AS (
    INSERT INTO label (tenant, thread_id, key, value)
    SELECT %(tenant)s, id, 'team', (n %% 1000)::text FROM new JOIN made ON made.thread_id = new.id
)
INSERT INTO record (tenant, thread_id, position, record_id, kind, turn_id, body)
SELECT %(tenant)s, thread_id, given.position, given.record_id, given.kind, 'turn',
    replace(given.body, %(template)s, thread_id)
FROM made CROSS JOIN unnest(%(positions)s::int[], %(ids)s::text[], %(kinds)s::text[], %(bodies)s::text[])
    AS given (position, record_id, kind, body)"""


async def template() -> tuple[str, str, Sequence[records.RecordRow]]:
    """The metadata, the creation and the records of a thread with one trivial turn."""
    store = stores.MemoryThreadStore()
    created = await store.create_thread(Sample(TEMPLATE).metadata())
    engine = providers.ScriptedEngine([REPLY])
    async with rt.open_runtime(engines=[engine], store=store, config=rt.RuntimeConfig(default_model="m")) as runtime:
        await runtime.run_turn(TEMPLATE, "What is the answer to what I asked about yesterday?")
    snapshot = await store.load_thread(TEMPLATE)
    assert snapshot is not None
    assert snapshot.metadata is not None
    text = codec.encode_metadata(snapshot.metadata).decode()
    return text, records.encode_creation(created), records.encode_rows(snapshot.events)


async def load(url: str, threads: int) -> None:
    """Bring the number of threads up to `threads`."""
    metadata, creation, rows = await template()
    values = {
        "tenant": TENANT,
        "template": TEMPLATE,
        "metadata": metadata,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "count": len(rows),
        "positions": list(range(len(rows) + 1)),
        "ids": [records.CREATION_ID, *[row.record_id for row in rows]],
        "kinds": [records.CREATION_KIND, *[row.kind for row in rows]],
        "bodies": [creation, *[row.body for row in rows]],
    }
    began = time.perf_counter()
    with psycopg.connect(url, autocommit=True) as link:
        for first in range(1, threads + 1, SLICE):
            link.execute(LOAD, {**values, "first": first, "last": min(first + SLICE - 1, threads)})
        link.execute("VACUUM ANALYZE")
        print(f"loaded {threads} threads of {len(rows)} records in {time.perf_counter() - began:.0f} s")
        for table in ("thread", "record", "lease", "label"):
            sizes = "SELECT pg_table_size(%s::regclass), pg_indexes_size(%s::regclass)"
            row: Any = link.execute(sizes, (table, table)).fetchone()
            print(f"  {table:8} {row[0] / threads:7.0f} bytes a thread, its indexes {row[1] / threads:7.0f}")


async def timed(name: str, seconds: float, tasks: int, call: Callable[[int], Awaitable[object]]) -> None:
    """Call in so many tasks for so many seconds; print the rate and how long one call takes."""
    times: list[float] = []
    ends_at = trio.current_time() + seconds

    async def repeat(task: int) -> None:
        await trio.lowlevel.checkpoint()
        while trio.current_time() < ends_at:
            began = time.perf_counter()
            await call(task)
            times.append(time.perf_counter() - began)

    async with trio.open_nursery() as nursery:
        for task in range(tasks):
            nursery.start_soon(repeat, task)
    ordered = sorted(times)
    p99 = ordered[int(len(ordered) * 0.99)]
    rate, median = len(times) / seconds, statistics.median(times)
    print(f"{name:44} {rate:8.0f} /s   median {median * 1e3:7.2f} ms   p99 {p99 * 1e3:7.2f} ms")


async def measure(url: str, threads: int, seconds: float) -> None:
    """Measure what a runtime asks of the store."""
    chance = random.Random(1)
    store = stores.PostgresThreadStore(url, TENANT)

    def pick() -> str:
        return f"bench-{chance.randint(1, threads)}"

    async def claim_and_release(task: int) -> None:
        thread_id = pick()
        await store.claim_thread(thread_id)
        await store.release_thread(thread_id)

    async with store.open():
        await timed("claim and release, one at a time", seconds, 1, claim_and_release)
        await timed("claim and release, 8 tasks", seconds, 8, claim_and_release)
        await timed("load_state of a thread of one turn", seconds, 1, lambda _: store.load_state(pick()))
        await timed("load_state, 8 tasks", seconds, 8, lambda _: store.load_state(pick()))
        samples = [Sample(f"bench-{number}") for number in range(1, 65)]
        for sample in samples:
            await store.claim_thread(sample.thread_id)

        async def append(task: int) -> None:
            envelope = samples[task].user("hello, what is it that we said about the bench?")
            unique = [attrs.evolve(envelope, event_id=f"{time.time_ns()}-{task}-{part}") for part in "ab"]
            await store.append(samples[task].thread_id, unique)

        for tasks in (1, 8, 64):
            await timed(f"append of 2 records, {tasks} threads", seconds, tasks, append)
        for name, cursor in (("first", None), ("middle", await middle(store, url))):
            await timed(f"page of 50 threads, {name}", seconds, 1, lambda _, c=cursor: store.list_threads(cursor=c))
        label = ("team", "7")
        await timed("page of 50 threads with a label", seconds, 1, lambda _: store.list_threads(label=label))
        keeper = store._session.keeper  # noqa: SLF001 - as below
        for number in range(1, 1001):
            await store.claim_thread(f"bench-{number}")
        await timed("renewal of 1000 leases", seconds, 1, lambda _: keeper._renew_once())  # noqa: SLF001 - nothing else shows it


async def middle(store: stores.PostgresThreadStore, url: str) -> str | None:
    """The cursor of a page in the middle of all threads."""
    with psycopg.connect(url) as link:
        query = "SELECT count(*) / 2 FROM thread WHERE tenant = %s"
        row: Any = link.execute(query, (TENANT,)).fetchone()
        key: Any = link.execute(
            "SELECT updated_at, thread_id FROM thread WHERE tenant = %s ORDER BY updated_at LIMIT 1 OFFSET %s",
            (TENANT, row[0]),
        ).fetchone()
    await trio.lowlevel.checkpoint()
    return write_cursor((store.id, "active", None, None), (key[0].astimezone(UTC), key[1]))


async def main(url: str, threads: int = 200_000, seconds: float = 5.0) -> None:
    async with stores.PostgresThreadStore(url, TENANT, migrate=True).open():
        pass
    await load(url, int(threads))
    await measure(url, int(threads), float(seconds))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    trio.run(main, *sys.argv[1:])
