"""How one vendor speaks the Anthropic Messages dialect.

Frozen data. Vendors differ by these fields alone, never by their name in code. What a name or a version on the wire
may become with time is a field too.
"""

from collections.abc import Mapping
from typing import Literal, Self

import attrs

from roder_trio.providers._profile import WireProfile
from roder_trio.schema.inference import ModelDescriptor

Thinking = Literal["adaptive", "budget", "none"]

_STYLES: Mapping[str, tuple[Thinking, bool]] = {
    "effort": ("adaptive", True),
    "level": ("budget", True),
    "budget": ("budget", False),
    "toggle": ("adaptive", False),
    "none": ("none", False),
}
"""What a row's `reasoning_style` means here: how thinking is asked for, and whether an effort goes with it."""


@attrs.frozen(kw_only=True)
class Profile(WireProfile):
    """The flags of a vendor. Those about models are defaults: a row of `models` says it for its model."""

    auth: str = "x-api-key"
    version: str = "2023-06-01"
    """The header `anthropic-version`."""
    betas: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    """Names that every request sends in `anthropic-beta`, beside those of the features it uses."""
    tool_name_limit: int = 128
    max_tokens: int = 32_000
    """The limit of an answer where the request has none; the wire wants one always."""
    effort_aliases: Mapping[str, str] = attrs.field(factory=lambda: {"minimal": "low"})
    thinking: Thinking = "adaptive"
    """`thinking: {type: adaptive}`, `{type: enabled, budget_tokens}`, or nothing about thinking at all."""
    send_effort: bool = False
    """Whether the level goes into `output_config.effort`."""
    thinking_display: str | None = None
    """What `thinking.display` says; None leaves it out."""
    budgets: Mapping[str, int] = attrs.field(
        factory=lambda: {"minimal": 1024, "low": 4096, "medium": 10_240, "high": 20_480, "xhigh": 30_720}
    )
    """Tokens of thinking for each level."""
    usual_budget: int = 10_240
    """Tokens of thinking for a level that isn't among `budgets`, or none."""
    forced_calls_while_thinking: bool = False
    """Whether a call may be forced while thinking has a budget; else the choice becomes `auto`."""
    structured_output: bool = True
    prompt_cache: bool = True
    """Whether cache breakpoints are set."""
    cache_ttl: str | None = None
    """How long what is cached is kept; None leaves it to the server."""
    mid_system: bool = False
    """Whether a system message may stand behind the last user message."""
    mid_system_beta: str | None = None
    compaction_edit: str | None = "compact_20260112"
    """The type of the edit that compacts inside a stream; None: there is none."""
    compaction_beta: str | None = "compact-2026-01-12"
    web_search: str | None = "web_search_20250305"
    """The type of the provider's own web search; None: there is none."""
    service_tiers: Mapping[str, str] = attrs.field(
        factory=lambda: {
            "auto": "auto",
            "priority": "auto",
            "standard_only": "standard_only",
            "standard": "standard_only",
            "default": "standard_only",
        }
    )
    """What the vendor calls a tier; others are not sent."""

    @property
    def structured(self) -> bool:
        """Whether an answer can be held to a JSON schema."""
        return self.structured_output

    def for_model(self, row: ModelDescriptor | None) -> Self:
        """Return the profile as it is for one model; a row that says nothing of what it supports changes little."""
        profile = super().for_model(row)
        if row is None:
            return profile
        profile = attrs.evolve(profile, max_tokens=row.max_output_tokens or self.max_tokens)
        if row.supports or row.reasoning_style != "none":
            thinking, send_effort = _STYLES.get(row.reasoning_style, (self.thinking, self.send_effort))
            profile = attrs.evolve(profile, thinking=thinking, send_effort=send_effort)
        if not row.supports:
            return profile
        return attrs.evolve(
            profile,
            structured_output=self.structured_output and "structured" in row.supports,
            prompt_cache=self.prompt_cache and "prompt_cache" in row.supports,
            mid_system=self.mid_system or "mid_system" in row.supports,
        )
