"""Requests as bodies of Gemini calls."""

from collections.abc import Mapping
from typing import Any

import pytest

from roder_trio.errors import ProviderFailure
from roder_trio.providers._dialect import encode_json
from roder_trio.providers.gemini import Profile
from roder_trio.providers.gemini.encode import encode
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
from tests.chat import tool
from tests.gemini import TARGET, call, request

ASK = UserMessage("ask")
PICTURE = Image("data:image/png;base64,AA==")
SHOWN = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
DUMMY = "skip_thought_signature_validator"
USER = {"role": "user", "parts": [{"text": "ask"}]}


def body(*items: Any, flags: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return encode(request(*items, **options), Profile(**(flags or {})), target=TARGET)


def contents(*items: Any, **flags: Any) -> list[Any]:
    found: list[Any] = body(*items, flags=flags)["contents"]
    return found


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def user(*parts: Any) -> dict[str, Any]:
    return {**model(*parts), "role": "user"}


def answer(name: str, result: str, id: str | None = None, key: str = "result") -> dict[str, Any]:
    return {"functionResponse": {**({} if id is None else {"id": id}), "name": name, "response": {key: result}}}


def replay(*output: Any, model: str = "m") -> ProviderMetadata:
    return ProviderMetadata({"dialect": "gemini", "provider": "acme", "model": model, "output": list(output)})


def test_a_bare_request_is_a_short_body() -> None:
    assert body(ASK) == {"contents": [USER]}


def test_instructions_stand_in_order_with_the_context_last() -> None:
    sent = body(ASK, instructions=Instructions(system="s", developer="d", developer_context="c"))
    assert sent["systemInstruction"] == {"parts": [{"text": text} for text in "sdc"]}
    assert list(sent) == ["systemInstruction", "contents"]
    assert "systemInstruction" not in body(ASK, instructions=Instructions(system=""))


# -- contents


def test_calls_with_the_text_around_them_are_one_content_and_their_results_are_the_next() -> None:
    items = [
        ASK,
        AssistantMessage("let me"),
        ToolCall("1", "f", '{"a":1}'),
        AssistantMessage("and"),
        ToolCall("2", "g", ""),
        ToolResult("2", "g", "no", is_error=True),
        ToolResult("1", "other", "one"),
        UserMessage("more"),
        AssistantMessage(" \n"),
        AssistantMessage("done"),
    ]
    assert contents(*items) == [
        USER,
        model("let me", call("f", {"a": 1}, "1", thoughtSignature=DUMMY), "and", call("g", {}, "2")),
        user(answer("f", "one", "1"), answer("g", "no", "2", "error"), "more"),
        model("done"),
    ]


def test_the_first_call_of_each_step_from_elsewhere_has_the_profiles_dummy_signature() -> None:
    steps = [
        part
        for step in "ab"
        for part in (
            ToolCall(f"{step}1", "f", "{}"),
            ToolCall(f"{step}2", "f", "{}"),
            ToolResult(f"{step}1", "f", "r"),
            ToolResult(f"{step}2", "f", "r"),
        )
    ]
    sent = contents(ASK, *steps)
    assert [[part.get("thoughtSignature") for part in content["parts"]] for content in sent[1::2]] == [
        [DUMMY, None]
    ] * 2
    assert all("thoughtSignature" not in part for part in contents(ASK, *steps, dummy_signature=None)[1]["parts"])


def test_a_call_without_a_result_and_odd_arguments_are_sent_well_formed() -> None:
    assert contents(ASK, ToolCall("1", "f", '{"pa')) == [
        USER,
        model(call("f", {"_raw": '{"pa'}, "1", thoughtSignature=DUMMY)),
        user(answer("f", "no result was recorded for this call", "1", "error")),
    ]


def test_stored_parts_go_back_verbatim_in_order_and_their_calls_once() -> None:
    parts = [
        {"text": "why", "thought": True},
        {"text": "let me", "thoughtSignature": "T"},
        call("f", {"a": 1}, thoughtSignature="S"),
        call("f", {"a": 1}),
        call("g", {}, "7"),
        {"text": "", "thoughtSignature": "U"},
    ]
    items = [
        ASK,
        ReasoningSummary("why"),
        AssistantMessage("let me"),
        replay(*parts),
        ToolCall("x", "f", '{"a": 1}'),
        ToolCall("y", "f", '{"a":1}'),
        ToolCall("7", "g", "{}"),
        ToolResult("y", "f", "two"),
        ToolResult("x", "f", "one"),
        ToolResult("7", "g", "three"),
    ]
    assert contents(*items) == [
        USER,
        model(*parts),
        user(answer("f", "one"), answer("f", "two"), answer("g", "three", "7")),
    ]


def test_an_id_used_in_two_turns_is_sent_as_two() -> None:
    step = [replay(call("f", {}, "1")), ToolCall("1", "f", "{}"), ToolResult("1", "f", "r")]
    sent = contents(ASK, *step, ASK, *step)
    assert sent[1:] == [
        model(call("f", {}, "1")),
        user(answer("f", "r", "1"), "ask"),
        model(call("f", {}, "1_2")),
        user(answer("f", "r", "1_2")),
    ]


def test_history_of_another_model_goes_as_canonical_items_without_signatures() -> None:
    stored = replay(call("f", {}, "1", thoughtSignature="S"), model="other")
    items = [ASK, ReasoningSummary("why"), AssistantMessage("hm"), stored, ToolCall("1", "f", "{}")]
    sent = contents(*items, ToolResult("1", "f", "r"))
    assert sent[1] == model("hm", call("f", {}, "1", thoughtSignature=DUMMY))


def test_what_lost_its_bytes_or_is_of_another_dialect_is_not_sent_but_a_call_always_is() -> None:
    gone = {"inlineData": {"mimeType": "image/png"}}
    nested = {"toolResponse": {"id": "h", "parts": [gone]}}
    kept = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
    odd = call("f", {"inlineData": {}}, "1")
    stored = replay(gone, nested, kept, "odd", {"type": "text", "text": "no"}, odd)
    sent = contents(ASK, stored, ToolCall("1", "f", '{"inlineData":{}}'), ToolResult("1", "f", "r"))
    assert sent[1:] == [model(kept, odd), user(answer("f", "r", "1"))]


def test_a_stored_call_without_a_name_is_answered_without_one() -> None:
    sent = contents(ASK, replay({"functionCall": {"id": "1"}}), ToolCall("1", "", "{}"), ToolResult("1", None, "r"))
    assert sent[1:] == [model({"functionCall": {"id": "1"}}), user(answer("", "r", "1"))]


def test_an_interrupted_text_is_noted_before_the_next_user_text() -> None:
    assert contents(ASK, AssistantMessage("half", interrupted=True), UserMessage("steer")) == [
        USER,
        model("half"),
        user("[The message above was cut off before it was finished.]", "steer"),
    ]


def test_a_summary_is_a_user_text_and_nothing_before_it_is_sent() -> None:
    assert contents(ASK, AssistantMessage("old"), ContextCompaction("sum"), UserMessage("new")) == [
        user("Context summary:\nsum", "new")
    ]


def test_an_opaque_boundary_of_another_target_is_left_out_and_one_of_nobody_sends_nothing_foreign() -> None:
    item = {"type": "compaction", "encrypted_content": "x"}
    foreign = ProviderMetadata({"dialect": "anthropic", "provider": "a", "base_url": "b", "output": [item]})
    assert contents(ASK, AssistantMessage("old"), foreign, UserMessage("new"))[0] == USER
    nobodys = ProviderMetadata({"output": [item]})
    assert contents(AssistantMessage("old"), nobodys, UserMessage("new")) == [user("new")]


def test_images_are_inline_data_or_where_they_are() -> None:
    urls = ["data:image/svg+xml;charset=utf-8,%3Csvg/%3E", "data:,x", "https://x.example/a.JPG?b=.png", "gs://b/c"]
    assert contents(UserMessage("see", (PICTURE, *map(Image, urls)))) == [
        user(
            "see",
            SHOWN,
            {"inlineData": {"mimeType": "image/svg+xml", "data": "PHN2Zy8+"}},
            {"inlineData": {"mimeType": "text/plain", "data": "eA=="}},
            {"fileData": {"mimeType": "image/jpeg", "fileUri": urls[2]}},
            {"fileData": {"fileUri": urls[3]}},
        )
    ]
    assert contents(UserMessage("", (PICTURE,))) == [user(SHOWN)]
    note = "[1 image was left out: this model takes no images.]"
    assert contents(UserMessage("see", (PICTURE,)), vision=False) == [user("see", note)]
    assert contents(UserMessage("")) == [user("")]


def test_images_of_results_stand_behind_all_results_of_their_group() -> None:
    items = [
        ToolCall("1", "f", "{}"),
        ToolCall("2", "f", "{}"),
        ToolResult("1", "f", "one", images=(PICTURE,)),
        ToolResult("2", "f", "", images=(PICTURE, PICTURE)),
    ]
    results = [
        answer("f", "one\n[1 image of this result: see below.]", "1"),
        answer("f", "[2 images of this result: see below.]", "2"),
    ]
    shown = user(*results, "[Images of the tool results above:]", SHOWN, SHOWN, SHOWN)
    assert contents(ASK, *items)[-1] == shown
    assert contents(ASK, *items, AssistantMessage("x"))[-2] == shown
    assert "left out" in str(contents(ASK, *items, vision=False)[-1])
    assert "inlineData" not in str(contents(ASK, *items, vision=False))


# -- tools


def test_tools_are_one_list_of_functions_under_their_wire_names() -> None:
    tools = (tool("my.tool", description="d", parameters={"type": "object", "$schema": "x"}), tool("my_tool"))
    sent = body(ASK, ToolCall("1", "old.tool", "{}"), ToolCall("2", "my_tool", "{}"), tools=tools)
    assert sent["tools"] == [
        {
            "functionDeclarations": [
                {"name": "my_tool", "description": "d", "parameters": {"type": "object"}},
                {"name": "my_tool_2", "description": "", "parameters": {"type": "object"}},
            ]
        }
    ]
    assert [part["functionCall"]["name"] for part in sent["contents"][1]["parts"]] == ["old_tool", "my_tool_2"]
    assert [part["functionResponse"]["name"] for part in sent["contents"][2]["parts"]] == ["old_tool", "my_tool_2"]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice(), {"mode": "AUTO"}),
        (ToolChoice("any"), {"mode": "ANY"}),
        (ToolChoice("none"), {"mode": "NONE"}),
        (ToolChoice("specific", "my.tool"), {"mode": "ANY", "allowedFunctionNames": ["my_tool"]}),
    ],
)
def test_the_tool_choice_is_sent_with_tools_only(choice: ToolChoice, sent: Any) -> None:
    written = body(ASK, tools=(tool("my.tool"),), tool_choice=choice)
    assert written["toolConfig"] == {"functionCallingConfig": sent}
    assert "toolConfig" not in body(ASK, tool_choice=choice)


