"""What changes a thread, each as the body of one transaction.

Rules of the room: the lease is locked and checked first, so that changes of one thread run one after the other and a
stale owner writes nothing. A change that may have been done by a commit that was cut looks for its traces before it
looks at the fence.
"""

from collections.abc import Mapping, Sequence

from psycopg import sql

from roder_trio import codec
from roder_trio.codec.text import DecodeError
from roder_trio.errors import CorruptRecord, ThreadExists, ThreadNotFound
from roder_trio.schema.thread import ThreadMetadata
from roder_trio.stores import _sql_record as records
from roder_trio.stores import _sql_thread as threads
from roder_trio.stores._batch import creation
from roder_trio.stores.postgres import lease
from roder_trio.stores.postgres.database import Link
from roder_trio.stores.postgres.lease import Fence, Key

_STANDING = "SELECT archived_at IS NOT NULL, metadata FROM thread WHERE tenant = %s AND thread_id = %s"

_CREATION = "SELECT body FROM record WHERE tenant = %s AND thread_id = %s AND position = 0"

_CREATE = """
WITH made AS (
    INSERT INTO thread (tenant, thread_id, metadata, updated_at, last_position, last_seq, last_item_seq)
    VALUES (%(tenant)s, %(thread_id)s, %(metadata)s, %(updated_at)s, 0, 0, 0)
)
INSERT INTO record (tenant, thread_id, position, record_id, kind, body)
VALUES (%(tenant)s, %(thread_id)s, 0, %(record_id)s, %(kind)s, %(body)s)"""

_CURRENT = """
SELECT metadata, last_position, last_seq, last_item_seq, ARRAY(
    SELECT record_id FROM record WHERE tenant = %(tenant)s AND thread_id = %(thread_id)s AND record_id = ANY(%(ids)s)
)
FROM thread WHERE tenant = %(tenant)s AND thread_id = %(thread_id)s AND archived_at IS NULL"""

_ATTEMPTS = """
SELECT attempt_id, turn_id, goal_id, origin_thread_id, report, usage FROM attempt
WHERE tenant = %s AND thread_id = %s AND attempt_id = ANY(%s)"""

_APPEND = """
WITH stored AS (
    INSERT INTO record (tenant, thread_id, position, record_id, kind, turn_id, body)
    SELECT %(tenant)s, %(thread_id)s, %(position)s + nth - 1, record_id, kind, turn_id, body
    FROM unnest(%(ids)s::text[], %(kinds)s::text[], %(turns)s::text[], %(bodies)s::text[])
        WITH ORDINALITY AS row (record_id, kind, turn_id, body, nth)
)
UPDATE thread SET metadata = %(metadata)s, updated_at = %(updated_at)s, last_position = %(last_position)s,
    last_seq = %(last_seq)s, last_item_seq = %(last_item_seq)s
WHERE tenant = %(tenant)s AND thread_id = %(thread_id)s"""

_COUNT = """
INSERT INTO attempt (tenant, thread_id, attempt_id, turn_id, goal_id, origin_thread_id, report, usage)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (tenant, thread_id, attempt_id) DO UPDATE SET turn_id = excluded.turn_id, goal_id = excluded.goal_id,
    origin_thread_id = excluded.origin_thread_id, report = excluded.report, usage = excluded.usage"""

_MOVE = {
    True: """
        UPDATE thread SET archived_at = clock_timestamp()
        WHERE tenant = %s AND thread_id = %s AND archived_at IS NULL RETURNING true""",
    False: """
        UPDATE thread SET archived_at = NULL
        WHERE tenant = %s AND thread_id = %s AND archived_at IS NOT NULL RETURNING true""",
}

_KEPT_IN = ("label", "checkpoint", "attempt", "record")


def standing(link: Link, key: Key) -> bool | None:
    """Whether a thread is archived; None if there is none."""
    row = link.execute(_STANDING, key.values).fetchone()
    return None if row is None else bool(row[0])


def claim(link: Link, key: Key, owner: str, ttl: float) -> int | None:
    """Claim a thread and return the epoch; None, with no trace left, if there is no such thread."""
    return None if standing(link, key) is None else lease.claim(link, key, owner, ttl)


def create(link: Link, key: Key, metadata: ThreadMetadata, owner: str, ttl: float) -> tuple[ThreadMetadata, int | None]:
    """Store a new thread and claim it, or return what is stored, without an epoch. Raises ThreadExists."""
    stored = _created(link, key, metadata)
    if stored is not None:
        return stored, None
    epoch = lease.claim(link, key, owner, ttl)
    stored = _created(link, key, metadata)
    if stored is not None:
        # another creator was faster, and no longer owns it
        return stored, epoch
    document = threads.new_document(metadata)
    link.execute(
        _CREATE,
        {
            "tenant": key.tenant,
            "thread_id": key.thread_id,
            "metadata": document,
            "updated_at": metadata.updated_at,
            "record_id": records.CREATION_ID,
            "kind": records.CREATION_KIND,
            "body": records.encode_creation(metadata),
        },
    )
    _label(link, key, metadata.labels)
    return threads.read_document(key.thread_id, document).metadata, epoch


def _created(link: Link, key: Key, wanted: ThreadMetadata) -> ThreadMetadata | None:
    row = link.execute(_STANDING, key.values).fetchone()
    if row is None:
        return None
    body = link.execute(_CREATION, key.values).fetchone()
    if body is None:
        raise CorruptRecord(key.thread_id, records.CREATION, "its creation is missing")
    known = records.decode_creation(key.thread_id, str(body[0]))
    again = records.decode_creation(key.thread_id, records.encode_creation(wanted))
    if row[0] or creation(known) != creation(again):
        raise ThreadExists(key.thread_id)
    return threads.read_document(key.thread_id, str(row[1])).metadata


