"""Goals that go on by themselves: which turn follows which, with what, and when none does."""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, goals, inference, stores, transcript
from roder_trio.providers.scripted import NEVER_ENDS, ScriptedEngine
from tests.answer_support import Count, text_step
from tests.goal_support import (
    BUSY,
    Cause,
    Status,
    asked,
    automatic_turns,
    causes,
    ended,
    going,
    spoken,
    turns_of,
)
from tests.ledger_support import AGAIN, as_if_killed, boundary, cold, goal_of, patch, used_and_status
from tests.tool_support import batch
from tests.turn_support import DONE, STILL, failure, one_thread, say, settings, used

COMPLETE = batch(("c1", "update_goal", '{"status": "complete"}'))
LOOK = batch(("c1", "get_goal"))


def budget(tokens: int, **more: Any) -> goals.GoalPatch:
    return goals.GoalPatch(objective="prove it", token_budget=tokens, **more)


# -- one turn after the other ------------------------------------------------------------------------------------------


async def test_a_goal_goes_on_turn_after_turn_until_the_model_completes_it(autojump_clock):
    async with going(spoken("a"), LOOK, spoken("b"), [used(5), *COMPLETE], spoken("c", 7)) as scene:
        first = await scene.run("hello")
        assert (first.status, first.text) == ("completed", "a")
        ends = await ended(scene, 3)
        await wait_all_tasks_blocked()
        assert {type(end) for end in ends} == {events.TurnCompleted}
        assert automatic_turns(scene) == turns_of(scene)[1:]
        assert len(scene.engine.requests) == 5
        assert await used_and_status(scene) == (1 + 1 + 5, "complete")
        assert causes(scene) == [Cause.HOST, Cause.MODEL]


async def test_each_automatic_turn_begins_with_its_prompt_in_the_same_append(autojump_clock):
    store = stores.MemoryThreadStore()
    async with going(spoken("a"), failure("AUTHENTICATION"), store=store) as scene:
        await scene.run("hello")
        await ended(scene, 2)
        [turn_id] = automatic_turns(scene)
        begun = [e for e in (await scene.snapshot()).events if e.turn_id == turn_id][:2]
        assert isinstance(begun[0].event, events.TurnStarted)
        message = begun[1].event.item
        assert isinstance(message, transcript.UserMessage)
        assert "prove it" in message.text
        assert message.text.endswith("Continue with the next step towards this goal.\n")
        assert begun[1].seq == begun[0].seq + 1
        assert asked(scene) == ["hello", message.text]


async def test_a_goal_that_may_not_go_on_by_itself_waits_for_a_turn_or_a_word_of_the_host(autojump_clock):
    async with going(spoken("a"), spoken("b"), goals_config=rt.GoalConfig(auto_continue=False)) as scene:
        await scene.run()
        await wait_all_tasks_blocked()
        assert len(scene.engine.requests) == 1
        turn_id = await scene.runtime.continue_goal(scene.id)
        assert (await scene.wait(turn_id)).text == "b"
        await wait_all_tasks_blocked()
        assert automatic_turns(scene) == [turn_id]


@pytest.mark.parametrize("status", ["paused", "blocked", "usage_limited", "complete", None])
async def test_only_an_active_goal_goes_on(autojump_clock, status):
    async with going(spoken("a")) as scene:
        if status is None:
            await scene.runtime.thread_goal_clear(scene.id)
        else:
            await patch(scene, status=status)
        await scene.run()
        await wait_all_tasks_blocked()
        assert len(scene.engine.requests) == 1
        assert await scene.runtime.continue_goal(scene.id) is None


@pytest.mark.parametrize("end", ["AUTHENTICATION", "USAGE_LIMIT", None])
async def test_only_a_turn_that_completed_is_followed_by_another(autojump_clock, end):
    step = [used(1), NEVER_ENDS] if end is None else failure(end)
    async with going(step) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        await ended(scene, 1)
        await wait_all_tasks_blocked()
        assert len(scene.engine.requests) == 1
        assert (await goal_of(scene)).status is not Status.ACTIVE


