"""Events of usage and of goals."""

from typing import ClassVar

import attrs

from roder_trio.schema.goal import Goal, GoalCause
from roder_trio.schema.usage import Ancestor, Purpose, TokenUsage


@attrs.frozen(kw_only=True)
class UsageRecorded:
    """An attempt's running total as of its reading number `report`; the highest of an attempt counts."""

    kind: ClassVar[str] = "usage.recorded"
    durable: ClassVar[bool] = True
    attempt_id: str
    report: int
    turn_id: str
    goal_id: str | None = None
    usage: TokenUsage
    purpose: Purpose
    origin_thread_id: str | None = None
    provider: str | None = None
    model: str | None = None
    ancestors: tuple[Ancestor, ...] = ()


@attrs.frozen
class GoalUpdated:
    """A goal was set or changed. Its counters are as it read then; totals are folds of usage, never of this."""

    kind: ClassVar[str] = "goal.updated"
    durable: ClassVar[bool] = True
    goal: Goal
    cause: GoalCause
    opening_tokens: int = 0
    opening_time: float = 0.0


@attrs.frozen
class GoalCleared:
    """A goal was removed."""

    kind: ClassVar[str] = "goal.cleared"
    durable: ClassVar[bool] = True
    goal_id: str
    cause: GoalCause


@attrs.frozen
class GoalContinuationFailed:
    """The next turn of a goal could not be stored, so it didn't begin; the goal stays as it is."""

    kind: ClassVar[str] = "goal.continuation_failed"
    durable: ClassVar[bool] = False
    goal_id: str
    message: str


@attrs.frozen
class GoalTimeRecorded:
    """A turn worked `seconds` on a goal."""

    kind: ClassVar[str] = "goal.time_recorded"
    durable: ClassVar[bool] = True
    goal_id: str
    turn_id: str
    seconds: float
