"""What happens on threads, and the envelope it travels in.

A class with `durable = True` is published only after the store has it; the others are live only.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, TypeAlias

import attrs

from roder_trio.schema.goal import Goal, GoalCause
from roder_trio.schema.ids import UNSET, UnsetType
from roder_trio.schema.item import ThreadItem, ThreadItemEvent
from roder_trio.schema.transcript import TranscriptItem, UserMessage
from roder_trio.schema.usage import Ancestor, Purpose, TokenUsage

# -- threads -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class ThreadCreated:
    """A thread was created; `metadata` is its `ThreadMetadata`."""

    kind: ClassVar[str] = "thread.created"
    durable: ClassVar[bool] = False
    metadata: Any


@attrs.frozen
class ThreadArchived:
    """A thread was archived."""

    kind: ClassVar[str] = "thread.archived"
    durable: ClassVar[bool] = False


@attrs.frozen
class ThreadUnarchived:
    """A thread was brought back from the archive."""

    kind: ClassVar[str] = "thread.unarchived"
    durable: ClassVar[bool] = False


@attrs.frozen
class ThreadDeleted:
    """A thread was deleted, with every byte of it."""

    kind: ClassVar[str] = "thread.deleted"
    durable: ClassVar[bool] = False


@attrs.frozen(kw_only=True)
class ThreadMetadataChanged:
    """Fields of the metadata changed; `UNSET` keeps one, labels are replaced whole."""

    kind: ClassVar[str] = "thread.metadata_changed"
    durable: ClassVar[bool] = True
    title: str | UnsetType | None = UNSET
    provider: str | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_allowlist: tuple[str, ...] | UnsetType = UNSET
    developer_instructions: str | UnsetType | None = UNSET
    labels: Mapping[str, str] | UnsetType = UNSET


@attrs.frozen
class ThreadFailedEvent:
    """A thread was parked after too many crashes."""

    kind: ClassVar[str] = "thread.failed"
    durable: ClassVar[bool] = False
    cause: str


@attrs.frozen
class ThreadRecovered:
    """A thread was read again and turns that a crash had left open were closed."""

    kind: ClassVar[str] = "thread.recovered"
    durable: ClassVar[bool] = False
    closed_turn_ids: tuple[str, ...]


# -- turns -------------------------------------------------------------------------------------------------------------


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
    """The turn failed."""

    kind: ClassVar[str] = "turn.failed"
    durable: ClassVar[bool] = True
    error: str
    error_kind: str
    usage: TokenUsage | None = None
    undelivered_steers: tuple[SteerAccepted, ...] = ()


@attrs.frozen
class TurnInterrupted:
    """The turn was interrupted."""

    kind: ClassVar[str] = "turn.interrupted"
    durable: ClassVar[bool] = True
    reason: str
    usage: TokenUsage | None = None
    undelivered_steers: tuple[SteerAccepted, ...] = ()


# -- inference ---------------------------------------------------------------------------------------------------------


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
    """A limit of `ReliabilityConfig` ended the turn."""

    kind: ClassVar[str] = "limit.reached"
    durable: ClassVar[bool] = False
    name: str
    value: int


# -- compaction --------------------------------------------------------------------------------------------------------


@attrs.frozen
class ContextCompactionStarted:
    """A compaction began on a window of `item_count` items and `estimated_tokens`."""

    kind: ClassVar[str] = "compaction.started"
    durable: ClassVar[bool] = True
    compaction_id: str
    trigger: str
    item_count: int
    estimated_tokens: int


@attrs.frozen
class ContextCompactionRecorded:
    """A boundary was committed; counts are those of the new window, `duration` in seconds."""

    kind: ClassVar[str] = "compaction.recorded"
    durable: ClassVar[bool] = True
    compaction_id: str
    strategy: str
    item_count: int
    estimated_tokens: int
    duration: float = 0.0


@attrs.frozen
class ContextCompactionFailed:
    """A compaction failed; the window is as before."""

    kind: ClassVar[str] = "compaction.failed"
    durable: ClassVar[bool] = True
    compaction_id: str
    error: str
    error_kind: str


@attrs.frozen
class ContextCompactionCancelled:
    """A compaction was cancelled: `new_input`, `interrupted`, `stale_window` or `runtime_restart`."""

    kind: ClassVar[str] = "compaction.cancelled"
    durable: ClassVar[bool] = True
    compaction_id: str
    reason: str


@attrs.frozen
class ContextCompactionSkipped:
    """A due compaction was not begun: `failed_before`, `hysteresis` or `new_input`."""

    kind: ClassVar[str] = "compaction.skipped"
    durable: ClassVar[bool] = False
    reason: str


# -- usage and goals ---------------------------------------------------------------------------------------------------


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
class GoalTimeRecorded:
    """A turn worked `seconds` on a goal."""

    kind: ClassVar[str] = "goal.time_recorded"
    durable: ClassVar[bool] = True
    goal_id: str
    turn_id: str
    seconds: float


# -- the runtime itself ------------------------------------------------------------------------------------------------


@attrs.frozen
class StorageRepaired:
    """The store set aside a torn tail; `repairs` are its `StoreRepair`s."""

    kind: ClassVar[str] = "storage.repaired"
    durable: ClassVar[bool] = False
    repairs: tuple[Any, ...]


@attrs.frozen
class SinkFailed:
    """A sink raised or overran."""

    kind: ClassVar[str] = "sink.failed"
    durable: ClassVar[bool] = False
    sink_id: str
    message: str
    missed: int = 0


@attrs.frozen
class Lagged:
    """The subscriber was too slow: `missed` events were dropped before the next one."""

    kind: ClassVar[str] = "subscription.lagged"
    durable: ClassVar[bool] = False
    missed: int


@attrs.frozen
class ItemsReset:
    """The view starts anew from `items`."""

    kind: ClassVar[str] = "items.reset"
    durable: ClassVar[bool] = False
    items: tuple[ThreadItem, ...]


@attrs.frozen
class Unknown:
    """An event of a newer version, kept as it was read."""

    durable: ClassVar[bool] = True
    kind: str
    payload: Mapping[str, Any]


ThreadEvent: TypeAlias = (
    TurnStarted
    | TranscriptItemAppended
    | SteerAccepted
    | TurnCompleted
    | TurnFailed
    | TurnInterrupted
    | ThreadMetadataChanged
    | ContextCompactionStarted
    | ContextCompactionRecorded
    | ContextCompactionFailed
    | ContextCompactionCancelled
    | UsageRecorded
    | GoalUpdated
    | GoalCleared
    | GoalTimeRecorded
)
"""What is stored in an envelope, apart from `Unknown`."""

LiveEvent: TypeAlias = (
    ThreadCreated
    | ThreadArchived
    | ThreadUnarchived
    | ThreadDeleted
    | ThreadFailedEvent
    | ThreadRecovered
    | TurnInterruptRequested
    | InferenceStarted
    | InferenceCompleted
    | RetryScheduled
    | LimitReached
    | ContextCompactionSkipped
    | StorageRepaired
    | SinkFailed
    | Lagged
    | ItemsReset
)

Event: TypeAlias = ThreadEvent | LiveEvent | ThreadItemEvent | Unknown

TERMINAL_EVENTS = (TurnCompleted, TurnFailed, TurnInterrupted)
TerminalEvent: TypeAlias = TurnCompleted | TurnFailed | TurnInterrupted


@attrs.frozen(kw_only=True)
class EventEnvelope:
    """An event with its place. `seq` numbers what the thread's actor stored, from 1 without a gap; else it is 0."""

    event_id: str
    seq: int = 0
    timestamp: datetime
    source: str
    thread_id: str | None = None
    turn_id: str | None = None
    event: Event

    @property
    def kind(self) -> str:
        """The dotted kind of the event, such as `turn.started`."""
        return self.event.kind

    @property
    def record_id(self) -> str:
        """The identity of this record for idempotent appends."""
        return self.event_id
