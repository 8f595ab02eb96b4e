"""The content of Messages streams as events: text, thinking, calls of both kinds, and what servers do beside it."""

from typing import Any

import pytest

from roder_trio.schema.inference import (
    CompactionStatus,
    Completed,
    HostedToolCallCompleted,
    HostedToolCallStarted,
    MessageDelta,
    ReasoningDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
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
    stopped,
    text,
)
from tests.chat import completed_calls, without_metadata

DONE = stopped("end_turn")
STARTED, FAILED = CompactionStatus.STARTED, CompactionStatus.FAILED
SUMMARY = {"type": "compaction", "content": "what was"}


def test_a_call_comes_in_pieces() -> None:
    events = events_of(
        began(), *text(0, "see"), *call(1, "c1", "run", '{"c', "", 'md":"ls"}'), stopped("tool_use"), OVER
    )
    assert without_metadata(events) == [
        MessageDelta("see"),
        ToolCallStarted("c1", "run"),
        ToolCallDelta("c1", '{"c'),
        ToolCallDelta("c1", 'md":"ls"}'),
        ToolCallCompleted("c1", "run", '{"cmd":"ls"}'),
        Completed("tool_use", "r1"),
    ]
    assert events[-2].payload["output"] == [
        {"type": "text", "text": "see"},
        {"type": "tool_use", "id": "c1", "name": "run", "input": {"cmd": "ls"}},
    ]


@pytest.mark.parametrize(
    ("pieces", "start", "reason", "arguments"),
    [
        ((), {}, "tool_use", "{}"),
        ((), {}, "end_turn", "{}"),
        ((), {}, "max_tokens", ""),
        ((), {"a": 1}, "tool_use", '{"a":1}'),
        (("{}",), {"a": 1}, "tool_use", "{}"),
    ],
)
def test_a_call_without_pieces_is_what_its_start_says(pieces: Any, start: Any, reason: str, arguments: str) -> None:
    events = events_of(began(), *call(0, "c1", "run", *pieces, input=start), stopped(reason), OVER)
    assert completed_calls(events) == [("c1", "run", arguments)]
    assert events[-1].stop_reason == ("length" if reason == "max_tokens" else "tool_use")


def test_calls_complete_in_the_order_of_their_starts_even_where_one_waits_for_the_stop_reason() -> None:
    frames = [*call(0, "a", "f"), *call(1, "b", "f", '{"x":1}')]
    events = events_of(began(), *frames, stopped("tool_use"), OVER)
    assert completed_calls(events) == [("a", "f", "{}"), ("b", "f", '{"x":1}')]


def test_a_call_that_was_cut_off_is_completed_with_what_came() -> None:
    cut = [opened(0, "tool_use", id="c", name="write", input={}), piece(0, "input_json", partial_json='{"path":"a","c')]
    events = events_of(began(), *cut, stopped("max_tokens"), OVER)
    assert completed_calls(events) == [("c", "write", '{"path":"a","c')]
    assert events[-1] == Completed("length", "r1")
    assert events[-2].payload["output"][0]["input"] == {"_raw": '{"path":"a","c'}


def test_ids_of_calls_are_made_unique_in_the_replay_too() -> None:
    frames = [*call(0, "old", "f", "{}"), *call(1, "x", "f", "{}"), *call(2, "x", "f", "[]"), *call(3, "", "f")]
    events = events_of(began(), *frames, stopped("tool_use"), OVER, taken=["old"])
    ids = ["call_fresh1", "x", "call_fresh2", "call_fresh3"]
    assert [id for id, _, _ in completed_calls(events)] == ids
    assert [block["id"] for block in events[-2].payload["output"]] == ids
    assert events[-2].payload["output"][2]["input"] == {"_raw": "[]"}


def test_names_are_mapped_back_and_unknown_ones_pass() -> None:
    frames = [*call(0, "a", "my_tool", "{}"), *call(1, "b", "new", "{}")]
    events = events_of(began(), *frames, stopped("tool_use"), OVER, tools=["my.tool"])
    assert [name for _, name, _ in completed_calls(events)] == ["my.tool", "new"]
    assert events[-2].payload["output"][0]["name"] == "my_tool"


