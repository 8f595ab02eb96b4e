"""What each call that changes something does to the tables.

Rules of the room: every function gets a connection in a transaction and either does all or raises; the writer's thread
alone runs them. An append reads one row of `thread`, the ids that it brings and the attempts that it names.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from roder_trio import codec
from roder_trio.codec.text import encode_datetime
from roder_trio.errors import ThreadExists, ThreadNotFound
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import StoredRecord, ThreadMetadata
from roder_trio.stores._batch import creation
from roder_trio.stores._sql_record import (
    CREATION,
    CREATION_ID,
    RecordRow,
    decode_creation,
    encode_creation,
    encode_rows,
    new_rows,
    unicode_text,
)
from roder_trio.stores._sql_thread import (
    AttemptRow,
    Change,
    Document,
    ThreadRow,
    change_of,
    named_attempts,
    new_document,
    read_document,
)
from roder_trio.stores.sqlite.kept import is_due
from roder_trio.stores.sqlite.query import as_json, read_creation

MAX_DOCUMENTS = 1024
"""Documents that are kept, the newest."""

_INSERT_RECORD = "INSERT INTO entry (thread, position, record_id, body) VALUES (?, ?, ?, ?)"
_TABLES = ("attempt", "checkpoint", "label", "thread")


class Move(Protocol):
    """A change of a whole thread, which says whether there was anything to do."""

    def __call__(self, connection: sqlite3.Connection, thread_id: ThreadId) -> bool:
        """Make it. Raises sqlite3.Error."""


class Documents:
    """The metadata documents that were read or written last, so that an append needn't read its own again.

    A document is known by its whole text, so one that another program changed is never taken for it.
    """

    def __init__(self) -> None:
        self._known: dict[ThreadId, tuple[str, Document]] = {}

    def read(self, thread_id: ThreadId, text: str) -> Document:
        """The document that `text` is. Raises CorruptRecord."""
        known = self._known.pop(thread_id, None)
        document = known[1] if known is not None and known[0] == text else read_document(thread_id, text)
        self.keep(thread_id, text, document)
        return document

    def keep(self, thread_id: ThreadId, text: str, document: Document) -> None:
        """Remember what `text` is."""
        if len(self._known) >= MAX_DOCUMENTS:
            del self._known[next(iter(self._known))]
        self._known[thread_id] = (text, document)


def create(connection: sqlite3.Connection, metadata: ThreadMetadata) -> ThreadMetadata:
    """Store a new thread, or return what is stored. Raises ThreadExists, InvalidRecord, CorruptRecord."""
    thread_id = metadata.thread_id
    document = new_document(metadata)
    wanted = codec.decode_metadata(document)
    row = connection.execute(
        "SELECT number, metadata, archived_at FROM thread WHERE thread_id = ?", (thread_id,)
    ).fetchone()
    if row is not None:
        number, text, archived_at = row
        created = None if archived_at else decode_creation(thread_id, read_creation(connection, thread_id, number))
        if created is None or creation(created) != creation(wanted):
            raise ThreadExists(thread_id)
        return read_document(thread_id, text).metadata
    inserted = connection.execute(
        "INSERT INTO thread (thread_id, metadata, updated_at, last_position, last_seq, last_item_seq) "
        "VALUES (?, ?, ?, 0, 0, 0)",
        (thread_id, document, encode_datetime(wanted.updated_at)),
    )
    connection.execute(_INSERT_RECORD, (inserted.lastrowid, CREATION, CREATION_ID, encode_creation(wanted)))
    _write_labels(connection, thread_id, wanted.labels)
    return wanted


def append(
    connection: sqlite3.Connection, documents: Documents, thread_id: ThreadId, batch: Sequence[StoredRecord]
) -> bool:
    """Store what is new of a batch; True if the thread's kept state is to be renewed.

    Raises ThreadNotFound, InvalidRecord, CorruptRecord.
    """
    row = connection.execute(
        "SELECT number, metadata, last_position, last_seq, last_item_seq FROM thread "
        "WHERE thread_id = ? AND archived_at IS NULL",
        (thread_id,),
    ).fetchone()
    if row is None:
        raise ThreadNotFound(thread_id)
    encoded = encode_rows(batch)
    number, thread = row[0], ThreadRow(*row[1:])
    rows = new_rows(_known_ids(connection, number, encoded), encoded)
    if not rows:
        return False
    attempts = _read_attempts(connection, thread_id, rows)
    change = change_of(thread, documents.read(thread_id, thread.document), rows, attempts)
    _write(connection, number, change)
    _write_beside(connection, thread_id, change)
    documents.keep(thread_id, change.thread.document, change.document)
    return is_due(connection, thread_id, change.thread.last_position, [row.record for row in rows])


def _known_ids(connection: sqlite3.Connection, number: int, rows: Sequence[RecordRow]) -> set[str]:
    found = connection.execute(
        "SELECT record_id FROM entry WHERE thread = ? AND record_id IN (SELECT value FROM json_each(?))",
        (number, as_json([row.record_id for row in rows])),
    )
    return {record_id for (record_id,) in found}


def _read_attempts(connection: sqlite3.Connection, thread_id: ThreadId, rows: Sequence[RecordRow]) -> list[AttemptRow]:
    names = named_attempts(rows)
    if not names:
        return []
    found = connection.execute(
        "SELECT attempt_id, turn_id, goal_id, origin_thread_id, report, usage FROM attempt "
        "WHERE thread_id = ? AND attempt_id IN (SELECT value FROM json_each(?))",
        (thread_id, as_json(names)),
    )
    return [
        AttemptRow(attempt_id, turn_id, goal_id, origin, report, codec.decode_usage(usage))
        for attempt_id, turn_id, goal_id, origin, report, usage in found
    ]


def _write(connection: sqlite3.Connection, number: int, change: Change) -> None:
    connection.executemany(
        _INSERT_RECORD,
        [
            (number, position, row.record_id, row.body)
            for position, row in enumerate(change.rows, start=change.position)
        ],
    )
    thread = change.thread
    connection.execute(
        "UPDATE thread SET metadata = ?, updated_at = ?, last_position = ?, last_seq = ?, last_item_seq = ? "
        "WHERE number = ?",
        (
            thread.document,
            encode_datetime(change.metadata.updated_at),
            thread.last_position,
            thread.last_seq,
            thread.last_item_seq,
            number,
        ),
    )


def _write_beside(connection: sqlite3.Connection, thread_id: ThreadId, change: Change) -> None:
    """Write what only some appends change."""
    if change.attempts:
        connection.executemany(
            "INSERT OR REPLACE INTO attempt (thread_id, attempt_id, turn_id, goal_id, origin_thread_id, report, usage) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            [_attempt_values(thread_id, row) for row in change.attempts],
        )
    if change.labels is not None:
        connection.execute("DELETE FROM label WHERE thread_id = ?", (thread_id,))
        _write_labels(connection, thread_id, change.labels)


def _attempt_values(thread_id: ThreadId, row: AttemptRow) -> tuple[str | int | None, ...]:
    names = (row.attempt_id, row.turn_id, row.goal_id, row.origin_thread_id)
    texts = [None if name is None else unicode_text(name) for name in names]
    return (thread_id, *texts, row.report, codec.encode_usage(row.usage).decode())


def _write_labels(connection: sqlite3.Connection, thread_id: ThreadId, labels: Mapping[str, str]) -> None:
    if labels:
        connection.executemany(
            "INSERT INTO label (thread_id, key, value) VALUES (?, ?, ?)",
            [(thread_id, unicode_text(key), unicode_text(value)) for key, value in labels.items()],
        )


def archive(connection: sqlite3.Connection, thread_id: ThreadId) -> bool:
    """Make a thread invisible; False if it isn't active."""
    done = connection.execute(
        "UPDATE thread SET archived_at = ? WHERE thread_id = ? AND archived_at IS NULL",
        (encode_datetime(datetime.now(UTC)), thread_id),
    )
    return done.rowcount > 0


def unarchive(connection: sqlite3.Connection, thread_id: ThreadId) -> bool:
    """Bring a thread back; False if it isn't archived."""
    done = connection.execute(
        "UPDATE thread SET archived_at = NULL WHERE thread_id = ? AND archived_at IS NOT NULL", (thread_id,)
    )
    return done.rowcount > 0


def delete(connection: sqlite3.Connection, thread_id: ThreadId) -> bool:
    """Remove a thread from all tables; False if nothing is there."""
    row = connection.execute("SELECT number FROM thread WHERE thread_id = ?", (thread_id,)).fetchone()
    if row is None:
        return False
    # rows of a page that gets empty move to the next one and leave a copy behind, so what moves must say nothing
    connection.execute("UPDATE entry SET body = zeroblob(length(CAST(body AS BLOB))) WHERE thread = ?", row)
    connection.execute("UPDATE thread SET metadata = zeroblob(length(CAST(metadata AS BLOB))) WHERE number = ?", row)
    connection.execute("DELETE FROM entry WHERE thread = ?", row)
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE thread_id = ?", (thread_id,))  # noqa: S608
    return True
