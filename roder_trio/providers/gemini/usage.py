"""Usage as Gemini writes it.

Pure. Each object is a whole snapshot; a field that is absent is 0, whatever an earlier one said.
"""

from collections.abc import Mapping
from typing import Any

from roder_trio.providers._count import capped, counter
from roder_trio.schema.usage import TokenUsage

_TRAFFIC = {"ON_DEMAND": "standard", "ON_DEMAND_FLEX": "flex", "ON_DEMAND_PRIORITY": "priority"}


def read_usage(value: Mapping[str, Any], service_tier: str | None) -> TokenUsage:
    """Return the snapshot that a usage object holds."""
    prompt = capped(_count(value, "promptTokenCount") + _count(value, "toolUsePromptTokenCount"))
    reasoning = _count(value, "thoughtsTokenCount")
    completion = capped(_count(value, "candidatesTokenCount") + reasoning)
    total = counter(value.get("totalTokenCount"))
    return TokenUsage(
        prompt,
        completion,
        capped(prompt + completion) if total is None else total,
        _count(value, "cachedContentTokenCount"),
        0,
        reasoning,
        service_tier,
    )


def read_tier(value: Mapping[str, Any]) -> str | None:
    """Return the service tier that a usage object names; None if it names none."""
    tier, traffic = value.get("serviceTier"), value.get("trafficType")
    if isinstance(tier, str) and tier:
        return tier
    return _TRAFFIC.get(traffic) if isinstance(traffic, str) else None


def context_tokens(value: Mapping[str, Any]) -> int:
    """Return how long the conversation is after the answer; thoughts are not sent again."""
    return capped(_count(value, "promptTokenCount") + _count(value, "candidatesTokenCount"))


def _count(value: Mapping[str, Any], name: str) -> int:
    return counter(value.get(name)) or 0
