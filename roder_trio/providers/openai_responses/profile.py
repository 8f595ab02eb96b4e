"""How one vendor speaks the Responses dialect.

Frozen data. Vendors differ by these fields alone, never by their name in code.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

import attrs

from roder_trio.providers._dialect import Timeouts
from roder_trio.providers._profile import WireProfile
from roder_trio.schema.inference import ModelDescriptor


@attrs.frozen(kw_only=True)
class Profile(WireProfile):
    """The flags of a vendor. Those about models are defaults: a row of `models` says it for its model."""

    instructions: bool = True
    """Whether the system texts go into `instructions`; else they are messages in front."""
    context_role: Literal["developer", "system"] = "developer"
    """The role of the message that holds the developer's context."""
    phases: bool = False
    """Whether messages of the assistant are sent with their phase."""
    reasoning: bool = True
    """Whether `reasoning` may be sent."""
    reasons_unasked: bool = False
    """Whether the model reasons without being told to, so that its reasoning is always asked back."""
    encrypted_reasoning: bool = True
    """Whether reasoning comes and goes with `encrypted_content`; else that field is left out of stored reasoning."""
    structured_output: Literal["json_schema", "json_object", "none"] = "json_schema"
    strict_schemas: bool = False
    """Whether schemas that fulfil strict mode's conditions are marked strict."""
    include_parallel_tool_calls: bool = True
    """Whether `parallel_tool_calls` may be sent."""
    freeform: bool = True
    """Whether a freeform tool is offered as one; else it is a function."""
    web_search: bool = True
    """Whether the server can search the web."""
    web_access: bool = True
    """Whether the search is told if it may leave its cache."""
    service_tier: bool = True
    prompt_cache_key: bool = True
    cache_options: Mapping[str, Any] = attrs.field(factory=dict)
    """Further fields of a body that say how its prompt is cached."""
    in_band_compaction: bool = True
    """Whether the server may be told to compact inside an answer."""
    native_compaction: bool = True
    """Whether the server has an endpoint that compacts."""
    compaction_timeouts: Timeouts = attrs.field(factory=lambda: Timeouts(headers=300.0))
    """Of that endpoint, whose answer begins only once it is whole."""

    @property
    def structured(self) -> bool:
        """Whether an answer can be held to a JSON schema."""
        return self.structured_output == "json_schema"

    def for_model(self, row: ModelDescriptor | None) -> Self:
        """Return the profile as it is for one model; a row that says nothing of what it supports changes nothing."""
        profile = super().for_model(row)
        if row is None or not row.supports:
            return profile
        reasons = row.reasoning_style != "none"
        return attrs.evolve(
            profile,
            phases="phases" in row.supports,
            reasoning=self.reasoning and reasons,
            reasons_unasked=reasons,
            structured_output=self.structured_output if "structured" in row.supports else "none",
            include_parallel_tool_calls=self.include_parallel_tool_calls and "parallel" in row.supports,
            freeform=self.freeform and "freeform" in row.supports,
            prompt_cache_key=self.prompt_cache_key and "prompt_cache" in row.supports,
            in_band_compaction=self.in_band_compaction and "compaction" in row.supports,
        )
