"""What reads threads, each within one snapshot of the database.

Rules of the room: no lease is needed and nothing is locked; a page asks for the rows that it shows and one more.
"""

from collections.abc import Iterator
from itertools import islice

import attrs

from roder_trio.errors import CorruptRecord
from roder_trio.schema.thread import LogPage, StoredRecord, ThreadMetadata, ThreadPage, ThreadSnapshot
from roder_trio.stores import _sql_record as records
from roder_trio.stores import _sql_thread as threads
from roder_trio.stores._batch import stored_record
from roder_trio.stores._listing import log_position
from roder_trio.stores._snapshot import snapshot_of
from roder_trio.stores.postgres.database import Link
from roder_trio.stores.postgres.lease import Key

CHUNK = 1000
"""Rows that one statement gives while the end is not known."""

METADATA = """
SELECT metadata, last_position FROM thread WHERE tenant = %s AND thread_id = %s AND archived_at IS NULL"""

_LOG = """
SELECT position, body FROM record WHERE tenant = %s AND thread_id = %s AND position > %s ORDER BY position"""

_STANDS = "SELECT 1 FROM record WHERE tenant = %s AND thread_id = %s AND record_id = %s AND position <= %s"

_CREATED = """
SELECT body, archived_at IS NOT NULL, last_position
FROM thread LEFT JOIN record ON record.tenant = thread.tenant AND record.thread_id = thread.thread_id AND position = 0
WHERE thread.tenant = %s AND thread.thread_id = %s"""

_PAGE = """
SELECT thread_id, updated_at, metadata FROM thread
WHERE tenant = %(tenant)s AND archived_at IS {standing}
    AND (updated_at, thread_id) < (%(before)s::timestamptz, %(before_id)s)
    {label}
ORDER BY updated_at DESC, thread_id DESC LIMIT %(rows)s"""

_LABELLED = """
    AND thread_id IN (SELECT thread_id FROM label WHERE tenant = %(tenant)s AND key = %(key)s AND value = %(value)s)"""


@attrs.frozen
class Tail:
    """Records of a log behind a position, and whether the thread is still there to get more."""

    records: list[tuple[int, StoredRecord]]
    active: bool


def snapshot(link: Link, key: Key) -> ThreadSnapshot | None:
    """All that is held of an active thread; None if there is none. Raises CorruptRecord."""
    row = link.execute(METADATA, key.values).fetchone()
    if row is None:
        return None
    document = threads.read_document(key.thread_id, str(row[0]))
    return snapshot_of(document.metadata, records.read_log(key.thread_id, log(link, key, 0), int(str(row[1]))))


def log(link: Link, key: Key, after: int) -> list[tuple[int, str]]:
    """The (position, body) of all records behind a position, in order."""
    return [(int(str(position)), str(body)) for position, body in link.execute(_LOG, (*key.values, after))]


def log_page(link: Link, key: Key, cursor: str | None) -> LogPage | None:
    """A piece of the log of a thread, active or archived; None for no thread. Raises CorruptRecord, InvalidCursor."""
    row = link.execute(_CREATED, key.values).fetchone()
    if row is None:
        return None
    created, archived, last = row[0], bool(row[1]), int(str(row[2]))
    start = log_position(cursor, last)
    if created is None:
        raise CorruptRecord(key.thread_id, "its creation", "it is missing")
    rows = records.whole_rows(key.thread_id, _rows(link, key, start), last, start)
    bodies = [body for _, body in islice(rows, CHUNK)]
    end = start + len(bodies)
    return LogPage(
        created=str(created).encode(),
        batches=(f"[{','.join(bodies)}]".encode(),) if bodies else (),
        archived=archived,
        next_cursor=str(end) if bodies and end < last else None,
    )


def metadata(link: Link, key: Key) -> ThreadMetadata | None:
    """The metadata of an active thread; None if there is none. Raises CorruptRecord."""
    row = link.execute(METADATA, key.values).fetchone()
    return None if row is None else threads.read_document(key.thread_id, str(row[0])).metadata


@attrs.frozen
class Bookmark:
    """Where a page of envelopes ended, and its last record, which tells whether the log is still the same."""

    position: int
    record_id: str


def events(link: Link, key: Key, known: Bookmark | None, after: int, limit: int) -> records.EventPage:
    """A page of envelopes with a seq above `after`; `known` is where the page that ended there did.

    Raises CorruptRecord.
    """
    row = link.execute(METADATA, key.values).fetchone()
    if row is None:
        return records.EventPage((), 0, None)
    start = 0 if known is None or not _stands(link, key, known) else known.position
    rows = records.whole_rows(key.thread_id, _rows(link, key, start), int(str(row[1])), start)
    return records.events_after(key.thread_id, rows, after, limit)


def _stands(link: Link, key: Key, known: Bookmark) -> bool:
    values = (*key.values, records.unicode_text(known.record_id), known.position)
    return link.execute(_STANDS, values).fetchone() is not None


def _rows(link: Link, key: Key, after: int) -> Iterator[tuple[int, str]]:
    while True:
        rows = link.execute(_LOG + " LIMIT %s", (*key.values, after, CHUNK)).fetchall()
        for position, body in rows:
            after = int(str(position))
            yield after, str(body)
        if len(rows) < CHUNK:
            return


def tail(link: Link, key: Key, after: int, limit: int) -> Tail:
    """At most `limit` records behind a position. Raises CorruptRecord."""
    active = link.execute(METADATA, key.values).fetchone() is not None
    found: list[tuple[int, StoredRecord]] = []
    for row in link.execute(_LOG + " LIMIT %s", (*key.values, after, limit)):
        position = int(str(row[0]))
        expected = after + len(found) + 1
        if position != expected:
            raise CorruptRecord(key.thread_id, expected, f"the next record stands at {position}")
        found.append((position, stored_record(key.thread_id, str(row[1]), position)))
    return Tail(found, active)


def page(link: Link, tenant: str, query: threads.PageQuery) -> ThreadPage:
    """A page of a listing."""
    statement = _PAGE.format(
        standing="NOT NULL" if query.archived else "NULL", label="" if query.label is None else _LABELLED
    )
    if query.label is not None and any("\0" in part for part in query.label):
        return threads.page_of(query, [])  # no text of the database has one
    before = ("infinity", "") if query.before is None else query.before
    name, text = query.label or ("", "")
    values = {
        "tenant": tenant,
        "before": before[0],
        "before_id": records.unicode_text(before[1]),
        "rows": query.rows,
        "key": records.unicode_text(name),
        "value": records.unicode_text(text),
    }
    rows = link.execute(statement.encode(), values).fetchall()
    return threads.page_of(query, [(str(row[0]), row[1], str(row[2])) for row in rows])  # type: ignore[misc]
