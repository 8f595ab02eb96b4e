"""One open store as its calls see it: connections and workers, lanes of changes, leases that are kept.

Rules of the room: runs on the event loop and touches no socket. The changes of one thread stand in a lane, reads run
beside them. A change that was handed to a worker is finished, whoever is cancelled. What becomes of a lease is noted
before the next thing runs.
"""

import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import trio

from roder_trio.errors import LeaseLost, StorageError, StoreClosed
from roder_trio.schema.ids import ThreadId
from roder_trio.stores._lane import Job, Lane, run_call
from roder_trio.stores._nursery import open_service_nursery
from roder_trio.stores.postgres.address import Address
from roder_trio.stores.postgres.database import Database, Link
from roder_trio.stores.postgres.follow import Listener
from roder_trio.stores.postgres.hint import Hints
from roder_trio.stores.postgres.keeper import Keeper
from roder_trio.stores.postgres.lease import Fence, Key
from roder_trio.stores.postgres.tenure import Tenure

T = TypeVar("T")


class Session:
    """What the calls of one store share, from its opening to its closing."""

    def __init__(
        self, address: Address, tenant: str, *, pool_size: int, ttl: float, bound: float, notify: bool
    ) -> None:
        self.tenant = tenant
        self.ttl = ttl
        self.owner = ""
        # two more than calls may have: renewals and hints never wait for calls
        self.database = Database(address, pool_size=pool_size + 2, bound=bound, idle_seconds=ttl)
        self.tenure = Tenure(ttl)
        self.listener = Listener(self.database)
        self.hints = Hints(self.database, enabled=notify)
        self.keeper = Keeper(self.database, self.tenure, tenant=tenant, ttl=ttl)
        self._bound = bound
        self._limiter = trio.CapacityLimiter(pool_size)
        self._lanes: weakref.WeakValueDictionary[ThreadId, Lane] = weakref.WeakValueDictionary()
        self._nursery: trio.Nursery | None = None
        self._opened = False

    # -- lifetime ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open(self, *, migrate: bool) -> AsyncIterator[None]:
        """Connect and serve calls; leaving finishes what was accepted and releases all leases. Raises StorageError."""
        if self._opened:
            raise StorageError("A store is opened once; make another one.")
        self._opened = True
        self.owner = str(uuid4())
        await self.in_worker(partial(self.database.open, migrate=migrate))
        try:
            async with open_service_nursery() as nursery:
                keeping = trio.CancelScope()
                nursery.start_soon(self._tend, keeping)
                self._nursery = nursery
                try:
                    yield
                finally:
                    self._nursery = None
                    with trio.CancelScope(shield=True):  # bounded by the connection's own time limits
                        await self.listener.stop()
                    keeping.cancel()
        finally:
            with trio.CancelScope(shield=True):  # as above
                await self.in_worker(self._leave)

    async def _tend(self, keeping: trio.CancelScope) -> None:
        with keeping:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.tenure.watch)
                nursery.start_soon(self.keeper.run, self.owner)
                nursery.start_soon(self.hints.run)

    def _leave(self) -> None:
        try:
            self.hints.flush()
            self.keeper.release_all()
        finally:
            self.database.close()

    @property
    def is_open(self) -> bool:
        """Whether calls are served."""
        return self._nursery is not None

    def check_open(self) -> trio.Nursery:
        """Return the nursery of the store's tasks. Raises StoreClosed."""
        if self._nursery is None:
            raise StoreClosed("The store is not open; use it inside `async with store.open()`.")
        return self._nursery

    # -- work ----------------------------------------------------------------------------------------------------------

    def key(self, thread_id: ThreadId) -> Key:
        """The key of a thread of this tenant."""
        return Key(self.tenant, thread_id)

    async def in_worker(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run blocking work in a thread of the store's own. Cancelling waits until it is done."""
        return await trio.to_thread.run_sync(work, *arguments, limiter=self._limiter)

    async def read(self, work: Callable[[Link], T]) -> T:
        """Read within one snapshot of the database. Raises StoreClosed, StorageError."""
        self.check_open()
        return await self.in_worker(self.database.read, work)

    def lane(self, thread_id: ThreadId) -> Lane:
        """The lane in which the changes of a thread run; one that nobody uses is forgotten. Raises StoreClosed."""
        nursery = self.check_open()
        lane = self._lanes.get(thread_id)
        if lane is None:
            lane = self._lanes[thread_id] = Lane(nursery, self._limiter, self._perform, lambda: None)
        return lane

    def _perform(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            run_call(partial(self.database.change, job.work), job)

    async def change(self, thread_id: ThreadId, work: Callable[[Link, bool], T]) -> T:
        """Run a change in the thread's lane. Cancelled before its turn, nothing happened; then it is shielded.

        Raises StorageError, and AppendOutcomeUnknown at the bound of an append.
        """
        done: T = await self.lane(thread_id).call(work, self._bound)
        return done

    async def fenced(self, thread_id: ThreadId, work: Callable[[Link, Fence, bool], T], epoch: int | None) -> T:
        """As `change`, under the lease of this epoch, or under one for this change alone. Raises LeaseLost as well."""
        fence = Fence(self.owner, epoch)
        try:
            return await self.change(thread_id, lambda link, doubt: work(link, fence, doubt))
        except LeaseLost:
            self.tenure.end(thread_id, epoch)
            raise
