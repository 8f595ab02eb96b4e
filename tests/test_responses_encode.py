"""Requests as bodies of Responses calls."""

from typing import Any

import attrs
import pytest

from roder_trio.errors import ProviderFailure
from roder_trio.logic.pairing import CUT_OFF, NO_RESULT
from roder_trio.providers._dialect import encode_json
from roder_trio.providers.openai_responses import Profile
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
    ErrorNote,
    Image,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    UserMessage,
)
from tests.chat import tool
from tests.responses import (
    answered,
    asked,
    body,
    given,
    said,
    sent,
)

ASK = UserMessage("ask")
PICTURE = Image("data:image/png;base64,AA")
PATCH = tool("patch", freeform_field="text", description="d")
ON = ReasoningOptions(True, "high")


# -- texts and images


def test_a_bare_request_is_a_short_body() -> None:
    assert list(body(ASK).items()) == [("model", "m"), ("store", False), ("stream", True), ("input", [given("ask")])]


def test_system_texts_are_instructions_and_the_developers_part_has_a_label() -> None:
    texts = Instructions(system="s", developer="d")
    assert body(ASK, instructions=texts)["instructions"] == "s\n\nDeveloper instructions:\nd"
    assert body(ASK, instructions=Instructions(developer="d"))["instructions"] == "Developer instructions:\nd"
    assert "instructions" not in body(ASK, instructions=Instructions(system="", developer=""))
    plain = body(ASK, instructions=texts, flags={"instructions": False})
    assert "instructions" not in plain
    assert plain["input"] == [given("s", "system"), given("Developer instructions:\nd", "system"), given("ask")]


def test_the_developers_context_stands_directly_before_the_last_user_message() -> None:
    texts = Instructions(developer_context="c")
    items = [UserMessage("first"), AssistantMessage("a"), ASK, ToolCall("1", "f", "{}"), ToolResult("1", "f", "r")]
    found = sent(*items, instructions=texts)
    assert found[:4] == [given("first"), said("a"), given("c", "developer"), given("ask")]
    assert sent(ASK, instructions=texts, flags={"context_role": "system"}) == [given("c", "system"), given("ask")]
    assert sent(AssistantMessage("a"), instructions=texts) == [said("a"), given("c", "developer")]
    cut = [ASK, AssistantMessage("so", interrupted=True)]
    assert sent(*cut, instructions=texts) == [given("c", "developer"), given("ask"), said("so"), given(CUT_OFF)]


def test_an_empty_message_has_one_empty_text_and_images_stand_behind_the_text() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    assert sent(UserMessage("")) == [given("")]
    assert sent(UserMessage("see", (PICTURE,)))[0]["content"] == [{"type": "input_text", "text": "see"}, picture]
    assert sent(UserMessage("", (PICTURE,)))[0]["content"] == [picture]


def test_a_model_without_vision_gets_a_note_for_images() -> None:
    flags = {"vision": False}
    note = "[1 image was left out: this model takes no images.]"
    assert sent(UserMessage("see", (PICTURE,)), flags=flags) == [given(f"see\n{note}")]
    assert sent(UserMessage("", (PICTURE,)), flags=flags) == [given(note)]
    result = ToolResult("1", "f", "r", images=(PICTURE,))
    text = [{"type": "input_text", "text": f"r\n{note}"}]
    assert sent(ToolCall("1", "f", "{}"), result, flags=flags)[1] == answered("1", text)


