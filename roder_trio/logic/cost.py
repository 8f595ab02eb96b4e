"""What attempts cost: by their last records, by prices that are given, and by what the wire itself said.

An attempt's bill has parts, each of one model: the attempt's own, and those that a provider ran inside it. A part whose
price isn't known, or whose tokens can't be told apart, is unknown; nothing is estimated. A cost that came over the wire
wins over all prices. Sums are sums of attempts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias

import attrs

from roder_trio.schema.cost import NO_COST, Amounts, Cost, Price
from roder_trio.schema.event import EventEnvelope, TerminalEvent, TranscriptItemAppended, UsageRecorded
from roder_trio.schema.transcript import ProviderMetadata, TranscriptItem
from roder_trio.schema.usage import MAX_TOKENS, TokenUsage

PLAIN_TIERS = frozenset({None, "default", "standard", "on_demand"})
"""How providers call the tier that the plain prices are for."""
PER = 1_000_000
_OWN_ENTRY = "message"
"""The type of entries that are the attempt's own sampling, by whatever full name its model goes there."""

Note: TypeAlias = Mapping[str, Any]
"""The verbatim `usage` of a step's replay metadata."""


@attrs.frozen
class Part:
    """Tokens of one model, and when they were recorded. Without a model nobody can tell what they cost."""

    provider: str | None
    model: str | None
    usage: TokenUsage
    at: datetime


PriceOf: TypeAlias = Callable[[Part], Decimal | None]
"""Says what a part costs; None if that isn't known."""


@attrs.frozen
class Bill:
    """What one attempt is to be charged by."""

    parts: tuple[Part, ...]
    told: Decimal | None = None
    """What the wire said that it cost."""


# -- bills -------------------------------------------------------------------------------------------------------------


def bills(records: Iterable[EventEnvelope], notes: Mapping[str, Note]) -> tuple[Bill, ...]:
    """Return a bill for each attempt, of its last record; `notes` are those of `notes_of`."""
    last: dict[str, tuple[UsageRecorded, datetime]] = {}
    for envelope in records:
        record = envelope.event
        if not isinstance(record, UsageRecorded) or record.usage.is_empty:
            continue
        known = last.get(record.attempt_id)
        if known is None or record.report > known[0].report:
            last[record.attempt_id] = (record, envelope.timestamp)
    return tuple(_bill(record, at, notes.get(record.attempt_id, {})) for record, at in last.values())


def bills_of_turn(events: Sequence[EventEnvelope], turn_id: str) -> tuple[Bill, ...]:
    """Return the bills of a turn's attempts, as its log tells them."""
    return bills(records_of_turns(events).get(turn_id, ()), notes_in(events))


def notes_in(events: Iterable[EventEnvelope]) -> dict[str, Note]:
    """Return what a log says of the costs of attempts, by attempt."""
    return notes_of(e.event.item for e in events if isinstance(e.event, TranscriptItemAppended))


def notes_of(items: Iterable[TranscriptItem]) -> dict[str, Note]:
    """Return what stored replay metadata says of the costs of attempts, by attempt."""
    found: dict[str, Note] = {}
    for item in items:
        if isinstance(item, ProviderMetadata):
            attempt_id, usage = item.payload.get("attempt_id"), item.payload.get("usage")
            if isinstance(attempt_id, str) and isinstance(usage, Mapping):
                found[attempt_id] = usage
    return found


def with_attempt(payload: Mapping[str, Any], attempt_id: str | None, model: str) -> Mapping[str, Any]:
    """Return replay metadata with its attempt's id, if it is needed to tell what that cost."""
    usage = payload.get("usage")
    tells = isinstance(usage, Mapping) and (_told(usage) is not None or any(_entries(usage, model)))
    return {**payload, "attempt_id": attempt_id} if tells and attempt_id is not None else payload


def _bill(record: UsageRecorded, at: datetime, note: Note) -> Bill:
    told = _told(note)
    entries = [] if told is not None or record.model is None else list(_entries(note, record.model))
    inner = [(model, _usage_of(entry, record.usage.service_tier)) for model, entry in entries]
    own = _rest(record.usage, [usage for _, usage in inner])
    rest = Part(record.provider, record.model, own, at) if own else Part(None, None, record.usage, at)
    return Bill((rest, *(Part(record.provider, model, usage, at) for model, usage in inner)), told)


def _told(usage: Note) -> Decimal | None:
    cost = usage.get("cost")
    if isinstance(cost, bool) or not isinstance(cost, int | float | Decimal):
        return None
    amount = Decimal(str(cost))
    return amount if amount.is_finite() and amount >= 0 else None


