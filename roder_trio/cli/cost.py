"""What the turns and the goal of a thread on disk cost, told by its log; and money in words."""

from decimal import Decimal

import attrs

import roder_trio as rt
from roder_trio.cli.choice import catalog
from roder_trio.logic.cost import bills, notes_in, records_of_goal, records_of_thread, records_of_turns
from roder_trio.runtime.cost import CostBook
from roder_trio.runtime.engines import EngineRegistry

CENTS = 2
"""Digits behind the point of amounts from a dollar on."""
FINE = 4
"""The fewest digits behind the point of smaller ones."""


@attrs.frozen
class ThreadCosts:
    """What a thread cost, and each turn of it that used something."""

    whole: rt.Cost
    turns: dict[str, rt.Cost]


async def costs_of(snapshot: rt.ThreadSnapshot) -> ThreadCosts:
    """Return what a thread cost, by the prices of the shipped catalog and the public lists."""
    book, events = CostBook(EngineRegistry((), catalog())), snapshot.events
    notes = notes_in(events)
    whole = await book.cost_of(bills(records_of_thread(events), notes))
    turns = {turn_id: await book.cost_of(bills(found, notes)) for turn_id, found in records_of_turns(events).items()}
    return ThreadCosts(whole, turns)


async def cost_of_goal(snapshot: rt.ThreadSnapshot, goal_id: str) -> rt.Cost:
    """Return what was charged to a goal, by the same prices."""
    book, events = CostBook(EngineRegistry((), catalog())), snapshot.events
    return await book.cost_of(bills(records_of_goal(events, goal_id), notes_in(events)))


async def told_cost(runtime: rt.Runtime, thread_id: str) -> str:
    """Return what a thread cost, in words; "" if its log can't be read."""
    try:
        return cost_words(await runtime.thread_cost(thread_id))
    except rt.StorageError:
        return ""  # noqa: ASYNC910 - the load that failed was a checkpoint


def dollars(amount: Decimal) -> str:
    """Say an amount: in cents from a dollar on, else as finely as its first two digits want."""
    if not amount or amount >= 1:
        return f"${amount:,.{CENTS}f}"
    return f"${amount:.{max(FINE, 1 - amount.adjusted())}f}"


def cost_words(cost: rt.Cost) -> str:
    """Say what something cost, or what it cost at least."""
    return f"at least {dollars(cost.known_usd)}" if cost.usd is None else dollars(cost.usd)


def with_cost(words: str, cost: rt.Cost | None) -> str:
    """Return what was used, with what it cost; a cost of None says that nothing was counted."""
    return words if cost is None else f"{words}, {cost_words(cost)}"
