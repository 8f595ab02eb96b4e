"""A window as every dialect sends it: boundaries rendered, each call with one result, ids unique, notes in place.

Pure, the same for all dialects. The items come in as they are stored; what goes out is a list that a dialect maps
one by one. Nothing depends on later items except a call's own result, so a longer window keeps the prefix.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import orjson

from roder_trio.logic.boundary import COMPACTION_TYPES, compaction_items, counts_for, trim_to_last_boundary
from roder_trio.logic.naming import IdForm, WireIds
from roder_trio.logic.replay import StepCall, replayed
from roder_trio.logic.strict_json import is_deep
from roder_trio.schema.inference import EngineTarget
from roder_trio.schema.transcript import (
    AssistantMessage,
    ContextCompaction,
    ErrorNote,
    OpaqueItem,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    TranscriptItem,
    UserMessage,
)

NO_RESULT = "no result was recorded for this call"
CUT_OFF = "[The message above was cut off before it was finished.]"
SUMMARY_HEAD = "Context summary:\n"

Sent = UserMessage | AssistantMessage | ReasoningSummary | ToolCall | ToolResult | ProviderMetadata
"""What a paired list holds. Its metadata is that of the request's own target only."""


def paired(
    transcript: Sequence[TranscriptItem],
    *,
    target: EngineTarget,
    model: str,
    id_form: IdForm = str,
    text_ends_calls: bool = True,
) -> list[Sent]:
    """Return `transcript` as it is sent to `model` at `target`.

    Results stand behind the group of calls they answer, in call order. A group ends at a result or a user message,
    and at assistant text unless `text_ends_calls` is off. Replay metadata stays in place, with its call ids rewritten;
    that of another dialect, provider or model is left out. The texts and calls of its step that its items stand for
    are left out instead: their results stand behind it.
    """
    items = _rendered(trim_to_last_boundary(transcript, target), target)
    ids = WireIds(id_form)
    wires = {place: ids.take(item.id) for place, item in enumerate(items) if isinstance(item, ToolCall)}
    writer = _Writer(items, _results(items), wires, text_ends_calls, lambda payload: _is_replay(payload, target, model))
    for position, item in enumerate(items):
        writer.take(position, item)
    return writer.finish()


def sendable_arguments(text: str) -> str:
    """Return a call's arguments as the text of a JSON object: empty ones as `{}`, others as `{"_raw": text}`."""
    if not text.strip():
        return "{}"
    if is_json_object(text):
        return text
    return orjson.dumps({"_raw": text.encode(errors="replace").decode()}).decode()


def is_json_object(text: str) -> bool:
    """Whether `text` is the whole of a JSON object that can be written again."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and not is_deep(text, value)


# -- boundaries --------------------------------------------------------------------------------------------------------


def _rendered(items: Sequence[TranscriptItem], target: EngineTarget) -> list[TranscriptItem]:
    out: list[TranscriptItem] = []
    for position, item in enumerate(items):
        if isinstance(item, ContextCompaction):
            out.append(UserMessage(SUMMARY_HEAD + item.summary))
            following = items[position + 1] if position + 1 < len(items) else None
            # the caller may have put the message behind the boundary already
            if item.active_request is not None and item.active_request != following:
                out.append(item.active_request)
        elif isinstance(item, ProviderMetadata) and compaction_items(item.payload):
            if counts_for(item, target):
                out.append(ProviderMetadata(_from_last_compaction(item.payload)))
        elif not isinstance(item, ErrorNote | OpaqueItem):
            out.append(item)
    return out


def _from_last_compaction(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    output = list(payload["output"])
    last = max(
        position
        for position, part in enumerate(output)
        if isinstance(part, Mapping) and part.get("type") in COMPACTION_TYPES
    )
    return {**payload, "output": output[last:]}


def _is_replay(payload: Mapping[str, Any], target: EngineTarget, model: str) -> bool:
    if compaction_items(payload) or "compacted_input" in payload:
        return True
    mine = {"dialect": target.dialect, "provider": target.provider, "model": model}
    return isinstance(payload.get("output"), list | tuple) and all(
        payload.get(name) == value for name, value in mine.items()
    )


# -- pairs -------------------------------------------------------------------------------------------------------------


def _results(items: Sequence[TranscriptItem]) -> dict[int, ToolResult]:
    """Return the result of each call, by the call's position."""
    calls: dict[str, list[int]] = {}
    results: dict[int, ToolResult] = {}
    for position, item in enumerate(items):
        if isinstance(item, ToolCall):
            calls.setdefault(item.id, []).append(position)
        elif isinstance(item, ToolResult) and item.id in calls:
            earlier = calls[item.id]
            waiting = [call for call in earlier if call not in results]
            results[(waiting or earlier)[-1]] = item
    return results


