"""What a Responses server said goes back to it as it came: steps, boundaries, and the bytes of rounds."""

import itertools
from typing import Any

from roder_trio.logic.pairing import NO_RESULT
from roder_trio.providers._dialect import encode_json
from roder_trio.providers.openai_responses import Profile
from roder_trio.providers.openai_responses.encode import encode_compaction
from roder_trio.schema.inference import (
    Instructions,
    ReasoningOptions,
    RequestRuntime,
)
from roder_trio.schema.transcript import (
    AssistantMessage,
    ContextCompaction,
    Image,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    UserMessage,
)
from tests.chat import request, tool
from tests.responses import (
    TARGET,
    answered,
    asked,
    body,
    boundary,
    call,
    custom,
    decode_compaction,
    done,
    ended,
    events_of,
    given,
    message,
    payload,
    reasoning,
    said,
    sent,
    stored,
)

ASK = UserMessage("ask")
PICTURE = Image("data:image/png;base64,AA")
PATCH = tool("patch", freeform_field="text", description="d")
ON = ReasoningOptions(True, "high")


# -- stored items


def step_of(*output: dict[str, Any], said: str = "", calls: Any = ()) -> list[Any]:
    """A step as the log has it."""
    texts = [AssistantMessage(said)] if said else []
    return [*texts, stored(*output), *(ToolCall(*part) for part in calls)]


def test_stored_items_are_sent_verbatim_and_in_order_instead_of_what_they_stand_for() -> None:
    thought = reasoning("why", encrypted_content="e")
    output = [
        thought,
        {"type": "web_search_call", "id": "ws_1", "action": {}},
        message("let me", phase="commentary"),
        call("fc_1", "call_1", "read", '{"a": 1}', namespace="files", status="completed"),
        custom("ctc_1", "call_2", "patch", "***"),
    ]
    calls = [("call_1", "read", '{"a": 1}'), ("call_2", "patch", '{"input":"***"}')]
    items = [
        ASK,
        ReasoningSummary("why"),
        *step_of(*output, said="let me", calls=calls),
        ToolResult("call_1", "read", "r"),
    ]
    assert sent(*items) == [
        given("ask"),
        *output,
        answered("call_1", "r"),
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": NO_RESULT},
    ]
    plain = sent(*items, flags={"encrypted_reasoning": False})
    assert plain[1] == reasoning("why")


def test_arguments_that_were_cut_are_sent_as_an_object() -> None:
    output = [call("fc_1", "call_1", "read", '{"pa'), call("fc_2", "call_2", "read")]
    calls = [("call_1", "read", '{"pa'), ("call_2", "read", "")]
    found = sent(*step_of(*output, calls=calls))
    assert [item["arguments"] for item in found[:2]] == ['{"_raw":"{\\"pa"}', "{}"]


def test_a_step_of_another_dialect_or_model_is_sent_as_it_is_known_canonically() -> None:
    thought = {"type": "thinking", "thinking": "why", "signature": "s"}
    for fields in ({"dialect": "anthropic"}, {"provider": "other"}, {"model": "other"}):
        step = [AssistantMessage("let me"), stored(thought, **fields), ToolCall("toolu_1", "read", "{}")]
        assert sent(ASK, *step, ToolResult("toolu_1", "read", "r")) == [
            given("ask"),
            said("let me"),
            asked("toolu_1", "read", "{}"),
            answered("toolu_1", "r"),
        ]


def test_an_id_that_a_later_turn_uses_again_is_another_on_the_wire_with_its_own_output() -> None:
    steps = [
        part
        for n in (1, 2)
        for part in [
            UserMessage(f"turn {n}"),
            *step_of(call(f"fc_{n}", "call_0", "read", "{}"), calls=[("call_0", "read", "{}")]),
            ToolResult("call_0", "read", f"result {n}"),
        ]
    ]
    found = sent(*steps)
    assert [item["call_id"] for item in found if "call_id" in item] == ["call_0", "call_0", "call_0_2", "call_0_2"]
    assert [item["output"] for item in found if "output" in item] == ["result 1", "result 2"]


