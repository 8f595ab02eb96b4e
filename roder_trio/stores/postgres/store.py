"""The store on PostgreSQL: what its calls are made of.

Rules of the room: a call checks what it was given, then hands one transaction to the session; reads need no lease,
changes are made under the one that is held, else under one for that change alone.
"""

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from roder_trio.errors import LeaseLost, StorageError, ThreadNotFound
from roder_trio.logic.thread.hydration import Hydration
from roder_trio.ports import ThreadStore
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import LogPage, Record, StoredRecord, ThreadMetadata, ThreadPage, ThreadSnapshot
from roder_trio.stores import _sql_thread as threads
from roder_trio.stores._batch import check_new_thread, checked_batch
from roder_trio.stores._listing import Label, check_events
from roder_trio.stores._sql_record import RecordRow, encode_rows, is_key, unicode_text
from roder_trio.stores.postgres import kept, lease, read, write
from roder_trio.stores.postgres.address import read_address
from roder_trio.stores.postgres.database import Link
from roder_trio.stores.postgres.follow import Follower
from roder_trio.stores.postgres.hint import hint_of
from roder_trio.stores.postgres.lease import Fence
from roder_trio.stores.postgres.session import Session

log = logging.getLogger(__name__)

MAX_TENANT = 191
"""Characters of a tenant's name."""
MIN_TTL = 3.0
"""A lease that is no longer than this would end, less its margin, before it is renewed."""
BOOKMARKS = 256
"""Pages of events of which the place in the log is remembered."""


