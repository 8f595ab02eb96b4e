"""Responses streams as events."""

import json
from typing import Any

import pytest

from roder_trio.schema.inference import (
    Compaction,
    CompactionStatus,
    Completed,
    MessageDelta,
    ReasoningDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.chat import completed_calls, sse, told, without_metadata
from tests.responses import (
    BEGINS,
    CALLED,
    END,
    added,
    boundary,
    call,
    custom,
    decode,
    done,
    ended,
    events_of,
    failure_of,
    frame,
    grown,
    message,
    payload,
    reasoning,
    run,
    summary,
    text,
    usage,
    without_end,
)

# -- the cases of the text


def test_a_text_that_comes_three_times_is_told_once() -> None:
    said = message("Hi", phase="final_answer")
    counts = usage(20, 5, 25, cached_tokens=16, reasoning_tokens=3)
    events = events_of(*BEGINS, added(message(phase="final_answer")), text("Hi"), done(said), ended(said, usage=counts))
    assert without_metadata(events) == [
        MessageDelta("Hi", "final_answer"),
        told(20, 5, 25, cached_prompt_tokens=16, reasoning_tokens=3),
        END,
    ]
    assert payload(events) == {
        "dialect": "openai_responses",
        "provider": "acme",
        "base_url": "http://localhost/v1",
        "model": "m",
        "response_id": "r1",
        "output": [said],
        "usage": counts,
        "service_tier": None,
        "raw_stop_reason": "completed",
    }


def test_calls_that_grow_side_by_side_complete_in_the_order_of_their_starts() -> None:
    a, b = call("fc_a", "call_1", "read", '{"p":1}'), call("fc_b", "call_2", "grep", '{"q":"x"}')
    events = events_of(
        added(call("fc_a", "call_1", "read"), 0),
        added(call("fc_b", "call_2", "grep"), 1),
        grown("fc_b", '{"q":'),
        grown("fc_a", '{"p":1}'),
        grown("fc_b", '"x"}'),
        done(b, 1),
        done(a, 0),
        ended(a, b),
    )
    assert without_metadata(events) == [
        ToolCallStarted("call_1", "read"),
        ToolCallStarted("call_2", "grep"),
        ToolCallDelta("call_2", '{"q":'),
        ToolCallDelta("call_1", '{"p":1}'),
        ToolCallDelta("call_2", '"x"}'),
        ToolCallCompleted("call_1", "read", '{"p":1}'),
        ToolCallCompleted("call_2", "grep", '{"q":"x"}'),
        CALLED,
    ]


def test_a_final_frame_alone_tells_all() -> None:
    output = [reasoning("why"), message("Hi", phase="commentary"), call("fc_a", "call_1", "read", "{}")]
    events = events_of(ended(*output, usage=usage(1, 2, 3)))
    assert without_metadata(events) == [
        ReasoningDelta("why"),
        MessageDelta("Hi", "commentary"),
        ToolCallStarted("call_1", "read"),
        ToolCallCompleted("call_1", "read", "{}"),
        told(1, 2, 3),
        CALLED,
    ]
    assert payload(events)["output"] == output


def test_a_boundary_is_told_as_soon_as_it_is_done_though_the_stream_breaks_right_after() -> None:
    events, failure = run(added({"type": "compaction", "id": "cmp_1"}), done(boundary()))
    assert events == [
        Compaction(CompactionStatus.STARTED, "cmp_1"),
        Compaction(CompactionStatus.COMPLETED, "cmp_1", boundary()),
    ]
    assert failure is not None
    assert (failure.kind.name, failure.cause) == ("STREAM_INTERRUPTED", "truncated")


def test_the_boundary_of_its_own_frame_counts_and_not_that_of_the_final_one() -> None:
    final = boundary("other", id="cmp_2")
    events = events_of(done(boundary(), 0), ended(final, message("Hi")))
    assert [event.item for event in events if isinstance(event, Compaction)] == [None, boundary()]
    assert payload(events)["output"] == [boundary(), message("Hi")]
    alone = events_of(ended(boundary() | {"type": "compaction_summary"}))
    assert [event.status.value for event in alone[:2]] == ["started", "completed"]


def test_an_answer_that_ran_out_of_tokens_is_completed_with_its_usage() -> None:
    reason = {"incomplete_details": {"reason": "max_output_tokens"}}
    events = events_of(text("so"), ended(state="incomplete", usage=usage(9, 64, 73), **reason))
    assert without_metadata(events) == [MessageDelta("so"), told(9, 64, 73), Completed("length", "r1")]
    assert payload(events)["raw_stop_reason"] == "max_output_tokens"


@pytest.mark.parametrize(
    ("details", "stop"),
    [
        ({"reason": "content_filter"}, "content_filter"),
        ({"reason": "max_tool_calls"}, "max_tool_calls"),
        (None, "incomplete"),
    ],
)
def test_the_reason_of_an_unfinished_answer_is_told(details: Any, stop: str) -> None:
    assert events_of(ended(state="incomplete", incomplete_details=details))[-1] == Completed(stop, "r1")
    # the frame may claim more than the response does
    claimed = ended(incomplete_details=details) | {"response": {"status": "incomplete", "incomplete_details": details}}
    assert events_of(claimed)[-1] == Completed(stop, None)


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slower"}, "RATE_LIMITED"),
        ({"type": "error", "error": {"code": "rate_limit_exceeded", "message": "slower"}}, "RATE_LIMITED"),
        ({"error": {"type": "server_error"}}, "SERVER_OVERLOADED"),
        (ended(state="failed", error={"code": "context_length_exceeded"}), "CONTEXT_WINDOW_EXCEEDED"),
        (
            ended(state="completed") | {"response": {"status": "failed", "error": {"code": "slow_down"}}},
            "SERVER_OVERLOADED",
        ),
        (ended(state="failed", error={"code": "insufficient_quota"}), "QUOTA_EXCEEDED"),
        (ended(state="failed", error=None), "PROTOCOL"),
        (ended(state="failed") | {"response": {"status": "cancelled"}}, "CANCELLED"),
        (ended(state="cancelled"), "CANCELLED"),
        (ended(state="incomplete") | {"response": {"status": "cancelled"}}, "CANCELLED"),
    ],
)
def test_an_error_in_the_stream_is_a_failure(broken: Any, kind: str) -> None:
    assert failure_of(broken).kind.name == kind
    events, failure = run(text("so far"), broken)
    assert events == [MessageDelta("so far")]
    assert failure is not None


