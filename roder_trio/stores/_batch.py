"""What every store checks of records, before it stores any of a batch and when it reads one.

Rules of the room: pure; a batch is refused as a whole, with `InvalidRecord`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from roder_trio import codec
from roder_trio.errors import CorruptRecord, InvalidRecord
from roder_trio.schema.event import EventEnvelope, ThreadMetadataChanged
from roder_trio.schema.ids import UNSET, ThreadId, is_valid_id
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import (
    ExtensionStateRecord,
    OpaqueRecord,
    Record,
    Scope,
    StoredRecord,
    ThreadMetadata,
    ThreadScope,
    TurnScope,
    frozen_labels,
)

MAX_APPEND_BYTES = 64 * 1024 * 1024
"""What the records of one append may take, encoded."""
CHUNK_RECORDS = 500
CHUNK_BYTES = 4 * 1024 * 1024
"""How much is appended at once by what fills a thread, if one record or batch isn't more."""

_PLACED = (EventEnvelope, ThreadItemEvent)
"""Records that name their thread and their time."""

T = TypeVar("T")


def checked_batch(thread_id: ThreadId, records: Iterable[Record]) -> tuple[StoredRecord, ...]:
    """Return the records of a batch for `thread_id`. Raises InvalidRecord, and whatever `records` raises."""
    if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
        raise InvalidRecord(f"append takes a sequence of records, not {type(records).__name__}.")
    batch: tuple[StoredRecord, ...] = tuple(records)
    for record in batch:
        fault = fault_of(thread_id, record)
        if fault is not None:
            raise InvalidRecord(f"A record for thread {thread_id!r} can't be stored: {fault}.")
    return batch


def fault_of(thread_id: ThreadId, record: object) -> str | None:
    """Why `record` can't stand in the log of `thread_id`, as far as its outer fields tell; None if it can."""
    if isinstance(record, _PLACED):
        if record.thread_id != thread_id and record.thread_id is not None:
            return f"it names thread {record.thread_id!r}"
        if record.timestamp.utcoffset() is None:
            return "its timestamp has no offset"
        if isinstance(record.event, ThreadMetadataChanged):
            return _fault_of_change(record.event)
    elif isinstance(record, ExtensionStateRecord):
        if scope_thread(record.scope) not in (None, thread_id):
            return "its scope names another thread"
    elif not isinstance(record, OpaqueRecord):
        return f"{type(record).__name__} is no record"
    return None if is_valid_id(record_id(record)) else "its id is not Unicode text of 1 to 512 characters without NUL"


def stored_record(thread_id: ThreadId, data: str | dict[str, Any], position: int) -> StoredRecord:
    """The record that stands at `position` of the log of `thread_id`. Raises CorruptRecord."""
    try:
        record = codec.decode_record(data)
    except codec.DecodeError as error:
        raise CorruptRecord(thread_id, position, str(error)) from error
    fault = None if isinstance(record, OpaqueRecord) else fault_of(thread_id, record)
    if fault is not None:
        raise CorruptRecord(thread_id, position, fault)
    return record


def _fault_of_change(event: ThreadMetadataChanged) -> str | None:
    if event.labels is UNSET:
        return None
    try:
        frozen_labels(event.labels)
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def record_id(record: StoredRecord) -> Any:
    """The identity of a record within its thread; None for an opaque one that has none."""
    if isinstance(record, OpaqueRecord):
        return record.value.get("event_id", record.value.get("record_id"))
    return record.record_id


def refuse_repeated(thread_id: ThreadId, records: Sequence[StoredRecord], after: int = 0) -> None:
    """Raise CorruptRecord if one of these records of a log, which begin behind `after`, stands among them twice."""
    seen: set[str] = set()
    for position, record in enumerate(records, start=after + 1):
        if isinstance(record, OpaqueRecord):
            continue  # a later version may know its identity by another name
        if record.record_id in seen:
            raise CorruptRecord(thread_id, position, "the same record stands before it already")
        seen.add(record.record_id)


def scope_thread(scope: Scope) -> ThreadId | None:
    """The thread that a scope names."""
    return scope.thread_id if isinstance(scope, ThreadScope | TurnScope) else None


def fresh(known: Collection[str], batch: Sequence[StoredRecord]) -> list[StoredRecord]:
    """The records of `batch` whose ids are not `known`, each id once, in order."""
    seen: set[str] = set()
    found = []
    for record in batch:
        key = record_id(record)
        if key in known or key in seen:
            continue
        seen.add(key)
        found.append(record)
    return found


def check_new_thread(metadata: ThreadMetadata) -> None:
    """Check what `create_thread` was given. Raises ValueError for a bad id, InvalidRecord for dates without offset."""
    if not isinstance(metadata, ThreadMetadata):
        raise TypeError(f"create_thread takes ThreadMetadata, not {type(metadata).__name__}")
    if not is_valid_id(metadata.thread_id):
        raise ValueError("a thread id must be Unicode text of 1 to 512 characters without NUL")
    if metadata.created_at.utcoffset() is None or metadata.updated_at.utcoffset() is None:
        raise InvalidRecord(f"The dates of thread {metadata.thread_id!r} need an offset.")


def creation(metadata: ThreadMetadata) -> tuple[object, ...]:
    """The fields that tell one creation of a thread from another: those that no record moves."""
    return (
        metadata.thread_id,
        metadata.title,
        metadata.workspace,
        metadata.provider,
        metadata.model,
        metadata.reasoning,
        metadata.tool_allowlist,
        metadata.developer_instructions,
        metadata.parent_thread_id,
        metadata.forked_from_turn_id,
        metadata.agent_path,
        dict(metadata.labels),
        metadata.created_at,
    )


def grouped(parts: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Parts in groups for one append each, in order; one that is too large stands alone."""
    group: list[T] = []
    total = 0
    for part in parts:
        length = size(part)
        if group and (total + length > CHUNK_BYTES or len(group) >= CHUNK_RECORDS):
            yield group
            group, total = [], 0
        group.append(part)
        total += length
    if group:
        yield group
