"""How turns, drains and runtimes end, and the options of one turn's answer."""

import enum
from decimal import Decimal
from typing import Any

import attrs

from roder_trio.schema.event import SteerAccepted
from roder_trio.schema.usage import TokenUsage

MAX_TEMPERATURE = 2


def _check_max_tokens(instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"max_tokens must be an integer of at least 1 or None, not {value!r}")


def _check_sampling(instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TEMPERATURE
    ):
        raise ValueError(f"{attribute.name} must be a number from 0 to 2 or None, not {value!r}")


@attrs.frozen
class OutputOptions:
    """Limits of each answer of one turn; never stored."""

    max_tokens: int | None = attrs.field(default=None, validator=_check_max_tokens)
    temperature: float | None = attrs.field(default=None, validator=_check_sampling)
    top_p: float | None = attrs.field(default=None, validator=_check_sampling)


class TurnStatus(enum.Enum):
    """How far a turn has come."""

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@attrs.frozen
class TurnOutcome:
    """How a turn ended. `usage` is the turn's total, None if nothing was observed.

    `status` is "completed", "failed" or "interrupted"; `text` is the turn's last final message, else "". `cost` is in
    US dollars, None if any part's price is unknown; `known_cost` is the sum of the known parts. `finish_reason` is why
    the model stopped: "stop", "length", "tool_use", "content_filter", "refusal" or the provider's own word. A failed
    turn has `error`, a sentence, and `error_kind`: the value of a `ProviderFailureKind`, or "engine_error",
    "deadline_timeout", "reliability_limit", "cleanup_timeout", "storage", "output_invalid" or "internal". An
    interrupted one has `reason`: "user", "caller_left", "archive", "drain", "shutdown" or "runtime_restart".
    `undelivered_steers` are those that the model never saw.
    """

    turn_id: str
    status: str
    text: str
    usage: TokenUsage | None
    finish_reason: str | None = None
    error: str | None = None
    error_kind: str | None = None
    reason: str | None = None
    undelivered_steers: tuple[SteerAccepted, ...] = ()
    output: Any = None
    cost: Decimal | None = None
    known_cost: Decimal = Decimal(0)


@attrs.frozen
class DrainOutcome:
    """How a drain ended: "clean", "storage_failed" or "deadline_exceeded"; turn ids are sorted."""

    status: str
    interrupted: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()


@attrs.frozen
class ShutdownReport:
    """How the runtime's exit went."""

    status: str
    """As of a drain: "clean", "storage_failed" or "deadline_exceeded"."""
    overruns: tuple[str, ...] = ()
    """Stages that took longer than their grace."""
    remaining: tuple[str, ...] = ()
    """Turns that never ended."""
    unflushed: dict[str, int] = attrs.field(factory=dict)
    """Events left, by sink id."""
    unreleased: tuple[str, ...] = ()
    """Threads whose release was not confirmed."""
