"""Summaries by the thread's own model: who asks for one, what each ending of a draft comes to, who may preempt it."""

from typing import Any

import attrs
import pytest
import trio

import roder_trio as rt
from roder_trio import compaction, events, inference, stores, transcript
from roder_trio.logic import summary
from roder_trio.providers.scripted import NEVER_ENDS, ScriptedEngine
from roder_trio.schema.usage import Purpose
from tests.ledger_support import (
    AGAIN,
    GO,
    cold,
    compact_calls,
    compactions,
    ends_of,
    goal_of,
    limit,
    meta,
    persist,
    skips,
    stored_boundary,
    with_goal,
)
from tests.summary_support import (
    DRAFT,
    LONG,
    MARKER,
    OVERFLOW,
    RESULT,
    SHORT,
    TASK,
    TOLD,
    U40,
    asked_lines,
    drafts,
    model,
    quick,
    sampled,
    summaries,
)
from tests.turn_support import DONE, Scene, failure, say, used

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


NO_OBJECT = inference.ProviderMetadata(["z"])  # type: ignore[arg-type]
GOOD = {
    "at once": (DRAFT,),
    "after a cut one": ([say("lost"), U40, failure()], DRAFT),
    "after one refused": (failure("SERVER_OVERLOADED"), DRAFT),
    "retried inside": ([say("lost"), MARKER, say(SHORT), U40, DONE],),
    "in pieces": ([say(" goal:"), inference.ReasoningDelta("why"), say(" prove it\n"), U40, DONE],),
    "with commentary": ([say("let me see", "commentary"), say(SHORT, "final_answer"), U40, DONE],),
    "with chatter": ([inference.ProviderMetadata({"z": 1}), NO_OBJECT, inference.Compaction("started"), *DRAFT],),
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
