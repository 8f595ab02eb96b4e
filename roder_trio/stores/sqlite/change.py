"""What each call that changes something does to the tables.

Rules of the room: every function gets a connection in a transaction and either does all or raises; the writer's thread
alone runs them. An append reads one row of `thread`, the ids that it brings and the attempts that it names. Each row
is written with its checksum, and none is changed that isn't what its checksum says; a thread that is damaged can still
be deleted.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

import attrs

from roder_trio import codec
from roder_trio.codec.text import encode_datetime
from roder_trio.errors import CorruptRecord, ThreadExists, ThreadNotFound
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
    Change,
    Document,
    ThreadRow,
    change_of,
    new_document,
    read_document,
)
from roder_trio.stores.sqlite.attempt import read_attempts, write_attempts
from roder_trio.stores.sqlite.kept import is_due
from roder_trio.stores.sqlite.query import as_json, find_active, find_thread, read_creation
from roder_trio.stores.sqlite.row import (
    StoredThread,
    checksum,
)

MAX_DOCUMENTS = 1024
"""Documents that are kept, the newest."""

_INSERT_THREAD = """
INSERT INTO thread (number, thread_id, metadata, updated_at, archived_at, last_position, last_seq, last_item_seq, crc)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_INSERT_RECORD = "INSERT INTO entry (thread, position, record_id, body, crc) VALUES (?, ?, ?, ?, ?)"

_RECOUNT = """
UPDATE tally SET threads = (
    SELECT count(*) FROM thread INDEXED BY thread_listing WHERE (thread.archived_at IS NOT NULL) = tally.archived
)"""


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
    stored = find_thread(connection, thread_id)
    if stored is not None:
        archived = stored.archived_at is not None
        created = None if archived else decode_creation(thread_id, read_creation(connection, stored))
        if created is None or creation(created) != creation(wanted):
            raise ThreadExists(thread_id)
        return read_document(thread_id, stored.metadata).metadata
    (number,) = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM thread").fetchone()
    thread = StoredThread(number, thread_id, document, encode_datetime(wanted.updated_at))
    connection.execute(_INSERT_THREAD, (*attrs.astuple(thread), thread.crc))
    connection.execute(_INSERT_RECORD, _entry(number, CREATION, CREATION_ID, encode_creation(wanted)))
    _tally(connection, archived=False, by=1)
    _write_labels(connection, thread_id, wanted.labels)
    return wanted


def _entry(number: int, position: int, record_id: str, body: str) -> tuple[int, int, str, str, int]:
    return number, position, record_id, body, checksum(number, position, record_id, body)


def _tally(connection: sqlite3.Connection, *, archived: bool, by: int) -> None:
    connection.execute("UPDATE tally SET threads = threads + ? WHERE archived = ?", (by, archived))


def append(
    connection: sqlite3.Connection, documents: Documents, thread_id: ThreadId, batch: Sequence[StoredRecord]
) -> bool:
    """Store what is new of a batch; True if the thread's kept state is to be renewed.

    Raises ThreadNotFound, InvalidRecord, CorruptRecord.
    """
    stored = find_active(connection, thread_id)
    if stored is None:
        raise ThreadNotFound(thread_id)
    encoded = encode_rows(batch)
    rows = new_rows(_known_ids(connection, stored.number, encoded), encoded)
    if not rows:
        return False
    attempts = read_attempts(connection, stored, rows)
    thread = ThreadRow(stored.metadata, stored.last_position, stored.last_seq, stored.last_item_seq)
    change = change_of(thread, documents.read(thread_id, thread.document), rows, attempts)
    _write(connection, stored, change)
    _write_beside(connection, stored, change)
    documents.keep(thread_id, change.thread.document, change.document)
    return is_due(connection, thread_id, change.thread.last_position, [row.record for row in rows])


def _known_ids(connection: sqlite3.Connection, number: int, rows: Sequence[RecordRow]) -> set[str]:
    found = connection.execute(
        "SELECT record_id FROM entry WHERE thread = ? AND record_id IN (SELECT value FROM json_each(?))",
        (number, as_json([row.record_id for row in rows])),
    )
    return {record_id for (record_id,) in found}


