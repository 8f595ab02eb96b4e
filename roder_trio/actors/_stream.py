"""Reading one engine stream, whatever way it ends.

The engine's block runs in a scope of its own. When reading ends, a `finally` inside the block shields that scope and
bounds it, asks the iterator for usage it has not told, and lets the engine leave. What cuts the reading, a stream that
brings nothing included, cancels a scope outside. Nothing of ours is raised through the block: the reader's verdict is
noted, the block left normally.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import attrs
import trio

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.schema.inference import InferenceEvent, Usage
from roder_trio.schema.usage import TokenUsage

log = logging.getLogger(__name__)

YIELD_EVERY_EVENTS = 64
YIELD_EVERY_SECONDS = 0.001

StreamBlock = AbstractAsyncContextManager[AsyncIterator[InferenceEvent]]
Take = Callable[[InferenceEvent], Awaitable[bool]]
"""Takes one event; True says that nothing more is wanted."""


@attrs.define(eq=False)
class StreamReader:
    """Reads one stream of one attempt, and knows how that ended; why it was cut is read from the recorded causes."""

    observe: Callable[[TokenUsage], None]
    cut: Callable[[], bool]
    """Whether a recorded cause wants the reading to end; then only usage is still taken."""
    idle_timeout: float | None
    close_grace: float
    failure: ProviderFailure | None = None
    """What the engine did that no engine may."""
    idle: bool = False
    """No event came in time."""
    ended_at: float | None = None
    """When the last event, or the failure, was read; None if the stream was never open."""
    overran: bool = False
    """The engine took longer to leave than it may."""

    async def read(self, block: StreamBlock, take: Take, waiting: trio.CancelScope) -> None:
        """Open the stream, hand its events to `take`, leave it.

        `waiting` is a scope around this; while the stream is read, its deadline is when no event has come for too long.
        Raises what the engine raises. A cancel leaves the stream too, within `close_grace`, before it goes on.
        """
        finished = False
        self._refresh(waiting, trio.current_time())
        try:
            with trio.CancelScope() as inner:
                async with block as stream:
                    try:
                        await self._pump(stream, take, waiting)
                        finished = True
                    finally:
                        self._stop_waiting(waiting, finished=finished)
                        self._leave(inner)
                        if not finished or self.cut():
                            self._settle(stream)
        finally:
            self._stop_waiting(waiting, finished=finished)
            self.overran = self.ended_at is not None and trio.current_time() >= inner.deadline

    def _stop_waiting(self, waiting: trio.CancelScope, *, finished: bool) -> None:
        """No event is waited for any more; say whether the last one was waited for in vain."""
        self.idle = self.idle or (not finished and trio.current_time() >= waiting.deadline)
        waiting.deadline = float("inf")

    def _leave(self, inner: trio.CancelScope) -> None:
        """From here on only the engine's cleanup runs, out of reach of any cancel, for a time."""
        self.ended_at = trio.current_time()
        inner.shield = True
        inner.deadline = self.ended_at + self.close_grace

    async def _pump(self, stream: AsyncIterator[InferenceEvent], take: Take, waiting: trio.CancelScope) -> None:
        """Hand on events until no more are wanted, or the stream ends by itself."""
        count, last_yield = 0, trio.current_time()
        self._refresh(waiting, last_yield)
        while True:
            try:
                event = await anext(stream)
            except StopAsyncIteration:
                return
            if isinstance(event, Usage) and not self._count(event):
                return
            if self.cut() or await take(event):
                return
            count += 1
            now = trio.current_time()
            if count >= YIELD_EVERY_EVENTS or now - last_yield >= YIELD_EVERY_SECONDS:
                await trio.lowlevel.checkpoint()
                count, last_yield = 0, trio.current_time()
                self._refresh(waiting, last_yield)

    def _refresh(self, waiting: trio.CancelScope, now: float) -> None:
        if self.idle_timeout is not None:
            waiting.deadline = now + self.idle_timeout

    def _count(self, event: Usage) -> bool:
        """Observe a report; False if it holds no usage, which no engine may send."""
        if isinstance(event.usage, TokenUsage):
            self.observe(event.usage)
            return True
        self.failure = ProviderFailure(ProviderFailureKind.PROTOCOL, "The engine sent a report that holds no usage.")
        return False

    def _settle(self, stream: Any) -> None:
        """Observe what the bytes already received say of usage."""
        settle = getattr(stream, "settle", None)
        if settle is None:
            return
        try:
            usage = settle()
        except Exception:
            log.exception("an engine's stream could not tell its usage after it was cut")
            return
        if isinstance(usage, TokenUsage):
            self.observe(usage)
