"""Roder's events as envelopes of ours.

Rules of the room: pure but for what an `EventReader` remembers of the events before. Ids stay; numbers are given anew,
since Roder's begin again with each process and the order of the file is the order. An event that isn't known here, or
lacks what ours needs, is kept as `Unknown` under `roder.<Tag>`. A call without a result gets one at its turn's end.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from roder_trio import codec
from roder_trio.logic.pairing import NO_RESULT
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import StoredRecord
from roder_trio.stores.roder.goal import derived_id, goal_of
from roder_trio.stores.roder.text import JsonObject
from roder_trio.stores.roder.transcript import given, item_of, message_of, opaque, text_of, untagged, usage_of

ITEM_APPENDED = "TranscriptItemAppended"
TERMINAL = ("TurnCompleted", "TurnFailed", "TurnInterrupted")


@attrs.define
class EventReader:
    """Reads the events of one thread in the order of its file."""

    thread_id: ThreadId
    provider: str
    model: str
    seq: int = 0
    seen: set[str] = attrs.field(factory=set)
    ended: set[str] = attrs.field(factory=set)
    indexes: dict[str, int] = attrs.field(factory=dict)
    started: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    """Provider and model of each turn."""
    steers: dict[str, list[tuple[str, str]]] = attrs.field(factory=dict)
    """Id and text of the steers of each turn that no user message followed yet."""
    calls: dict[str, dict[str, str]] = attrs.field(factory=dict)
    """Id and name of the calls of each turn that have no result yet."""
    goal_id: str | None = None

    def read(self, value: Mapping[str, Any]) -> list[StoredRecord]:
        """The records of one event: none, or itself behind what its turn lacks. Raises ValueError, DecodeError."""
        event_id = value.get("event_id")
        if not isinstance(event_id, str):
            raise ValueError("an event has no event_id")
        if value.get("thread_id") not in (None, self.thread_id):
            raise ValueError(f"an event names thread {value['thread_id']!r}")
        tag, content = untagged(value.get("event"))
        if event_id in self.seen or self._is_dropped(tag, content):
            return []
        self.seen.add(event_id)
        before = self._results(value) if tag in TERMINAL else []
        record = self._record(value, tag, content if isinstance(content, dict) else {}, content)
        usage = self._usage(value, content) if tag in TERMINAL else None
        return [*before, record] if usage is None else [*before, usage, record]

    @staticmethod
    def _is_dropped(tag: str, content: Any) -> bool:
        marker = tag == ITEM_APPENDED and not (isinstance(content, dict) and content.get("item") is not None)
        return marker or tag == "InferenceEventReceived"

    def _record(self, value: Mapping[str, Any], tag: str, fields: JsonObject, content: Any) -> StoredRecord:
        """The envelope of an event, mapped if it can be."""
        self.seq += 1
        make = _EVENTS.get(tag)
        if make is not None:
            mapped = make(self, value, fields)
            if tag == ITEM_APPENDED:
                return self._decode(value, mapped)
            try:
                return self._decode(value, mapped)
            except codec.DecodeError:
                pass  # it has another shape than is known here, which is no reason to lose it
        return self._decode(value, opaque(f"roder.{tag}", content))

    def _decode(self, value: Mapping[str, Any], event: JsonObject, **fields: Any) -> StoredRecord:
        source = value.get("source")
        return codec.decode_record(
            {
                "type": "event",
                "event_id": value["event_id"],
                "seq": self.seq,
                "timestamp": value.get("timestamp"),
                "source": source if isinstance(source, str) else "roder",
                "thread_id": self.thread_id,
                **given(turn_id=value.get("turn_id")),
                "event": event,
                **fields,
            }
        )

    def _results(self, value: Mapping[str, Any]) -> list[StoredRecord]:
        """A result for each call of a turn that ends without one."""
        return [
            self._record(
                {**value, "event_id": derived_id(self.thread_id, value["event_id"], call_id)},
                ITEM_APPENDED,
                {"item": {"ToolResult": {"id": call_id, "name": name, "result": NO_RESULT, "is_error": True}}},
                None,
            )
            for call_id, name in list(self.calls.get(str(value.get("turn_id")), {}).items())
        ]

    def _usage(self, value: Mapping[str, Any], content: Any) -> StoredRecord | None:
        """What a turn used in all, told once, before its end."""
        turn_id = value.get("turn_id")
        usage = usage_of(content.get("usage")) if isinstance(content, dict) else None
        if not isinstance(turn_id, str) or turn_id in self.ended:
            return None
        self.ended.add(turn_id)
        if usage is None:
            return None
        provider, model = self.started.get(turn_id, (self.provider, self.model))
        return self._decode(
            value,
            {
                "type": "usage.recorded",
                "attempt_id": f"import:{turn_id}",
                "report": 1,
                "turn_id": turn_id,
                "usage": usage,
                "purpose": "sampling",
                "provider": provider,
                "model": model,
            },
            event_id=f"import:{turn_id}:1",
            seq=0,
            source="accounting",
        )

    def note_call(self, turn_id: str, item: JsonObject) -> None:
        """Remember a call until its result comes."""
        calls, call_id = self.calls.setdefault(turn_id, {}), str(item.get("id"))
        if item["type"] == "tool_call":
            calls[call_id] = str(item.get("name"))
        elif item["type"] == "tool_result":
            calls.pop(call_id, None)

    def steer_for(self, turn_id: Any, item: JsonObject) -> str | None:
        """The id of the steer that a user message delivers."""
        waiting = self.steers.get(turn_id, [])
        if item["type"] == "user_message" and waiting and waiting[0][1] == item.get("text"):
            return waiting.pop(0)[0]
        return None


_Make = Callable[[EventReader, Mapping[str, Any], JsonObject], JsonObject]


def _turn_started(reader: EventReader, value: Mapping[str, Any], fields: JsonObject) -> JsonObject:
    provider, model = fields.get("provider") or reader.provider, fields.get("model") or reader.model
    reader.started[str(value.get("turn_id"))] = (str(provider), str(model))
    return {"type": "turn.started", "provider": provider, "model": model, **given(reasoning=fields.get("reasoning"))}


def _item_appended(reader: EventReader, value: Mapping[str, Any], fields: JsonObject) -> JsonObject:
    turn_id = str(value.get("turn_id"))
    index = reader.indexes.get(turn_id, 0)
    reader.indexes[turn_id] = index + 1
    item = item_of(fields["item"])
    steer_id = reader.steer_for(turn_id, item)
    reader.note_call(turn_id, item)
    return {"type": "turn.item_appended", "index": index, "item": item, **given(steer_id=steer_id)}


def _steer_accepted(reader: EventReader, value: Mapping[str, Any], fields: JsonObject) -> JsonObject:
    told = fields.get("message", fields.get("text"))
    steer_id = fields.get("steer_id") or value["event_id"]
    message = message_of(told) if isinstance(told, dict) else given(text=told)
    if isinstance(message.get("text"), str):
        reader.steers.setdefault(str(value.get("turn_id")), []).append((steer_id, message["text"]))
    return {"type": "turn.steer_accepted", "steer_id": steer_id, "message": message}


def _goal_updated(reader: EventReader, value: Mapping[str, Any], fields: JsonObject) -> JsonObject:
    told = fields.get("goal")
    event = goal_of(reader.thread_id, told if isinstance(told, dict) else fields, value["event_id"])
    reader.goal_id = event["goal"]["goal_id"]
    return event


def _approval_resolved(_: EventReader, value: Mapping[str, Any], fields: JsonObject) -> JsonObject:
    outcome = fields.get("outcome", fields.get("decision", fields.get("approved")))
    if isinstance(outcome, bool):
        outcome = "approved" if outcome else "denied"
    outcome = outcome.lower() if isinstance(outcome, str) else outcome
    return {"type": "approval.resolved", "approval_id": fields.get("approval_id"), "outcome": outcome}


_EVENTS: Mapping[str, _Make] = {
    "TurnStarted": _turn_started,
    ITEM_APPENDED: _item_appended,
    "TurnSteered": _steer_accepted,
    "TurnCompleted": lambda _, value, fields: {
        "type": "turn.completed",
        **given(usage=usage_of(fields.get("usage")), finish_reason=fields.get("finish_reason")),
    },
    "TurnFailed": lambda _, value, fields: {
        "type": "turn.failed",
        "error": text_of(fields.get("error", fields.get("message", ""))),
        "error_kind": fields.get("error_kind") or "internal",
        **given(usage=usage_of(fields.get("usage"))),
    },
    "TurnInterrupted": lambda _, value, fields: {
        "type": "turn.interrupted",
        "reason": fields.get("reason") or "user",
        **given(usage=usage_of(fields.get("usage"))),
    },
    "ToolCallStarted": lambda _, value, fields: {"type": "tool.started", **_call(fields)},
    "ToolCallCompleted": lambda _, value, fields: {
        "type": "tool.finished",
        "call_id": _call(fields)["call_id"],
        "is_error": fields.get("is_error", False),
    },
    "ToolCallFailed": lambda _, value, fields: {
        "type": "tool.finished",
        "call_id": _call(fields)["call_id"],
        "is_error": True,
    },
    "ApprovalRequested": lambda _, value, fields: {
        "type": "approval.requested",
        "approval_id": fields.get("approval_id"),
        **_call(fields),
        "arguments": text_of(fields.get("arguments", "{}")),
        **given(reason=fields.get("reason")),
    },
    "ApprovalResolved": _approval_resolved,
    "ThreadGoalUpdated": _goal_updated,
    "GoalUpdated": _goal_updated,
    "ThreadGoalCleared": lambda reader, value, fields: _goal_cleared(reader),
    "GoalCleared": lambda reader, value, fields: _goal_cleared(reader),
}


def _call(fields: JsonObject) -> JsonObject:
    """The id and the name of a call, under whichever key they stand."""
    call_id = next((fields[key] for key in ("call_id", "tool_call_id", "id") if key in fields), None)
    return {"call_id": call_id, "name": fields.get("name", fields.get("tool_name"))}


def _goal_cleared(reader: EventReader) -> JsonObject:
    return {"type": "goal.cleared", "goal_id": reader.goal_id, "cause": "import"}