async def test_a_turn_that_used_the_budget_up_is_the_last_one(autojump_clock):
    async with going(spoken("a", 20), spoken("b", 22), goal=budget(42)) as scene:
        await scene.run()
        await ended(scene, 2)
        await wait_all_tasks_blocked()
        assert await used_and_status(scene) == (42, "budget_limited")
        assert len(scene.engine.requests) == 2
        assert scene.kinds[-2:] == ["goal.updated", "turn.completed"]


async def test_a_goal_of_42_tokens_is_raised_and_resumed_under_the_same_id_across_a_restart(autojump_clock):
    async with going(spoken("a", 24), spoken("b", 18), goal=budget(42)) as scene:
        await scene.run()
        await ended(scene, 2)
        first, store = await goal_of(scene), scene.store
        assert (first.tokens_used, first.status, first.remaining_tokens) == (42, Status.BUDGET_LIMITED, 0)
    engine = ScriptedEngine([spoken("c", 8), [used(4), *COMPLETE], spoken("d", 100)])
    async with rt.open_runtime(engines=[engine], store=store) as runtime:
        assert await runtime.thread_goal_get(scene.id) == first
        assert await runtime.continue_goal(scene.id) is None
        raised = await runtime.thread_goal_set(scene.id, goals.GoalPatch(token_budget=100))
        assert (raised.status, raised.goal_id) == (Status.BUDGET_LIMITED, first.goal_id)
        resumed = await runtime.thread_goal_set(scene.id, goals.GoalPatch(status="active"))
        assert (resumed.status, resumed.goal_id, resumed.remaining_tokens) == (Status.ACTIVE, first.goal_id, 58)
        assert engine.requests == []
        async with runtime.subscribe_events(thread_id=scene.id) as told:
            assert await runtime.continue_goal(scene.id) is not None
            await read_until(told, "turn.completed", 2)
        done = await runtime.thread_goal_get(scene.id)
    assert (done.goal_id, done.tokens_used, done.status) == (first.goal_id, 54, Status.COMPLETE)
    assert (await cold(store, scene.id)).goal == done


async def read_until(told: Any, kind: str, count: int) -> None:
    """Read events until so many of this kind came."""
    async for envelope in told:
        count -= envelope.kind == kind
        if count == 0:
            return


async def test_no_goal_goes_on_by_itself_after_a_restart(autojump_clock):
    async with going(spoken("a"), goals_config=STILL) as scene:
        await scene.run()
        store = await as_if_killed(scene.store, scene.id)
    engine = ScriptedEngine([spoken("b"), spoken("c")])
    async with rt.open_runtime(engines=[engine], store=store, config=rt.RuntimeConfig(goals=BUSY)) as runtime:
        goal = await runtime.thread_goal_get(scene.id)
        await wait_all_tasks_blocked()
        assert (goal.status, engine.requests) == (Status.ACTIVE, [])
        async with runtime.subscribe_events(thread_id=scene.id) as told:
            await runtime.run_turn(scene.id, "go on")
            async for envelope in told:
                if isinstance(envelope.event, events.TurnStarted) and envelope.event.automatic:
                    break


# -- a host's word -----------------------------------------------------------------------------------------------------


async def test_a_host_begins_a_turn_of_the_goal_on_an_idle_thread(autojump_clock):
    async with going([say("x"), NEVER_ENDS]) as scene:
        turn_id = await scene.runtime.continue_goal(scene.id)
        await wait_all_tasks_blocked()
        assert automatic_turns(scene) == [turn_id]
        assert await scene.runtime.continue_goal(scene.id) is None
        with pytest.raises(rt.ThreadBusy) as busy:
            await scene.run("me first")
        assert (busy.value.turn_id, busy.value.automatic) == (turn_id, True)