class PostgresThreadStore(ThreadStore):
    """Keeps threads in a PostgreSQL database that many processes and hosts share; each thread has one owner at a time.

    `url` names the database, `tenant` whose threads these are: nothing of another tenant is ever seen. `pool_size`
    bounds the connections for calls; renewals, hints and followers have one more each. A process that is cut off or
    frozen loses its threads after `lease_ttl` seconds. With `notify` commits are told to those who follow threads
    elsewhere.
    `migrate` brings the schema up to date on opening; without it the store defines nothing. `append_timeout` bounds,
    in seconds, each wait of a change.
    """

    id = "postgres"

    def __init__(
        self,
        url: str,
        tenant: str = "default",
        *,
        pool_size: int = 8,
        lease_ttl: float = 30.0,
        notify: bool = True,
        migrate: bool = False,
        append_timeout: float = 30.0,
    ) -> None:
        if type(pool_size) is not int or pool_size < 1:
            raise ValueError(f"pool_size must be an integer of at least 1, not {pool_size!r}")
        if not lease_ttl > MIN_TTL:
            raise ValueError(f"lease_ttl must be above {MIN_TTL:g} seconds, not {lease_ttl!r}")
        if not append_timeout > 0:
            raise ValueError(f"append_timeout must be above 0 seconds, not {append_timeout!r}")
        self._address = read_address(url)
        self._tenant = _checked_tenant(tenant)
        self._migrate = migrate
        self._session = Session(
            self._address,
            self._tenant,
            pool_size=pool_size,
            ttl=lease_ttl,
            bound=append_timeout,
            notify=notify,
        )
        self._keeping: set[ThreadId] = set()
        """Threads of which a state is being kept just now."""
        self._bookmarks: OrderedDict[tuple[ThreadId, int], read.Bookmark] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PostgresThreadStore {self._address.shown!r} of {self._tenant!r}>"

    # -- lifetime ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Connect, check the schema and serve calls. Leaving it finishes what was accepted and releases all leases.

        Raises StorageError, also if the schema is older, and SchemaTooNew; a store is opened once.
        """
        async with self._session.open(migrate=self._migrate):
            yield

    def watch_ownership(self, lost: Callable[[ThreadId], None]) -> None:
        """Call `lost`, on the event loop, whenever a claimed thread is no longer this store's own."""
        self._session.tenure.tell = lost

    # -- the contract --------------------------------------------------------------------------------------------------

    async def create_thread(self, metadata: ThreadMetadata) -> ThreadMetadata:
        """Store a new thread and claim it, or return what is stored if the same was created before.

        Cancelled, it created nothing. Raises ValueError for a bad id, InvalidRecord, ThreadExists, StorageError.
        """
        self._session.check_open()
        check_new_thread(metadata)
        thread_id = metadata.thread_id
        began = trio.current_time()
        key, owner, ttl = self._session.key(thread_id), self._session.owner, self._session.ttl
        stored, epoch = await self._session.change(
            thread_id, lambda link, doubt: write.create(link, key, metadata, owner, ttl)
        )
        if epoch is not None:
            self._session.tenure.take(thread_id, epoch, began, renewed=False)
        return stored

    async def load_thread(self, thread_id: ThreadId) -> ThreadSnapshot | None:
        """Return all that is held of an active thread; None for unknown and archived. Raises StorageError."""
        self._session.check_open()
        if not await _is_key(thread_id):
            return None
        return await self._session.read(lambda link: read.snapshot(link, self._session.key(thread_id)))

    async def load_state(self, thread_id: ThreadId) -> Hydration | None:
        """Return the state of an active thread, from the one that is kept and the records since. Raises StorageError.

        None for unknown and archived.
        """
        self._session.check_open()
        if not await _is_key(thread_id):
            return None
        stand = await self._session.read(lambda link: kept.load(link, self._session.key(thread_id)))
        return None if stand is None else stand.hydration

    async def load_metadata(self, thread_id: ThreadId) -> ThreadMetadata | None:
        """Return the metadata of an active thread. Raises StorageError."""
        self._session.check_open()
        if not await _is_key(thread_id):
            return None
        return await self._session.read(lambda link: read.metadata(link, self._session.key(thread_id)))

    async def load_events(self, thread_id: ThreadId, after: int = 0, limit: int = 500) -> Sequence[EventEnvelope]:
        """Return at most `limit` envelopes with a seq above `after`, in order. Raises ValueError, StorageError."""
        self._session.check_open()
        check_events(after, limit)
        if not await _is_key(thread_id):
            return []
        known = self._bookmarks.get((thread_id, after))
        page = await self._session.read(
            lambda link: read.events(link, self._session.key(thread_id), known, after, limit)
        )
        if page.events and page.seq is not None:
            self._bookmarks[thread_id, page.seq] = read.Bookmark(page.position, page.events[-1].event_id)
            if len(self._bookmarks) > BOOKMARKS:
                self._bookmarks.popitem(last=False)
        return page.events

    async def read_log(self, thread_id: ThreadId, cursor: str | None = None) -> LogPage | None:
        """Return a piece of a thread's log, active or archived, as it is stored; None for unknown.

        Raises StorageError, InvalidCursor.
        """
        self._session.check_open()
        if not await _is_key(thread_id):
            return None
        return await self._session.read(lambda link: read.log_page(link, self._session.key(thread_id), cursor))

    async def list_threads(
        self, *, limit: int = 50, cursor: str | None = None, label: Label | None = None
    ) -> ThreadPage:
        """Return a page of active threads, newest first. Raises ValueError, InvalidCursor, StorageError."""
        return await self._page(threads.page_query(self.id, limit=limit, cursor=cursor, label=label))

    async def list_archived(self, *, limit: int = 50, cursor: str | None = None) -> ThreadPage:
        """As `list_threads`, of archived threads."""
        return await self._page(threads.page_query(self.id, limit=limit, cursor=cursor, archived=True))

    async def _page(self, query: threads.PageQuery) -> ThreadPage:
        return await self._session.read(lambda link: read.page(link, self._tenant, query))

    async def archive_thread(self, thread_id: ThreadId) -> bool:
        """Make an active thread invisible, keeping every byte; False for unknown and archived.

        Raises ThreadOwnedElsewhere, LeaseLost, StorageError.
        """
        return await self._move(thread_id, archive=True)

    async def unarchive_thread(self, thread_id: ThreadId) -> bool:
        """Bring an archived thread back; False if it isn't archived. Raises as `archive_thread`."""
        return await self._move(thread_id, archive=False)

    async def _move(self, thread_id: ThreadId, *, archive: bool) -> bool:
        key = self._session.key(thread_id)
        return await self._whole(
            thread_id,
            lambda link, fence, doubt: write.move(link, key, fence, archive=archive, doubt=doubt),
        )

    async def delete_thread(self, thread_id: ThreadId) -> bool:
        """Remove an active or archived thread, all but its lease; False if nothing is there.

        Raises as `archive_thread`.
        """
        key = self._session.key(thread_id)
        removed = await self._whole(thread_id, lambda link, fence, doubt: write.delete(link, key, fence, doubt=doubt))
        if removed:
            self._session.tenure.drop(thread_id)
        return removed

    async def _whole(self, thread_id: ThreadId, work: Callable[[Link, Fence, bool], bool]) -> bool:
        """Change a thread as a whole, which needs nothing of what was read: a lost lease is no obstacle."""
        self._session.check_open()
        if not await _is_key(thread_id):
            return False
        try:
            epoch = self._session.tenure.epoch(thread_id)
        except LeaseLost:
            epoch = None
        done = await self._session.fenced(thread_id, work, epoch)
        if done:
            self._session.hints.note(self._session.key(thread_id), 0)
        return done

    async def append(self, thread_id: ThreadId, records: Sequence[Record]) -> None:
        """Store records, all or none; those whose ids the log holds are skipped.

        Cancelled, it stored nothing; once a worker has it, it is shielded for at most `append_timeout` seconds.
        A thread that isn't claimed is claimed for this call alone. Raises ThreadNotFound, InvalidRecord, LeaseLost,
        ThreadOwnedElsewhere, StorageError, AppendOutcomeUnknown.
        """
        self._session.check_open()
        batch = checked_batch(thread_id, records)
        if not is_key(thread_id):
            raise ThreadNotFound(thread_id)
        epoch = self._session.tenure.epoch(thread_id)
        key = self._session.key(thread_id)
        encoded = _Encoded(batch)

        def work(link: Link, fence: Fence, doubt: bool) -> tuple[int, bool]:
            position = write.append(link, key, fence, encoded.rows(), doubt=doubt)
            return position, kept.is_due(link, key, encoded.rows())

        position, due = await self._session.fenced(thread_id, work, epoch)
        self._session.hints.note(key, position)
        if due and epoch is not None and self._session.is_open and thread_id not in self._keeping:
            self._keeping.add(thread_id)
            self._session.check_open().start_soon(self._keep_state, thread_id, epoch)

    async def _keep_state(self, thread_id: ThreadId, epoch: int) -> None:
        """Renew the kept state of a thread; what is in its way is no harm, for the next turn's end tries again.

        It is kept under the lease of the append that called for it or not at all, so it never takes one from anybody.
        """
        await trio.lowlevel.checkpoint()
        key = self._session.key(thread_id)
        try:
            stand = await self._session.read(lambda link: kept.load(link, key))
            if stand is None:
                return
            text = await self._session.in_worker(kept.text_of, stand)
            await self._session.fenced(
                thread_id, lambda link, fence, doubt: kept.keep(link, key, fence, stand.position, text), epoch
            )
        except StorageError as error:
            log.info("the state of thread %s is not kept: %s", thread_id, error)
        finally:
            self._keeping.discard(thread_id)

    # -- ownership -----------------------------------------------------------------------------------------------------

    async def claim_thread(self, thread_id: ThreadId) -> None:
        """Become the owner of a thread. Cancelled, nothing was claimed. Raises ThreadOwnedElsewhere, StorageError."""
        self._session.check_open()
        if not await _is_key(thread_id):
            return
        began = trio.current_time()
        key, owner, ttl = self._session.key(thread_id), self._session.owner, self._session.ttl
        epoch = await self._session.change(thread_id, lambda link, doubt: write.claim(link, key, owner, ttl))
        self._session.tenure.take(thread_id, epoch, began)

    async def release_thread(self, thread_id: ThreadId) -> None:
        """Let others claim a thread at once. Raises StorageError if that isn't confirmed; then its lease runs out."""
        await trio.lowlevel.checkpoint()
        epoch = self._session.tenure.drop(thread_id)
        if epoch is None or not self._session.is_open:
            return
        tenant, owner = self._tenant, self._session.owner
        await self._session.lane(thread_id).ask(
            lambda link, doubt: lease.release(link, tenant, owner, {thread_id: epoch})
        )

    # -- others' threads -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def follow(
        self, thread_id: ThreadId, after: int = 0
    ) -> AsyncIterator[AsyncIterator[tuple[int, StoredRecord]]]:
        """Iterate over (position, record) behind the position `after`, as whoever owns the thread appends.

        The iteration ends when the thread is archived or deleted. Raises ValueError for a negative `after`,
        ThreadNotFound, and StorageError from a read that fails; the next one tries again.
        """
        if type(after) is not int or after < 0:
            raise ValueError(f"after must be an integer of at least 0, not {after!r}")
        if await self.load_metadata(thread_id) is None:
            raise ThreadNotFound(thread_id)
        nursery = self._session.check_open()  # it may have been closed meanwhile
        key = self._session.key(thread_id)

        async def tail(position: int, limit: int) -> read.Tail:
            return await self._session.read(lambda link: read.tail(link, key, position, limit))

        follower = Follower(after, tail)
        listening = nursery if self._session.hints.enabled else None
        with self._session.listener.following(hint_of(key), follower, listening):
            yield follower


class _Encoded:
    """A batch whose rows are made once, in the worker."""

    def __init__(self, batch: Sequence[StoredRecord]) -> None:
        self._batch = batch
        self._rows: Sequence[RecordRow] | None = None

    def rows(self) -> Sequence[RecordRow]:
        """The rows. Raises InvalidRecord."""
        if self._rows is None:
            self._rows = encode_rows(self._batch)
        return self._rows


def _checked_tenant(tenant: str) -> str:
    trimmed = tenant.strip() if isinstance(tenant, str) else ""
    fits = 0 < len(trimmed) <= MAX_TENANT and "\0" not in trimmed and unicode_text(trimmed) == trimmed
    if not fits:
        raise ValueError(f"tenant must be text of 1 to {MAX_TENANT} characters without NUL, not {tenant!r}")
    return trimmed


async def _is_key(thread_id: object) -> bool:
    """Whether a thread may have this id; a checkpoint, since an answer to no may be all that a call does."""
    await trio.lowlevel.checkpoint()
    return is_key(thread_id)
