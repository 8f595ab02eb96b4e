"""The messages of a Messages body: blocks, in turns of user and assistant.

Pure. Neighbours of one role are one message, so that all results of a step stand together, before any text. What an
answer left is sent as it came; only what the server would refuse is left out: blank texts, thinking that was cut off
before its signature, calls of the provider's own tools whose results were lost, and such results without their calls.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

import attrs

from roder_trio.logic.naming import ToolNames
from roder_trio.logic.pairing import Sent
from roder_trio.logic.window import leave_out_images
from roder_trio.providers._dialect import decode_json, text_of
from roder_trio.providers.anthropic.block import HOSTED
from roder_trio.providers.anthropic.profile import Profile
from roder_trio.schema.transcript import (
    AssistantMessage,
    Image,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    UserMessage,
)

Block = Mapping[str, Any]
Message = dict[str, Any]

_OUTSIDE = re.compile(r"[^A-Za-z0-9_-]")
_DATA_URL = re.compile(r"data:([^;,]*)([^,]*),(.*)", re.DOTALL)


def wire_id(id: str) -> str:
    """Return the id of a call in the letters that the wire takes."""
    return _OUTSIDE.sub("_", id) or "call"


def messages(items: Sequence[Sent], profile: Profile, names: ToolNames) -> list[Message]:
    """Return the paired items of a request as messages."""
    writer = _Writer(profile, names)
    for item in items:
        writer.take(item)
    return _trimmed(_grouped(_without_halves(writer.out)))


def text_blocks(text: str | None) -> list[Block]:
    """Return a text as a block; a blank one has none."""
    return [{"type": "text", "text": text}] if text and text.strip() else []


@attrs.define
class _Writer:
    """Writes blocks, each with the role that says it."""

    profile: Profile
    names: ToolNames
    out: list[tuple[str, Block]] = attrs.field(factory=list)

    def take(self, item: Sent) -> None:
        match item:
            case UserMessage():
                self._say("user", self._content(item.text, item.images))
            case AssistantMessage():
                self._say("assistant", text_blocks(item.text))
            case ToolCall():
                given = decode_json(item.arguments)
                call = {"type": "tool_use", "id": item.id, "name": self.names.wire(item.name), "input": given}
                self._say("assistant", [call])
            case ToolResult():
                self._say("user", [self._result(item)])
            case ProviderMetadata():
                held = item.payload.get("compacted_input", item.payload.get("output"))
                stored = held if isinstance(held, list | tuple) else ()
                self._say("assistant", [part for part in stored if isinstance(part, Mapping) and _may_go_back(part)])
            case ReasoningSummary():
                pass  # only signed thinking is taken back

    def _say(self, role: str, blocks: Sequence[Block]) -> None:
        self.out.extend((role, block) for block in blocks)

    def _content(self, text: str, images: Sequence[Image]) -> list[Block]:
        if images and not self.profile.vision:
            return text_blocks(leave_out_images(text, len(images)))
        return [*text_blocks(text), *({"type": "image", "source": _source(image.url)} for image in images)]

    def _result(self, result: ToolResult) -> Block:
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.id}
        content = self._content(result.result, result.images)
        if content:
            block["content"] = content
        if result.is_error:
            block["is_error"] = True
        return block


def _source(url: str) -> dict[str, str]:
    data = _DATA_URL.match(url)
    if data is None:
        return {"type": "url", "url": url}
    kind, options, text = data.groups()
    if ";base64" not in options:
        text = b64encode(unquote_to_bytes(text)).decode()
    return {"type": "base64", "media_type": kind or "text/plain", "data": text}


def _may_go_back(block: Block) -> bool:
    match block.get("type"):
        case "text":
            return bool(text_of(block.get("text")).strip())
        case "thinking":
            return bool(block.get("signature"))
        case kind:
            return bool(kind)


def _without_halves(said: list[tuple[str, Block]]) -> list[tuple[str, Block]]:
    """Leave out results of the provider's tools without their calls, and calls whose results can't come any more.

    They can while nothing but results of ours stands behind the newest assistant message.
    """
    asked = {text_of(block.get("id")) for _, block in said if block["type"] in HOSTED}
    answered = {text_of(block.get("tool_use_id")) for _, block in said} - {""}
    open_from = len(said)
    while open_from and said[open_from - 1][1]["type"] == "tool_result":
        open_from -= 1
    while open_from and said[open_from - 1][0] == "assistant":
        open_from -= 1
    return [
        (role, block)
        for place, (role, block) in enumerate(said)
        if (place >= open_from or block["type"] not in HOSTED or text_of(block.get("id")) in answered)
        and (block["type"] == "tool_result" or block.get("tool_use_id") in (None, *asked))
    ]


def _grouped(said: Sequence[tuple[str, Block]]) -> list[Message]:
    out: list[Message] = []
    for role, block in said:
        if out and out[-1]["role"] == role:
            out[-1]["content"].append(block)
        else:
            out.append({"role": role, "content": [block]})
    return out


def _trimmed(sent: list[Message]) -> list[Message]:
    """Take white space off the end of a last assistant text, which the server would refuse."""
    if sent and sent[-1]["role"] == "assistant":
        content = sent[-1]["content"]
        if content[-1]["type"] == "text":
            content[-1] = {**content[-1], "text": content[-1]["text"].rstrip()}
    return sent