async def test_a_host_begins_none_where_anything_speaks_against_it(autojump_clock):
    async with going(spoken("a", 50), goal=budget(42)) as scene:
        await scene.run()
        assert await scene.runtime.continue_goal(scene.id) is None
        await patch(scene, token_budget=100, status="active")
        await scene.runtime.drain_active_turns(5)
        assert await scene.runtime.continue_goal(scene.id) is None
        await scene.runtime.thread_goal_clear(scene.id)
        scene.runtime.resume_accepting_turns()
        assert await scene.runtime.continue_goal(scene.id) is None
        assert automatic_turns(scene) == []


async def test_on_a_thread_that_is_not_there_no_goal_goes_on(autojump_clock):
    async with going() as scene:
        await scene.runtime.archive_thread(scene.id)
        for thread_id in (scene.id, "nobody"):
            with pytest.raises(rt.ThreadNotFound):
                await scene.runtime.continue_goal(thread_id)


async def test_a_continuation_waits_for_a_compaction_that_a_host_asked_for(autojump_clock):
    hold = trio.Event()
    compact, still = [[hold, used(3), boundary(), DONE]], rt.GoalConfig(auto_continue=False)
    steps = spoken("a"), spoken("b", 2)
    async with going(*steps, compact=compact, goals_config=still, stream_idle_timeout=None) as scene:
        await scene.run()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.runtime.compact_thread, scene.id)
            await wait_all_tasks_blocked()
            nursery.start_soon(scene.runtime.continue_goal, scene.id)
            await wait_all_tasks_blocked()
            assert automatic_turns(scene) == []
            hold.set()
        await ended(scene, 2)
        assert await used_and_status(scene) == (3, "active")


async def test_steering_an_automatic_turn_works_like_steering_any_other(autojump_clock):
    async with going(spoken("a"), [say("x"), NEVER_ENDS], failure("AUTHENTICATION")) as scene:
        await scene.run()
        await scene.wait_text("x")
        [turn_id] = automatic_turns(scene)
        await scene.steer(turn_id, "look left")
        await ended(scene, 2)
        assert asked(scene)[-1] == "look left"


# -- with what it runs -------------------------------------------------------------------------------------------------


async def test_an_automatic_turn_has_the_options_of_the_turn_before_and_not_its_text_or_form(autojump_clock):
    other = ScriptedEngine([text_step(), [say("x"), NEVER_ENDS]], id="other")
    image = "data:image/png;base64,AAAA"
    chosen = {
        "provider": "other",
        "model": "big",
        "reasoning": "high",
        "instructions": "be brief",
        "developer_context": "the sky is blue",
        "service_tier": "flex",
        "output": rt.OutputOptions(max_tokens=99, temperature=0.5),
    }
    async with going(engines=[other]) as scene:
        outcome = await scene.run("count", images=[image], output_type=Count, **chosen)
        assert outcome.status == "completed", outcome
        await scene.wait_text("x")
        first, second = other.requests
        assert first.output.response_format is not None or first.tool_choice.mode != "auto"
        assert (second.model, second.reasoning) == (first.model, first.reasoning)
        assert second.model == inference.ModelChoice("other", "big")
        assert second.instructions.system == "be brief"
        assert second.instructions.developer_context == first.instructions.developer_context == "the sky is blue"
        assert second.runtime.service_tier == "flex"
        assert (second.output.max_tokens, second.output.temperature) == (99, 0.5)
        assert (second.output.response_format, second.tool_choice.mode) == (None, "auto")
        [message] = [item for item in second.transcript[2:] if isinstance(item, transcript.UserMessage)]
        assert message.images == ()
        assert "count" not in message.text