def test_live_search_is_a_tool_of_its_own_and_a_kept_one_is_refused() -> None:
    live = RequestRuntime(hosted_web_search="live")
    assert body(ASK, runtime=live) == {"tools": [{"googleSearch": {}}], "contents": [USER]}
    both = body(ASK, runtime=live, tools=(tool("f"),))
    assert [list(entry) for entry in both["tools"]] == [["functionDeclarations"], ["googleSearch"]]
    assert both["toolConfig"]["includeServerSideToolInvocations"] is True
    shown = body(ASK, runtime=live, flags={"show_hosted_calls": True})
    assert shown["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert body(ASK, flags={"show_hosted_calls": True}) == {"contents": [USER]}
    with pytest.raises(ProviderFailure) as caught:
        body(ASK, runtime=RequestRuntime(hosted_web_search="cached"))
    assert (caught.value.kind.name, caught.value.cause) == ("INVALID_REQUEST", "unsupported")


# -- options


@pytest.mark.parametrize(
    ("style", "options", "sent"),
    [
        ("budget", ReasoningOptions(True, "high"), {"thinkingBudget": 24576, "includeThoughts": True}),
        ("budget", ReasoningOptions(True, "odd"), {"includeThoughts": True}),
        ("budget", ReasoningOptions(True), {"includeThoughts": True}),
        ("level", ReasoningOptions(True, "high"), {"thinkingLevel": "high", "includeThoughts": True}),
        ("level", ReasoningOptions(True, "most"), {"thinkingLevel": "high", "includeThoughts": True}),
        ("level", ReasoningOptions(True, "hidden"), {"includeThoughts": True}),
        ("level", ReasoningOptions(True), {"includeThoughts": True}),
        ("level", ReasoningOptions(True, "none"), None),
        ("level", ReasoningOptions(False, "high"), None),
        ("none", ReasoningOptions(True, "high"), None),
    ],
)
def test_thinking_is_asked_for_as_the_profile_says(style: str, options: ReasoningOptions, sent: Any) -> None:
    flags = {"thinking_style": style, "effort_aliases": {"most": "high", "hidden": ""}}
    assert body(ASK, reasoning=options, flags=flags).get("generationConfig", {}).get("thinkingConfig") == sent


def test_limits_and_sampling_are_sent_by_flag() -> None:
    output = OutputRequest(max_tokens=9, temperature=0.0, top_p=0.5)
    assert body(ASK, output=output)["generationConfig"] == {"maxOutputTokens": 9, "temperature": 0.0, "topP": 0.5}
    assert body(ASK, output=output, flags={"sampling": False})["generationConfig"] == {"maxOutputTokens": 9}


def test_structured_output_is_json_of_a_translated_schema_or_refused() -> None:
    output = OutputRequest(response_format={"type": "object", "additionalProperties": False})
    sent = body(ASK, output=output)["generationConfig"]
    assert sent == {"responseMimeType": "application/json", "responseSchema": {"type": "object"}}
    with pytest.raises(ProviderFailure) as caught:
        body(ASK, output=output, flags={"structured_output": False})
    assert caught.value.cause == "unsupported"


def test_a_models_row_takes_away_what_the_model_lacks_and_says_how_it_thinks() -> None:
    def row(*supports: str, style: str = "none") -> ModelDescriptor:
        return ModelDescriptor(provider="acme", id="m", supports=frozenset(supports), reasoning_style=style)

    profile = Profile()
    assert profile.for_model(None) is profile
    assert profile.for_model(row()) is profile
    assert profile.for_model(row("images", "sampling", "structured", style="budget")) == profile
    assert profile.for_model(row("tools", style="level")).thinking_style == "level"
    assert profile.for_model(row("tools", style="effort")).thinking_style == "budget"
    poor = profile.for_model(row("tools"))
    assert (poor.vision, poor.sampling, poor.structured, poor.thinking_style) == (False, False, False, "none")


# -- bytes


def test_two_rounds_of_a_thread_share_their_bytes() -> None:
    options = {
        "instructions": Instructions(system="s", developer="d"),
        "tools": (tool("f", parameters={"type": "object", "properties": {"b": {}, "a": {}}}),),
        "output": OutputRequest(max_tokens=5),
    }
    first = [ASK, replay(call("f", {}, thoughtSignature="S")), ToolCall("1", "f", "{}"), ToolResult("1", "f", "r")]
    rounds = [first, [*first, AssistantMessage("a"), UserMessage("b")]]
    one, two = (encode_json(body(*items, **options)) for items in rounds)
    assert two.startswith(one.removesuffix(b"]}"))
