"""Doing something at the n-th step of tasks, and engines that know what they handed out.

A step is what a task does between two checkpoints. `Injector` counts the steps of the tasks that it watches and runs a
synchronous action before or after the n-th: before, it finds the task as a checkpoint wakes it up; after, it finds it
blocked at the next one. Cancelling a scope, setting an event and jumping a clock are allowed there. A sweep tries
n = 1, 2, ... until a run has fewer steps.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import chain, repeat
from typing import Any, Literal

import trio

import roder_trio as rt
from roder_trio import inference
from roder_trio.ports import InferenceStream

Watches = Callable[[trio.lowlevel.Task], bool]


def is_job(task: trio.lowlevel.Task) -> bool:
    """The task of a thread's foreground job."""
    return task.name == "roder_trio.job"


def is_runtime(task: trio.lowlevel.Task) -> bool:
    """Any task of a runtime: actors, accounting, jobs."""
    return task.name.startswith("roder_trio.")


def is_any(task: trio.lowlevel.Task) -> bool:
    """Any task at all, the caller's included."""
    return not task.name.startswith("<")


class Injector(trio.abc.Instrument):
    """Runs `action` once, at step `number` of the tasks that `watches` names."""

    def __init__(
        self, number: int, action: Callable[[], object], watches: Watches, at: Literal["before", "after"] = "before"
    ) -> None:
        self.fired = False
        self.steps = 0
        self._number = number
        self._action = action
        self._watches = watches
        self._before = at == "before"
        self._error: Exception | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._before:
            self._count(task)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self._before:
            self._count(task)

    def _count(self, task: trio.lowlevel.Task) -> None:
        if not self._watches(task):
            return
        self.steps += 1
        if self.steps != self._number:
            return
        self.fired = True
        try:
            self._action()
        except Exception as error:  # trio would log it and go on without this instrument
            self._error = error

    @contextmanager
    def watching(self) -> Iterator["Injector"]:
        """Count while the block is open; an error of the action is raised at its end."""
        trio.lowlevel.add_instrument(self)
        try:
            yield self
        finally:
            trio.lowlevel.remove_instrument(self)
        if self._error is not None:
            raise self._error


class ProbeEngine(rt.InferenceEngine):
    """Plays lists of events, the last list for ever, and knows what usage it handed to its reader.

    A list may hold numbers, seconds to wait, and an exception, raised there. Every event has a checkpoint before it.
    """

    id = "probe"
    default_model = "probe-1"
    capabilities = rt.InferenceCapabilities.agent()

    def __init__(self, steps: Iterable[Sequence[Any]], compact: Iterable[Sequence[Any]] = ()) -> None:
        self._steps = _for_ever(steps)
        self._compact = _for_ever(compact)
        self.active = 0
        self.most_active = 0
        self.requests: list[inference.InferenceRequest] = []
        self.handed: dict[str, dict[str, rt.TokenUsage]] = {}
        """The newest report by turn and attempt."""

    def handed_in(self, turn_id: str) -> rt.TokenUsage | None:
        """The sum of the attempts of a turn; None if no report with a token in it was handed out."""
        total = None
        for usage in self.handed.get(turn_id, {}).values():
            total = usage if total is None else total + usage
        return total

    @asynccontextmanager
    async def stream_turn(
        self, context: inference.TurnContext, request: inference.InferenceRequest
    ) -> AsyncIterator[InferenceStream]:
        self.requests.append(request)
        async with self.block(context, next(self._steps)) as stream:
            yield stream

    @asynccontextmanager
    async def compact_turn(
        self, context: inference.TurnContext, request: inference.InferenceRequest
    ) -> AsyncIterator[InferenceStream]:
        async with self.block(context, next(self._compact)) as stream:
            yield stream

    @asynccontextmanager
    async def block(self, context: inference.TurnContext, step: Sequence[Any]) -> AsyncIterator[InferenceStream]:
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            await trio.lowlevel.checkpoint()
            async with self.source(step) as source:
                yield _Probed(source, lambda usage: self._hand(context, usage))
        finally:
            self.active -= 1

    @asynccontextmanager
    async def source(self, step: Sequence[Any]) -> AsyncIterator["_Source"]:
        """Where the events come from; subclasses have other ways."""
        yield _Listed(step)

    def _hand(self, context: inference.TurnContext, usage: rt.TokenUsage) -> None:
        self.handed.setdefault(context.turn_id, {})[context.attempt_id] = usage


class NurseryEngine(ProbeEngine):
    """The same, with a task of its own that feeds the stream, and a cleanup that takes a while."""

    settles = False

    @asynccontextmanager
    async def source(self, step: Sequence[Any]) -> AsyncIterator["_Source"]:
        send, receive = trio.open_memory_channel[Any](2)
        piped = (_Settling if self.settles else _Piped)(receive)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, step, send, piped)
            try:
                yield piped
            finally:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.01)
                receive.close()

    async def _pump(self, step: Sequence[Any], send: trio.MemorySendChannel[Any], piped: "_Piped") -> None:
        with send:
            source = _Listed(step)
            while True:
                try:
                    event = await source.next()
                except StopAsyncIteration:
                    return
                await send.send(event)
                if isinstance(event, inference.Usage):
                    piped.newest = event.usage


class SettlingEngine(NurseryEngine):
    """The same, with an iterator that tells after a cancel what it had received."""

    settles = True


class _Source:
    async def next(self) -> Any:
        raise NotImplementedError

    def settle(self) -> rt.TokenUsage | None:
        return None


class _Listed(_Source):
    def __init__(self, step: Sequence[Any]) -> None:
        self._parts = iter(step)

    async def next(self) -> Any:
        await trio.lowlevel.checkpoint()
        for part in self._parts:
            if isinstance(part, Exception):
                raise part
            if not isinstance(part, int | float):
                return part
            await trio.sleep(part)
        raise StopAsyncIteration


class _Piped(_Source):
    def __init__(self, receive: trio.MemoryReceiveChannel[Any]) -> None:
        self._receive = receive
        self.newest: rt.TokenUsage | None = None

    async def next(self) -> Any:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None


class _Settling(_Piped):
    def settle(self) -> rt.TokenUsage | None:
        return self.newest


class _Probed:
    """Notes each report as it is handed out, and what `settle` tells."""

    def __init__(self, source: _Source, hand: Callable[[rt.TokenUsage], None]) -> None:
        self._source = source
        self._hand = hand

    def __aiter__(self) -> "_Probed":
        return self

    async def __anext__(self) -> Any:
        event = await self._source.next()
        if isinstance(event, inference.Usage):
            self._hand(event.usage)
        return event

    def settle(self) -> rt.TokenUsage | None:
        usage = self._source.settle()
        if usage is not None:
            self._hand(usage)
        return usage


def _for_ever(steps: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    listed = list(steps)
    return chain(listed, repeat(listed[-1])) if listed else iter(())