def test_images_of_a_result_stand_in_its_output() -> None:
    result = ToolResult("1", "f", "r", images=(PICTURE, Image("https://x.example/y.png")))
    assert sent(ToolCall("1", "f", "{}"), result)[1]["output"] == [
        {"type": "input_text", "text": "r"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA"},
        {"type": "input_image", "image_url": "https://x.example/y.png"},
    ]


def test_what_the_assistant_said_has_its_phase_only_where_the_profile_knows_phases() -> None:
    items = [AssistantMessage("a", phase="commentary"), AssistantMessage("b", phase="odd"), AssistantMessage(" \n")]
    assert sent(*items, flags={"phases": True}) == [said("a", phase="commentary"), said("b")]
    assert sent(*items) == [said("a"), said("b")]


def test_reasoning_alone_and_error_notes_are_not_sent() -> None:
    assert sent(ASK, ReasoningSummary("why"), ErrorNote("it broke"), AssistantMessage("a")) == [given("ask"), said("a")]


def test_a_cut_off_text_is_followed_by_the_note_and_then_the_steer() -> None:
    items = [ASK, AssistantMessage("so f", interrupted=True), UserMessage("steer")]
    assert sent(*items) == [given("ask"), said("so f"), given(CUT_OFF), given("steer")]


# -- calls


def test_calls_and_results_have_no_ids_of_items_and_wire_names() -> None:
    items = [ASK, ToolCall("1", "my.tool", ""), ToolCall("2", "g", '{"pa'), ToolResult("2", "g", "two")]
    assert sent(*items, tools=(tool("my.tool"),)) == [
        given("ask"),
        asked("1", "my_tool", "{}"),
        asked("2", "g", '{"_raw":"{\\"pa"}'),
        answered("1", NO_RESULT),
        answered("2", "two"),
    ]


@pytest.mark.parametrize(
    ("arguments", "raw"),
    [
        ('{"input":"*** patch"}', "*** patch"),
        ('{"text":"*** patch"}', "*** patch"),
        ("*** patch", "*** patch"),
        ("", ""),
        ('{"odd":1}', '{"odd":1}'),
        ('{"input":1}', '{"input":1}'),
    ],
)
def test_a_call_of_a_freeform_tool_is_a_custom_one_and_so_is_its_output(arguments: str, raw: str) -> None:
    items = [ToolCall("1", "patch", arguments), ToolResult("1", "patch", "r")]
    assert sent(*items, tools=(PATCH,)) == [
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": raw},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "r"},
    ]
    assert sent(*items)[1]["type"] == "function_call_output"


def test_a_freeform_tool_is_a_function_where_the_profile_has_no_other() -> None:
    flags = {"freeform": False}
    assert body(ASK, tools=(PATCH,), flags=flags)["tools"][0]["type"] == "function"
    assert sent(ToolCall("1", "patch", '{"text":"x"}'), tools=(PATCH,), flags=flags)[0] == asked(
        "1", "patch", '{"text":"x"}'
    )


def test_tools_are_offered_in_one_key_order() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": [2, 1]}}}
    other = {"properties": {"a": {"enum": [2, 1]}, "b": {"type": "string"}}, "type": "object"}
    first, second = (body(ASK, tools=(tool("my.tool", parameters=part), PATCH)) for part in (schema, other))
    assert encode_json(first) == encode_json(second)
    assert first["tools"] == [
        {"type": "function", "name": "my_tool", "description": "", "parameters": schema, "strict": False},
        {"type": "custom", "name": "patch", "description": "d"},
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice(), "auto"),
        (ToolChoice("any"), "required"),
        (ToolChoice("none"), "none"),
        (ToolChoice("specific", "my.tool"), {"type": "function", "name": "my_tool"}),
        (ToolChoice("specific", "patch"), {"type": "custom", "name": "patch"}),
        (ToolChoice("specific", "gone"), {"type": "function", "name": "gone"}),
    ],
)
def test_the_tool_choice_is_sent_with_tools_only(choice: ToolChoice, expected: Any) -> None:
    assert body(ASK, tools=(tool("my.tool"), PATCH), tool_choice=choice)["tool_choice"] == expected
    assert body(ASK, tool_choice=choice).keys() == {"model", "store", "stream", "input"}


def test_calls_side_by_side_are_spoken_of_with_functions_only() -> None:
    off = RequestRuntime(parallel_tool_calls=False)
    assert body(ASK, tools=(tool("f"),))["parallel_tool_calls"] is True
    assert body(ASK, tools=(tool("f"),), runtime=off)["parallel_tool_calls"] is False
    for options in ({"tools": (PATCH,)}, {}, {"tools": (tool("f"),), "flags": {"include_parallel_tool_calls": False}}):
        assert "parallel_tool_calls" not in body(ASK, runtime=off, **options)


def test_the_servers_own_search_is_a_tool() -> None:
    live, cached = (RequestRuntime(hosted_web_search=mode) for mode in ("live", "cached"))
    found = body(ASK, tools=(tool("f"),), runtime=live)["tools"]
    assert [part["type"] for part in found] == ["function", "web_search"]
    assert found[1] == {"type": "web_search", "external_web_access": True}
    assert body(ASK, runtime=cached)["tools"] == [{"type": "web_search", "external_web_access": False}]
    assert body(ASK, runtime=live, flags={"web_access": False})["tools"] == [{"type": "web_search"}]
    with pytest.raises(ProviderFailure) as refused:
        body(ASK, runtime=live, flags={"web_search": False})
    assert (refused.value.kind.name, refused.value.cause) == ("INVALID_REQUEST", "unsupported")