async def test_an_automatic_turn_works_in_the_folder_of_the_turn_before(tmp_path):
    found: list[str | None] = []

    class Where(rt.Tool):
        spec = rt.ToolSpec(name="where", description="x", parameters={"type": "object"}, effects={"read"})

        async def run(self, context: rt.ToolContext, arguments: Any) -> rt.ToolOutput:
            await trio.lowlevel.checkpoint()
            found.append(context.workspace)
            return rt.ToolOutput("here")

    calls = batch(("c1", "where"))
    engine = ScriptedEngine([calls, spoken("a"), calls, [*COMPLETE], spoken("b")])
    async with rt.open_runtime(engines=[engine], tools=[Where()]) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        await runtime.thread_goal_set(thread_id, goals.GoalPatch(objective="x"))
        async with runtime.subscribe_events(thread_id=thread_id, kinds=("turn.completed",)) as told:
            await runtime.run_turn(thread_id, "go", workspace=str(tmp_path))
            for _ in range(2):
                await anext(told)
    assert [str(folder) for folder in found] == [str(tmp_path)] * 2


async def test_a_goal_survives_the_eviction_of_its_thread_and_goes_on_with_defaults(autojump_clock):
    steps = [spoken("a"), spoken("b"), failure("AUTHENTICATION")]
    async with going(*steps, max_resident_threads=1, goals_config=rt.GoalConfig(auto_continue=False)) as scene:
        await scene.run(model="big", instructions="be brief")
        goal = await goal_of(scene)
        other = (await scene.runtime.create_thread()).thread_id
        await scene.runtime.thread_goal_get(other)
        assert scene.resident is None
        assert await goal_of(scene) == goal
        turn_id = await scene.runtime.continue_goal(scene.id)
        await scene.wait(turn_id)
        assert [request.model.model for request in scene.engine.requests] == ["big", "scripted"]
        assert scene.engine.requests[1].instructions.system != "be brief"


# -- turns that do nothing ---------------------------------------------------------------------------------------------


async def test_three_automatic_turns_that_do_nothing_block_the_goal(autojump_clock):
    async with going(*[spoken(text) for text in "abcd"]) as scene:
        await scene.run()
        await ended(scene, 4)
        await wait_all_tasks_blocked()
        assert (len(automatic_turns(scene)), await used_and_status(scene)) == (3, (4, "blocked"))
        assert causes(scene) == [Cause.HOST, Cause.EMPTY_TURNS]
        assert scene.kinds[-2:] == ["goal.updated", "turn.completed"]
        assert (await cold(scene.store, scene.id)).goal.status is Status.BLOCKED


async def test_turns_of_the_user_are_never_empty(autojump_clock):
    async with going(*[spoken(text) for text in "abcde"], goals_config=rt.GoalConfig(auto_continue=False)) as scene:
        for _ in range(2):
            await scene.wait(await scene.runtime.continue_goal(scene.id))
        await scene.run()
        await scene.wait(await scene.runtime.continue_goal(scene.id))
        assert (await goal_of(scene)).status is Status.ACTIVE
        await scene.wait(await scene.runtime.continue_goal(scene.id))
        assert (await goal_of(scene)).status is Status.ACTIVE


@pytest.mark.parametrize("act", ["call", "steer"])
async def test_a_turn_that_did_something_begins_the_count_anew(autojump_clock, act):
    third = LOOK if act == "call" else [say("x"), NEVER_ENDS]
    steps = [*map(spoken, "abc"), third, *map(spoken, "defg")]
    async with going(*steps) as scene:
        await scene.run()
        await scene.wait_for(lambda scene: len(automatic_turns(scene)) == 3)
        if act == "steer":
            await scene.wait_text("x")
            await scene.steer(automatic_turns(scene)[-1])
        await ended(scene, 7)
        await wait_all_tasks_blocked()
        assert causes(scene) == [Cause.HOST, Cause.EMPTY_TURNS]
        assert len(automatic_turns(scene)) == 6


