"""The messages of a Chat Completions body.

Pure. All consecutive calls, with the assistant text before them, are one message; their results follow at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from roder_trio.logic.naming import ToolNames
from roder_trio.logic.pairing import Sent, paired
from roder_trio.logic.window import leave_out_images
from roder_trio.providers.chat_completions.profile import Profile
from roder_trio.schema.inference import EngineTarget, InferenceRequest, Instructions
from roder_trio.schema.transcript import (
    AssistantMessage,
    Image,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    UserMessage,
)

Message = dict[str, Any]


def messages(request: InferenceRequest, profile: Profile, target: EngineTarget, names: ToolNames) -> list[Message]:
    """Return the system messages and the transcript of `request`."""
    items = paired(request.transcript, target=target, model=request.model.model, id_form=profile.id_form)
    last_user = max((place for place, item in enumerate(items) if isinstance(item, UserMessage)), default=-1)
    writer = _Messages(profile, names, _system(request.instructions, profile))
    for place, item in enumerate(items):
        writer.take(item, replays=place > last_user)
    return writer.finish()


def _system(instructions: Instructions, profile: Profile) -> list[Message]:
    texts = [instructions.system, instructions.developer, instructions.developer_context]
    filled = [text for text in texts if text]
    if profile.merge_system and filled:
        filled = ["\n\n".join(filled)]
    return [{"role": profile.system_role, "content": text} for text in filled]


@attrs.define
class _Messages:
    """Writes messages. `open` is the assistant message that calls may still join."""

    profile: Profile
    names: ToolNames
    out: list[Message]
    open: Message | None = None
    reasoning: list[str] = attrs.field(factory=list)
    details: list[Any] = attrs.field(factory=list)
    """Stored entries of reasoning, which a log holds before the calls that they belong to."""
    images: list[Image] = attrs.field(factory=list)

    def take(self, item: Sent, *, replays: bool) -> None:
        match item:
            case AssistantMessage():
                self._close()
                self._flush_images()
                if item.text.strip():
                    self.open = {"role": "assistant", "content": item.text}
            case ToolCall():
                self._call(item, replays=replays)
            case ToolResult():
                self._close()
                self._forget_reasoning()
                self.out.append({"role": "tool", "tool_call_id": item.id, "content": self._result_text(item)})
            case UserMessage():
                self._close()
                self._forget_reasoning()
                self._flush_images()
                self.out.append({"role": "user", "content": self._user_content(item.text, item.images)})
            case ReasoningSummary():
                if replays:
                    self.reasoning.append(item.text)
            case ProviderMetadata():
                if replays:
                    self._stored_reasoning(item.payload)

    def finish(self) -> list[Message]:
        self._close()
        self._flush_images()
        return self.out

    def _close(self) -> None:
        if self.open is not None:
            self.out.append(self.open)
            self.open = None

    def _call(self, call: ToolCall, *, replays: bool) -> None:
        if self.open is None:
            self._flush_images()
            self.open = {"role": "assistant", "content": None}
        field = self.profile.reasoning_replay
        if replays and self.reasoning and field not in (None, "reasoning_details"):
            self.open[field] = self.open.get(field, "") + "".join(self.reasoning)
            self.reasoning.clear()
        if replays and self.details:
            self.open["reasoning_details"] = self.details
            self.details = []
        function = {"name": self.names.wire(call.name), "arguments": call.arguments}
        self.open.setdefault("tool_calls", []).append({"id": call.id, "type": "function", "function": function})

    def _stored_reasoning(self, payload: Mapping[str, Any]) -> None:
        if self.profile.reasoning_replay != "reasoning_details":
            return
        stored = [part for part in payload.get("output", ()) if isinstance(part, Mapping)]
        held = [part.get("entries") for part in stored if part.get("type") == "reasoning_details"]
        entries = [entry for part in held if isinstance(part, list | tuple) for entry in part]
        if entries and self.open is not None and "tool_calls" in self.open:
            self.open["reasoning_details"] = entries
        else:
            self.details = entries

    def _forget_reasoning(self) -> None:
        self.reasoning.clear()
        self.details = []

    def _user_content(self, text: str, images: Sequence[Image]) -> str | list[dict[str, Any]]:
        if not images:
            return text
        if not self.profile.vision:
            return leave_out_images(text, len(images))
        parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        return [*parts, *({"type": "image_url", "image_url": {"url": image.url}} for image in images)]

    def _result_text(self, result: ToolResult) -> str:
        if not result.images:
            return result.result
        if not self.profile.vision:
            return leave_out_images(result.result, len(result.images))
        self.images.extend(result.images)
        note = f"[{len(result.images)} image{'s' if len(result.images) > 1 else ''} of this result: see below.]"
        return f"{result.result}\n{note}" if result.result else note

    def _flush_images(self) -> None:
        if self.images:
            text = "[Images of the tool results above:]"
            self.out.append({"role": "user", "content": self._user_content(text, self.images)})
            self.images = []
