"""Money: what tokens are priced at, and what they cost, in US dollars."""

from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs

BUCKETS = ("prompt", "cached", "creation", "completion")
"""The parts of a usage that have prices: uncached prompt, cached prompt, cache creation, completion with reasoning."""

Amounts: TypeAlias = Mapping[str, Decimal]
"""US dollars per million tokens, by bucket; one that is missing isn't known."""


@attrs.frozen
class Cost:
    """What something cost: `usd` is None if the price of any part is unknown, `known_usd` sums the known parts."""

    usd: Decimal | None
    known_usd: Decimal

    def __add__(self, other: "Cost") -> "Cost":
        """Add both sums; a part that is unknown leaves `usd` unknown."""
        if not isinstance(other, Cost):
            return NotImplemented
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Cost(usd, self.known_usd + other.known_usd)


NO_COST = Cost(Decimal(0), Decimal(0))


def frozen_amounts(value: Mapping[str, Any]) -> Amounts:
    """Return prices by bucket, frozen. Raises ValueError for what no price can be."""
    amounts: dict[str, Decimal] = {}
    for bucket, amount in value.items():
        if bucket not in BUCKETS:
            raise ValueError(f"a price is given for {', '.join(BUCKETS)}, not for {bucket!r}")
        if isinstance(amount, bool) or not isinstance(amount, int | float | Decimal):
            raise ValueError(f"the price of {bucket} must be a number, not {amount!r}")
        amounts[bucket] = Decimal(str(amount))
        if not amounts[bucket].is_finite() or amounts[bucket] < 0:
            raise ValueError(f"the price of {bucket} must be a finite number of at least 0, not {amount!r}")
    return MappingProxyType(amounts)


def _tiers(value: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Amounts]:
    return MappingProxyType({tier: frozen_amounts(amounts) for tier, amounts in value.items()})


@attrs.frozen
class Price:
    """What a model's tokens are priced at, in US dollars per million: plainly, and in service tiers by their names."""

    plain: Amounts = attrs.field(factory=dict, converter=frozen_amounts)
    tiers: Mapping[str, Amounts] = attrs.field(factory=dict, converter=_tiers)
