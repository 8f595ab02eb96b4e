"""The store of journals: its calls, its lifetime, its listing.

Rules of the room: calls run on the event loop and touch no file; each thread has a lane, in which its journal is used
by one worker at a time. What the journals find out reaches the index when their call is done.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar

import trio

from roder_trio.errors import AppendOutcomeUnknown, StorageError, StoreClosed, StoreReadOnly, ThreadNotFound
from roder_trio.ports import ThreadStore
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import ThreadId, is_valid_id
from roder_trio.schema.thread import LogPage, Record, StoredRecord, ThreadMetadata, ThreadPage, ThreadSnapshot
from roder_trio.stores._batch import check_new_thread, checked_batch
from roder_trio.stores._disk import Disk
from roder_trio.stores._lane import Job, Lane, run_call
from roder_trio.stores._listing import Key, Label, check_events, page
from roder_trio.stores._lock import release_lock, take_lock
from roder_trio.stores._nursery import open_service_nursery
from roder_trio.stores.jsonl.index import Index, Row, Standing, decode_index, scan, write_index
from roder_trio.stores.jsonl.journal import ThreadJournal, read_row
from roder_trio.stores.jsonl.lane import Lanes
from roder_trio.stores.jsonl.layout import Layout
from roder_trio.stores.jsonl.names import file_name

Batch = tuple[StoredRecord, ...]
T = TypeVar("T")

WORKERS = 16
"""How many threads of the process the store's calls may hold at once."""
INDEX_INTERVAL = 1.0
"""Seconds between two writings of the index."""


