"""Sinks: each has a buffer and a task of its own; events in order, one at a time, each within its time."""

from collections.abc import Sequence

import attrs
import trio

from roder_trio.actors._reader import Filter
from roder_trio.actors._services import envelope
from roder_trio.actors._supervisor import cancel_alone, flatten
from roder_trio.actors.broadcast import EventBroadcast, Subscription
from roder_trio.ports import EventSink
from roder_trio.schema.event import EventEnvelope, SinkFailed

SINK_BUFFER = 256
MAX_MESSAGE = 300


@attrs.define(eq=False)
class _Feed:
    """One sink with its buffer."""

    sink: EventSink
    events: Subscription
    emitting: bool = False

    @property
    def left(self) -> int:
        """How many events the sink hasn't taken to their end."""
        return self.events.buffered + self.emitting


class Sinks:
    """All sinks of a runtime. What they fail at goes to subscribers, never to sinks."""

    def __init__(self, sinks: Sequence[EventSink], broadcast: EventBroadcast, seconds_per_event: float) -> None:
        self._broadcast = broadcast
        self._seconds = seconds_per_event
        wanted = Filter(without=(SinkFailed.kind,))
        self._feeds = [_Feed(sink, broadcast.subscription(wanted, SINK_BUFFER)) for sink in sinks]
        self._done = trio.Event()

    async def run(self) -> None:
        """Feed all sinks until the broadcast ends and what is buffered is taken."""
        async with trio.open_nursery() as nursery:
            for feed in self._feeds:
                nursery.start_soon(self._run, feed)
        self._done.set()

    async def flushed(self) -> None:
        """Wait until every sink took all its events; they end when the broadcast does."""
        await self._done.wait()

    @property
    def unflushed(self) -> dict[str, int]:
        """How many events are left, by sink id; one that a sink still works on is among them."""
        return {feed.sink.id: feed.left for feed in self._feeds if feed.left}

    async def _run(self, feed: _Feed) -> None:
        async for event in feed.events:
            feed.emitting = True
            message = await self._emit(feed.sink, event)
            feed.emitting = False
            if message is not None:
                self._broadcast.publish(envelope(SinkFailed(feed.sink.id, message[:MAX_MESSAGE], missed=1)))

    async def _emit(self, sink: EventSink, event: EventEnvelope) -> str | None:
        """Give one event to one sink; return why it failed, or None."""
        try:
            with cancel_alone(), trio.move_on_after(self._seconds) as scope:
                await sink.emit(event)
        except Exception as raised:
            error = flatten(raised)
            return f"{type(error).__name__}: {error}"
        return f"the event took longer than {self._seconds:g} s" if scope.cancelled_caught else None
