"""Which item events follow from a transcript item.

They are never stored: they are derived when the item is committed and again when a log is read. The record pins the id
of the item and the seq of its last event, so neither depends on what this module projects.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

import attrs

from roder_trio.logic.boundary import is_boundary
from roder_trio.logic.item.number import ItemNumbers
from roder_trio.schema import item as items
from roder_trio.schema import transcript
from roder_trio.schema.event import EventEnvelope, TranscriptItemAppended
from roder_trio.schema.item import ItemCompleted, ItemEventKind, ItemStarted, ItemStatus, ThreadItemEvent
from roder_trio.schema.transcript import TranscriptItem, is_final_phase


def message_base(phase: str | None) -> str:
    """The id base of a message of the model: commentary counts for itself."""
    return "message" if is_final_phase(phase) else f"message-{phase}"


def id_base(item: TranscriptItem) -> str | None:
    """The base of the id of what `item` is shown as; None if it isn't shown."""
    match item:
        case transcript.UserMessage():
            return "user"
        case transcript.AssistantMessage():
            return message_base(item.phase)
        case transcript.ReasoningSummary():
            return "reasoning"
        case transcript.ToolCall() | transcript.ToolResult():
            return f"tool-{item.id}"
        case transcript.ErrorNote():
            return "error"
    return "compaction" if is_boundary(item) else None


def event_count(item: TranscriptItem) -> int:
    """How many item events follow from `item`."""
    match item:
        case transcript.UserMessage() | transcript.ErrorNote():
            return 2
        case (
            transcript.AssistantMessage()
            | transcript.ReasoningSummary()
            | transcript.ToolCall()
            | transcript.ToolResult()
        ):
            return 1
    return 2 if is_boundary(item) else 0


def project(item: TranscriptItem, item_id: str) -> tuple[ItemEventKind, ...]:
    """Return the item events that follow from `item`, shown under `item_id`."""
    match item:
        case transcript.UserMessage(text, images):
            return _whole(partial(items.UserMessage, item_id, text, images))
        case transcript.AssistantMessage(text, phase, interrupted):
            status = ItemStatus.INTERRUPTED if interrupted else ItemStatus.COMPLETED
            return (ItemCompleted(items.AgentMessage(item_id, text, phase, status)),)
        case transcript.ReasoningSummary(text):
            return (ItemCompleted(items.Reasoning(item_id, (text,), (), ItemStatus.COMPLETED)),)
        case transcript.ToolCall(call_id, name, arguments):
            running = items.ToolExecution(item_id, call_id, name, arguments, status=ItemStatus.IN_PROGRESS)
            return (ItemStarted(running),)
        case transcript.ToolResult():
            return (ItemCompleted(_ended(item, item_id)),)
        case transcript.ErrorNote(message):
            return _whole(partial(items.Error, item_id, message))
    if not is_boundary(item):
        return ()
    summary = item.summary if isinstance(item, transcript.ContextCompaction) else ""
    return _whole(partial(items.Compaction, item_id, summary))


def _whole(make: Callable[..., items.UserMessage | items.Error | items.Compaction]) -> tuple[ItemEventKind, ...]:
    """An item that is there all at once: it starts and completes."""
    started, completed = make(status=ItemStatus.IN_PROGRESS), make(status=ItemStatus.COMPLETED)
    return (ItemStarted(started), ItemCompleted(completed))


def _ended(result: transcript.ToolResult, item_id: str) -> items.ToolExecution:
    """A call that has its result; the input is that of the call, which a fold keeps."""
    if result.is_error:
        failed = ItemStatus.FAILED
        return items.ToolExecution(item_id, result.id, result.name, error=result.result, status=failed)
    return items.ToolExecution(item_id, result.id, result.name, output=result.result, status=ItemStatus.COMPLETED)


@attrs.frozen
class Pinned:
    """A transcript item that is shown, with the id of what it is shown as and the seq of its last item event."""

    turn_id: str
    item_id: str
    seq: int
    item: TranscriptItem


ItemStep: TypeAlias = ThreadItemEvent | Pinned
"""An item event, or those that one record stands for."""


def pinned(envelope: EventEnvelope) -> Pinned | None:
    """Return what a stored `TranscriptItemAppended` pins; None without its pins, or of another event."""
    event = envelope.event
    if not isinstance(event, TranscriptItemAppended) or envelope.thread_id is None or envelope.turn_id is None:
        return None
    if event.item_id is None or event.item_seq < 1:
        return None
    return Pinned(envelope.turn_id, event.item_id, event.item_seq, event.item)


def derive(envelope: EventEnvelope) -> tuple[ThreadItemEvent, ...]:
    """Return the item events of a stored `TranscriptItemAppended`; none without its pins, or of another event."""
    pin = pinned(envelope)
    if pin is None or envelope.thread_id is None:
        return ()
    kinds = project(pin.item, pin.item_id)
    first = pin.seq - len(kinds) + 1
    return tuple(
        ThreadItemEvent(
            event_id=f"{envelope.event_id}:{'started' if isinstance(kind, ItemStarted) else 'completed'}",
            seq=seq,
            timestamp=envelope.timestamp,
            thread_id=envelope.thread_id,
            turn_id=pin.turn_id,
            event=kind,
        )
        for seq, kind in enumerate(kinds, first)
        if seq > 0
    )


def merge(stored: Iterable[ThreadItemEvent], envelopes: Iterable[EventEnvelope]) -> tuple[ThreadItemEvent, ...]:
    """Return the stored item events and those derived from `envelopes`, by seq, each once.

    Of two with one seq the stored one wins, then the one whose record pins that seq as its last.
    """
    by_seq: dict[int, ThreadItemEvent] = {}
    for event in stored:
        by_seq.setdefault(event.seq, event)
    firsts: list[ThreadItemEvent] = []
    for envelope in envelopes:
        *earlier, last = derive(envelope) or (None,)
        if last is not None:
            by_seq.setdefault(last.seq, last)
            firsts += [event for event in earlier if event is not None]
    for event in firsts:
        by_seq.setdefault(event.seq, event)
    return tuple(by_seq[seq] for seq in sorted(by_seq))


def steps(stored: Sequence[ThreadItemEvent], envelopes: Sequence[EventEnvelope]) -> Sequence[ItemStep]:
    """Return the same as `merge` for a fold, which derives what it needs: deriving all costs more than the rest of it.

    Only where numbers meet, which no log of one runtime has, the events themselves must be compared.
    """
    found: list[ItemStep] = [pin for envelope in envelopes if (pin := pinned(envelope)) is not None]
    if stored:
        found = sorted([*stored, *found], key=_seq)
    last = 0
    for step in found:
        if not last < first_seq(step) <= step.seq:
            return merge(stored, envelopes)
        last = step.seq
    return found


def first_seq(step: ItemStep) -> int:
    """The seq of the first item event that a step stands for; below 1 if its last one comes too early for all."""
    return step.seq - event_count(step.item) + 1 if isinstance(step, Pinned) else step.seq


def _seq(step: ItemStep) -> int:
    return step.seq


def project_turn(turn_id: str, transcript_items: Iterable[TranscriptItem]) -> tuple[ItemEventKind, ...]:
    """Return the item events of a stored turn whose records pin none and that has no others, for showing it."""
    numbers = ItemNumbers()
    kinds: list[ItemEventKind] = []
    for item in transcript_items:
        base = id_base(item)
        if base is not None:
            kinds += project(item, numbers.take(turn_id, base))
    return tuple(kinds)
