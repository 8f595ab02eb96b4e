"""Usage as Chat Completions vendors write it.

Pure. Each usage object is a whole snapshot. A counter that is no natural number is ignored alone. Breakdowns by model
are never added, since the totals hold them already.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from roder_trio.schema.usage import MAX_TOKENS, TokenUsage

_CACHED = (
    ("prompt_tokens_details", "cached_tokens"),
    ("input_tokens_details", "cached_tokens"),
    ("prompt_cache_hit_tokens",),
    ("cached_tokens",),
)
_WRITTEN = (("prompt_tokens_details", "cache_write_tokens"), ("input_tokens_details", "cache_write_tokens"))
_REASONING = (("completion_tokens_details", "reasoning_tokens"), ("output_tokens_details", "reasoning_tokens"))


def usage_object(frame: Mapping[str, Any], places: Iterable[str]) -> Mapping[str, Any] | None:
    """Return the usage object of a frame; the first place that has one counts."""
    for place in places:
        found: Any = frame
        for name in {"choice": ("choices", 0, "usage"), "x_groq": ("x_groq", "usage")}.get(place, (place,)):
            found = _inner(found, name)
        if isinstance(found, Mapping):
            return found
    return None


def read_usage(value: Mapping[str, Any], service_tier: str | None) -> TokenUsage:
    """Return the snapshot that a usage object holds."""
    prompt = _counter(value.get("prompt_tokens")) or 0
    completion = _counter(value.get("completion_tokens")) or 0
    total = _counter(value.get("total_tokens"))
    reasoning = _first(value, _REASONING)
    if reasoning and total == prompt + completion + reasoning:
        completion = min(completion + reasoning, MAX_TOKENS)
    return TokenUsage(
        prompt,
        completion,
        min(prompt + completion, MAX_TOKENS) if total is None else total,
        _first(value, _CACHED),
        _first(value, _WRITTEN),
        reasoning,
        service_tier,
    )


def _first(value: Mapping[str, Any], paths: Iterable[tuple[str, ...]]) -> int:
    for path in paths:
        found: Any = value
        for name in path:
            found = _inner(found, name)
        count = _counter(found)
        if count is not None:
            return count
    return 0


def _inner(value: Any, name: str | int) -> Any:
    if isinstance(name, int):
        return value[name] if isinstance(value, list) and len(value) > name else None
    return value.get(name) if isinstance(value, Mapping) else None


def _counter(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None
