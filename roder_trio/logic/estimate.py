"""How many tokens transcript items are, roughly, without a tokenizer.

Pure. An estimate is ceil(B / 4) + P, B the UTF-8 bytes of the items and P their surcharges; both are sums over the
items, so they are kept as items come. Images of tool results are summed apart, because they cost something only with
an engine that takes images. Estimates decide when to compact; they are never billed.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from roder_trio.schema.transcript import (
    AssistantMessage,
    ContextCompaction,
    ErrorNote,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    TranscriptItem,
    UserMessage,
)

IMAGE_TOKENS = 1_600
BYTES_PER_TOKEN = 4
_SEALED_TYPES = ("reasoning", "compaction", "compaction_summary")


@attrs.frozen
class Sums:
    """What an estimate is made of; sums of disjoint items can be added, and subtracted again."""

    bytes: int = 0
    surcharge: int = 0
    tool_images: int = 0

    def tokens(self, images: bool = True) -> int:
        """Return the estimate, for an engine that takes images or not."""
        surcharge = self.surcharge + (IMAGE_TOKENS * self.tool_images if images else 0)
        return quarter(self.bytes) + surcharge

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.bytes + other.bytes, self.surcharge + other.surcharge, self.tool_images + other.tool_images)

    def __sub__(self, other: "Sums") -> "Sums":
        return Sums(self.bytes - other.bytes, self.surcharge - other.surcharge, self.tool_images - other.tool_images)


def sums(item: TranscriptItem) -> Sums:
    """Measure one item."""
    match item:
        case UserMessage():
            return Sums(byte_length(item.text), IMAGE_TOKENS * len(item.images))
        case AssistantMessage() | ReasoningSummary():
            return Sums(byte_length(item.text))
        case ToolCall():
            return Sums(byte_length(item.name) + byte_length(item.arguments))
        case ToolResult():
            return Sums(byte_length(item.result), 0, len(item.images))
        case ContextCompaction():
            return Sums(byte_length(item.summary)) + (sums(item.active_request) if item.active_request else Sums())
        case ErrorNote():
            return Sums(byte_length(item.message))
        case ProviderMetadata():
            return Sums(0, _opaque_tokens(item.payload))
        case _:
            return Sums()


def estimate(items: Iterable[TranscriptItem], images: bool = True) -> int:
    """Return the tokens of `items`, for an engine that takes images or not."""
    return sum((sums(item) for item in items), Sums()).tokens(images)


def byte_length(text: str) -> int:
    """Return the number of UTF-8 bytes of `text`."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def quarter(count: int) -> int:
    """Return a fourth of `count`, rounded up."""
    return -(-count // BYTES_PER_TOKEN)


def strings(value: Any) -> Iterator[str]:
    """Yield every string value inside a JSON value, at any depth; keys are none."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            pending.extend(part.values())
        elif isinstance(part, list | tuple):
            pending.extend(part)


def _opaque_tokens(payload: Mapping[str, Any]) -> int:
    compacted = payload.get("compacted_input")
    if compacted is not None:
        return _json_tokens(compacted)
    output = payload.get("output")
    distinct: list[Any] = []
    seen: set[str] = set()
    tokens = 0
    for part in output if isinstance(output, list | tuple) else ():
        if not isinstance(part, Mapping) or part.get("type") not in _SEALED_TYPES or _repeated(part, seen, distinct):
            continue
        sealed = part.get("encrypted_content")
        tokens += quarter(len(sealed)) if isinstance(sealed, str) else 0
    return tokens


def _repeated(part: Mapping[str, Any], seen: set[str], distinct: list[Any]) -> bool:
    id = part.get("id")
    if isinstance(id, str):
        known = id in seen
        seen.add(id)
        return known
    known = part in distinct
    distinct.append(part)
    return known


def _json_tokens(value: Any) -> int:
    tokens = 0
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            tokens += quarter(byte_length(part))
        elif isinstance(part, list | tuple):
            pending.extend(part)
        elif isinstance(part, Mapping):
            for key, inner in part.items():
                if key == "image_url" and inner is not None:
                    tokens += IMAGE_TOKENS
                else:
                    pending.append(inner)
    return tokens
