"""The fan-out of events to subscribers: synchronous, bounded, never waiting for a reader.

Publishing is a plain call. Each reader has a buffer of its own; one that is too slow loses its oldest events, is told
how many, and never loses a terminal event silently.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from roder_trio.actors._reader import Filter, Reader
from roder_trio.errors import SubscriptionOverrun
from roder_trio.schema.event import TERMINAL_EVENTS, Event, EventEnvelope, ItemsReset
from roder_trio.schema.item import ThreadItem

DEFAULT_BUFFER = 16384
_VIEW_KINDS = ("item", "turn.completed", "turn.failed", "turn.interrupted")


def is_terminal(envelope: EventEnvelope) -> bool:
    """Whether the event ends a turn."""
    return isinstance(envelope.event, TERMINAL_EVENTS)


class Subscription(Reader):
    """A reader that loses its oldest events when it is too slow, and is told how many."""

    def __init__(self, filter: Filter, buffer: int, lagged: Callable[[int], EventEnvelope]) -> None:
        super().__init__(filter, buffer)
        self._lagged = lagged
        self._takes_all = filter == Filter()
        """Asked first, for each event: a slow reader may cost the others next to nothing."""
        self._terminals = 0
        self._missed = 0
        self._overrun = False

    def offer(self, envelope: EventEnvelope) -> None:
        """Take an event if it is wanted."""
        if self._ended or not (self._takes_all or self.filter.matches(envelope)):
            return
        terminal = isinstance(envelope.event, TERMINAL_EVENTS)
        if len(self._buffer) >= self._limit and not self._make_room(terminal):
            return
        self._buffer.append(envelope)
        self._terminals += terminal
        if self._wake is not None:
            self._wake.set()

    def take(self) -> EventEnvelope:
        """Return what stands first; call it only if something does."""
        if self._missed:
            missed, self._missed = self._missed, 0
            return self._lagged(missed)
        envelope = self._buffer.popleft()
        self._terminals -= is_terminal(envelope)
        return envelope

    async def _read(self) -> EventEnvelope:
        """Return the next event. Raises SubscriptionOverrun after the last one if the buffer overran."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._buffer and not self._missed:
            if self._overrun:
                raise SubscriptionOverrun
            if self._ended:
                raise StopAsyncIteration
            await self._wait()
        return self.take()

    def _make_room(self, terminal: bool) -> bool:
        """Drop the oldest event that isn't terminal; without one, drop the newcomer or end the subscription."""
        if not self._terminals:
            self._buffer.popleft()
            self._missed += 1
            return True
        if self._terminals < len(self._buffer):
            del self._buffer[next(index for index, entry in enumerate(self._buffer) if not is_terminal(entry))]
            self._missed += 1
            return True
        if terminal:
            self._overrun = self._ended = True
            self._notify()
        else:
            self._missed += 1
        return False


