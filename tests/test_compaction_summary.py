"""Summaries by the thread's own model: who asks for one, what each ending of a draft comes to, who may preempt it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import compaction, events, inference, stores, transcript
from roder_trio.logic import summary
from roder_trio.providers.scripted import NEVER_ENDS, ScriptedEngine
from roder_trio.schema.inference import ModelDescriptor
from roder_trio.schema.usage import Purpose
from roder_trio.testing import FaultyStore
from tests.ledger_support import (
    AGAIN,
    GO,
    InstantStore,
    boundary,
    cold,
    compact_calls,
    compactions,
    ends_of,
    goal_of,
    limit,
    meta,
    persist,
    sealed,
    skips,
    stored_boundary,
    with_goal,
)
from tests.turn_support import DONE, Scene, failure, history_of, say, settings, used

U40 = used(30, 10)
MARKER = inference.ProviderMetadata({"kind": "reliability_retry_attempt"})
SHORT = "goal: prove it"
DRAFT = [U40, say(SHORT), DONE]
TASK = transcript.UserMessage("t" * 100)
RESULT = transcript.ToolResult("c", "look", "r" * 7_994)
LONG: tuple[Any, ...] = (TASK, transcript.ToolCall("c", "look", "{}"), RESULT, transcript.AssistantMessage("a" * 300))
"""2 100 tokens, which are four short lines."""
OVERFLOW = failure("CONTEXT_WINDOW_EXCEEDED")


def model(context_window: int | None) -> ModelDescriptor:
    return ModelDescriptor(
        provider="scripted", id="scripted", context_window=context_window, auto_compact_token_limit=0
    )


def drafts(scene: Scene) -> list[Any]:
    """The requests for summaries, in order."""
    calls = [call for call in scene.engine.calls if call.context.purpose is Purpose.SUMMARY]
    return [call.request for call in calls]


def sampled(scene: Scene) -> list[Any]:
    calls = [call for call in scene.engine.calls if call.context.purpose is Purpose.SAMPLING]
    return [call.request for call in calls]


def summaries(history: list[Any]) -> list[transcript.ContextCompaction]:
    return [entry for entry in history if isinstance(entry, transcript.ContextCompaction)]


def quick(tokens: int | None = 1_000, **values: Any) -> rt.RuntimeConfig:
    """Two attempts at each request, at once."""
    values = {"provider_retry_max_attempts": 2, "provider_retry_initial_backoff": 0.0, **values}
    return settings(auto_compact_token_limit=tokens, **values)


# -- what comes of a draft ---------------------------------------------------------------------------------------------


async def test_a_manual_compaction_writes_a_summary_where_the_engine_has_no_compaction(autojump_clock):
    first, answer = transcript.UserMessage("u" * 400), transcript.AssistantMessage("a" * 2_000)
    asked, last = transcript.UserMessage("w" * 40), transcript.AssistantMessage("b" * 800)
    call = transcript.ToolCall("c", "look", "{}")
    history = (first, answer, asked, call, transcript.ToolResult("c", "look", "r" * 1_594), last)
    async with with_goal([U40, say("s" * 800), DONE], [DONE], config=limit(1_000)) as scene:
        await persist(scene, history)
        result = await scene.runtime.compact_thread(scene.id, " the proof ")
        assert result == compaction.CompactionResult(True, None, "llm", 1_210, 410, rt.TokenUsage(30, 10, 40))
        made = transcript.ContextCompaction("s" * 800, "llm", 1, asked)
        assert await scene.history() == [*history, made]
        (request,) = drafts(scene)
        (question,) = request.transcript
        assert "Keep above all: the proof" in question.text
        lines = summary.render([first, answer, *history[3:5]])
        assert question.text.endswith("\n" + "\n".join(lines))
        (started, recorded) = compactions(scene)
        assert (started.trigger, started.item_count, started.estimated_tokens) == ("manual", 6, 1_210)
        assert (recorded.strategy, recorded.item_count, recorded.estimated_tokens) == ("llm", 2, 410)
        assert (await goal_of(scene)).tokens_used == 0
        assert (await scene.run()).status == "completed"
        assert list(sampled(scene)[0].transcript) == [made, asked, last, GO]
        assert compact_calls(scene) == 1
    again = await cold(scene.store, scene.id)
    assert again.usage == again.fold == rt.TokenUsage(30, 10, 40)


async def test_the_request_for_a_summary_is_of_the_threads_model_and_of_nothing_else(autojump_clock):
    config = attrs.evolve(quick(), instructions="be brief")
    async with with_goal(DRAFT, [DONE], config=config) as scene:
        await scene.runtime.update_thread(scene.id, developer_instructions="stay polite")
        await persist(scene, LONG)
        turn_id = await scene.start()
        await scene.wait(turn_id)
        (request,), (sampling,) = drafts(scene), sampled(scene)
        assert request.model == sampling.model
        assert request.instructions == inference.Instructions(summary.INSTRUCTIONS)
        assert (request.tools, request.tool_choice.mode) == ((), "none")
        assert request.metadata == {"compaction_summary": True}
        assert request.runtime.prompt_cache_key == scene.id
        call = next(call for call in scene.engine.calls if call.request is request)
        assert (call.context.thread_id, call.context.turn_id) == (scene.id, turn_id)
        record = scene.of(events.UsageRecorded)[0]
        assert (record.purpose, record.attempt_id) == (Purpose.SUMMARY, call.context.attempt_id)
        assert (await goal_of(scene)).tokens_used == 40


@attrs.frozen
class Bad:
    """Drafts that come to nothing: how they end, whether a text without a model may stand in, what was billed."""

    drafts: tuple[Any, ...]
    kind: str
    replaced: bool = True
    billed: int = 40


CALLS = {
    "call begun": inference.ToolCallStarted("x", "look"),
    "call delta": inference.ToolCallDelta("x", "{"),
    "call": inference.ToolCallCompleted("x", "look", "{}"),
    "hosted call": inference.HostedToolCallStarted("x", "search"),
    "hosted call ended": inference.HostedToolCallCompleted("x", "search", "{}"),
}
BAD = {
    **{
        kind: Bad(([say("so"), U40, failure(kind.upper())],), kind, replaced=False)
        for kind in ("authentication", "usage_limit", "quota_exceeded")
    },
    **{name: Bad(([say("so"), U40, event],), "protocol") for name, event in CALLS.items()},
    "bad request": Bad((failure("INVALID_REQUEST"),), "invalid_request", billed=0),
    "refused at once": Bad((failure("RATE_LIMITED"),) * 2, "rate_limited", billed=0),
    "cut": Bad(([say("so"), U40, failure()],) * 2, "stream_interrupted", billed=80),
    "no end": Bad(([say("so"), U40],) * 2, "stream_interrupted", billed=80),
    "idle": Bad(([say("so"), U40, NEVER_ENDS],) * 2, "timeout", billed=80),
    "retried inside, then cut": Bad(([U40, MARKER, say("so"), failure()],), "stream_interrupted"),
    "failed": Bad(([say("so"), U40, inference.Failed("no")],), "protocol"),
    "empty": Bad(([U40, DONE],), "protocol"),
    "blank": Bad(([say(" \n"), U40, DONE],), "protocol"),
    "only reasoning": Bad(([inference.ReasoningDelta("why"), U40, DONE],), "protocol"),
    "only commentary": Bad(([say("let me see", "commentary"), U40, DONE],), "protocol"),
    "retried inside and empty": Bad(([say("so"), MARKER, U40, DONE],), "protocol"),
    "too long": Bad(([say("s" * 8_400), U40, DONE],), "cannot_shrink"),
    "a bug": Bad(([U40, ValueError("a bug")],), "engine_error", replaced=False),
    "too large to the last line": Bad((OVERFLOW,) * 7, "context_window_exceeded", billed=0),
}
ways = pytest.mark.parametrize("bad", BAD.values(), ids=BAD)


async def nothing_was_written(scene: Scene, bad: Bad, history: tuple[Any, ...]) -> None:
    (failed,) = scene.of(events.ContextCompactionFailed)
    assert (failed.error_kind, list(ends_of(scene).values())) == (bad.kind, [["Failed"]])
    assert (await scene.history())[: len(history)] == list(history)
    assert not any(map(compaction.is_boundary, await scene.history()))
    assert len(drafts(scene)) == len(bad.drafts)
    assert getattr(await meta(scene), "total_tokens", 0) == bad.billed


@ways
async def test_a_manual_compaction_raises_what_its_draft_failed_with(autojump_clock, bad):
    async with with_goal(*bad.drafts, config=quick()) as scene:
        await persist(scene, LONG)
        if bad.kind == "cannot_shrink":
            result = await scene.runtime.compact_thread(scene.id)
            assert result == compaction.CompactionResult(False, bad.kind, None, 2_100, 2_100, rt.TokenUsage(30, 10, 40))
        else:
            with pytest.raises((rt.ProviderFailure, ValueError)) as caught:
                await scene.runtime.compact_thread(scene.id)
            kind = caught.value.kind.value if isinstance(caught.value, rt.ProviderFailure) else "engine_error"
            assert kind == bad.kind
        await nothing_was_written(scene, attrs.evolve(bad, drafts=bad.drafts[:3]), LONG)


@ways
@pytest.mark.parametrize("context_window", [None, 128_000])
async def test_a_turn_goes_on_uncompacted_while_its_window_fits_the_model(autojump_clock, bad, context_window):
    script = {"config": quick(), "models": [model(context_window)]}
    async with with_goal(*bad.drafts, [say("on"), AGAIN, DONE], [DONE], **script) as scene:
        await persist(scene, LONG)
        assert (await scene.run()).status == "completed"
        await nothing_was_written(scene, bad, (*LONG, GO))
        assert [list(request.transcript)[:5] for request in sampled(scene)] == [[*LONG, GO]] * 2
        assert (skips(scene), (await goal_of(scene)).tokens_used) == (["failed_before"], bad.billed)


@ways
async def test_a_text_without_a_model_stands_in_where_the_window_is_full(autojump_clock, bad):
    config, models = quick(), [model(2_000)]
    async with with_goal(*bad.drafts, [DONE], config=config, models=models) as scene:
        await persist(scene, LONG)
        outcome = await scene.run()
        assert (outcome.status, getattr(outcome.usage, "total_tokens", 0)) == ("completed", bad.billed)
        if not bad.replaced:
            await nothing_was_written(scene, bad, (*LONG, GO))
            return
        made = transcript.ContextCompaction(summary.deterministic(LONG), "deterministic", 1)
        assert await scene.history() == [*LONG, GO, made]
        assert list(sampled(scene)[0].transcript) == [made, GO]
        (started, recorded) = compactions(scene)
        assert (started.estimated_tokens, recorded.strategy, recorded.item_count) == (2_101, "deterministic", 2)
        assert recorded.estimated_tokens < 200


@ways
async def test_after_a_request_that_was_too_large_a_text_without_a_model_will_do(autojump_clock, bad):
    async with with_goal(OVERFLOW, *bad.drafts, [DONE], config=quick(None)) as scene:
        await persist(scene, LONG)
        outcome = await scene.run()
        assert getattr(outcome.usage, "total_tokens", 0) == bad.billed
        if bad.replaced:
            assert outcome.status == "completed"
            (made,) = summaries(await scene.history())
            assert (made.strategy, list(sampled(scene)[1].transcript)) == ("deterministic", [made, GO])
        else:
            assert (outcome.status, outcome.error_kind) == ("failed", "context_window_exceeded")
            assert outcome.error == str(OVERFLOW)
            await nothing_was_written(scene, bad, (*LONG, GO))


GOOD = {
    "at once": (DRAFT,),
    "after a cut one": ([say("lost"), U40, failure()], DRAFT),
    "after one refused": (failure("SERVER_OVERLOADED"), DRAFT),
    "retried inside": ([say("lost"), MARKER, say(SHORT), U40, DONE],),
    "in pieces": ([say(" goal:"), inference.ReasoningDelta("why"), say(" prove it\n"), U40, DONE],),
    "with commentary": ([say("let me see", "commentary"), say(SHORT, "final_answer"), U40, DONE],),
    "with chatter": ([inference.ProviderMetadata({"z": 1}), inference.Compaction("started"), *DRAFT],),
    "not read further": ([*DRAFT, inference.Failed("late")],),
}


@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD)
@pytest.mark.parametrize("way", ["manual", "auto"])
async def test_a_draft_that_is_shorter_is_committed(autojump_clock, good, way):
    async with with_goal(*good, [DONE], config=quick()) as scene:
        await persist(scene, LONG)
        if way == "manual":
            assert (await scene.runtime.compact_thread(scene.id)).strategy == "llm"
        else:
            assert (await scene.run()).status == "completed"
        (made,) = summaries(await scene.history())
        assert (made.summary, made.strategy) == (SHORT, "llm")
        assert (made.retained_count, made.active_request) == (1, TASK if way == "manual" else None)
        assert len(drafts(scene)) == len(good)
        assert len(scene.of(events.RetryScheduled)) == len(good) - 1
        assert scene.of(events.UsageRecorded)[-1].purpose is Purpose.SUMMARY


async def test_each_draft_waits_for_its_own_back_off(autojump_clock):
    steps = [failure("RATE_LIMITED"), [U40, failure()], DRAFT, [DONE]]
    async with with_goal(*steps, config=limit(1_000)) as scene:
        await persist(scene, LONG)
        began = trio.current_time()
        await scene.run()
        first, second = (retry.delay for retry in scene.of(events.RetryScheduled))
        assert (1.0 <= first <= 1.25, 2.0 <= second <= 2.5) == (True, True)
        assert trio.current_time() - began == pytest.approx(first + second)


@pytest.mark.parametrize("head", [(), (transcript.ErrorNote("x" * 9_000),), (stored_boundary(),)])
async def test_a_message_alone_leaves_nothing_to_summarise(autojump_clock, head):
    message = transcript.UserMessage("u" * 6_000)
    async with with_goal([AGAIN, DONE], [DONE], config=quick()) as scene:
        await persist(scene, head)
        await scene.run(message.text)
        (failed,) = scene.of(events.ContextCompactionFailed)
        assert (failed.error_kind, drafts(scene), skips(scene)) == ("nothing_to_compact", [], ["failed_before"])
        result = await scene.runtime.compact_thread(scene.id)
        assert (result.compacted, result.reason, result.usage) == (False, "nothing_to_compact", None)


async def test_a_summary_that_would_not_make_the_window_smaller_is_not_written(autojump_clock):
    history = (transcript.AssistantMessage("a" * 40), transcript.UserMessage("u" * 6_000))
    async with with_goal([U40, say("s" * 40), DONE], config=quick()) as scene:
        await persist(scene, history)
        result = await scene.runtime.compact_thread(scene.id)
        assert (result.compacted, result.reason) == (False, "cannot_shrink")
    tied = (transcript.AssistantMessage("a" * 5), transcript.UserMessage("u" * 3))
    async with with_goal([say("s" * 4), DONE], config=quick()) as scene:
        await persist(scene, tied)
        assert (await scene.runtime.compact_thread(scene.id)).reason == "cannot_shrink"


@pytest.mark.parametrize(("context_window", "strategy"), [(128_000, None), (1_000, "deterministic")])
async def test_a_draft_that_is_rejected_is_billed_with_the_turn(autojump_clock, context_window, strategy):
    steps = [[used(20), say("x" * 8_000), AGAIN, DONE], [used(50), say("y" * 9_000), DONE], [used(10), DONE]]
    async with with_goal(*steps, config=quick(), models=[model(context_window)]) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.usage.total_tokens) == ("completed", 80)
        assert ((await meta(scene)).total_tokens, (await goal_of(scene)).tokens_used) == (80, 80)
        assert [made.strategy for made in summaries(await scene.history())] == [strategy] * (strategy is not None)
        assert list(ends_of(scene).values()) == [["Recorded" if strategy else "Failed"]]


# -- chunks ------------------------------------------------------------------------------------------------------------

TOLD = tuple(transcript.AssistantMessage(f"{number} " + "a" * 1_900) for number in range(6))


def asked_lines(scene: Scene) -> list[list[str]]:
    """The numbers of the messages that each draft was asked about."""
    questions = [request.transcript[0].text for request in drafts(scene)]
    return [[line[11] for line in text.splitlines() if line.startswith("assistant: ")] for text in questions]


async def test_a_long_head_is_summarised_in_chunks_each_with_the_summary_so_far(autojump_clock):
    steps = [[used(number), say(f"state {number}"), DONE] for number in (1, 2, 3)]
    async with with_goal(*steps, [DONE], config=quick(), models=[model(2_000)]) as scene:
        await persist(scene, TOLD)
        assert (await scene.run()).usage.total_tokens == 6
        assert asked_lines(scene) == [["0", "1"], ["2", "3"], ["4", "5"]]
        texts = [request.transcript[0].text for request in drafts(scene)]
        assert ["state 1" in text for text in texts] == [False, True, False]
        assert ["state 2" in text for text in texts] == [False, False, True]
        (made,) = summaries(await scene.history())
        assert made.summary == "state 3"


async def test_a_chunk_that_is_too_large_is_halved_and_a_line_that_is_too_large_is_left_out(autojump_clock):
    steps = [
        failure("REQUEST_TOO_LARGE"),
        [used(1), OVERFLOW],
        [used(2), say("state 1"), DONE],
        [used(4), say("state 3"), DONE],
        [used(8), say("state 5"), DONE],
    ]
    async with with_goal(*steps, [DONE], config=quick(), models=[model(2_000)]) as scene:
        await persist(scene, TOLD)
        assert (await scene.run()).usage.total_tokens == 15
        assert asked_lines(scene) == [["0", "1"], ["0"], ["1"], ["2", "3"], ["4", "5"]]
        assert summaries(await scene.history())[0].summary == "state 5"
        assert scene.of(events.RetryScheduled) == []


async def test_each_chunk_has_its_own_attempts(autojump_clock):
    steps = [failure(), [say("state 1"), DONE], failure(), [say("state 2"), DONE], failure(), [say("state 3"), DONE]]
    async with with_goal(*steps, [DONE], config=quick(), models=[model(2_000)]) as scene:
        await persist(scene, TOLD)
        await scene.run()
        assert len(scene.of(events.RetryScheduled)) == 3
        assert summaries(await scene.history())[0].summary == "state 3"


# -- the provider's own compaction first -------------------------------------------------------------------------------

UNSUPPORTED = failure("INVALID_REQUEST", cause="compaction_unsupported")
DECLINED = {
    "none": None,
    "unsupported": UNSUPPORTED,
    "late": [U40, UNSUPPORTED],
    "window": [U40, boundary(), OVERFLOW],
    "request": failure("REQUEST_TOO_LARGE"),
}


@pytest.mark.parametrize("native", DECLINED.values(), ids=DECLINED)
@pytest.mark.parametrize("way", ["manual", "auto", "overflow"])
async def test_a_summary_follows_a_native_compaction_that_can_not_be(autojump_clock, native, way):
    first = [OVERFLOW] if way == "overflow" else []
    config = quick(None if way == "overflow" else 1_000)
    async with with_goal(*first, DRAFT, [DONE], compact=[native], config=config) as scene:
        await persist(scene, LONG)
        await (scene.runtime.compact_thread(scene.id) if way == "manual" else scene.run())
        (made,) = summaries(await scene.history())
        assert (made.summary, compact_calls(scene), len(drafts(scene))) == (SHORT, 1, 1)
        assert list(ends_of(scene).values()) == [["Recorded"]]
        billed = 80 if isinstance(native, list) else 40
        assert (await meta(scene)).total_tokens == billed


@pytest.mark.parametrize("kind", ["AUTHENTICATION", "INVALID_REQUEST", "QUOTA_EXCEEDED", "PROTOCOL", "CONTENT_FILTER"])
@pytest.mark.parametrize("way", ["manual", "auto"])
async def test_no_summary_follows_any_other_failure(autojump_clock, kind, way):
    async with with_goal([DONE], compact=[failure(kind)], config=quick()) as scene:
        await persist(scene, LONG)
        if way == "auto":
            await scene.run()
        else:
            with pytest.raises(rt.ProviderFailure):
                await scene.runtime.compact_thread(scene.id)
        assert (drafts(scene), list(ends_of(scene).values())) == ([], [["Failed"]])


@pytest.mark.parametrize("native", [*DECLINED.values()], ids=DECLINED)
@pytest.mark.parametrize("way", ["manual", "auto", "direct"])
async def test_an_engine_that_requires_its_own_compaction_never_writes_a_summary(autojump_clock, native, way):
    script = {"compact": [native], "requires_native_compaction": True, "config": quick()}
    async with with_goal(**script) as scene:
        await persist(scene, LONG)
        if way == "auto":
            assert (await scene.run()).status == "failed"
        else:
            history = await scene.history()
            with pytest.raises(rt.ProviderFailure):
                await (
                    scene.runtime.compact_thread(scene.id)
                    if way == "manual"
                    else scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", history)
                )
        assert (scene.engine.requests, compact_calls(scene)) == ([], 1)


@pytest.mark.parametrize("native", [OVERFLOW, failure("REQUEST_TOO_LARGE")])
async def test_a_compaction_in_the_callers_task_never_falls_back(autojump_clock, native):
    async with with_goal(compact=[native], config=quick()) as scene:
        await persist(scene, LONG)
        with pytest.raises(rt.ProviderFailure):
            await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", await scene.history())
        assert drafts(scene) == []


# -- what it leaves ----------------------------------------------------------------------------------------------------


async def test_a_summary_of_a_summary_carries_the_active_request_on(autojump_clock):
    steps = [say("state 1"), DONE], [say("state 2"), DONE]
    async with with_goal(*steps, config=quick()) as scene:
        await persist(scene, LONG)
        await scene.runtime.compact_thread(scene.id)
        await persist(scene, (transcript.AssistantMessage("b" * 3_000),))
        await scene.runtime.compact_thread(scene.id)
        first, second = summaries(await scene.history())
        assert (first.active_request, second.active_request, second.summary) == (TASK, TASK, "state 2")
        assert "summary of what came before: state 1" in drafts(scene)[1].transcript[0].text


@pytest.mark.parametrize("holds", [True, False])
async def test_behind_an_opaque_boundary_the_active_message_goes_into_the_summary(autojump_clock, holds):
    item = {"type": "compaction", "id": "a", "encrypted_content": "x"}
    kept = [{"type": "message", "content": TASK.text}] if holds else []
    opaque = transcript.ProviderMetadata({"output": [item], "compacted_input": [item, *kept]})
    async with with_goal(DRAFT, config=quick()) as scene:
        await persist(scene, (TASK, opaque, transcript.AssistantMessage("b" * 3_000)))
        await scene.runtime.compact_thread(scene.id)
        (made,) = summaries(await scene.history())
        assert made.active_request == TASK


async def test_the_next_turn_begins_from_the_summary_and_does_not_compact_again(autojump_clock):
    store = stores.MemoryThreadStore()
    async with with_goal(DRAFT, [DONE], [DONE], config=quick(), store=store) as scene:
        await persist(scene, LONG)
        await scene.run()
        await scene.run("next")
        (made,) = summaries(await scene.history())
        window = list(sampled(scene)[1].transcript)
        assert window == [made, GO, transcript.UserMessage("next")]
    engine = ScriptedEngine([[DONE]])
    async with rt.open_runtime(engines=[engine], store=store, config=quick()) as runtime:
        await runtime.run_turn(scene.id, "cold")
        assert list(engine.requests[0].transcript) == [*window, transcript.UserMessage("cold")]


async def test_a_summary_that_left_too_much_ends_it_for_the_turn(autojump_clock):
    steps = [say("s" * 6_000), DONE], [say("x" * 800), AGAIN, DONE], [DONE]
    async with with_goal(*steps, config=quick()) as scene:
        await persist(scene, LONG)
        await scene.run()
        assert (list(ends_of(scene).values()), skips(scene)) == ([["Recorded"]], ["failed_before"])


async def test_hooks_hear_of_a_summary_as_of_any_compaction(autojump_clock):
    heard: list[Any] = []

    class Hears(rt.Hook):
        id = "hears"

        async def compaction_starting(self, event: Any) -> None:
            heard.append(event)
            await trio.lowlevel.checkpoint()

        async def compaction_finished(self, event: Any) -> None:
            heard.append(event)
            await trio.lowlevel.checkpoint()

    engine, store = ScriptedEngine([DRAFT, [U40, DONE], [DONE]]), stores.MemoryThreadStore()
    config = quick()
    async with rt.open_runtime(engines=[engine], store=store, config=config, hooks=[Hears()]) as runtime:
        thread = await runtime.create_thread()
        for entry in LONG:
            await runtime.persist_turn_item(thread.thread_id, "bare", entry)
        assert (await runtime.compact_thread(thread.thread_id)).compacted
        await runtime.persist_turn_item(thread.thread_id, "bare", RESULT)
        await runtime.run_turn(thread.thread_id, "go")
        snapshot = await runtime.load_thread(thread.thread_id)
    told = [e.event for e in snapshot.events if e.kind.startswith("compaction.")]
    assert [type(event).__name__[17:] for event in heard] == ["Started", "Recorded", "Started", "Failed"]
    assert heard == told


# -- who may preempt it ------------------------------------------------------------------------------------------------


class StuckAtTheDoor(ScriptedEngine):
    """Its first stream never opens."""

    def stream_turn(self, context: Any, request: Any) -> Any:
        block = super().stream_turn(context, request)
        return _Stuck() if len(self.calls) <= 2 else block


class _Stuck:
    async def __aenter__(self) -> Any:
        await trio.sleep_forever()

    async def __aexit__(self, *error: object) -> None:
        await trio.lowlevel.checkpoint()


PHASES = {
    "opening": (StuckAtTheDoor, [DONE], 0),
    "reading": (ScriptedEngine, [U40, say("so"), NEVER_ENDS], 40),
    "back-off": (ScriptedEngine, [U40, failure()], 40),
}
phases = pytest.mark.parametrize(("kind", "first", "billed"), PHASES.values(), ids=PHASES)


@phases
async def test_a_steer_preempts_a_summary_at_once(autojump_clock, kind, first, billed):
    engine = kind([first, DRAFT, [DONE]])
    async with with_goal(engine=engine, config=limit(1_000, max_model_calls_per_turn=1)) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await scene.steer(turn_id, "first")
        outcome = await scene.wait(turn_id)
        assert trio.current_time() == began
        assert (outcome.status, outcome.usage.total_tokens) == ("completed", 40 + billed)
        assert list(ends_of(scene).values()) == [["Cancelled"], ["Recorded"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["new_input"]
        (request,) = sampled(scene)
        (made,) = summaries(await scene.history())
        assert list(request.transcript) == [made, transcript.UserMessage("first")]
        assert engine.active == 0


@phases
@pytest.mark.parametrize("how", ["interrupt", "deadline", "manual"])
async def test_whatever_else_ends_a_summary_leaves_the_log_as_it_was(autojump_clock, kind, first, billed, how):
    engine = kind([first, DRAFT])
    config = limit(1_000, turn_deadline=0.5 if how == "deadline" else None)
    async with with_goal(engine=engine, config=config) as scene:
        await persist(scene, LONG)
        if how == "manual":
            with trio.move_on_after(0.5) as scope:
                await scene.runtime.compact_thread(scene.id)
            assert scope.cancelled_caught
            await wait_all_tasks_blocked()
            assert await scene.history() == list(LONG)
        else:
            turn_id = await scene.start()
            await wait_all_tasks_blocked()
            if how == "interrupt":
                await scene.interrupt(turn_id)
            outcome = await scene.wait(turn_id)
            ended = ("interrupted", None) if how == "interrupt" else ("failed", "deadline_timeout")
            assert (outcome.status, outcome.error_kind) == ended
            assert (await scene.history())[:5] == [*LONG, GO]
        assert not any(map(compaction.is_boundary, await scene.history()))
        assert len(ends_of(scene)) == 1
        assert getattr(await meta(scene), "total_tokens", 0) == billed
        assert engine.active == 0


async def test_a_steer_between_two_chunks_opens_no_further_one(autojump_clock):
    hold = trio.Event()
    steps = [[say("state 1"), hold, DONE], DRAFT, DRAFT, DRAFT, [DONE]]
    async with with_goal(*steps, config=limit(1_000), models=[model(2_000)]) as scene:
        await persist(scene, TOLD)
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.steer(turn_id, "first")
        outcome = await scene.wait(turn_id)
        assert (outcome.status, asked_lines(scene)[:2]) == ("completed", [["0", "1"], ["0", "1"]])


async def test_steady_steering_can_not_starve_a_summary(autojump_clock):
    hold = trio.Event()
    steps = [*[[U40, NEVER_ENDS]] * 3, [U40, say(SHORT), hold, DONE], [DONE]]
    async with with_goal(*steps, config=limit(1_000)) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        for number in range(1, 5):
            await wait_all_tasks_blocked()
            await scene.steer(turn_id, str(number))
        await wait_all_tasks_blocked()
        assert list(ends_of(scene).values()) == [["Cancelled"]] * 3 + [[]]
        hold.set()
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.usage.total_tokens) == ("completed", 160)
        assert list(ends_of(scene).values()) == [["Cancelled"]] * 3 + [["Recorded"]]
        (request,) = sampled(scene)
        assert [entry.text for entry in request.transcript[1:]] == ["3", "4"]


class SlowToLeave(ScriptedEngine):
    """Its streams take a while to close."""

    def stream_turn(self, context: Any, request: Any) -> Any:
        return self._slowly(super().stream_turn(context, request))

    @asynccontextmanager
    async def _slowly(self, block: Any) -> AsyncIterator[Any]:
        async with block as stream:
            yield stream
            await trio.sleep(1)


async def test_a_steer_that_comes_while_a_failed_draft_is_closed_counts_before_the_failure(autojump_clock):
    engine = SlowToLeave([[U40, inference.Failed("no")], DRAFT, [DONE]])
    async with with_goal(engine=engine, config=limit(1_000)) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await trio.sleep(0.5)
        await scene.steer(turn_id, "first")
        assert (await scene.wait(turn_id)).usage.total_tokens == 80
        assert list(ends_of(scene).values()) == [["Cancelled"], ["Recorded"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["new_input"]


async def test_a_steer_that_comes_while_a_whole_draft_is_closed_follows_the_summary(autojump_clock):
    async with with_goal(engine=SlowToLeave([DRAFT, [DONE]]), config=limit(1_000)) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await trio.sleep(0.5)
        await scene.steer(turn_id, "first")
        assert (await scene.wait(turn_id)).status == "completed"
        assert list(ends_of(scene).values()) == [["Recorded"]]
        (made,) = summaries(await scene.history())
        assert list(sampled(scene)[0].transcript) == [made, GO, transcript.UserMessage("first")]


async def test_a_summary_of_a_window_that_grew_meanwhile_is_dropped(autojump_clock):
    hold = trio.Event()
    steps = [[U40, say(SHORT), hold, DONE], DRAFT, [DONE]]
    async with with_goal(*steps, config=quick()) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await persist(scene, (transcript.AssistantMessage("from the host"),))
        hold.set()
        assert (await scene.wait(turn_id)).usage.total_tokens == 80
        assert list(ends_of(scene).values()) == [["Cancelled"], ["Recorded"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["stale_window"]


@pytest.mark.parametrize("how", ["steer", "interrupt"])
async def test_what_comes_while_a_summary_is_committed_takes_effect_after_it(autojump_clock, how):
    hold = trio.Event()

    async def before(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "compaction.recorded" for record in records):
            await hold.wait()

    store = FaultyStore(InstantStore(), before=before)
    async with with_goal(DRAFT, [DONE], store=store, config=quick()) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.steer if how == "steer" else scene.interrupt, turn_id)
            await wait_all_tasks_blocked()
            hold.set()
        outcome = await scene.wait(turn_id)
        assert list(ends_of(scene).values()) == [["Recorded"]]
        assert outcome.status == ("completed" if how == "steer" else "interrupted")
        assert len(sampled(scene)) == (how == "steer")


async def test_a_commit_that_can_not_be_stored_fails_the_turn_and_writes_no_boundary(autojump_clock):
    async def before(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "compaction.recorded" for record in records):
            raise rt.StorageError("full")

    store = FaultyStore(stores.MemoryThreadStore(), before=before)
    async with with_goal(DRAFT, store=store, config=quick()) as scene:
        await persist(scene, LONG)
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind, outcome.usage.total_tokens) == ("failed", "storage", 40)
        assert summaries(await scene.history()) == []
        assert list(ends_of(scene).values()) == [["Failed"]]


# -- pruning in a turn -------------------------------------------------------------------------------------------------


def results(*sizes: int) -> tuple[Any, ...]:
    pairs = [
        (transcript.ToolCall(f"c{n}", "read_file", "{}"), transcript.ToolResult(f"c{n}", "read_file", "r" * size))
        for n, size in enumerate(sizes)
    ]
    return tuple(entry for pair in pairs for entry in pair)


def shown(request: Any) -> list[int]:
    return [len(entry.result) for entry in request.transcript if isinstance(entry, transcript.ToolResult)]


async def test_old_results_are_pruned_where_that_suffices(autojump_clock):
    store = stores.MemoryThreadStore()
    history = (TASK, *results(*(120_000,) * 4))
    async with with_goal([AGAIN, DONE], [DONE], store=store, config=quick(115_200)) as scene:
        await persist(scene, history)
        assert (await scene.run()).status == "completed"
        assert [shown(request) for request in sampled(scene)] == [[54, 54, 120_000, 120_000]] * 2
        (pruned,) = scene.of(events.ContextPruned)
        assert pruned.items == (("bare", 2), ("bare", 4))
        assert pruned.tokens_before - pruned.tokens_after >= 20_000
        assert (compactions(scene), (await scene.history())[:9]) == ([], list(history))
    engine = ScriptedEngine([[DONE]])
    async with rt.open_runtime(engines=[engine], store=store, config=quick(115_200)) as runtime:
        await runtime.run_turn(scene.id, "cold")
        assert shown(engine.requests[0]) == [54, 54, 120_000, 120_000]


async def test_a_real_count_is_forgotten_once_results_were_pruned(autojump_clock):
    steps = [used(200_000), say("x"), AGAIN, DONE], [say("y"), AGAIN, DONE], [DONE]
    async with with_goal(*steps, config=quick(160_000)) as scene:
        await persist(scene, (TASK, *results(*(120_000,) * 4)))
        await scene.run()
        assert len(scene.of(events.ContextPruned)) == 1
        assert (compactions(scene), len(sampled(scene))) == ([], 3)


@pytest.mark.parametrize("why", ["too little", "required", "manual"])
async def test_nothing_is_pruned_where_that_would_not_do(autojump_clock, why):
    required = why == "required"
    script = {"compact": [[boundary(), DONE]], "requires_native_compaction": required}
    async with with_goal([DONE], config=quick(115_200 if required else 40_000), **script) as scene:
        history = (TASK, *results(120_000, *(120_000 if required else 60_000,) * 3))
        await persist(scene, history)
        await (scene.runtime.compact_thread(scene.id) if why == "manual" else scene.run())
        assert (scene.of(events.ContextPruned), list(ends_of(scene).values())) == ([], [["Recorded"]])
        (request,) = scene.engine.compact_requests
        assert shown(request) == [len(entry.result) for entry in history if isinstance(entry, transcript.ToolResult)]


async def test_a_window_just_behind_its_boundary_is_neither_pruned_nor_compacted(autojump_clock):
    async with with_goal([DONE], config=quick(8_000)) as scene:
        await persist(scene, (TASK, sealed(7_300), *results(2_800)))
        await scene.run()
        assert (skips(scene), scene.of(events.ContextPruned)) == (["hysteresis"], [])


async def test_a_pruned_window_is_summarised_as_it_is_shown(autojump_clock):
    async with with_goal([DONE], DRAFT, [DONE], config=quick(115_200)) as scene:
        await persist(scene, (TASK, *results(*(120_000,) * 4)))
        await scene.run()
        await scene.runtime.compact_thread(scene.id)
        assert (
            "result of read_file: [tool output pruned: read_file, 120000 bytes" in drafts(scene)[0].transcript[0].text
        )
    assert len(history_of((await cold(scene.store, scene.id)).snapshot)[2].result) == 120_000
