"""What becomes of a goal: how it reads, what a patch and a turn's end make of it, which turn works on it.

Tokens and time are folds of other events and come in as numbers. An exhausted goal reads as limited from the token on
that exhausts it; once that is stored it doesn't revert by itself.
"""

from datetime import datetime

import attrs

from roder_trio.errors import ProviderFailureKind
from roder_trio.schema.event import (
    Event,
    GoalCleared,
    GoalUpdated,
    TerminalEvent,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from roder_trio.schema.goal import Goal, GoalPatch, GoalStatus
from roder_trio.schema.ids import UNSET

_USAGE_LIMITS = (ProviderFailureKind.USAGE_LIMIT.value, ProviderFailureKind.QUOTA_EXCEEDED.value)
_KEEPING_THE_BUDGET_REASON = (GoalStatus.PAUSED, GoalStatus.BLOCKED)


def is_exhausted(goal: Goal) -> bool:
    """Whether the budget is used up; equality counts."""
    return goal.token_budget is not None and goal.tokens_used >= goal.token_budget


def read(goal: Goal, tokens_used: int, time_used: float) -> Goal:
    """Return the goal as it reads with these counters."""
    return _limited(attrs.evolve(goal, tokens_used=tokens_used, time_used=time_used))


def _limited(goal: Goal) -> Goal:
    if goal.status is GoalStatus.ACTIVE and is_exhausted(goal):
        return attrs.evolve(goal, status=GoalStatus.BUDGET_LIMITED)
    return goal


def patch(goal: Goal | None, patch: GoalPatch, goal_id: str, thread_id: str, now: datetime) -> Goal | None:
    """Return what `patch` makes of the goal as it reads now; None if there is nothing to change.

    `goal_id` is for a new goal: where there is none, or a complete one and an objective.
    """
    if goal is None or (goal.status is GoalStatus.COMPLETE and patch.objective is not None):
        return _new(patch, goal_id, thread_id, now)
    budget = goal.token_budget if patch.token_budget is UNSET else patch.token_budget
    objective = goal.objective if patch.objective is None else patch.objective
    status = _requested(goal.status, patch.status)
    return _limited(attrs.evolve(goal, objective=objective, token_budget=budget, status=status, updated_at=now))


def _new(patch: GoalPatch, goal_id: str, thread_id: str, now: datetime) -> Goal | None:
    if patch.objective is None:
        return None
    return Goal(
        goal_id=goal_id,
        thread_id=thread_id,
        objective=patch.objective,
        status=patch.status or GoalStatus.ACTIVE,
        token_budget=None if patch.token_budget is UNSET else patch.token_budget,
        created_at=now,
        updated_at=now,
    )


def _requested(status: GoalStatus, wanted: GoalStatus | None) -> GoalStatus:
    """Return the status after a request; a goal that ran out of budget isn't said to be paused or blocked."""
    if wanted is None or (status is GoalStatus.BUDGET_LIMITED and wanted in _KEEPING_THE_BUDGET_REASON):
        return status
    return wanted


def outcome(goal: Goal, terminal: TerminalEvent) -> GoalStatus | None:
    """Return the status that the end of a turn attached to `goal`, as it reads now, brings; None: unchanged."""
    if isinstance(terminal, TurnFailed) and terminal.error_kind in _USAGE_LIMITS:
        limited = goal.status in (GoalStatus.ACTIVE, GoalStatus.BUDGET_LIMITED)
        return GoalStatus.USAGE_LIMITED if limited else None
    if goal.status is not GoalStatus.ACTIVE or isinstance(terminal, TurnCompleted):
        return None
    return GoalStatus.BLOCKED if isinstance(terminal, TurnFailed) else GoalStatus.PAUSED


def attach_after(event: Event, attached: str | None, goal: Goal | None) -> str | None:
    """Return the id of the goal that the open turn is attached to after `event`; `goal` is the one before it.

    A turn attaches when it starts with an active goal, or when a goal becomes active. It stays attached to a goal that
    ran out of budget and to none that stopped, was cleared or was replaced.
    """
    match event:
        case TurnStarted():
            return goal.goal_id if goal is not None and goal.status is GoalStatus.ACTIVE else None
        case GoalUpdated(updated) if updated.status is GoalStatus.ACTIVE:
            return updated.goal_id
        case GoalUpdated(updated) if updated.status is GoalStatus.BUDGET_LIMITED:
            return attached if attached == updated.goal_id else None
        case GoalUpdated() | GoalCleared() | TurnCompleted() | TurnFailed() | TurnInterrupted():
            return None
    return attached


def is_chargeable(goal: Goal | None, attached: str | None) -> bool:
    """Whether an attempt that begins now in this thread, or in one below it, is charged to the goal as it reads now.

    `attached` is what the thread's running turn is attached to. An active goal takes what threads below use also while
    no turn runs; one that ran out of budget only what is used during a turn that was attached before.
    """
    if goal is None:
        return False
    if goal.status is GoalStatus.ACTIVE:
        return True
    return goal.status is GoalStatus.BUDGET_LIMITED and attached == goal.goal_id


def goal_of_attempt(goal: Goal | None, attached: str | None) -> str | None:
    """Return the id of the goal that an attempt of the running turn is charged to, fixed when it gets its id."""
    if goal is None or attached != goal.goal_id:
        return None
    return goal.goal_id if is_chargeable(goal, attached) else None
