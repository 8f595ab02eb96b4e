"""The store in one SQLite database: its calls and its lifetime.

Rules of the room: calls run on the event loop and touch no file; what changes goes to the writer's thread, what reads
to the readers' workers. Nothing is answered from memory.
"""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import trio

from roder_trio.errors import StorageError, StoreClosed, StoreReadOnly, ThreadNotFound
from roder_trio.logic.thread.hydration import Hydration
from roder_trio.ports import ThreadStore
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import LogPage, Record, ThreadMetadata, ThreadPage, ThreadSnapshot
from roder_trio.stores._batch import check_new_thread, checked_batch
from roder_trio.stores._listing import Label, check_events
from roder_trio.stores._lock import release_lock
from roder_trio.stores._nursery import open_service_nursery
from roder_trio.stores._sql_record import is_key
from roder_trio.stores._sql_thread import PageQuery, page_query
from roder_trio.stores.sqlite import change, kept, listing, query
from roder_trio.stores.sqlite.database import Database
from roder_trio.stores.sqlite.places import Places
from roder_trio.stores.sqlite.readers import Readers
from roder_trio.stores.sqlite.renewal import Renewals
from roder_trio.stores.sqlite.writer import Writer

T = TypeVar("T")

RENEWAL_SECONDS = 5.0
"""How long leaving a store waits for states that are being kept."""


