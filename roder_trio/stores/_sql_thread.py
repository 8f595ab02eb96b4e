"""The row of a thread and what an append makes of it, for stores that keep their threads in a database.

Rules of the room: pure, values in and values out; no statement and no database is named here. An append looks at the
thread's row, at the ids that it brings and at the attempts that it names, so it costs the same however long the log
is. A document of metadata may hold keys of other versions; they stay.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from roder_trio import codec
from roder_trio.codec.text import DecodeError, parse_json
from roder_trio.errors import CorruptRecord
from roder_trio.logic.thread.metadata import MetadataFold
from roder_trio.schema.event import EventEnvelope, TranscriptItemAppended, UsageRecorded
from roder_trio.schema.ids import AttemptId, ThreadId
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import StoredRecord, ThreadMetadata, ThreadPage
from roder_trio.schema.usage import TokenUsage
from roder_trio.stores._listing import Label, check_label, check_limit, read_cursor, write_cursor
from roder_trio.stores._sql_record import RecordRow, unicode_text

_TIERS = "usage_tiers"
"""The key under which a document counts the attempts of each tier, which the sum alone doesn't tell."""

_UNORDERED = "unordered"
"""The key under which a document says that an envelope has a seq no higher than one before it."""


@attrs.frozen
class Document:
    """The metadata of a thread as its row holds it; in `value` are the keys that only others know."""

    metadata: ThreadMetadata
    value: Mapping[str, Any]

    @property
    def tiers(self) -> dict[str | None, int] | None:
        """How many counted attempts have each tier; None if the document doesn't say."""
        try:
            return dict(self.value.get(_TIERS, ()) if self.metadata.usage is None else self.value[_TIERS])
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def is_ordered(self) -> bool:
        """Whether seqs of envelopes, those without one apart, rise along the log."""
        return _UNORDERED not in self.value


def new_document(metadata: ThreadMetadata) -> str:
    """The document of a new thread. Raises InvalidRecord."""
    return codec.encode_metadata(metadata).decode()


def read_document(thread_id: ThreadId, text: str) -> Document:
    """Read the document of a thread's row. Raises CorruptRecord."""
    try:
        value = parse_json(text)
        metadata = codec.decode_metadata(value)
    except DecodeError as error:
        raise CorruptRecord(thread_id, "its metadata", str(error)) from error
    if metadata.thread_id != thread_id:
        raise CorruptRecord(thread_id, "its metadata", f"it is of thread {metadata.thread_id!r}")
    return Document(metadata, value)


def _next_document(
    previous: Document, metadata: ThreadMetadata, tiers: Mapping[str | None, int], *, ordered: bool
) -> Document:
    value = dict(previous.value)
    if tiers:
        value[_TIERS] = [[None if tier is None else unicode_text(tier), count] for tier, count in tiers.items()]
    if not ordered:
        value[_UNORDERED] = True
    return Document(metadata, value)


@attrs.frozen
class ThreadRow:
    """What the row of a thread says of its log; `document` is its metadata as text."""

    document: str
    last_position: int = 0
    last_seq: int = 0
    last_item_seq: int = 0


@attrs.frozen
class AttemptRow:
    """The counted total of an attempt; those of other threads are kept and never summed."""

    attempt_id: AttemptId
    turn_id: str
    goal_id: str | None
    origin_thread_id: ThreadId | None
    report: int
    usage: TokenUsage


@attrs.frozen
class Change:
    """What one append writes: records from `position` on, the new row, attempts, and labels if they changed."""

    position: int
    rows: Sequence[RecordRow]
    thread: ThreadRow
    document: Document
    attempts: Sequence[AttemptRow]
    labels: Mapping[str, str] | None

    @property
    def metadata(self) -> ThreadMetadata:
        """The metadata after it."""
        return self.document.metadata


def named_attempts(rows: Iterable[RecordRow]) -> list[AttemptId]:
    """The attempts whose rows must be read to fold `rows`."""
    return list({usage.attempt_id: None for usage in _usages(rows)})


def _usages(rows: Iterable[RecordRow]) -> Iterable[UsageRecorded]:
    for row in rows:
        if isinstance(row.record, EventEnvelope) and isinstance(row.record.event, UsageRecorded):
            yield row.record.event


