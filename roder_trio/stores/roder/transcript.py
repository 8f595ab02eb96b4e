"""Roder's transcript items and usage in the form that the codec reads.

Rules of the room: pure, JSON values in and out. A field that Roder writes as null is left out, so it has its default.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from roder_trio.stores.roder.text import JsonObject

COUNTERS = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "cached_prompt_tokens",
    "cache_creation_prompt_tokens",
    "reasoning_tokens",
)


def untagged(value: Any) -> tuple[str, Any]:
    """The tag and the content of a value that its only key tags, or that is nothing but a tag. Raises ValueError."""
    if isinstance(value, str):
        return value, {}
    if isinstance(value, dict) and len(value) == 1:
        return next(iter(value.items()))
    raise ValueError("it isn't tagged by one key")


def given(**fields: Any) -> JsonObject:
    """The fields that are there."""
    return {name: value for name, value in fields.items() if value is not None}


def opaque(tag: str, content: Any) -> JsonObject:
    """What stands for something that only Roder knows, under the type `tag`."""
    if isinstance(content, dict) and "type" not in content:
        return {"type": tag, **content}
    return {"type": tag, "value": content}


def text_of(value: Any) -> Any:
    """Text as it is, other JSON as its text."""
    return value if isinstance(value, str) or value is None else json.dumps(value, ensure_ascii=False)


def usage_of(value: Any) -> JsonObject | None:
    """The counters of a usage; None if it has none above zero."""
    if not isinstance(value, dict):
        return None
    counters = {name: value[name] for name in COUNTERS if type(value.get(name)) is int and value[name] > 0}
    if not any(name in counters for name in COUNTERS[:3]):
        return None
    tier = value.get("service_tier")
    return {**dict.fromkeys(COUNTERS[:3], 0), **counters, **given(service_tier=tier if isinstance(tier, str) else None)}


def item_of(value: Any) -> JsonObject:
    """A transcript item; one that is not known here is kept as it is. Raises ValueError."""
    tag, content = untagged(value)
    if tag == "ProviderMetadata":
        return {"type": "provider_metadata", "payload": content if isinstance(content, dict) else {"value": content}}
    if not isinstance(content, dict):
        return opaque(f"roder.{tag}", content)
    if tag == "FileChange":
        return opaque("file_change", content)
    make = _ITEMS.get(tag)
    return opaque(f"roder.{tag}", content) if make is None else make(content)


def message_of(content: Mapping[str, Any]) -> JsonObject:
    """A user's message, without a type."""
    images = content.get("images")
    return given(text=content.get("text"), images=[*map(image_of, images)] if isinstance(images, list) else images)


def image_of(value: Any) -> Any:
    """An image, under whichever key its URL stands."""
    urls = [value[key] for key in ("image_url", "imageUrl", "url") if key in value] if isinstance(value, dict) else []
    return {"url": urls[0]} if urls else value


def _result(content: Mapping[str, Any]) -> JsonObject:
    return {
        "type": "tool_result",
        "name": content.get("name"),
        **given(
            id=content.get("id"),
            result=text_of(content.get("result")),
            is_error=content.get("is_error"),
            display_payload=content.get("display_payload"),
        ),
    }


_ITEMS: Mapping[str, Callable[[Mapping[str, Any]], JsonObject]] = {
    "UserMessage": lambda content: {"type": "user_message", **message_of(content)},
    "AssistantMessage": lambda content: {
        "type": "assistant_message",
        **given(text=content.get("text"), phase=content.get("phase")),
    },
    "ReasoningSummary": lambda content: {"type": "reasoning_summary", **given(text=content.get("text"))},
    "ToolCall": lambda content: {
        "type": "tool_call",
        **given(id=content.get("id"), name=content.get("name"), arguments=text_of(content.get("arguments"))),
    },
    "ToolResult": _result,
    "ContextCompaction": lambda content: {"type": "context_compaction", **given(summary=content.get("summary"))},
    "Error": lambda content: {"type": "error_note", **given(message=content.get("message"))},
}
