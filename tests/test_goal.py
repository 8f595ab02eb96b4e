from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.logic.goal.rules import attach_after, goal_of_attempt, is_chargeable, is_exhausted, outcome, patch, read
from roder_trio.schema.event import (
    GoalCleared,
    GoalTimeRecorded,
    GoalUpdated,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from roder_trio.schema.goal import Goal, GoalCause, GoalPatch, GoalStatus

CREATED = datetime(2026, 10, 3, tzinfo=UTC)
NOW = CREATED + timedelta(hours=1)
ACTIVE, PAUSED, BLOCKED, USAGE, BUDGET, COMPLETE = GoalStatus


def goal(used: int = 0, budget: int | None = None, status: GoalStatus = ACTIVE, **more: Any) -> Goal:
    fields = {"goal_id": "g", "thread_id": "t", "objective": "x", "created_at": CREATED, "updated_at": CREATED}
    return Goal(**{**fields, "tokens_used": used, "token_budget": budget, "status": status, **more})


def patched(before: Goal | None, change: GoalPatch) -> Goal | None:
    return patch(before, change, "new", "t", NOW)


# -- the record --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "budget", "remaining", "exhausted"),
    [(0, None, None, False), (10, 42, 32, False), (42, 42, 0, True), (50, 42, 0, True)],
)
def test_what_remains_is_never_negative_and_equality_is_exhausted(used, budget, remaining, exhausted):
    assert goal(used, budget).remaining_tokens == remaining
    assert is_exhausted(goal(used, budget)) is exhausted


@pytest.mark.parametrize(
    ("status", "used", "reads"),
    [
        (ACTIVE, 41, ACTIVE),
        (ACTIVE, 42, BUDGET),
        (ACTIVE, 50, BUDGET),
        (BUDGET, 10, BUDGET),
        (PAUSED, 50, PAUSED),
        (BLOCKED, 50, BLOCKED),
        (USAGE, 50, USAGE),
        (COMPLETE, 50, COMPLETE),
    ],
)
def test_an_active_goal_reads_as_limited_once_its_budget_is_used(status, used, reads):
    found = read(goal(0, 42, status), used, 1.5)
    assert found == goal(used, 42, reads, time_used=1.5)


def test_a_goal_without_a_budget_is_never_exhausted():
    assert read(goal(), 10**12, 0.0).status is ACTIVE


# -- patches -----------------------------------------------------------------------------------------------------------

LIMITED = (42, 42, BUDGET)
PATCHES = [
    (LIMITED, GoalPatch(token_budget=100), (42, 100, BUDGET)),
    (LIMITED, GoalPatch(token_budget=100, status="active"), (42, 100, ACTIVE)),
    (LIMITED, GoalPatch(token_budget=None), (42, None, BUDGET)),
    (LIMITED, GoalPatch(token_budget=None, status="active"), (42, None, ACTIVE)),
    (LIMITED, GoalPatch(status="active"), (42, 42, BUDGET)),
    (LIMITED, GoalPatch(status="paused"), (42, 42, BUDGET)),
    (LIMITED, GoalPatch(status="blocked"), (42, 42, BUDGET)),
    (LIMITED, GoalPatch(status="complete"), (42, 42, COMPLETE)),
    (LIMITED, GoalPatch(status="usage_limited"), (42, 42, USAGE)),
    ((50, 100, ACTIVE), GoalPatch(token_budget=50), (50, 50, BUDGET)),
    ((50, 100, ACTIVE), GoalPatch(token_budget=49), (50, 49, BUDGET)),
    ((50, 100, ACTIVE), GoalPatch(token_budget=51), (50, 51, ACTIVE)),
    ((50, 100, ACTIVE), GoalPatch(token_budget=None), (50, None, ACTIVE)),
    ((50, 100, ACTIVE), GoalPatch(token_budget=50, status="paused"), (50, 50, PAUSED)),
    ((50, 100, PAUSED), GoalPatch(token_budget=50), (50, 50, PAUSED)),
    ((50, 100, PAUSED), GoalPatch(token_budget=50, status="active"), (50, 50, BUDGET)),
    ((50, 100, COMPLETE), GoalPatch(status="active"), (50, 100, ACTIVE)),
    ((50, 100, ACTIVE), GoalPatch(), (50, 100, ACTIVE)),
]


@pytest.mark.parametrize(("before", "change", "after"), PATCHES, ids=str)
def test_a_patch_changes_a_goal_by_the_table(before, change, after):
    assert patched(goal(*before), change) == goal(*after, updated_at=NOW)


def test_a_new_objective_keeps_the_goal():
    assert patched(goal(50, 100), GoalPatch(objective="y")) == goal(50, 100, objective="y", updated_at=NOW)
    assert patched(goal(*LIMITED), GoalPatch(objective="y")).status is BUDGET


def test_a_patch_without_an_objective_makes_no_goal():
    assert patched(None, GoalPatch(status="active", token_budget=5)) is None
    assert patched(None, GoalPatch()) is None


def test_an_objective_makes_a_goal_where_there_is_none():
    fresh = Goal(
        goal_id="new",
        thread_id="t",
        objective="x",
        status=ACTIVE,
        token_budget=42,
        created_at=NOW,
        updated_at=NOW,
    )
    assert patched(None, GoalPatch(objective=" x ", token_budget=42)) == fresh
    assert patched(None, GoalPatch(objective="x", status="paused")) == attrs.evolve(
        fresh, status=PAUSED, token_budget=None
    )


def test_an_objective_replaces_a_complete_goal_with_a_new_one():
    fresh = patched(goal(50, 100, COMPLETE), GoalPatch(objective="y"))
    assert (fresh.goal_id, fresh.objective, fresh.tokens_used, fresh.token_budget, fresh.status) == (
        "new",
        "y",
        0,
        None,
        ACTIVE,
    )
    assert fresh.created_at == NOW