def change_of(
    thread: ThreadRow, document: Document, rows: Sequence[RecordRow], attempts: Iterable[AttemptRow] = ()
) -> Change:
    """What the append of new `rows` makes of a thread. `attempts` are the rows of those that it names.

    Raises InvalidRecord.
    """
    known = {attempt.attempt_id: attempt for attempt in attempts}
    own = {key: (row.report, row.usage) for key, row in known.items() if row.origin_thread_id is None}
    fold = MetadataFold(document.metadata, own, document.tiers)
    seq, item_seq, ordered = thread.last_seq, thread.last_item_seq, True
    for row in rows:
        fold.absorb(row.record)
        told = _seq(row.record)
        ordered = ordered and (told == 0 or told > seq)
        seq, item_seq = max(seq, told), max(item_seq, _item_seq(row.record))
    following = _next_document(document, fold.metadata, fold.tiers, ordered=ordered)
    text = codec.encode_metadata(following.metadata, dict(following.value)).decode()
    before, after = document.metadata.labels, following.metadata.labels
    return Change(
        position=thread.last_position + 1,
        rows=rows,
        thread=ThreadRow(text, thread.last_position + len(rows), seq, item_seq),
        document=following,
        attempts=_changed_attempts(known, fold.attempts, rows),
        labels=None if before is after or before == after else after,
    )


def _seq(record: StoredRecord) -> int:
    return record.seq if isinstance(record, EventEnvelope) else 0


def _item_seq(record: StoredRecord) -> int:
    if isinstance(record, ThreadItemEvent):
        return record.seq
    if isinstance(record, EventEnvelope) and isinstance(record.event, TranscriptItemAppended):
        return record.event.item_seq
    return 0


def _changed_attempts(
    known: Mapping[AttemptId, AttemptRow],
    counted: Mapping[AttemptId, tuple[int, TokenUsage]],
    rows: Iterable[RecordRow],
) -> list[AttemptRow]:
    """The rows of attempts that are new or count otherwise now: own ones as folded, copies by their highest report."""
    found: dict[AttemptId, AttemptRow] = {}
    for event in _usages(rows):
        row = AttemptRow(
            event.attempt_id, event.turn_id, event.goal_id, event.origin_thread_id, event.report, event.usage
        )
        before = found.get(event.attempt_id, known.get(event.attempt_id))
        if event.origin_thread_id is None:
            counts = counted.get(event.attempt_id) == (event.report, event.usage)
        else:
            copy = before is None or (before.origin_thread_id is not None and before.report < event.report)
            counts = copy and not event.usage.is_empty
        if counts and row != before:
            found[event.attempt_id] = row
    return list(found.values())


@attrs.frozen
class PageQuery:
    """Which rows a page of a listing needs: the first `rows` of those below `before`, newest first."""

    scope: tuple[str | None, ...]
    limit: int
    before: tuple[datetime, str] | None
    label: Label | None
    archived: bool

    @property
    def rows(self) -> int:
        """One more than the page holds, which tells whether another follows."""
        return self.limit + 1


def page_query(
    store_id: str, *, limit: int, cursor: str | None, label: Label | None = None, archived: bool = False
) -> PageQuery:
    """What to ask for a page. Raises ValueError, InvalidCursor."""
    check_limit(limit)
    check_label(label)
    scope = (store_id, "archived" if archived else "active", *(label or (None, None)))
    before = None if cursor is None else read_cursor(scope, cursor)
    return PageQuery(scope, limit, before, label, archived)


def page_of(query: PageQuery, rows: Sequence[tuple[ThreadId, datetime, str]]) -> ThreadPage:
    """The page that rows of (thread id, updated_at, document) make; what can't be read is named as damaged."""
    threads: list[ThreadMetadata] = []
    damaged: list[ThreadId] = []
    shown = rows[: query.limit]
    for thread_id, _, text in shown:
        try:
            threads.append(read_document(thread_id, text).metadata)
        except CorruptRecord:
            damaged.append(thread_id)
    more = len(rows) > query.limit
    following = write_cursor(query.scope, (shown[-1][1], shown[-1][0])) if more else None
    return ThreadPage(threads=threads, next_cursor=following, damaged=damaged)
