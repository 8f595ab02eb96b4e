"""The flows of the soak: those of the crash sweep, and turns whose text grows while a clock is turned by hand.

Rules of the room: time goes on only where an engine turns it, and never past text that is due and not stored, by a
checkpoint or as a message: so what a death may lose of a text is known to the word, however slow the machine is.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio
from trio.testing import MockClock

import roder_trio as rt
from roder_trio import inference
from tests import crash_flows
from tests.crash_flows import Flow, ended, used_so_far, with_goal
from tests.flow_engines import CountingEngine
from tests.soak.diary import Diary

INTERVAL = 0.5
"""Seconds of the clock after which open text is stored."""
STEP = 0.125
WORDS = tuple(f"word {number}, " for number in range(14))
SAID = "".join(WORDS)
"""All that a talk says."""


class Stage:
    """What the talks of one life share: the clock, and how much of each text is shown and stored."""

    def __init__(self, clock: MockClock, diary: Diary) -> None:
        self._clock = clock
        self._diary = diary
        self._shown: dict[str, list[tuple[float, int]]] = {}
        self._stored: dict[str, int] = {}
        self._changed = trio.Event()

    def begin(self, thread_id: str) -> None:
        self._shown[thread_id] = []
        self._stored[thread_id] = 0

    def end(self, thread_id: str) -> None:
        """Note that the message is stored. Until then its text waits, even if its stream has ended."""
        self._shown.pop(thread_id, None)
        self._wake()

    def show(self, thread_id: str, turn_id: str, length: int) -> None:
        """Note that this much of the text has been handed to readers by now."""
        now = trio.current_time()
        self._shown[thread_id].append((now, length))
        self._diary.write("said", thread_id, turn_id, length, now)

    def store(self, thread_id: str, length: int) -> None:
        """Note that a checkpoint of so many characters is stored."""
        if thread_id in self._shown:
            self._stored[thread_id] += length
            self._wake()

    async def turn_clock(self) -> None:
        """Turn the clock one step, once no text that is shown waits for a checkpoint that is due."""
        await trio.lowlevel.checkpoint()
        while self._is_due():
            await self._changed.wait()
        self._clock.jump(STEP)
        self._diary.write("clock", trio.current_time())

    def _is_due(self) -> bool:
        now = trio.current_time()
        return any(
            at + INTERVAL <= now and length > self._stored[thread_id]
            for thread_id, shown in self._shown.items()
            for at, length in shown
        )

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class Talk:
    """A stream that turns the clock between its words."""

    def __init__(self, stream: AsyncIterator[Any], stage: Stage, thread_id: str, turn_id: str) -> None:
        self._stream = stream
        self._stage = stage
        self._names = (thread_id, turn_id)
        self._length = 0

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._length:
            self._stage.show(*self._names, self._length)
        await self._stage.turn_clock()
        event = await self._stream.__anext__()
        if isinstance(event, inference.MessageDelta):
            self._length += len(event.text)
        return event


class TalkingEngine(CountingEngine):
    """Says many words; then completes, or stalls."""

    id = "talking"
    capabilities = rt.InferenceCapabilities.agent()

    def __init__(self, *, stalls: bool) -> None:
        super().__init__()
        self.stalls = stalls
        self.stage: Stage | None = None

    @asynccontextmanager
    async def stream_turn(self, context: Any, request: Any) -> AsyncIterator[Any]:
        assert self.stage is not None
        said: list[Any] = [inference.MessageDelta(word) for word in WORDS]
        said.insert(2, inference.Usage(rt.TokenUsage(9, 1, 10)))
        said.append(inference.Usage(rt.TokenUsage(9, 9, 18)))
        if not self.stalls:
            said.append(inference.Completed("stop"))
        self.stage.begin(context.thread_id)
        async with self.play(said, stalls=self.stalls) as stream:
            yield Talk(stream, self.stage, context.thread_id, context.turn_id)


async def talk(runtime: rt.Runtime, engine: TalkingEngine, thread: str) -> None:
    """A turn of many words, to its end or interrupted behind the last one."""
    before = await used_so_far(runtime, thread)
    await with_goal(runtime, thread)
    turn = await runtime.start_turn(thread, "talk", model="any")
    if engine.stalls:
        await engine.stalled.wait()
        await runtime.interrupt_turn(thread, turn)
    outcome = await ended(runtime, engine, thread, turn, before, "interrupted" if engine.stalls else "completed")
    assert engine.stalls or outcome.text == SAID


_PLAIN = crash_flows.FLOWS["calls"].config

FLOWS: Mapping[str, Flow] = {
    **crash_flows.FLOWS,
    "talk, completed": Flow(partial(TalkingEngine, stalls=False), talk, _PLAIN),
    "talk, interrupted": Flow(partial(TalkingEngine, stalls=True), talk, _PLAIN),
}


@attrs.frozen
class Family:
    """Flows that may follow each other on one thread and share a runtime."""

    config: rt.RuntimeConfig
    flows: tuple[str, ...]


def _family(first: str) -> Family:
    config = FLOWS[first].config
    return Family(config, tuple(name for name, flow in FLOWS.items() if flow.config is config))


FAMILIES: Mapping[str, Family] = {
    "compacting": _family("usage, interrupted"),
    "transactional": _family("transaction, failed"),
    "plain": _family("calls"),
    "summarising": _family("summary"),
}


class Relay(rt.InferenceEngine):
    """The engine of a runtime that has each thread's own engine speak."""

    def __init__(self, like: CountingEngine) -> None:
        self.id = like.id
        self.capabilities = like.capabilities
        self.requires_native_compaction = like.requires_native_compaction
        self.speakers: dict[str, Any] = {}

    def stream_turn(self, context: Any, request: Any) -> Any:
        return self.speakers[context.thread_id].stream_turn(context, request)

    def compact_turn(self, context: Any, request: Any) -> Any:
        return self.speakers[context.thread_id].compact_turn(context, request)

    async def list_models(self) -> Sequence[Any]:
        await trio.lowlevel.checkpoint()
        return (inference.ModelDescriptor(provider=self.id, id="mock"),)
