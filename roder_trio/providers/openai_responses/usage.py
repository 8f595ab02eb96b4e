"""Usage as the Responses dialect writes it.

Pure. Each usage object is a whole snapshot; cached input is part of the input, reasoning part of the output.
"""

from collections.abc import Mapping
from typing import Any

from roder_trio.providers._count import capped, counter, first_count
from roder_trio.schema.usage import TokenUsage


def read_usage(value: Mapping[str, Any], service_tier: str | None) -> TokenUsage:
    """Return the snapshot that a usage object holds."""
    prompt = counter(value.get("input_tokens")) or 0
    completion = counter(value.get("output_tokens")) or 0
    total = counter(value.get("total_tokens"))
    return TokenUsage(
        prompt,
        completion,
        capped(prompt + completion) if total is None else total,
        first_count(value, [("input_tokens_details", "cached_tokens")]),
        first_count(value, [("input_tokens_details", "cache_write_tokens")]),
        first_count(value, [("output_tokens_details", "reasoning_tokens")]),
        service_tier,
    )
