"""What attempts cost: the table, tiers and buckets without prices, costs that the wire told, models inside."""

from decimal import Decimal
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import roder_trio as rt
from roder_trio import events, transcript
from roder_trio.logic.cost import (
    Part,
    bills,
    charge,
    notes_of,
    records_of_goal,
    records_of_thread,
    records_of_turns,
    total,
    with_attempt,
)
from roder_trio.schema.cost import NO_COST, Cost, Price
from tests.cost_support import KNOWN, NOW, PARTLY, PRICE, ROW, cost, price_list, record

UNKNOWN = Cost(None, Decimal(0))


def usage(prompt: int = 0, completion: int = 0, *parts: int, tier: str | None = None) -> rt.TokenUsage:
    return rt.TokenUsage(prompt, completion, prompt + completion, *parts, service_tier=tier)


def advisor(model: str = "other", **counts: int) -> dict[str, Any]:
    return {"type": "advisor_message", "model": model, "input_tokens": 5, "output_tokens": 1, **counts}


# -- the table ---------------------------------------------------------------------------------------------------------


def test_an_attempt_costs_its_uncached_cached_created_and_completed_tokens() -> None:
    assert cost(record()) == KNOWN
    assert charge(ROW, PRICE) == Decimal("0.02") + Decimal("0.0016") + Decimal("0.005") + Decimal("0.008")


def test_one_attempt_of_a_model_without_a_price_leaves_the_sum_unknown_and_the_rest_known() -> None:
    assert cost(record(), record("b", model="dear")) == PARTLY


def test_the_wires_cost_wins_over_any_price() -> None:
    told = Cost(Decimal("0.05"), Decimal("0.05"))
    assert cost(record(), notes={"a": {"cost": 0.05}}) == told
    assert cost(record(model="dear"), notes={"a": {"cost": 0.05}}) == told
    assert cost(record(), notes={"a": {"cost": 0, "iterations": [advisor()]}}) == NO_COST


def test_no_attempts_cost_nothing() -> None:
    assert cost() == Cost(Decimal(0), Decimal(0)) == NO_COST
    assert cost(record(usage=rt.TokenUsage(0, 0, 0))) == NO_COST


def test_reasoning_is_inside_the_completion() -> None:
    assert charge(rt.TokenUsage(0, 10, 10, reasoning_tokens=9), PRICE) == Decimal("0.00008")


# -- prices ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", [None, "default", "standard", "on_demand"])
def test_the_plain_tiers_have_the_plain_price(tier: str | None) -> None:
    assert charge(usage(1_000_000, tier=tier), PRICE) == 2


def test_a_tier_has_a_price_of_its_own_or_none() -> None:
    price = Price({"prompt": 2}, {"flex": {"prompt": 1}, "standard": {"prompt": 3}})
    assert charge(usage(1_000_000, tier="flex"), price) == 1
    assert charge(usage(1_000_000, tier="standard"), price) == 3
    assert charge(usage(1_000_000, tier="priority"), price) is None


@pytest.mark.parametrize(
    ("counted", "known"),
    [
        (usage(10), True),
        (usage(10, 1), False),
        (usage(10, 0, 5), False),
        (usage(10, 0, 0, 5), False),
        (usage(0, 1), False),
    ],
)
def test_tokens_without_a_price_leave_the_attempt_unknown_and_empty_buckets_dont(
    counted: rt.TokenUsage, known: bool
) -> None:
    assert (charge(counted, Price({"prompt": 1})) is not None) is known


def test_a_total_without_tokens_that_could_be_priced_is_unknown() -> None:
    assert cost(record(usage=rt.TokenUsage(0, 0, 7))) == UNKNOWN


def test_a_record_without_provider_or_model_is_unknown() -> None:
    assert cost(record(provider=None)) == cost(record(model=None)) == UNKNOWN
    assert cost(record(model=None), notes={"a": {"iterations": [advisor()]}}) == UNKNOWN


