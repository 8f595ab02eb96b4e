"""Records as the rows of a table, for stores that keep their logs in a database.

Rules of the room: pure, values in and values out; no statement and no database is named here. A row's body is the
record as the codec wrote it and is never written again. Positions count from 1; `CREATION` holds what the thread was
created with.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import attrs

from roder_trio import codec
from roder_trio.codec.text import DecodeError, dump, parse_json
from roder_trio.errors import CorruptRecord, InvalidRecord
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import ThreadId, is_valid_id
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import (
    ExtensionStateRecord,
    OpaqueRecord,
    StoredRecord,
    ThreadMetadata,
    TurnScope,
)
from roder_trio.stores._batch import MAX_APPEND_BYTES, record_id, refuse_repeated, stored_record

CREATION = 0
"""The position of the row that holds the metadata with which a thread was created."""
CREATION_ID = ""
"""The record id of that row, which no record can have."""
CREATION_KIND = "thread"
ITEM_EVENT = "item_event"
EXTENSION_STATE = "extension_state"


@attrs.frozen
class RecordRow:
    """One record, ready to be stored."""

    record: StoredRecord
    record_id: str
    kind: str
    turn_id: str | None
    body: str


def is_key(value: object) -> bool:
    """Whether `value` can be the id of a thread in a database, which takes nothing but Unicode."""
    return is_valid_id(value) and isinstance(value, str) and unicode_text(value) == value


def unicode_text(text: str) -> str:
    """The text as the codec writes it: each lone surrogate is U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encode_rows(records: Sequence[StoredRecord]) -> tuple[RecordRow, ...]:
    """The rows of a batch. Raises InvalidRecord."""
    rows: list[RecordRow] = []
    size = 0
    for record in records:
        body = codec.encode_record(record)
        size += len(body)
        turn_id = _turn_id(record)
        rows.append(
            RecordRow(
                record,
                unicode_text(record_id(record)),
                unicode_text(_kind(record)),
                None if turn_id is None else unicode_text(turn_id),
                body.decode(),
            )
        )
    if size > MAX_APPEND_BYTES:
        raise InvalidRecord(f"One append takes at most {MAX_APPEND_BYTES} bytes of encoded records.")
    return tuple(rows)


def new_rows(known: Collection[str], rows: Iterable[RecordRow]) -> list[RecordRow]:
    """The rows whose record ids are not `known`, each id once, in order."""
    seen = set(known)
    found = []
    for row in rows:
        if row.record_id not in seen:
            seen.add(row.record_id)
            found.append(row)
    return found


def _kind(record: StoredRecord) -> str:
    if isinstance(record, EventEnvelope):
        return record.kind
    if isinstance(record, OpaqueRecord):
        return record.type
    return ITEM_EVENT if isinstance(record, ThreadItemEvent) else EXTENSION_STATE


def _turn_id(record: StoredRecord) -> str | None:
    if isinstance(record, EventEnvelope | ThreadItemEvent):
        return record.turn_id
    if isinstance(record, ExtensionStateRecord) and isinstance(record.scope, TurnScope):
        return record.scope.turn_id
    return None


def encode_creation(metadata: ThreadMetadata) -> str:
    """The body of the row at `CREATION`. Raises InvalidRecord."""
    encoded = codec.encode_metadata(metadata)
    return (dump({"type": CREATION_KIND})[:-1] + b',"metadata":' + encoded + b"}").decode()


def decode_creation(thread_id: ThreadId, body: str) -> ThreadMetadata:
    """What a thread was created with. Raises CorruptRecord."""
    try:
        value = parse_json(body)
        created = codec.decode_metadata(value["metadata"] if isinstance(value, dict) else value)
    except (DecodeError, KeyError) as error:
        raise CorruptRecord(thread_id, "its creation", str(error)) from error
    if created.thread_id != thread_id:
        raise CorruptRecord(thread_id, "its creation", f"it creates {created.thread_id!r}")
    return created


def read_log(
    thread_id: ThreadId, rows: Iterable[tuple[int, str]], last_position: int, after: int = 0
) -> list[StoredRecord]:
    """The records behind `after` from their (position, body) in order. Raises CorruptRecord.

    One that stands there twice is told too: an index of ids that was damaged let it be stored again.
    """
    whole = whole_rows(thread_id, rows, last_position, after)
    records = [stored_record(thread_id, body, position) for position, body in whole]
    refuse_repeated(thread_id, records, after)
    return records


def whole_rows(
    thread_id: ThreadId, rows: Iterable[tuple[int, str]], last_position: int, after: int
) -> Iterator[tuple[int, str]]:
    """The same rows, in order behind `after`. Raises CorruptRecord where one is missing.

    What the thread's row says of its last position tells whether any is missing at the end.
    """
    expected = after + 1
    for position, body in rows:
        if position != expected:
            raise CorruptRecord(thread_id, expected, f"the next record stands at {position}")
        yield position, body
        expected += 1
    if expected != last_position + 1:
        raise CorruptRecord(thread_id, expected, f"the log should end at {last_position}")


@attrs.frozen
class EventPage:
    """A page of envelopes. Up to `position` no envelope has a seq above `seq`; None if that isn't known.

    `last_position` is where the last envelope of the page stands; 0 if it is empty.
    """

    events: tuple[EventEnvelope, ...]
    position: int
    seq: int | None
    last_position: int = 0


def events_after(thread_id: ThreadId, rows: Iterable[tuple[int, str]], after: int, limit: int) -> EventPage:
    """At most `limit` envelopes with a seq above `after`, decoding no others. Raises CorruptRecord.

    `rows` are (position, body) in order, from a place before which no envelope has a higher seq.
    """
    events: list[EventEnvelope] = []
    position = last = 0
    for place, value in _values(thread_id, rows):
        if _seq(value) > after:
            if len(events) >= limit:
                break
            record = stored_record(thread_id, value, place)
            assert isinstance(record, EventEnvelope)
            events.append(record)
            last = place
        position = place
    rising = all(one.seq < two.seq for one, two in pairwise(events))
    return EventPage(tuple(events), position, (events[-1].seq if events else after) if rising else None, last)


def seq_of(thread_id: ThreadId, position: int, body: str) -> int:
    """The seq of the envelope in a row; 0 if it has none or is something else. Raises CorruptRecord."""
    ((_, value),) = _values(thread_id, [(position, body)])
    return _seq(value)


def _seq(value: dict[str, Any]) -> int:
    seq = value.get("seq", 0) if value.get("type") == "event" else 0
    return seq if type(seq) is int else 0


def _values(thread_id: ThreadId, rows: Iterable[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    for position, body in rows:
        try:
            value = parse_json(body)
        except DecodeError as error:
            raise CorruptRecord(thread_id, position, str(error)) from error
        if not isinstance(value, dict):
            raise CorruptRecord(thread_id, position, "it is no JSON object")
        yield position, value
