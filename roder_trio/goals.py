"""A thread's goal and how to change it."""

from roder_trio.schema.goal import (
    Goal,
    GoalCause,
    GoalPatch,
    GoalStatus,
)
from roder_trio.schema.ids import (
    UNSET,
)

__all__ = [
    "UNSET",
    "Goal",
    "GoalCause",
    "GoalPatch",
    "GoalStatus",
]
