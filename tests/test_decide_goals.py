"""Decisions on goals: commands, budgets, time, and what the end of a turn makes of them."""

from typing import Any

import pytest

from roder_trio.logic.thread.draft import Emit
from roder_trio.logic.thread.facts import Decision
from roder_trio.schema import command as c
from roder_trio.schema.event import (
    GoalCleared,
    GoalTimeRecorded,
    GoalUpdated,
    TranscriptItemAppended,
    TurnCompleted,
    TurnInterrupted,
)
from roder_trio.schema.goal import GoalCause, GoalPatch, GoalStatus
from tests.thread_support import (
    ANSWER,
    USER,
    Desk,
    live,
)

# -- goals -------------------------------------------------------------------------------------------------------------


def with_goal(**patch: Any) -> Desk:
    desk = Desk()
    desk.do(c.SetGoal("g", GoalPatch("x", **patch)))
    return desk


def test_a_goal_reads_with_what_its_attempts_used_and_its_turns_took():
    desk = with_goal(token_budget=20)
    assert (desk.goal.tokens_used, desk.goal.time_used, desk.goal.status) == (0, 0.0, GoalStatus.ACTIVE)
    desk.start()
    desk.use(9)
    desk.time += 4
    assert (desk.goal.tokens_used, desk.goal.time_used) == (9, 4.0)
    desk.use(25, report=2)
    assert desk.do(c.GetGoal()) == desk.goal
    assert (desk.goal.tokens_used, desk.goal.status) == (25, GoalStatus.BUDGET_LIMITED)
    assert Desk().do(c.GetGoal()) is None


def test_without_a_goal_there_is_nothing_to_change_or_clear():
    desk = Desk()
    assert desk.decide(c.SetGoal("g", GoalPatch(status="paused"))) == Decision()
    assert desk.decide(c.ClearGoal()) == Decision(reply=False)


def test_each_accepted_change_is_one_event():
    desk = with_goal()
    desk.do(c.SetGoal("h", GoalPatch()))
    desk.do(c.SetGoal("h", GoalPatch(status="paused")))
    updates = [event for event in desk.events if isinstance(event, GoalUpdated)]
    assert len(desk.events) == len(updates) == 3
    assert {(update.goal.goal_id, update.cause) for update in updates} == {("g", GoalCause.HOST)}


def test_a_complete_goal_is_replaced_with_counters_of_its_own():
    desk = with_goal()
    desk.start()
    desk.use(9)
    desk.do(c.SetGoal("h", GoalPatch(status="complete")))
    desk.do(c.SetGoal("h", GoalPatch("y")))
    assert (desk.goal.goal_id, desk.goal.tokens_used, desk.goal.objective) == ("h", 0, "y")


def test_opening_balances_stay_with_their_goal():
    desk = with_goal()
    desk.state.opening_tokens, desk.state.opening_time = 5, 6.0
    assert (desk.goal.tokens_used, desk.goal.time_used) == (5, 6.0)
    [update] = desk.decide(c.SetGoal("h", GoalPatch("y"))).drafts
    assert isinstance(update, Emit)
    assert isinstance(update.event, GoalUpdated)
    assert (update.event.opening_tokens, update.event.opening_time) == (5, 6.0)


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        (c.SetGoal("h", GoalPatch(status="paused")), True),
        (c.SetGoal("h", GoalPatch(status="complete")), True),
        (c.ClearGoal(), True),
        (c.SetGoal("h", GoalPatch("y")), False),
        (c.SetGoal("h", GoalPatch(token_budget=1)), False),
    ],
)
def test_time_is_recorded_when_the_turn_leaves_the_goal(command, ends):
    desk = with_goal()
    desk.start()
    desk.use(9)
    desk.time += 3
    before = len(desk.records)
    desk.do(command)
    kinds = [type(event) for event in desk.since(before)]
    change = GoalCleared if isinstance(command, c.ClearGoal) else GoalUpdated
    assert kinds == ([GoalTimeRecorded, change] if ends else [change])
    assert (desk.attached is None) == ends
    desk.time += 2
    desk.do(c.FinalStep("u", (), None))
    times = [event.seconds for event in desk.events if isinstance(event, GoalTimeRecorded)]
    assert times == ([3.0] if ends else [5.0])


def test_no_time_is_recorded_where_none_passed_or_the_clock_went_back():
    desk = with_goal()
    desk.start()
    desk.time -= 1
    desk.do(c.ClearGoal())
    assert not any(isinstance(event, GoalTimeRecorded) for event in desk.events)


