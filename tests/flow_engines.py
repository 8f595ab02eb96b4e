"""Engines of the flows that must hold through failures, cancels and crashes: scripts of events, written by hand.

What an engine reported is kept beside it, so that a test can compare it with what was counted.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from typing import Any

import trio

import roder_trio as rt
from roder_trio import inference, transcript
from roder_trio.schema.inference import InferenceRequest, ModelDescriptor, TurnContext

Event = Any


def normal_usage(first: bool) -> rt.TokenUsage:
    if first:
        return rt.TokenUsage(20, 4, 24, 2, 1, service_tier="priority")
    return rt.TokenUsage(5, 1, 6, 1, service_tier="priority")


def compaction_usage() -> rt.TokenUsage:
    return rt.TokenUsage(10, 2, 12, 3, 2, service_tier="default")


class HandStream:
    """Gives events one by one and raises exceptions among them; then ends, or tells that it stalls and does."""

    def __init__(self, events: Sequence[Event], report: Callable[[rt.TokenUsage], None], stalled: trio.Event | None):
        self._events = list(events)
        self._report = report
        self._stalled = stalled

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        await trio.lowlevel.checkpoint()
        if not self._events:
            if self._stalled is None:
                raise StopAsyncIteration
            self._stalled.set()
            await trio.sleep_forever()
        event = self._events.pop(0)
        if isinstance(event, Exception):
            raise event
        if isinstance(event, inference.Usage):
            self._report(event.usage)
        return event


class CountingEngine(rt.InferenceEngine):
    """Keeps the newest report of each stream that it opened."""

    def __init__(self) -> None:
        self.readings: list[rt.TokenUsage] = []
        self.stalled = trio.Event()

    @property
    def billed(self) -> rt.TokenUsage:
        """What all streams reported, in total."""
        return sum(self.readings, rt.TokenUsage(0, 0, 0))

    @asynccontextmanager
    async def play(self, events: Sequence[Event], *, stalls: bool = False) -> AsyncIterator[HandStream]:
        number = len(self.readings)
        self.readings.append(rt.TokenUsage(0, 0, 0))

        def report(usage: rt.TokenUsage) -> None:
            self.readings[number] = usage

        await trio.lowlevel.checkpoint()
        yield HandStream(events, report, self.stalled if stalls else None)


class CompactionEngine(CountingEngine):
    """Samples once, wants another round, must compact before it; with `interrupt` the compaction stalls."""

    id = "mock"
    capabilities = rt.InferenceCapabilities.text_only()
    requires_native_compaction = True

    def __init__(self, *, interrupt: bool) -> None:
        super().__init__()
        self.interrupt = interrupt
        self.sampling_calls = 0
        self.compaction_calls = 0

    async def list_models(self) -> Sequence[ModelDescriptor]:
        await trio.lowlevel.checkpoint()
        return (ModelDescriptor(provider="mock", id="mock"),)

    def stream_turn(
        self, context: TurnContext, request: InferenceRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        first = self.sampling_calls == 0
        self.sampling_calls += 1
        events: list[Event] = [
            inference.Usage(normal_usage(first)),
            inference.MessageDelta("evidence " * 2_000 if first else "done"),
        ]
        if first:
            events.append(inference.ProviderMetadata({"end_turn": False}))
        return self.play([*events, inference.Completed("stop")])

    def compact_turn(
        self, context: TurnContext, request: InferenceRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        self.compaction_calls += 1
        events: list[Event] = [inference.Usage(rt.TokenUsage(3, 1, 4)), inference.Usage(compaction_usage())]
        if self.interrupt:
            return self.play(events, stalls=True)
        opaque = [{"type": "compaction", "encrypted_content": "opaque"}]
        boundary = inference.ProviderMetadata({"output": opaque, "compacted_input": opaque})
        return self.play([*events, boundary, inference.Completed("stop")])


class TwoRounds(CompactionEngine):
    """Says much and stalls; told more, it must compact before it says the rest."""

    def __init__(self) -> None:
        super().__init__(interrupt=False)

    def stream_turn(self, context: Any, request: Any) -> Any:
        first = self.sampling_calls == 0
        self.sampling_calls += 1
        usage = inference.Usage(normal_usage(first))
        if first:
            return self.play([usage, inference.MessageDelta("evidence " * 2_000)], stalls=True)
        return self.play([usage, inference.MessageDelta("done"), inference.Completed("stop")])


class Ending(Enum):
    """How a compaction ends after it staged a candidate and reported its usage."""

    DISCONNECT = "disconnect"
    FAILED = "failed"
    CONFLICTING_BOUNDARY = "conflicting_boundary"
    TOOL_CALL = "tool_call"
    PENDING = "pending"


def boundary(id: str) -> inference.ProviderMetadata:
    item = [{"type": "compaction", "id": id, "encrypted_content": id}]
    return inference.ProviderMetadata({"output": item, "compacted_input": item})


def original_history() -> list[transcript.TranscriptItem]:
    return [
        transcript.UserMessage("preserve original goal"),
        transcript.ToolCall("read-proof", "read_file", '{"path":"proof.txt"}'),
        transcript.ToolResult("read-proof", "read_file", "original tool evidence"),
    ]


class TransactionEngine(CountingEngine):
    """Compacts and never commits: each attempt stages a candidate, reports 40 tokens, then ends as it was told."""

    id = "transactional"
    capabilities = rt.InferenceCapabilities.text_only()
    requires_native_compaction = True

    def __init__(self, ending: Ending, history: Sequence[transcript.TranscriptItem] | None = None) -> None:
        super().__init__()
        self.ending = ending
        self.history = original_history() if history is None else list(history)
        self.attempts = 0

    def stream_turn(
        self, context: TurnContext, request: InferenceRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        raise AssertionError("failed native compaction must not silently summarize")

    def compact_turn(
        self, context: TurnContext, request: InferenceRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        self.attempts += 1
        assert list(request.transcript) == self.history
        events: list[Event] = [boundary("candidate"), inference.Usage(rt.TokenUsage(30, 10, 40))]
        match self.ending:
            case Ending.DISCONNECT:
                events.append(rt.ProviderFailure(rt.ProviderFailureKind.STREAM_INTERRUPTED, "disconnected"))
            case Ending.FAILED:
                events.append(inference.Failed("failed"))
            case Ending.CONFLICTING_BOUNDARY:
                events += [boundary("conflicting"), inference.Completed()]
            case Ending.TOOL_CALL:
                events.append(inference.ToolCallCompleted("invalid", "write", "{}"))
        return self.play(events, stalls=self.ending is Ending.PENDING)
