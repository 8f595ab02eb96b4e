"""Events of turns and of their steps."""

from typing import ClassVar

import attrs

from roder_trio.schema.transcript import TranscriptItem, UserMessage
from roder_trio.schema.usage import TokenUsage


@attrs.frozen
class TurnStarted:
    """A turn began."""

    kind: ClassVar[str] = "turn.started"
    durable: ClassVar[bool] = True
    provider: str
    model: str
    reasoning: str | None = None
    automatic: bool = False


@attrs.frozen
class TranscriptItemAppended:
    """The log of the thread grew by `item`, number `index` of its turn.

    `item_id` and `item_seq` pin the item that is derived from it and the seq of its last item event, so ids and
    numbers don't depend on how it is projected; None and 0: none is derived.
    """

    kind: ClassVar[str] = "turn.item_appended"
    durable: ClassVar[bool] = True
    index: int
    item: TranscriptItem
    item_id: str | None = None
    item_seq: int = 0
    steer_id: str | None = None


@attrs.frozen
class SteerAccepted:
    """A steer is durable; it will be delivered, or handed back in the terminal event."""

    kind: ClassVar[str] = "turn.steer_accepted"
    durable: ClassVar[bool] = True
    steer_id: str
    message: UserMessage


@attrs.frozen
class TurnInterruptRequested:
    """Someone asked the turn to stop."""

    kind: ClassVar[str] = "turn.interrupt_requested"
    durable: ClassVar[bool] = False
    reason: str


@attrs.frozen
class TurnCompleted:
    """The turn ended well. `usage` is a copy for readers, None if nothing was observed."""

    kind: ClassVar[str] = "turn.completed"
    durable: ClassVar[bool] = True
    usage: TokenUsage | None = None
    finish_reason: str | None = None


@attrs.frozen
class TurnFailed:
    """The turn failed: `error` is a sentence, `error_kind` one of those of `TurnOutcome`."""

    kind: ClassVar[str] = "turn.failed"
    durable: ClassVar[bool] = True
    error: str
    error_kind: str
    usage: TokenUsage | None = None
    undelivered_steers: tuple[SteerAccepted, ...] = ()


@attrs.frozen
class TurnInterrupted:
    """The turn was interrupted, for one of the reasons of `TurnOutcome`."""

    kind: ClassVar[str] = "turn.interrupted"
    durable: ClassVar[bool] = True
    reason: str
    usage: TokenUsage | None = None
    undelivered_steers: tuple[SteerAccepted, ...] = ()


@attrs.frozen
class InferenceStarted:
    """A request is about to be sent."""

    kind: ClassVar[str] = "inference.started"
    durable: ClassVar[bool] = False
    attempt_id: str
    provider: str
    model: str


@attrs.frozen
class InferenceCompleted:
    """A stream reached its end."""

    kind: ClassVar[str] = "inference.completed"
    durable: ClassVar[bool] = False
    attempt_id: str
    stop_reason: str | None = None
    provider_response_id: str | None = None


@attrs.frozen
class RetryScheduled:
    """A failed attempt is tried again in `delay` seconds; `attempt` is the number of the failed one."""

    kind: ClassVar[str] = "retry.scheduled"
    durable: ClassVar[bool] = False
    attempt: int
    max_attempts: int
    delay: float
    error_kind: str


@attrs.frozen
class LimitReached:
    """A limit of `ReliabilityConfig` was reached: the turn fails, or goes on with a nudge to the model."""

    kind: ClassVar[str] = "limit.reached"
    durable: ClassVar[bool] = False
    name: str
    value: int
