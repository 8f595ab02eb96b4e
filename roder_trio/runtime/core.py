"""The living parts of an open runtime, and the order in which they end."""

import math
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from roder_trio.actors._services import Services
from roder_trio.actors.accounting import AccountingActor
from roder_trio.actors.broadcast import EventBroadcast
from roder_trio.actors.direct import DirectCompactions
from roder_trio.actors.directory import Directory
from roder_trio.actors.follow import read_rest
from roder_trio.actors.sink import Sinks
from roder_trio.runtime.engines import EngineRegistry
from roder_trio.schema.turn import DrainOutcome, ShutdownReport


@attrs.define(eq=False)
class Core:
    """What `open_runtime` builds and `Runtime` speaks to."""

    services: Services
    directory: Directory
    direct: DirectCompactions
    registry: EngineRegistry
    sinks: Sinks
    report: ShutdownReport | None = None
    _overruns: list[str] = attrs.field(factory=list)

    @property
    def accounting(self) -> AccountingActor:
        """The one writer of usage."""
        return self.services.accounting

    @property
    def broadcast(self) -> EventBroadcast:
        """The fan-out of events."""
        return self.services.broadcast

    async def drain(self, reason: str, grace: float) -> DrainOutcome:
        """Refuse new turns, interrupt the running ones, and wait at most `grace` seconds until all are stored.

        If turns are accepted again meanwhile, only those that were interrupted are waited for. Cancelling stops the
        waiting and nothing else.
        """
        lifecycle = self.services.lifecycle
        if not lifecycle.draining:
            lifecycle.interrupted.clear()
            lifecycle.unstored.clear()
        if lifecycle.drain_reason != "shutdown":
            lifecycle.drain_reason = reason
        before = frozenset(lifecycle.interrupted)
        interrupted = self.directory.interrupt_turns(reason)
        lifecycle.drains += 1
        try:
            with trio.move_on_after(grace):
                await trio.lowlevel.checkpoint()
                while not (self.directory.is_quiet if lifecycle.draining else self._ended(interrupted)):
                    await lifecycle.changed.wait()
        finally:
            lifecycle.drains -= 1
        interrupted |= lifecycle.interrupted - before
        remaining = self.directory.running_turns
        if not lifecycle.draining:
            remaining &= interrupted
        status = "storage_failed" if lifecycle.unstored else "deadline_exceeded" if remaining else "clean"
        return DrainOutcome(status, tuple(sorted(interrupted)), tuple(sorted(remaining)))

    def _ended(self, turns: set[str]) -> bool:
        return not turns & self.directory.running_turns

    async def shut_down(self) -> None:
        """End everything, outermost first; each stage has its grace, and an overrun is named in the report.

        To be called under a shield.
        """
        lifecycle = self.services.lifecycle
        grace = self.services.config.deadlines.shutdown_stage_grace
        self.directory.cancel_compactions("shutdown")
        outcome = DrainOutcome("clean")

        async def drain() -> None:
            nonlocal outcome
            outcome = await self.drain("shutdown", math.inf)

        await self._stage("turns", drain, grace)
        remaining = tuple(sorted(self.directory.running_turns))
        await self._stage("direct compactions", self.direct.close, grace)
        lifecycle.closed = True
        await self._stage("usage", self.accounting.drain, grace)
        await self._stage("threads", self.directory.close, grace)
        self.accounting.close()
        await self._stage("followers", partial(read_rest, self.broadcast), grace)
        await self._stage("sinks", self._flush, self.services.config.deadlines.sink_flush_grace)
        self.broadcast.end()
        status = "storage_failed" if lifecycle.unstored else "deadline_exceeded" if remaining else outcome.status
        self.report = ShutdownReport(
            status=status,
            overruns=tuple(self._overruns),
            remaining=remaining,
            unflushed=self.sinks.unflushed,
            unreleased=tuple(sorted(lifecycle.unreleased)),
        )

    async def _flush(self) -> None:
        await self.services.hooks.flushed()
        self.broadcast.end()
        await self.sinks.flushed()

    async def _stage(self, name: str, work: Callable[[], Awaitable[None]], grace: float) -> None:
        with trio.move_on_after(grace) as scope:
            await work()
        if scope.cancelled_caught:
            self._overruns.append(name)
