"""All threads of a store into another one, thread by thread."""

from collections.abc import Mapping
from contextlib import suppress

import attrs
import trio

from roder_trio.errors import StorageError, StoreUnsupported, ThreadExists
from roder_trio.ports import ThreadStore
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import ThreadMetadata, ThreadPage
from roder_trio.stores._batch import grouped
from roder_trio.stores._filling import filling
from roder_trio.stores._listing import MAX_PAGE
from roder_trio.stores.transfer.source import LogReader, created_metadata, records_of


@attrs.frozen
class CopyReport:
    """How a copy went: the threads that the target holds now, and why others aren't there."""

    copied: tuple[ThreadId, ...] = ()
    failed: Mapping[ThreadId, str] = attrs.field(factory=dict)


async def copy_store(source: ThreadStore, target: ThreadStore) -> CopyReport:
    """Copy every thread, archived ones too, and report thread by thread; a damaged one doesn't stop the others.

    Both stores must be open. Copying again adds what is new. Archived threads of a source that can't list them are left
    out. Cancelled, it leaves what was copied so far. Raises StorageError if the source can't be listed.
    """
    copied: list[ThreadId] = []
    failed: dict[ThreadId, str] = {}
    async for page, archived in StoreWalk(source):
        failed.update(dict.fromkeys(page.damaged, "it is damaged and can't be described"))
        for metadata in page.threads:
            try:
                if await _copy_thread(source, target, metadata.thread_id, archived=archived):
                    copied.append(metadata.thread_id)
            except (StorageError, ValueError) as error:
                failed[metadata.thread_id] = str(error)
    return CopyReport(tuple(copied), failed)


async def _copy_thread(source: ThreadStore, target: ThreadStore, thread_id: ThreadId, *, archived: bool) -> bool:
    """Copy what the target lacks; False if the thread was removed since it was listed. Raises StorageError."""
    reader = LogReader(source, thread_id)
    page = await anext(reader, None)
    if page is None:
        return False
    position = 0
    limiter = trio.CapacityLimiter(1)
    await _create(target, created_metadata(thread_id, page), archived=archived)
    async with filling(target, thread_id):
        while page is not None:
            for batches in grouped(page.batches, len):
                records = await trio.to_thread.run_sync(records_of, thread_id, batches, position, limiter=limiter)
                position += len(records)
                await target.append(thread_id, records)  # type: ignore[arg-type]  # opaque ones are records too
            page = await anext(reader, None)
    if archived:
        await target.archive_thread(thread_id)
    return True


async def _create(target: ThreadStore, created: ThreadMetadata, *, archived: bool) -> None:  # noqa: ASYNC910 - it asks
    """Create the thread, or bring back what an earlier copy archived. Raises ThreadExists for another one there."""
    moved = False
    if archived:
        with suppress(StoreUnsupported):
            moved = await target.unarchive_thread(created.thread_id)
    refused: ThreadExists | None = None
    try:
        await target.create_thread(created)
    except ThreadExists as error:
        refused = error
    if moved and refused is not None:
        await target.archive_thread(created.thread_id)
    if refused is not None:
        raise refused


class StoreWalk:
    """All pages of a store's listings, and of each whether its threads are archived."""

    def __init__(self, store: ThreadStore) -> None:
        self._store = store
        self._cursor: str | None = None
        self._archived = False
        self._ended = False

    def __aiter__(self) -> "StoreWalk":
        return self

    async def __anext__(self) -> tuple[ThreadPage, bool]:
        """Return the next page. Raises StorageError."""
        if self._ended:
            raise StopAsyncIteration
        archived = self._archived
        try:
            listing = self._store.list_archived if archived else self._store.list_threads
            page = await listing(limit=MAX_PAGE, cursor=self._cursor)
        except StoreUnsupported:
            if not archived:
                raise
            page = ThreadPage()
        self._cursor = page.next_cursor
        if self._cursor is None:
            self._ended = archived
            self._archived = True
        return page, archived  # noqa: ASYNC910 - the store was asked
