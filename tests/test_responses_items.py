"""The items of Responses streams: found again under other names, told once, calls completed in order."""

from typing import Any

import pytest

from roder_trio.schema.inference import (
    Completed,
    HostedToolCallCompleted,
    HostedToolCallStarted,
    MessageDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.chat import completed_calls, without_metadata
from tests.responses import (
    END,
    added,
    arguments_done,
    call,
    done,
    ended,
    events_of,
    frame,
    grown,
    message,
    payload,
    reasoning,
    run,
    text,
    without_end,
)

# -- items


def test_ids_that_change_from_frame_to_frame_name_the_same_place() -> None:
    written = call("other", "call_1", "read", '{"a":1}')
    events = events_of(
        added(call("fc_1", "call_1", "read")),
        frame("function_call_arguments.delta", item_id="another", output_index=0, delta='{"a"'),
        frame("function_call_arguments.delta", item_id="a third", output_index=0, delta=":1}"),
        done(written),
        ended(call("a fifth", "call_1", "read", '{"a":1}')),
    )
    assert completed_calls(events) == [("call_1", "read", '{"a":1}')]
    assert [event.arguments_delta for event in events if isinstance(event, ToolCallDelta)] == ['{"a"', ":1}"]


def test_items_without_ids_and_places_are_told_apart_by_their_order() -> None:
    first, second = (call("", f"call_{n}", "read") for n in (1, 2))
    piece = frame("function_call_arguments.delta")
    events = events_of(
        added(first, None),
        piece | {"delta": "{ }"},
        done(first | {"arguments": "{ }"}, None),
        added(second, None),
        piece | {"delta": "{  }"},
        done(second | {"arguments": "{  }"}, None),
        ended(first | {"arguments": "{ }"}, second | {"arguments": "{  }"}),
    )
    assert completed_calls(events) == [("call_1", "read", "{ }"), ("call_2", "read", "{  }")]


def test_two_messages_that_have_one_place_are_two() -> None:
    events = events_of(
        added(message(id="m1"), 0), text("a", "m1"), done(message("a"), 0), done(message("b", id="m2"), 0), ended()
    )
    assert [event.text for event in without_end(events)] == ["a", "b"]


def test_an_item_that_began_twice_is_one() -> None:
    begun = added(call("fc_1", "call_1", "read"))
    assert without_end(events_of(begun, begun, ended())) == [
        ToolCallStarted("call_1", "read"),
        ToolCallCompleted("call_1", "read", "{}"),
    ]
    late = [text("a"), added(message(phase="commentary")), text("b"), ended()]
    assert without_end(events_of(*late)) == [MessageDelta("a"), MessageDelta("b", "commentary")]


def test_an_item_stays_what_it_began_as() -> None:
    hosted = {"type": "web_search_call", "id": "fc_1"}
    odd = [added(hosted), added(call("fc_1", "call_1", "read")), grown("fc_1", "{}")]
    odd += [arguments_done("fc_1", "{}"), ended(hosted)]
    assert without_end(events_of(*odd)) == [
        HostedToolCallStarted("fc_1", "web_search"),
        HostedToolCallCompleted("fc_1", "web_search", "{}"),
    ]


def test_what_was_not_told_of_an_item_is_told_with_it() -> None:
    said = message("a") | {"content": [{"type": "output_text", "text": part} for part in "ab"]}
    assert [event.text for event in without_end(events_of(text("a"), done(said), ended(said)))] == ["a", "b"]
    assert [event.text for event in without_end(events_of(added(message()), ended(said)))] == ["a", "b"]
    told_late = frame("output_text.done", item_id="m1", content_index=1, text="b")
    assert [event.text for event in without_end(events_of(text("a"), told_late, told_late, ended(said)))] == ["a", "b"]
    assert without_end(events_of(done(message() | {"content": None}), ended())) == []


def test_output_that_no_final_frame_lists_is_kept_in_the_order_of_its_places() -> None:
    events = events_of(
        done({"type": "mcp_list_tools", "id": "l"}, 1), done(message("b"), 2), done(reasoning(), 0), ended()
    )
    assert payload(events)["output"] == [reasoning(), {"type": "mcp_list_tools", "id": "l"}, message("b")]
    assert payload(events_of(text("half"), ended()))["output"] == []
    assert payload(events_of(ended() | {"response": {"output": [5, message("b")]}}))["output"] == [message("b")]


def test_a_refusal_is_told_and_is_the_reason_of_the_end() -> None:
    refused = message() | {"content": [{"type": "refusal", "refusal": "No."}]}
    frames = [frame("refusal.delta", item_id="m1", content_index=0, delta="No."), done(refused)]
    for start in (frames, [frame("refusal.done", item_id="m1", refusal="No.")], []):
        events = events_of(*start, ended(refused))
        assert without_metadata(events) == [MessageDelta("No."), Completed("refusal", "r1")]
        assert payload(events)["refused"] is True
    cut = {"state": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert events_of(*frames, ended(**cut))[-1] == Completed("length", "r1")


# -- calls


def test_the_text_at_the_end_of_a_call_wins() -> None:
    begun = [added(call("fc_1", "call_1", "read")), grown("fc_1", '{"a"')]
    events = events_of(*begun, arguments_done("fc_1", '{"a":1}'), grown("fc_1", "late"), ended())
    assert without_end(events)[1:] == [
        ToolCallDelta("call_1", '{"a"'),
        ToolCallDelta("call_1", ":1}"),
        ToolCallCompleted("call_1", "read", '{"a":1}'),
    ]
    assert completed_calls(events_of(*begun, arguments_done("fc_1", ""), ended())) == [("call_1", "read", '{"a"')]
    assert completed_calls(events_of(*begun, done(call("fc_1", "call_1", "read")), ended())) == [
        ("call_1", "read", '{"a"')
    ]


def test_a_call_may_be_named_late_or_never() -> None:
    unnamed = call("fc_1", "", "")
    late = [added(unnamed), grown("fc_1", '{"a"'), grown("fc_1", ":1}")]
    events = events_of(*late, done(call("fc_1", "call_1", "read", '{"a":1}')), ended())
    assert without_end(events) == [
        ToolCallStarted("call_1", "read"),
        ToolCallDelta("call_1", '{"a":1}'),
        ToolCallCompleted("call_1", "read", '{"a":1}'),
    ]
    assert completed_calls(events_of(*late, arguments_done("fc_1", '{"a":2}'), ended())) == [("fc_1", "", '{"a":2}')]
    nameless = call("", "", "read", "{}")
    assert completed_calls(events_of(ended(nameless))) == [("call_fresh1", "read", "{}")]
    assert payload(events_of(ended(nameless)))["output"] == [nameless | {"call_id": "call_fresh1"}]


def test_an_id_that_two_calls_of_a_step_share_is_replaced_in_the_second_and_in_its_item() -> None:
    calls = [call("fc_1", "call_1", "read", '{"a":1}'), call("fc_2", "call_1", "read", '{"a":2}')]
    events = events_of(done(calls[0], 0), done(calls[1], 1), ended(*calls))
    assert completed_calls(events) == [("call_1", "read", '{"a":1}'), ("call_fresh1", "read", '{"a":2}')]
    assert [item["call_id"] for item in payload(events)["output"]] == ["call_1", "call_fresh1"]


def test_arguments_may_come_as_null_or_as_an_object() -> None:
    frames = [done(call(str(n), str(n), "f") | {"arguments": given}, n) for n, given in enumerate([None, {"x": 1}])]
    events = events_of(*frames, ended())
    assert completed_calls(events) == [("0", "f", "{}"), ("1", "f", '{"x":1}')]


def test_a_call_that_closes_without_text_waits_for_the_reason_of_the_end() -> None:
    frames = [done(call("a", "1", "f"), 0), done(call("b", "2", "f", "{ }"), 1)]
    assert completed_calls(run(*frames)[0]) == []
    assert completed_calls(events_of(*frames, ended())) == [("1", "f", "{}"), ("2", "f", "{ }")]
    cut = ended(state="incomplete", incomplete_details={"reason": "content_filter"})
    assert completed_calls(events_of(*frames, cut)) == [("1", "f", ""), ("2", "f", "{ }")]
    half = [
        added(call("a", "1", "f")),
        grown("a", '{"pa'),
        ended(state="incomplete", incomplete_details={"reason": "max_output_tokens"}),
    ]
    assert completed_calls(events_of(*half)) == [("1", "f", '{"pa')]


def test_names_of_tools_are_mapped_back() -> None:
    events = events_of(
        done(call("a", "1", "my_tool", "{}"), 0), done(call("b", "2", "odd", "{}"), 1), ended(), tools=["my.tool"]
    )
    assert [event.name for event in events if isinstance(event, ToolCallStarted)] == ["my.tool", "odd"]


# -- what the provider runs


@pytest.mark.parametrize(
    ("item", "name", "arguments"),
    [
        ({"type": "mcp_call", "name": "ask", "arguments": '{"q":1}'}, "ask", '{"q":1}'),
        ({"type": "tool_search_call", "arguments": {"paths": ["a"]}}, "tool_search", '{"paths":["a"]}'),
        ({"type": "web_search_call", "action": {"type": "search"}}, "web_search", '{"type":"search"}'),
        ({"type": "file_search_call", "queries": ["a"], "results": None}, "file_search", '["a"]'),
        ({"type": "code_interpreter_call", "code": "1 + 1", "arguments": None}, "code_interpreter", '"1 + 1"'),
        ({"type": "image_generation_call", "arguments": ""}, "image_generation", "{}"),
    ],
)
def test_a_hosted_call_is_told_by_its_own_id(item: Any, name: str, arguments: str) -> None:
    item = item | {"id": "h_1", "call_id": "call_1"}
    begun = {name: item[name] for name in ("type", "id", "name") if name in item}
    expected = [HostedToolCallStarted("h_1", name), HostedToolCallCompleted("h_1", name, arguments)]
    for frames in ([added(begun), done(item)], [added(begun), added(begun)], [done(item)], []):
        events = events_of(*frames, ended(item))
        assert without_metadata(events) == [*expected, END]
        assert payload(events)["output"] == [item]
    assert without_end(events_of(added(item), ended())) == expected


def test_hosted_calls_without_ids_of_their_own_get_fresh_ones() -> None:
    item = {"type": "web_search_call"}
    events = events_of(done(item, 0), done(item | {"id": "call_fresh1"}, 1), done(item, 2), ended())
    ids = [event.id for event in events if isinstance(event, HostedToolCallStarted)]
    assert len(set(ids)) == 3
    assert payload(events)["output"][0] == item


def test_the_bytes_of_an_image_are_not_stored() -> None:
    image = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBORw0KGgo="}
    assert payload(events_of(done(image), ended(image)))["output"] == [image | {"result": None}]