@pytest.mark.parametrize(
    "fields",
    [
        {"objective": "  "},
        {"objective": "x" * 4001},
        {"objective": 5},
        *({"token_budget": value} for value in (0, -1, True, 1.5, "5")),
        {"status": "done"},
        {"status": "budget_limited"},
    ],
    ids=str,
)
def test_a_bad_patch_is_refused_before_anything_changes(fields):
    with pytest.raises(ValueError):
        GoalPatch(**fields)


def test_an_objective_of_4000_characters_is_taken():
    assert GoalPatch(objective=" " + "x" * 4000 + " ").objective == "x" * 4000


statuses = st.sampled_from(GoalStatus)
budgets = st.none() | st.integers(1, 60)
goals = st.builds(goal, st.integers(0, 60), budgets, statuses)
patches = st.builds(
    GoalPatch,
    st.sampled_from([None, "y"]),
    st.none() | statuses.filter(lambda status: status is not BUDGET),
)
with_budget = st.builds(attrs.evolve, patches, token_budget=budgets)


@settings(deadline=None, max_examples=200)
@given(goals, patches | with_budget)
def test_no_patch_leaves_an_exhausted_goal_active_or_touches_its_counters(before, change):
    after = patched(before, change)
    assert not (after.status is ACTIVE and is_exhausted(after))
    assert after.updated_at == NOW
    if after.goal_id == before.goal_id:
        assert (after.tokens_used, after.created_at) == (before.tokens_used, before.created_at)
    else:
        assert before.status is COMPLETE
    assert read(after, after.tokens_used, after.time_used) == after


# -- a turn's end ------------------------------------------------------------------------------------------------------

OUTCOMES = [
    (TurnCompleted(), ACTIVE, None),
    (TurnInterrupted("user"), ACTIVE, PAUSED),
    (TurnInterrupted("runtime_restart"), ACTIVE, PAUSED),
    (TurnInterrupted("user"), BUDGET, None),
    (TurnFailed("x", "authentication"), ACTIVE, BLOCKED),
    (TurnFailed("x", "output_invalid"), ACTIVE, BLOCKED),
    (TurnFailed("x", "authentication"), BUDGET, None),
    (TurnFailed("x", "usage_limit"), ACTIVE, USAGE),
    (TurnFailed("x", "quota_exceeded"), BUDGET, USAGE),
    (TurnFailed("x", "usage_limit"), PAUSED, None),
    (TurnFailed("x", "usage_limit"), COMPLETE, None),
    (TurnFailed("x", "timeout"), COMPLETE, None),
    (TurnInterrupted("user"), PAUSED, None),
]


@pytest.mark.parametrize(("terminal", "status", "expected"), OUTCOMES, ids=str)
def test_the_end_of_an_attached_turn_decides_the_status(terminal, status, expected):
    assert outcome(goal(status=status), terminal) is expected


# -- attachment and charging -------------------------------------------------------------------------------------------

STARTED = TurnStarted("p", "m")


def updated(status: GoalStatus, goal_id: str = "g") -> GoalUpdated:
    return GoalUpdated(goal(status=status, goal_id=goal_id), GoalCause.HOST)


ATTACHMENTS = [
    ("starts with an active goal", STARTED, None, goal(), "g"),
    ("starts without a goal", STARTED, None, None, None),
    *(
        (f"starts with a goal that is {s.value}", STARTED, None, goal(status=s), None)
        for s in GoalStatus
        if s != ACTIVE
    ),
    ("a goal is created", updated(ACTIVE), None, None, "g"),
    ("a goal becomes active", updated(ACTIVE), None, goal(status=PAUSED), "g"),
    ("a goal is edited", updated(ACTIVE), "g", goal(), "g"),
    ("a goal is replaced", updated(ACTIVE, "h"), "g", goal(status=COMPLETE), "h"),
    ("the budget ends", updated(BUDGET), "g", goal(), "g"),
    ("the budget of a goal that isn't attached ends", updated(BUDGET), None, goal(), None),
    ("an exhausted goal comes in place of it", updated(BUDGET, "h"), "g", goal(), None),
    *((f"the goal is {s.value}", updated(s), "g", goal(), None) for s in (PAUSED, BLOCKED, USAGE, COMPLETE)),
    ("the goal is cleared", GoalCleared("g", GoalCause.HOST), "g", goal(), None),
    *((f"{t.kind}", t, "g", goal(), None) for t in (TurnCompleted(), TurnFailed("x", "y"), TurnInterrupted("z"))),
    ("anything else", GoalTimeRecorded("g", "u", 1.0), "g", goal(), "g"),
]


@pytest.mark.parametrize(
    ("event", "attached", "before", "after"), [case[1:] for case in ATTACHMENTS], ids=[case[0] for case in ATTACHMENTS]
)
def test_attachment_is_a_fold_of_events(event, attached, before, after):
    assert attach_after(event, attached, before) == after


@pytest.mark.parametrize(
    ("found", "attached", "chargeable", "goal_id"),
    [
        (None, None, False, None),
        (None, "g", False, None),
        (goal(), "g", True, "g"),
        (goal(), None, True, None),
        (goal(), "h", True, None),
        (goal(status=BUDGET), "g", True, "g"),
        (goal(status=BUDGET), None, False, None),
        (goal(status=BUDGET), "h", False, None),
        *((goal(status=status), "g", False, None) for status in (PAUSED, BLOCKED, USAGE, COMPLETE)),
    ],
)
def test_an_attempt_is_charged_by_status_and_attachment(found, attached, chargeable, goal_id):
    assert is_chargeable(found, attached) is chargeable
    assert goal_of_attempt(found, attached) == goal_id
