"""How one vendor speaks the Gemini dialect.

Frozen data. Vendors differ by these fields alone, never by their name in code.
"""

from collections.abc import Mapping
from typing import Literal, Self

import attrs

from roder_trio.providers._profile import WireProfile
from roder_trio.schema.inference import ModelDescriptor

ThinkingStyle = Literal["level", "budget", "none"]

_STYLES: Mapping[str, ThinkingStyle] = {"level": "level", "budget": "budget", "none": "none"}


@attrs.frozen(kw_only=True)
class Profile(WireProfile):
    """The flags of a vendor. Those about models are defaults: a row of `models` says it for its model."""

    auth: str = "x-goog-api-key"
    thinking_style: ThinkingStyle = "budget"
    """`thinkingLevel`, `thinkingBudget`, or nothing about thinking at all."""
    thinking_budgets: Mapping[str, int] = attrs.field(
        factory=lambda: {"minimal": 512, "low": 1024, "medium": 8192, "high": 24576}
    )
    """Tokens of each level where a budget is wanted; a level that isn't here leaves it to the model."""
    dummy_signature: str | None = "skip_thought_signature_validator"
    """Stands on calls that another model made, since some models refuse calls without a signature; None: nothing."""
    structured_output: bool = True
    show_hosted_calls: bool = False
    """Whether the provider's own tools show their calls even without functions beside them; older models refuse."""

    @property
    def structured(self) -> bool:
        """Whether an answer can be held to a JSON schema."""
        return self.structured_output

    def for_model(self, row: ModelDescriptor | None) -> Self:
        """Return the profile as it is for one model; a row that says nothing of what it supports changes nothing."""
        profile = super().for_model(row)
        if row is None or not row.supports:
            return profile
        return attrs.evolve(
            profile,
            structured_output=self.structured_output and "structured" in row.supports,
            thinking_style=_STYLES.get(row.reasoning_style, self.thinking_style),
        )
