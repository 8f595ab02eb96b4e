"""The flows that are killed at each of their appends, and run again to their end on the same thread."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

import roder_trio as rt
from roder_trio import compaction, goals, inference, stores
from tests.flow_engines import CompactionEngine, CountingEngine, Ending, TransactionEngine, original_history
from tests.log_laws import transcript_of

PATIENCE = 60.0
"""Seconds after which a flow hangs."""


@attrs.frozen
class Flow:
    """A flow: the engine it needs, and what it does on a thread. It asserts what must hold at its end."""

    engine: Callable[[], Any]
    run: Callable[[rt.Runtime, Any, str], Awaitable[None]]
    config: rt.RuntimeConfig


def jsonl(folder: Path) -> stores.JsonlThreadStore:
    return stores.JsonlThreadStore(folder, durability="process")


def opened(flow: Flow, engine: rt.InferenceEngine, store: rt.ThreadStore) -> AbstractAsyncContextManager[rt.Runtime]:
    return rt.open_runtime(engines=[engine], store=store, config=flow.config)


# -- turns -------------------------------------------------------------------------------------------------------------


async def with_goal(runtime: rt.Runtime, thread: str) -> None:
    await runtime.thread_goal_clear(thread)
    await runtime.thread_goal_set(thread, goals.GoalPatch(objective="Exercise compaction accounting", token_budget=42))


async def ended(
    runtime: rt.Runtime, engine: CountingEngine, thread: str, turn: str, before: rt.TokenUsage, status: str
) -> rt.TurnOutcome:
    """Wait for the turn's end and check what was counted for it."""
    outcome = await runtime.wait_turn(thread, turn)
    assert outcome.status == status, outcome
    assert outcome.usage == engine.billed
    metadata = await runtime.load_metadata(thread)
    assert metadata is not None
    assert metadata.usage == before + engine.billed
    return outcome


async def used_so_far(runtime: rt.Runtime, thread: str) -> rt.TokenUsage:
    metadata = await runtime.load_metadata(thread)
    assert metadata is not None
    return metadata.usage or rt.TokenUsage(0, 0, 0)


async def account(runtime: rt.Runtime, engine: CompactionEngine, thread: str) -> None:
    """A turn with a native compaction, to its end or interrupted while the compaction stalls."""
    before = await used_so_far(runtime, thread)
    await with_goal(runtime, thread)
    turn = await runtime.start_turn(thread, "Inspect the evidence")
    if engine.interrupt:
        await engine.stalled.wait()
        while await tokens_used(runtime, thread) < engine.billed.total_tokens:  # noqa: ASYNC110  # as a host would
            await trio.lowlevel.checkpoint()
        await runtime.interrupt_turn(thread, turn)
    await ended(runtime, engine, thread, turn, before, "interrupted" if engine.interrupt else "completed")
    assert await tokens_used(runtime, thread) == engine.billed.total_tokens


async def tokens_used(runtime: rt.Runtime, thread: str) -> int:
    goal = await runtime.thread_goal_get(thread)
    assert goal is not None
    return goal.tokens_used


class CallingEngine(CountingEngine):
    """Calls two tools, then answers."""

    id = "calling"
    capabilities = rt.InferenceCapabilities.agent()

    def stream_turn(self, context: Any, request: Any) -> Any:
        if any(isinstance(item, rt.transcript.ToolResult) for item in request.transcript[-2:]):
            return self.play(
                [inference.Usage(rt.TokenUsage(30, 2, 32)), inference.MessageDelta("done"), inference.Completed("stop")]
            )
        return self.play(
            [
                inference.ReasoningDelta("two looks"),
                inference.MessageDelta("let me see"),
                inference.Usage(rt.TokenUsage(9, 3, 12)),
                inference.ToolCallCompleted("a", "look", "{}"),
                inference.ToolCallCompleted("b", "look", "{}"),
                inference.Completed("tool_use"),
            ]
        )


async def call(runtime: rt.Runtime, engine: CallingEngine, thread: str) -> None:
    """A turn with two calls in one batch."""
    before = await used_so_far(runtime, thread)
    await with_goal(runtime, thread)
    turn = await runtime.start_turn(thread, "look twice", model="any")
    await ended(runtime, engine, thread, turn, before, "completed")


class SteeredEngine(CountingEngine):
    """Says much and stalls; once it was told more, it answers."""

    id = "steered"

    def stream_turn(self, context: Any, request: Any) -> Any:
        if request.transcript[-1] == rt.transcript.UserMessage("shorter"):
            return self.play([inference.Usage(rt.TokenUsage(7, 1, 8)), inference.MessageDelta("ok"), _COMPLETED])
        said = [inference.MessageDelta("long story " * 500), inference.Usage(rt.TokenUsage(4, 9, 13))]
        return self.play(said, stalls=True)


