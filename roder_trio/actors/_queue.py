"""A bounded queue that one task takes from: what a mailbox is made of.

It stands in for a memory channel, which may have many takers and weighs 2 KiB in each thread that is in memory. Items
come out in the order in which they came, those of senders that wait for room included.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio
from trio.lowlevel import Abort, enable_ki_protection

T = TypeVar("T")


class Queue(Generic[T]):
    """At most `capacity` items; who puts more of them waits."""

    __slots__ = ("_capacity", "_closed", "_items", "_outside", "_taker")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: list[T] = []
        self._outside: tuple[tuple[T, trio.Event], ...] = ()
        """Items that wait for room, each with what wakes its sender."""
        self._taker: trio.lowlevel.Task | None = None
        """Who waits for an item."""
        self._closed = False

    @enable_ki_protection
    def put_nowait(self, item: T) -> bool:
        """Add an item; False if there is no room. Raises trio.ClosedResourceError."""
        if self._closed:
            raise trio.ClosedResourceError
        if len(self._items) >= self._capacity:
            return False
        self._items.append(item)
        if self._taker is not None:
            trio.lowlevel.reschedule(self._taker)
            self._taker = None
        return True

    async def put(self, item: T) -> None:
        """Add an item, once there is room. Cancelling takes it back. Raises trio.ClosedResourceError."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.put_nowait(item):
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        entry = (item, trio.Event())
        self._outside = (*self._outside, entry)
        try:
            await entry[1].wait()
        finally:
            left_outside = entry in self._outside
            self._outside = tuple(other for other in self._outside if other is not entry)
        if left_outside:
            raise trio.ClosedResourceError

    async def take(self) -> T:
        """Wait for the next item. Cancelling takes none."""
        if self._items:
            await trio.lowlevel.checkpoint()
        while not self._items:
            self._taker = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
        return self._pop()

    def take_nowait(self) -> T | None:
        """Return the next item if there is one."""
        return self._pop() if self._items else None

    def close(self) -> list[T]:
        """Refuse what is put from now on, and what waits for room; return what is queued."""
        self._closed = True
        for _, woken in self._outside:
            woken.set()
        items, self._items = self._items, []
        return items

    @enable_ki_protection
    def _pop(self) -> T:
        item = self._items.pop(0)
        if self._outside:
            (entered, woken), *others = self._outside
            self._outside = tuple(others)
            self._items.append(entered)
            woken.set()
        return item

    def _stop_waiting(self, raise_cancel: Callable[[], Any]) -> Abort:
        self._taker = None
        return Abort.SUCCEEDED
