"""Chat Completions streams as events."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.schema.inference import (
    Completed,
    MessageDelta,
    ProviderMetadata,
    ReasoningDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from tests.chat import (
    calls,
    chunk,
    decode,
    decoder,
    events_of,
    fragment,
    frames_of,
    run,
    sse,
    told,
    usage,
    without_metadata,
)

STOP = chunk("stop")
DONE = "[DONE]"


def stop_of(events: list[Any]) -> Any:
    assert isinstance(events[-1], Completed)
    return events[-1].stop_reason


def metadata(events: list[Any]) -> Any:
    assert isinstance(events[-2], ProviderMetadata)
    return events[-2].payload


# -- text, reasoning, ends


def test_text_then_usage_then_the_end() -> None:
    final = usage(8, 2, 10, prompt_tokens_details={"cached_tokens": 4})
    events = events_of(chunk(role="assistant", content=""), chunk(content="Hey"), STOP, final, DONE)
    assert without_metadata(events) == [
        MessageDelta("Hey"),
        told(8, 2, 10, cached_prompt_tokens=4),
        Completed("stop", "r1"),
    ]
    assert metadata(events) == {
        "dialect": "chat_completions",
        "provider": "acme",
        "base_url": "http://localhost/v1",
        "model": "m",
        "response_id": "r1",
        "output": [],
        "usage": final["usage"],
        "service_tier": None,
        "raw_stop_reason": "stop",
    }


def test_reasoning_comes_before_content_and_only_once() -> None:
    events = events_of(chunk(reasoning_content="th", reasoning="th", content="ok"), STOP, DONE)
    assert events[:2] == [ReasoningDelta("th"), MessageDelta("ok")]
    assert len(events) == 4


def test_the_fields_of_reasoning_are_the_profiles() -> None:
    assert events_of(chunk(thoughts="a", reasoning="b"), STOP, reasoning_fields=("thoughts",))[0] == ReasoningDelta("a")
    assert events_of(chunk(reasoning={"odd": 1}, reasoning_content=""), STOP)[:-2] == []


def test_content_may_be_a_list_of_parts() -> None:
    parts = [{"thinking": [{"text": "th"}, "!", 5]}, {"text": "ok"}, 7, {"type": "text", "text": ""}]
    events = events_of(chunk(content=parts), chunk(content=[{"thinking": []}, {"thinking": "more"}]), STOP, DONE)
    assert events[:3] == [ReasoningDelta("th!"), MessageDelta("ok"), ReasoningDelta("more")]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}, "list": ["a", "data:x"]}
    kept = metadata(events_of(chunk(content=[image]), STOP))["output"]
    stripped = {"type": "image_url", "image_url": {"url": "data:"}, "list": ["a", "data:"]}
    assert kept == [{"type": "content_part", "part": stripped}]


def test_reasoning_details_count_if_no_field_has_reasoning_and_are_all_kept() -> None:
    entries = [
        {"type": "reasoning.text", "text": "th"},
        {"type": "reasoning.encrypted", "data": "x"},
        {"type": "reasoning.summary", "summary": "!"},
        {"type": "reasoning.text", "text": "", "signature": "s"},
    ]
    events = events_of(chunk(reasoning_details=entries), STOP, DONE)
    assert events[0] == ReasoningDelta("th!")
    assert metadata(events)["output"] == [{"type": "reasoning_details", "entries": entries}]
    assert len(events) == 3
    assert events_of(chunk(reasoning="a", reasoning_details=entries), STOP)[0] == ReasoningDelta("a")
    assert len(events_of(chunk(reasoning_details=entries[1:2]), chunk(reasoning_details=5), STOP)) == 2


@pytest.mark.parametrize(
    "frame",
    [
        {"choices": [{"delta": None}]},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {},
        {"choices": [{"delta": {}}]},
        {"choices": [{"index": 0, "delta": {"content": None}}]},
        {"choices": [{"delta": {"content": 5}}]},
        {"choices": [{"delta": {"tool_calls": None, "function_call": None, "unknown": 1}}]},
        {"choices": [], "usage": None},
        {"error": None},
    ],
)
def test_frames_that_say_nothing_give_nothing(frame: Any) -> None:
    assert without_metadata(events_of(frame, {"choices": [{"finish_reason": "stop"}]})) == [Completed("stop", None)]


@pytest.mark.parametrize(
    ("raw", "stop"),
    [
        *((raw, "stop") for raw in ("end_turn", "stop", "stop_sequence", "eos", "completed")),
        *((raw, "length") for raw in ("max_tokens", "length", "max_output_tokens")),
        *((raw, "tool_use") for raw in ("tool_use", "tool_calls", "function_call")),
        ("content_filter", "content_filter"),
        ("refusal", "refusal"),
        ("odd", "odd"),
    ],
)
def test_stop_reasons_are_named_alike_and_the_raw_one_is_kept(raw: str, stop: str) -> None:
    events = events_of(chunk(content="a"), chunk(raw), DONE)
    assert stop_of(events) == stop
    assert metadata(events)["raw_stop_reason"] == raw


def test_the_last_finish_reason_wins_and_may_come_with_content() -> None:
    events = events_of(chunk("length", content="a"), chunk("stop"), chunk(""), DONE)
    assert events[0] == MessageDelta("a")
    assert stop_of(events) == "stop"


def test_a_refusal_is_text_with_its_own_stop_reason() -> None:
    events = events_of(chunk(refusal="no"), chunk(refusal=None), STOP, DONE)
    assert events[0] == MessageDelta("no")
    assert stop_of(events) == "refusal"
    assert metadata(events)["refused"] is True


def test_filtered_content_keeps_its_text() -> None:
    events = events_of(chunk(content="a"), chunk("content_filter"), DONE)
    assert (events[0], stop_of(events)) == (MessageDelta("a"), "content_filter")


@pytest.mark.parametrize("mark", ["[DONE]", " [done] "])
def test_done_without_a_finish_reason_ends_the_answer(mark: str) -> None:
    assert stop_of(events_of(chunk(content="a"), mark)) == "stop"
    assert stop_of(events_of(calls(fragment(0, "A", "f", "{}")), mark)) == "tool_use"


def test_a_stop_with_calls_is_tool_use() -> None:
    assert stop_of(events_of(calls(fragment(0, "A", "f", "{}")), STOP, DONE)) == "tool_use"


def test_the_end_without_finish_reason_or_done_is_an_interruption() -> None:
    events, failure = run(chunk(content="a"))
    assert events == [MessageDelta("a")]
    assert failure is not None
    assert (failure.kind.name, failure.cause, failure.response_id) == ("STREAM_INTERRUPTED", "truncated", "r1")
    assert failure.retryable


def test_the_end_after_a_finish_reason_completes() -> None:
    assert stop_of(events_of(chunk(content="a"), STOP)) == "stop"


def test_nothing_is_read_after_the_end() -> None:
    events = events_of(STOP, DONE, chunk(content="late"), usage(1, 1), DONE, {"error": "late"})
    assert without_metadata(events) == [Completed("stop", "r1")]


def test_a_final_frame_without_its_blank_line_counts() -> None:
    events, failure = decode([sse(chunk(content="a"), STOP).rstrip(b"\n")])
    assert failure is None
    assert stop_of(events) == "stop"


def test_a_final_frame_that_is_cut_is_an_interruption() -> None:
    _, failure = decode([sse(chunk(content="a")) + b'data: {"choices": [{"del'])
    assert failure is not None
    assert (failure.kind.name, failure.cause) == ("STREAM_INTERRUPTED", "truncated")


@pytest.mark.parametrize("rest", [b"data: [DO", b'data: {"usage": {"prom', b'event: error\ndata: {"err'])
def test_what_breaks_off_behind_a_finish_reason_takes_nothing_from_the_answer(rest: bytes) -> None:
    events, failure = decode([sse(chunk(content="a"), STOP, usage(8, 2)) + rest])
    assert failure is None
    assert without_metadata(events) == [MessageDelta("a"), told(8, 2, 10), Completed("stop", "r1")]


def test_bad_json_is_a_protocol_failure_with_an_excerpt() -> None:
    events, failure = run(chunk(content="a"), "{oops sk-abcdefghijkl " + "x" * 3000, chunk(content="b"))
    assert events == [MessageDelta("a")]
    assert failure is not None
    assert (failure.kind.name, failure.cause, len(failure.body_excerpt or "")) == ("PROTOCOL", "bad_json", 2000)
    assert "abcdefghijkl" not in (failure.body_excerpt or "")


def test_json_that_is_no_object_and_other_choices_are_warned_of() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "x"}}]}
    events = events_of("[1]", "5", other, other, STOP)
    assert metadata(events)["warnings"] == ["a frame was no object", "the answer has more than one choice"]
    assert len(events) == 2


def test_halves_of_surrogate_pairs_and_numbers_that_json_lacks_are_read() -> None:
    events = events_of('{"choices":[{"delta":{"content":"a\\ud83d"}}], "x": [NaN, {"b": 1}]}', STOP)
    assert events[0] == MessageDelta("a\ufffd")


def test_annotations_executed_tools_and_moderation_are_kept() -> None:
    annotated = chunk(annotations=[{"url": "u"}], executed_tools=[{"index": 0}])
    moderated = {**STOP, "moderation": {"flagged": True}}
    payload = metadata(events_of(annotated, moderated))
    assert payload["output"] == [
        {"type": "annotations", "annotations": [{"url": "u"}]},
        {"type": "executed_tools", "executed_tools": [{"index": 0}]},
    ]
    assert payload["moderation"] == {"flagged": True}


def test_an_answer_in_one_object_gives_the_same_events() -> None:
    message = {
        "content": "Hey",
        "reasoning_content": "th",
        "tool_calls": [{"id": "A", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
    }
    whole = {"id": "r1", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], **usage(8, 2)}
    whole["choices"] = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    body = sse(whole).removeprefix(b"data: ")
    for content_type in ("application/json", "application/json; charset=utf-8", ""):
        events, failure = decode([body], content_type)
        assert failure is None
        assert without_metadata(events) == [
            ReasoningDelta("th"),
            MessageDelta("Hey"),
            ToolCallStarted("A", "f"),
            ToolCallDelta("A", '{"a":1}'),
            told(8, 2, 10),
            ToolCallCompleted("A", "f", '{"a":1}'),
            Completed("tool_use", "r1"),
        ]


def test_an_object_without_a_finish_reason_is_whole_but_needs_choices() -> None:
    events, _ = decode([b'{"choices": [{"message": {"content": "a"}}]}'], "application/json")
    assert (events[0], stop_of(events)) == (MessageDelta("a"), "stop")
    _, failure = decode([b'{"ok": true}'], "application/json")
    assert failure is not None
    assert failure.cause == "truncated"
    _, failure = decode([b'{"error": {"code": "insufficient_quota"}}'], "application/json")
    assert failure is not None
    assert failure.kind.name == "QUOTA_EXCEEDED"


# -- usage


def test_each_usage_replaces_the_former() -> None:
    frames = [{**chunk(content=str(n)), "usage": usage(8, n)["usage"]} for n in (1, 2, 3)]
    events = events_of(*frames, STOP, DONE)
    assert [event for event in events if isinstance(event, Usage)] == [told(8, 1, 9), told(8, 2, 10), told(8, 3, 11)]


def test_usage_that_says_nothing_new_is_not_told() -> None:
    events = events_of(usage(0, 0, 0), usage(8, 2), usage(8, 2), usage(0, 0, 0), STOP)
    assert without_metadata(events) == [told(8, 2, 10), Completed("stop", "r1")]
    assert metadata(events)["usage"] == usage(8, 2)["usage"]


def test_the_newest_service_tier_is_told_with_the_usage() -> None:
    tiers: list[Any] = [{**usage(8, 2), "service_tier": "flex"}, {"service_tier": ""}, {"service_tier": "default"}]
    events = events_of({"service_tier": "auto"}, *tiers, {"service_tier": None}, STOP)
    assert without_metadata(events)[:-1] == [
        told(8, 2, 10, service_tier="flex"),
        told(8, 2, 10, service_tier="default"),
    ]
    assert metadata(events)["service_tier"] == "default"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"total_tokens": 30}, told(20, 8, 30)),
        ({}, told(20, 8, 28)),
        (
            {"prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 3}},
            told(20, 8, 28, cached_prompt_tokens=5, cache_creation_prompt_tokens=3),
        ),
        ({"input_tokens_details": {"cached_tokens": 5}}, told(20, 8, 28, cached_prompt_tokens=5)),
        ({"prompt_tokens_details": None, "prompt_cache_hit_tokens": 6}, told(20, 8, 28, cached_prompt_tokens=6)),
        ({"cached_tokens": 7}, told(20, 8, 28, cached_prompt_tokens=7)),
        ({"cached_tokens": 99}, told(20, 8, 28, cached_prompt_tokens=20)),
        ({"completion_tokens_details": {"reasoning_tokens": 3}}, told(20, 8, 28, reasoning_tokens=3)),
        (
            {"completion_tokens_details": {"reasoning_tokens": 5}, "total_tokens": 33},
            told(20, 13, 33, reasoning_tokens=5),
        ),
        (
            {"completion_tokens_details": {"reasoning_tokens": 11}, "total_tokens": 28},
            told(20, 8, 28, reasoning_tokens=8),
        ),
        ({"cached_tokens": -1, "total_tokens": True, "completion_tokens": "8"}, told(20, 0, 20)),
        ({"completion_tokens": 1.5}, told(20, 0, 20)),
        ({"completion_tokens": 8.0, "usage_breakdown": {"models": [{"usage": {"prompt_tokens": 5}}]}}, told(20, 8, 28)),
        ({"completion_tokens": 2**63}, told(20, 0, 20)),
        ({"cost": 0.5, "server_tool_use_details": {"web_search_requests": 3}}, told(20, 8, 28)),
    ],
)
def test_usage_is_read(counts: dict[str, Any], expected: Usage) -> None:
    frame = {"usage": {"prompt_tokens": 20, "completion_tokens": 8, **counts}}
    events = events_of(frame, STOP)
    assert events[0] == expected
    assert metadata(events)["usage"] == frame["usage"]


def test_usage_is_found_in_each_of_its_places() -> None:
    counts = {"prompt_tokens": 1, "completion_tokens": 2}
    other = {"prompt_tokens": 9}
    assert events_of({"x_groq": {"usage": counts}}, STOP)[0] == told(1, 2, 3)
    assert events_of({"choices": [{"delta": {}, "usage": counts}]}, STOP)[0] == told(1, 2, 3)
    assert events_of({"usage": counts, "x_groq": {"usage": other}}, STOP)[0] == told(1, 2, 3)
    assert len(events_of({"x_groq": {"usage": counts}}, STOP, usage_places=("usage",))) == 2


def test_settle_knows_the_newest_usage() -> None:
    reader = decoder()
    assert reader.settle() is None
    for frame in frames_of(sse(usage(8, 1), usage(8, 2))):
        reader.feed(frame)
    settled = reader.settle()
    assert settled is not None
    assert settled.total_tokens == 10


# -- failures in the stream


def test_an_error_in_the_stream_ends_it() -> None:
    events, failure = run(chunk(content="a"), {"error": {"message": "backend died", "code": 502}}, DONE)
    assert events == [MessageDelta("a")]
    assert failure is not None
    assert (failure.kind.name, failure.status, failure.response_id) == ("SERVER_OVERLOADED", 502, "r1")


def test_usage_beside_an_error_counts_even_after_a_finish_reason() -> None:
    counts = usage(40, 9, 49, completion_tokens_details={"reasoning_tokens": 12})["usage"]
    failing = {**chunk(content=""), "error": {"code": 400, "message": "limit"}, "usage": counts}
    events, failure = run(chunk("length", reasoning="a"), chunk("length"), failing, DONE)
    assert events == [ReasoningDelta("a"), told(40, 9, 49, reasoning_tokens=9)]
    assert failure is not None
    assert failure.kind.name == "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"error": {"code": "tool_use_failed", "status_code": 400}}', "STREAM_INTERRUPTED"),
        (b'{"message": "slow down"}', "SERVER_OVERLOADED"),
        (b"overloaded", "SERVER_OVERLOADED"),
        (b"{}", "PROTOCOL"),
        (b'"rate limit"', "RATE_LIMITED"),
        (b"", "PROTOCOL"),
    ],
)
def test_an_event_named_error_is_a_failure_whatever_it_holds(data: bytes, kind: str) -> None:
    events, failure = decode([sse(chunk(content="a")) + b"event: error\ndata: " + data + b"\n\n"])
    assert events == [MessageDelta("a")]
    assert failure is not None
    assert failure.kind.name == kind


def test_an_error_may_be_a_string() -> None:
    _, failure = run({"error": "maximum context length is 5"})
    assert failure is not None
    assert failure.kind.name == "CONTEXT_WINDOW_EXCEEDED"


# -- cuts


@given(st.lists(st.integers(0, 2000), max_size=8))
@settings(max_examples=60)
def test_a_stream_cut_anywhere_gives_equal_events(cuts: list[int]) -> None:
    stream = sse(
        chunk(reasoning="ü", content="a😀"),
        calls(fragment(0, "A", "f", '{"a"')),
        ": comment",
        calls(fragment(0, arguments=":1}")),
        {**chunk("tool_calls"), **usage(8, 2)},
        DONE,
    ).replace(b"data: : comment", b": comment")
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert decode(pieces) == decode([stream])


@pytest.mark.parametrize("deep", ["[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300])
def test_a_frame_that_nests_too_deep_is_refused(deep: str) -> None:
    frame = '{"choices":[{"delta":{"content":"hi","annotations":' + deep + "}}]}"
    events, failed = run(chunk(content="first"), frame)
    assert [event.text for event in events] == ["first"]
    assert failed is not None
    assert (failed.kind.name, failed.cause) == ("PROTOCOL", "bad_json")


def test_a_frame_with_many_parts_side_by_side_is_read() -> None:
    wide = json.dumps([[] for _ in range(300)])
    events = events_of('{"choices":[{"delta":{"content":"hi","annotations":' + wide + "}}]}", "[DONE]")
    assert events[0].text == "hi"
