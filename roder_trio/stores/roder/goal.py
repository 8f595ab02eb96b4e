"""Roder's goal as a record whose opening balances are what it had used.

Rules of the room: pure. Roder's goals have no id of their own; each gets one that follows from where it stands.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

from roder_trio.codec.text import dump
from roder_trio.schema.ids import ThreadId
from roder_trio.stores.roder.text import JsonObject
from roder_trio.stores.roder.transcript import given

_NAMESPACE = UUID("0b9c7a52-3f4e-4d0a-8d3c-92a4f5d1e6b7")
_MILLISECONDS = 100_000_000_000
"""Numbers of this size are milliseconds since 1970, smaller ones seconds."""


def derived_id(thread_id: ThreadId, *parts: object) -> str:
    """An id that is always the same for the same place in a thread."""
    return str(uuid5(_NAMESPACE, dump([thread_id, *parts]).decode()))


def goal_of(thread_id: ThreadId, value: Mapping[str, Any], place: str) -> JsonObject:
    """The event that brings a goal in, camelCase or snake_case, from `place`; what it lacks is left out."""
    used, time = _either(value, "tokensUsed"), _either(value, "timeUsedSeconds")
    status = _either(value, "status")
    goal = given(
        goal_id=derived_id(thread_id, "goal", place),
        thread_id=thread_id,
        objective=value.get("objective"),
        status=snake(status) if isinstance(status, str) else status,
        token_budget=_either(value, "tokenBudget"),
        tokens_used=used,
        time_used=time,
        created_at=moment(_either(value, "createdAt")),
        updated_at=moment(_either(value, "updatedAt")),
    )
    return {
        "type": "goal.updated",
        "goal": goal,
        "cause": "import",
        **given(opening_tokens=used, opening_time=time),
    }


def snake(name: str) -> str:
    """`budgetLimited` and `BudgetLimited` -> `budget_limited`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def moment(value: Any) -> Any:
    """A moment as text; numbers count seconds or milliseconds since 1970."""
    if type(value) not in (int, float):
        return value
    seconds = value / 1000 if value >= _MILLISECONDS else value
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError, OSError):
        return value


def _either(value: Mapping[str, Any], name: str) -> Any:
    return value.get(name, value.get(snake(name)))
