"""What a stream of the Messages API counts, and what the server compacts in it."""

from typing import Any

import pytest

from roder_trio.schema.inference import (
    Compaction,
    CompactionStatus,
    Completed,
    MessageDelta,
    Usage,
)
from tests.anthropic_support import (
    OVER,
    began,
    call,
    closed,
    events_of,
    opened,
    piece,
    replay_of,
    run,
    stopped,
    text,
)
from tests.chat import told, without_metadata

DONE = stopped("end_turn")
STARTED, FAILED = CompactionStatus.STARTED, CompactionStatus.FAILED
SUMMARY = {"type": "compaction", "content": "what was"}


# -- usage


def test_a_newer_count_replaces_the_former_field_by_field_and_the_cache_is_added() -> None:
    first = {"input_tokens": 3, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 10, "output_tokens": 1}
    last = {"input_tokens": 3, "cache_read_input_tokens": 10, "output_tokens": 6}
    events = events_of(began(first), *text(0, "Yo"), stopped("end_turn", last), OVER)
    counts = {"cached_prompt_tokens": 10, "cache_creation_prompt_tokens": 2}
    assert without_metadata(events) == [
        told(15, 1, 16, **counts),
        MessageDelta("Yo"),
        told(15, 6, 21, **counts),
        Completed("stop", "r1"),
    ]
    assert events[-2].payload["usage"] == {**first, **last}
    assert events[-2].payload["context_tokens"] == 21


@pytest.mark.parametrize("usage", [None, {}, {"output_tokens": None, "input_tokens": None}])
def test_the_first_count_stands_where_the_last_frame_has_none(usage: Any) -> None:
    events = events_of(began({"input_tokens": 7, "output_tokens": 2}), *text(0, "a"), stopped("end_turn", usage), OVER)
    assert [event for event in events if isinstance(event, Usage)] == [told(7, 2, 9)]


@pytest.mark.parametrize("bad", [-1, 1.5, True, "3", None, [], 2**70])
def test_what_is_no_count_is_ignored_alone(bad: Any) -> None:
    events = events_of(
        began({"input_tokens": 7, "output_tokens": 2}), stopped(None, {"input_tokens": bad, "output_tokens": 4}), OVER
    )
    assert [event for event in events if isinstance(event, Usage)] == [told(7, 2, 9), told(7, 4, 11)]


def test_nothing_is_told_of_an_empty_or_an_unchanged_count() -> None:
    zero = {"input_tokens": 0, "output_tokens": 0}
    events, _ = run(began(zero), *text(0, "a"), stopped("end_turn", zero), OVER)
    assert [event for event in events if isinstance(event, Usage)] == []
    assert "context_tokens" not in events[-2].payload
    events, _ = run(began({"input_tokens": 1}), stopped("end_turn", {"input_tokens": 1}), OVER)
    assert [event for event in events if isinstance(event, Usage)] == [told(1, 0, 1)]


def test_thinking_is_a_part_of_the_output() -> None:
    first = {"input_tokens": 9, "output_tokens": 1, "output_tokens_details": {"thinking_tokens": 0}}
    last = {"output_tokens": 261, "output_tokens_details": {"thinking_tokens": 40}}
    events = events_of(began(first), stopped("end_turn", last), OVER)
    assert events[-3] == told(9, 261, 270, reasoning_tokens=40)
    assert events[-2].payload["usage"]["output_tokens_details"] == {"thinking_tokens": 40}
    kept = events_of(began(first), stopped("end_turn", last), stopped(None, {"output_tokens_details": None}), OVER)
    assert kept[-3] == told(9, 261, 270, reasoning_tokens=40)


def test_the_tier_is_the_newest_that_was_told() -> None:
    events = events_of(
        began({"input_tokens": 1, "service_tier": "standard"}), stopped("end_turn", {"service_tier": ""}), OVER
    )
    assert events[0] == told(1, 0, 1, service_tier="standard")
    assert events[-2].payload["service_tier"] == "standard"
    events = events_of(
        began({"input_tokens": 1, "service_tier": "standard"}), stopped("end_turn", {"service_tier": "priority"}), OVER
    )
    assert events[-3] == told(1, 0, 1, service_tier="priority")


COMPACTED = [
    began({"input_tokens": 50, "cache_read_input_tokens": 9000, "output_tokens": 2}),
    opened(0, "compaction", content=None),
    piece(0, "compaction", content="what was"),
    closed(0),
    *text(1, "ok"),
]
ITERATIONS = [
    {"type": "compaction", "input_tokens": 50, "output_tokens": 40, "cache_read_input_tokens": 9000},
    {"type": "message", "input_tokens": 70, "output_tokens": 6},
]


