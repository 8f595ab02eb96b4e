"""Tool calls that come in fragments, and reasoning that comes in tags."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.providers.chat_completions.think import ThinkSplitter
from roder_trio.schema.inference import (
    Completed,
    MessageDelta,
    ReasoningDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.chat import calls, chunk, completed_calls, events_of, fragment, run, without_metadata

STOP = chunk("stop")
DONE = "[DONE]"


# -- tool calls


def test_interleaved_fragments_are_sorted_by_index() -> None:
    events = events_of(
        calls(fragment(0, "A", "f", '{"a"')),
        calls(fragment(1, "B", "g", '{"b"')),
        calls(fragment(0, arguments=":1}")),
        calls(fragment(1, arguments=":2}")),
        DONE,
    )
    assert without_metadata(events) == [
        ToolCallStarted("A", "f"),
        ToolCallDelta("A", '{"a"'),
        ToolCallStarted("B", "g"),
        ToolCallDelta("B", '{"b"'),
        ToolCallDelta("A", ":1}"),
        ToolCallDelta("B", ":2}"),
        ToolCallCompleted("A", "f", '{"a":1}'),
        ToolCallCompleted("B", "g", '{"b":2}'),
        Completed("tool_use", "r1"),
    ]


F1, F2 = ("call_fresh1", "call_fresh2")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (
            [[fragment(0, "A", "f", '{"p":1}')], [fragment(0, "B", "f", '{"p":2}')]],
            [("A", "f", '{"p":1}'), ("B", "f", '{"p":2}')],
        ),
        ([[fragment(None, None, "f", "{}"), fragment(None, None, "g", "{}")]], [(F1, "f", "{}"), (F2, "g", "{}")]),
        (
            [
                [fragment(None, None, "f", '{"a"'), fragment(None, None, "g", '{"b"')],
                [fragment(arguments=":1}"), fragment(arguments=":2}")],
            ],
            [(F1, "f", '{"a":1}'), (F2, "g", '{"b":2}')],
        ),
        (
            [[fragment(0, None, "f", '{"a":1}')], [fragment(0, None, "f", '{"a":2}')]],
            [(F1, "f", '{"a":1}'), (F2, "f", '{"a":2}')],
        ),
        (
            [[fragment(0, "A", "f", '{"a"')], [fragment(0, "B", "g", "{")], [fragment(0, arguments="}")]],
            [("A", "f", '{"a"'), ("B", "g", "{}")],
        ),
        ([[fragment(None, "A", "f", '{"a"')], [fragment(None, "A", None, ":1}")]], [("A", "f", '{"a":1}')]),
        ([[fragment(None, "A", "f", "{")], [fragment(None, None, None, "}")]], [("A", "f", "{}")]),
        ([[fragment(None, "A", "f", "{}")], [fragment(None, None, "g", "{}")]], [("A", "f", "{}"), (F1, "g", "{}")]),
        ([[fragment(None, None, None, "{")], [fragment(None, None, "g", "}")]], [(F1, "g", "{}")]),
        ([[fragment(0, "A", "f", "{}")], [fragment(1, "A", "g", "{}")]], [("A", "f", "{}"), (F1, "g", "{}")]),
        (
            [[fragment(None, "A", "f", '{"a":1}')], [fragment(None, "A", "f", '{"a":2}')]],
            [("A", "f", '{"a":1}'), (F1, "f", '{"a":2}')],
        ),
        ([[fragment(0, None, "f", "{")], [fragment(0, "late", None, "}")]], [("late", "f", "{}")]),
        ([[fragment(0, None, "f", "{}")], [fragment(1, "B", "g", "{}")]], [(F1, "f", "{}"), ("B", "g", "{}")]),
        ([[fragment(0, "A", "f", '{"a":"x')], [fragment(0, "A", "f", 'y"}')]], [("A", "f", '{"a":"xy"}')]),
        ([[fragment(0, "A", "f", {"b": 1})]], [("A", "f", '{"b":1}')]),
        ([[fragment(0, "A", "f")]], [("A", "f", "{}")]),
        (
            [
                [fragment(0, "A", "f", "")],
                [{"index": 0, "function": {"arguments": None}}],
                [{"index": 0, "function": None}],
            ],
            [("A", "f", "{}")],
        ),
        ([["odd", fragment(0, "A", "f", "{}")]], [("A", "f", "{}")]),
        ([[fragment(0, "", "f", "{}")]], [(F1, "f", "{}")]),
        ([[fragment(0, "A", None, "{}")]], [("A", "", "{}")]),
    ],
)
def test_fragments_find_their_call(frames: list[Any], expected: list[Any]) -> None:
    assert completed_calls(events_of(*(calls(*fragments) for fragments in frames), DONE)) == expected


def test_a_single_fragment_may_stand_without_its_list_and_the_old_form_works() -> None:
    assert completed_calls(events_of(chunk(tool_calls=fragment(0, "A", "f", "{}")), DONE)) == [("A", "f", "{}")]
    old = [chunk(function_call={"name": "f", "arguments": "{"}), chunk(function_call={"arguments": "}"})]
    assert completed_calls(events_of(*old, chunk("function_call"))) == [("call_fresh1", "f", "{}")]


def test_a_name_in_pieces_is_joined_while_it_can_become_an_offered_one() -> None:
    pieces = [calls(fragment(0, "A", "get")), calls(fragment(0, "A", "_wea")), calls(fragment(0, None, "ther"))]
    tools = ["get", "get_weather", "get_weather_forecast"]
    events = events_of(*pieces, calls(fragment(0, None, "get_weather", "{}")), DONE, tools=tools)
    assert completed_calls(events) == [("A", "get_weather", "{}")]
    assert events[0] == ToolCallStarted("A", "get_weather")


def test_a_repeated_name_is_not_joined() -> None:
    repeated = [calls(fragment(0, "A", "get", "")), calls(fragment(0, "A", "get", "{}"))]
    assert completed_calls(events_of(*repeated, DONE, tools=["get", "get_more"])) == [("A", "get", "{}")]


def test_a_call_starts_when_its_id_is_known_and_earlier_ones_have_started() -> None:
    frames = [
        calls(fragment(0, None, "f", "{")),
        calls(fragment(1, "B", "g", "{}")),
        calls(fragment(0, "A")),
        calls(fragment(0, arguments="}")),
    ]
    assert without_metadata(events_of(*frames, DONE))[:5] == [
        ToolCallStarted("A", "f"),
        ToolCallDelta("A", "{"),
        ToolCallStarted("B", "g"),
        ToolCallDelta("B", "{}"),
        ToolCallDelta("A", "}"),
    ]


def test_an_id_that_names_an_earlier_call_is_replaced() -> None:
    events = events_of(calls(fragment(0, "A", "f", "{}")), DONE, taken=["A", "call_fresh1"])
    assert completed_calls(events) == [("call_fresh2", "f", "{}")]


def test_names_are_mapped_back_and_unknown_ones_pass() -> None:
    frame = calls(fragment(0, "A", "my_tool", "{}"), fragment(1, "B", "other", "{}"))
    assert [name for _, name, _ in completed_calls(events_of(frame, DONE, tools=["my.tool"]))] == ["my.tool", "other"]


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_call_that_was_cut_off_completes_with_what_came(finish: str) -> None:
    events = events_of(calls(fragment(0, "A", "f", '{"pa')), chunk(finish), DONE)
    assert without_metadata(events) == [
        ToolCallStarted("A", "f"),
        ToolCallDelta("A", '{"pa'),
        ToolCallCompleted("A", "f", '{"pa'),
        Completed(finish, "r1"),
    ]
    assert completed_calls(events_of(calls(fragment(0, "A", "f")), chunk(finish))) == [("A", "f", "")]


def test_an_interrupted_call_never_completes() -> None:
    events, failure = run(calls(fragment(0, "A", "f", "{}")))
    assert events == [ToolCallStarted("A", "f"), ToolCallDelta("A", "{}")]
    assert failure is not None


# -- think tags


@pytest.mark.parametrize(
    ("text", "reasoning", "rest"),
    [
        ("<think>why</think>\n\nso", "why", "so"),
        ("\n<think>\nwhy</think>so", "\nwhy", "so"),
        ("<think>why", "why", ""),
        ("<think>a < b </thin", "a < b </thin", ""),
        ("plain <think>no</think>", "", "plain <think>no</think>"),
        ("<thin", "", "<thin"),
        ("<think></think>so </think>", "", "so </think>"),
        ("<think>a</think>\n", "a", ""),
        ("", "", ""),
    ],
)
def test_think_tags_are_taken_apart_however_the_text_is_cut(text: str, reasoning: str, rest: str) -> None:
    for size in (1, 2, 3, 100):
        frames = [chunk(content=text[start : start + size]) for start in range(0, len(text), size)]
        events = events_of(*frames, STOP, think_tags=True)
        assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == reasoning
        assert "".join(event.text for event in events if isinstance(event, MessageDelta)) == rest
    assert events_of(chunk(content="<think>a</think>b"), STOP)[0] == MessageDelta("<think>a</think>b")


@given(st.text("<think>/ab ", max_size=40), st.integers(1, 9))
@settings(max_examples=100)
def test_think_tags_lose_no_text(text: str, size: int) -> None:
    splitter = ThinkSplitter()
    pieces = [piece for start in range(0, len(text), size) for piece in splitter.feed(text[start : start + size])]
    whole = ThinkSplitter()
    once = [*whole.feed(text), *whole.eof()]
    pieces += splitter.eof()
    for kind in ("text", "reasoning"):
        assert "".join(text for k, text in pieces if k == kind) == "".join(text for k, text in once if k == kind)
