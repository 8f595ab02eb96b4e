"""A thread's log as any store shows it: piece by piece where the store can, else as one made of its snapshot.

Rules of the room: text that a store shows as it is stored is passed on as it is. A snapshot tells no order between
events, item events and states of extensions; nothing that is folded of them depends on it.
"""

from collections.abc import AsyncIterator, Sequence

import attrs

from roder_trio import codec
from roder_trio.errors import CorruptRecord, StoreUnsupported
from roder_trio.logic.item import derive
from roder_trio.logic.thread.metadata import fold_metadata
from roder_trio.ports import ThreadStore
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import LogPage, StoredRecord, ThreadMetadata, ThreadSnapshot
from roder_trio.stores._batch import grouped, stored_record
from roder_trio.stores._frame import encode_creation


class LogReader:
    """Reads the log of one thread, piece after piece; each read is one call of the store."""

    def __init__(self, store: ThreadStore, thread_id: ThreadId) -> None:
        self._store = store
        self._thread_id = thread_id
        self._cursor: str | None = None
        self._ended = False

    def __aiter__(self) -> AsyncIterator[LogPage]:
        return self

    async def __anext__(self) -> LogPage:
        """Return the next piece; there is at least one if the thread exists. Raises StorageError."""
        if self._ended:
            raise StopAsyncIteration
        page = await self._page()
        self._ended = page is None or page.next_cursor is None
        if page is None:
            raise StopAsyncIteration
        self._cursor = page.next_cursor
        return page

    async def _page(self) -> LogPage | None:
        try:
            return await self._store.read_log(self._thread_id, self._cursor)
        except StoreUnsupported:
            snapshot = await self._store.load_thread(self._thread_id)
        if snapshot is None or snapshot.metadata is None:
            return None
        return page_of(snapshot, snapshot.metadata)


def page_of(snapshot: ThreadSnapshot, metadata: ThreadMetadata) -> LogPage:
    """The whole log that a snapshot tells, in one piece. Raises InvalidRecord."""
    derived = {event.event_id for envelope in snapshot.events for event in derive(envelope)}
    stored = [event for event in snapshot.item_events if event.event_id not in derived]
    records: list[StoredRecord] = [*snapshot.events, *stored, *snapshot.extension_states]
    encoded = [codec.encode_record(record) for record in records]
    return LogPage(
        created=encode_creation(codec.encode_metadata(created_as(metadata, records))),
        batches=[b"[" + b",".join(group) + b"]" for group in grouped(encoded, len)],
    )


def created_as(metadata: ThreadMetadata, records: Sequence[StoredRecord]) -> ThreadMetadata:
    """Metadata of a creation that `records` fold to `metadata`; what they don't explain was there before them."""
    bare = attrs.evolve(metadata, message_count=0, usage=None, updated_at=metadata.created_at)
    folded = fold_metadata(bare, records)
    return attrs.evolve(
        bare,
        message_count=max(0, metadata.message_count - folded.message_count),
        usage=None if folded.usage == metadata.usage else metadata.usage,
        updated_at=metadata.created_at if folded.updated_at == metadata.updated_at else metadata.updated_at,
    )


def created_metadata(thread_id: ThreadId, page: LogPage) -> ThreadMetadata:
    """What a thread was created with. Raises CorruptRecord."""
    return read_creation(thread_id, page.created)


def read_creation(thread_id: ThreadId, text: bytes) -> ThreadMetadata:
    """Read the record of a creation. Raises CorruptRecord."""
    try:
        value = codec.parse_json(text)
        found = isinstance(value, dict) and value.get("type") == "thread"
        created = codec.decode_metadata(value.get("metadata", {})) if found else None
    except codec.DecodeError as error:
        raise CorruptRecord(thread_id, "its creation", str(error)) from error
    if created is None:
        raise CorruptRecord(thread_id, "its creation", "the first batch is not the creation of a thread")
    if created.thread_id != thread_id:
        raise CorruptRecord(thread_id, "its creation", f"it creates {created.thread_id!r}")
    return created


def records_of(thread_id: ThreadId, batches: Sequence[bytes], position: int = 0) -> list[StoredRecord]:
    """The records of a piece of a log, the first of which follows `position`. Raises CorruptRecord."""
    records: list[StoredRecord] = []
    for array in batches:
        try:
            values = codec.parse_json(array)
        except codec.DecodeError as error:
            raise CorruptRecord(thread_id, position + len(records) + 1, str(error)) from error
        for value in values:
            records.append(stored_record(thread_id, value, position + len(records) + 1))
    return records
