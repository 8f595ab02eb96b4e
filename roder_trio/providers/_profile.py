"""How one vendor speaks a dialect: what all dialects' profiles have in common.

Frozen data. Vendors differ by these fields alone, never by their name in code. Fields about models are defaults: a row
of the catalog says it for its model.
"""

from collections.abc import Mapping
from typing import Self

import attrs

from roder_trio.providers._dialect import Timeouts
from roder_trio.schema.inference import ModelDescriptor


@attrs.frozen(kw_only=True)
class WireProfile:
    """The flags of a vendor."""

    auth: str = "bearer"
    """`bearer`, or the name of the header that holds the key."""
    extra_headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    limit_headers: Mapping[str, str] = attrs.field(factory=dict)
    """The vendor's own headers about its limits, each with the usual one that says the same, such as
    `x-ratelimit-reset-requests` and `x-ratelimit-remaining-requests`."""
    effort_aliases: Mapping[str, str] = attrs.field(factory=dict)
    """Levels of reasoning that the vendor calls otherwise; one that maps to "" is not sent."""
    vision: bool = True
    sampling: bool = True
    """Whether temperature and top_p may be sent."""
    tool_name_limit: int = 64
    timeouts: Timeouts = attrs.field(factory=Timeouts)

    def for_model(self, row: ModelDescriptor | None) -> Self:
        """Return the profile as it is for one model; a row that says nothing of what it supports changes nothing."""
        if row is None or not row.supports:
            return self
        return attrs.evolve(
            self,
            vision=self.vision and "images" in row.supports,
            sampling=self.sampling and "sampling" in row.supports,
        )

    @property
    def structured(self) -> bool:
        """Whether an answer can be held to a JSON schema."""
        return True

    def effort(self, level: str | None) -> str | None:
        """Return what the vendor calls a level of reasoning; None if there is nothing to send."""
        return (self.effort_aliases.get(level, level) if level else None) or None
