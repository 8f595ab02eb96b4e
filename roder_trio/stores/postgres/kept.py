"""States of threads that are kept beside their logs, so that hydration reads only what was stored since.

Rules of the room: a kept state is a cache. One that this version can't read, or that a later record contradicts, is
passed over and the whole log is folded instead. It is written under the lease, like all else.
"""

from collections.abc import Sequence

import attrs

from roder_trio.codec.state import FOLD_VERSION, decode_state, encode_state
from roder_trio.logic.thread.hydration import Hydration, fold_snapshot, fold_tail
from roder_trio.schema.event import TERMINAL_EVENTS, EventEnvelope
from roder_trio.schema.thread import ThreadMetadata
from roder_trio.stores import _sql_record as records
from roder_trio.stores import _sql_thread as threads
from roder_trio.stores._snapshot import snapshot_of
from roder_trio.stores.postgres import lease, read
from roder_trio.stores.postgres.database import Link
from roder_trio.stores.postgres.lease import Fence, Key

RENEWED_AFTER = 500
"""Records behind a kept state after which the end of a turn renews it."""

_KEPT = "SELECT position, body FROM checkpoint WHERE tenant = %s AND thread_id = %s AND fold_version = %s"

_BEHIND = """
SELECT last_position - coalesce(
    (SELECT position FROM checkpoint WHERE tenant = %s AND thread_id = %s AND fold_version = %s), 0
) FROM thread WHERE tenant = %s AND thread_id = %s"""

_KEEP = """
INSERT INTO checkpoint (tenant, thread_id, position, fold_version, body)
SELECT tenant, thread_id, %s, %s, %s FROM thread WHERE tenant = %s AND thread_id = %s
ON CONFLICT (tenant, thread_id) DO UPDATE
SET position = excluded.position, fold_version = excluded.fold_version, body = excluded.body"""


@attrs.frozen
class Stand:
    """A thread's state as of a position of its log."""

    hydration: Hydration
    position: int


def load(link: Link, key: Key) -> Stand | None:
    """The state of an active thread as of now; None if there is none. Raises CorruptRecord."""
    row = link.execute(read.METADATA, key.values).fetchone()
    if row is None:
        return None
    metadata = threads.read_document(key.thread_id, str(row[0])).metadata
    position = int(str(row[1]))
    hydration = _continued(link, key, metadata, position) or _whole(link, key, metadata, position)
    return Stand(hydration, position)


def _continued(link: Link, key: Key, metadata: ThreadMetadata, last_position: int) -> Hydration | None:
    row = link.execute(_KEPT, (*key.values, FOLD_VERSION)).fetchone()
    if row is None:
        return None
    position = int(str(row[0]))
    kept = decode_state(str(row[1]), metadata) if position <= last_position else None
    if kept is None:
        return None
    tail = records.read_log(key.thread_id, read.log(link, key, position), last_position, position)
    return fold_tail(kept, metadata, tail)


def _whole(link: Link, key: Key, metadata: ThreadMetadata, last_position: int) -> Hydration:
    log = records.read_log(key.thread_id, read.log(link, key, 0), last_position)
    return fold_snapshot(snapshot_of(metadata, log, to_fold=True), metadata)


def is_due(link: Link, key: Key, rows: Sequence[records.RecordRow]) -> bool:
    """Whether an append of these rows calls for a new kept state."""
    events = (row.record.event for row in rows if isinstance(row.record, EventEnvelope))
    if not any(isinstance(event, TERMINAL_EVENTS) for event in events):
        return False
    behind = link.execute(_BEHIND, (*key.values, FOLD_VERSION, *key.values)).fetchone()
    return behind is not None and int(str(behind[0])) >= RENEWED_AFTER


def text_of(stand: Stand) -> str:
    """A state as it is kept. Raises InvalidRecord."""
    return encode_state(stand.hydration)


def keep(link: Link, key: Key, fence: Fence, position: int, text: str) -> None:
    """Keep a state, in place of the one before. Raises LeaseLost, ThreadOwnedElsewhere."""
    lease.enter(link, key, fence)
    link.execute(_KEEP, (position, FOLD_VERSION, text, *key.values))
