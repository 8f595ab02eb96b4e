"""A store around another one, whose appends fail, hang or are seen where a test says so."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import TypeAlias

import trio

from roder_trio.logic.thread.hydration import Hydration
from roder_trio.ports import ThreadStore
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import LogPage, Record, StoredRecord, ThreadMetadata, ThreadPage, ThreadSnapshot

AppendHook: TypeAlias = Callable[[int, ThreadId, Sequence[Record]], Awaitable[None]]

_NO_ERRORS: Mapping[int, Exception] = MappingProxyType({})


class FaultyStore(ThreadStore):
    """Wraps `inner`; appends are numbered from 1 over all threads, in the order of the calls.

    `fail` maps the number of an append to the error it raises before anything is written; `fail_after` to one that it
    raises when all is written, such as `AppendOutcomeUnknown`. The hooks are awaited before and after the write with
    the number, the thread and the records: one that awaits an event holds the append there, one that raises fails it.
    A hook before the write can be cancelled, with nothing stored; one after it is shielded, as the write is.

    `appends` counts the calls of `append`, `stored` those whose write returned, `loads` the calls of `load_thread` and
    `load_state`, numbered together; `fail_loads` maps such a number to the error that it raises.
    """

    def __init__(
        self,
        inner: ThreadStore,
        *,
        fail: Mapping[int, Exception] = _NO_ERRORS,
        fail_after: Mapping[int, Exception] = _NO_ERRORS,
        before: AppendHook | None = None,
        after: AppendHook | None = None,
        fail_loads: Mapping[int, Exception] = _NO_ERRORS,
    ) -> None:
        self.inner = inner
        self.id = inner.id
        self.fail = dict(fail)
        self.fail_after = dict(fail_after)
        self.fail_loads = dict(fail_loads)
        self.before = before
        self.after = after
        self.appends = 0
        self.loads = 0
        self.stored = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open the inner store."""
        async with self.inner.open():
            yield

    async def append(self, thread_id: ThreadId, records: Sequence[Record]) -> None:
        """Append to the inner store, with what was ordered for this number."""
        self.appends += 1
        number = self.appends
        if self.before is not None:
            await self.before(number, thread_id, records)
        if number in self.fail:
            await trio.lowlevel.checkpoint()
            raise self.fail[number]
        await self.inner.append(thread_id, records)
        self.stored += 1
        if self.after is not None:
            with trio.CancelScope(shield=True):
                await self.after(number, thread_id, records)
        if number in self.fail_after:
            raise self.fail_after[number]

    async def load_thread(self, thread_id: ThreadId) -> ThreadSnapshot | None:
        """As the inner store, with what was ordered for this number of a load."""
        await self._begin_load()
        return await self.inner.load_thread(thread_id)

    async def load_state(self, thread_id: ThreadId) -> Hydration | None:
        """As the inner store, which may keep states, with what was ordered for this number of a load."""
        await self._begin_load()
        return await self.inner.load_state(thread_id)

    async def _begin_load(self) -> None:
        self.loads += 1
        await trio.lowlevel.checkpoint()
        if self.loads in self.fail_loads:
            raise self.fail_loads[self.loads]

    async def create_thread(self, metadata: ThreadMetadata) -> ThreadMetadata:
        """As the inner store."""
        return await self.inner.create_thread(metadata)

    async def list_threads(
        self, *, limit: int = 50, cursor: str | None = None, label: tuple[str, str] | None = None
    ) -> ThreadPage:
        """As the inner store."""
        return await self.inner.list_threads(limit=limit, cursor=cursor, label=label)

    async def archive_thread(self, thread_id: ThreadId) -> bool:
        """As the inner store."""
        return await self.inner.archive_thread(thread_id)

    async def load_metadata(self, thread_id: ThreadId) -> ThreadMetadata | None:
        """As the inner store."""
        return await self.inner.load_metadata(thread_id)

    async def load_events(self, thread_id: ThreadId, after: int = 0, limit: int = 500) -> Sequence[EventEnvelope]:
        """As the inner store."""
        return await self.inner.load_events(thread_id, after, limit)

    async def read_log(self, thread_id: ThreadId, cursor: str | None = None) -> LogPage | None:
        """As the inner store."""
        return await self.inner.read_log(thread_id, cursor)

    async def claim_thread(self, thread_id: ThreadId) -> None:
        """As the inner store."""
        await self.inner.claim_thread(thread_id)

    async def release_thread(self, thread_id: ThreadId) -> None:
        """As the inner store."""
        await self.inner.release_thread(thread_id)

    def watch_ownership(self, lost: Callable[[ThreadId], None]) -> None:
        """As the inner store."""
        self.inner.watch_ownership(lost)

    async def unarchive_thread(self, thread_id: ThreadId) -> bool:
        """As the inner store."""
        return await self.inner.unarchive_thread(thread_id)

    async def list_archived(self, *, limit: int = 50, cursor: str | None = None) -> ThreadPage:
        """As the inner store."""
        return await self.inner.list_archived(limit=limit, cursor=cursor)

    async def delete_thread(self, thread_id: ThreadId) -> bool:
        """As the inner store."""
        return await self.inner.delete_thread(thread_id)

    def follow(
        self, thread_id: ThreadId, after: int = 0
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[int, StoredRecord]]]:
        """As the inner store."""
        return self.inner.follow(thread_id, after)
