"""What the tests of costs share: records of attempts, and prices."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import roder_trio as rt
from roder_trio import events
from roder_trio.logic.cost import Bill, Part, PriceOf, bills, charge, total
from roder_trio.schema.cost import Cost, Price
from roder_trio.schema.usage import Purpose

NOW = datetime(2026, 11, 1, tzinfo=UTC)
PRICE = Price({"prompt": 2, "cached": 0.2, "creation": 2.5, "completion": 8})
"""The prices of the table, per million tokens."""
ROW = rt.TokenUsage(20_000, 1_000, 21_000, 8_000, 2_000)
"""The table's first attempt; it costs 0.0346."""
KNOWN = Cost(Decimal("0.0346"), Decimal("0.0346"))
PARTLY = Cost(None, Decimal("0.0346"))


def record(
    attempt_id: str = "a", usage: rt.TokenUsage = ROW, report: int = 1, *, seconds: int = 0, **fields: Any
) -> rt.EventEnvelope:
    """A usage record of the model `known` of the provider `one`."""
    given = {"turn_id": "t", "purpose": Purpose.SAMPLING, "provider": "one", "model": "known", **fields}
    event = events.UsageRecorded(attempt_id=attempt_id, report=report, usage=usage, **given)
    return rt.EventEnvelope(
        event_id=f"{attempt_id}:{report}",
        timestamp=NOW + timedelta(seconds=seconds),
        source="accounting",
        thread_id="thread",
        turn_id=given["turn_id"],
        event=event,
    )


def price_list(**prices: Price) -> PriceOf:
    """Prices of models of the provider `one`; of `known` that of the table, unless it is given."""
    known = {"known": PRICE, **prices}

    def price_of(part: Part) -> Decimal | None:
        price = known.get(part.model or "") if part.provider == "one" else None
        return None if price is None else charge(part.usage, price)

    return price_of


def cost(*records: rt.EventEnvelope, notes: dict[str, Any] | None = None, **prices: Price) -> Cost:
    """What attempts cost by these records."""
    charged: tuple[Bill, ...] = bills(records, notes or {})
    return total(charged, price_list(**prices))
