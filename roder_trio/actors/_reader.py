"""What every reader of events is: a filter, a bounded buffer, and an iterator that one task reads.

Offering is a plain call and never waits. A cancelled read loses nothing. A reader that finds events in its buffer lets
others run as often as a job that reads a stream does, not at every event.
"""

import abc
from collections import deque
from collections.abc import AsyncIterator

import attrs
import trio

from roder_trio.actors._stream import YIELD_EVERY_EVENTS, YIELD_EVERY_SECONDS
from roder_trio.schema.event import EventEnvelope


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
        if not self.kinds and not self.without:
            return True
        kind = envelope.kind
        if kind in self.without:
            return False
        return not self.kinds or any(kind == wanted or kind.startswith(wanted + ".") for wanted in self.kinds)


class Reader(abc.ABC):
    """One reader's buffer. Kinds of readers differ in what they do when it is full."""

    ends_with_thread = False
    """Whether nothing is left to read once the thread is archived or deleted."""

    def __init__(self, filter: Filter, buffer: int) -> None:
        if type(buffer) is not int or buffer < 1:
            raise ValueError(f"buffer must be an integer of at least 1, not {buffer!r}")
        self.filter = filter
        self._limit = buffer
        self._buffer: deque[EventEnvelope] = deque()
        self._ended = False
        self._reading = False
        self._given = 0
        """Events given since others could run."""
        self._paused_at = 0.0
        """When they could, on trio's clock."""
        self._wake: trio.Event | None = None

    @abc.abstractmethod
    def offer(self, envelope: EventEnvelope) -> None:
        """Take an event if it is wanted."""

    def end(self) -> None:
        """No further event comes; the reader gets the rest."""
        self._ended = True
        self._notify()

    def __aiter__(self) -> AsyncIterator[EventEnvelope]:
        return self

    async def __anext__(self) -> EventEnvelope:
        """Return the next event. A cancelled read loses nothing. Raises BusyResourceError beside another read."""
        if self._reading:
            raise trio.BusyResourceError("another task reads this subscription")
        self._reading = True
        try:
            envelope = await self._read()
            self._given += 1
            if self._given >= YIELD_EVERY_EVENTS or trio.current_time() - self._paused_at >= YIELD_EVERY_SECONDS:
                await trio.lowlevel.cancel_shielded_checkpoint()
                self._note_pause()
        finally:
            self._reading = False
        return envelope

    @property
    def buffered(self) -> int:
        """How many events wait to be read."""
        return len(self._buffer)

    @property
    def ended(self) -> bool:
        """Whether no further event is taken."""
        return self._ended

    @abc.abstractmethod
    async def _read(self) -> EventEnvelope:
        """Wait for the next event. Raises StopAsyncIteration after the last one."""

    async def _wait(self) -> None:
        self._wake = trio.Event()
        try:
            await self._wake.wait()
        finally:
            self._wake = None
        self._note_pause()

    def _note_pause(self) -> None:
        """Others could run just now."""
        self._given, self._paused_at = 0, trio.current_time()

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake.set()
