"""Roder's item events folded to what is left of each item: one completion, at its last number.

Rules of the room: pure, JSON values in and records out. Roder writes camelCase here. An item that never completed
failed; an item of a kind that isn't known here is kept raw.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from roder_trio import codec
from roder_trio.logic.item import ItemFold
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.item import ItemCompleted, ItemStatus, ThreadItem, ThreadItemEvent
from roder_trio.stores.roder.goal import snake
from roder_trio.stores.roder.text import JsonObject, RoderDamage, Value
from roder_trio.stores.roder.transcript import image_of, text_of

_KINDS = {"itemStarted": "item_started", "itemDelta": "item_delta", "itemCompleted": "item_completed"}
_ITEMS = {
    "userMessage": "user_message",
    "agentMessage": "agent_message",
    "reasoning": "reasoning",
    "toolExecution": "tool_execution",
    "compaction": "compaction",
    "contextCompaction": "compaction",
    "error": "error",
}
_DELTAS = {
    "agentMessageText": "agent_message_text",
    "reasoningText": "reasoning_text",
    "reasoningSummaryText": "reasoning_summary_text",
    "reasoningSummaryPartAdded": "reasoning_summary_part_added",
    "toolInputText": "tool_input_text",
}


@attrs.define
class _Item:
    """What is known of an item beside what it shows: its last event, and whether it is final."""

    last: ThreadItemEvent
    completed: bool = False


def fold_items(
    thread_id: ThreadId, file: str, values: Iterable[Value], warn: Callable[[str], None]
) -> list[ThreadItemEvent]:
    """One record for each item. Raises RoderDamage."""
    fold = ItemFold()
    known: dict[str, _Item] = {}
    seen: set[str] = set()
    skipped = 0
    for entry in values:
        event = _event_of(thread_id, file, entry)
        if event is None:
            skipped += 1
            continue
        if event.event_id in seen:
            continue
        seen.add(event.event_id)
        fold.apply(event.event)
        item = known.setdefault(event.event.item_id, _Item(event))
        item.last = event
        item.completed = item.completed or isinstance(event.event, ItemCompleted)
    if skipped:
        warn(f"{skipped} events of {file} are of unknown kinds and were skipped")
    return _completions(fold, known)


def _completions(fold: ItemFold, known: Mapping[str, _Item]) -> list[ThreadItemEvent]:
    """The records, by number; a number that is taken is raised to the next free one."""
    shown = {item.id: item for item in fold.items()}
    records: list[ThreadItemEvent] = []
    seq = 0
    for item_id, item in sorted(known.items(), key=lambda entry: entry[1].last.seq):
        seq = max(seq + 1, item.last.seq)
        final = ItemCompleted(_final(shown[item_id], completed=item.completed))
        records.append(attrs.evolve(item.last, seq=seq, event=final))
    return records


def _final(item: ThreadItem, *, completed: bool) -> ThreadItem:
    return item if completed else attrs.evolve(item, status=ItemStatus.FAILED)


def _event_of(thread_id: ThreadId, file: str, entry: Value) -> ThreadItemEvent | None:
    """The item event of a line; None if its kind or its delta isn't known. Raises RoderDamage."""
    value = entry.value
    event = value.get("event")
    if not isinstance(event, dict) or value.get("threadId") not in (None, thread_id):
        raise RoderDamage(file, entry.line, "an item event has no event, or names another thread")
    mapped = _kind_of(event)
    if mapped is None:
        return None
    record = {
        "type": "item_event",
        "event_id": value.get("eventId"),
        "seq": value.get("seq", 0),
        "timestamp": value.get("timestamp"),
        "thread_id": thread_id,
        "turn_id": value.get("turnId"),
        "event": mapped,
    }
    try:
        read = codec.decode_record(record)
    except codec.DecodeError as error:
        raise RoderDamage(file, entry.line, str(error)) from error
    assert isinstance(read, ThreadItemEvent)
    return read


def _kind_of(event: JsonObject) -> JsonObject | None:
    kind = _known(_KINDS, event)
    if kind == "item_delta":
        delta: Any = event.get("delta")
        known = _known(_DELTAS, delta)
        if known is None:
            return None
        return {"type": kind, "item_id": event.get("itemId"), "delta": _fields(delta, known)}
    return None if kind is None else {"type": kind, "item": _item_of(event.get("item"))}


def _known(names: Mapping[str, str], value: Any) -> str | None:
    """Our name of the type that a value has; None if it has none that is known."""
    tag = value.get("type") if isinstance(value, dict) else None
    return names.get(tag) if isinstance(tag, str) else None


def _item_of(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    known = _known(_ITEMS, item)
    if known is None:
        raw = {"type": "raw", "id": item.get("id"), "payload": item}
        status = item.get("status")
        return {**raw, "status": snake(status)} if isinstance(status, str) else raw
    return _fields(item, known)


def _fields(value: Mapping[str, Any], tag: str) -> JsonObject:
    """The fields of an item or a delta, renamed; nulls are left out."""
    fields = {snake(name): part for name, part in value.items() if part is not None}
    if isinstance(fields.get("status"), str):
        fields["status"] = snake(fields["status"])
    if isinstance(fields.get("images"), list):
        fields["images"] = [image_of(image) for image in fields["images"]]
    if tag == "tool_execution":
        fields.update({name: text_of(fields[name]) for name in ("input", "output", "error") if name in fields})
    return {**fields, "type": tag}