def test_what_a_failing_frame_says_of_usage_comes_before_the_failure() -> None:
    events, failure = run(ended(state="failed", error={"code": "server_error"}, usage=usage(4, 1, 5)))
    assert events == [told(4, 1, 5)]
    assert failure is not None
    assert failure.response_id == "r1"
    for broken in ({"usage": usage(4, 1, 5)}, {"response": {"usage": usage(4, 1, 5)}}):
        assert run({"type": "error", "message": "m", **broken})[0] == [told(4, 1, 5)]


def test_an_error_may_be_named_by_its_event_alone() -> None:
    events, failure = decode([b'event: error\ndata: {"type": "server_error", "message": "sorry"}\n\n'])
    assert (events, failure and failure.kind.name) == ([], "SERVER_OVERLOADED")
    failure = decode([b"event: error\ndata: overloaded\n\n"])[1]
    assert failure is not None
    assert (failure.kind.name, "overloaded" in failure.message) == ("SERVER_OVERLOADED", True)


def test_deltas_of_reasoning_count_and_their_repetition_does_not() -> None:
    whole = frame("reasoning_summary_text.done", item_id="rs_a", summary_index=0, text="why so")
    assert without_end(events_of(summary("why "), summary("so"), whole, ended())) == [
        ReasoningDelta("why "),
        ReasoningDelta("so"),
    ]
    assert without_end(events_of(whole, ended())) == [ReasoningDelta("why so")]
    second = whole | {"summary_index": 1, "text": "more"}
    assert without_end(events_of(whole, second, ended())) == [ReasoningDelta("why so"), ReasoningDelta("\n\nmore")]


