"""One thread to a file and back, whatever the store."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio

from roder_trio.errors import StorageError, ThreadNotFound
from roder_trio.ports import ThreadStore
from roder_trio.schema.ids import ThreadId, is_valid_id
from roder_trio.schema.thread import StoredRecord, ThreadMetadata
from roder_trio.stores._batch import checked_batch, stored_record
from roder_trio.stores._filling import filling
from roder_trio.stores.transfer.file import ExportWriter, Head, Place, read_chunk, read_head
from roder_trio.stores.transfer.renewal import Renewal
from roder_trio.stores.transfer.source import LogReader

CLEANUP = 5.0
"""Seconds for removing what an export that failed has written."""

T = TypeVar("T")


async def export_thread(
    store: ThreadStore, thread_id: ThreadId, path: str | os.PathLike[str], overwrite: bool = False
) -> None:
    """Write a thread, active or archived, to one file that any store can import.

    The file appears whole or not at all; cancelled, it leaves nothing. Where a store can't show its logs as they are
    stored, archived threads are not found and records of unknown types are left out. Raises ThreadNotFound,
    StorageError if the store fails, the file can't be written, or there is one and `overwrite` is False.
    """
    reader = LogReader(store, thread_id)
    async with writing(Path(path), overwrite=overwrite) as (writer, worker):
        begun = False
        async for page in reader:
            if not begun:
                await worker.run(writer.begin, thread_id, page.created)
                begun = True
            for array in page.batches:
                await worker.run(writer.add, array)
        if not begun:
            raise ThreadNotFound(thread_id)
        await worker.run(writer.finish)


async def import_thread(
    store: ThreadStore, path: str | os.PathLike[str], new_id: ThreadId | None = None
) -> ThreadMetadata:
    """Create the thread of an export in a store and return its metadata; it is active, wherever it came from.

    With `new_id` it gets that id, and ids of records that follow from it, so the same file may be imported many times.
    The whole file is read before anything is stored. Cancelled or interrupted, it leaves a part of the thread;
    importing again completes it, and importing what is there already adds nothing. Raises CorruptRecord for a damaged
    file, with nothing stored, ThreadExists, ValueError for a bad id, StorageError.
    """
    if new_id is not None and not is_valid_id(new_id):
        raise ValueError("a thread id must be Unicode text of 1 to 512 characters without NUL")
    worker = Worker(Path(path), "read")
    head: Head = await worker.run(read_head, worker.path)
    renewal = Renewal(head.thread_id, new_id or head.thread_id)
    place = head.place
    while (following := (await worker.run(_check_chunk, worker.path, head, place))) is not None:
        place = following
    await store.create_thread(renewal.metadata(head.created))
    async with filling(store, renewal.new):
        place = head.place
        while True:
            records, place = await worker.run(_load_chunk, worker.path, head, renewal, place)
            if not records:
                break
            await store.append(renewal.new, records)  # type: ignore[arg-type]  # opaque ones are records too
    metadata = await store.load_metadata(renewal.new)
    if metadata is None:
        raise ThreadNotFound(renewal.new)
    return metadata


def _check_chunk(path: Path, head: Head, place: Place) -> Place | None:
    """Check a piece of an export; where the next one begins, None at the end. Raises CorruptRecord, InvalidRecord."""
    values, following = read_chunk(path, head, place)
    checked_batch(head.thread_id, _decoded(head.thread_id, values, place))  # type: ignore[arg-type]
    return following if values else None


def _load_chunk(path: Path, head: Head, renewal: Renewal, place: Place) -> tuple[list[StoredRecord], Place]:
    values, following = read_chunk(path, head, place)
    return _decoded(renewal.new, [renewal.record(value) for value in values], place), following


def _decoded(thread_id: ThreadId, values: list[dict[str, Any]], place: Place) -> list[StoredRecord]:
    return [stored_record(thread_id, value, place.position + index) for index, value in enumerate(values, start=1)]


# -- files in worker threads -------------------------------------------------------------------------------------------


class Worker:
    """Runs what blocks on one file, a call at a time; errors of the system become those of stores."""

    def __init__(self, path: Path, purpose: str) -> None:
        self.path = path
        self._purpose = purpose
        self._limiter = trio.CapacityLimiter(1)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work` in a worker thread. A cancel waits for it. Raises StorageError."""
        with self._errors():
            return await trio.to_thread.run_sync(work, *arguments, limiter=self._limiter)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"The file {str(self.path)!r} can't be {self._purpose}: {error}.") from error


@asynccontextmanager
async def writing(path: Path, *, overwrite: bool) -> AsyncIterator[tuple[ExportWriter, Worker]]:
    """Write a file; one that wasn't finished is removed."""
    writer, worker = ExportWriter(path, overwrite=overwrite), Worker(path, "written")
    try:
        yield writer, worker
    finally:
        with trio.move_on_after(CLEANUP, shield=True):
            await worker.run(writer.discard)
