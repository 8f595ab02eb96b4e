"""What the tables say: each call sees one moment.

Rules of the room: every function blocks and gets a connection of its own for the call; rows are read inside one
transaction and decoded after it. No row is believed whose checksum isn't its own, no log that lacks a position, and no
index alone that there is nothing.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

import attrs

from roder_trio.codec.text import dump
from roder_trio.errors import CorruptRecord
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import LogPage, ThreadMetadata, ThreadSnapshot
from roder_trio.stores._batch import CHUNK_BYTES, CHUNK_RECORDS
from roder_trio.stores._listing import log_position
from roder_trio.stores._snapshot import snapshot_of
from roder_trio.stores._sql_record import CREATION, EventPage, events_after, read_log, seq_of, whole_rows
from roder_trio.stores._sql_thread import read_document
from roder_trio.stores.sqlite.row import (
    THREAD,
    WRONG,
    StoredThread,
    checked_thread,
    checksum,
    damaged_thread,
)

_ENTRIES = """
SELECT position, record_id, body, crc FROM entry WHERE thread = ? AND position > ? ORDER BY position"""

_NAMED = f"SELECT {THREAD} FROM thread INDEXED BY thread_name WHERE thread_id = ?"  # noqa: S608
_NAMED_AGAIN = "SELECT number FROM thread INDEXED BY thread_name_again WHERE thread_id = ?"

NEAR = 64
"""Records that are looked through rather than halved."""


def as_json(values: list[str]) -> str:
    """Texts as the argument of `json_each`."""
    return dump(values).decode()


@contextmanager
def one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction for reading: all of its statements see the same commits."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def find_thread(connection: sqlite3.Connection, thread_id: ThreadId) -> StoredThread | None:
    """The row of a thread, active or archived; None if there is none. Raises CorruptRecord, sqlite3.Error."""
    row = connection.execute(_NAMED, (thread_id,)).fetchone()
    if row is None:
        if connection.execute(_NAMED_AGAIN, (thread_id,)).fetchone() is not None:
            raise damaged_thread(thread_id, "one of two indexes lacks it")
        return None
    thread = checked_thread(row)
    if thread is None or thread.thread_id != thread_id:
        raise damaged_thread(thread_id)
    return thread


def find_active(connection: sqlite3.Connection, thread_id: ThreadId) -> StoredThread | None:
    """The row of an active thread. Raises CorruptRecord, sqlite3.Error."""
    thread = find_thread(connection, thread_id)
    return thread if thread is not None and thread.archived_at is None else None


@contextmanager
def bodies(
    connection: sqlite3.Connection, thread: StoredThread, after: int = CREATION
) -> Iterator[Iterator[tuple[int, str]]]:
    """The (position, body) of the records of a thread behind a position, each checked, up to the last.

    Read as far as needed; a statement that an error leaves in its midst would keep what it saw. Raises CorruptRecord,
    sqlite3.Error.
    """
    with closing(connection.execute(_ENTRIES, (thread.number, after))) as rows:
        yield whole_rows(thread.thread_id, _checked(thread, rows), thread.last_position, after)


def _checked(thread: StoredThread, rows: Iterable[tuple[int, str, str, int]]) -> Iterator[tuple[int, str]]:
    for position, record_id, body, crc in rows:
        if crc != checksum(thread.number, position, record_id, body):
            raise CorruptRecord(thread.thread_id, position, WRONG)
        yield position, body


def load_thread(connection: sqlite3.Connection, thread_id: ThreadId) -> ThreadSnapshot | None:
    """All that is held of an active thread. Raises CorruptRecord, sqlite3.Error."""
    with one_moment(connection):
        thread = find_active(connection, thread_id)
        if thread is None:
            return None
        with bodies(connection, thread) as checked:
            rows = list(checked)
    metadata = read_document(thread_id, thread.metadata).metadata
    return snapshot_of(metadata, read_log(thread_id, rows, thread.last_position))


def load_metadata(connection: sqlite3.Connection, thread_id: ThreadId) -> ThreadMetadata | None:
    """The metadata of an active thread. Raises CorruptRecord, sqlite3.Error."""
    with one_moment(connection):
        thread = find_active(connection, thread_id)
    return None if thread is None else read_document(thread_id, thread.metadata).metadata


def read_creation(connection: sqlite3.Connection, thread: StoredThread) -> str:
    """The body of the row that holds the creation of a thread. Raises CorruptRecord, sqlite3.Error."""
    row = connection.execute(
        "SELECT record_id, body, crc FROM entry WHERE thread = ? AND position = ?", (thread.number, CREATION)
    ).fetchone()
    if row is None:
        raise CorruptRecord(thread.thread_id, "its creation", "it is missing")
    if row[2] != checksum(thread.number, CREATION, *row[:2]):
        raise CorruptRecord(thread.thread_id, "its creation", WRONG)
    body: str = row[1]
    return body


def read_log_page(connection: sqlite3.Connection, thread_id: ThreadId, cursor: str | None) -> LogPage | None:
    """A piece of the log of a thread, active or archived; None for unknown.

    Raises CorruptRecord, InvalidCursor, sqlite3.Error.
    """
    with one_moment(connection):
        thread = find_thread(connection, thread_id)
        if thread is None:
            return None
        start = log_position(cursor, thread.last_position)
        created = read_creation(connection, thread)
        with bodies(connection, thread, start) as rows:
            found, end = _piece(rows, start)
    return LogPage(
        created=created.encode(),
        batches=(f"[{','.join(found)}]".encode(),) if found else (),
        archived=thread.archived_at is not None,
        next_cursor=str(end) if end < thread.last_position else None,
    )


def _piece(rows: Iterable[tuple[int, str]], start: int) -> tuple[list[str], int]:
    """Bodies for one append, and the position of the last."""
    found: list[str] = []
    end, size = start, 0
    for position, body in rows:
        size += len(body)
        if found and (size > CHUNK_BYTES or len(found) == CHUNK_RECORDS):
            break
        found.append(body)
        end = position
    return found, end


@attrs.frozen
class Place:
    """A record of a log before which no envelope has a seq above its own."""

    seq: int
    position: int
    record_id: str


def load_events(
    connection: sqlite3.Connection, thread_id: ThreadId, after: int, limit: int, place: Place | None
) -> EventPage:
    """A page of envelopes, looked for from `place` on if that still stands. Raises CorruptRecord, sqlite3.Error."""
    with one_moment(connection):
        thread = find_active(connection, thread_id)
        if thread is None or after >= thread.last_seq:
            return EventPage((), CREATION, None)
        start = CREATION if place is None else _standing(connection, thread, place)
        if start == CREATION and read_document(thread_id, thread.metadata).is_ordered:
            start = _halved(connection, thread, after)
        with bodies(connection, thread, start) as rows:
            return events_after(thread_id, rows, after, limit)


def _halved(connection: sqlite3.Connection, thread: StoredThread, after: int) -> int:
    """A position of an ordered log behind which all envelopes with a seq above `after` stand, found by halving."""
    low, high = CREATION, thread.last_position
    while high - low > NEAR:
        middle = (low + high) // 2
        seq = 0
        with bodies(connection, thread, middle) as rows:
            for position, body in rows:
                seq = seq_of(thread.thread_id, position, body)
                if seq or position >= high:
                    break
        if 0 < seq <= after:
            low = middle
        else:
            high = middle
    return low


def _standing(connection: sqlite3.Connection, thread: StoredThread, place: Place) -> int:
    """Where a place is if its record still stands there; else the log's beginning."""
    row = connection.execute(
        "SELECT record_id FROM entry WHERE thread = ? AND position = ?", (thread.number, place.position)
    ).fetchone()
    return place.position if row == (place.record_id,) else CREATION