REFUSED = {
    "unknown": batch(("c1", "nothing")),
    "bad arguments": batch(("c1", "update_goal", "{}")),
    "denied": COMPLETE,
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
async def test_a_call_that_was_refused_is_nothing_done(autojump_clock, refused):
    steps = [step for text in "bcde" for step in (refused, spoken(text))]
    async with going(spoken("a"), *steps, policy_mode="plan") as scene:
        await scene.run()
        await ended(scene, 4)
        await wait_all_tasks_blocked()
        assert (len(automatic_turns(scene)), causes(scene)) == (3, [Cause.HOST, Cause.EMPTY_TURNS])
        assert (await cold(scene.store, scene.id)).goal == await goal_of(scene)


@pytest.mark.parametrize("clears", [True, False])
async def test_a_word_of_the_host_begins_the_count_anew(autojump_clock, clears):
    async with going(*[spoken(text) for text in "abcdef"], goals_config=rt.GoalConfig(auto_continue=False)) as scene:
        for _ in range(2):
            await scene.wait(await scene.runtime.continue_goal(scene.id))
        if clears:
            await scene.runtime.thread_goal_clear(scene.id)
        await patch(scene, objective="again")
        for status in ("active", "active", "blocked"):
            await scene.wait(await scene.runtime.continue_goal(scene.id))
            assert (await goal_of(scene)).status.value == status


async def test_the_count_of_empty_turns_is_read_from_the_log(autojump_clock):
    async with going(spoken("a"), spoken("b"), goals_config=rt.GoalConfig(auto_continue=False)) as scene:
        for _ in range(2):
            await scene.wait(await scene.runtime.continue_goal(scene.id))
        store = scene.store
    engine = ScriptedEngine([spoken("c")])
    async with rt.open_runtime(engines=[engine], store=store) as runtime:
        await runtime.wait_turn(scene.id, str(await runtime.continue_goal(scene.id)))
        assert (await runtime.thread_goal_get(scene.id)).status is Status.BLOCKED


async def test_a_turn_that_exhausts_the_budget_and_does_nothing_is_limited_not_blocked(autojump_clock):
    steps = [spoken("a"), spoken("b"), spoken("c"), spoken("d", 50)]
    async with going(*steps, goal=budget(42)) as scene:
        await scene.run()
        await ended(scene, 4)
        await wait_all_tasks_blocked()
        assert causes(scene) == [Cause.HOST, Cause.BUDGET]


# -- what is told ------------------------------------------------------------------------------------------------------


async def test_subscribers_see_each_change_once_it_is_stored_and_counters_by_the_records(autojump_clock):
    async with going([used(9), *COMPLETE], spoken("b")) as scene:
        await scene.run()
        for envelope in list(scene.seen):
            if isinstance(envelope.event, events.GoalUpdated):
                assert envelope in (await scene.snapshot()).events
        recorded = [event for event in scene.of(events.UsageRecorded) if event.goal_id is not None]
        assert [event.usage.total_tokens for event in recorded] == [9]
        assert [event.goal.status for event in scene.of(events.GoalUpdated)] == [Status.ACTIVE, Status.COMPLETE]


async def test_the_user_who_starts_on_the_terminal_event_reads_the_goal_as_final(autojump_clock):
    async with one_thread([used(5), AGAIN, DONE], [used(6), DONE], config=settings(goals=STILL)) as scene:
        await patch(scene, objective="x", token_budget=11)
        turn_id = await scene.start()
        await scene.wait_for(lambda scene: bool(scene.ends))
        goal = await goal_of(scene)
        assert (goal.tokens_used, goal.status) == (11, Status.BUDGET_LIMITED)
        assert attrs.evolve(scene.ends[0].usage) == rt.TokenUsage(11, 0, 11)
        await scene.wait(turn_id)


def test_the_settings_of_goals_are_flags() -> None:
    with pytest.raises((TypeError, ValueError)):
        rt.GoalConfig(auto_continue=1)
    assert (BUSY.auto_continue, BUSY.model_tools) == (True, True)
