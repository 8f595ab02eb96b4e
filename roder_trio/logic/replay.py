"""Stored provider items as they go back to the provider that they came from.

Pure, the same for all dialects. What a step's items stand for is not sent a second time in canonical form: calls are
matched by id, those that the wire gave no id by name and arguments, texts by what they say.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from roder_trio.logic import strict_json
from roder_trio.logic.naming import plain_name
from roder_trio.schema.transcript import ToolCall

_CALL_TYPES = ("function_call", "custom_tool_call")


@attrs.frozen
class StepCall:
    """A call of the step that the items belong to, with its id on the wire."""

    call: ToolCall
    wire: str


@attrs.frozen
class Replayed:
    """A step's items as they are sent, the wire ids of the calls they stand for, and the text they hold."""

    output: list[Any]
    calls: frozenset[str]
    text: str


def replayed(output: Sequence[Any], calls: Sequence[StepCall]) -> Replayed:
    """Return `output` with its call ids rewritten; a call that the step doesn't hold would have no result, and goes."""
    parts: list[Any] = []
    left = list(calls)
    for part in output:
        if not isinstance(part, Mapping) or not _is_call(part):
            parts.append(part)
            continue
        found = _match(part, left)
        if found is not None:
            left.remove(found)
            parts.append(part if call_id(part) is None else with_call_id(part, found.wire))
    sent = frozenset(call.wire for call in calls if call not in left)
    return Replayed(parts, sent, "".join(_texts(parts)))


def call_id(part: Mapping[str, Any]) -> str | None:
    """Return the id of the call that a stored provider item is; None for all else, hosted calls included."""
    if part.get("type") in _CALL_TYPES:
        found = part.get("call_id")
    elif part.get("type") == "tool_use":
        found = part.get("id")
    else:
        inner = part.get("functionCall")
        found = inner.get("id") if isinstance(inner, Mapping) else None
    return found if isinstance(found, str) and found else None


def with_call_id(part: Mapping[str, Any], wire: str) -> Mapping[str, Any]:
    """Return a stored provider item that is a call under the id `wire`."""
    if "functionCall" in part:
        return {**part, "functionCall": {**part["functionCall"], "id": wire}}
    return {**part, "call_id" if "call_id" in part else "id": wire}


def message_text(part: Mapping[str, Any]) -> str:
    """Return what a stored message or text part says to the user; "" for all else."""
    if part.get("type") == "message":
        content = part.get("content")
        texts = [
            piece.get("text", piece.get("refusal"))
            for piece in (content if isinstance(content, list | tuple) else ())
            if isinstance(piece, Mapping)
        ]
        return "".join(text for text in texts if isinstance(text, str))
    text = part.get("text")
    said = part.get("type", "text") == "text" and not part.get("thought") and isinstance(text, str)
    return str(text) if said else ""


def _is_call(part: Mapping[str, Any]) -> bool:
    return (
        part.get("type") in _CALL_TYPES
        or part.get("type") == "tool_use"
        or isinstance(part.get("functionCall"), Mapping)
    )


def _texts(parts: Sequence[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Mapping):
            yield message_text(part)


def _match(part: Mapping[str, Any], calls: Sequence[StepCall]) -> StepCall | None:
    id = call_id(part)
    if id is not None or "functionCall" not in part:
        return next((call for call in calls if call.call.id == id), None)
    arguments, name = part["functionCall"].get("args") or {}, part["functionCall"].get("name")
    same = [call for call in calls if _arguments(call.call) == arguments]
    named = [call for call in same if isinstance(name, str) and plain_name(name) == plain_name(call.call.name)]
    return next(iter((*named, *same)), None)


def _arguments(call: ToolCall) -> Any:
    try:
        return strict_json.parse(call.arguments or "{}")
    except strict_json.JsonFlaw:
        return None