def append(link: Link, key: Key, fence: Fence, rows: Sequence[records.RecordRow], *, doubt: bool) -> int:
    """Store what is new of a batch and return the last position of the log.

    Raises LeaseLost, ThreadOwnedElsewhere, ThreadNotFound, InvalidRecord.
    """
    if doubt:
        lease.lock(link, key)
        current = _current(link, key, rows)
        if current is not None and not records.new_rows(current[1], rows):
            return current[0].last_position
    lease.enter(link, key, fence)
    current = _current(link, key, rows)
    if current is None:
        raise ThreadNotFound(key.thread_id)
    thread, known = current
    new = records.new_rows(known, rows)
    if not new:
        return thread.last_position
    document = threads.read_document(key.thread_id, thread.document)
    _write(link, key, threads.change_of(thread, document, new, _attempts(link, key, new)))
    return thread.last_position + len(new)


def _current(link: Link, key: Key, rows: Sequence[records.RecordRow]) -> tuple[threads.ThreadRow, Sequence[str]] | None:
    ids = [row.record_id for row in rows]
    values = {"tenant": key.tenant, "thread_id": key.thread_id, "ids": ids}
    row = link.execute(_CURRENT, values).fetchone()
    if row is None:
        return None
    document, position, seq, item_seq, known = row
    assert isinstance(known, list)
    thread = threads.ThreadRow(str(document), *(int(str(number)) for number in (position, seq, item_seq)))
    return thread, known


def _attempts(link: Link, key: Key, rows: Sequence[records.RecordRow]) -> list[threads.AttemptRow]:
    named = threads.named_attempts(rows)
    if not named:
        return []
    found = link.execute(_ATTEMPTS, (*key.values, named)).fetchall()
    return [_attempt(key, row) for row in found]


def _attempt(key: Key, row: Sequence[object]) -> threads.AttemptRow:
    attempt_id, turn_id, goal_id, origin, report, usage = row
    try:
        return threads.AttemptRow(
            attempt_id=str(attempt_id),
            turn_id=str(turn_id),
            goal_id=None if goal_id is None else str(goal_id),
            origin_thread_id=None if origin is None else str(origin),
            report=int(str(report)),
            usage=codec.decode_usage(str(usage)),
        )
    except DecodeError as error:
        raise CorruptRecord(key.thread_id, f"attempt {attempt_id!r}", str(error)) from error


def _write(link: Link, key: Key, change: threads.Change) -> None:
    link.execute(
        _APPEND,
        {
            "tenant": key.tenant,
            "thread_id": key.thread_id,
            "position": change.position,
            "ids": [row.record_id for row in change.rows],
            "kinds": [row.kind for row in change.rows],
            "turns": [row.turn_id for row in change.rows],
            "bodies": [row.body for row in change.rows],
            "metadata": change.thread.document,
            "updated_at": change.document.metadata.updated_at,
            "last_position": change.thread.last_position,
            "last_seq": change.thread.last_seq,
            "last_item_seq": change.thread.last_item_seq,
        },
    )
    for row in change.attempts:
        usage = codec.encode_usage(row.usage).decode()
        values = (row.attempt_id, row.turn_id, row.goal_id, row.origin_thread_id, row.report, usage)
        link.execute(_COUNT, (*key.values, *values))
    if change.labels is not None:
        link.execute("DELETE FROM label WHERE tenant = %s AND thread_id = %s", key.values)
        _label(link, key, change.labels)


def _label(link: Link, key: Key, labels: Mapping[str, str]) -> None:
    if labels:
        link.execute(
            "INSERT INTO label (tenant, thread_id, key, value) SELECT %s, %s, * FROM unnest(%s::text[], %s::text[])",
            (
                *key.values,
                [records.unicode_text(name) for name in labels],
                [records.unicode_text(text) for text in labels.values()],
            ),
        )


def move(link: Link, key: Key, fence: Fence, *, archive: bool, doubt: bool) -> bool:
    """Archive a thread, or bring it back; False if there is nothing to move. Raises LeaseLost, ThreadOwnedElsewhere.

    If a cut commit may have done it, a thread that stands as wanted counts as moved.
    """
    if doubt:
        lease.lock(link, key)
        if standing(link, key) is archive:
            return True
    if standing(link, key) is not (not archive):
        return False
    lease.enter(link, key, fence)
    return link.execute(_MOVE[archive], key.values).fetchone() is not None


def delete(link: Link, key: Key, fence: Fence, *, doubt: bool) -> bool:
    """Remove every row of a thread but its lease, which ends; False if there is none.

    Raises LeaseLost, ThreadOwnedElsewhere.

    If a cut commit may have done it, a thread that is gone counts as removed.
    """
    if doubt:
        lease.lock(link, key)
    if standing(link, key) is None:
        return doubt
    lease.enter(link, key, fence)
    for table in _KEPT_IN:
        statement = sql.SQL("DELETE FROM {} WHERE tenant = %s AND thread_id = %s").format(sql.Identifier(table))
        link.execute(statement, key.values)
    gone = link.execute("DELETE FROM thread WHERE tenant = %s AND thread_id = %s RETURNING true", key.values).fetchone()
    lease.end(link, key)
    return gone is not None