def _write(connection: sqlite3.Connection, stored: StoredThread, change: Change) -> None:
    connection.executemany(
        _INSERT_RECORD,
        [
            _entry(stored.number, position, row.record_id, row.body)
            for position, row in enumerate(change.rows, start=change.position)
        ],
    )
    thread = change.thread
    following = StoredThread(
        number=stored.number,
        thread_id=stored.thread_id,
        metadata=thread.document,
        updated_at=encode_datetime(change.metadata.updated_at),
        last_position=thread.last_position,
        last_seq=thread.last_seq,
        last_item_seq=thread.last_item_seq,
    )
    connection.execute(
        "UPDATE thread SET metadata = ?, updated_at = ?, last_position = ?, last_seq = ?, last_item_seq = ?, crc = ? "
        "WHERE number = ?",
        (
            following.metadata,
            following.updated_at,
            following.last_position,
            following.last_seq,
            following.last_item_seq,
            following.crc,
            following.number,
        ),
    )


def _write_beside(connection: sqlite3.Connection, stored: StoredThread, change: Change) -> None:
    """Write what only some appends change."""
    if change.attempts:
        write_attempts(connection, stored, change.attempts)
    if change.labels is not None:
        connection.execute("DELETE FROM label WHERE thread_id = ?", (stored.thread_id,))
        _write_labels(connection, stored.thread_id, change.labels)


def _write_labels(connection: sqlite3.Connection, thread_id: ThreadId, labels: Mapping[str, str]) -> None:
    if labels:
        connection.executemany(
            "INSERT INTO label (thread_id, key, value) VALUES (?, ?, ?)",
            [(thread_id, unicode_text(key), unicode_text(value)) for key, value in labels.items()],
        )


def archive(connection: sqlite3.Connection, thread_id: ThreadId) -> bool:
    """Make a thread invisible; False if it isn't active. Raises CorruptRecord."""
    return _move(connection, thread_id, encode_datetime(datetime.now(UTC)))


def unarchive(connection: sqlite3.Connection, thread_id: ThreadId) -> bool:
    """Bring a thread back; False if it isn't archived. Raises CorruptRecord."""
    return _move(connection, thread_id, None)


def _move(connection: sqlite3.Connection, thread_id: ThreadId, archived_at: str | None) -> bool:
    stored = find_thread(connection, thread_id)
    archived = archived_at is not None
    if stored is None or (stored.archived_at is not None) == archived:
        return False
    moved = attrs.evolve(stored, archived_at=archived_at)
    connection.execute(
        "UPDATE thread SET archived_at = ?, crc = ? WHERE number = ?", (archived_at, moved.crc, moved.number)
    )
    _tally(connection, archived=archived, by=1)
    _tally(connection, archived=not archived, by=-1)
    return True


def delete(connection: sqlite3.Connection, thread_id: ThreadId) -> bool:
    """Remove a thread from all tables, damaged or not; False if nothing is there.

    Raises CorruptRecord if it can't be told which rows are its own.
    """
    found = _to_remove(connection, thread_id)
    if found is None:
        return False
    number, archived = found
    # rows of a page that gets empty move to the next one and leave a copy behind, so what moves must say nothing
    connection.execute("UPDATE entry SET body = zeroblob(length(CAST(body AS BLOB))) WHERE thread = ?", (number,))
    connection.execute(
        "UPDATE thread SET metadata = zeroblob(length(CAST(metadata AS BLOB))) WHERE number = ?", (number,)
    )
    connection.execute("DELETE FROM entry WHERE thread = ?", (number,))
    connection.execute("DELETE FROM attempt WHERE thread = ?", (number,))
    connection.execute("DELETE FROM checkpoint WHERE thread_id = ?", (thread_id,))
    connection.execute("DELETE FROM label WHERE thread_id = ?", (thread_id,))
    connection.execute("DELETE FROM thread WHERE number = ?", (number,))
    if archived is None:
        connection.execute(_RECOUNT)
    else:
        _tally(connection, archived=archived, by=-1)
    return True


def _to_remove(connection: sqlite3.Connection, thread_id: ThreadId) -> tuple[int, bool | None] | None:
    """The number of a thread and whether it is archived, which a damaged row doesn't tell; None if there is none.

    Raises CorruptRecord.
    """
    try:
        stored = find_thread(connection, thread_id)
    except CorruptRecord:
        row = connection.execute(
            "SELECT number FROM thread INDEXED BY thread_name WHERE thread_id = ?", (thread_id,)
        ).fetchone()
        # by the number alone, so that it is the row that tells and not the index
        if row is None or connection.execute("SELECT thread_id FROM thread WHERE number = ?", row).fetchone() != (
            thread_id,
        ):
            raise
        return row[0], None
    return None if stored is None else (stored.number, stored.archived_at is not None)
