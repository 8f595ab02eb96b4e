"""What happens on threads, and the envelope it travels in.

A class with `durable = True` is published only after the store has it; the others are live only.
"""

from datetime import datetime
from typing import TypeAlias

import attrs

from roder_trio.schema.event.compaction import (
    ContextCompactionCancelled,
    ContextCompactionFailed,
    ContextCompactionRecorded,
    ContextCompactionSkipped,
    ContextCompactionStarted,
    ContextLimitRecovered,
    ContextPruned,
)
from roder_trio.schema.event.runtime import (
    ItemsReset,
    Lagged,
    SinkFailed,
    StorageRepaired,
    Unknown,
)
from roder_trio.schema.event.thread import (
    ThreadArchived,
    ThreadCreated,
    ThreadDeleted,
    ThreadFailedEvent,
    ThreadMetadataChanged,
    ThreadRecovered,
    ThreadUnarchived,
)
from roder_trio.schema.event.tool import (
    ApprovalRequested,
    ApprovalResolved,
    ExternalToolRequested,
    ExternalToolResolved,
    HookFailed,
    PolicyDecided,
    PolicyModeChanged,
    ToolArgumentsRewritten,
    ToolCallRepaired,
    ToolFinished,
    ToolOutputTruncated,
    ToolProgress,
    ToolStarted,
)
from roder_trio.schema.event.turn import (
    InferenceCompleted,
    InferenceStarted,
    LimitReached,
    RetryScheduled,
    SteerAccepted,
    TranscriptItemAppended,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnInterruptRequested,
    TurnStarted,
)
from roder_trio.schema.event.usage import (
    GoalCleared,
    GoalContinuationFailed,
    GoalTimeRecorded,
    GoalUpdated,
    UsageRecorded,
)
from roder_trio.schema.item import ThreadItemEvent

ThreadEvent: TypeAlias = (
    TurnStarted
    | TranscriptItemAppended
    | SteerAccepted
    | TurnCompleted
    | TurnFailed
    | TurnInterrupted
    | ThreadMetadataChanged
    | ContextCompactionStarted
    | ContextLimitRecovered
    | ContextPruned
    | ContextCompactionRecorded
    | ContextCompactionFailed
    | ContextCompactionCancelled
    | UsageRecorded
    | GoalUpdated
    | GoalCleared
    | GoalTimeRecorded
    | GoalContinuationFailed
    | ToolArgumentsRewritten
    | PolicyModeChanged
    | ApprovalRequested
    | ApprovalResolved
    | ExternalToolRequested
    | ExternalToolResolved
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
    | ToolCallRepaired
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | ToolOutputTruncated
    | PolicyDecided
    | HookFailed
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


__all__ = [
    "TERMINAL_EVENTS",
    "ApprovalRequested",
    "ApprovalResolved",
    "ContextCompactionCancelled",
    "ContextCompactionFailed",
    "ContextCompactionRecorded",
    "ContextCompactionSkipped",
    "ContextCompactionStarted",
    "ContextLimitRecovered",
    "ContextPruned",
    "Event",
    "EventEnvelope",
    "ExternalToolRequested",
    "ExternalToolResolved",
    "GoalCleared",
    "GoalContinuationFailed",
    "GoalTimeRecorded",
    "GoalUpdated",
    "HookFailed",
    "InferenceCompleted",
    "InferenceStarted",
    "ItemsReset",
    "Lagged",
    "LimitReached",
    "LiveEvent",
    "PolicyDecided",
    "PolicyModeChanged",
    "RetryScheduled",
    "SinkFailed",
    "SteerAccepted",
    "StorageRepaired",
    "TerminalEvent",
    "ThreadArchived",
    "ThreadCreated",
    "ThreadDeleted",
    "ThreadEvent",
    "ThreadFailedEvent",
    "ThreadItemEvent",
    "ThreadMetadataChanged",
    "ThreadRecovered",
    "ThreadUnarchived",
    "ToolArgumentsRewritten",
    "ToolCallRepaired",
    "ToolFinished",
    "ToolOutputTruncated",
    "ToolProgress",
    "ToolStarted",
    "TranscriptItemAppended",
    "TurnCompleted",
    "TurnFailed",
    "TurnInterruptRequested",
    "TurnInterrupted",
    "TurnStarted",
    "Unknown",
    "UsageRecorded",
]
