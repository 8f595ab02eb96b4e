"""What the tests of the store on PostgreSQL share: stores, looks into the tables, and hands that reach into them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import trio
from psycopg.conninfo import make_conninfo

from roder_trio import stores
from roder_trio.testing._sample import Sample

TTL = 8.0
"""A short lease whose owner may be held up for three seconds and keeps it."""
ENDLESS = 600.0
"""A lease that needs no renewal while a test runs."""


@asynccontextmanager
async def open_stores(url: str, tenant: str, count: int = 1, **options: Any) -> AsyncIterator[list[Any]]:
    """Open stores on one tenant's threads, each an owner of its own."""
    made = [stores.PostgresThreadStore(url, tenant, **options) for _ in range(count)]
    async with AsyncExitStack() as opened:
        for store in made:
            await opened.enter_async_context(store.open())
        yield made


async def created(store: Any, thread_id: str = "t", **fields: Any) -> Sample:
    """A new thread of this store's own, and what makes its records."""
    sample = Sample(thread_id)
    await store.create_thread(sample.metadata(**fields))
    await store.claim_thread(thread_id)
    return sample


async def texts(store: Any, thread_id: str = "t") -> list[str]:
    """The texts of a thread's messages."""
    snapshot = await store.load_thread(thread_id)
    return [envelope.event.item.text for envelope in snapshot.events]


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what no event of this process tells: what another process did, or a thread of a test."""
    with trio.fail_after(60.0):
        while not await trio.to_thread.run_sync(condition):  # noqa: ASYNC110
            await trio.sleep(0.01)


def named(url: str, name: str) -> str:
    """The URL of a database for connections of a name of their own, so that no other test's are counted as theirs."""
    return make_conninfo(url, application_name=name)


def listeners(url: str) -> int:
    """How many connections of the URL's name listen for hints."""
    query = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE query LIKE 'LISTEN%' AND application_name = current_setting('application_name')"
    )
    with psycopg.connect(url) as link:
        row = link.execute(query).fetchone()
    return 0 if row is None else int(row[0])


class Tables:
    """The tables of one tenant, without the store."""

    def __init__(self, url: str, tenant: str) -> None:
        self._url = url
        self._tenant = tenant

    def run(self, statement: str, *values: Any) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True) as link:
            cursor = link.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def lease(self, thread_id: str = "t") -> Any:
        """Owner, epoch, and whether the lease lasts."""
        found = self.run(
            "SELECT owner, epoch, expires_at > clock_timestamp() FROM lease WHERE tenant = %s AND thread_id = %s",
            self._tenant,
            thread_id,
        )
        return found[0] if found else None

    def expire(self, thread_id: str = "t", seconds: float = 0.0) -> None:
        """Have a lease end so many seconds from now."""
        self.run(
            "UPDATE lease SET expires_at = clock_timestamp() + make_interval(secs => %s::float8) "
            "WHERE tenant = %s AND thread_id = %s",
            seconds,
            self._tenant,
            thread_id,
        )

    def count(self, table: str) -> int:
        return int(self.run(f"SELECT count(*) FROM {table} WHERE tenant = %s", self._tenant)[0][0])
