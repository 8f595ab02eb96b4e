"""What the tests of the SQLite store share: stores that open, connections that fail, block, count or kill."""

import contextlib
import os
import signal
import sqlite3
import threading
import zlib
from contextlib import asynccontextmanager

import attrs
import trio

from roder_trio.stores import SqliteThreadStore
from roder_trio.stores.sqlite.row import checksum
from roder_trio.testing._sample import Sample


def made(path, *, connection=None, schema=None, **options):
    """A store that isn't open; by default one that doesn't wait for the medium, and whose callers are patient."""
    store = SqliteThreadStore(path, **{"durability": "process", "append_timeout": 300.0, **options})
    if connection is not None:
        store._database = attrs.evolve(store._database, connection=connection)
    if schema is not None:
        store._database = attrs.evolve(store._database, schema=schema)
    store._readers._database = store._database
    return store


@asynccontextmanager
async def opened(path, **options):
    store = made(path, **options)
    async with store.open():
        yield store


async def fill(path, *batches, thread_id="t", **options):
    """Make a thread that holds these texts, one batch for each argument; returns what makes its records."""
    sample = Sample(thread_id)
    async with opened(path, **options) as store:
        await store.create_thread(sample.metadata())
        for batch in batches:
            await store.append(thread_id, sample.texts(*batch))
    return sample


def texts(snapshot):
    return [envelope.event.item.text for envelope in snapshot.events]


async def settled(store):
    """Wait until no state is being kept."""
    while store._renewals._running:  # noqa: ASYNC110  # nothing tells its end
        await trio.sleep(0.001)


def raw(path, statement, *values):
    """Run one statement on the file, as another program would."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.create_function("crc_of", -1, checksum)
        connection.create_function("crc32_of", 1, zlib.crc32)
        return connection.execute(statement, values).fetchall()


SIGNATURES = (
    """UPDATE thread SET crc = crc_of(
        number, thread_id, metadata, updated_at, archived_at, last_position, last_seq, last_item_seq
    )""",
    "UPDATE entry SET crc = crc_of(thread, position, record_id, body)",
    "UPDATE attempt SET crc = crc_of(thread, attempt_id, turn_id, goal_id, origin_thread_id, report, usage)",
)
"""What makes rows that another program changed look as if they had been stored so."""


def sign(connection):
    """Give each row of a database the checksum of what it says now."""
    connection.create_function("crc_of", -1, checksum)
    for statement in SIGNATURES:
        connection.execute(statement)


def signed(path):
    """As `sign`, for a file."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        sign(connection)


def error_of(code, text="broken"):
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


class Flaw:
    """What the connections of one test do at statements that begin so.

    `fail` raises before them, `fail_after` when they are done, `block` waits for `release`.
    """

    def __init__(self):
        self.fail = {}
        self.fail_after = {}
        self.block = set()
        self.blocked = threading.Event()
        self.release = threading.Event()
        self.seen = []
        flaw = self

        class Connection(sqlite3.Connection):
            def execute(self, statement, *values):
                flaw.meet(statement)
                found = super().execute(statement, *values)
                flaw.raise_from(flaw.fail_after, statement)
                return found

            def executemany(self, statement, *values):
                flaw.meet(statement)
                return super().executemany(statement, *values)

        self.connection = Connection

    def meet(self, statement):
        self.seen.append(statement)
        for start in list(self.block):
            if statement.startswith(start):
                self.blocked.set()
                self.release.wait()
        self.raise_from(self.fail, statement)

    def raise_from(self, failures, statement):
        for start in list(failures):
            if statement.startswith(start):
                error = failures.pop(start)
                raise error() if callable(error) else error


def killing(at):
    """Connections that kill their process before statement number `at` of those that change, counted over all."""
    count = 0

    def meet():
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    class Connection(sqlite3.Connection):
        armed = False

        def execute(self, statement, *values):
            if Connection.armed:
                meet()
            return super().execute(statement, *values)

        def executemany(self, statement, *values):
            if Connection.armed:
                meet()
            return super().executemany(statement, *values)

    return Connection


def later(text):
    """A record that no other call of these tests makes."""
    return attrs.evolve(Sample("t").user(text), event_id=text)


async def blocked_in(flaw, statement, nursery, call):
    """Start a call and wait until the writer is held in a statement of it."""
    flaw.block.add(statement)
    nursery.start_soon(call)
    await trio.to_thread.run_sync(flaw.blocked.wait)


def released(flaw):
    flaw.block.clear()
    flaw.release.set()


async def outcome(outcomes, name, call):
    try:
        await call()
        outcomes[name] = None
    except Exception as error:
        outcomes[name] = error
