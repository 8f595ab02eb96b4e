"""What a turn does about a request that was too large for its model: smaller, twice at most, or not at all."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, inference, stores, transcript
from roder_trio.actors._auto import KEEP_AT_OVERFLOW
from roder_trio.providers.scripted import NEVER_ENDS
from roder_trio.testing import FaultyStore
from tests.ledger_support import (
    AGAIN,
    GO,
    InstantStore,
    boundary,
    cold,
    compact_calls,
    ends_of,
    goal_of,
    persist,
    skips,
    with_goal,
)
from tests.summary_support import LONG, U40, drafts, model, quick, results, sampled, shown, summaries
from tests.turn_support import DONE, Scene, failure, folded_usage, say, used

WINDOW, REQUEST = failure("CONTEXT_WINDOW_EXCEEDED"), failure("REQUEST_TOO_LARGE")
NATIVE = [U40, boundary(), DONE]
overflows = pytest.mark.parametrize("overflow", [WINDOW, REQUEST], ids=["window", "request"])


def recoveries(scene: Scene) -> list[int]:
    found = scene.of(events.ContextLimitRecovered)
    assert all(event.tokens_after < event.tokens_before for event in found)
    return [event.attempt for event in found]


def shrinking(id: str, size: int) -> list[Any]:
    item = {"type": "compaction", "id": id, "encrypted_content": "x" * size}
    return [U40, inference.ProviderMetadata({"output": [item], "compacted_input": [item]}), DONE]


@overflows
async def test_one_overflow_is_recovered_by_one_compaction(autojump_clock, overflow):
    steps = [used(9), overflow], [used(1), say("done"), DONE]
    async with with_goal(*steps, compact=[NATIVE], config=quick(None)) as scene:
        await persist(scene, LONG)
        outcome = await scene.run()
        assert (outcome.status, outcome.text, outcome.usage.total_tokens) == ("completed", "done", 50)
        assert (len(sampled(scene)), compact_calls(scene), recoveries(scene)) == (2, 1, [1])
        (request,) = scene.engine.compact_requests
        assert request.instructions.developer.endswith(KEEP_AT_OVERFLOW)
        (started,) = scene.of(events.ContextCompactionStarted)
        assert (started.trigger, list(ends_of(scene).values())) == ("overflow", [["Recorded"]])
        assert not any(isinstance(entry, transcript.ErrorNote) for entry in await scene.history())
        assert (await goal_of(scene)).tokens_used == 50


@overflows
async def test_an_overflow_that_no_compaction_helps_fails_the_turn_with_it(autojump_clock, overflow):
    async with with_goal([used(9), overflow], compact=[shrinking("a", 9_000)], config=quick(None)) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind, outcome.error) == ("failed", overflow.kind.value, str(overflow))
        assert (len(sampled(scene)), compact_calls(scene), recoveries(scene)) == (1, 1, [])


@overflows
async def test_the_third_overflow_fails_the_turn(autojump_clock, overflow):
    steps = [[overflow]] * 2, [[say("so far"), overflow]]
    compact = [shrinking("a", 4_000), shrinking("b", 400)]
    async with with_goal(*steps[0], *steps[1], compact=compact, config=quick(None)) as scene:
        await persist(scene, LONG)
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind, outcome.error) == ("failed", overflow.kind.value, str(overflow))
        assert (len(sampled(scene)), compact_calls(scene), recoveries(scene)) == (3, 2, [1, 2])
        history = await scene.history()
        cut, note = history[-2:]
        assert cut == transcript.AssistantMessage("so far", interrupted=True), "no retry says it again"
        assert isinstance(note, transcript.ErrorNote)


async def test_what_the_cut_step_said_is_discarded_and_said_again(autojump_clock):
    steps = [inference.ReasoningDelta("why"), say("half"), WINDOW], [say("whole"), DONE]
    async with with_goal(*steps, compact=[NATIVE], config=quick(None)) as scene:
        await persist(scene, LONG)
        assert (await scene.run()).text == "whole"
        said = [entry.text for entry in await scene.history() if isinstance(entry, transcript.AssistantMessage)]
        assert said[1:] == ["whole"]
        assert "half" not in scene.shown()


@pytest.mark.parametrize(
    "native", [failure("AUTHENTICATION"), [U40, inference.Failed("no")], [U40, ValueError("a bug")], [U40, DONE]]
)
@pytest.mark.parametrize("required", [True, False])
async def test_a_compaction_that_fails_leaves_the_overflow_as_the_error(autojump_clock, native, required):
    script = {"compact": [native], "requires_native_compaction": required, "config": quick(None)}
    async with with_goal([used(9), WINDOW], **script) as scene:
        await persist(scene, LONG)
        outcome = await scene.run()
        assert (outcome.error_kind, outcome.error) == ("context_window_exceeded", str(WINDOW))
        assert (list(ends_of(scene).values()), drafts(scene)) == ([["Failed"]], [])
        assert (await goal_of(scene)).status.value == "blocked"


async def test_only_the_typed_kind_counts(autojump_clock):
    error = rt.ProviderFailure(rt.ProviderFailureKind.INVALID_REQUEST, "maximum context length exceeded")
    async with with_goal([error], compact=[NATIVE], config=quick(None)) as scene:
        assert (await scene.run()).error_kind == "invalid_request"
        assert compact_calls(scene) == 0


async def test_recoveries_are_counted_over_the_whole_turn_and_are_model_calls(autojump_clock):
    steps = [WINDOW], [AGAIN, DONE], [WINDOW], [AGAIN, DONE], [WINDOW]
    compact = [shrinking("a", 4_000), shrinking("b", 400)]
    async with with_goal(*steps, compact=compact, config=quick(None)) as scene:
        await persist(scene, LONG)
        assert (await scene.run()).error_kind == "context_window_exceeded"
        assert (len(sampled(scene)), recoveries(scene)) == (5, [1, 2])
    async with with_goal([WINDOW], compact=[NATIVE], config=quick(None, max_model_calls_per_turn=1)) as scene:
        await persist(scene, LONG)
        assert (await scene.run()).error_kind == "reliability_limit"


async def test_a_retry_series_begins_anew_behind_a_recovery(autojump_clock):
    steps = [failure()], [WINDOW], [failure()], [DONE]
    async with with_goal(*steps, compact=[NATIVE], config=quick(None)) as scene:
        await persist(scene, LONG)
        assert (await scene.run()).status == "completed"
        assert [retry.attempt for retry in scene.of(events.RetryScheduled)] == [1, 1]


async def test_the_threshold_does_not_matter_and_neither_does_an_earlier_failure(autojump_clock):
    compact = [failure("AUTHENTICATION"), NATIVE]
    async with with_goal([WINDOW], [AGAIN, DONE], [DONE], compact=compact, config=quick(1_000)) as scene:
        await persist(scene, LONG)
        assert (await scene.run()).status == "completed"
        assert [event.trigger for event in scene.of(events.ContextCompactionStarted)] == ["auto", "overflow"]
        assert (list(ends_of(scene).values()), recoveries(scene)) == ([["Failed"], ["Recorded"]], [1])


async def test_an_overflow_is_handled_once_and_nothing_of_it_forces_another(autojump_clock):
    async with with_goal([WINDOW], [AGAIN, DONE], [DONE], [DONE], compact=[NATIVE], config=quick(None)) as scene:
        await persist(scene, LONG)
        await scene.run()
        await scene.run()
        assert (compact_calls(scene), recoveries(scene)) == (1, [1])


# -- the second one prunes ---------------------------------------------------------------------------------------------


SO = transcript.AssistantMessage("so")


@pytest.mark.parametrize(("later", "pruned"), [((), [52, 5_000]), ((SO,), [52, 52])], ids=["results last", "text last"])
@pytest.mark.parametrize("required", [True, False])
async def test_the_second_recovery_prunes_all_but_the_newest_step_unless_the_engine_compacts_itself(
    autojump_clock, required, later, pruned
):
    compact = [[U40, boundary(), NEVER_ENDS], shrinking("b", 400)]
    script = {"compact": compact, "requires_native_compaction": required, "config": quick(None)}
    async with with_goal([WINDOW], [WINDOW], [DONE], **script) as scene:
        await persist(scene, (*results(5_000, 5_000), *later))
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.steer(turn_id, "first")
        assert (await scene.wait(turn_id)).status == "completed"
        assert recoveries(scene) == [2], "the preempted one counts as used"
        assert len(scene.of(events.ContextPruned)) == (not required)
        first, second = scene.engine.compact_requests
        assert shown(first) == [5_000, 5_000]
        assert shown(second) == ([5_000, 5_000] if required else pruned)
        assert [entry.text for entry in second.transcript if isinstance(entry, transcript.UserMessage)] == [
            "go",
            "first",
        ]
    again = await cold(scene.store, scene.id)
    assert again.fold == folded_usage(again.snapshot)


async def test_a_window_that_pruning_alone_made_smaller_will_do(autojump_clock):
    steps = [WINDOW], [U40, NEVER_ENDS], [WINDOW], [U40, say("s" * 9_000), DONE], [DONE]
    async with with_goal(*steps, config=quick(None)) as scene:
        await persist(scene, (*results(5_000, 5_000), SO))
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.steer(turn_id, "first")
        assert (await scene.wait(turn_id)).status == "completed"
        assert [event.error_kind for event in scene.of(events.ContextCompactionFailed)] == ["cannot_shrink"]
        assert (recoveries(scene), shown(sampled(scene)[-1])) == ([2], [52, 52])


# -- what comes meanwhile ----------------------------------------------------------------------------------------------

STALLS = {"native": [U40, boundary(), NEVER_ENDS], "summary": [U40, say("so"), NEVER_ENDS]}


@pytest.mark.parametrize("how", STALLS)
async def test_a_steer_preempts_a_recovery_which_counts_as_used(autojump_clock, how):
    native = how == "native"
    stalls = [] if native else [STALLS[how]]
    script = {"compact": [STALLS[how], shrinking("b", 40)] if native else ()}
    steps = [WINDOW], *stalls, [WINDOW], *([] if native else [[U40, say("short"), DONE]]), [WINDOW]
    async with with_goal(*steps, config=quick(None), **script) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.steer(turn_id, "first")
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.error_kind) == ("failed", "context_window_exceeded")
        assert (recoveries(scene), outcome.usage.total_tokens) == ([2], 80)
        assert list(ends_of(scene).values()) == [["Cancelled"], ["Recorded"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["new_input"]
        second = sampled(scene)[1]
        assert list(second.transcript) == [*LONG, GO, transcript.UserMessage("first")]


@pytest.mark.parametrize("how", STALLS)
async def test_an_interrupt_ends_a_recovery_and_the_turn(autojump_clock, how):
    native = how == "native"
    stalls = [] if native else [STALLS[how]]
    async with with_goal([WINDOW], *stalls, compact=[STALLS[how]] if native else (), config=quick(None)) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.usage.total_tokens) == ("interrupted", 40)
        assert (await scene.history(), list(ends_of(scene).values())) == ([*LONG, GO], [["Cancelled"]])


async def test_a_steer_that_waits_as_a_recovery_is_to_compact_keeps_it_from_beginning(autojump_clock):
    hold, held = trio.Event(), trio.Event()

    async def before(number: int, thread_id: str, records: Any) -> None:
        if records[0].kind == "context.pruned":
            held.set()
            await hold.wait()

    store = FaultyStore(InstantStore(), before=before)
    compact = [[U40, boundary(), NEVER_ENDS]]
    async with with_goal([WINDOW], [WINDOW], [DONE], compact=compact, store=store, config=quick(None)) as scene:
        await persist(scene, (*results(5_000, 5_000), SO))
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.steer(turn_id, "first")
        await held.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.steer, turn_id, "second")
            await wait_all_tasks_blocked()
            hold.set()
        assert (await scene.wait(turn_id)).status == "completed"
        assert (skips(scene), recoveries(scene), list(ends_of(scene).values())) == (["new_input"], [], [["Cancelled"]])
        assert sampled(scene)[-1].transcript[-1] == transcript.UserMessage("second")


async def test_a_window_that_grew_meanwhile_begins_the_round_again(autojump_clock):
    hold = trio.Event()
    compact = [[U40, boundary(), hold, DONE], shrinking("b", 40)]
    async with with_goal([WINDOW], [WINDOW], [DONE], compact=compact, config=quick(None)) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await persist(scene, (transcript.AssistantMessage("from the host"),))
        hold.set()
        assert (await scene.wait(turn_id)).status == "completed"
        assert (list(ends_of(scene).values()), recoveries(scene)) == ([["Cancelled"], ["Recorded"]], [2])


async def test_nothing_is_compacted_or_used_for_it_while_a_call_is_open(autojump_clock):
    async with with_goal([used(9), WINDOW], compact=[NATIVE], config=quick(None)) as scene:
        await persist(scene, LONG[:2])
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind, outcome.error) == ("failed", WINDOW.kind.value, str(WINDOW))
        assert (compact_calls(scene), outcome.usage.total_tokens, recoveries(scene)) == (0, 9, [])


async def test_a_commit_that_can_not_be_stored_fails_the_turn_with_storage(autojump_clock):
    async def before(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "compaction.recorded" for record in records):
            raise rt.StorageError("full")

    store = FaultyStore(stores.MemoryThreadStore(), before=before)
    async with with_goal([WINDOW], compact=[NATIVE], store=store, config=quick(None)) as scene:
        assert (await scene.run()).error_kind == "storage"


async def test_a_model_whose_window_is_known_is_asked_for_no_more_than_half_of_it(autojump_clock):
    steps = [WINDOW], [U40, say("short"), DONE], [DONE]
    async with with_goal(*steps, config=quick(None), models=[model(4_000)]) as scene:
        await persist(scene, LONG)
        assert (await scene.run()).status == "completed"
        (made,) = summaries(await scene.history())
        assert (made.summary, len(drafts(scene))) == ("short", 1)
        assert f"Keep above all: {KEEP_AT_OVERFLOW}" in drafts(scene)[0].transcript[0].text
