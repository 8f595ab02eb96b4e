"""What turns and threads cost, in US dollars: from the log's usage records and the prices that are known.

A price comes from a row that was given to the engine, else from the catalog's row, else from the public lists. Nothing
is stored, and nothing is guessed.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal

import trio

from roder_trio.actors.cost import EndedTurn
from roder_trio.errors import ThreadNotFound
from roder_trio.logic import cost as rules
from roder_trio.providers import prices
from roder_trio.runtime.base import Base
from roder_trio.runtime.engines import EngineRegistry
from roder_trio.schema.cost import NO_COST, Cost
from roder_trio.schema.event import EventEnvelope, GoalCleared, GoalUpdated
from roder_trio.schema.turn import TurnOutcome


class CostBook:
    """The prices of one runtime."""

    def __init__(self, registry: EngineRegistry) -> None:
        self._registry = registry

    async def cost_of(self, bills: Sequence[rules.Bill]) -> Cost:
        """Return the sum of what attempts cost. The public lists are read, in a worker thread, when first needed."""
        if self.lacks_lists(bills):
            await prices.load()
        else:
            await trio.lowlevel.checkpoint()
        return self.total(bills)

    def lacks_lists(self, bills: Sequence[rules.Bill]) -> bool:
        """Whether the public lists are needed and aren't read yet."""
        return not prices.is_loaded() and any(
            self._is_listed(part) for bill in bills if bill.told is None for part in bill.parts
        )

    def total(self, bills: Sequence[rules.Bill]) -> Cost:
        """Return the sum of what attempts cost, with the lists read if they are needed."""
        return rules.total(bills, self._price_of)

    def _price_of(self, part: rules.Part) -> Decimal | None:
        if part.provider is None or part.model is None:
            return None
        price = self._registry.price(part.provider, part.model)
        if price is not None:
            return rules.charge(part.usage, price)
        if not self._is_listed(part):
            return None
        return prices.charge(self._registry.catalog_name(part.provider), part.model, part.usage, part.at)

    def _is_listed(self, part: rules.Part) -> bool:
        """Whether only the public lists may have a price."""
        if part.provider is None or part.model is None or self._registry.price(part.provider, part.model) is not None:
            return False
        return prices.has_prices_of(self._registry.catalog_name(part.provider))


class CostMethods(Base):
    """What a host can ask about money."""

    async def thread_cost(self, thread_id: str, goal: bool = False) -> Cost:
        """Return what the thread's own attempts cost, or those charged to its current goal, threads below included.

        Reads the log once, and counts what is stored. Without a goal its cost is 0. Raises ThreadNotFound,
        StorageError.
        """
        self._check_open()
        events = await self._events(thread_id)
        if events is None:
            raise ThreadNotFound(thread_id)
        if not goal:
            return await self._cost(rules.records_of_thread(events), events)
        goal_id = _current_goal(events)
        return NO_COST if goal_id is None else await self._cost(rules.records_of_goal(events, goal_id), events)

    async def _priced(self, thread_id: str, ended: EndedTurn) -> TurnOutcome:
        """Return a turn's outcome with its cost; that of a turn of an earlier process takes one look at the log."""
        if ended.outcome.usage is None:
            return ended.priced(NO_COST)  # noqa: ASYNC910 - the question for the end was a checkpoint
        bills = ended.bills
        if bills is None:
            bills = rules.bills_of_turn(await self._events(thread_id) or (), ended.outcome.turn_id)
        if not bills:
            return ended.priced(Cost(None, Decimal(0)))
        book = CostBook(self._core.registry)
        if book.lacks_lists(bills):
            await prices.load()
        return ended.priced(book.total(bills))  # noqa: ASYNC910 - the question for the end was a checkpoint

    async def _events(self, thread_id: str) -> Sequence[EventEnvelope] | None:
        snapshot = await self._core.services.store.load_thread(thread_id)
        return None if snapshot is None else snapshot.events

    async def _cost(self, records: Iterable[EventEnvelope], events: Sequence[EventEnvelope]) -> Cost:
        return await self._core.services.cost_of(rules.bills(records, rules.notes_in(events)))


def _current_goal(events: Sequence[EventEnvelope]) -> str | None:
    last = next((e.event for e in reversed(events) if isinstance(e.event, GoalUpdated | GoalCleared)), None)
    return last.goal.goal_id if isinstance(last, GoalUpdated) else None