def test_signatures_are_joined_and_thinking_is_kept_in_its_place() -> None:
    thinking = [
        opened(0, "thinking", thinking="", signature=""),
        piece(0, "thinking", thinking="hm", estimated_tokens=3),
        piece(0, "thinking", thinking=""),
        piece(0, "signature", signature="s1"),
        piece(0, "signature", signature="s2"),
        closed(0),
    ]
    redacted = [opened(1, "redacted_thinking", data="xyz"), closed(1)]
    events = events_of(began(), *thinking, *redacted, *call(2, "c", "f", "{}"), stopped("tool_use"), OVER)
    assert events[0] == ReasoningDelta("hm")
    assert events[-2].payload["output"][:2] == [
        {"type": "thinking", "thinking": "hm", "signature": "s1s2"},
        {"type": "redacted_thinking", "data": "xyz"},
    ]


def test_what_a_start_says_already_is_told() -> None:
    frames = [opened(0, "thinking", thinking="th"), closed(0), opened(1, "text", text="a"), piece(1, "text", text="b")]
    events = events_of(began(), *frames, stopped("end_turn"), OVER)
    assert events[:3] == [ReasoningDelta("th"), MessageDelta("a"), MessageDelta("b")]
    assert [block.get("text") for block in events[-2].payload["output"]] == [None, "ab"]


def test_a_hosted_call_is_shown_and_never_ours_to_run() -> None:
    found = {"tool_use_id": "s1", "content": [{"type": "web_search_result", "encrypted_content": "e"}]}
    frames = [
        *call(0, "s1", "web_search", '{"query"', ':"x"}', kind="server_tool_use"),
        opened(1, "web_search_tool_result", **found),
        closed(1),
        *call(2, "m1", "lookup", kind="mcp_tool_use", input={"k": 1}, server_name="s"),
        *call(3, "m1", "lookup", kind="mcp_tool_use"),
    ]
    events = events_of(began(), *frames, DONE, OVER)
    assert without_metadata(events) == [
        HostedToolCallStarted("s1", "web_search"),
        HostedToolCallCompleted("s1", "web_search", '{"query":"x"}'),
        HostedToolCallStarted("m1", "lookup"),
        HostedToolCallCompleted("m1", "lookup", '{"k":1}'),
        HostedToolCallStarted("call_fresh1", "lookup"),
        HostedToolCallCompleted("call_fresh1", "lookup", "{}"),
        Completed("stop", "r1"),
    ]
    output = events[-2].payload["output"]
    assert output[0] == {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    assert output[1] == {"type": "web_search_tool_result", **found}
    assert [block["id"] for block in output[2:]] == ["m1", "m1"]


def test_citations_unknown_blocks_and_unknown_pieces_are_kept() -> None:
    cited = [
        opened(0, "text", text="", citations=[]),
        piece(0, "citations", citation={"url": "a"}),
        piece(0, "citations", citation={"url": "b"}),
        piece(0, "text", text="so"),
        closed(0),
    ]
    bare = [opened(1, "text", text="", citations=None), piece(1, "citations", citation={"url": "c"}), closed(1)]
    unknown = [
        opened(2, "hologram", data="x", parts=[1]),
        piece(2, "hologram", data="y", parts=[2], size=3, more=None),
        piece(2, "hologram", size=4),
        closed(2),
    ]
    events = events_of(began(), *cited, *bare, *unknown, DONE, OVER)
    assert events[0] == MessageDelta("so")
    assert events[-2].payload["output"] == [
        {"type": "text", "text": "so", "citations": [{"url": "a"}, {"url": "b"}]},
        {"type": "text", "text": "", "citations": [{"url": "c"}]},
        {"type": "hologram", "data": "xy", "parts": [1, 2], "size": 4},
    ]


def test_no_bytes_of_images_are_kept() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    linked = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    frames = [opened(0, "mcp_tool_result", tool_use_id="m", content=[image, linked]), closed(0)]
    content = replay_of(began(), *frames, DONE, OVER)["output"][0]["content"]
    assert content == [{"type": "text", "text": "[an image that is not kept]"}, linked]
