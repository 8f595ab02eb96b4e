"""What a turn cost, as far as its owner can tell: how its attempts are to be charged. Prices are known elsewhere."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import attrs

from roder_trio.logic.cost import Bill
from roder_trio.schema.cost import Cost
from roder_trio.schema.turn import TurnOutcome

CostOf: TypeAlias = Callable[[Sequence[Bill]], Awaitable[Cost]]
"""Prices bills; never raises but Cancelled."""


@attrs.frozen
class EndedTurn:
    """How a turn ended, not priced yet."""

    outcome: TurnOutcome
    bills: tuple[Bill, ...] | None
    """How its attempts are charged; None if only the log can tell."""

    def priced(self, cost: Cost) -> TurnOutcome:
        """Return the outcome with what the turn cost."""
        return attrs.evolve(self.outcome, cost=cost.usd, known_cost=cost.known_usd)
