"""Usage in Gemini streams."""

from typing import Any

import pytest

from roder_trio.schema.inference import Usage
from tests.chat import frames_of, sse, told
from tests.gemini import chunk, counts, decoder, events_of, failure_of

STOP = chunk(finish="STOP")


def payload(events: list[Any]) -> Any:
    return events[-2].payload


def usages(events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, Usage)]


def test_each_usage_is_a_whole_snapshot_in_which_absent_fields_are_nothing() -> None:
    first, last = counts(9, 59, candidates=20, thoughts=30), counts(80, 150, thoughts=70)
    events = events_of(chunk("a", usage=first), chunk(finish="STOP", usage=last))
    assert usages(events) == [told(9, 50, 59, reasoning_tokens=30), told(80, 70, 150, reasoning_tokens=70)]
    assert payload(events)["usage"] == last


def test_a_smaller_snapshot_counts_only_once_the_answer_is_finished() -> None:
    totals = [chunk("a", usage=counts(1, total)) for total in (447, 8, 138)]
    events = events_of(*totals, chunk(finish="STOP", usage=counts(1, 91)))
    assert [event.usage.total_tokens for event in usages(events)] == [447, 91]
    cut, _ = failure_of(*totals)
    assert [event.usage.total_tokens for event in usages(cut)] == [447]


def test_usage_that_says_nothing_new_is_not_told() -> None:
    events = events_of(
        chunk("a", usage={}), chunk("b", usage=counts(5, 6)), chunk("c", usage=counts(5, 6)), chunk(finish="STOP")
    )
    assert usages(events) == [told(5, 0, 6)]
    assert payload(events)["usage"] == counts(5, 6)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, told(20, 8, 28)),
        ({"toolUsePromptTokenCount": 5}, told(25, 8, 33)),
        ({"thoughtsTokenCount": 4}, told(20, 12, 32, reasoning_tokens=4)),
        ({"cachedContentTokenCount": 99}, told(20, 8, 28, cached_prompt_tokens=20)),
        ({"totalTokenCount": 40}, told(20, 8, 40)),
        ({"totalTokenCount": -1, "thoughtsTokenCount": True, "cachedContentTokenCount": "4"}, told(20, 8, 28)),
        ({"candidatesTokenCount": 1.5}, told(20, 0, 20)),
        ({"serviceTier": "flex", "trafficType": "ON_DEMAND"}, told(20, 8, 28, service_tier="flex")),
        ({"trafficType": "ON_DEMAND"}, told(20, 8, 28, service_tier="standard")),
        ({"trafficType": "ON_DEMAND_FLEX"}, told(20, 8, 28, service_tier="flex")),
        ({"trafficType": "ON_DEMAND_PRIORITY"}, told(20, 8, 28, service_tier="priority")),
        ({"trafficType": "PROVISIONED_THROUGHPUT"}, told(20, 8, 28)),
        ({"trafficType": ["odd"], "serviceTier": ""}, told(20, 8, 28)),
    ],
)
def test_usage_is_read(more: dict[str, Any], expected: Usage) -> None:
    counted = {"promptTokenCount": 20, "candidatesTokenCount": 8, **more}
    events = events_of(chunk("a", usage=counted), STOP)
    assert events[1] == expected
    assert payload(events)["usage"] == counted
    assert payload(events)["service_tier"] == expected.usage.service_tier


def test_settle_knows_the_newest_usage() -> None:
    reader = decoder()
    assert reader.settle() is None
    [frame] = frames_of(sse(chunk("a", usage=counts(5, 6))))
    reader.feed(frame)
    assert reader.settle() == told(5, 0, 6).usage
