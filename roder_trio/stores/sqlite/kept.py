"""States of threads that are kept beside their logs, so that hydration reads only what was stored since.

Rules of the room: a kept state is a cache. One that is damaged, that this version can't read, or that a later record
contradicts, is passed over and the whole log is folded instead. The reading and folding is done by a reader, the
writer only stores what that made of it.
"""

import sqlite3
import zlib
from collections.abc import Iterable

import attrs

from roder_trio.codec.state import FOLD_VERSION, decode_state, encode_state
from roder_trio.logic.thread.hydration import Hydration, fold_snapshot, fold_tail
from roder_trio.schema.event import TERMINAL_EVENTS, EventEnvelope
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import StoredRecord, ThreadMetadata
from roder_trio.stores._snapshot import snapshot_of
from roder_trio.stores._sql_record import read_log
from roder_trio.stores._sql_thread import read_document
from roder_trio.stores.sqlite.query import bodies, find_active, find_thread, one_moment
from roder_trio.stores.sqlite.row import StoredThread, checksum

RENEWED_AFTER = 500
"""Records behind a kept state after which the end of a turn renews it."""

_KEPT = "FROM checkpoint WHERE thread_id = ? AND fold_version = ? AND position <= ?"

_READ = "SELECT position, body, crc " + _KEPT

_KEEP = "INSERT OR REPLACE INTO checkpoint (thread_id, position, fold_version, body, crc) VALUES (?, ?, ?, ?, ?)"


@attrs.frozen
class Stand:
    """A thread's state as of a position of its log."""

    hydration: Hydration
    number: int
    position: int


def load_state(connection: sqlite3.Connection, thread_id: ThreadId) -> Hydration | None:
    """The state of an active thread as of now; None if there is none. Raises CorruptRecord, sqlite3.Error."""
    stand = _stand(connection, thread_id)
    return None if stand is None else stand.hydration


def renewed(connection: sqlite3.Connection, thread_id: ThreadId) -> tuple[Stand, bytes] | None:
    """The state of an active thread and what to keep of it; None if what is kept will do.

    Raises CorruptRecord, InvalidRecord, sqlite3.Error.
    """
    active = find_active(connection, thread_id)
    if active is None or not _is_behind(connection, thread_id, active.last_position):
        return None
    stand = _stand(connection, thread_id)
    return None if stand is None else (stand, zlib.compress(encode_state(stand.hydration).encode()))


def _stand(connection: sqlite3.Connection, thread_id: ThreadId) -> Stand | None:
    with one_moment(connection):
        active = find_active(connection, thread_id)
        if active is None:
            return None
        found = connection.execute(_READ, (thread_id, FOLD_VERSION, active.last_position)).fetchone()
        metadata = read_document(thread_id, active.metadata).metadata
        hydration = None if found is None else _continued(connection, metadata, active, *found)
        if hydration is None:
            with bodies(connection, active) as checked:
                rows = list(checked)
    if hydration is None:
        log = read_log(thread_id, rows, active.last_position)
        hydration = fold_snapshot(snapshot_of(metadata, log, to_fold=True), metadata)
    return Stand(hydration, active.number, active.last_position)


def _continued(
    connection: sqlite3.Connection, metadata: ThreadMetadata, active: StoredThread, position: int, body: bytes, crc: int
) -> Hydration | None:
    whole = isinstance(body, bytes) and crc == _checksum(active.thread_id, position, body)
    kept = _unpacked(body, metadata) if whole else None
    if kept is None:
        return None
    with bodies(connection, active, position) as rows:
        return fold_tail(kept, metadata, read_log(metadata.thread_id, rows, active.last_position, position))


def _checksum(thread_id: ThreadId, position: int, body: bytes) -> int:
    return checksum(thread_id, position, FOLD_VERSION, zlib.crc32(body))


def _unpacked(body: bytes, metadata: ThreadMetadata) -> Hydration | None:
    try:
        return decode_state(zlib.decompress(body), metadata)
    except zlib.error:
        return None


def is_due(
    connection: sqlite3.Connection, thread_id: ThreadId, last_position: int, records: Iterable[StoredRecord]
) -> bool:
    """Whether the append of these records calls for a new kept state."""
    if not any(isinstance(one, EventEnvelope) and isinstance(one.event, TERMINAL_EVENTS) for one in records):
        return False
    return _is_behind(connection, thread_id, last_position)


def _is_behind(connection: sqlite3.Connection, thread_id: ThreadId, last_position: int) -> bool:
    kept = connection.execute("SELECT position " + _KEPT, (thread_id, FOLD_VERSION, last_position)).fetchone()
    return last_position - (0 if kept is None else int(kept[0])) >= RENEWED_AFTER


def keep(connection: sqlite3.Connection, thread_id: ThreadId, stand: Stand, body: bytes) -> None:
    """Keep a state in place of the one before, if the thread is still there. Raises CorruptRecord, sqlite3.Error."""
    thread = find_thread(connection, thread_id)
    if thread is not None and thread.number == stand.number and thread.last_position >= stand.position:
        crc = _checksum(thread_id, stand.position, body)
        connection.execute(_KEEP, (thread_id, stand.position, FOLD_VERSION, body, crc))