def test_a_decoded_step_comes_back_whole_with_its_results() -> None:
    output = [
        reasoning("why", encrypted_content="e"),
        message("I look.", phase="commentary"),
        call("fc_1", "call_1", "read", '{"a":1}'),
        call("fc_2", "call_1", "read", '{"a":2}'),
    ]
    events = events_of(*(done(item, place) for place, item in enumerate(output)), ended(*output))
    kept = payload(events)
    calls = [ToolCall(item["call_id"], "read", item["arguments"]) for item in kept["output"][2:]]
    results = [ToolResult(part.id, "read", f"of {part.arguments}") for part in calls]
    log = [ASK, ReasoningSummary("why"), AssistantMessage("I look.", phase="commentary"), ProviderMetadata(kept)]
    found = sent(*log, *calls, *reversed(results), UserMessage("go on"))
    second = output[3] | {"call_id": "call_fresh1"}
    assert found == [
        given("ask"),
        *output[:3],
        second,
        answered("call_1", 'of {"a":1}'),
        answered("call_fresh1", 'of {"a":2}'),
        given("go on"),
    ]


# -- boundaries


def test_a_summary_is_a_user_message_and_nothing_before_it_is_sent() -> None:
    found = sent(ASK, AssistantMessage("old"), ContextCompaction("sum"), UserMessage("new"))
    assert found == [given("Context summary:\nsum"), given("new")]


def test_an_opaque_boundary_is_sent_to_its_own_server_only() -> None:
    own = stored(boundary())
    assert sent(ASK, own, UserMessage("new")) == [boundary(), given("new")]
    in_band = ProviderMetadata({"provider": "acme", "output": [boundary()]})
    assert sent(ASK, in_band, AssistantMessage("a")) == [boundary(), said("a")]
    for fields in ({"base_url": "http://elsewhere/v1"}, {"provider": "other"}, {"dialect": "other"}):
        foreign = stored(boundary(), **fields)
        assert sent(ASK, foreign, UserMessage("new")) == [given("ask"), given("new")]


def test_what_stands_before_a_boundary_in_its_own_output_is_not_sent_again() -> None:
    step = stored(reasoning("why"), message("before"), boundary(), message("after"))
    assert sent(ASK, step, UserMessage("new")) == [boundary(), message("after"), given("new")]


def test_the_input_of_a_compaction_is_sent_exactly_as_the_server_gave_it() -> None:
    compacted = [given("ask"), boundary(), "odd"]
    own = stored(boundary(), compacted_input=compacted)
    assert sent(UserMessage("old"), own, UserMessage("new")) == [*compacted, given("new")]


def test_items_that_are_no_objects_are_left_out() -> None:
    odd = stored(message("a"))
    odd = ProviderMetadata({**odd.payload, "output": ["odd", *odd.payload["output"]]})
    assert sent(odd) == [message("a")]


def test_a_call_that_compacts_holds_what_the_model_is_told_but_not_the_context_of_the_moment() -> None:
    texts = Instructions(system="s", developer="d", developer_context="c")
    runtime = RequestRuntime(prompt_cache_key="t", service_tier="flex")
    wanted = request(ASK, AssistantMessage("a"), instructions=texts, runtime=runtime, tools=(tool("f"),))
    flags = {"cache_options": {"prompt_cache_retention": "24h"}}
    assert list(encode_compaction(wanted, Profile(**flags), target=TARGET).items()) == [
        ("model", "m"),
        ("instructions", "s\n\nDeveloper instructions:\nd"),
        ("prompt_cache_key", "t"),
        ("service_tier", "flex"),
        ("input", [given("ask"), said("a")]),
    ]
    events, _ = decode_compaction(encode_json({"output": [boundary()]}))
    assert sent(ASK, ProviderMetadata(events[0].payload), UserMessage("new")) == [boundary(), given("new")]


# -- bytes


def test_two_rounds_of_a_thread_share_their_bytes() -> None:
    texts = Instructions(system="s", developer="d", developer_context="c")
    options = {"instructions": texts, "tools": (tool("f"), PATCH), "reasoning": ON}
    first = [ASK, *step_of(reasoning("why"), call("fc", "1", "f", "{}"), calls=[("1", "f", "{}")])]
    second = [*first, ToolResult("1", "f", "r"), AssistantMessage("done")]
    third = [*second, UserMessage("more")]
    bodies = [encode_json(body(*items, **options)) for items in ([ASK], second, [*second, AssistantMessage("x")])]
    for earlier, later in itertools.pairwise(bodies):
        assert later.startswith(earlier.removesuffix(b"]}"))
    # in the next turn the context moves behind what was said
    before = bodies[1][: bodies[1].index(encode_json(given("c", "developer")))]
    assert encode_json(body(*third, **options)).startswith(before)