def test_between_parts_of_one_item_stands_a_blank_line_and_between_items_nothing() -> None:
    events = events_of(summary("a"), summary("b", 1), summary("c", 1), summary("d", 0, "rs_b"), ended())
    assert [event.text for event in without_end(events)] == ["a", "\n\nb", "c", "d"]


def test_raw_reasoning_is_reasoning() -> None:
    raw = frame("reasoning_text.delta", item_id="rs_a", content_index=0, delta="hm")
    content = [{"type": "reasoning_text", "text": "hm"}]
    assert without_end(events_of(raw, ended(reasoning(content=content)))) == [ReasoningDelta("hm")]
    assert without_end(events_of(ended(reasoning(content=content)))) == [ReasoningDelta("hm")]


def test_a_text_and_a_clean_end_of_the_stream_is_no_answer() -> None:
    for end in ((), ("[DONE]",)):
        events, failure = run(text("Hi"), *end)
        assert events == [MessageDelta("Hi")]
        assert failure is not None
        assert (failure.kind.name, failure.cause, failure.response_id) == ("STREAM_INTERRUPTED", "truncated", None)
    assert failure_of(*BEGINS).response_id == "r1"


def test_what_a_freeform_tool_is_given_stands_under_input_and_has_no_deltas() -> None:
    events = events_of(
        added(custom("ctc_1", "call_1", "patch")),
        frame("custom_tool_call_input.delta", item_id="ctc_1", delta="*** "),
        frame("custom_tool_call_input.delta", item_id="ctc_1", delta="patch"),
        frame("custom_tool_call_input.done", item_id="ctc_1", input="*** patch"),
        done(custom("ctc_1", "call_1", "patch", "*** patch")),
        ended(),
    )
    assert without_end(events) == [
        ToolCallStarted("call_1", "patch"),
        ToolCallCompleted("call_1", "patch", '{"input":"*** patch"}'),
    ]
    assert completed_calls(events_of(done(custom("c", "call_1", "patch")), ended())) == [
        ("call_1", "patch", '{"input":""}')
    ]


