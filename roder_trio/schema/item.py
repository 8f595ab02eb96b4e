"""What a user interface shows: items, their events and deltas."""

import enum
from datetime import datetime
from typing import Any, ClassVar, TypeAlias

import attrs

from roder_trio.schema.ids import as_tuple
from roder_trio.schema.transcript import Image


class ItemStatus(enum.Enum):
    """How far an item has come."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@attrs.frozen
class UserMessage:
    """A message of the user."""

    id: str
    text: str
    images: tuple[Image, ...] = attrs.field(default=(), converter=as_tuple)
    status: ItemStatus | None = None


@attrs.frozen
class AgentMessage:
    """A message of the model."""

    id: str
    text: str
    phase: str | None = None
    status: ItemStatus | None = None


@attrs.frozen
class Reasoning:
    """Reasoning of the model, as summaries and as raw text."""

    id: str
    summary: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    content: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    status: ItemStatus | None = None


@attrs.frozen
class ToolExecution:
    """A tool call and, once it ended, its output or error."""

    id: str
    tool_call_id: str
    tool_name: str | None
    input: str | None = None
    output: str | None = None
    error: str | None = None
    status: ItemStatus | None = None


@attrs.frozen
class Compaction:
    """A place where the history before was replaced for the model; opaque ones have an empty summary."""

    id: str
    summary: str
    status: ItemStatus | None = None


@attrs.frozen
class Error:
    """Why a turn failed."""

    id: str
    message: str
    status: ItemStatus | None = None


@attrs.frozen
class Raw:
    """Anything else that a host records."""

    id: str
    payload: Any
    status: ItemStatus | None = None


ThreadItem: TypeAlias = UserMessage | AgentMessage | Reasoning | ToolExecution | Compaction | Error | Raw


@attrs.frozen
class AgentMessageText:
    """More text of a message."""

    delta: str
    phase: str | None = None


@attrs.frozen
class ReasoningText:
    """More raw reasoning."""

    delta: str
    content_index: int = 0


@attrs.frozen
class ReasoningSummaryText:
    """More of a reasoning summary."""

    delta: str
    summary_index: int = 0


@attrs.frozen
class ReasoningSummaryPartAdded:
    """A further, still empty part of a reasoning summary."""

    summary_index: int


@attrs.frozen
class ToolInputText:
    """More of a call's arguments, as the model writes them."""

    delta: str


ItemDeltaValue: TypeAlias = (
    AgentMessageText | ReasoningText | ReasoningSummaryText | ReasoningSummaryPartAdded | ToolInputText
)


@attrs.frozen
class ItemStarted:
    """An item began; a call's full input is given so too."""

    kind: ClassVar[str] = "item.started"
    item: ThreadItem

    @property
    def item_id(self) -> str:
        """The id of the item that began."""
        return self.item.id


@attrs.frozen
class ItemDelta:
    """An open item grew."""

    kind: ClassVar[str] = "item.delta"
    item_id: str
    delta: ItemDeltaValue


@attrs.frozen
class ItemCompleted:
    """An item is final."""

    kind: ClassVar[str] = "item.completed"
    item: ThreadItem

    @property
    def item_id(self) -> str:
        """The id of the item that is final."""
        return self.item.id


@attrs.frozen
class ItemDiscarded:
    """A live item was dropped; a retry says it again, or nobody does."""

    kind: ClassVar[str] = "item.discarded"
    item_id: str


ItemEventKind: TypeAlias = ItemStarted | ItemDelta | ItemCompleted | ItemDiscarded


@attrs.frozen(kw_only=True)
class ThreadItemEvent:
    """One step in the life of an item. `seq` is 0 on live-only events, else counts the thread's item events from 1."""

    event_id: str
    seq: int = 0
    timestamp: datetime
    thread_id: str
    turn_id: str
    event: ItemEventKind
    checkpoint: bool = False
    """True on stored parts of a text that was still open when they were stored."""

    @property
    def kind(self) -> str:
        """The dotted kind, such as `item.delta`."""
        return self.event.kind

    @property
    def record_id(self) -> str:
        """The identity of this record for idempotent appends."""
        return self.event_id
