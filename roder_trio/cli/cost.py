"""What the turns of a thread on disk cost, told by its log; and money in words."""

from decimal import Decimal

import roder_trio as rt
from roder_trio.cli.choice import catalog
from roder_trio.logic.cost import bills, notes_in, records_of_turns
from roder_trio.runtime.cost import CostBook
from roder_trio.runtime.engines import EngineRegistry

CENTS = 2
FINE = 4


async def costs_of_turns(snapshot: rt.ThreadSnapshot) -> dict[str, rt.Cost]:
    """Return what each turn of a thread cost, by turn; one without attempts is left out."""
    book, notes = CostBook(EngineRegistry((), catalog())), notes_in(snapshot.events)
    records = records_of_turns(snapshot.events)
    return {turn_id: await book.cost_of(bills(found, notes)) for turn_id, found in records.items()}


def dollars(amount: Decimal) -> str:
    """Say an amount: in cents from a dollar on, else as finely as its first two digits want."""
    if not amount or amount >= 1:
        return f"${amount:,.{CENTS}f}"
    return f"${amount:.{max(FINE, 1 - amount.adjusted())}f}"


def cost_words(cost: rt.Cost) -> str | None:
    """Say what something cost; None if nothing is known of it."""
    if cost.usd is not None:
        return dollars(cost.usd)
    return f"at least {dollars(cost.known_usd)}" if cost.known_usd else None


def with_cost(words: str, cost: rt.Cost | None) -> str:
    """Return what was used with what it cost, as far as that is known."""
    money = None if cost is None else cost_words(cost)
    return words if money is None else f"{words}, {money}"
