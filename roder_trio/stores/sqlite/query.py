"""What the tables say: each call sees one moment.

Rules of the room: every function blocks and gets a connection of its own for the call; rows are read inside one
transaction and decoded after it.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import attrs

from roder_trio.codec.text import decode_datetime, dump, encode_datetime
from roder_trio.errors import CorruptRecord
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import LogPage, ThreadMetadata, ThreadPage, ThreadSnapshot
from roder_trio.stores._batch import CHUNK_BYTES, CHUNK_RECORDS
from roder_trio.stores._listing import log_position
from roder_trio.stores._snapshot import snapshot_of
from roder_trio.stores._sql_record import CREATION, EventPage, events_after, read_log, seq_of, unicode_text, whole_rows
from roder_trio.stores._sql_thread import PageQuery, page_of, read_document

BODIES = "SELECT position, body FROM entry WHERE thread = ? AND position > ? ORDER BY position"
"""The (position, body) of the records of a thread, by its number, behind a position."""

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


@contextmanager
def _bodies(connection: sqlite3.Connection, number: int, after: int) -> Iterator[sqlite3.Cursor]:
    """`BODIES`, read as far as needed; a statement that an error leaves in its midst would keep what it saw."""
    with closing(connection.execute(BODIES, (number, after))) as rows:
        yield rows


def load_thread(connection: sqlite3.Connection, thread_id: ThreadId) -> ThreadSnapshot | None:
    """All that is held of an active thread. Raises CorruptRecord, sqlite3.Error."""
    with one_moment(connection):
        row = find_active(connection, thread_id)
        if row is None:
            return None
        rows = connection.execute(BODIES, (row.number, CREATION)).fetchall()
    metadata = read_document(thread_id, row.metadata).metadata
    return snapshot_of(metadata, read_log(thread_id, rows, row.last_position))


def load_metadata(connection: sqlite3.Connection, thread_id: ThreadId) -> ThreadMetadata | None:
    """The metadata of an active thread. Raises CorruptRecord, sqlite3.Error."""
    row = find_active(connection, thread_id)
    return None if row is None else read_document(thread_id, row.metadata).metadata


@attrs.frozen
class Active:
    """The row of a thread that isn't archived; `metadata` is its document."""

    number: int
    metadata: str
    last_position: int
    last_seq: int


def find_active(connection: sqlite3.Connection, thread_id: ThreadId) -> Active | None:
    """The row of an active thread. Raises sqlite3.Error."""
    row = connection.execute(
        "SELECT number, metadata, last_position, last_seq FROM thread WHERE thread_id = ? AND archived_at IS NULL",
        (thread_id,),
    ).fetchone()
    return None if row is None else Active(*row)


def read_creation(connection: sqlite3.Connection, thread_id: ThreadId, number: int) -> str:
    """The body of the row that holds the creation of the thread of that number. Raises CorruptRecord, sqlite3.Error."""
    row = connection.execute("SELECT body FROM entry WHERE thread = ? AND position = ?", (number, CREATION)).fetchone()
    if row is None:
        raise CorruptRecord(thread_id, "its creation", "it is missing")
    body: str = row[0]
    return body


def read_log_page(connection: sqlite3.Connection, thread_id: ThreadId, cursor: str | None) -> LogPage | None:
    """A piece of the log of a thread, active or archived; None for unknown. Raises InvalidCursor, sqlite3.Error."""
    with one_moment(connection):
        row = connection.execute(
            "SELECT number, last_position, archived_at FROM thread WHERE thread_id = ?", (thread_id,)
        ).fetchone()
        if row is None:
            return None
        number, last_position, archived_at = row
        start = log_position(cursor, last_position)
        created = read_creation(connection, thread_id, number)
        with _bodies(connection, number, start) as rows:
            bodies, end = _piece(whole_rows(thread_id, rows, last_position, start), start)
    return LogPage(
        created=created.encode(),
        batches=(f"[{','.join(bodies)}]".encode(),) if bodies else (),
        archived=archived_at is not None,
        next_cursor=str(end) if bodies and end < last_position else None,
    )


def _piece(rows: Iterable[tuple[int, str]], start: int) -> tuple[list[str], int]:
    """Bodies for one append, and the position of the last."""
    bodies: list[str] = []
    end, size = start, 0
    for position, body in rows:
        size += len(body)
        if bodies and (size > CHUNK_BYTES or len(bodies) == CHUNK_RECORDS):
            break
        bodies.append(body)
        end = position
    return bodies, end


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
        row = find_active(connection, thread_id)
        if row is None or after >= row.last_seq:
            return EventPage((), CREATION, None)
        start = CREATION if place is None else _standing(connection, row.number, place)
        if start == CREATION and read_document(thread_id, row.metadata).is_ordered:
            start = _halved(connection, thread_id, row, after)
        with _bodies(connection, row.number, start) as rows:
            return events_after(thread_id, whole_rows(thread_id, rows, row.last_position, start), after, limit)


def _halved(connection: sqlite3.Connection, thread_id: ThreadId, row: Active, after: int) -> int:
    """A position of an ordered log behind which all envelopes with a seq above `after` stand, found by halving."""
    low, high = CREATION, row.last_position
    while high - low > NEAR:
        middle = (low + high) // 2
        seq = 0
        with _bodies(connection, row.number, middle) as rows:
            for position, body in rows:
                seq = seq_of(thread_id, position, body)
                if seq or position >= high:
                    break
        if 0 < seq <= after:
            low = middle
        else:
            high = middle
    return low


def _standing(connection: sqlite3.Connection, number: int, place: Place) -> int:
    row = connection.execute(
        "SELECT record_id FROM entry WHERE thread = ? AND position = ?", (number, place.position)
    ).fetchone()
    return place.position if row is not None and row[0] == place.record_id else CREATION


def list_threads(connection: sqlite3.Connection, query: PageQuery) -> ThreadPage:
    """A page of a listing. Raises sqlite3.Error."""
    where = ["thread.archived_at IS NOT NULL" if query.archived else "thread.archived_at IS NULL"]
    source, values = "thread", []
    if query.label is not None:
        source = "label JOIN thread ON thread.thread_id = label.thread_id"
        where.append("label.key = ? AND label.value = ?")
        values += [unicode_text(part) for part in query.label]
    if query.before is not None:
        where.append("(thread.updated_at, thread.thread_id) < (?, ?)")
        values += [encode_datetime(query.before[0]), query.before[1]]
    rows = connection.execute(
        f"SELECT thread.thread_id, thread.updated_at, thread.metadata FROM {source} WHERE {' AND '.join(where)} "  # noqa: S608
        f"ORDER BY thread.updated_at DESC, thread.thread_id DESC LIMIT {query.rows}",
        values,
    ).fetchall()
    return page_of(query, [_listed(*row) for row in rows])


def _listed(thread_id: ThreadId, updated_at: str, document: str) -> tuple[ThreadId, datetime, str]:
    try:
        return thread_id, decode_datetime(updated_at), document
    except ValueError:
        # without a date it can't be described
        return thread_id, datetime.min.replace(tzinfo=UTC), ""
