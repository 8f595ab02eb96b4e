"""Usage as Chat Completions vendors write it.

Pure. Each usage object is a whole snapshot. Breakdowns by model are never added, since the totals hold them already.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from roder_trio.providers._count import capped, counter, first_count
from roder_trio.providers._dialect import inner
from roder_trio.schema.usage import TokenUsage

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
            found = inner(found, name)
        if isinstance(found, Mapping):
            return found
    return None


def read_usage(value: Mapping[str, Any], service_tier: str | None) -> TokenUsage:
    """Return the snapshot that a usage object holds."""
    prompt = counter(value.get("prompt_tokens")) or 0
    completion = counter(value.get("completion_tokens")) or 0
    total = counter(value.get("total_tokens"))
    reasoning = first_count(value, _REASONING)
    if reasoning and total == prompt + completion + reasoning:
        completion = capped(completion + reasoning)
    return TokenUsage(
        prompt,
        completion,
        capped(prompt + completion) if total is None else total,
        first_count(value, _CACHED),
        first_count(value, _WRITTEN),
        reasoning,
        service_tier,
    )
