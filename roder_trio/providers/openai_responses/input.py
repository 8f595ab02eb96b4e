"""The `input` of a Responses body: a transcript as items.

Pure. What a step left in the provider's own form is sent as it came; what is canonical becomes items without ids. The
developer's context stands directly before the last user message, so that all before it stays the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson

from roder_trio.logic.naming import ToolNames
from roder_trio.logic.pairing import CUT_OFF, Sent, paired, sendable_arguments
from roder_trio.logic.window import leave_out_images
from roder_trio.providers._dialect import text_of
from roder_trio.providers.openai_responses.profile import Profile
from roder_trio.schema.inference import EngineTarget, InferenceRequest
from roder_trio.schema.transcript import (
    AssistantMessage,
    Image,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    UserMessage,
)

Item = dict[str, Any]

_PHASES = ("commentary", "final_answer")


def input_items(
    request: InferenceRequest, profile: Profile, target: EngineTarget, names: ToolNames, context: str | None
) -> list[Any]:
    """Return the transcript of `request` as items, `context` among them."""
    items = paired(request.transcript, target=target, model=request.model.model)
    asked = [place for place, item in enumerate(items) if isinstance(item, UserMessage) and item.text != CUT_OFF]
    place = asked[-1] if asked else len(items)
    fields = (
        {tool.name: tool.freeform_field for tool in request.tools if tool.freeform_field} if profile.freeform else {}
    )
    writer = _Input(profile, names, fields)
    for item in items[:place]:
        writer.take(item)
    if context:
        writer.out.append(text_message(profile.context_role, context))
    for item in items[place:]:
        writer.take(item)
    return writer.out


def text_message(role: str, text: str) -> Item:
    """Return a message that the model is given, of one text."""
    return {"type": "message", "role": role, "content": [_input_text(text)]}


@attrs.define
class _Input:
    """Writes items. `custom` holds the ids of the calls that were sent as those of freeform tools."""

    profile: Profile
    names: ToolNames
    fields: Mapping[str, str]
    """The one argument of each freeform tool."""
    out: list[Any] = attrs.field(factory=list)
    custom: set[str] = attrs.field(factory=set)

    def take(self, item: Sent) -> None:
        match item:
            case UserMessage(text, images):
                self.out.append({"type": "message", "role": "user", "content": self._content(text, images)})
            case AssistantMessage():
                self._said(item)
            case ToolCall():
                self._call(item)
            case ToolResult():
                kind = "custom_tool_call_output" if item.id in self.custom else "function_call_output"
                output = self._content(item.result, item.images) if item.images else item.result
                self.out.append({"type": kind, "call_id": item.id, "output": output})
            case ReasoningSummary():
                pass  # a server takes reasoning in its own form only
            case ProviderMetadata(payload):
                self._stored(payload)

    def _said(self, message: AssistantMessage) -> None:
        if not message.text.strip():
            return
        said: Item = {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": message.text}],
        }
        if self.profile.phases and message.phase in _PHASES:
            said["phase"] = message.phase
        self.out.append(said)

    def _call(self, call: ToolCall) -> None:
        named = {"call_id": call.id, "name": self.names.wire(call.name)}
        field = self.fields.get(call.name)
        if field is None:
            self.out.append({"type": "function_call", **named, "arguments": call.arguments})
        else:
            self.custom.add(call.id)
            self.out.append({"type": "custom_tool_call", **named, "input": _raw_input(call.arguments, field)})

    def _stored(self, payload: Mapping[str, Any]) -> None:
        compacted = payload.get("compacted_input")
        if isinstance(compacted, list | tuple):
            self.out.extend(compacted)
            return
        for part in payload["output"]:
            if isinstance(part, Mapping):
                self.out.append(self._stored_item(part))

    def _stored_item(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        match part.get("type"):
            case "custom_tool_call":
                self.custom.add(text_of(part.get("call_id")))
            case "function_call":
                written = text_of(part.get("arguments"))
                arguments = sendable_arguments(written)
                return part if arguments == written else {**part, "arguments": arguments}
            case "reasoning" if not self.profile.encrypted_reasoning:
                return {name: value for name, value in part.items() if name != "encrypted_content"}
        return part

    def _content(self, text: str, images: Sequence[Image]) -> list[Item]:
        if images and not self.profile.vision:
            return [_input_text(leave_out_images(text, len(images)))]
        texts = [_input_text(text)] if text or not images else []
        return [*texts, *({"type": "input_image", "image_url": image.url} for image in images)]


def _input_text(text: str) -> Item:
    return {"type": "input_text", "text": text}


def _raw_input(arguments: str, field: str) -> str:
    """Return what a freeform tool was given; arguments that aren't its one text stay as they were written."""
    value = orjson.loads(arguments)
    names = ("input", field, "_raw")
    whole = next((value[name] for name in names if value.keys() == {name} and isinstance(value[name], str)), None)
    return whole if whole is not None else arguments if value else ""
