"""The live items of one thread: what a stream has begun and no stored item has completed.

Fed synchronously by the job, read by views and by checkpoints. Nothing here is durable; what a decision takes is only
lent until its append returned.
"""

from collections.abc import Iterator, Sequence

import attrs

from roder_trio.logic.item import ItemNumbers, message_base
from roder_trio.logic.thread.draft import OpenText
from roder_trio.schema.inference import (
    HostedToolCallCompleted,
    HostedToolCallStarted,
    InferenceEvent,
    MessageDelta,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from roder_trio.schema.item import (
    AgentMessage,
    AgentMessageText,
    ItemCompleted,
    ItemDelta,
    ItemEventKind,
    ItemStarted,
    ItemStatus,
    Reasoning,
    ReasoningSummaryText,
    ThreadItem,
    ToolExecution,
    ToolInputText,
)

FIRST_CHECKPOINT = 4096
"""Bytes of unsaved text that are stored at once; doubles with each such checkpoint of the item."""


@attrs.define(eq=False)
class _Open:
    """One open item, the text it has so far, and how much of that is stored."""

    turn_id: str
    base: str
    item: ThreadItem
    hosted: bool = False
    parts: list[str] = attrs.field(factory=list)
    unsaved: int = 0
    """Bytes of text that isn't stored."""
    saved_parts: int = 0
    offered: tuple[int, int] | None = None
    """Parts and bytes that the checkpoint under way stores."""
    checkpoint_at: int = FIRST_CHECKPOINT
    sealed: bool = False
    """True if further text goes to a new item."""
    taken: bool = False

    def current(self) -> ThreadItem:
        match self.item:
            case AgentMessage():
                return attrs.evolve(self.item, text="".join(self.parts))
            case Reasoning():
                return attrs.evolve(self.item, summary=("".join(self.parts),))
            case ToolExecution() if self.parts:
                return attrs.evolve(self.item, input="".join(self.parts))
        return self.item


class LiveItems:
    """The open items of one thread, oldest first."""

    __slots__ = ("_last", "_numbers", "_open")

    def __init__(self, numbers: ItemNumbers) -> None:
        self._numbers = numbers
        self._open: list[_Open] = []
        self._last: _Open | None = None

    def absorb(self, turn_id: str, event: InferenceEvent) -> Sequence[ItemEventKind]:
        """Take a stream event; return the item events that show it. Empty deltas show nothing."""
        match event:
            case MessageDelta(text, phase):
                return self._grow(turn_id, message_base(phase), text, event)
            case ReasoningDelta(text):
                return self._grow(turn_id, "reasoning", text, event)
            case ToolCallDelta(id, text):
                return self._grow(turn_id, f"tool-{id}", text, event)
            case ToolCallStarted(id, _):
                return self._begin_call(turn_id, f"tool-{id}", event)
            case HostedToolCallStarted(id, _):
                return self._begin_call(turn_id, f"hosted-{id}", event)
            case HostedToolCallCompleted(id, _, arguments):
                entry = self._find(turn_id, f"hosted-{id}")
                if entry is not None and isinstance(entry.item, ToolExecution):
                    self._seal_reasoning()
                    entry.item = attrs.evolve(entry.item, input=arguments, status=ItemStatus.COMPLETED)
                    return (ItemCompleted(entry.item),)
        return ()

    def __iter__(self) -> Iterator[ThreadItem]:
        """The open items with their text so far."""
        return (entry.current() for entry in self._open)

    def __contains__(self, key: object) -> bool:
        """Whether the (turn id, item id) is open."""
        return any((entry.turn_id, entry.item.id) == key for entry in self._open)

    @property
    def has_unsaved_text(self) -> bool:
        """Whether a message is open of which some text isn't stored."""
        return any(entry.unsaved for entry in self._open)

    @property
    def checkpoint_due(self) -> bool:
        """Whether so much text of the item that grew last is unsaved that it should be stored at once."""
        return self._last is not None and self._last.unsaved >= self._last.checkpoint_at

    # -- what a decision takes, and what became of it ----------------------------------------------------------------

    def take(self, turn_id: str, base: str) -> str | None:
        """Close the oldest open item of that base and return its id."""
        entry = self._find(turn_id, base)
        if entry is None:
            return None
        entry.taken = True
        return entry.item.id

    def leave(self, turn_id: str, hosted: bool) -> Sequence[str]:
        """Close all open items of the turn and return their ids."""
        left = [e for e in self._open if e.turn_id == turn_id and not e.taken and (hosted or not e.hosted)]
        for entry in left:
            entry.taken = True
        return [entry.item.id for entry in left]

    def unsaved(self) -> Sequence[OpenText]:
        """Return the text that stands open and isn't stored yet."""
        result = []
        for entry in self._open:
            if entry.unsaved and isinstance(entry.item, AgentMessage):
                entry.offered = (len(entry.parts), entry.unsaved)
                text = "".join(entry.parts[entry.saved_parts :])
                first = entry.saved_parts == 0
                result.append(OpenText(entry.turn_id, entry.item.id, text, entry.item.phase, first))
        return result

    def confirm(self) -> None:
        """The append returned: what was taken is closed, what was offered is saved."""
        self._last = None
        if any(entry.taken for entry in self._open):
            self._open = [entry for entry in self._open if not entry.taken]
        for entry in self._open:
            if entry.offered is not None:
                entry.saved_parts, size = entry.offered
                entry.offered = None
                entry.unsaved -= size
                if size >= entry.checkpoint_at:
                    entry.checkpoint_at *= 2

    def give_back(self) -> None:
        """The append failed: nothing was closed or saved."""
        for entry in self._open:
            entry.taken, entry.offered = False, None

    # -- growth ------------------------------------------------------------------------------------------------------

    def _find(self, turn_id: str, base: str) -> _Open | None:
        for entry in self._open:
            if entry.base == base and entry.turn_id == turn_id and not entry.taken:
                return entry
        return None

    def _growing(self, turn_id: str, base: str) -> _Open | None:
        last = self._last
        if last is not None and last.base == base and last.turn_id == turn_id:
            return last
        for entry in self._open:
            if entry.base == base and entry.turn_id == turn_id and not (entry.taken or entry.sealed):
                return entry
        return None

    def _begin_call(
        self, turn_id: str, base: str, event: ToolCallStarted | HostedToolCallStarted
    ) -> Sequence[ItemEventKind]:
        """Open a call, unless it is open, or stands in the log: to discard it then would hide what is stored."""
        if self._find(turn_id, base) is not None or self._numbers.knows(turn_id, f"{turn_id}-{base}"):
            return ()
        return self._begin(turn_id, base, event)

    def _begin(self, turn_id: str, base: str, event: InferenceEvent) -> Sequence[ItemEventKind]:
        self._seal_reasoning()
        item = _new_item(self._numbers.take(turn_id, base), event)
        self._open.append(_Open(turn_id, base, item, hosted=isinstance(event, HostedToolCallStarted)))
        return (ItemStarted(item),)

    def _grow(
        self, turn_id: str, base: str, text: str, event: MessageDelta | ReasoningDelta | ToolCallDelta
    ) -> Sequence[ItemEventKind]:
        if not text:
            return ()
        entry = self._growing(turn_id, base)
        started: tuple[ItemEventKind, ...] = ()
        if entry is None:
            if isinstance(event, ToolCallDelta):
                return ()
            started = tuple(self._begin(turn_id, base, event))
            entry = self._open[-1]
        elif entry is not self._last:
            self._seal_reasoning()
        self._last = entry
        entry.parts.append(text)
        match event:
            case MessageDelta(text):
                assert isinstance(entry.item, AgentMessage)
                entry.unsaved += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
                return (*started, ItemDelta(entry.item.id, AgentMessageText(text, entry.item.phase)))
            case ReasoningDelta(text):
                return (*started, ItemDelta(entry.item.id, ReasoningSummaryText(text)))
        return (ItemDelta(entry.item.id, ToolInputText(text)),)

    def _seal_reasoning(self) -> None:
        """Another item speaks: further reasoning goes to a new item."""
        for entry in self._open:
            if entry.base == "reasoning":
                entry.sealed = True
        self._last = None


def _new_item(item_id: str, event: InferenceEvent) -> ThreadItem:
    match event:
        case MessageDelta(_, phase):
            return AgentMessage(item_id, "", phase, ItemStatus.IN_PROGRESS)
        case ToolCallStarted(call_id, name) | HostedToolCallStarted(call_id, name):
            return ToolExecution(item_id, call_id, name, status=ItemStatus.IN_PROGRESS)
    return Reasoning(item_id, status=ItemStatus.IN_PROGRESS)
