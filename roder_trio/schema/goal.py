"""A thread's goal: an objective, a status and, if wanted, a budget in total tokens."""

import enum
from datetime import datetime

import attrs

from roder_trio.schema.ids import UNSET, Choice, UnsetType

MAX_OBJECTIVE = 4000


class GoalStatus(Choice):
    """Where a goal stands; all but `COMPLETE` are unfinished."""

    ACTIVE = "active"
    PAUSED = "paused"
    BLOCKED = "blocked"
    USAGE_LIMITED = "usage_limited"
    BUDGET_LIMITED = "budget_limited"
    COMPLETE = "complete"


class GoalCause(enum.Enum):
    """Who or what changed a goal."""

    HOST = "host"
    MODEL = "model"
    BUDGET = "budget"
    TURN_OUTCOME = "turn_outcome"
    EMPTY_TURNS = "empty_turns"
    FORK = "fork"
    IMPORT = "import"


@attrs.frozen(kw_only=True)
class Goal:
    """A goal as it reads at one moment. Tokens are total tokens, never clamped to the budget; times are seconds."""

    goal_id: str
    thread_id: str
    objective: str
    status: GoalStatus
    token_budget: int | None = None
    tokens_used: int = 0
    time_used: float = 0.0
    created_at: datetime
    updated_at: datetime

    @property
    def remaining_tokens(self) -> int | None:
        """What is left of the budget, not below 0; None without a budget."""
        return None if self.token_budget is None else max(0, self.token_budget - self.tokens_used)


def _status(value: GoalStatus | str | None) -> GoalStatus | None:
    return None if value is None else GoalStatus(value)


@attrs.frozen
class GoalPatch:
    """What to change of a goal; validated as a whole before anything changes.

    `objective` and `status` None keep what is there. `token_budget` None means no budget, `UNSET` keeps it.
    `status` may be given as its text.
    """

    objective: str | None = attrs.field(default=None)
    status: GoalStatus | None = attrs.field(default=None, converter=_status)
    token_budget: int | UnsetType | None = attrs.field(default=UNSET)

    @objective.validator
    def _check_objective(self, attribute: object, value: object) -> None:
        if value is None:
            return
        if not isinstance(value, str) or not value.strip() or len(value.strip()) > MAX_OBJECTIVE:
            raise ValueError(f"objective must be text of 1 to {MAX_OBJECTIVE} characters")
        object.__setattr__(self, "objective", value.strip())

    @status.validator
    def _check_status(self, attribute: object, value: object) -> None:
        if value is GoalStatus.BUDGET_LIMITED:
            raise ValueError("status budget_limited is set by the runtime alone")

    @token_budget.validator
    def _check_budget(self, attribute: object, value: object) -> None:
        if value is None or value is UNSET:
            return
        if type(value) is not int or value <= 0:
            raise ValueError(f"token_budget must be an integer above 0, None or UNSET, not {value!r}")
