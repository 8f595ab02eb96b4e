"""Gemini streams as events."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.schema.inference import (
    Completed,
    HostedToolCallCompleted,
    HostedToolCallStarted,
    MessageDelta,
    ReasoningDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.chat import completed_calls, frames_of, sse, told, without_metadata
from tests.gemini import call, chunk, counts, decode, decoder, events_of, failure_of, thought

STOP = chunk(finish="STOP")


def payload(events: list[Any]) -> Any:
    return events[-2].payload


def stop_of(events: list[Any]) -> Any:
    assert isinstance(events[-1], Completed)
    return events[-1].stop_reason


# -- content


def test_a_thought_then_text_then_the_end() -> None:
    last = counts(10, 19, candidates=2, thoughts=7, cached=4)
    events = events_of(chunk(thought("plan"), usage=counts(10, 17, thoughts=7)), chunk("Hi", finish="STOP", usage=last))
    assert without_metadata(events) == [
        ReasoningDelta("plan"),
        told(10, 7, 17, reasoning_tokens=7),
        MessageDelta("Hi"),
        told(10, 9, 19, cached_prompt_tokens=4, reasoning_tokens=7),
        Completed("stop", "g1"),
    ]
    assert payload(events) == {
        "dialect": "gemini",
        "provider": "acme",
        "base_url": "http://localhost",
        "model": "m",
        "response_id": "g1",
        "output": [{"text": "plan", "thought": True}, {"text": "Hi"}],
        "usage": last,
        "service_tier": None,
        "raw_stop_reason": "STOP",
        "context_tokens": 12,
    }


def test_a_call_starts_grows_once_and_completes_at_once_under_the_tools_own_name() -> None:
    events = events_of(chunk(call("my_tool", {"p": "ü"}, "a1")), STOP, tools=["my.tool"])
    assert without_metadata(events) == [
        ToolCallStarted("a1", "my.tool"),
        ToolCallDelta("a1", '{"p":"ü"}'),
        ToolCallCompleted("a1", "my.tool", '{"p":"ü"}'),
        Completed("tool_use", "g1"),
    ]


def test_two_equal_calls_without_ids_are_two_calls_and_stay_without_in_the_stored_parts() -> None:
    events = events_of(chunk(call("f", {"a": 1}), call("f", {"a": 1}, "")), STOP)
    assert completed_calls(events) == [("call_fresh1", "f", '{"a":1}'), ("call_fresh2", "f", '{"a":1}')]
    assert stop_of(events) == "tool_use"
    assert payload(events)["output"] == [call("f", {"a": 1})] * 2


def test_an_id_that_is_taken_or_repeated_is_replaced_in_the_stored_part_too() -> None:
    events = events_of(chunk(call("f", {}, "old"), call("f", {}, "b"), call("g", {}, "b")), STOP, taken=["old"])
    assert [id for id, _, _ in completed_calls(events)] == ["call_fresh1", "b", "call_fresh2"]
    assert payload(events)["output"] == [call("f", {}, "call_fresh1"), call("f", {}, "b"), call("g", {}, "call_fresh2")]


@pytest.mark.parametrize(("finish", "text"), [("STOP", "{}"), ("MAX_TOKENS", ""), ("SAFETY", "")])
def test_a_call_without_arguments_waits_for_the_reason_to_stop(finish: str, text: str) -> None:
    events = events_of(chunk(call("f"), call("g", {"a": 1})), chunk("then"), chunk(finish=finish))
    assert completed_calls(events) == [("call_fresh1", "f", text), ("call_fresh2", "g", '{"a":1}')]
    assert events.index(MessageDelta("then")) < events.index(ToolCallCompleted("call_fresh1", "f", text))


def test_arguments_that_are_no_object_or_no_json_are_told_as_they_are() -> None:
    events = events_of('{"candidates":[{"content":{"parts":[{"functionCall":{"args":[1e999]}}]}}]}', STOP)
    assert completed_calls(events) == [("call_fresh1", "", "[Infinity]")]


def test_a_signature_stays_on_its_part_and_empty_parts_are_kept_for_their_signature_only() -> None:
    parts = [{"text": "a", "thoughtSignature": "S"}, {"text": ""}, thought(""), {"text": "", "thoughtSignature": "T"}]
    events = events_of(chunk(*parts, call("f", {}, "1", thoughtSignature="U")), STOP)
    assert payload(events)["output"] == [parts[0], parts[3], call("f", {}, "1", thoughtSignature="U")]
    assert without_metadata(events)[0] == MessageDelta("a")


def test_the_providers_own_tools_are_hosted_calls_and_their_results_are_kept() -> None:
    parts = [
        {"toolCall": {"toolType": "SEARCH", "args": {"q": ["x"]}, "id": "h1"}, "thoughtSignature": "S"},
        {"toolResponse": {"toolType": "SEARCH", "id": "h1"}},
        {"toolCall": {"id": "h1"}},
        {"toolCall": {"toolType": "FETCH"}},
    ]
    events = events_of(chunk(*parts, "so", usage=counts(8, 9, candidates=1)), STOP)
    assert without_metadata(events)[:7] == [
        HostedToolCallStarted("h1", "SEARCH"),
        HostedToolCallCompleted("h1", "SEARCH", '{"q":["x"]}'),
        HostedToolCallStarted("call_fresh1", ""),
        HostedToolCallCompleted("call_fresh1", "", "{}"),
        HostedToolCallStarted("call_fresh2", "FETCH"),
        HostedToolCallCompleted("call_fresh2", "FETCH", "{}"),
        MessageDelta("so"),
    ]
    assert payload(events)["output"] == [*parts, {"text": "so"}]
    assert "context_tokens" not in payload(events)
    assert stop_of(events) == "stop"


def test_code_and_its_results_are_kept_and_files_lose_their_bytes() -> None:
    parts = [
        {"executableCode": {"code": "1"}},
        {"codeExecutionResult": {"output": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}, "thoughtSignature": "S"},
        {"toolResponse": {"id": "h", "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]}},
    ]
    events = events_of(chunk(*parts, 7, {"functionCall": "odd"}), STOP)
    bare = {"mimeType": "image/png"}
    assert payload(events)["output"] == [
        *parts[:2],
        {"inlineData": bare, "thoughtSignature": "S"},
        {"toolResponse": {"id": "h", "parts": [{"inlineData": bare}]}},
        {"functionCall": "odd"},
    ]
    assert without_metadata(events) == [Completed("stop", "g1")]


def test_text_that_begins_like_a_data_url_is_kept_whole() -> None:
    assert payload(events_of(chunk("data: none"), STOP))["output"] == [{"text": "data: none"}]


def test_the_last_of_each_sort_of_grounding_is_kept() -> None:
    first = chunk("a", groundingMetadata={"n": 1}, urlContextMetadata={"u": 1})
    second = chunk("b", groundingMetadata={"n": 2}, citationMetadata={"c": 1})
    third = chunk("c", groundingMetadata={})
    assert payload(events_of(first, second, third, STOP))["grounding"] == {
        "groundingMetadata": {"n": 2},
        "urlContextMetadata": {"u": 1},
        "citationMetadata": {"c": 1},
    }


@pytest.mark.parametrize(
    "frame",
    [
        {"candidates": None},
        {"candidates": []},
        {"candidates": [None, {}]},
        {"candidates": [{"content": None}]},
        {"candidates": [{"content": {"role": "model"}}]},
        {"candidates": [{"content": {"parts": None}, "finishReason": None}]},
        {"candidates": [{"content": {"parts": [{"text": 5}, {}]}}]},
        {"usageMetadata": None, "error": None},
        {"promptFeedback": {"safetyRatings": []}},
        {},
    ],
)
def test_chunks_that_say_nothing_give_nothing(frame: Any) -> None:
    assert without_metadata(events_of(frame, STOP)) == [Completed("stop", "g1")]


def test_other_candidates_and_frames_that_are_no_objects_are_warned_of() -> None:
    other = {"candidates": [{"index": 1, "content": {"parts": [{"text": "x"}]}}]}
    events = events_of("5", other, other, STOP)
    assert payload(events)["warnings"] == ["a frame was no object", "the answer has more than one candidate"]
    assert len(events) == 2


# -- the end


@pytest.mark.parametrize(
    ("raw", "stop"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        *(
            (raw, "content_filter")
            for raw in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "MODEL_ARMOR")
        ),
        ("ODD_NEW_ONE", "ODD_NEW_ONE"),
    ],
)
def test_finish_reasons_are_named_alike_and_the_raw_one_is_kept(raw: str, stop: str) -> None:
    events = events_of(chunk("a", finish=raw))
    assert (events[0], stop_of(events), payload(events)["raw_stop_reason"]) == (MessageDelta("a"), stop, raw)


def test_the_last_finish_reason_wins_and_later_chunks_still_count() -> None:
    events = events_of(chunk("a", finish="MAX_TOKENS"), chunk(finish="STOP"), {"usageMetadata": counts(5, 6)})
    assert without_metadata(events) == [MessageDelta("a"), told(5, 0, 6), Completed("stop", "g1")]


def test_thoughts_alone_may_use_up_the_limit() -> None:
    assert stop_of(events_of(chunk(thought("hm"), finish="MAX_TOKENS"))) == "length"


def test_the_last_chunk_may_have_no_content() -> None:
    assert without_metadata(events_of(chunk("a"), {"candidates": [{"finishReason": "STOP"}]}))[-1] == Completed(
        "stop", "g1"
    )


@pytest.mark.parametrize(
    "reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"]
)
def test_malformed_output_is_an_interruption_that_is_tried_again(reason: str) -> None:
    events, failure = failure_of(chunk("a", finish=reason, finishMessage="bad", usage=counts(5, 6)))
    assert events == [MessageDelta("a"), told(5, 0, 6)]
    assert (failure.kind.name, failure.cause, failure.retryable) == ("STREAM_INTERRUPTED", "malformed_output", True)
    assert (failure.provider_code, failure.response_id) == (reason, "g1")
    assert "bad" in failure.message


def test_a_missing_signature_is_the_requests_fault() -> None:
    _, failure = failure_of(chunk(finish="MISSING_THOUGHT_SIGNATURE"))
    assert (failure.kind.name, failure.cause, failure.retryable) == ("INVALID_REQUEST", "bad_request", False)


def test_a_blocked_prompt_is_a_failure_that_is_not_tried_again() -> None:
    feedback = {"blockReason": "SAFETY", "blockReasonMessage": "no"}
    events, failure = failure_of({"promptFeedback": feedback, "usageMetadata": counts(5, 5)}, STOP)
    assert events == [told(5, 0, 5)]
    assert (failure.kind.name, failure.retryable) == ("CONTENT_FILTER", False)
    assert failure.message == "acme blocked the prompt: SAFETY no"
    assert stop_of(events_of({**STOP, "promptFeedback": feedback})) == "stop"


def test_what_breaks_off_behind_a_finish_reason_takes_nothing_from_the_answer() -> None:
    rest = b'data: {"candidates": [{"con'
    events, failure = decode([sse(chunk("a"), STOP) + rest])
    assert failure is None
    assert (events[0], stop_of(events)) == (MessageDelta("a"), "stop")
    for unfinished in (sse(chunk("a")), sse(chunk("a", finish="MALFORMED_RESPONSE"))):
        _, failure = decode([unfinished + rest])
        assert failure is not None
        assert failure.kind.name == "STREAM_INTERRUPTED"


def test_the_end_without_a_finish_reason_is_an_interruption() -> None:
    events, failure = failure_of(chunk("a", usage=counts(5, 6)))
    assert events == [MessageDelta("a"), told(5, 0, 6)]
    assert (failure.kind.name, failure.cause, failure.response_id) == ("STREAM_INTERRUPTED", "truncated", "g1")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 503, "message": "busy", "status": "UNAVAILABLE"}, "SERVER_OVERLOADED"),
        ({"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}, "RATE_LIMITED"),
        ({"code": 500, "message": "oops", "status": "INTERNAL"}, "SERVER_OVERLOADED"),
        (
            {"code": 400, "message": "The input token count (9) exceeds 8", "status": "INVALID_ARGUMENT"},
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        ({"code": 403, "message": "no", "status": "PERMISSION_DENIED"}, "AUTHENTICATION"),
        ({"code": 499, "message": "gone", "status": "CANCELLED"}, "CANCELLED"),
        ("odd", "PROTOCOL"),
    ],
)
def test_an_error_in_the_stream_is_classified_and_its_usage_counts(error: Any, kind: str) -> None:
    frame = {"error": error, **chunk("lost", usage=counts(5, 6))}
    events, failure = failure_of(chunk("a"), frame, STOP)
    assert events == [MessageDelta("a"), told(5, 0, 6)]
    assert failure.kind.name == kind


def test_an_error_may_come_in_a_list_and_with_advice() -> None:
    details = [{"@type": "RetryInfo", "retryDelay": "37s"}]
    _, failure = failure_of([{"error": {"code": 429, "details": details}}])
    assert (failure.kind.name, failure.retry_after) == ("RATE_LIMITED", 37.0)


def test_a_frame_that_is_no_json_is_never_skipped() -> None:
    events, failure = failure_of(chunk("a"), "{oops", STOP)
    assert events == [MessageDelta("a")]
    assert (failure.kind.name, failure.cause) == ("PROTOCOL", "bad_json")


def test_a_finished_answer_is_waited_for_only_briefly() -> None:
    reader = decoder()
    assert reader.patience is None
    [frame] = frames_of(sse(STOP))
    reader.feed(frame)
    assert reader.patience == 2.0
    assert [type(output).__name__ for output in reader.eof()] == ["ProviderMetadata", "Completed"]
    assert reader.eof() == reader.feed(frame) == []


def test_an_answer_in_one_object_gives_the_same_events() -> None:
    whole = chunk("Hi", call("f", {}), finish="STOP", usage=counts(5, 6))
    for body in (json.dumps(whole), json.dumps([whole])):
        assert decode([body.encode()], "application/json")[0] == events_of(whole)
    _, failure = decode([b'{"candidates": []}'], "application/json")
    assert failure is not None
    assert failure.cause == "truncated"
    _, failure = decode([b'{"error": {"status": "UNAVAILABLE"}}'], "application/json")
    assert failure is not None
    assert failure.kind.name == "SERVER_OVERLOADED"


# -- any cut

_TEXTS = st.text(max_size=6)
_PARTS = st.one_of(
    _TEXTS,
    st.builds(thought, _TEXTS),
    st.builds(call, st.sampled_from("fg"), st.sampled_from([None, {}, {"a": "ü\u2028"}]), st.sampled_from([None, "x"])),
    st.just({"toolCall": {"toolType": "T", "id": "h"}}),
)
_CHUNKS = st.builds(
    lambda parts, finish, usage: chunk(*parts, finish=finish, usage=usage),
    st.lists(_PARTS, max_size=3),
    st.sampled_from([None, None, None, "STOP", "MAX_TOKENS", "MALFORMED_RESPONSE"]),
    st.one_of(st.none(), st.builds(counts, st.integers(0, 9), st.integers(0, 30))),
)


@given(st.lists(_CHUNKS, max_size=5), st.lists(st.integers(0, 2000), max_size=6), st.sampled_from(["\n", "\r\n", "\r"]))
@settings(max_examples=120)
def test_any_stream_cut_anywhere_gives_equal_events(chunks: list[Any], cuts: list[int], ending: str) -> None:
    raw = sse(*chunks).replace(b"\n", ending.encode())
    places = [0, *sorted({cut % (len(raw) + 1) for cut in cuts}), len(raw)]
    pieces = [raw[start:end] for start, end in itertools.pairwise(places)]
    for cut in (pieces, [raw[at : at + 1] for at in range(len(raw))]):
        assert outcome(cut) == outcome([raw])


def outcome(pieces: list[bytes]) -> Any:
    events, failure = decode(pieces)
    return events, failure and (failure.kind, failure.message)