def _entries(usage: Note, model: str) -> Iterator[tuple[str, Note]]:
    """Yield the entries of models that a provider ran inside the attempt, beside the one that was asked."""
    iterations = usage.get("iterations")
    for entry in iterations if isinstance(iterations, list | tuple) else ():
        if isinstance(entry, Mapping) and entry.get("type") != _OWN_ENTRY:
            named = entry.get("model")
            if isinstance(named, str) and named not in ("", model):
                yield named, entry


def _usage_of(entry: Note, tier: str | None) -> TokenUsage:
    """Return the counters of an entry, whose `input_tokens` leave the cache out."""
    cached, creation = _count(entry, "cache_read_input_tokens"), _count(entry, "cache_creation_input_tokens")
    prompt = min(_count(entry, "input_tokens") + cached + creation, MAX_TOKENS)
    completion = _count(entry, "output_tokens")
    total = min(prompt + completion, MAX_TOKENS)
    return TokenUsage(prompt, completion, total, cached, creation, service_tier=tier)


def _count(entry: Note, name: str) -> int:
    value = entry.get(name)
    return min(value, MAX_TOKENS) if type(value) is int and value > 0 else 0


def _rest(whole: TokenUsage, parts: Sequence[TokenUsage]) -> TokenUsage | None:
    """Return what is left of a usage without its parts; None if they don't fit into it."""
    if not parts:
        return whole
    left = dict(_buckets(whole))
    for part in parts:
        left = {bucket: left[bucket] - count for bucket, count in _buckets(part)}
    if min(left.values()) < 0:
        return None
    prompt = left["prompt"] + left["cached"] + left["creation"]
    total = prompt + left["completion"]
    return TokenUsage(
        prompt, left["completion"], total, left["cached"], left["creation"], service_tier=whole.service_tier
    )


# -- costs -------------------------------------------------------------------------------------------------------------


def total(charged: Iterable[Bill], price_of: PriceOf) -> Cost:
    """Return the sum of what attempts cost; nothing costs nothing."""
    return sum((_cost(bill, price_of) for bill in charged), NO_COST)


def amounts_for(price: Price, tier: str | None) -> Amounts | None:
    """Return the prices of a tier; None if they aren't known."""
    named = None if tier is None else price.tiers.get(tier)
    if named is None and tier in PLAIN_TIERS:
        return price.plain
    return named


def charge(usage: TokenUsage, price: Price) -> Decimal | None:
    """Return what tokens cost by a price; None if the price of their tier or of any of them isn't known."""
    amounts = amounts_for(price, usage.service_tier)
    if amounts is None:
        return None
    sum_of_all = Decimal(0)
    for bucket, count in _buckets(usage):
        if count:
            amount = amounts.get(bucket)
            if amount is None:
                return None
            sum_of_all += count * amount / PER
    return sum_of_all


def _cost(bill: Bill, price_of: PriceOf) -> Cost:
    if bill.told is not None:
        return Cost(bill.told, bill.told)
    return sum((_cost_of_part(part, price_of) for part in bill.parts), NO_COST)


def _cost_of_part(part: Part, price_of: PriceOf) -> Cost:
    if not any(count for _, count in _buckets(part.usage)):
        return NO_COST if part.usage.is_empty else Cost(None, Decimal(0))
    usd = price_of(part)
    return Cost(usd, usd or Decimal(0))


def _buckets(usage: TokenUsage) -> tuple[tuple[str, int], ...]:
    """Return the tokens by how they are priced; the names are those of prices."""
    cached, creation = usage.cached_prompt_tokens, usage.cache_creation_prompt_tokens
    return (
        ("prompt", usage.prompt_tokens - cached - creation),
        ("cached", cached),
        ("creation", creation),
        ("completion", usage.completion_tokens),
    )


# -- what of a log counts ----------------------------------------------------------------------------------------------


def records_of_turns(events: Iterable[EventEnvelope]) -> dict[str, list[EventEnvelope]]:
    """Return the usage records of each turn up to its terminal event; what came under its id later isn't the turn's."""
    found: dict[str, list[EventEnvelope]] = {}
    ended: set[str | None] = set()
    for envelope in events:
        event = envelope.event
        if isinstance(event, TerminalEvent):
            ended.add(envelope.turn_id)
        elif isinstance(event, UsageRecorded) and event.origin_thread_id is None and event.turn_id not in ended:
            found.setdefault(event.turn_id, []).append(envelope)
    return found


def records_of_thread(events: Iterable[EventEnvelope]) -> Iterator[EventEnvelope]:
    """Yield the usage records of the thread's own attempts."""
    for envelope in events:
        if isinstance(envelope.event, UsageRecorded) and envelope.event.origin_thread_id is None:
            yield envelope


def records_of_goal(events: Iterable[EventEnvelope], goal_id: str) -> Iterator[EventEnvelope]:
    """Yield the usage records charged to a goal, those of threads below included."""
    for envelope in events:
        if isinstance(envelope.event, UsageRecorded) and envelope.event.goal_id == goal_id:
            yield envelope