@pytest.mark.parametrize(
    "amounts", [{"input": 1}, {"prompt": True}, {"prompt": "1"}, {"prompt": -1}, {"prompt": float("nan")}]
)
def test_what_is_no_price_is_refused(amounts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="price"):
        Price(amounts)
    with pytest.raises(ValueError, match="price"):
        Price({}, {"flex": amounts})


def test_costs_add_only_to_costs() -> None:
    assert KNOWN + PARTLY == PARTLY + KNOWN == Cost(None, Decimal("0.0692"))
    with pytest.raises(TypeError):
        KNOWN + Decimal(1)  # type: ignore[operator]


# -- attempts ----------------------------------------------------------------------------------------------------------


def test_the_last_record_of_an_attempt_counts_and_says_when() -> None:
    first, last = record(usage=usage(1), report=1), record(report=3, seconds=9)
    (bill,) = bills([last, first, last], {})
    assert bill.parts == (Part("one", "known", ROW, last.timestamp),)
    assert last.timestamp > NOW


@pytest.mark.parametrize("value", [True, "0.05", None, float("nan"), float("inf"), -0.01])
def test_only_a_number_is_a_cost_of_the_wire(value: Any) -> None:
    assert cost(record(), notes={"a": {"cost": value}}) == KNOWN
    assert with_attempt({"usage": {"cost": value}}, "a", "known") == {"usage": {"cost": value}}


# -- models that a provider ran inside ---------------------------------------------------------------------------------


def test_entries_of_another_model_are_priced_by_that_model_and_the_rest_by_the_own() -> None:
    entry = advisor(input_tokens=1_000, output_tokens=100, cache_read_input_tokens=500, cache_creation_input_tokens=200)
    counted = usage(20_000 + 1_700, 1_100, 8_500, 2_200)
    note = {"a": {"iterations": [{"type": "message", "model": "known-2026", "input_tokens": 1}, entry]}}
    other = Price({"prompt": 10, "cached": 1, "creation": 12, "completion": 50})
    by_hand = Decimal("0.0346") + Decimal("0.01") + Decimal("0.0005") + Decimal("0.0024") + Decimal("0.005")
    assert cost(record(usage=counted), notes=note, other=other) == Cost(by_hand, by_hand)
    assert cost(record(usage=counted), notes=note) == PARTLY


def test_an_entry_that_takes_all_of_an_attempt_leaves_nothing_to_price() -> None:
    note = {"a": {"iterations": [advisor("known")]}}
    assert cost(record(usage=usage(5, 1), model="dear"), notes=note).usd == charge(usage(5, 1), PRICE)


def test_entries_have_the_attempts_tier() -> None:
    note = {"a": {"iterations": [advisor()]}}
    price = Price({}, {"flex": {"prompt": 2, "completion": 8}})
    expected = charge(usage(10, 2), PRICE)
    assert cost(record(usage=usage(10, 2, tier="flex")), notes=note, known=price, other=price).usd == expected


def test_entries_that_hold_more_than_their_attempt_leave_its_own_part_unknown() -> None:
    note = {"a": {"iterations": [advisor("known", input_tokens=50)]}}
    found = cost(record(usage=usage(10, 2), model="dear"), notes=note)
    assert found == Cost(None, charge(usage(50, 1), PRICE))


@pytest.mark.parametrize(
    "iterations",
    [
        None,
        {},
        [1],
        [{"type": "advisor_message"}],
        [advisor("")],
        [advisor("known")],
        [{**advisor(), "type": "message"}],
        [{**advisor(), "model": 3}],
    ],
)
def test_what_names_no_other_model_is_part_of_the_own(iterations: Any) -> None:
    note = {"iterations": iterations}
    assert cost(record(), notes={"a": note}) == KNOWN
    assert with_attempt({"usage": note}, "a", "known") == {"usage": note}


def test_counters_of_an_entry_that_are_no_numbers_are_ignored() -> None:
    entry = advisor(input_tokens=-4, output_tokens=True, cache_read_input_tokens="9")  # type: ignore[arg-type]
    assert cost(record(), notes={"a": {"iterations": [entry]}}) == KNOWN


# -- what is stored ----------------------------------------------------------------------------------------------------


