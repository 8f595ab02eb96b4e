"""One content block of an answer, put together from its pieces.

Pure. The block is what its start says, with the pieces that followed joined to it: known or not, nothing is lost.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from roder_trio.logic.pairing import sendable_arguments
from roder_trio.providers._dialect import decode_json, encode_json, text_of

HOSTED = ("server_tool_use", "mcp_tool_use")
"""Blocks that are calls of tools which the provider runs."""
COMPACTION = "compaction"

_INPUT = "partial_json"
_FIELDS = {
    "text_delta": ("text",),
    "thinking_delta": ("thinking",),
    "signature_delta": ("signature",),
    "input_json_delta": (_INPUT,),
    "citations_delta": ("citation",),
    "compaction_delta": ("content", "encrypted_content"),
}
"""What a piece of each known type brings."""
_WHOLE = ("encrypted_content",)
"""Texts that come in one piece; a newer one replaces the former."""


@attrs.define
class Block:
    """A block in the making; `id` is what its call is known by here."""

    index: int
    start: Mapping[str, Any]
    id: str = ""
    closed: bool = False
    _texts: dict[str, list[str]] = attrs.field(factory=dict)
    _lists: dict[str, list[Any]] = attrs.field(factory=dict)
    _others: dict[str, Any] = attrs.field(factory=dict)

    @property
    def kind(self) -> str:
        """The type of the block."""
        return text_of(self.start.get("type"))

    @property
    def name(self) -> str:
        """The name of the tool that is called."""
        return text_of(self.start.get("name"))

    def take(self, delta: Mapping[str, Any]) -> None:
        """Take a piece: texts are joined, entries of lists follow each other, all else replaces."""
        for name in _FIELDS.get(text_of(delta.get("type")), [name for name in delta if name != "type"]):
            value = delta.get(name)
            if value is None:
                continue
            if name == "citation":
                self._lists.setdefault("citations", []).append(value)
            elif isinstance(value, str) and name not in _WHOLE:
                self._texts.setdefault(name, []).append(value)
            elif isinstance(value, list):
                self._lists.setdefault(name, []).extend(value)
            else:
                self._others[name] = value

    def arguments(self) -> str | None:
        """Return what the call was given, as the model wrote it; None if there is nothing."""
        given = self.start.get("input")
        return "".join(self._texts.get(_INPUT, ())) or (encode_json(given).decode() if given else None)

    def value(self) -> dict[str, Any]:
        """Return the block as it would be without a stream."""
        out: dict[str, Any] = {**self.start, **self._others}
        for name, pieces in self._texts.items():
            if name != _INPUT:
                out[name] = text_of(out.get(name)) + "".join(pieces)
        for name, entries in self._lists.items():
            before = out.get(name)
            out[name] = [*before, *entries] if isinstance(before, list) else entries
        written = "".join(self._texts.get(_INPUT, ()))
        if written.strip():
            out["input"] = decode_json(sendable_arguments(written))
        return {name: _without_image_bytes(part) for name, part in out.items()}


def _without_image_bytes(value: Any) -> Any:
    """Return JSON in which notes stand for the images whose bytes it holds."""
    if isinstance(value, list):
        return [_without_image_bytes(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    source = value.get("source")
    if value.get("type") == "image" and isinstance(source, Mapping) and source.get("type") == "base64":
        return {"type": "text", "text": "[an image that is not kept]"}
    return {name: _without_image_bytes(part) for name, part in value.items()}
