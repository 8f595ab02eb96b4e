"""What meets a continuation of a goal: each race in both orders, over a store that waits.

A gate holds one append: that which ends a turn, so that what is asked meanwhile comes before the continuation is
decided, or that which begins the continuation, so that it comes after.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, stores
from roder_trio.providers.scripted import NEVER_ENDS, ScriptedEngine
from roder_trio.schema.command import ContinueGoal
from roder_trio.testing import FaultyStore
from tests.goal_support import (
    Cause,
    Gate,
    Status,
    asked,
    automatic_turns,
    begins_automatic,
    causes,
    ended,
    ends_turn,
    going,
    meanwhile,
    notes,
    spoken,
    turns_of,
)
from tests.ledger_support import AGAIN, as_if_killed, cold, goal_of, patch, used_and_status
from tests.turn_support import DONE, Scene, failure, say, settings, used

STOPPED = "Stop working on it"
FULL = rt.StorageError("the disk is full")
LOST = rt.AppendOutcomeUnknown("the disk went away")


@asynccontextmanager
async def in_gap(*steps: Any, gate: Gate, **more: Any) -> AsyncIterator[Scene]:
    """A turn of a goal has begun, over a store that waits at `gate`."""
    async with going(*steps, store=gate.store, stream_idle_timeout=None, **more) as scene:
        await scene.start("hello")
        yield scene


async def stop(scene: Scene, how: str) -> None:
    if how == "clear":
        assert await scene.runtime.thread_goal_clear(scene.id) is True
    else:
        await patch(scene, status=how)


async def at_rest(scene: Scene) -> None:
    """Nothing runs, nothing waits, and nothing is left out."""
    await wait_all_tasks_blocked()
    assert scene.resident.is_idle
    store = scene.store.inner
    assert (await cold(await as_if_killed(store, scene.id), scene.id)).goal == await scene.runtime.thread_goal_get(
        scene.id
    )


# -- a goal that is stopped --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["paused", "blocked", "complete", "clear"])
async def test_a_stop_before_the_continuation_is_decided_leaves_no_turn(autojump_clock, how):
    gate = Gate(ends_turn)
    async with in_gap(spoken("a"), gate=gate) as scene:
        async with meanwhile(gate, lambda: stop(scene, how)):
            pass
        await at_rest(scene)
        assert (automatic_turns(scene), len(scene.engine.requests)) == ([], 1)


@pytest.mark.parametrize("how", ["paused", "blocked", "clear"])
async def test_a_stop_after_it_meets_a_turn_whose_next_request_says_so_and_that_no_other_follows(autojump_clock, how):
    gate, hold = Gate(begins_automatic), trio.Event()
    async with in_gap(spoken("a"), [hold, say("b"), AGAIN, DONE], spoken("c"), gate=gate) as scene:
        async with meanwhile(gate, lambda: stop(scene, how)):
            pass
        hold.set()
        await ended(scene, 2)
        await at_rest(scene)
        assert len(automatic_turns(scene)) == 1
        assert STOPPED in notes(scene)[2]
        assert len(scene.engine.requests) == 3


# -- a user's turn -----------------------------------------------------------------------------------------------------


async def test_a_users_turn_that_was_asked_for_in_the_gap_goes_first_and_the_goal_goes_on_afterwards(autojump_clock):
    gate = Gate(ends_turn)
    async with in_gap(spoken("a"), spoken("b"), [say("c"), NEVER_ENDS], gate=gate) as scene:
        async with meanwhile(gate, lambda: scene.start("me first")):
            pass
        await scene.wait_text("c")
        assert asked(scene)[:2] == ["hello", "me first"]
        assert turns_of(scene)[2:] == automatic_turns(scene)


async def test_a_users_turn_that_is_asked_for_too_late_meets_a_busy_thread(autojump_clock):
    gate = Gate(begins_automatic)
    async with in_gap(spoken("a"), [say("b"), NEVER_ENDS], gate=gate) as scene:
        async with meanwhile(gate, lambda: refused(scene)):
            pass
        await scene.wait_text("b")
        assert asked(scene)[-1] != "me first"


async def refused(scene: Scene) -> None:
    with pytest.raises(rt.ThreadBusy) as busy:
        await scene.start("me first")
    assert busy.value.automatic is True
    assert busy.value.turn_id == automatic_turns(scene)[-1]


async def test_a_host_that_asks_for_the_next_turn_in_the_gap_gets_it_and_no_second_one_follows(autojump_clock):
    gate, begun = Gate(ends_turn), []

    async def go_on() -> None:
        begun.append(await scene.runtime.continue_goal(scene.id))

    async with in_gap(spoken("a"), [say("b"), NEVER_ENDS], gate=gate) as scene:
        async with meanwhile(gate, go_on, go_on):
            pass
        await scene.wait_text("b")
        await wait_all_tasks_blocked()
        assert (set(begun), len(scene.engine.requests)) == ({*automatic_turns(scene), None}, 2)


async def test_a_host_that_asks_for_it_too_late_gets_none(autojump_clock):
    gate, begun = Gate(begins_automatic), []

    async def go_on() -> None:
        begun.append(await scene.runtime.continue_goal(scene.id))

    async with in_gap(spoken("a"), [say("b"), NEVER_ENDS], gate=gate) as scene:
        async with meanwhile(gate, go_on):
            pass
        assert begun == [None]


# -- a drain, an archive -----------------------------------------------------------------------------------------------


async def test_a_drain_in_the_gap_leaves_no_turn_and_the_goal_active(autojump_clock):
    gate = Gate(ends_turn)
    async with in_gap(spoken("a"), spoken("b"), gate=gate) as scene:
        async with meanwhile(gate, lambda: scene.runtime.drain_active_turns(60)):
            pass
        scene.runtime.resume_accepting_turns()
        await at_rest(scene)
        assert (automatic_turns(scene), (await goal_of(scene)).status) == ([], Status.ACTIVE)
        assert isinstance(scene.ends[0], events.TurnCompleted)
        await scene.wait(str(await scene.runtime.continue_goal(scene.id)))


async def test_a_drain_after_the_continuation_began_interrupts_it(autojump_clock):
    gate = Gate(begins_automatic)
    async with in_gap(spoken("a"), [say("b"), NEVER_ENDS], gate=gate) as scene:
        async with meanwhile(gate, lambda: scene.runtime.drain_active_turns(60)):
            pass
        assert [type(end) for end in await ended(scene, 2)] == [events.TurnCompleted, events.TurnInterrupted]
        await at_rest(scene)
        assert (scene.ends[1].reason, (await goal_of(scene)).status) == ("drain", Status.PAUSED)


async def test_an_archive_in_the_gap_keeps_the_goal_as_it_was(autojump_clock):
    gate = Gate(ends_turn)
    async with in_gap(spoken("a"), gate=gate) as scene:
        async with meanwhile(gate, lambda: scene.runtime.archive_thread(scene.id)):
            pass
        await wait_all_tasks_blocked()
        assert automatic_turns(scene) == []
        assert await scene.runtime.unarchive_thread(scene.id) is True
        assert await used_and_status(scene) == (1, "active")


async def test_leaving_the_runtime_in_the_gap_leaves_no_turn_and_the_goal_active(autojump_clock):
    gate = Gate(ends_turn)

    async def open_later() -> None:
        await trio.sleep(1)
        gate.opened.set()

    async with trio.open_nursery() as nursery, in_gap(spoken("a"), gate=gate) as scene:
        await gate.reached.wait()
        nursery.start_soon(open_later)
    again = await cold(scene.store.inner, scene.id)
    assert (again.goal.status, len(scene.engine.requests)) == (Status.ACTIVE, 1)


# -- a stop in the gap -------------------------------------------------------------------------------------------------


async def test_an_interrupt_of_the_turn_that_is_ending_pauses_the_goal(autojump_clock):
    gate = Gate(ends_turn)
    async with in_gap(spoken("a"), gate=gate) as scene:
        [turn_id] = turns_of(scene)
        async with meanwhile(gate, lambda: scene.interrupt(turn_id)):
            pass
        await at_rest(scene)
        assert isinstance(scene.ends[0], events.TurnCompleted)
        assert (automatic_turns(scene), causes(scene)) == ([], [Cause.HOST, Cause.HOST])
        assert (await goal_of(scene)).status is Status.PAUSED


async def test_an_earlier_continuation_that_is_late_hides_no_stop_from_the_one_that_waits(autojump_clock):
    gate = Gate(ends_turn)
    async with in_gap(spoken("a"), gate=gate) as scene:
        [turn_id] = turns_of(scene)

        async def late() -> None:
            scene.resident.mailbox.post(ContinueGoal(turn_id="late", after="an earlier one"))
            await trio.lowlevel.checkpoint()

        async with meanwhile(gate, late, lambda: scene.interrupt(turn_id)):
            pass
        await at_rest(scene)
        assert ((await goal_of(scene)).status, automatic_turns(scene)) == (Status.PAUSED, [])


@pytest.mark.parametrize("step", [[say("b"), NEVER_ENDS], "stuck"], ids=["it speaks", "its request opens"])
@pytest.mark.parametrize("named", ["before", "itself"])
async def test_an_interrupt_of_the_turn_before_stops_its_continuation_too(autojump_clock, step, named):
    gate = Gate(begins_automatic)
    engine = StuckAtTheDoor([spoken("a"), DONE if step == "stuck" else step], stuck=2 if step == "stuck" else 0)
    async with in_gap(engine=engine, gate=gate) as scene:
        await gate.reached.wait()
        gate.opened.set()
        await scene.wait_for(lambda scene: len(engine.requests) == 2)
        await wait_all_tasks_blocked()
        await scene.interrupt(turns_of(scene)[0 if named == "before" else 1])
        ends = await ended(scene, 2)
        await at_rest(scene)
        assert (type(ends[1]), ends[1].reason) == (events.TurnInterrupted, "user")
        assert ((await goal_of(scene)).status, len(engine.requests)) == (Status.PAUSED, 2)


async def test_an_interrupt_of_the_turn_before_while_the_continuation_is_stored_stops_it(autojump_clock):
    gate = Gate(begins_automatic)
    async with in_gap(spoken("a"), [say("b"), NEVER_ENDS], gate=gate) as scene:
        [first] = turns_of(scene)
        async with meanwhile(gate, lambda: scene.interrupt(first)):
            pass
        ends = await ended(scene, 2)
        await at_rest(scene)
        assert (type(ends[1]), (await goal_of(scene)).status) == (events.TurnInterrupted, Status.PAUSED)


async def test_an_interrupt_of_the_turn_before_while_the_continuation_ends_stops_what_would_follow(autojump_clock):
    gate = Gate(lambda records: ends_turn(records) and seconds.pop(0) is None)
    seconds: list[Any] = [False, None, False]
    async with in_gap(spoken("a"), spoken("b"), gate=gate) as scene:
        [first] = turns_of(scene)
        async with meanwhile(gate, lambda: scene.interrupt(first)):
            pass
        await at_rest(scene)
        assert len(automatic_turns(scene)) == 1
        assert {type(end) for end in scene.ends} == {events.TurnCompleted}
        assert (await goal_of(scene)).status is Status.PAUSED


async def test_an_interrupt_of_a_turn_long_gone_stops_nothing(autojump_clock):
    async with going(spoken("a"), spoken("b"), [say("c"), NEVER_ENDS]) as scene:
        await scene.run()
        await scene.wait_text("c")
        await scene.interrupt(turns_of(scene)[0])
        await wait_all_tasks_blocked()
        assert ((await goal_of(scene)).status, len(scene.ends)) == (Status.ACTIVE, 2)


async def test_an_interrupt_between_two_turns_of_a_goal_that_is_stopped_changes_nothing(autojump_clock):
    gate = Gate(ends_turn)
    async with in_gap(spoken("a"), gate=gate) as scene:
        [turn_id] = turns_of(scene)
        async with meanwhile(gate, lambda: stop(scene, "blocked"), lambda: scene.interrupt(turn_id)):
            pass
        await at_rest(scene)
        assert ((await goal_of(scene)).status, len(causes(scene))) == (Status.BLOCKED, 2)


async def test_a_caller_that_leaves_a_turn_which_has_ended_does_not_stop_the_goal(autojump_clock):
    async with going(spoken("a"), [say("b"), NEVER_ENDS]) as scene:
        with pytest.raises(ValueError, match="leave"):
            async with scene.runtime.turn(scene.id, "go") as turn:
                await scene.wait_for(lambda scene: len(scene.ends) == 1)
                raise ValueError(f"leave {turn.turn_id}")
        await scene.wait_text("b")
        assert (await goal_of(scene)).status is Status.ACTIVE


class StuckAtTheDoor(ScriptedEngine):
    """One of its streams, the first being 1, never opens."""

    def __init__(self, steps: Any, *, stuck: int) -> None:
        super().__init__(steps)
        self.stuck = stuck

    def stream_turn(self, context: Any, request: Any) -> Any:
        block = super().stream_turn(context, request)
        return self._never(block) if len(self.requests) == self.stuck else block

    @asynccontextmanager
    async def _never(self, block: Any) -> AsyncIterator[Any]:
        await trio.sleep_forever()
        yield block


# -- a store that fails, a thread that must stay -----------------------------------------------------------------------


async def test_a_continuation_that_can_not_be_stored_is_told_and_not_tried_again(autojump_clock):
    gate = Gate(begins_automatic, error=FULL)
    gate.opened.set()
    async with in_gap(spoken("a"), spoken("b"), failure("AUTHENTICATION"), gate=gate) as scene:
        await ended(scene, 1)
        await at_rest(scene)
        goal = await goal_of(scene)
        assert scene.of(events.GoalContinuationFailed) == [events.GoalContinuationFailed(goal.goal_id, str(FULL))]
        assert (goal.status, turns_of(scene), gate.passed) == (Status.ACTIVE, turns_of(scene)[:1], 1)
        assert all(e.kind != "goal.continuation_failed" for e in (await scene.snapshot()).events)
        await scene.runtime.continue_goal(scene.id)
        await ended(scene, 2)


async def test_a_continuation_that_a_host_asked_for_and_that_can_not_be_stored_is_told_to_the_host_too(autojump_clock):
    gate = Gate(begins_automatic, error=FULL)
    gate.opened.set()
    async with going(store=gate.store) as scene:
        with pytest.raises(rt.StorageError, match="the disk is full"):
            await scene.runtime.continue_goal(scene.id)
        assert len(scene.of(events.GoalContinuationFailed)) == 1
        await at_rest(scene)


@pytest.mark.parametrize("written", [True, False])
async def test_a_continuation_whose_append_has_an_unknown_outcome_leaves_what_the_log_says(autojump_clock, written):
    store = FaultyStore(stores.MemoryThreadStore())

    async def lose(number: int, thread_id: str, records: Any) -> None:
        if begins_automatic(records):
            raise LOST

    setattr(store, "after" if written else "before", lose)
    async with going(spoken("a"), store=store) as scene:
        await scene.run()
        await wait_all_tasks_blocked()
        goal = await goal_of(scene)
        assert goal.status is (Status.PAUSED if written else Status.ACTIVE)
        assert (len(scene.of(events.GoalContinuationFailed)), len(scene.engine.requests)) == (1, 1)
        await at_rest(scene)


async def test_a_thread_whose_continuation_waits_is_not_evicted(autojump_clock):
    gate = Gate(begins_automatic)
    async with in_gap(spoken("a"), [say("b"), NEVER_ENDS], gate=gate, max_resident_threads=1) as scene:
        await gate.reached.wait()
        resident = scene.resident
        assert resident.job is None
        for _ in range(3):
            other = await scene.runtime.create_thread()
            await scene.runtime.thread_goal_get(other.thread_id)
        gate.opened.set()
        await scene.wait_text("b")
        assert scene.resident is resident


async def test_a_turn_that_is_refused_by_itself_bothers_nobody(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    engine = ScriptedEngine([spoken("a")])
    config = settings(goals=rt.GoalConfig())
    async with rt.open_runtime(engines=[engine], config=config) as runtime:
        thread_id = (await runtime.create_thread(workspace=str(folder))).thread_id
        await runtime.thread_goal_set(thread_id, rt.goals.GoalPatch(objective="x"))
        folder.rmdir()
        with pytest.raises(rt.BadWorkspace):
            await runtime.continue_goal(thread_id)
        assert (await runtime.thread_goal_get(thread_id)).status is Status.ACTIVE
        assert engine.requests == []


@pytest.mark.parametrize("gone", [True, False])
async def test_a_goal_goes_on_only_where_the_folder_of_the_turn_before_is_still_there(tmp_path, gone):
    folder = tmp_path / "work"
    folder.mkdir()
    steps = [[lambda request: folder.rmdir() if gone else None, used(1), DONE], failure("USAGE_LIMIT")]
    engine = ScriptedEngine(steps)
    async with rt.open_runtime(engines=[engine], config=settings(goals=rt.GoalConfig())) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        await runtime.thread_goal_set(thread_id, rt.goals.GoalPatch(objective="x"))
        await runtime.run_turn(thread_id, "go", workspace=str(folder))
        resident = runtime._core.directory.get(thread_id)
        with trio.fail_after(60):
            while resident.mailbox.unanswered or resident.job is not None:  # noqa: ASYNC110 - a thread looks
                await trio.lowlevel.checkpoint()
        goal = await runtime.thread_goal_get(thread_id)
        status = Status.ACTIVE if gone else Status.USAGE_LIMITED
        assert (goal.status, len(engine.requests)) == (status, 1 if gone else 2)


@pytest.mark.parametrize("order", ["usage first", "end first"])
async def test_usage_that_comes_with_the_end_counts_before_the_continuation_is_decided(autojump_clock, order):
    steps = [[used(42), say("a"), DONE], [say("b"), used(1), DONE]]
    goal = rt.goals.GoalPatch(objective="x", token_budget=42 if order == "usage first" else 43)
    async with going(*steps, goal=goal) as scene:
        await scene.run()
        await wait_all_tasks_blocked()
        expected = (42, 1) if order == "usage first" else (43, 2)
        goal_now = await goal_of(scene)
        assert (goal_now.tokens_used, len(scene.engine.requests)) == expected
        assert goal_now.status is Status.BUDGET_LIMITED