def test_metadata_that_tells_a_cost_gets_the_attempts_id_and_no_other_does() -> None:
    told = {"model": "known", "usage": {"cost": 0.5}}
    assert with_attempt(told, "a", "known") == {**told, "attempt_id": "a"}
    assert with_attempt(told, None, "known") is told
    inner = {"usage": {"iterations": [advisor()]}}
    assert with_attempt(inner, "a", "known") == {**inner, "attempt_id": "a"}
    for payload in ({}, {"usage": None}, {"usage": {"input_tokens": 3}}):
        assert with_attempt(payload, "a", "known") is payload


def test_notes_are_read_from_metadata_with_an_attempts_id_alone() -> None:
    items = [
        transcript.UserMessage("hi"),
        transcript.ProviderMetadata({"attempt_id": "a", "usage": {"cost": 1}}),
        transcript.ProviderMetadata({"attempt_id": "b", "usage": 1}),
        transcript.ProviderMetadata({"usage": {"cost": 2}}),
        transcript.ProviderMetadata({"attempt_id": 3, "usage": {"cost": 2}}),
    ]
    assert notes_of(items) == {"a": {"cost": 1}}


# -- which records count -----------------------------------------------------------------------------------------------


def ended(turn_id: str) -> rt.EventEnvelope:
    end = events.TurnCompleted(None, "stop")
    return rt.EventEnvelope(
        event_id="e", timestamp=NOW, source="turn", thread_id="thread", turn_id=turn_id, event=end, seq=9
    )


def test_a_turns_records_are_its_own_up_to_its_end() -> None:
    mine, copied = record("a"), record("b", origin_thread_id="child")
    other, late = record("c", turn_id="u"), record("d")
    log = [other, mine, copied, ended("u"), ended("t"), late]
    assert records_of_turns(log) == {"t": [mine], "u": [other]}
    assert records_of_turns(log[:3]) == records_of_turns(log)
    assert records_of_turns([ended("t"), late]) == {}
    assert list(records_of_thread(log)) == [other, mine, late]


def test_a_goals_records_are_those_with_its_id_copies_included() -> None:
    mine, copied = record("a", goal_id="g"), record("b", goal_id="g", origin_thread_id="child")
    assert list(records_of_goal([mine, ended("t"), copied, record("c", goal_id="h")], "g")) == [mine, copied]


# -- laws --------------------------------------------------------------------------------------------------------------

COUNTS = st.integers(0, 10_000)
USAGES = st.builds(
    lambda prompt, completion, cached, creation, tier: usage(prompt, completion, cached, creation, tier=tier),
    COUNTS, COUNTS, COUNTS, COUNTS, st.sampled_from([None, "standard", "priority"]),
)  # fmt: skip
NOTES = st.sampled_from([{}, {"cost": 0.25}, {"iterations": [advisor("dear")]}, {"iterations": [advisor("other")]}])


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[rt.EventEnvelope], dict[str, Any]]:
    records, notes = [], {}
    for number in range(draw(st.integers(0, 5))):
        model = draw(st.sampled_from(["known", "other", "dear"]))
        for report in range(1, draw(st.integers(1, 3)) + 1):
            records.append(record(f"a{number}", draw(USAGES), report, model=model))
        notes[f"a{number}"] = draw(NOTES)
    return records, notes


@hypothesis.given(logs(), st.randoms(use_true_random=False))
def test_a_sum_is_the_sum_of_its_attempts_in_any_order_and_however_often_a_record_was_written(
    log: tuple[list[rt.EventEnvelope], dict[str, Any]], random: Any
) -> None:
    records, notes = log
    price_of = price_list(other=PRICE)
    whole = total(bills(records, notes), price_of)
    apart = [total([bill], price_of) for bill in bills(records, notes)]
    assert whole == sum(apart, NO_COST)
    assert (whole.usd is None) is any(part.usd is None for part in apart)
    assert whole.usd in (None, whole.known_usd)
    shuffled = records * 2
    random.shuffle(shuffled)
    assert total(bills(shuffled, notes), price_of) == whole