@pytest.mark.parametrize(
    "payload",
    [
        c.ItemsDone("u", (ANSWER,)),
        c.StepEnded("u"),
        c.Checkpoint(),
        c.PersistItem("v", USER),
        c.Steer("u", "s", USER),
        c.SetState("r", "x", "k", 1, 1),
    ],
)
def test_an_exhausted_goal_is_stored_as_limited_by_the_next_commit(payload):
    desk = with_goal(token_budget=10)
    desk.start()
    desk.use(10)
    update, *rest = desk.decide(payload).drafts
    assert rest != []
    assert isinstance(update, Emit)
    assert isinstance(update.event, GoalUpdated)
    assert (update.event.goal.status, update.event.cause) == (GoalStatus.BUDGET_LIMITED, GoalCause.BUDGET)
    desk.do(payload)
    assert desk.attached == "g"
    assert not any(isinstance(getattr(draft, "event", None), GoalUpdated) for draft in desk.decide(payload).drafts)


def test_a_read_stores_no_budget_and_a_change_of_the_goal_stores_it_itself():
    desk = with_goal(token_budget=10)
    desk.start()
    desk.use(10)
    assert desk.decide(c.LatestIndex("u")).drafts == ()
    for command in (c.SetGoal("h", GoalPatch("y")), c.ClearGoal()):
        changes = [draft for draft in desk.decide(command).drafts if isinstance(draft, Emit)]
        assert len([draft for draft in changes if isinstance(draft.event, GoalUpdated | GoalCleared)]) == 1
    assert desk.do(c.SetGoal("h", GoalPatch("y"))).status is GoalStatus.BUDGET_LIMITED


def test_a_budget_with_room_is_not_limited():
    desk = with_goal(token_budget=10)
    desk.start()
    desk.use(9)
    assert desk.decide(c.ItemsDone("u", (ANSWER,))).drafts == live(ANSWER)


def test_a_turn_that_starts_on_an_exhausted_goal_is_not_attached():
    desk = with_goal(token_budget=10)
    desk.start()
    desk.use(10)
    desk.do(c.FinalStep("u", (), None))
    desk.do(c.JobEnded("u", c.Finished()))
    desk.start("v")
    assert desk.attached is None


def test_the_commit_that_completes_a_turn_limits_an_exhausted_goal():
    desk = with_goal(token_budget=10)
    desk.start()
    desk.use(12)
    desk.time += 1
    before = len(desk.records)
    desk.do(c.FinalStep("u", (ANSWER,), "stop"))
    assert [type(event) for event in desk.since(before)] == [
        TranscriptItemAppended, GoalTimeRecorded, GoalUpdated, TurnCompleted,
    ]  # fmt: skip
    assert desk.state.goal is not None
    assert desk.state.goal.status is GoalStatus.BUDGET_LIMITED


@pytest.mark.parametrize(
    ("budget", "outcome", "status"),
    [
        (None, None, GoalStatus.ACTIVE),
        (None, c.Interrupted("runtime_restart"), GoalStatus.PAUSED),
        (None, c.Failed("x", "deadline_timeout"), GoalStatus.BLOCKED),
        (None, c.Failed("x", "quota_exceeded"), GoalStatus.USAGE_LIMITED),
        (5, c.Interrupted("user"), GoalStatus.BUDGET_LIMITED),
        (5, c.Failed("x", "protocol"), GoalStatus.BUDGET_LIMITED),
        (5, c.Failed("x", "usage_limit"), GoalStatus.USAGE_LIMITED),
    ],
)
def test_a_turns_end_decides_the_status_of_its_goal(budget, outcome, status):
    desk = with_goal(token_budget=budget)
    desk.start()
    desk.use(5)
    desk.do(c.FinalStep("u", (), None) if outcome is None else c.JobEnded("u", outcome))
    assert desk.state.goal is not None
    assert desk.state.goal.status is status
    assert desk.goal.tokens_used == 5


def test_a_turn_changes_no_goal_that_it_is_not_attached_to():
    desk = with_goal(status="paused")
    desk.start()
    desk.do(c.SetGoal("g", GoalPatch(status="active")))
    assert desk.state.open_turn is not None
    desk.state.open_turn.goal_id = "other"
    before = len(desk.records)
    desk.do(c.JobEnded("u", c.Interrupted("user")))
    assert [type(event) for event in desk.since(before)] == [TurnInterrupted]
    assert desk.goal.status is GoalStatus.ACTIVE
