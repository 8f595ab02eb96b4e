"""All thread directories of Roder into a store, thread by thread.

Rules of the room: the source is only read. A thread is read whole before anything of it is stored; what is there
already is not stored again, so an import that was interrupted is completed by the next.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import trio

from roder_trio.errors import StorageError, ThreadExists
from roder_trio.ports import ThreadStore
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import StoredRecord, ThreadSnapshot
from roder_trio.stores._batch import record_id
from roder_trio.stores._filling import filling
from roder_trio.stores.roder.thread import RoderThread, is_thread_directory, read_thread

THREADS, ARCHIVED = "threads", "archived_threads"


@attrs.frozen
class ImportReport:
    """How an import went, by thread id; one that can't be read is named by its folder."""

    imported: tuple[ThreadId, ...] = ()
    skipped: tuple[ThreadId, ...] = ()
    """Those of which the store holds everything already."""
    failed: Mapping[str, str] = attrs.field(factory=dict)
    warnings: tuple[str, ...] = ()


async def import_roder(directory: str | os.PathLike[str], store: ThreadStore) -> ImportReport:
    """Import the thread directories in `directory`, and as archived those in `archived_threads` beside it.

    `directory` may also be the folder that holds `threads`. The store must be open. Importing again adds nothing but
    what is new; one damaged thread doesn't stop the others. Cancelled, it leaves what was imported so far. Raises
    StorageError if there is no such folder.
    """
    limiter = trio.CapacityLimiter(1)
    try:
        folders = await trio.to_thread.run_sync(_thread_directories, Path(directory), limiter=limiter)
    except OSError as error:
        raise StorageError(f"The folder {str(directory)!r} can't be imported: {error}.") from error
    imported: list[ThreadId] = []
    skipped: list[ThreadId] = []
    failed: dict[str, str] = {}
    warnings = [] if folders else [f"there is no thread directory in {str(directory)!r}"]
    for path, archived in folders:
        try:
            thread = await trio.to_thread.run_sync(read_thread, path, limiter=limiter)
            added = await _store(store, thread, archived=archived)
        except (StorageError, ValueError, OSError) as error:
            failed[path.name] = str(error)
            continue
        (imported if added else skipped).append(thread.thread_id)
        warnings += [f"{thread.thread_id}: {warning}" for warning in thread.warnings]
    return ImportReport(tuple(imported), tuple(skipped), failed, tuple(warnings))


def _thread_directories(directory: Path) -> list[tuple[Path, bool]]:
    """The folders of threads, and of each whether it is archived. Raises OSError."""
    found = _threads_in(directory)
    if not found and (directory / THREADS).is_dir():
        directory = directory / THREADS
        found = _threads_in(directory)
    beside = directory.absolute().parent / ARCHIVED
    archived = _threads_in(beside) if beside.is_dir() else []
    return [(path, False) for path in found] + [(path, True) for path in archived]


def _threads_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and is_thread_directory(path))


async def _store(store: ThreadStore, thread: RoderThread, *, archived: bool) -> bool:
    """Store what is new of a thread; False if there is nothing new. Raises StorageError."""
    thread_id = thread.thread_id
    snapshot = await store.load_thread(thread_id)
    if snapshot is None:
        try:
            await store.create_thread(thread.created)
        except ThreadExists:
            return False  # it is archived, which only a whole thread is
        new: Sequence[Sequence[StoredRecord]] = thread.batches
    else:
        if snapshot.metadata is None or snapshot.metadata.created_at != thread.created.created_at:
            raise ThreadExists(thread_id)
        new = _new_of(thread, snapshot)
    async with filling(store, thread_id):
        for batch in new:
            await store.append(thread_id, batch)  # type: ignore[arg-type]  # opaque ones are records too
    moved = archived and await store.archive_thread(thread_id)
    return snapshot is None or bool(new) or moved


def _new_of(thread: RoderThread, snapshot: ThreadSnapshot) -> list[list[StoredRecord]]:
    """The records that the store lacks."""
    held: Sequence[StoredRecord] = (*snapshot.events, *snapshot.item_events, *snapshot.extension_states)
    known = set(map(record_id, held))
    batches = [[record for record in batch if record_id(record) not in known] for batch in thread.batches]
    return [batch for batch in batches if batch]
