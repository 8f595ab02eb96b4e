"""How one vendor speaks the Chat Completions dialect.

Frozen data. Vendors differ by these fields alone, never by their name in code.
"""

from typing import Literal, Self

import attrs

from roder_trio.logic.naming import IdForm, short_id_form
from roder_trio.providers._dialect import Timeouts
from roder_trio.providers._profile import WireProfile
from roder_trio.schema.inference import ModelDescriptor

LimitField = Literal["max_tokens", "max_completion_tokens"]
USAGE_PLACES = ("usage", "x_groq", "choice")


@attrs.frozen(kw_only=True)
class Profile(WireProfile):
    """The flags of a vendor. Those about models are defaults: a row of `models` says it for its model."""

    include_stream_usage: bool = True
    include_parallel_tool_calls: bool = True
    """Whether `parallel_tool_calls: false` may be sent."""
    max_tokens_field: LimitField = "max_tokens"
    thinking_style: Literal["none", "effort", "toggle", "object"] = "effort"
    """`reasoning_effort`; `thinking: {type}` with an effort beside it; `reasoning: {effort}`."""
    system_role: Literal["system", "developer"] = "system"
    merge_system: bool = False
    """Whether all system texts go into one message."""
    reasoning_fields: tuple[str, ...] = ("reasoning_content", "reasoning")
    """Where a delta may hold reasoning, in order; the first that does counts."""
    reasoning_replay: str | None = None
    """The field that brings reasoning back beside calls; `reasoning_details` brings the stored entries."""
    think_tags: bool = False
    """Whether the text begins with its reasoning in `<think>` tags."""
    structured_output: Literal["json_schema", "json_object", "none"] = "json_schema"
    strict_schemas: bool = False
    """Whether schemas that fulfil strict mode's conditions are marked strict."""
    tool_id_length: int | None = None
    """Ids must be exactly this many letters and digits."""
    service_tier: bool = True
    prompt_cache_key: bool = False
    usage_places: tuple[str, ...] = USAGE_PLACES
    """Where a frame may hold usage, in order: `usage`, `x_groq` (its `usage`), `choice` (that of the first choice)."""
    timeouts: Timeouts = attrs.field(factory=lambda: Timeouts(headers=300.0))

    @property
    def id_form(self) -> IdForm:
        """How ids are written on this wire."""
        return str if self.tool_id_length is None else short_id_form(self.tool_id_length)

    @property
    def structured(self) -> bool:
        """Whether an answer can be held to a JSON schema."""
        return self.structured_output == "json_schema"

    def for_model(self, row: ModelDescriptor | None) -> Self:
        """Return the profile as it is for one model; a row that says nothing of what it supports changes nothing."""
        profile = super().for_model(row)
        if row is None or not row.supports:
            return profile
        return attrs.evolve(
            profile,
            structured_output=self.structured_output if "structured" in row.supports else "none",
            include_parallel_tool_calls=self.include_parallel_tool_calls and "parallel" in row.supports,
            thinking_style="none" if row.reasoning_style == "none" else self.thinking_style,
        )
