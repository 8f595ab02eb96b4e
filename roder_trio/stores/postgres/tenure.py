"""The leases that this process holds, as its own clock sees them.

Rules of the room: runs on the event loop, touches no database. A lease counts from the start of the request that got
it, less a margin, so it ends here before it can end there. What is lost stays lost until it is claimed anew. A thread
that was only created is not renewed: its lease ends quietly if nobody claims it.
"""

import math
from collections.abc import Callable, Iterable

import attrs
import trio

from roder_trio.errors import LeaseLost
from roder_trio.schema.ids import ThreadId

MARGIN = 2.0
"""Seconds by which a lease ends here before it ends in the database."""


@attrs.define(eq=False)
class Held:
    """A lease; `ends_at` is in trio's time."""

    epoch: int
    ends_at: float
    renewed: bool


class Tenure:
    """What is held, what was lost, and the watch over it."""

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._held: dict[ThreadId, Held] = {}
        self._lost: set[ThreadId] = set()
        self._vain: set[ThreadId] = set()
        """Claimed when there was no such thread, so that what is read of it later is read without a lease."""
        self._wakes_at = math.inf
        self._wake = trio.Event()
        self.tell: Callable[[ThreadId], None] = lambda _: None
        """Called when a claimed thread is lost."""

    def epoch(self, thread_id: ThreadId) -> int | None:
        """The epoch with which a thread may be changed; None if it isn't held. Raises LeaseLost."""
        held = self._held.get(thread_id)
        if held is not None and trio.current_time() >= held.ends_at:
            self.end(thread_id, held.epoch)
            held = None
        if thread_id in self._lost or thread_id in self._vain:
            raise LeaseLost(thread_id)
        return None if held is None else held.epoch

    def take(self, thread_id: ThreadId, epoch: int | None, began: float, *, renewed: bool = True) -> None:
        """Note a claim whose request began at `began`; no epoch: there was nothing to claim."""
        self._lost.discard(thread_id)
        self._vain.discard(thread_id)
        if epoch is None:
            self._held.pop(thread_id, None)
            self._vain.add(thread_id)
            return
        held = self._held[thread_id] = Held(epoch, began + self._ttl - MARGIN, renewed)
        if held.ends_at < self._wakes_at:
            self._wake.set()

    def extend(self, epochs: dict[ThreadId, int], renewed: Iterable[ThreadId], began: float) -> None:
        """Note that leases were renewed by a request that began at `began`."""
        for thread_id in renewed:
            held = self._held.get(thread_id)
            if held is not None and held.epoch == epochs[thread_id]:
                held.ends_at = max(held.ends_at, began + self._ttl - MARGIN)

    def end(self, thread_id: ThreadId, epoch: int | None) -> None:
        """The lease with this epoch is over; one that was claimed anew is another one."""
        held = self._held.get(thread_id)
        if held is None or held.epoch != epoch:
            return
        del self._held[thread_id]
        if held.renewed:
            self._lost.add(thread_id)
            self.tell(thread_id)

    def drop(self, thread_id: ThreadId) -> int | None:
        """Give a thread up and return the epoch to release; None if it isn't held."""
        self._vain.discard(thread_id)
        held = self._held.pop(thread_id, None)
        return None if held is None else held.epoch

    def to_renew(self) -> dict[ThreadId, int]:
        """The epochs of all leases that are to be renewed."""
        return {thread_id: held.epoch for thread_id, held in self._held.items() if held.renewed}

    def drop_all(self) -> dict[ThreadId, int]:
        """Give everything up and return the epochs to release."""
        epochs = {thread_id: held.epoch for thread_id, held in self._held.items()}
        self._held.clear()
        return epochs

    async def watch(self) -> None:
        """End each lease when its time comes, until cancelled."""
        while True:
            self._wake = trio.Event()
            self._wakes_at = min((held.ends_at for held in self._held.values()), default=math.inf)
            with trio.move_on_at(self._wakes_at):
                await self._wake.wait()
            now = trio.current_time()
            for thread_id, held in list(self._held.items()):
                if now >= held.ends_at:
                    self.end(thread_id, held.epoch)
