"""The tools by which a model reads and moves its thread's goal: what they take, and the text that they answer with.

A model can neither resume a goal, nor edit or clear it, nor touch its budget.
"""

import json
from typing import Any, Final

import attrs

from roder_trio.schema.goal import MAX_OBJECTIVE, Goal, GoalStatus
from roder_trio.schema.tool import ToolSpec

GET: Final = ToolSpec(
    name="get_goal",
    description="Return this thread's goal: its objective, status, token budget and what was used of it.",
    parameters={"type": "object", "properties": {}, "additionalProperties": False},
    effects={"read"},
    concurrency="exclusive",
)
CREATE: Final = ToolSpec(
    name="create_goal",
    description=(
        "Give this thread a goal to work on over many turns. Only when the user asked for one; it fails while another"
        " goal is unfinished. Set token_budget only if the user named one."
    ),
    parameters={
        "type": "object",
        "properties": {
            "objective": {"type": "string", "minLength": 1, "maxLength": MAX_OBJECTIVE},
            "token_budget": {"type": "integer", "minimum": 1},
        },
        "required": ["objective"],
        "additionalProperties": False,
    },
    effects={"thread"},
    concurrency="exclusive",
)
UPDATE: Final = ToolSpec(
    name="update_goal",
    description=(
        "Set the status of this thread's goal: complete once every requirement is proven, blocked after the same"
        " blocker stopped three goal turns running, paused only when the user asked for it."
    ),
    parameters={
        "type": "object",
        "properties": {"status": {"type": "string", "enum": ["complete", "blocked", "paused"]}},
        "required": ["status"],
        "additionalProperties": False,
    },
    effects={"thread"},
    concurrency="exclusive",
)


@attrs.frozen
class GoalAnswer:
    """What came of a model's request about the goal: the goal as it reads now, or why nothing was done."""

    goal: Goal | None
    refusal: str | None = None
    completed: bool = False
    """The goal became complete by this request."""


def answer_text(answer: GoalAnswer) -> str:
    """Return what the model reads: one plain line, then JSON."""
    goal = answer.goal
    value = {
        "goal": None if goal is None else _json(goal),
        "has_active_goal": goal is not None and goal.status is GoalStatus.ACTIVE,
        "remaining_tokens": None if goal is None else goal.remaining_tokens,
        "completion_budget_report": _report(goal) if goal is not None and answer.completed else None,
    }
    return f"{_line(goal)}\n{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"


def _line(goal: Goal | None) -> str:
    return "This thread has no goal." if goal is None else f"The goal is {goal.status.value}."


def _json(goal: Goal) -> dict[str, Any]:
    return {
        "goal_id": goal.goal_id,
        "objective": goal.objective.encode(errors="replace").decode(),
        "status": goal.status.value,
        "token_budget": goal.token_budget,
        "tokens_used": goal.tokens_used,
        "time_used": round(goal.time_used, 3),
    }


def _report(goal: Goal) -> str | None:
    if goal.token_budget is None and goal.time_used <= 0:
        return None
    budget = "" if goal.token_budget is None else f" of a budget of {goal.token_budget}"
    return (
        f"Tell the user that the goal is complete, that it used {goal.tokens_used} tokens{budget}, and that it took"
        f" {goal.time_used:.0f} seconds."
    )