def test_a_freeform_call_that_was_cut_is_never_whole() -> None:
    piece = frame("custom_tool_call_input.delta", item_id="ctc_1", delta="*** pa")
    cut = {"state": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    for last in (ended(**cut), ended(custom("ctc_1", "call_1", "patch", "*** pa", status="incomplete"), **cut)):
        events = events_of(added(custom("ctc_1", "call_1", "patch")), piece, last)
        assert completed_calls(events) == [("call_1", "patch", "*** pa")]


def test_a_final_frame_without_its_blank_line_ends_the_answer() -> None:
    events, failure = decode([sse(text("Hi"), ended()).rstrip(b"\n")])
    assert failure is None
    assert events[-1] == END
    events, failure = decode([sse(text("Hi"), ended())[:-9]])
    assert failure is not None
    assert failure.kind.name == "STREAM_INTERRUPTED"


@pytest.mark.parametrize(
    "odd",
    [
        frame("content_part.added", item_id="m1", part={"type": "output_text", "text": "x"}),
        frame("content_part.done", item_id="m1", part={"type": "output_text", "text": "x"}),
        frame("output_text.annotation.added", item_id="m1", annotation={}),
        frame("web_search_call.searching", item_id="ws_1"),
        frame("web_search_call.completed", item_id="ws_1"),
        frame("output_item.moved", item={"type": "message", "id": "m"}),
        frame("output_item.added", item=None),
        frame("output_text.delta", delta=""),
        frame("output_text.delta", delta=5),
        frame("function_call_arguments.delta", item_id="nowhere", delta="{"),
        frame("function_call_arguments.done", item_id="nowhere", arguments="{}"),
        frame("audio.delta", delta="AAAA"),
        frame("in_progress", response=None),
        {"type": "keepalive"},
        {"type": 5},
        {},
        {"error": None},
    ],
)
def test_frames_that_say_nothing_give_nothing(odd: Any) -> None:
    assert without_metadata(events_of(odd, ended())) == [END]


def test_the_event_names_a_frame_that_has_no_type() -> None:
    value = json.dumps({"delta": "Hi", "item_id": "m1"}).encode()
    events, failure = decode([b"event: response.output_text.delta\ndata: " + value + b"\n\n", sse(ended())])
    assert failure is None
    assert events[0] == MessageDelta("Hi")


def test_after_the_end_nothing_is_read() -> None:
    events, failure = decode([sse(ended(), "[DONE]", {"type": "error"}), b": bye\n\n", sse(ended(), text("more"))])
    assert (without_metadata(events), failure) == ([END], None)


def test_an_item_under_another_id_in_the_final_frame_is_the_same_at_its_place() -> None:
    begun, same = reasoning("why"), reasoning("why", id="rs_b", encrypted_content="e")
    for frames in ([added(reasoning()), done(begun)], [added(reasoning()), summary("why")], [summary("why")]):
        events = events_of(*frames, ended(same))
        assert without_end(events) == [ReasoningDelta("why")]
        assert payload(events)["output"] == [same]


# -- the response as a whole


def test_an_unusable_counter_is_ignored_alone() -> None:
    odd = {"input_tokens": 7, "output_tokens": -1, "total_tokens": "9", "input_tokens_details": None}
    assert told(7, 0, 7) in events_of(ended(usage=odd))
    everything = usage(20, 5, 25, cached_tokens=15, cache_write_tokens=9, reasoning_tokens=8)
    parts = {"cached_prompt_tokens": 15, "cache_creation_prompt_tokens": 5, "reasoning_tokens": 5}
    assert told(20, 5, 25, **parts) in events_of(ended(usage=everything))


@pytest.mark.parametrize("nothing", [None, {}, 5, usage(0, 0, 0)])
def test_no_usage_is_no_event(nothing: Any) -> None:
    events = events_of(ended(usage=nothing))
    assert without_metadata(events) == [END]
    assert payload(events)["usage"] is None


def test_the_newest_tier_counts() -> None:
    begun = frame("created", response={"id": "r0", "service_tier": "auto", "usage": None})
    assert told(1, 1, 2, service_tier="auto") in events_of(begun, ended(usage=usage(1, 1, 2), service_tier=""))
    events = events_of(begun, ended(usage=usage(1, 1, 2), service_tier="flex"))
    assert told(1, 1, 2, service_tier="flex") in events
    assert payload(events)["service_tier"] == "flex"


def test_the_marks_of_a_response_are_kept_for_the_next_request() -> None:
    moderation = {"input": {"flagged": True}}
    kept = payload(events_of(ended(end_turn=False, moderation=moderation)))
    assert (kept["end_turn"], kept["moderation"]) == (False, moderation)
    assert "end_turn" not in payload(events_of(ended(end_turn="no")))
    assert payload(events_of("7", ended()))["warnings"] == ["a frame was no object"]


def test_a_frame_that_is_no_json_breaks_the_stream() -> None:
    failure = failure_of(text("Hi"), "{odd")
    assert (failure.kind.name, failure.cause) == ("PROTOCOL", "bad_json")


# -- one JSON object instead of a stream


def whole(value: Any) -> Any:
    return decode([json.dumps(value).encode()], "application/json")


def test_an_answer_in_one_object_gives_the_same_events() -> None:
    response = ended(message("Hi"), usage=usage(1, 1, 2))["response"]
    expected = events_of(ended(message("Hi"), usage=usage(1, 1, 2)))
    assert whole(response) == (expected, None)
    del response["status"]
    assert whole(response) == (expected, None)
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "id": "r1"}
    assert whole(cut)[0][-1] == Completed("length", "r1")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"error": {"code": "server_error"}}, "SERVER_OVERLOADED"),
        ({"status": "failed", "error": {"code": "server_error"}}, "SERVER_OVERLOADED"),
        ({"status": "cancelled"}, "CANCELLED"),
        ({"status": "queued", "output": []}, "STREAM_INTERRUPTED"),
        ({"odd": 1}, "STREAM_INTERRUPTED"),
    ],
)
def test_an_object_that_is_no_finished_response_is_a_failure(value: Any, kind: str) -> None:
    events, failure = whole(value)
    assert (events, failure and failure.kind.name) == ([], kind)
