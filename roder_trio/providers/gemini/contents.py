"""The contents of a Gemini body.

Pure. Neighbours of one role are one content. What the model said is sent back as it came, each signature on its own
part; the results of one content's calls stand together in the next.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from roder_trio.logic.naming import ToolNames
from roder_trio.logic.pairing import Sent, paired
from roder_trio.logic.window import leave_out_images
from roder_trio.providers._dialect import decode_json, text_of
from roder_trio.providers.gemini.image import image_part, lacks_bytes
from roder_trio.providers.gemini.profile import Profile
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

Part = Mapping[str, Any]
Content = dict[str, Any]


def contents(request: InferenceRequest, profile: Profile, target: EngineTarget, names: ToolNames) -> list[Content]:
    """Return the transcript of `request`."""
    items = paired(request.transcript, target=target, model=request.model.model, text_ends_calls=False)
    writer = _Contents(profile, names)
    for item in items:
        writer.take(item)
    return writer.finish()


@attrs.define
class _Contents:
    """Writes contents. The calls that wait for their results are remembered with the name they were sent under."""

    profile: Profile
    names: ToolNames
    out: list[Content] = attrs.field(factory=list)
    named: dict[str, str] = attrs.field(factory=dict)
    """Names of the calls that were sent with an id."""
    nameless: deque[str] = attrs.field(factory=deque)
    """Names of the calls that were sent without one, in order."""
    images: list[Image] = attrs.field(factory=list)

    def take(self, item: Sent) -> None:
        match item:
            case UserMessage():
                self._flush_images()
                self._add("user", self._user_parts(item))
            case AssistantMessage():
                self._flush_images()
                if item.text.strip():
                    self._add("model", [{"text": item.text}])
            case ToolCall():
                self._flush_images()
                self._call(item)
            case ToolResult():
                self._result(item)
            case ProviderMetadata():
                self._flush_images()
                self._replay(item.payload)
            case ReasoningSummary():
                pass  # a thought goes back with its signature only

    def finish(self) -> list[Content]:
        self._flush_images()
        return self.out

    def _add(self, role: str, parts: Sequence[Part]) -> None:
        if not parts:
            return
        if self.out and self.out[-1]["role"] == role:
            self.out[-1]["parts"].extend(parts)
        else:
            self.out.append({"role": role, "parts": [*parts]})

    def _call(self, call: ToolCall) -> None:
        name = self.names.wire(call.name)
        part: dict[str, Any] = {
            "functionCall": {"id": call.id, "name": name, "args": decode_json(call.arguments)},
        }
        if self.profile.dummy_signature is not None and not self._has_calls():
            part["thoughtSignature"] = self.profile.dummy_signature
        self.named[call.id] = name
        self._add("model", [part])

    def _has_calls(self) -> bool:
        newest = self.out[-1] if self.out else {"role": "user"}
        return newest["role"] == "model" and any("functionCall" in part for part in newest["parts"])

    def _result(self, result: ToolResult) -> None:
        id = {"id": result.id} if result.id in self.named else {}
        name = self.named.pop(result.id) if id else self.nameless.popleft()
        response = {"error" if result.is_error else "result": self._result_text(result)}
        self._add("user", [{"functionResponse": {**id, "name": name, "response": response}}])

    def _result_text(self, result: ToolResult) -> str:
        if not result.images:
            return result.result
        if not self.profile.vision:
            return leave_out_images(result.result, len(result.images))
        self.images.extend(result.images)
        note = f"[{len(result.images)} image{'s' if len(result.images) > 1 else ''} of this result: see below.]"
        return f"{result.result}\n{note}" if result.result else note

    def _replay(self, payload: Mapping[str, Any]) -> None:
        parts = list(_sendable(payload.get("output")))
        for part in parts:
            call = part.get("functionCall")
            if isinstance(call, Mapping):
                id, name = text_of(call.get("id")), text_of(call.get("name"))
                if id:
                    self.named[id] = name
                else:
                    self.nameless.append(name)
        self._add("model", parts)

    def _user_parts(self, message: UserMessage) -> list[Part]:
        parts: list[Part] = [{"text": message.text}] if message.text or not message.images else []
        if message.images and not self.profile.vision:
            return [*parts, {"text": leave_out_images("", len(message.images))}]
        return [*parts, *map(image_part, message.images)]

    def _flush_images(self) -> None:
        """Show the images of results, behind the group of results that they belong to."""
        if self.images:
            shown = [{"text": "[Images of the tool results above:]"}, *map(image_part, self.images)]
            self._add("user", shown)
            self.images = []


def _sendable(output: Any) -> Iterator[Part]:
    """Yield the stored parts that can be sent; what has a type is of another dialect."""
    for part in output if isinstance(output, list | tuple) else ():
        if isinstance(part, Mapping) and "type" not in part and ("functionCall" in part or not lacks_bytes(part)):
            yield part