# -- options

CLOSED = {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}


def test_reasoning_is_asked_for_and_asked_back() -> None:
    found = body(ASK, reasoning=ON)
    assert found["reasoning"] == {"effort": "high", "summary": "auto"}
    assert found["include"] == ["reasoning.encrypted_content"]
    aliases = {"effort_aliases": {"high": "max", "low": ""}}
    assert body(ASK, reasoning=ON, flags=aliases)["reasoning"]["effort"] == "max"
    assert body(ASK, reasoning=ReasoningOptions(True, "low"), flags=aliases)["reasoning"] == {"summary": "auto"}
    assert "include" not in body(ASK, reasoning=ON, flags={"encrypted_reasoning": False})
    for options in (
        {},
        {"reasoning": ReasoningOptions(True, "none")},
        {"reasoning": ON, "flags": {"reasoning": False}},
    ):
        assert not {"reasoning", "include"} & body(ASK, **options).keys()
    assert "reasoning" not in body(ASK, flags={"reasons_unasked": True})
    assert body(ASK, flags={"reasons_unasked": True})["include"] == ["reasoning.encrypted_content"]


def test_sampling_is_left_out_while_reasoning_is_on_or_the_model_takes_none() -> None:
    output = OutputRequest(max_tokens=9, temperature=0.5, top_p=0.9)
    found = body(ASK, output=output)
    assert (found["max_output_tokens"], found["temperature"], found["top_p"]) == (9, 0.5, 0.9)
    for options in ({"reasoning": ON}, {"flags": {"sampling": False}}):
        assert not {"temperature", "top_p"} & body(ASK, output=output, **options).keys()
    assert "top_p" not in body(ASK, output=OutputRequest(temperature=1.0))


def test_an_answer_is_held_to_a_schema_as_the_profile_can() -> None:
    output = OutputRequest(response_format=CLOSED)
    found = body(ASK, output=output)["text"]["format"]
    assert found == {"type": "json_schema", "name": "output", "schema": CLOSED, "strict": False}
    assert body(ASK, output=output, flags={"strict_schemas": True})["text"]["format"]["strict"] is True
    strict_tool = body(ASK, tools=(tool("f", parameters=CLOSED),), flags={"strict_schemas": True})["tools"][0]
    assert strict_tool["strict"] is True
    assert body(ASK, output=output, flags={"structured_output": "json_object"})["text"]["format"] == {
        "type": "json_object"
    }
    with pytest.raises(ProviderFailure, match="structured output"):
        body(ASK, output=output, flags={"structured_output": "none"})


def test_cache_tier_and_compaction_are_sent_where_the_profile_allows() -> None:
    runtime = RequestRuntime(prompt_cache_key="t", service_tier="flex", auto_compact_token_limit=1_000)
    found = body(ASK, runtime=runtime, flags={"cache_options": {"prompt_cache_retention": "24h"}})
    assert (found["prompt_cache_key"], found["prompt_cache_retention"], found["service_tier"]) == ("t", "24h", "flex")
    assert found["context_management"] == [{"type": "compaction", "compact_threshold": 1_000}]
    off = {"prompt_cache_key": False, "service_tier": False, "in_band_compaction": False}
    bare = body(ASK).keys()
    assert body(ASK, runtime=runtime, flags=off).keys() == bare
    assert body(ASK, runtime=RequestRuntime(auto_compact_token_limit=0)).keys() == bare


def test_a_models_row_says_what_it_takes() -> None:
    row = ModelDescriptor(provider="p", id="m", reasoning_style="none", supports=frozenset({"phases"}))
    able = attrs.evolve(
        row,
        reasoning_style="effort",
        supports=frozenset(
            ("images", "structured", "parallel", "freeform", "prompt_cache", "compaction", "phases", "sampling")
        ),
    )
    profile = Profile()
    assert profile.for_model(None) == profile.for_model(attrs.evolve(row, supports=frozenset())) == profile
    assert profile.for_model(able) == Profile(phases=True, reasons_unasked=True)
    assert profile.for_model(row) == Profile(
        phases=True,
        vision=False,
        sampling=False,
        reasoning=False,
        structured_output="none",
        include_parallel_tool_calls=False,
        freeform=False,
        prompt_cache_key=False,
        in_band_compaction=False,
    )
    assert (profile.structured, profile.for_model(row).structured) == (True, False)
