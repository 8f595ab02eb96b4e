"""The fan-out of events to subscribers: synchronous, bounded, never waiting for a reader.

Publishing is a plain call. Each reader has a buffer of its own; one that is too slow loses its oldest events, is told
how many, and never loses a terminal event silently.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from roder_trio.errors import SubscriptionOverrun
from roder_trio.schema.event import TERMINAL_EVENTS, Event, EventEnvelope, ItemsReset, Lagged
from roder_trio.schema.item import ThreadItem

DEFAULT_BUFFER = 16384
_VIEW_KINDS = ("item", "turn.completed", "turn.failed", "turn.interrupted")


@attrs.frozen
class Filter:
    """What a subscriber wants; parts are joined by "and". A kind matches itself and all kinds below it."""

    thread_id: str | None = None
    turn_id: str | None = None
    kinds: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Kinds that aren't wanted."""

    def matches(self, envelope: EventEnvelope) -> bool:
        """Whether the subscriber wants this event."""
        if self.thread_id is not None and envelope.thread_id != self.thread_id:
            return False
        if self.turn_id is not None and envelope.turn_id != self.turn_id:
            return False
        kind = envelope.kind
        if kind in self.without:
            return False
        return not self.kinds or any(kind == wanted or kind.startswith(wanted + ".") for wanted in self.kinds)


def is_terminal(envelope: EventEnvelope) -> bool:
    """Whether the event ends a turn."""
    return isinstance(envelope.event, TERMINAL_EVENTS)


class Subscription:
    """One reader's buffer. Iterate over it in one task; a cancelled read loses nothing."""

    def __init__(self, filter: Filter, buffer: int, lagged: Callable[[int], EventEnvelope]) -> None:
        if type(buffer) is not int or buffer < 1:
            raise ValueError(f"buffer must be an integer of at least 1, not {buffer!r}")
        self.filter = filter
        self._limit = buffer
        self._lagged = lagged
        self._buffer: deque[EventEnvelope] = deque()
        self._terminals = 0
        self._missed = 0
        self._overrun = False
        self._ended = False
        self._reading = False
        self._wake: trio.Event | None = None

    def offer(self, envelope: EventEnvelope) -> None:
        """Take an event if it is wanted."""
        if self._ended or not self.filter.matches(envelope):
            return
        terminal = is_terminal(envelope)
        if len(self._buffer) >= self._limit and not self._make_room(terminal):
            return
        self._buffer.append(envelope)
        self._terminals += terminal
        self._notify()

    def end(self) -> None:
        """No further event comes; the reader gets the rest."""
        self._ended = True
        self._notify()

    def __aiter__(self) -> AsyncIterator[EventEnvelope]:
        return self

    async def __anext__(self) -> EventEnvelope:
        """Return the next event. Raises SubscriptionOverrun after the last one if the buffer overran."""
        if self._reading:
            raise trio.BusyResourceError("another task reads this subscription")
        self._reading = True
        try:
            return await self._read()
        finally:
            self._reading = False

    def take(self) -> EventEnvelope:
        """Return what stands first; call it only if something does."""
        if self._missed:
            missed, self._missed = self._missed, 0
            return self._lagged(missed)
        envelope = self._buffer.popleft()
        self._terminals -= is_terminal(envelope)
        return envelope

    @property
    def buffered(self) -> int:
        """How many events wait to be read."""
        return len(self._buffer)

    @property
    def ended(self) -> bool:
        """Whether no further event is taken."""
        return self._ended

    async def _read(self) -> EventEnvelope:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._buffer and not self._missed:
            if self._overrun:
                raise SubscriptionOverrun
            if self._ended:
                raise StopAsyncIteration
            await self._wait()
        envelope = self.take()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return envelope

    async def _wait(self) -> None:
        self._wake = trio.Event()
        try:
            await self._wake.wait()
        finally:
            self._wake = None

    def _make_room(self, terminal: bool) -> bool:
        """Drop the oldest event that isn't terminal; without one, drop the newcomer or end the subscription."""
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

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake.set()


class ItemView(Subscription):
    """A thread's items as of one moment, and what happens to them from then on, with no gap between.

    `items` is the snapshot; iteration gives the envelopes of `item.*` and of terminal events after it. A view that is
    too slow starts anew: `ItemsReset` holds a new snapshot.
    """

    def __init__(
        self,
        thread_id: str,
        buffer: int,
        wrap: Callable[[Event], EventEnvelope],
        renew: Callable[["ItemView"], Awaitable[None]],
    ) -> None:
        super().__init__(Filter(thread_id, kinds=_VIEW_KINDS), buffer, lambda missed: wrap(Lagged(missed)))
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
                envelope = self._kept.popleft() if self._kept else self._buffer.popleft()
                await trio.lowlevel.cancel_shielded_checkpoint()
                return envelope
            elif self._ended:
                raise StopAsyncIteration
            else:
                await self._wait()

    def _fall_behind(self) -> None:
        self._behind = True
        self._kept = deque(entry for entry in (*self._kept, *self._buffer) if is_terminal(entry))
        self._buffer.clear()


class EventBroadcast:
    """All subscriptions of a runtime. Has no task; order is that of publishing."""

    def __init__(self, lagged: Callable[[int], EventEnvelope]) -> None:
        self._lagged = lagged
        self._subscriptions: list[Subscription] = []
        self._closed = False

    @property
    def has_readers(self) -> bool:
        """Whether anybody subscribes at all."""
        return bool(self._subscriptions)

    def wants(self, thread_id: str) -> bool:
        """Whether anybody might want events of this thread."""
        return any(entry.filter.thread_id in (None, thread_id) for entry in self._subscriptions)

    def publish(self, envelope: EventEnvelope) -> None:
        """Give an event to all who want it, without waiting."""
        for subscription in self._subscriptions:
            subscription.offer(envelope)

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

    def register(self, subscription: Subscription) -> None:
        """Give events to this reader from now on."""
        if self._closed:
            subscription.end()
        self._subscriptions.append(subscription)

    def unregister(self, subscription: Subscription) -> None:
        """Give no more events to this reader."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def _views(self, thread_id: str) -> list[ItemView]:
        return [s for s in self._subscriptions if isinstance(s, ItemView) and s.filter.thread_id == thread_id]

    def reset_views(self, thread_id: str, items: tuple[ThreadItem, ...]) -> None:
        """The live items of a thread are gone: its views start anew from these."""
        for view in self._views(thread_id):
            view.reset(items)

    def outdate_views(self, thread_id: str, *, wake: bool = False) -> None:
        """The live items of a thread are gone, and nobody knows yet what it holds; with `wake` it can be asked."""
        for view in self._views(thread_id):
            view.outdate(wake=wake)

    def end_views(self, thread_id: str) -> None:
        """The thread is gone: its views end."""
        for view in self._views(thread_id):
            view.end()

    def end(self) -> None:
        """End all subscriptions: readers get the rest, then the end of iteration."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.end()
