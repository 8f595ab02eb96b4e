"""How streams of the Messages API end: well, cut off, with an error, as one object, in any pieces."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.schema.inference import (
    CompactionStatus,
    Completed,
    HostedToolCallCompleted,
    MessageDelta,
    ReasoningDelta,
    ToolCallCompleted,
    ToolCallStarted,
    Usage,
)
from tests.anthropic_support import (
    OVER,
    began,
    call,
    closed,
    decode,
    decoder,
    events_of,
    opened,
    piece,
    replay_of,
    run,
    sse,
    stopped,
    text,
)
from tests.chat import completed_calls, frames_of, told, without_metadata

DONE = stopped("end_turn")
STARTED, FAILED = CompactionStatus.STARTED, CompactionStatus.FAILED
SUMMARY = {"type": "compaction", "content": "what was"}


# -- the end


@pytest.mark.parametrize(
    ("raw", "reason", "more"),
    [
        ("end_turn", "stop", {}),
        ("stop_sequence", "stop", {}),
        ("max_tokens", "length", {}),
        ("model_context_window_exceeded", "length", {}),
        ("tool_use", "tool_use", {}),
        ("refusal", "refusal", {"refused": True}),
        ("pause_turn", "pause_turn", {"end_turn": False}),
        ("compaction", "compaction", {"end_turn": False}),
        ("something_new", "something_new", {}),
        (None, "stop", {}),
    ],
)
def test_the_stop_reason_is_in_one_vocabulary(raw: str | None, reason: str, more: dict[str, Any]) -> None:
    events = events_of(began(), *text(0, "so"), stopped(raw), OVER)
    assert events[0] == MessageDelta("so")
    assert events[-1] == Completed(reason, "r1")
    payload = events[-2].payload
    assert payload["raw_stop_reason"] == raw
    assert {name: payload[name] for name in ("refused", "end_turn", "warnings") if name in payload} == more


def test_a_pause_completes_a_hosted_call_that_has_no_result() -> None:
    hosted = call(1, "s1", "web_search", '{"query":"x"}', kind="server_tool_use")
    events = events_of(began(), *text(0, "let me"), *hosted, stopped("pause_turn"), OVER)
    assert HostedToolCallCompleted("s1", "web_search", '{"query":"x"}') in events
    assert events[-2].payload["output"][-1]["id"] == "s1"


def test_a_container_is_kept_the_newest_one() -> None:
    box, other = {"id": "c1", "expires_at": "2026-01-01T00:00:00Z"}, {"id": "c2", "expires_at": "x"}
    assert replay_of(began(container=box), DONE, OVER)["container"] == box
    assert replay_of(began(container=box), stopped("end_turn", container=other), OVER)["container"] == other
    assert replay_of(began(container=box), stopped("end_turn", container=None), OVER)["container"] == box
    assert "container" not in replay_of(began(), DONE, OVER)


def test_the_replay_metadata_names_its_origin() -> None:
    payload = replay_of(began(), *text(0, "a"), DONE, OVER)
    assert dict(payload) == {
        "dialect": "anthropic",
        "provider": "acme",
        "base_url": "http://localhost",
        "model": "m",
        "response_id": "r1",
        "output": [{"type": "text", "text": "a"}],
        "usage": None,
        "service_tier": None,
        "raw_stop_reason": "end_turn",
    }


def test_nothing_is_read_after_the_end() -> None:
    reader = decoder()
    frames = frames_of(sse(began(), *text(0, "a"), DONE, OVER, *text(1, "b")))
    outputs = [output for frame in frames for output in reader.feed(frame)]
    assert isinstance(outputs[-1], Completed)
    assert reader.eof() == []
    assert reader.patience is None


def test_blocks_that_are_open_at_the_end_are_closed_in_the_order_of_their_indices() -> None:
    later = [opened(1, "server_tool_use", id="s1", name="b"), opened(0, "server_tool_use", id="s0", name="a")]
    events = events_of(began(), *later, stopped("pause_turn"), OVER)
    assert [event.id for event in events if isinstance(event, HostedToolCallCompleted)] == ["s0", "s1"]
    assert [block["id"] for block in events[-2].payload["output"]] == ["s0", "s1"]


# -- streams that break off


def test_an_end_without_its_last_frame_counts_if_the_answer_was_whole() -> None:
    frames = [began({"input_tokens": 1}), *text(0, "a"), stopped("end_turn", {"output_tokens": 2})]
    events = events_of(*frames)
    assert events[-1] == Completed("stop", "r1")
    assert events[-2].payload["warnings"] == ["the stream ended without message_stop"]
    assert "warnings" not in replay_of(*frames, OVER)


@pytest.mark.parametrize(
    "frames",
    [
        [began({"input_tokens": 4})],
        [began({"input_tokens": 4}), *text(0, "a")],
        [began({"input_tokens": 4}), *text(0, "a"), stopped(None)],
        [began({"input_tokens": 4}), opened(0, "text", text="a"), stopped("end_turn")],
    ],
)
def test_a_cut_stream_is_an_interrupted_one_whose_usage_is_told(frames: list[Any]) -> None:
    events, failure = run(*frames)
    assert events[0] == told(4, 0, 4)
    assert failure is not None
    assert (failure.kind.name, failure.cause, failure.response_id) == ("STREAM_INTERRUPTED", "truncated", "r1")


def test_what_breaks_off_behind_a_stop_reason_takes_nothing_from_the_answer() -> None:
    rest = b'event: message_stop\ndata: {"type": "message_st'
    events, failure = decode([sse(began(), *text(0, "a"), DONE) + rest])
    assert failure is None
    assert without_metadata(events) == [MessageDelta("a"), Completed("stop", "r1")]
    _, failure = decode([sse(began(), opened(0, "text", text="a"), DONE) + rest])
    assert failure is not None
    assert failure.cause == "truncated"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "SERVER_OVERLOADED"),
        ({"type": "rate_limit_error", "message": "slower"}, "RATE_LIMITED"),
        ({"type": "api_error", "message": "Internal"}, "SERVER_OVERLOADED"),
        ({"type": "authentication_error", "message": "no"}, "AUTHENTICATION"),
        ({"type": "billing_error", "message": "no"}, "QUOTA_EXCEEDED"),
        (
            {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"},
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        ({"type": "invalid_request_error", "message": "no such field"}, "INVALID_REQUEST"),
        ({"type": "new_error", "message": "what"}, "PROTOCOL"),
        ("broken", "PROTOCOL"),
    ],
)
def test_an_error_in_the_stream_is_classified_after_what_came_before(error: Any, kind: str) -> None:
    events, failure = run(began({"input_tokens": 2}), *text(0, "a"), {"type": "error", "error": error}, OVER)
    assert without_metadata(events) == [told(2, 0, 2), MessageDelta("a")]
    assert failure is not None
    assert failure.kind.name == kind


def test_what_a_failing_frame_counts_is_told_first() -> None:
    broken = {"type": "error", "error": {"type": "api_error"}, "usage": {"input_tokens": 2}}
    events, failure = run(broken)
    assert events == [told(2, 0, 2)]
    assert failure is not None


@pytest.mark.parametrize(
    ("raw", "kind", "cause"),
    [
        (b"event: error\ndata: it broke\n\n", "PROTOCOL", "provider_error"),
        (b"event: error\ndata: overloaded right now\n\n", "SERVER_OVERLOADED", "overloaded"),
        (b'data: {"error": {"type": "overloaded_error"}}\n\n', "SERVER_OVERLOADED", "overloaded"),
        (b"event: error\ndata:\n\n", "PROTOCOL", "provider_error"),
        (b"data: {nonsense\n\n", "PROTOCOL", "bad_json"),
        (b'data: {"type": "message_st', "STREAM_INTERRUPTED", "truncated"),
    ],
)
def test_odd_frames_fail_with_their_reason(raw: bytes, kind: str, cause: str) -> None:
    _, failure = decode([raw])
    assert failure is not None
    assert (failure.kind.name, failure.cause) == (kind, cause)


def test_pings_unknown_events_and_frames_that_are_no_objects_change_nothing() -> None:
    odd: list[Any] = [{"type": "ping"}, {"type": "news", "delta": 1}, {"type": "content_block_start"}]
    events = events_of(odd[0], began(), odd[1], *text(0, "a"), closed(7), DONE, OVER)
    assert without_metadata(events) == [MessageDelta("a"), Completed("stop", "r1")]
    raw = b"data: 17\n\n" + sse(began(), piece(3, "input_json", partial_json="{"), DONE, OVER)
    events, failure = decode([raw])
    assert failure is None
    assert events[-2].payload["warnings"] == ["a frame was no object", "a piece came without its block"]


def test_the_name_of_an_event_stands_in_for_a_missing_type() -> None:
    frames = [began(), *text(0, "a"), DONE, OVER]
    bare = [{name: value for name, value in frame.items() if name != "type"} for frame in frames]
    lines = [f"event: {frame['type']}\ndata: {json.dumps(less)}\n\n" for frame, less in zip(frames, bare, strict=True)]
    events, failure = decode(["".join(lines).encode()])
    assert failure is None
    assert events == events_of(*frames)


def test_blocks_without_indices_or_starts_are_put_together_all_the_same() -> None:
    def bare(frame: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in frame.items() if name != "index"}

    frames = [*text(0, "a"), *call(1, "c", "f", '{"x"', ":1}")]
    assert events_of(began(), *map(bare, frames), DONE, OVER) == events_of(began(), *frames, DONE, OVER)
    pieces = [piece(0, "thinking", thinking="t"), piece(1, "text", text="a"), piece(1, "text", text="b")]
    events = events_of(began(), *pieces, closed(0), closed(1), DONE, OVER)
    assert events[:3] == [ReasoningDelta("t"), MessageDelta("a"), MessageDelta("b")]
    assert events[-2].payload["output"][1] == {"type": "text", "text": "ab"}


def test_an_index_used_again_begins_another_block_and_late_text_is_not_lost() -> None:
    frames = [opened(0, "tool_use", id="c", name="f"), *text(0, "a"), piece(0, "text", text="b")]
    events = events_of(began(), *frames, DONE, OVER)
    assert completed_calls(events) == [("c", "f", "{}")]
    assert [block.get("text") for block in events[-2].payload["output"]] == [None, "ab"]
    late = [*call(0, "c", "f", "{}"), piece(0, "input_json", partial_json="x"), closed(0)]
    assert completed_calls(events_of(began(), *late, stopped("tool_use"), OVER)) == [("c", "f", "{}")]


def test_a_reading_of_the_usage_is_there_at_any_time() -> None:
    reader = decoder()
    assert reader.settle() is None
    first, *_ = frames_of(sse(began({"input_tokens": 3})))
    [usage] = reader.feed(first)
    assert usage == Usage(reader.settle())  # type: ignore[arg-type]


# -- answers that are one object


def test_an_answer_that_is_one_object_gives_the_same_events() -> None:
    value = {
        "id": "r1",
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "so"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4},
        "container": {"id": "box"},
    }
    events, failure = decode([json.dumps(value).encode()], "application/json")
    assert failure is None
    assert without_metadata(events) == [
        ReasoningDelta("hm"),
        MessageDelta("so"),
        ToolCallStarted("c", "f"),
        ToolCallCompleted("c", "f", '{"a":1}'),
        told(3, 4, 7),
        Completed("tool_use", "r1"),
    ]
    assert events[-2].payload["output"] == value["content"]
    assert events[-2].payload["container"] == {"id": "box"}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"type": "error", "error": {"type": "overloaded_error"}}, "SERVER_OVERLOADED"),
        ({"error": {"type": "rate_limit_error"}}, "RATE_LIMITED"),
        ({"type": "message"}, "STREAM_INTERRUPTED"),
    ],
)
def test_an_object_that_is_no_answer_fails(value: Any, kind: str) -> None:
    events, failure = decode([json.dumps(value).encode()], "application/json")
    assert events == []
    assert failure is not None
    assert failure.kind.name == kind


# -- any stream, however it is cut

_TEXTS = st.text(max_size=6)
_BLOCKS = st.one_of(
    st.builds(lambda parts: ("text", {"text": ""}, [("text", {"text": part}) for part in parts]), st.lists(_TEXTS)),
    st.builds(lambda part: ("thinking", {}, [("thinking", {"thinking": part})]), _TEXTS),
    st.builds(
        lambda known, parts: (
            "tool_use",
            {"id": known, "name": "f"},
            [("input_json", {"partial_json": p}) for p in parts],
        ),
        st.sampled_from("abc"),
        st.lists(_TEXTS, max_size=3),
    ),
    st.just(("server_tool_use", {"id": "s", "name": "w"}, [])),
    st.builds(lambda part: ("compaction", {}, [("compaction", {"content": part})]), _TEXTS),
    st.just(("novelty", {"data": 1}, [("novelty", {"data": 2})])),
)
_REASONS = st.sampled_from(["end_turn", "max_tokens", "pause_turn", "tool_use", None])


@st.composite
def _streams(draw: Any) -> bytes:
    frames: list[Any] = [began({"input_tokens": draw(st.integers(0, 9))})]
    for index, (kind, fields, pieces) in enumerate(draw(st.lists(_BLOCKS, max_size=4))):
        inside = [piece(index, name, **values) for name, values in pieces]
        frames += [opened(index, kind, **fields), *inside, *([closed(index)] if draw(st.booleans()) else [])]
    frames.append(stopped(draw(_REASONS), {"output_tokens": draw(st.integers(0, 9))}))
    if draw(st.booleans()):
        frames.append(OVER)
    return sse(*frames)


def _plain(decoded: Any) -> Any:
    events, failure = decoded
    return events, failure and (failure.kind, failure.cause)


@given(_streams(), st.data())
@settings(max_examples=120, deadline=None)
def test_any_split_of_any_stream_gives_the_same_events(raw: bytes, data: st.DataObject) -> None:
    whole = _plain(decode([raw]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    edges = [0, *cuts, len(raw)]
    assert _plain(decode(raw[start:end] for start, end in itertools.pairwise(edges))) == whole
    assert _plain(decode(raw[at : at + 1] for at in range(len(raw)))) == whole
