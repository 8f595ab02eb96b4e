"""What the items of a Responses answer say, as events.

Pure; fresh ids come from outside. A text may come up to three times, in pieces, with its item and in the final frame:
only the first counts. The events of a call follow its start, which waits for an id and a name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from roder_trio.providers._calls import CallQueue
from roder_trio.providers._dialect import encode_json, inner, text_of
from roder_trio.providers._facts import Facts
from roder_trio.providers.openai_responses.items import CALL_TYPES, Item, Items, as_replayed
from roder_trio.providers.openai_responses.profile import Profile
from roder_trio.schema.inference import (
    Compaction,
    CompactionStatus,
    HostedToolCallCompleted,
    HostedToolCallStarted,
    InferenceEvent,
    MessageDelta,
    ReasoningDelta,
)

Events = list[InferenceEvent]
Value = Mapping[str, Any]

_CUSTOM = "custom_tool_call"
_HOSTED_INPUTS = ("action", "queries", "code")
_REASONING_TEXTS = (("reasoning_summary_text", "summary"), ("reasoning_text", "content"))


class Content:
    """The content of one answer."""

    def __init__(self, facts: Facts[Profile]) -> None:
        self.refused = False
        """Whether the model refused in some text."""
        self._facts = facts
        self._items = Items()
        self._calls = CallQueue()
        self._shown: set[str] = set()
        """The ids of hosted calls."""

    @property
    def has_calls(self) -> bool:
        """Whether the answer holds calls of tools of ours."""
        return len(self._calls) > 0

    # -- items

    def added(self, value: Value, place: Any) -> Events:
        """Take the beginning of an item."""
        item = self._items.named(value.get("id"))
        if item is None:
            item = self._items.add(value, place)
        else:
            item.value = value
            item.type = item.type if item.call is not None else text_of(value.get("type"))
        return self._begin(item)

    def done(self, value: Value, place: Any) -> Events:
        """Take an item as it ended."""
        return self._complete(self._items.of_value(value, place) or self._items.add(value, place), value)

    def rest(self, output: Sequence[Value]) -> Events:
        """Take what the final frame lists: that of it which wasn't told yet is told now."""
        out: Events = []
        for place, (value, known) in enumerate(zip(output, self._items.finals(output), strict=True)):
            out.extend(self._complete(known or self._items.add(value, place), value))
        return out

    def finish(self, stop_reason: str | None) -> Events:
        """Close what is open still; to be called at the end."""
        out: Events = []
        for item in self._items:
            if item.is_call:
                out.extend(self._begin_call(item, at_end=True))
            elif item.is_hosted and not item.done:
                out.extend(self._complete(item, item.value))
        return [*out, *self._calls.finish(stop_reason)]

    def replayed(self, output: Sequence[Value]) -> list[Value]:
        """Return the items to be stored: those of the final frame, else those that were collected."""
        if output:
            finals = zip(output, self._items.finals(output), strict=True)
            return [value if item is None else as_replayed(item, value) for value, item in finals]
        done = sorted((item for item in self._items if item.done), key=lambda item: item.place)
        return [as_replayed(item, item.value) for item in done]

    # -- texts

    def text(self, frame: Value, kind: str, text: str, *, repeats: bool = False) -> Events:
        """Take a piece of a message; one that `repeats` counts only if nothing of its part came before."""
        return self._say(self._part_of(frame, "message"), kind, _place(frame, "content_index"), text, repeats=repeats)

    def reasoning(self, frame: Value, kind: str, text: str, *, repeats: bool = False) -> Events:
        """Take a piece of reasoning; one that `repeats` counts only if nothing of its part came before."""
        place = _place(frame, "summary_index" if kind == "reasoning_summary_text" else "content_index")
        return self._think(self._part_of(frame, "reasoning"), kind, place, text, repeats=repeats)

    def _part_of(self, frame: Value, type: str) -> Item:
        known = self._items.of_frame(frame, type)
        # a server may leave out that the item began
        return known or self._items.add({"type": type, "id": frame.get("item_id")}, frame.get("output_index"))

    def _say(self, item: Item, kind: str, place: int, text: str, *, repeats: bool) -> Events:
        if not text or (repeats and ("text", place) in item.told):
            return []
        item.told.add(("text", place))
        self.refused = self.refused or kind == "refusal"
        return [MessageDelta(text, item.phase)]

    def _think(self, item: Item, kind: str, place: int, text: str, *, repeats: bool) -> Events:
        part = (kind, place)
        if not text or (repeats and part in item.told):
            return []
        gap = "\n\n" if item.told and part not in item.told else ""
        item.told.add(part)
        return [ReasoningDelta(gap + text)]

    # -- calls

    def arguments(self, frame: Value, text: str) -> Events:
        """Take a piece of a call's arguments."""
        item = self._items.of_frame(frame, *CALL_TYPES)
        if item is None or item.done or not item.is_call:
            return []
        item.pieces.append(text)
        return [] if item.call is None else self._calls.grow(item.call, text, silent=item.type == _CUSTOM)

    def all_arguments(self, frame: Value, text: str) -> Events:
        """Take a call's arguments as they ended."""
        item = self._items.of_frame(frame, *CALL_TYPES)
        if item is None or not item.is_call or not text:
            return []
        if item.call is None:
            item.pieces = [text]
            return []
        return self._close(item, text)

    def _begin_call(self, item: Item, *, at_end: bool = False) -> Events:
        id, name = text_of(item.value.get("call_id")), text_of(item.value.get("name"))
        if item.call is not None or not (at_end or (id and name)):
            return []
        id = id or item.id
        while not id or id in self._calls:
            id = self._facts.fresh()
        item.call = id
        out = self._calls.start(id, self._facts.names.canonical(name))
        return [*out, *self._calls.grow(id, "".join(item.pieces), silent=item.type == _CUSTOM)]

    def _close(self, item: Item, text: str, *, whole: bool = True) -> Events:
        """End a call that began; of a cut one without arguments the end of the answer tells what they mean."""
        came = "".join(item.pieces)
        text = text or came
        if item.type == _CUSTOM:
            arguments = orjson.dumps({"input": text}).decode() if whole else text
            return self._calls.close(item.call or "", arguments)
        # deltas that are told must give the arguments
        missing = text[len(came) :] if came and text.startswith(came) else ""
        out: Events = self._calls.grow(item.call or "", missing)
        return [*out, *self._calls.close(item.call or "", text)]

    # -- beginnings and ends

    def _begin(self, item: Item) -> Events:
        if item.is_call:
            return self._begin_call(item)
        if item.is_hosted and item.call is None:
            id = item.id
            while not id or id in self._shown:
                id = self._facts.fresh()
            self._shown.add(id)
            item.call, item.name = id, text_of(item.value.get("name")) or item.type.removesuffix("_call")
            return [HostedToolCallStarted(id, item.name)]
        if item.is_compaction and item.call is None:
            item.call = item.id
            return [Compaction(CompactionStatus.STARTED, item.id or None)]
        return []

    def _complete(self, item: Item, value: Value) -> Events:
        """Tell what of a finished item wasn't told yet."""
        if item.done:
            return []
        item.value = value
        out = self._begin_call(item, at_end=True) if item.is_call else self._begin(item)
        item.done = True
        if item.is_call:
            given = _written(value.get("input" if item.type == _CUSTOM else "arguments"))
            return [*out, *self._close(item, given, whole=value.get("status") != "incomplete")]
        if item.is_hosted:
            return [*out, HostedToolCallCompleted(item.call or "", item.name, _hosted_arguments(value))]
        if item.is_compaction:
            return [*out, Compaction(CompactionStatus.COMPLETED, item.id or None, value)]
        return self._untold(item, value)

    def _untold(self, item: Item, value: Value) -> Events:
        out: Events = []
        if item.type == "message":
            for place, part in enumerate(_list(value.get("content"))):
                kind = "refusal" if inner(part, "type") == "refusal" else "output_text"
                text = text_of(inner(part, "refusal" if kind == "refusal" else "text"))
                out.extend(self._say(item, kind, place, text, repeats=True))
        elif item.type == "reasoning" and not item.told:
            for kind, field in _REASONING_TEXTS:
                for place, part in enumerate(_list(value.get(field))):
                    out.extend(self._think(item, kind, place, text_of(inner(part, "text")), repeats=True))
        return out


def _hosted_arguments(value: Value) -> str:
    given = [value.get(name) for name in ("arguments", *_HOSTED_INPUTS)]
    first = next((part for part in given if part not in (None, "")), None)
    return (first if isinstance(first, str) and first == given[0] else _json(first)) if first is not None else "{}"


def _written(value: Any) -> str:
    """Return arguments as text, whether they came as one or as JSON."""
    return value if isinstance(value, str) else "" if value is None else _json(value)


def _json(value: Any) -> str:
    return encode_json(value).decode()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _place(frame: Value, name: str) -> int:
    place = frame.get(name)
    return place if type(place) is int else 0
