"""A store that keeps its threads in the process and forgets them with it.

Rules of the room: no copies and no encoding on the way in or out, so a record that is changed after it was appended is
changed in the log as well; records are frozen, and their JSON payloads must be left alone. Each call acts in one go
before its one checkpoint, so that it takes effect in call order and a cancelled one never acted.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import attrs
import trio

from roder_trio import codec
from roder_trio.errors import InvalidRecord, ThreadExists, ThreadNotFound
from roder_trio.logic.thread.metadata import MetadataFold
from roder_trio.ports import ThreadStore
from roder_trio.schema import event as events
from roder_trio.schema import item as items
from roder_trio.schema import transcript
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import (
    ExtensionStateRecord,
    LogPage,
    OpaqueRecord,
    Record,
    StoredRecord,
    ThreadMetadata,
    ThreadPage,
    ThreadSnapshot,
)
from roder_trio.stores._batch import (
    MAX_APPEND_BYTES,
    check_new_thread,
    checked_batch,
    creation,
    fresh,
    record_id,
)
from roder_trio.stores._frame import encode_creation
from roder_trio.stores._listing import Key, Label, check_events, log_position, page
from roder_trio.stores._snapshot import snapshot_of

_NO_IDS: frozenset[str] = frozenset()
_NO_RECORDS: list[StoredRecord] = []

_TEXTS: dict[type, str] = {
    transcript.UserMessage: "text",
    transcript.AssistantMessage: "text",
    transcript.ReasoningSummary: "text",
    transcript.ToolCall: "arguments",
    transcript.ToolResult: "result",
    transcript.ContextCompaction: "summary",
    transcript.ErrorNote: "message",
    items.UserMessage: "text",
    items.AgentMessage: "text",
    items.Compaction: "summary",
    items.Error: "message",
}
"""The one field of each item that may be long."""

_PAYLOADS: dict[type, str] = {
    events.Unknown: "payload",
    transcript.ProviderMetadata: "payload",
    transcript.OpaqueItem: "value",
    transcript.ToolResult: "display_payload",
    items.Raw: "payload",
    ExtensionStateRecord: "value",
    OpaqueRecord: "value",
}
"""The one field of each class that holds JSON of a host or provider, which may turn out to be none."""

LOG_PAGE = 500
LOG_BYTES = 1024 * 1024
"""How many records, or bytes of records, one piece of a log holds."""

_LONG = 1024 * 1024
"""Code points from which a text is long enough to measure its batch."""


@attrs.define(eq=False)
class _Thread:
    created: ThreadMetadata
    fold: MetadataFold | None = None
    records: list[StoredRecord] = _NO_RECORDS
    ids: set[str] | frozenset[str] = _NO_IDS

    @property
    def metadata(self) -> ThreadMetadata:
        return self.created if self.fold is None else self.fold.metadata

    @property
    def updated_at(self) -> datetime:
        return self.created.updated_at if self.fold is None else self.fold.updated_at

    def add(self, batch: Sequence[StoredRecord]) -> bool:
        """Add what is new of `batch`; True if anything was."""
        new = fresh(self.ids, batch)
        if not new:
            return False
        if self.fold is None:
            self.fold, self.records, self.ids = MetadataFold(self.created), [], set()
        assert isinstance(self.ids, set)
        for record in new:
            self.fold.absorb(record)
            self.ids.add(record_id(record))
        self.records.extend(new)
        return True

    def encoded(self, start: int) -> tuple[list[bytes], int]:
        """Some records from `start` on, and where the next ones begin."""
        texts: list[bytes] = []
        size = 0
        for record in self.records[start : start + LOG_PAGE]:
            texts.append(codec.encode_record(record))
            size += len(texts[-1])
            if size >= LOG_BYTES:
                break
        return texts, start + len(texts)

    def snapshot(self) -> ThreadSnapshot:
        return snapshot_of(self.metadata, self.records)


class MemoryThreadStore(ThreadStore):
    """Keeps threads in memory: for tests, and for programs whose threads may end with them.

    It needs no `open()` and may be handed from one runtime to the next.
    """

    id = "memory"

    def __init__(self) -> None:
        self._active: dict[ThreadId, _Thread] = {}
        self._archived: dict[ThreadId, _Thread] = {}
        self._order: dict[bool, list[Key] | None] = {}

    def __repr__(self) -> str:
        return f"<MemoryThreadStore with {len(self._active)} threads>"

    async def create_thread(self, metadata: ThreadMetadata) -> ThreadMetadata:
        """Store a new thread, or return what is stored if the same was created before.

        Raises ValueError for a bad id, InvalidRecord, ThreadExists.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        found = self._create(metadata)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return found

    def _create(self, metadata: ThreadMetadata) -> ThreadMetadata:
        check_new_thread(metadata)
        thread_id = metadata.thread_id
        known = self._active.get(thread_id)
        if thread_id in self._archived or (known is not None and creation(known.created) != creation(metadata)):
            raise ThreadExists(thread_id)
        if known is not None:
            return known.metadata
        self._active[thread_id] = _Thread(metadata)
        self._order.pop(False, None)
        return metadata

    async def load_thread(self, thread_id: ThreadId) -> ThreadSnapshot | None:
        """Return all that is held of an active thread; None for unknown and archived."""
        await trio.lowlevel.checkpoint()
        thread = self._active.get(thread_id)
        return None if thread is None else thread.snapshot()

    async def load_metadata(self, thread_id: ThreadId) -> ThreadMetadata | None:
        """Return the metadata of an active thread."""
        await trio.lowlevel.checkpoint()
        thread = self._active.get(thread_id)
        return None if thread is None else thread.metadata

    async def load_events(self, thread_id: ThreadId, after: int = 0, limit: int = 500) -> Sequence[EventEnvelope]:
        """Return at most `limit` envelopes with a seq above `after`, in order. Raises ValueError."""
        await trio.lowlevel.checkpoint()
        check_events(after, limit)
        thread = self._active.get(thread_id)
        found: list[EventEnvelope] = []
        for record in () if thread is None else thread.records:
            if isinstance(record, EventEnvelope) and record.seq > after:
                found.append(record)
                if len(found) >= limit:
                    break
        return found

    async def read_log(self, thread_id: ThreadId, cursor: str | None = None) -> LogPage | None:
        """Return a piece of a thread's log as the codec writes it, active or archived; None for unknown."""
        await trio.lowlevel.checkpoint()
        thread = self._active.get(thread_id) or self._archived.get(thread_id)
        if thread is None:
            return None
        records, end = thread.encoded(log_position(cursor, len(thread.records)))
        return LogPage(
            created=encode_creation(codec.encode_metadata(thread.created)),
            batches=[b"[" + b",".join(records) + b"]"] if records else [],
            archived=thread_id in self._archived,
            next_cursor=str(end) if end < len(thread.records) else None,
        )

    async def list_threads(
        self, *, limit: int = 50, cursor: str | None = None, label: Label | None = None
    ) -> ThreadPage:
        """Return a page of active threads, newest first. Raises ValueError, InvalidCursor."""
        await trio.lowlevel.checkpoint()
        return self._page(self._active, limit, cursor, label, archived=False)

    async def list_archived(self, *, limit: int = 50, cursor: str | None = None) -> ThreadPage:
        """As `list_threads`, of archived threads."""
        await trio.lowlevel.checkpoint()
        return self._page(self._archived, limit, cursor, None, archived=True)

    def _page(
        self,
        threads: dict[ThreadId, _Thread],
        limit: int,
        cursor: str | None,
        label: Label | None,
        *,
        archived: bool,
    ) -> ThreadPage:
        order = self._order.get(archived)
        if order is None:
            order = self._order[archived] = sorted((thread.updated_at, key) for key, thread in threads.items())
        find = lambda thread_id: threads[thread_id].metadata  # noqa: E731
        return page(self.id, order, find, limit=limit, cursor=cursor, label=label, archived=archived)

    async def archive_thread(self, thread_id: ThreadId) -> bool:
        """Make an active thread invisible; False for unknown and archived."""
        return await self._move(thread_id, self._active, self._archived)

    async def unarchive_thread(self, thread_id: ThreadId) -> bool:
        """Bring an archived thread back; False if it isn't archived."""
        return await self._move(thread_id, self._archived, self._active)

    async def _move(
        self, thread_id: ThreadId, source: dict[ThreadId, _Thread], target: dict[ThreadId, _Thread]
    ) -> bool:
        await trio.lowlevel.checkpoint_if_cancelled()
        thread = source.pop(thread_id, None)
        if thread is not None:
            target[thread_id] = thread
            self._order.clear()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return thread is not None

    async def delete_thread(self, thread_id: ThreadId) -> bool:
        """Forget an active or archived thread; False if nothing is there."""
        await trio.lowlevel.checkpoint_if_cancelled()
        found = self._active.pop(thread_id, None) or self._archived.pop(thread_id, None)
        self._order.clear()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return found is not None

    async def append(self, thread_id: ThreadId, records: Sequence[Record]) -> None:
        """Store records, all or none; those whose ids the log holds are skipped.

        Cancelled, it stored nothing. Raises ThreadNotFound, InvalidRecord.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        thread = self._active.get(thread_id)
        if thread is None:
            raise ThreadNotFound(thread_id)
        batch = checked_batch(thread_id, records)
        _check_contents(batch)
        if thread.add(batch):
            self._order.pop(False, None)
        await trio.lowlevel.cancel_shielded_checkpoint()


def _check_contents(batch: Sequence[StoredRecord]) -> None:
    """Check the parts that could make a record one that can't be encoded, without encoding it. Raises InvalidRecord."""
    measure = False
    for record in batch:
        for part in _parts(record):
            field = _PAYLOADS.get(type(part))
            if field is not None:
                codec.check_json(getattr(part, field))
            field = _TEXTS.get(type(part))
            if field is None:
                continue
            text = getattr(part, field)
            if not isinstance(text, str):
                raise InvalidRecord(f"The {field} of a {type(part).__name__} must be text, not {type(text).__name__}.")
            measure = measure or len(text) >= _LONG
    if measure and sum(len(codec.encode_record(record)) for record in batch) > MAX_APPEND_BYTES:
        raise InvalidRecord(f"One append takes at most {MAX_APPEND_BYTES} bytes of encoded records.")


def _parts(record: StoredRecord) -> tuple[Any, ...]:
    """The nested values of a record that `_TEXTS` and `_PAYLOADS` may name."""
    if isinstance(record, EventEnvelope):
        event = record.event
        return (event.item,) if isinstance(event, events.TranscriptItemAppended) else (event,)
    if isinstance(record, ThreadItemEvent):
        return (getattr(record.event, "item", None),)
    return (record,)