_COMPLETED = inference.Completed("stop")


async def steer(runtime: rt.Runtime, engine: SteeredEngine, thread: str) -> None:
    """A turn that is steered in mid-text."""
    before = await used_so_far(runtime, thread)
    await with_goal(runtime, thread)
    turn = await runtime.start_turn(thread, "tell me", model="any")
    await engine.stalled.wait()
    await runtime.steer_turn(thread, turn, "shorter")
    outcome = await ended(runtime, engine, thread, turn, before, "completed")
    assert outcome.text == "ok"


# -- compactions -------------------------------------------------------------------------------------------------------


async def compact(runtime: rt.Runtime, engine: TransactionEngine, thread: str) -> None:
    """A compaction in the caller's task that comes to nothing."""
    before = await used_so_far(runtime, thread)
    for item in original_history():
        await runtime.persist_turn_item(thread, "compact-failure", item)
    engine.history = await window(runtime, thread)
    failure = rt.CompactionPreempted if engine.ending is Ending.PENDING else rt.ProviderFailure
    signal = rt.SteeringSignal()

    async def notify() -> None:
        await engine.stalled.wait()
        signal.notify()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(notify)
        try:
            with signal.preemptible():
                await runtime.compact_with_provider(thread, "compact-failure", "transactional", "model", engine.history)
        except failure:
            pass
        else:
            raise AssertionError("the compaction was to fail")
        nursery.cancel_scope.cancel()
    assert await window(runtime, thread) == engine.history
    assert await used_so_far(runtime, thread) == before + engine.billed


async def window(runtime: rt.Runtime, thread: str) -> Sequence[Any]:
    snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    return compaction.trim_to_last_boundary(transcript_of(snapshot))


class SummaryEngine(CountingEngine):
    """Samples once and wants another round; what was said until then is summarised before it."""

    id = "summary"
    capabilities = rt.InferenceCapabilities.text_only()

    def stream_turn(self, context: Any, request: Any) -> Any:
        if request.metadata.get("compaction_summary"):
            reports = [inference.Usage(rt.TokenUsage(3, 1, 4)), inference.Usage(rt.TokenUsage(10, 2, 12))]
            return self.play([*reports, inference.MessageDelta("goal: to be exact"), _COMPLETED])
        if len(self.readings) > 0:
            return self.play([inference.Usage(rt.TokenUsage(5, 1, 6)), inference.MessageDelta("done"), _COMPLETED])
        said = [inference.Usage(rt.TokenUsage(20, 4, 24)), inference.MessageDelta("evidence " * 2_000)]
        return self.play([*said, inference.ProviderMetadata({"end_turn": False}), _COMPLETED])


async def summarise(runtime: rt.Runtime, engine: SummaryEngine, thread: str) -> None:
    """A turn with a summary before its second round."""
    before = await used_so_far(runtime, thread)
    await with_goal(runtime, thread)
    turn = await runtime.start_turn(thread, "Inspect the evidence", model="any")
    await ended(runtime, engine, thread, turn, before, "completed")
    held = await window(runtime, thread)
    assert isinstance(held[0], rt.transcript.ContextCompaction)
    assert held[0].summary == "goal: to be exact"


# -- all of them -------------------------------------------------------------------------------------------------------

_STILL = rt.GoalConfig(auto_continue=False)
"""A goal starts no turns of its own, which would still run when a flow has ended."""
_COMPACTING = rt.RuntimeConfig(
    default_provider="mock", default_model="mock", auto_compact_token_limit=1_000, goals=_STILL
)
_TWO_ATTEMPTS = rt.RuntimeConfig(
    reliability=rt.ReliabilityConfig(provider_retry_max_attempts=2, provider_retry_initial_backoff=0.0)
)
_SUMMARISING = rt.RuntimeConfig(auto_compact_token_limit=1_000, goals=_STILL)
_PLAIN = rt.RuntimeConfig(goals=_STILL)

FLOWS = {
    "usage, interrupted": Flow(partial(CompactionEngine, interrupt=True), account, _COMPACTING),
    "usage, completed": Flow(partial(CompactionEngine, interrupt=False), account, _COMPACTING),
    **{
        f"transaction, {ending.value}": Flow(partial(TransactionEngine, ending), compact, _TWO_ATTEMPTS)
        for ending in Ending
    },
    "summary": Flow(SummaryEngine, summarise, _SUMMARISING),
    "calls": Flow(CallingEngine, call, _PLAIN),
    "steer": Flow(SteeredEngine, steer, _PLAIN),
}
