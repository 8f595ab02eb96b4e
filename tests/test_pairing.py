"""What every dialect sends: pairs complete, ids unique, boundaries and notes in place, names that a wire takes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.logic.naming import ToolNames, WireIds, plain_name, short_id_form
from roder_trio.logic.pairing import CUT_OFF, NO_RESULT, paired, sendable_arguments
from roder_trio.logic.window import leave_out_images
from roder_trio.schema.inference import EngineTarget
from roder_trio.schema.transcript import (
    AssistantMessage,
    ContextCompaction,
    ErrorNote,
    OpaqueItem,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    UserMessage,
)

TARGET = EngineTarget("d", "p", "http://b")
ASK, SAID = UserMessage("ask"), AssistantMessage("said")
CUT = AssistantMessage("a", interrupted=True)


def pair(*items: Any, **options: Any) -> list[Any]:
    return paired(items, target=TARGET, model="m", **options)


def call(id: str = "1", arguments: str = "{}") -> ToolCall:
    return ToolCall(id, "f", arguments)


def result(id: str = "1", text: str = "r") -> ToolResult:
    return ToolResult(id, "f", text)


def missing(id: str = "1") -> ToolResult:
    return ToolResult(id, "f", NO_RESULT, is_error=True)


def replay(*output: Any, **named: Any) -> ProviderMetadata:
    return ProviderMetadata({"dialect": "d", "provider": "p", "model": "m", "output": list(output), **named})


@pytest.mark.parametrize(
    ("items", "sent"),
    [
        ([ASK, call(), result()], [ASK, call(), result()]),
        ([ASK, call(), ASK], [ASK, call(), missing(), ASK]),
        ([call()], [call(), missing()]),
        ([result(), ASK], [ASK]),
        ([call(), result("2"), result()], [call(), result()]),
        ([call(), result(text="old"), ASK, result(text="new")], [call(), result(text="new"), ASK]),
        ([call("a"), ASK, result("a")], [call("a"), result("a"), ASK]),
        ([call("a"), call("b"), result("b"), result("a")], [call("a"), call("b"), result("a"), result("b")]),
        ([call("a"), call("b"), result("b")], [call("a"), call("b"), missing("a"), result("b")]),
        ([call("a"), result("a"), call("b"), result("b")], [call("a"), result("a"), call("b"), result("b")]),
        (
            [call("a"), SAID, call("b"), result("a"), result("b")],
            [call("a"), result("a"), SAID, call("b"), result("b")],
        ),
        ([call(), ReasoningSummary("t"), result()], [call(), ReasoningSummary("t"), result()]),
        ([call(), ToolResult("1", None, "r")], [call(), result()]),
        ([ErrorNote("e"), OpaqueItem("x", {}), ASK], [ASK]),
    ],
)
def test_calls_and_results_are_paired(items: list[Any], sent: list[Any]) -> None:
    assert pair(*items) == sent


def test_text_between_calls_may_stay_inside_their_group() -> None:
    items = [call("a"), SAID, call("b"), result("a"), result("b")]
    assert pair(*items, text_ends_calls=False) == items


def test_an_id_used_again_is_rewritten_for_the_later_call_and_its_result() -> None:
    items = [call(), result(text="one"), ASK, call(), result(text="two"), call(), result(text="three")]
    expected = [call(), result(text="one"), ASK, call("1_2"), result("1_2", "two"), call("1_3"), result("1_3", "three")]
    assert pair(*items) == expected


def test_a_result_belongs_to_the_nearest_earlier_unanswered_call() -> None:
    items = [call(), ASK, call(), result(text="late"), result(text="later")]
    expected = [call(), result(text="later"), ASK, call("1_2"), result("1_2", "late")]
    assert pair(*items) == expected


def test_a_rewritten_id_never_meets_a_real_one() -> None:
    ids = [item.id for item in pair(call("a_2"), call("a"), call("a")) if isinstance(item, ToolCall)]
    assert ids == ["a_2", "a", "a_3"]


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("", "{}"),
        (" \n", "{}"),
        ('{"a": 1}', '{"a": 1}'),
        ("[1]", '{"_raw":"[1]"}'),
        ('{"a"', '{"_raw":"{\\"a\\""}'),
        ("\ud800", '{"_raw":"?"}'),
        ('{"a":' * 201 + "1" + "}" * 201, None),
    ],
)
def test_arguments_are_sent_as_an_object(text: str, sent: str | None) -> None:
    sent = json.dumps({"_raw": text}, separators=(",", ":")) if sent is None else sent
    assert sendable_arguments(text) == sent
    assert pair(call(arguments=text))[0].arguments == sent


# -- boundaries and notes


def test_a_summary_is_sent_as_a_user_message_followed_by_the_active_request() -> None:
    boundary = ContextCompaction("s", active_request=UserMessage("go"))
    summary = UserMessage("Context summary:\ns")
    assert pair(ASK, boundary, SAID) == [summary, UserMessage("go"), SAID]
    assert pair(boundary) == [summary, UserMessage("go")]
    assert pair(boundary, UserMessage("go"), SAID) == [summary, UserMessage("go"), SAID]
    assert pair(ASK, SAID, ContextCompaction("s", retained_count=1)) == [summary, SAID]


def test_an_opaque_boundary_is_sent_to_its_own_target_only() -> None:
    mine = replay({"type": "x"}, {"type": "compaction", "encrypted_content": "e"}, {"type": "y"}, base_url="http://b")
    other = ProviderMetadata({**mine.payload, "base_url": "http://other"})
    kept = [{"type": "compaction", "encrypted_content": "e"}, {"type": "y"}]
    assert pair(ASK, mine, SAID) == [ProviderMetadata({**mine.payload, "output": kept}), SAID]
    assert pair(ASK, other, SAID) == [ASK, SAID]


@pytest.mark.parametrize(
    ("items", "sent"),
    [
        (
            [AssistantMessage("a", interrupted=True), ASK],
            [AssistantMessage("a", interrupted=True), UserMessage(CUT_OFF), ASK],
        ),
        ([AssistantMessage("a", interrupted=True)], [AssistantMessage("a", interrupted=True), UserMessage(CUT_OFF)]),
        (
            [AssistantMessage("a", interrupted=True), call(), AssistantMessage("b", interrupted=True), ASK, SAID],
            [
                AssistantMessage("a", interrupted=True),
                call(),
                missing(),
                AssistantMessage("b", interrupted=True),
                UserMessage(CUT_OFF),
                ASK,
                SAID,
            ],
        ),
    ],
)
def test_an_interrupted_message_is_followed_by_one_note(items: list[Any], sent: list[Any]) -> None:
    assert pair(*items) == sent


# -- replay metadata


def test_metadata_of_another_origin_stays_behind() -> None:
    mine = replay({"type": "reasoning"})
    for name in ("dialect", "provider", "model"):
        assert pair(ASK, ProviderMetadata({**mine.payload, name: "other"})) == [ASK]
    assert pair(ProviderMetadata({"end_turn": False}), mine) == [mine]


@pytest.mark.parametrize(
    ("part", "renamed"),
    [
        ({"type": "function_call", "call_id": "1"}, {"type": "function_call", "call_id": "1_2"}),
        ({"type": "custom_tool_call", "call_id": "1"}, {"type": "custom_tool_call", "call_id": "1_2"}),
        ({"type": "tool_use", "id": "1", "input": {}}, {"type": "tool_use", "id": "1_2", "input": {}}),
        ({"functionCall": {"id": "1", "name": "f"}}, {"functionCall": {"id": "1_2", "name": "f"}}),
        ({"functionCall": {"name": "f"}}, {"functionCall": {"name": "f"}}),
    ],
)
def test_a_stored_call_is_sent_under_its_wire_id_instead_of_the_canonical_one(part: Any, renamed: Any) -> None:
    sent = pair(call(), result(), replay(part), call(), result())
    assert sent == [call(), result(), replay(renamed), result("1_2")]


@pytest.mark.parametrize("part", [{"type": "server_tool_use", "id": "1"}, {"functionCall": "odd"}, "odd", {"text": 1}])
def test_a_stored_item_that_is_no_call_of_ours_is_left_alone(part: Any) -> None:
    sent = pair(call(), result(), replay(part), call(), result())
    assert sent == [call(), result(), replay(part), call("1_2"), result("1_2")]


def test_a_stored_call_that_the_log_lacks_or_repeats_is_left_out() -> None:
    stored = {"type": "function_call", "call_id": "1"}
    gone = {"type": "function_call", "call_id": "9"}
    assert pair(replay(stored, gone, stored), call(), result()) == [replay(stored), result()]


def test_a_call_that_no_stored_item_stands_for_is_sent_behind_them() -> None:
    stored = {"type": "function_call", "call_id": "1"}
    items = [replay(stored), call(), call("2"), result(), result("2")]
    assert pair(*items) == [replay(stored), call("2"), result(), result("2")]


def test_equal_calls_without_ids_are_matched_one_by_one() -> None:
    part, other = {"functionCall": {"name": "f", "args": {"a": 1}}}, {"functionCall": {"name": "g", "args": {"a": 1}}}
    calls = [call("x", '{"a": 1}'), call("y", '{"a": 1}')]
    assert pair(replay(part, part), *calls, result("x"), result("y")) == [
        replay(part, part),
        result("x"),
        result("y"),
    ]
    assert pair(replay(other), call("x", '{"a": 1}'), result("x")) == [replay(other), result("x")]
    assert pair(replay(part), call("x", "["), result("x"))[0] == replay()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "message", "content": [{"type": "output_text", "text": "I "}, {"type": "refusal", "refusal": "said"}]},
        {"type": "text", "text": "so said I"},
        {"text": "said", "thoughtSignature": "s"},
    ],
)
def test_text_that_a_stored_item_says_is_not_said_twice(part: Any) -> None:
    other = AssistantMessage("something else")
    assert pair(ASK, other, SAID, replay(part), ASK) == [ASK, other, replay(part), ASK]
    assert pair(ASK, SAID, ASK, replay(part)) == [ASK, SAID, ASK, replay(part)]
    cut = AssistantMessage("said", interrupted=True)
    assert cut in pair(ASK, cut, replay(part))


@pytest.mark.parametrize("part", [{"text": "said", "thought": True}, {"type": "message", "content": None}, {}])
def test_a_thought_is_not_what_was_said(part: Any) -> None:
    assert pair(ASK, SAID, replay(part)) == [ASK, SAID, replay(part)]


def test_a_standalone_boundary_keeps_what_it_holds() -> None:
    boundary = ProviderMetadata({"output": [{"type": "compaction"}, {"type": "function_call", "call_id": "7"}]})
    assert pair(boundary) == [boundary]


def test_metadata_without_a_list_of_items_is_not_replayed() -> None:
    assert pair(ProviderMetadata({"dialect": "d", "provider": "p", "model": "m", "output": "x"})) == []
    kept = ProviderMetadata({"compacted_input": []})
    assert pair(kept) == [kept]


# -- names and ids


def test_wire_names_are_clean_short_and_distinct_both_ways() -> None:
    names = ToolNames(["a.b", "a/b", "a_b", "", "x" * 70, "x" * 69, "a.b"], 64)
    assert names.offered == ("a_b", "a_b_2", "a_b_3", "tool", "x" * 64, "x" * 62 + "_2")
    assert [names.wire(name) for name in ("a.b", "a/b", "a_b", "")] == ["a_b", "a_b_2", "a_b_3", "tool"]
    assert names.canonical("a_b_2") == "a/b"
    assert names.canonical("unknown") == "unknown"
    assert names.wire("gone.tool") == "gone_tool"
    assert plain_name("ä", 5) == "_"


def test_ids_of_a_fixed_form_are_hashed_into_it_and_stay_distinct() -> None:
    form = short_id_form(9)
    assert form("abc123XYZ") == "abc123XYZ"
    ids = WireIds(form)
    taken = [ids.take("call_1"), ids.take("call_1"), ids.take("abc123XYZ"), ids.take("abc123XYZ")]
    assert len(set(taken)) == 4
    assert all(len(id) == 9 and id.isalnum() for id in taken)
    sent = pair(call("call_1"), result("call_1"), id_form=form)
    assert sent[0].id == sent[1].id == form("call_1")


def test_left_out_images_are_counted_in_a_note() -> None:
    assert leave_out_images("", 1) == "[1 image was left out: this model takes no images.]"
    assert leave_out_images("", 2).startswith("[2 images were")


_ITEMS = st.lists(
    st.one_of(
        st.sampled_from([ASK, SAID, AssistantMessage("x", interrupted=True), ReasoningSummary("r"), ErrorNote("e")]),
        st.builds(call, st.sampled_from("abc"), st.sampled_from(["", "{}", "[", '{"a":1}'])),
        st.builds(result, st.sampled_from("abc")),
        st.just(replay({"type": "function_call", "call_id": "a"})),
        st.builds(ContextCompaction, st.just("s"), retained_count=st.integers(0, 2)),
    ),
    max_size=14,
)


def _calls_of(item: Any) -> list[str]:
    """The wire ids of the calls that a sent item is or stands for."""
    if isinstance(item, ProviderMetadata):
        return [part["call_id"] for part in item.payload["output"]]
    return [item.id] if isinstance(item, ToolCall) else []


@given(_ITEMS, st.booleans())
@settings(max_examples=200)
def test_every_transcript_is_well_paired_with_unique_ids(items: list[Any], text_ends_calls: bool) -> None:
    sent = pair(*items, text_ends_calls=text_ends_calls)
    calls = [item for part in sent for item in _calls_of(part)]
    results = [item.id for item in sent if isinstance(item, ToolResult)]
    assert sorted(calls) == sorted(results)
    assert len(set(calls)) == len(calls)
    for item in sent:
        if isinstance(item, ToolCall):
            assert isinstance(json.loads(item.arguments), dict)
    open_calls: list[str] = []
    for item in sent:
        open_calls.extend(_calls_of(item))
        if isinstance(item, ToolResult):
            open_calls.remove(item.id)
        elif isinstance(item, UserMessage):
            assert not open_calls
    assert pair(*items, text_ends_calls=text_ends_calls) == sent


@given(_ITEMS)
@settings(max_examples=100)
def test_a_longer_window_keeps_the_prefix_of_what_was_sent(items: list[Any]) -> None:
    whole = [item for item in items if not isinstance(item, ContextCompaction | ToolResult)]
    answered = [part for item in whole for part in ([item, result(item.id)] if isinstance(item, ToolCall) else [item])]
    before = pair(*answered, ASK)
    assert pair(*answered, ASK, SAID, call("a"), result("a"))[: len(before)] == before