class SqliteThreadStore(ThreadStore):
    """Keeps all threads in the database file `path`.

    `durability` says what a returned append survives: with "power" the loss of power, with "process" the end of the
    process. `append_timeout` bounds, in seconds, each change. With `read_only` the store takes no lock, changes nothing
    and may be used while a runtime owns the file.
    """

    id = "sqlite"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["power", "process"] = "power",
        append_timeout: float = 30.0,
        read_only: bool = False,
    ) -> None:
        if durability not in ("power", "process"):
            raise ValueError(f'durability must be "power" or "process", not {durability!r}')
        if not append_timeout > 0:
            raise ValueError(f"append_timeout must be above 0 seconds, not {append_timeout!r}")
        if os.fspath(path) in ("", ":memory:"):
            raise ValueError(f"path must name a file, not {os.fspath(path)!r}; use MemoryThreadStore() for no file")
        self._database = Database(Path(path).absolute(), power=durability == "power")
        self._bound = append_timeout
        self._read_only = read_only
        self._readers = Readers(self._database)
        self._writer: Writer | None = None
        self._documents = change.Documents()
        self._places = Places()
        self._renewals: Renewals | None = None
        self._nursery: trio.Nursery | None = None
        self._opened = False

    def __repr__(self) -> str:
        return f"<SqliteThreadStore {str(self._database.path)!r}>"

    # -- lifetime ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Own the file and serve calls. Leaving it finishes what was accepted, then closes the file and unlocks.

        Raises StoreInUse, NotAStore, SchemaTooNew, StorageError; a store is opened once.
        """
        if self._opened:
            raise StorageError("A store is opened once; make another one.")
        self._opened = True
        token = trio.lowlevel.current_trio_token()
        lock = await self._in_worker(self._enter, token)
        try:
            async with open_service_nursery() as nursery:
                self._nursery = nursery
                if self._writer is not None:
                    self._writer.start()
                    self._renewals = Renewals(nursery, self._readers, self._writer)
                try:
                    yield
                finally:
                    self._nursery = None
                    # a program that runs one turn and ends would never keep a state otherwise
                    nursery.cancel_scope.deadline = trio.current_time() + RENEWAL_SECONDS
        finally:
            with trio.CancelScope(shield=True):
                await self._in_worker(self._readers.close)
                if self._writer is not None:
                    await self._writer.close()
                if lock is not None:
                    await self._in_worker(release_lock, lock)

    async def _in_worker(self, work: Callable[..., T], *arguments: Any) -> T:
        return await trio.to_thread.run_sync(work, *arguments, limiter=self._readers.limiter)

    def _enter(self, token: trio.lowlevel.TrioToken) -> int | None:
        if self._read_only:
            self._database.check_readable()
            return None
        lock, connection = self._database.own()
        self._writer = Writer(self._database, connection, self._bound, token)
        return lock

    def _check_open(self) -> None:
        if self._nursery is None:
            raise StoreClosed("The store is not open; use it inside `async with store.open()`.")

    def _for_changes(self) -> Writer:
        self._check_open()
        if self._writer is None:
            raise StoreReadOnly("The store was opened with read_only=True and changes nothing.")
        return self._writer

    # -- reading -------------------------------------------------------------------------------------------------------

    async def load_thread(self, thread_id: ThreadId) -> ThreadSnapshot | None:
        """Return all that is held of an active thread; None for unknown and archived. Raises StorageError."""
        self._check_open()
        if not await _is_key(thread_id):
            return None
        return await self._readers.ask(thread_id, partial(query.load_thread, thread_id=thread_id))

    async def load_state(self, thread_id: ThreadId) -> Hydration | None:
        """Return the state of an active thread, from what is kept of it and the records after that.

        None for unknown and archived. Raises StorageError.
        """
        self._check_open()
        if not await _is_key(thread_id):
            return None
        return await self._readers.ask(thread_id, partial(kept.load_state, thread_id=thread_id))

    async def load_metadata(self, thread_id: ThreadId) -> ThreadMetadata | None:
        """Return the metadata of an active thread, without reading its log. Raises StorageError."""
        self._check_open()
        if not await _is_key(thread_id):
            return None
        return await self._readers.ask(thread_id, partial(query.load_metadata, thread_id=thread_id))

    async def load_events(self, thread_id: ThreadId, after: int = 0, limit: int = 500) -> Sequence[EventEnvelope]:
        """Return at most `limit` envelopes with a seq above `after`, in order. Raises ValueError, StorageError."""
        self._check_open()
        check_events(after, limit)
        if not await _is_key(thread_id):
            return []
        place = self._places.before(thread_id, after)
        read = partial(query.load_events, thread_id=thread_id, after=after, limit=limit, place=place)
        page = await self._readers.ask(thread_id, read)
        self._places.note(thread_id, page)
        return page.events

    async def read_log(self, thread_id: ThreadId, cursor: str | None = None) -> LogPage | None:
        """Return a piece of a thread's log, active or archived, as it is stored; None for unknown.

        Raises StorageError, InvalidCursor.
        """
        self._check_open()
        if not await _is_key(thread_id):
            return None
        return await self._readers.ask(thread_id, partial(query.read_log_page, thread_id=thread_id, cursor=cursor))

    async def list_threads(
        self, *, limit: int = 50, cursor: str | None = None, label: Label | None = None
    ) -> ThreadPage:
        """Return a page of active threads, newest first. Raises ValueError, InvalidCursor, StorageError."""
        return await self._page(page_query(self.id, limit=limit, cursor=cursor, label=label))

    async def list_archived(self, *, limit: int = 50, cursor: str | None = None) -> ThreadPage:
        """As `list_threads`, of archived threads."""
        return await self._page(page_query(self.id, limit=limit, cursor=cursor, archived=True))

    async def _page(self, asked: PageQuery) -> ThreadPage:
        self._check_open()
        return await self._readers.ask("of a listing", partial(listing.list_threads, query=asked))

    # -- changing ------------------------------------------------------------------------------------------------------

    async def create_thread(self, metadata: ThreadMetadata) -> ThreadMetadata:
        """Store a new thread, or return what is stored if the same was created before.

        Cancelled, it created nothing. Raises ValueError for a bad id, InvalidRecord, ThreadExists, StorageError.
        """
        writer = self._for_changes()
        check_new_thread(metadata)
        if not is_key(metadata.thread_id):
            raise ValueError("a thread id must be Unicode text, without lone surrogates")
        created: ThreadMetadata = await writer.call(metadata.thread_id, partial(change.create, metadata=metadata))
        return created

    async def append(self, thread_id: ThreadId, records: Sequence[Record]) -> None:
        """Store records, all or none; those whose ids the log holds are skipped.

        Cancelled, it stored nothing; once the writer has it, it is shielded for at most `append_timeout` seconds.
        Raises ThreadNotFound, InvalidRecord, StorageError, AppendOutcomeUnknown.
        """
        writer = self._for_changes()
        batch = checked_batch(thread_id, records)
        if not is_key(thread_id):
            raise ThreadNotFound(thread_id)
        work = partial(change.append, documents=self._documents, thread_id=thread_id, batch=batch)
        due: bool = await writer.call(thread_id, work)
        if due and self._nursery is not None and self._renewals is not None:
            self._renewals.begin(thread_id)

    async def archive_thread(self, thread_id: ThreadId) -> bool:
        """Make an active thread invisible, keeping every byte; False for unknown and archived. Raises StorageError."""
        return await self._move(thread_id, change.archive)

    async def unarchive_thread(self, thread_id: ThreadId) -> bool:
        """Bring an archived thread back; False if it isn't archived. Raises StorageError."""
        return await self._move(thread_id, change.unarchive)

    async def delete_thread(self, thread_id: ThreadId) -> bool:
        """Remove an active or archived thread with every byte; False if nothing is there. Raises StorageError.

        AppendOutcomeUnknown says as well that a reader still holds what was removed.
        """
        if self._renewals is not None:
            self._renewals.end(thread_id)
        self._places.forget(thread_id)
        return await self._move(thread_id, change.delete, scrubs=True)

    async def _move(self, thread_id: ThreadId, work: change.Move, *, scrubs: bool = False) -> bool:
        writer = self._for_changes()
        if not await _is_key(thread_id):
            return False
        moved: bool = await writer.call(thread_id, partial(work, thread_id=thread_id), scrubs=scrubs)
        return moved

    async def release_thread(self, thread_id: ThreadId) -> None:
        """Drop what is held in memory for a thread."""
        await trio.lowlevel.checkpoint()
        self._places.forget(thread_id)


async def _is_key(thread_id: object) -> bool:
    """Whether a thread may have this id; a checkpoint, since an answer to no may be all that a call does."""
    await trio.lowlevel.checkpoint()
    return is_key(thread_id)