class ItemView(Reader):
    """A thread's items as of one moment, and what happens to them from then on, with no gap between.

    `items` is the snapshot; iteration gives the envelopes of `item.*` and of terminal events after it. A view that is
    too slow starts anew: `ItemsReset` holds a new snapshot.
    """

    ends_with_thread = True

    def __init__(
        self,
        thread_id: str,
        buffer: int,
        wrap: Callable[[Event], EventEnvelope],
        renew: Callable[["ItemView"], Awaitable[None]],
    ) -> None:
        super().__init__(Filter(thread_id, kinds=_VIEW_KINDS), buffer)
        self.items: tuple[ThreadItem, ...] = ()
        self._wrap = wrap
        self._renew = renew
        self._behind = False
        """Events were dropped; only a new snapshot helps."""
        self._kept: deque[EventEnvelope] = deque()
        """What is given before the buffer: a reset, then terminal events that a dropped buffer held."""

    def offer(self, envelope: EventEnvelope) -> None:
        """Take an event if it is wanted; while the view is behind, only terminal ones are kept."""
        if self._ended or not self.filter.matches(envelope):
            return
        if not self._behind and len(self._buffer) < self._limit:
            self._buffer.append(envelope)
        else:
            self._fall_behind()
            if is_terminal(envelope):
                self._kept.append(envelope)
        self._notify()

    def reset(self, items: tuple[ThreadItem, ...]) -> None:
        """Start anew from these items."""
        self._fall_behind()
        self._behind = False
        self._kept.appendleft(self._wrap(ItemsReset(items)))
        self._notify()

    def outdate(self, *, wake: bool = False) -> None:
        """What was shown is no longer so: the next read takes a new snapshot, and who waits for one at its next event.

        With `wake`, who waits takes it at once.
        """
        self._fall_behind()
        if wake:
            self._notify()

    async def _read(self) -> EventEnvelope:
        """Return the next event; a view that fell behind first takes a new snapshot. Cancelling loses nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._behind and not self._ended:
                await self._renew(self)
            elif self._kept or self._buffer:
                return self._kept.popleft() if self._kept else self._buffer.popleft()
            elif self._ended:
                raise StopAsyncIteration
            else:
                await self._wait()

    def _fall_behind(self) -> None:
        self._behind = True
        self._kept = deque(entry for entry in (*self._kept, *self._buffer) if is_terminal(entry))
        self._buffer.clear()


R = TypeVar("R", bound=Reader)


class EventBroadcast:
    """All readers of a runtime. Has no task; order is that of publishing."""

    def __init__(self, lagged: Callable[[int], EventEnvelope]) -> None:
        self._lagged = lagged
        self._readers: list[Reader] = []
        self._threads = Counter[str | None]()
        """How many readers there are of each thread; None: of all."""
        self._closed = False

    @property
    def has_readers(self) -> bool:
        """Whether anybody subscribes at all."""
        return bool(self._readers)

    def wants(self, thread_id: str) -> bool:
        """Whether anybody might want events of this thread."""
        return thread_id in self._threads or None in self._threads

    def publish(self, envelope: EventEnvelope) -> None:
        """Give an event to all who want it, without waiting."""
        for reader in self._readers:
            reader.offer(envelope)

    def subscription(self, filter: Filter, buffer: int) -> Subscription:
        """Register a reader for as long as the broadcast lasts."""
        subscription = Subscription(filter, buffer, self._lagged)
        self.register(subscription)
        return subscription

    @contextmanager
    def subscribed(self, filter: Filter, buffer: int = DEFAULT_BUFFER) -> Iterator[Subscription]:
        """Register a reader while the block is open, from the moment it is entered; then it gets the rest."""
        subscription = self.subscription(filter, buffer)
        try:
            yield subscription
        finally:
            subscription.end()
            self.unregister(subscription)

    def register(self, reader: Reader) -> None:
        """Give events to this reader from now on."""
        if self._closed:
            reader.end()
        self._readers.append(reader)
        self._threads[reader.filter.thread_id] += 1

    def unregister(self, reader: Reader) -> None:
        """Give no more events to this reader."""
        if reader in self._readers:
            self._readers.remove(reader)
            self._threads -= Counter((reader.filter.thread_id,))

    def readers(self, kind: type[R], thread_id: str | None = None) -> list[R]:
        """The readers of this kind, of one thread or of all."""
        found = [entry for entry in self._readers if isinstance(entry, kind)]
        return found if thread_id is None else [entry for entry in found if entry.filter.thread_id == thread_id]

    def reset_views(self, thread_id: str, items: tuple[ThreadItem, ...]) -> None:
        """The live items of a thread are gone: its views start anew from these."""
        for view in self.readers(ItemView, thread_id):
            view.reset(items)

    def outdate_views(self, thread_id: str, *, wake: bool = False) -> None:
        """The live items of a thread are gone, and nobody knows yet what it holds; with `wake` it can be asked."""
        for view in self.readers(ItemView, thread_id):
            view.outdate(wake=wake)

    def end_readers(self, thread_id: str) -> None:
        """The thread is gone: its views and followers end."""
        for reader in self._readers:
            if reader.ends_with_thread and reader.filter.thread_id == thread_id:
                reader.end()

    def end(self) -> None:
        """End all: readers get the rest, then the end of iteration."""
        self._closed = True
        for reader in self._readers:
            reader.end()
