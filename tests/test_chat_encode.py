"""Requests as bodies of Chat Completions calls."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from roder_trio.errors import ProviderFailure
from roder_trio.providers._dialect import encode_json
from roder_trio.providers.chat_completions import Profile
from roder_trio.providers.chat_completions.encode import encode, named_parameters
from roder_trio.schema.inference import (
    Instructions,
    ModelDescriptor,
    OutputRequest,
    ReasoningOptions,
    RequestRuntime,
    ToolChoice,
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
from tests.chat import TARGET, request, tool

ASK = UserMessage("ask")
PICTURE = Image("data:image/png;base64,AA")


def body(*items: Any, flags: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return encode(request(*items, **options), Profile(**(flags or {})), target=TARGET)


def messages(*items: Any, **flags: Any) -> list[Any]:
    return body(*items, flags=flags)["messages"]


def called(*calls: tuple[str, str, str], content: str | None = None, **more: Any) -> dict[str, Any]:
    listed = [{"id": id, "type": "function", "function": {"name": name, "arguments": text}} for id, name, text in calls]
    return {"role": "assistant", "content": content, **more, "tool_calls": listed}


def answered(id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


USER = {"role": "user", "content": "ask"}


def test_a_bare_request_is_a_short_body() -> None:
    assert list(body(ASK).items()) == [
        ("model", "m"),
        ("messages", [USER]),
        ("stream", True),
        ("stream_options", {"include_usage": True}),
    ]
    assert "stream_options" not in body(ASK, flags={"include_stream_usage": False})


def test_system_texts_stand_in_front_in_order() -> None:
    instructions = Instructions(system="s", developer="d", developer_context="c")
    texts = [{"role": "system", "content": text} for text in "sdc"]
    assert body(ASK, instructions=instructions)["messages"] == [*texts, USER]
    flags = {"system_role": "developer", "merge_system": True}
    assert body(ASK, instructions=instructions, flags=flags)["messages"][0] == {
        "role": "developer",
        "content": "s\n\nd\n\nc",
    }
    assert body(ASK, instructions=Instructions(system=""), flags=flags)["messages"] == [USER]


def test_calls_with_the_text_before_them_are_one_message_and_results_follow_at_once() -> None:
    items = [
        ASK,
        AssistantMessage("let me"),
        ToolCall("1", "f", '{"a":1}'),
        ToolCall("2", "g", ""),
        ToolResult("2", "g", "two"),
        ToolResult("1", "f", "one"),
        AssistantMessage("done"),
    ]
    assert messages(*items) == [
        USER,
        called(("1", "f", '{"a":1}'), ("2", "g", "{}"), content="let me"),
        answered("1", "one"),
        answered("2", "two"),
        {"role": "assistant", "content": "done"},
    ]


def test_content_is_null_without_text_and_empty_messages_are_left_out() -> None:
    items = [ASK, AssistantMessage(" \n"), ToolCall("1", "f", "{}"), ToolResult("1", "f", ""), AssistantMessage("")]
    assert messages(*items) == [USER, called(("1", "f", "{}")), answered("1", "")]


def test_a_call_that_is_no_json_and_an_interrupted_text_are_sent_well_formed() -> None:
    items = [ToolCall("1", "f", '{"pa'), AssistantMessage("half", interrupted=True), UserMessage("steer")]
    assert messages(*items) == [
        called(("1", "f", '{"_raw":"{\\"pa"}')),
        answered("1", "no result was recorded for this call"),
        {"role": "assistant", "content": "half"},
        {"role": "user", "content": "[The message above was cut off before it was finished.]"},
        {"role": "user", "content": "steer"},
    ]


def test_a_summary_is_a_user_message_and_nothing_before_it_is_sent() -> None:
    sent = messages(ASK, AssistantMessage("old"), ContextCompaction("sum"), UserMessage("new"))
    assert [message["content"] for message in sent] == ["Context summary:\nsum", "new"]


def test_images_are_parts_of_a_list_only_where_there_are_some() -> None:
    image = {"type": "image_url", "image_url": {"url": PICTURE.url}}
    assert messages(UserMessage("see", (PICTURE,)))[0]["content"] == [{"type": "text", "text": "see"}, image]
    assert messages(UserMessage("", (PICTURE,)))[0]["content"] == [image]
    note = "[1 image was left out: this model takes no images.]"
    assert messages(UserMessage("see", (PICTURE,)), vision=False)[0]["content"] == f"see\n{note}"
    assert messages(UserMessage("", (PICTURE,)), vision=False)[0]["content"] == note


@pytest.mark.parametrize("following", [None, AssistantMessage("x"), UserMessage("x"), ToolCall("3", "f", "{}")])
def test_images_of_results_follow_the_group_in_one_user_message(following: Any) -> None:
    items = [
        ToolCall("1", "f", "{}"),
        ToolCall("2", "f", "{}"),
        ToolResult("1", "f", "one", images=(PICTURE,)),
        ToolResult("2", "f", "", images=(PICTURE, PICTURE)),
    ]
    sent = messages(*items, *([following] if following else []))
    assert sent[1] == answered("1", "one\n[1 image of this result: see below.]")
    assert sent[2] == answered("2", "[2 images of this result: see below.]")
    assert sent[3]["role"] == "user"
    assert [part["type"] for part in sent[3]["content"]] == ["text", "image_url", "image_url", "image_url"]
    assert "left out" in messages(*items, vision=False)[1]["content"]
    assert len(messages(*items, vision=False)) == 3


REASONED = [
    ASK,
    ReasoningSummary("why"),
    AssistantMessage("text"),
    ToolCall("1", "f", "{}"),
    ReasoningSummary("more"),
    ToolCall("2", "f", "{}"),
    ToolResult("1", "f", "r"),
    ToolResult("2", "f", "r"),
]


def test_reasoning_is_brought_back_beside_calls_since_the_last_user_message_if_the_profile_says_so() -> None:
    assert "reasoning_content" not in messages(*REASONED)[1]
    assert messages(*REASONED, reasoning_replay="reasoning_content")[1]["reasoning_content"] == "whymore"
    later = messages(*REASONED, ASK, reasoning_replay="reasoning_content")
    assert all("reasoning_content" not in message for message in later)
    unused = messages(ASK, ReasoningSummary("x"), AssistantMessage("a"), reasoning_replay="reasoning_content")
    assert unused == [USER, {"role": "assistant", "content": "a"}]


def test_stored_reasoning_details_are_brought_back_verbatim() -> None:
    entries = [{"type": "reasoning.encrypted", "data": "x"}]
    payload = {"dialect": "chat_completions", "provider": "acme", "model": "m"}
    stored = ProviderMetadata({**payload, "output": [{"type": "reasoning_details", "entries": entries}]})
    called = [ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}")]
    answered = [ToolResult("1", "f", "r"), ToolResult("2", "f", "r")]
    # a log holds a step's metadata before its calls
    items = [ASK, ReasoningSummary("t"), AssistantMessage("a"), stored, *called, *answered]
    again = messages(*items, *called, *answered, reasoning_replay="reasoning_details")
    assert [message.get("reasoning_details") for message in again] == [None, entries, *[None] * 5]
    items = [ASK, ReasoningSummary("t"), *called, stored, *answered]
    assert messages(*items, reasoning_replay="reasoning_details")[1]["reasoning_details"] == entries
    assert "reasoning_details" not in messages(*items)[1]
    assert "reasoning_details" not in messages(*items, ASK, reasoning_replay="reasoning_details")[1]
    foreign = ProviderMetadata({**stored.payload, "model": "other"})
    items = [ASK, ToolCall("1", "f", "{}"), foreign, ToolResult("1", "f", "r")]
    assert "reasoning_details" not in messages(*items, reasoning_replay="reasoning_details")[1]
    nothing = ProviderMetadata({**payload, "output": ["odd", {"type": "annotations"}]})
    items = [ASK, ToolCall("1", "f", "{}"), nothing, ToolResult("1", "f", "r")]
    assert "reasoning_details" not in messages(*items, reasoning_replay="reasoning_details")[1]


def test_ids_are_rewritten_on_both_sides_where_a_wire_wants_a_form() -> None:
    sent = messages(ToolCall("call_1", "f", "{}"), ToolResult("call_1", "f", "r"), tool_id_length=9)
    id = sent[0]["tool_calls"][0]["id"]
    assert len(id) == 9
    assert sent[1]["tool_call_id"] == id


# -- tools


def test_tools_have_wire_names_and_schemas_of_one_key_order() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": [2, 1]}}}
    other = {"properties": {"a": {"enum": [2, 1]}, "b": {"type": "string"}}, "type": "object"}
    sent = [body(ASK, tools=(tool("my.tool", parameters=value, description="d"),)) for value in (schema, other)]
    assert encode_json(sent[0]) == encode_json(sent[1])
    assert sent[0]["tools"] == [
        {"type": "function", "function": {"name": "my_tool", "description": "d", "parameters": schema}}
    ]
    replayed = body(ToolCall("1", "my.tool", "{}"), ToolCall("2", "old.tool", "{}"), tools=(tool("my.tool"),))
    names = [call["function"]["name"] for call in replayed["messages"][0]["tool_calls"]]
    assert names == ["my_tool", "old_tool"]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice(), "auto"),
        (ToolChoice("any"), "required"),
        (ToolChoice("none"), "none"),
        (ToolChoice("specific", "my.tool"), {"type": "function", "function": {"name": "my_tool"}}),
    ],
)
def test_the_tool_choice_is_sent_with_tools_only(choice: ToolChoice, sent: Any) -> None:
    assert body(ASK, tools=(tool("my.tool"),), tool_choice=choice)["tool_choice"] == sent
    assert "tool_choice" not in body(ASK, tool_choice=choice)
    assert "tools" not in body(ASK, tool_choice=choice)


def test_parallel_calls_are_switched_off_by_flag() -> None:
    runtime = RequestRuntime(parallel_tool_calls=False)
    assert body(ASK, tools=(tool("f"),), runtime=runtime)["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in body(ASK, tools=(tool("f"),))
    assert "parallel_tool_calls" not in body(ASK, runtime=runtime)
    flags = {"include_parallel_tool_calls": False}
    assert "parallel_tool_calls" not in body(ASK, tools=(tool("f"),), runtime=runtime, flags=flags)


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "required": [], "additionalProperties": False}, False),
        ({"type": "object", "properties": {}}, False),
        (
            {"properties": {"a": {"anyOf": [{"type": "object"}]}}, "required": ["a"], "additionalProperties": False},
            False,
        ),
    ],
)
def test_schemas_that_fulfil_the_conditions_are_marked_strict(schema: Any, strict: bool) -> None:
    sent = body(
        ASK,
        tools=(tool("f", parameters=schema),),
        output=OutputRequest(response_format=schema),
        flags={"strict_schemas": True},
    )
    assert ("strict" in sent["tools"][0]["function"]) == strict
    assert ("strict" in sent["response_format"]["json_schema"]) == strict
    assert "strict" not in body(ASK, tools=(tool("f", parameters=schema),))["tools"][0]["function"]


# -- options


@pytest.mark.parametrize(
    ("style", "options", "sent"),
    [
        ("effort", ReasoningOptions(True, "high"), {"reasoning_effort": "high"}),
        ("effort", ReasoningOptions(True, "minimal"), {"reasoning_effort": "low"}),
        ("effort", ReasoningOptions(True, "hidden"), {}),
        ("effort", ReasoningOptions(True), {}),
        ("effort", ReasoningOptions(True, "none"), {}),
        ("effort", ReasoningOptions(False, "high"), {}),
        ("toggle", ReasoningOptions(True, "high"), {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}),
        ("toggle", ReasoningOptions(True), {"thinking": {"type": "enabled"}}),
        ("toggle", ReasoningOptions(False, "none"), {"thinking": {"type": "disabled"}}),
        ("toggle", ReasoningOptions(), {}),
        ("object", ReasoningOptions(True, "high"), {"reasoning": {"effort": "high"}}),
        ("object", ReasoningOptions(True), {"reasoning": {"enabled": True}}),
        ("object", ReasoningOptions(True, "none"), {}),
        ("none", ReasoningOptions(True, "high"), {}),
    ],
)
def test_the_effort_is_written_as_the_profile_says(style: str, options: ReasoningOptions, sent: Any) -> None:
    flags = {"thinking_style": style, "effort_aliases": {"minimal": "low", "hidden": ""}}
    written = body(ASK, reasoning=options, flags=flags)
    names = ("reasoning_effort", "thinking", "reasoning")
    assert {name: written[name] for name in names if name in written} == sent


def test_limits_sampling_tier_and_cache_key_are_sent_by_flag() -> None:
    options = {
        "output": OutputRequest(max_tokens=9, temperature=0.0, top_p=0.5),
        "runtime": RequestRuntime(service_tier="flex", prompt_cache_key="t"),
    }
    sent = body(ASK, **options)
    assert (sent["max_tokens"], sent["temperature"], sent["top_p"], sent["service_tier"]) == (9, 0.0, 0.5, "flex")
    assert "prompt_cache_key" not in sent
    flags = {
        "max_tokens_field": "max_completion_tokens",
        "sampling": False,
        "service_tier": False,
        "prompt_cache_key": True,
    }
    sent = body(ASK, **options, flags=flags)
    assert sent["max_completion_tokens"] == 9
    assert sent["prompt_cache_key"] == "t"
    assert not sent.keys() & {"max_tokens", "temperature", "top_p", "service_tier"}


def test_structured_output_takes_the_profiles_form_or_is_refused() -> None:
    options = {"output": OutputRequest(response_format={"type": "object"})}
    named = {"name": "output", "schema": {"type": "object"}}
    assert body(ASK, **options)["response_format"] == {"type": "json_schema", "json_schema": named}
    flags = {"structured_output": "json_object"}
    assert body(ASK, **options, flags=flags)["response_format"] == {"type": "json_object"}
    with pytest.raises(ProviderFailure) as caught:
        body(ASK, **options, flags={"structured_output": "none"})
    assert (caught.value.kind.name, caught.value.cause) == ("INVALID_REQUEST", "unsupported")


def test_hosted_search_is_refused() -> None:
    with pytest.raises(ProviderFailure) as caught:
        body(ASK, runtime=RequestRuntime(hosted_web_search="live"))
    assert caught.value.cause == "unsupported"


def test_a_models_row_takes_away_what_the_model_lacks() -> None:
    def row(*supports: str, style: str = "effort") -> ModelDescriptor:
        return ModelDescriptor(provider="acme", id="m", supports=frozenset(supports), reasoning_style=style)

    profile = Profile()
    assert profile.for_model(None) is profile
    assert profile.for_model(row()) is profile
    assert profile.for_model(row("images", "sampling", "structured", "parallel")) == profile
    poor = profile.for_model(row("tools", style="none"))
    assert (poor.vision, poor.sampling, poor.thinking_style) == (False, False, "none")
    assert (poor.structured_output, poor.include_parallel_tool_calls) == ("none", False)


# -- bytes


def test_two_rounds_of_a_thread_share_their_bytes() -> None:
    instructions, tools = Instructions(system="s"), (tool("f"),)
    first = [ASK, ToolCall("1", "f", "{}"), ToolResult("1", "f", "r")]
    rounds = [first, [*first, AssistantMessage("a"), UserMessage("b")]]
    one, two = (encode_json(body(*items, instructions=instructions, tools=tools)) for items in rounds)
    end = one.index(b'],"stream"')
    assert two.startswith(one[:end])


def test_json_is_compact_unescaped_and_whole() -> None:
    assert (
        encode_json({"b": "ä\ud800", "a": [1, MappingProxyType({"c": None})]})
        == '{"b":"ä\ufffd","a":[1,{"c":null}]}'.encode()
    )
    for value in (float("nan"), float("inf"), {1, 2}):
        with pytest.raises(ProviderFailure) as caught:
            encode_json({"a": value})
        assert caught.value.kind.name == "INVALID_REQUEST"


def test_a_body_can_leave_parameters_out() -> None:
    sent = encode(request(ASK), Profile(), target=TARGET, without={"stream_options"})
    assert "stream_options" not in orjson.loads(encode_json(sent))


@pytest.mark.parametrize(
    ("message", "parameter", "named"),
    [
        ("Unsupported parameter: 'temperature'", None, ["temperature"]),
        ("temperature is odd", None, []),
        ("Unrecognized request argument supplied: stream_options", None, ["stream_options"]),
        ("no", "stream_options.include_usage", ["stream_options"]),
        ("Unsupported: `top_p`", None, []),
    ],
)
def test_the_parameters_that_an_error_names_are_found(message: str, parameter: str | None, named: list[str]) -> None:
    assert named_parameters(message, parameter, ["model", "stream_options", "temperature"]) == named