@attrs.define
class _Writer:
    """Writes the paired list; `group` holds the calls whose results are still to come."""

    items: Sequence[TranscriptItem]
    results: Mapping[int, ToolResult]
    wires: Mapping[int, str]
    """The wire id of each call, by the call's position."""
    text_ends_calls: bool
    is_replay: Callable[[Mapping[str, Any]], bool]
    out: list[Sent] = attrs.field(factory=list)
    group: list[ToolResult] = attrs.field(factory=list)
    sent: set[str] = attrs.field(factory=set)
    """Wire ids of calls that a stored item stands for."""
    step: int = 0
    """Where in `out` the texts of the newest step begin."""
    cut_off: bool = False

    def take(self, position: int, item: TranscriptItem) -> None:
        match item:
            case ToolCall():
                self._call(position, item)
            case ToolResult():
                self._end_group()
            case UserMessage():
                self._end_group()
                self._note()
                self.out.append(item)
                self.step = len(self.out)
            case AssistantMessage():
                if self.text_ends_calls:
                    self._end_group()
                self.cut_off = self.cut_off or item.interrupted
                self.out.append(item)
            case ReasoningSummary():
                self.out.append(item)
            case ProviderMetadata():
                if self.is_replay(item.payload):
                    self._replay(position, item)
            case _:
                raise AssertionError(f"{type(item).__name__} is rendered before")

    def finish(self) -> list[Sent]:
        self._end_group()
        self._note()
        return self.out

    def _call(self, position: int, call: ToolCall) -> None:
        wire = self.wires[position]
        if wire not in self.sent:
            self.out.append(ToolCall(wire, call.name, sendable_arguments(call.arguments)))
        result = self.results.get(position) or ToolResult(call.id, call.name, NO_RESULT, is_error=True)
        self.group.append(attrs.evolve(result, id=wire, name=result.name or call.name))

    def _replay(self, position: int, item: ProviderMetadata) -> None:
        output = item.payload.get("output")
        if isinstance(output, list | tuple) and not compaction_items(item.payload):
            known = replayed(output, self._calls_behind(position))
            self.sent |= known.calls
            self.out[self.step :] = [part for part in self.out[self.step :] if not _is_said(part, known.text)]
            item = ProviderMetadata({**item.payload, "output": known.output})
        self.out.append(item)
        self.step = len(self.out)

    def _calls_behind(self, position: int) -> list[StepCall]:
        """The calls of the step that the metadata at `position` closes: a log holds them right behind it."""
        calls = []
        for place in range(position + 1, len(self.items)):
            call = self.items[place]
            if not isinstance(call, ToolCall):
                break
            calls.append(StepCall(call, self.wires[place]))
        return calls

    def _end_group(self) -> None:
        if self.group:
            self.out.extend(self.group)
            self.group.clear()
            self.step = len(self.out)

    def _note(self) -> None:
        if self.cut_off:
            self.out.append(UserMessage(CUT_OFF))
            self.cut_off = False


def _is_said(part: Sent, text: str) -> bool:
    return isinstance(part, AssistantMessage) and not part.interrupted and part.text in text