def ended(*iterations: Any) -> dict[str, Any]:
    counts = {"input_tokens": 70, "output_tokens": 6, "cache_read_input_tokens": 0}
    return stopped("end_turn", {**counts, "iterations": list(iterations)})


def test_a_compaction_beside_the_answer_is_billed() -> None:
    events = events_of(*COMPACTED, ended(*ITERATIONS), OVER)
    assert [event for event in events if isinstance(event, Usage)] == [
        told(9050, 2, 9052, cached_prompt_tokens=9000),
        told(9120, 46, 9166, cached_prompt_tokens=9000),
    ]
    assert events[-2].payload["context_tokens"] == 76
    assert events[-2].payload["usage"]["iterations"] == ITERATIONS


def test_another_models_advice_is_billed_and_keeps_its_name() -> None:
    advice = {"type": "advisor_message", "input_tokens": 5, "output_tokens": 1, "model": "other"}
    events = events_of(*COMPACTED, ended(*ITERATIONS, advice, "odd"), OVER)
    assert events[-3] == told(9125, 47, 9172, cached_prompt_tokens=9000)
    assert events[-2].payload["context_tokens"] == 76
    assert events[-2].payload["usage"]["iterations"][2] == advice


@pytest.mark.parametrize(
    ("iterations", "size"),
    [
        ([{"type": "message", "input_tokens": 9}, {"type": "message", "input_tokens": 5, "output_tokens": 2}], 7),
        ([{"type": "fallback_message", "input_tokens": 5, "cache_read_input_tokens": 1, "output_tokens": 2}], 8),
        ([{"type": "compaction", "input_tokens": 5}], None),
        ([], None),
    ],
)
def test_the_size_of_the_context_is_that_of_the_last_pass(iterations: list[Any], size: int | None) -> None:
    hosted = call(0, "s1", "web_search", kind="server_tool_use")
    frames = [began({"input_tokens": 1}), *hosted, stopped("end_turn", {"iterations": iterations}), OVER]
    assert replay_of(*frames).get("context_tokens") == size


def test_a_count_over_inner_passes_tells_no_size() -> None:
    hosted = call(0, "s1", "web_search", '{"query":"x"}', kind="server_tool_use")
    last = stopped("end_turn", {"input_tokens": 900, "output_tokens": 30})
    events = events_of(began({"input_tokens": 20}), *hosted, last, OVER)
    assert events[-3] == told(900, 30, 930)
    assert "context_tokens" not in events[-2].payload


# -- compaction inside the stream


def test_a_finished_compaction_is_a_boundary_under_way() -> None:
    events = events_of(*COMPACTED, DONE, OVER)
    assert events[1:4] == [Compaction(STARTED), Compaction("completed", None, SUMMARY), MessageDelta("ok")]
    assert events[-2].payload["output"] == [SUMMARY, {"type": "text", "text": "ok"}]


def test_a_boundary_is_one_item_however_its_summary_begins() -> None:
    frames = [opened(0, "compaction"), piece(0, "compaction", content="data: none, so far"), closed(0)]
    events = events_of(began(), *frames, DONE, OVER)
    item = {"type": "compaction", "content": "data: none, so far"}
    assert events[1].item == events[-2].payload["output"][0] == item


def test_sealed_content_makes_a_boundary_too() -> None:
    pieces = [piece(0, "compaction", content=None, encrypted_content=sealed) for sealed in ("d", "e")]
    sealed = [opened(0, "compaction", id="b1"), *pieces, closed(0)]
    item = {"type": "compaction", "id": "b1", "encrypted_content": "e"}
    assert events_of(began(), *sealed, DONE, OVER)[:2] == [
        Compaction(STARTED, "b1"),
        Compaction("completed", "b1", item),
    ]


def test_a_compaction_that_brought_nothing_is_no_boundary() -> None:
    events = events_of(began(), opened(0, "compaction", content=None), closed(0), *text(1, "ok"), DONE, OVER)
    assert events[:2] == [Compaction(STARTED), Compaction(FAILED)]
    assert events[-2].payload["output"] == [{"type": "text", "text": "ok"}]


def test_a_boundary_stays_what_it_was_whatever_comes_after_its_stop() -> None:
    late = [piece(0, "compaction", content="more"), closed(0)]
    events = events_of(*COMPACTED, *late, DONE, OVER)
    assert events[-2].payload["output"][0] == SUMMARY
    assert len([event for event in events if isinstance(event, Compaction)]) == 2
