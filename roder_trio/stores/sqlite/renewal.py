"""Renewing what is kept of a thread's state, beside everything else that the store does.

Rules of the room: one renewal of a thread at a time, each a task of the store's nursery; a deletion ends it first, so
that it never stores what was deleted. A renewal that fails costs a longer hydration and nothing else.
"""

import logging
from functools import partial

import trio

from roder_trio.errors import StorageError
from roder_trio.schema.ids import ThreadId
from roder_trio.stores.sqlite import kept
from roder_trio.stores.sqlite.readers import Readers
from roder_trio.stores.sqlite.writer import Writer

log = logging.getLogger(__name__)


class Renewals:
    """The renewals that run."""

    def __init__(self, nursery: trio.Nursery, readers: Readers, writer: Writer) -> None:
        self._nursery = nursery
        self._readers = readers
        self._writer = writer
        self._running: dict[ThreadId, trio.CancelScope] = {}
        self._again: set[ThreadId] = set()

    def begin(self, thread_id: ThreadId) -> None:
        """Renew the kept state of a thread; if that is being done, look once more after it."""
        if thread_id in self._running:
            self._again.add(thread_id)
        else:
            scope = self._running[thread_id] = trio.CancelScope()
            self._nursery.start_soon(self._run, thread_id, scope)

    def end(self, thread_id: ThreadId) -> None:
        """End the renewal of a thread: it stores nothing from now on."""
        self._again.discard(thread_id)
        scope = self._running.pop(thread_id, None)
        if scope is not None:
            scope.cancel()

    async def _run(self, thread_id: ThreadId, scope: trio.CancelScope) -> None:  # noqa: ASYNC910 - a task of its own
        try:
            with scope:
                await self._renew(thread_id)
                while thread_id in self._again:
                    self._again.discard(thread_id)
                    await self._renew(thread_id)
        except StorageError as error:
            log.warning("the state of thread %s could not be kept: %s", thread_id, error)
        finally:
            if self._running.get(thread_id) is scope:
                del self._running[thread_id]

    async def _renew(self, thread_id: ThreadId) -> None:
        found = await self._readers.ask(thread_id, partial(kept.renewed, thread_id=thread_id))
        if found is not None:
            stand, body = found
            await self._writer.call(thread_id, partial(kept.keep, thread_id=thread_id, stand=stand, body=body))
