"""Sinks: each has a buffer and a task of its own; events in order, one at a time, each within its time."""

from collections.abc import Sequence

import trio

from roder_trio.actors._services import envelope
from roder_trio.actors.broadcast import EventBroadcast, Filter, Subscription
from roder_trio.ports import EventSink
from roder_trio.schema.event import SinkFailed

SINK_BUFFER = 256
MAX_MESSAGE = 300


class Sinks:
    """All sinks of a runtime. What they fail at goes to subscribers, never to sinks."""

    def __init__(self, sinks: Sequence[EventSink], broadcast: EventBroadcast, seconds_per_event: float) -> None:
        self._broadcast = broadcast
        self._seconds = seconds_per_event
        self._entries = [(sink, broadcast.subscription(Filter(), SINK_BUFFER)) for sink in sinks]
        self._done = trio.Event()

    async def run(self) -> None:
        """Feed all sinks until the broadcast ends and what is buffered is taken."""
        async with trio.open_nursery() as nursery:
            for sink, events in self._entries:
                nursery.start_soon(self._feed, sink, events)
        self._done.set()

    async def flushed(self) -> None:
        """Wait until every sink took all its events; they end when the broadcast does."""
        await self._done.wait()

    @property
    def unflushed(self) -> dict[str, int]:
        """How many events wait, by sink id."""
        return {sink.id: events.buffered for sink, events in self._entries if events.buffered}

    async def _feed(self, sink: EventSink, events: Subscription) -> None:
        async for event in events:
            if not isinstance(event.event, SinkFailed):
                message = None
                with trio.move_on_after(self._seconds) as scope:
                    try:
                        await sink.emit(event)
                    except Exception as error:
                        message = f"{type(error).__name__}: {error}"
                if scope.cancelled_caught:
                    message = f"the event took longer than {self._seconds:g} s"
                if message is not None:
                    self._broadcast.publish(envelope(SinkFailed(sink.id, message[:MAX_MESSAGE])))