class JsonlThreadStore(ThreadStore):
    """Keeps each thread in a file of its own below `directory`: one line for each append.

    `durability` says what a returned append survives: with "power" the loss of power, with "process" the end of the
    process. `append_timeout` bounds, in seconds, each wait of a change. With `read_only` the store takes no lock,
    changes no byte and may be used while a runtime owns the folder.
    """

    id = "jsonl"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        durability: Literal["power", "process"] = "power",
        append_timeout: float = 30.0,
        read_only: bool = False,
    ) -> None:
        if durability not in ("power", "process"):
            raise ValueError(f'durability must be "power" or "process", not {durability!r}')
        if not append_timeout > 0:
            raise ValueError(f"append_timeout must be above 0 seconds, not {append_timeout!r}")
        self._layout = Layout(Path(directory).absolute())
        self._disk = Disk(power=durability == "power")
        self._timeout = append_timeout
        self._read_only = read_only
        self._limiter = trio.CapacityLimiter(WORKERS)
        self._index = Index()
        self._index_due = trio.Event()
        self._lanes = Lanes(self._make_lane)
        self._index_lane: Lane | None = None
        self._nursery: trio.Nursery | None = None
        self._opened = False

    def __repr__(self) -> str:
        return f"<JsonlThreadStore {str(self._layout.base)!r}>"

    # -- lifetime ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Own the folder and serve calls. Leaving it finishes what was accepted, then writes the index and unlocks.

        Raises StoreInUse, NotAStore, StorageError; a store is opened once.
        """
        if self._opened:
            raise StorageError("A store is opened once; make another one.")
        self._opened = True
        lock = await self._in_worker(self._enter)
        try:
            async with open_service_nursery() as nursery:
                self._nursery = nursery
                self._index_lane = Lane(nursery, self._limiter, _perform_calls, lambda: None)
                keeping = trio.CancelScope()
                if not self._read_only:
                    nursery.start_soon(self._keep_index, keeping)
                try:
                    yield
                finally:
                    self._nursery = None
                    keeping.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._in_worker(self._leave, lock)

    async def _in_worker(self, work: Callable[..., T], *arguments: Any) -> T:
        return await trio.to_thread.run_sync(work, *arguments, limiter=self._limiter)

    def _enter(self) -> int | None:
        with self._folder_errors():
            self._layout.check()
            if self._read_only:
                if not self._layout.base.is_dir():
                    raise StorageError(f"There is no store in {str(self._layout.base)!r} to read.")
                return None
            self._layout.prepare(self._disk)
            lock = take_lock(self._layout.lock)
            try:
                self._layout.clean(self._disk)
                known = decode_index(self._disk.read(self._layout.index) or b"")
                rows, damaged, self._index.dirty = self._scan(known)
                self._index.fill(rows, damaged)
            except BaseException:
                release_lock(lock)
                raise
        return lock

    def _leave(self, lock: int | None) -> None:
        if lock is None:
            return
        try:
            if self._index.dirty:
                self._save_index(self._index.rows)
        finally:
            release_lock(lock)

    @contextmanager
    def _folder_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"The store in {str(self._layout.base)!r} can't be opened: {error}.") from error

    def _scan(self, known: dict[str, Row]) -> tuple[dict[str, Row], dict[str, bool], bool]:
        read = lambda name, archived: read_row(self._layout, self._disk, name, archived=archived)  # noqa: E731
        return scan(self._layout, self._disk, known, read)

    # -- the index -----------------------------------------------------------------------------------------------------

    async def _keep_index(self, keeping: trio.CancelScope) -> None:
        with keeping:
            while True:
                if not self._index.dirty:
                    self._index_due = trio.Event()
                    await self._index_due.wait()
                await self._flush_index()
                await trio.sleep(INDEX_INTERVAL)

    async def _flush_index(self) -> None:
        """Write the index as it is now."""
        assert self._index_lane is not None
        self._index.dirty = False
        saved = False
        try:
            await self._index_lane.ask(partial(self._save_index, dict(self._index.rows)))
            saved = True
        finally:
            self._index.dirty = self._index.dirty or not saved

    def _save_index(self, rows: dict[str, Row]) -> None:
        try:
            write_index(self._layout, self._disk, rows)
        except OSError:
            # it is a cache: one that can't be written is built again, but no old one may keep what was deleted
            with suppress(OSError):
                self._disk.remove(self._layout.index)

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def _check_open(self, *, change: bool = False) -> trio.Nursery:
        if self._nursery is None:
            raise StoreClosed("The store is not open; use it inside `async with store.open()`.")
        if change and self._read_only:
            raise StoreReadOnly("The store was opened with read_only=True and changes nothing.")
        return self._nursery

    def _lane(self, thread_id: ThreadId) -> Lane:
        self._check_open()
        return self._lanes.get(thread_id)

    def _make_lane(self, thread_id: ThreadId) -> Lane:
        journal = ThreadJournal(self._layout, self._disk, thread_id, owner=not self._read_only)
        settled = partial(self._take_news, thread_id, journal)
        return Lane(self._check_open(), self._limiter, partial(_perform, journal), settled)

    def _take_news(self, thread_id: ThreadId, journal: ThreadJournal) -> None:
        news, journal.news = journal.news, None
        if news is not None and not self._read_only:
            self._index.take(thread_id, news)
            if self._index.dirty:
                self._index_due.set()

    async def _ask(self, thread_id: ThreadId, work: Callable[[ThreadJournal], T]) -> T:
        found: T = await self._lane(thread_id).ask(work)
        return found

    async def _change(self, thread_id: ThreadId, work: Callable[[ThreadJournal], T] | Batch) -> T:
        try:
            changed: T = await self._lane(thread_id).call(work, self._timeout)
        except AppendOutcomeUnknown:
            self._index.take(thread_id, Standing.DOUBTFUL)
            raise
        return changed

    # -- the contract --------------------------------------------------------------------------------------------------

    async def create_thread(self, metadata: ThreadMetadata) -> ThreadMetadata:
        """Store a new thread, or return what is stored if the same was created before.

        Cancelled, it created nothing. Raises ValueError for a bad id, InvalidRecord, ThreadExists, StorageError.
        """
        self._check_open(change=True)
        check_new_thread(metadata)
        return await self._change(metadata.thread_id, lambda journal: journal.create(metadata))

    async def load_thread(self, thread_id: ThreadId) -> ThreadSnapshot | None:
        """Return all that is held of an active thread; None for unknown and archived. Raises StorageError."""
        self._check_open()
        return await self._ask(thread_id, ThreadJournal.load) if await _is_id(thread_id) else None

    async def load_metadata(self, thread_id: ThreadId) -> ThreadMetadata | None:
        """Return the metadata of an active thread, without reading its file. Raises StorageError."""
        self._check_open()
        if not await _is_id(thread_id):
            return None
        name = file_name(thread_id)
        if self._read_only or thread_id in self._index.doubtful or name in self._index.damaged:
            return await self._ask(thread_id, ThreadJournal.load_metadata)
        row = self._index.rows.get(name)
        return None if row is None or row.archived else row.metadata

    async def load_events(self, thread_id: ThreadId, after: int = 0, limit: int = 500) -> Sequence[EventEnvelope]:
        """Return at most `limit` envelopes with a seq above `after`, in order. Raises ValueError, StorageError."""
        self._check_open()
        check_events(after, limit)
        if not await _is_id(thread_id):
            return []
        return await self._ask(thread_id, lambda journal: journal.load_events(after, limit))

    async def read_log(self, thread_id: ThreadId, cursor: str | None = None) -> LogPage | None:
        """Return a piece of a thread's journal, active or archived, from where the one before ended.

        None for unknown. Raises StorageError, InvalidCursor.
        """
        self._check_open()
        if not await _is_id(thread_id):
            return None
        return await self._ask(thread_id, lambda journal: journal.read_page(cursor))

    async def list_threads(
        self, *, limit: int = 50, cursor: str | None = None, label: Label | None = None
    ) -> ThreadPage:
        """Return a page of active threads, newest first. Raises ValueError, InvalidCursor."""
        return await self._page(limit, cursor, label, archived=False)

    async def list_archived(self, *, limit: int = 50, cursor: str | None = None) -> ThreadPage:
        """As `list_threads`, of archived threads."""
        return await self._page(limit, cursor, None, archived=True)

    async def _page(self, limit: int, cursor: str | None, label: Label | None, *, archived: bool) -> ThreadPage:
        self._check_open()
        unsettled = await self._refresh()
        damaged = [*self._index.damaged_ids(archived=archived), *([] if archived else unsettled)]
        order: Sequence[Key] = self._index.order(archived=archived)
        if unsettled:
            order = [key for key in order if key[1] not in unsettled]
        find = self._index.find
        return page(self.id, order, find, limit=limit, cursor=cursor, label=label, archived=archived, damaged=damaged)

    async def _refresh(self) -> set[ThreadId]:
        """Bring the index up to date; the threads of which nothing can be said now."""
        await trio.lowlevel.checkpoint()
        if self._read_only:
            rows, damaged, _ = await self._in_worker(self._scan, self._index.rows)
            self._index.fill(rows, damaged)
        for thread_id in list(self._index.doubtful):
            if not self._lane(thread_id).busy:
                await self._reread(thread_id)
        return set(self._index.doubtful)

    async def _reread(self, thread_id: ThreadId) -> None:
        try:
            await self._ask(thread_id, ThreadJournal.look)
        except StorageError:
            # its standing in the index tells
            return  # noqa: ASYNC910 - the call that failed was a checkpoint

    async def archive_thread(self, thread_id: ThreadId) -> bool:
        """Make an active thread invisible, keeping every byte; False for unknown and archived. Raises StorageError."""
        self._check_open(change=True)
        return await _is_id(thread_id) and await self._change(thread_id, ThreadJournal.archive)

    async def unarchive_thread(self, thread_id: ThreadId) -> bool:
        """Bring an archived thread back; False if it isn't archived. Raises StorageError."""
        self._check_open(change=True)
        return await _is_id(thread_id) and await self._change(thread_id, ThreadJournal.unarchive)

    async def delete_thread(self, thread_id: ThreadId) -> bool:
        """Remove an active or archived thread with every byte; False if nothing is there. Raises StorageError."""
        self._check_open(change=True)
        if not await _is_id(thread_id):
            return False
        removed = await self._change(thread_id, ThreadJournal.delete)
        if removed and self._nursery is not None:
            # the index holds the title; a store that is being closed writes it anyway
            with trio.move_on_after(self._timeout, shield=True):
                await self._flush_index()
        return removed

    async def append(self, thread_id: ThreadId, records: Sequence[Record]) -> None:
        """Store records, all or none; those whose ids the log holds are skipped.

        Cancelled, it stored nothing; once a worker has it, it is shielded for at most `append_timeout` seconds.
        Raises ThreadNotFound, InvalidRecord, StorageError, AppendOutcomeUnknown.
        """
        self._check_open(change=True)
        batch = checked_batch(thread_id, records)
        if not is_valid_id(thread_id):
            raise ThreadNotFound(thread_id)
        await self._change(thread_id, batch)

    async def claim_thread(self, thread_id: ThreadId) -> None:
        """Keep in memory, until the thread is released, what its calls need."""
        self._check_open()
        if await _is_id(thread_id):
            self._check_open()
            self._lanes.claim(thread_id)

    async def release_thread(self, thread_id: ThreadId) -> None:
        """Drop what is held in memory for a thread."""
        await trio.lowlevel.checkpoint()
        lane = self._lanes.release(thread_id)
        if lane is not None and self._nursery is not None:
            await lane.ask(ThreadJournal.release)


async def _is_id(thread_id: object) -> bool:
    """Whether a thread may have this id; a checkpoint, since an answer to no may be all that a call does."""
    await trio.lowlevel.checkpoint()
    return is_valid_id(thread_id)


def _perform(journal: ThreadJournal, jobs: Sequence[Job]) -> None:
    """Run what waits for one thread; appends that stand together share one sync."""
    for appends, group in groupby(jobs, key=lambda job: isinstance(job.work, tuple)):
        if appends:
            _perform_appends(journal, list(group))
        else:
            for job in group:
                run_call(partial(job.work, journal), job)


def _perform_appends(journal: ThreadJournal, jobs: Sequence[Job]) -> None:
    try:
        outcomes = journal.append([job.work for job in jobs])
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.error = outcome
    except StorageError as error:
        for job in jobs:
            job.error = error
    except Exception as error:  # a bug must not hang those that wait
        journal.forget()
        for job in jobs:
            job.error = AppendOutcomeUnknown(f"The store failed in the middle of an append: {error!r}.")
            job.error.__cause__ = error


def _perform_calls(jobs: Sequence[Job]) -> None:
    for job in jobs:
        run_call(job.work, job)
