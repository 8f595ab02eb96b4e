"""Requests as bodies of Messages calls: instructions, breakpoints, tools and options."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.errors import ProviderFailure
from roder_trio.providers._dialect import encode_json
from roder_trio.providers.anthropic import Profile
from roder_trio.providers.anthropic.encode import betas
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
    Image,
    ToolCall,
    ToolResult,
    UserMessage,
)
from tests.anthropic_support import THOUGHT, body, messages, result, said, stored, used, user
from tests.chat import tool

ASK = UserMessage("ask")
PICTURE = Image("data:image/png;base64,AA")
BYTES = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
MARK = {"cache_control": {"type": "ephemeral"}}
MARKED = {"prompt_cache": True}
CUT_OFF = "[The message above was cut off before it was finished.]"


def test_a_bare_request_is_a_short_body() -> None:
    assert list(body(ASK).items()) == [
        ("model", "m"),
        ("max_tokens", 32000),
        ("stream", True),
        ("messages", [user("ask")]),
    ]


# -- instructions and breakpoints


def test_the_last_stable_system_block_holds_the_breakpoint_and_what_changes_stands_behind_it() -> None:
    told = Instructions(system="s", developer="d", developer_context="c")
    sent = body(ASK, instructions=told, tools=(tool("f"),), flags=MARKED)
    assert sent["system"] == [said("s"), said("d", **MARK), said("c")]
    assert sent["cache_control"] == MARK["cache_control"]
    assert "cache_control" not in sent["tools"][0]
    assert list(sent).index("system") < list(sent).index("messages")
    assert body(ASK, instructions=told)["system"] == [said("s"), said("d"), said("c")]
    assert "system" not in body(ASK, instructions=Instructions(system=" ", developer=""))


def test_without_a_stable_text_the_last_tool_holds_the_breakpoint() -> None:
    told = Instructions(developer_context="c")
    sent = body(ASK, instructions=told, tools=(tool("f"), tool("g")), flags={**MARKED, "cache_ttl": "1h"})
    mark = {"type": "ephemeral", "ttl": "1h"}
    assert [part.get("cache_control") for part in sent["tools"]] == [None, mark]
    assert (sent["system"], sent["cache_control"]) == ([said("c")], mark)


def test_a_model_that_takes_them_gets_the_context_as_a_last_system_message() -> None:
    told = Instructions(system="s", developer_context="c")
    flags = {**MARKED, "mid_system": True}
    sent = body(UserMessage("see", (PICTURE,)), instructions=told, flags=flags)
    assert sent["system"] == [said("s", **MARK)]
    assert sent["messages"] == [user("see", {**BYTES, **MARK}), {"role": "system", "content": [said("c")]}]
    assert "cache_control" not in sent
    answered = [ToolCall("1", "f", "{}"), ToolResult("1", "f", "r")]
    sent = body(ASK, *answered, instructions=Instructions(developer_context="c"), flags=flags)
    assert sent["messages"][-2:] == [user(result("1", "r", **MARK)), {"role": "system", "content": [said("c")]}]
    assert "system" not in sent


@pytest.mark.parametrize(
    ("items", "context", "flags"),
    [
        ([ASK, AssistantMessage("so")], "c", {"prompt_cache": True, "mid_system": True}),
        ([ASK], "c", {"prompt_cache": False, "mid_system": True}),
        ([ASK], "c", {"prompt_cache": True, "mid_system": False}),
        ([UserMessage("")], "c", {"prompt_cache": True, "mid_system": True}),
        ([ASK], " ", {"prompt_cache": True, "mid_system": True}),
    ],
)
def test_otherwise_the_context_is_one_more_system_block(items: list[Any], context: str, flags: dict[str, Any]) -> None:
    sent = body(*items, instructions=Instructions(system="s", developer_context=context), flags=flags)
    assert [block["text"] for block in sent["system"]] == ["s", "c"][: 2 if context.strip() else 1]
    assert ("cache_control" in sent) == flags["prompt_cache"]
    assert all(message["role"] != "system" for message in sent["messages"])


def breakpoints(value: Any) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(map(breakpoints, value.values()))
    return sum(map(breakpoints, value)) if isinstance(value, list) else 0


@given(st.booleans(), st.sampled_from([None, "s"]), st.sampled_from([None, "d"]), st.sampled_from([None, "c"]))
@settings(max_examples=40, deadline=None)
def test_there_are_never_more_than_four_breakpoints(mid: bool, system: Any, developer: Any, context: Any) -> None:
    told = Instructions(system=system, developer=developer, developer_context=context)
    items = [ASK, ToolCall("1", "f", "{}"), ToolResult("1", "f", "r"), AssistantMessage("a"), ASK]
    sent = body(*items, instructions=told, tools=(tool("f"),), flags={**MARKED, "mid_system": mid})
    assert 1 <= breakpoints(sent) <= 4
    assert breakpoints(body(*items, instructions=told, tools=(tool("f"),))) == 0


# -- tools


def test_tools_have_wire_names_and_schemas_of_one_key_order() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": [2, 1]}}}
    other = {"properties": {"a": {"enum": [2, 1]}, "b": {"type": "string"}}, "type": "object"}
    long = "x" * 130
    sent = [body(ASK, tools=(tool("my.tool", parameters=s, description="d"), tool(long))) for s in (schema, other)]
    assert encode_json(sent[0]) == encode_json(sent[1])
    assert sent[0]["tools"] == [
        {"name": "my_tool", "description": "d", "input_schema": schema},
        {"name": "x" * 128, "input_schema": {"type": "object"}},
    ]
    replayed = messages(ToolCall("1", "old.tool", "{}"))
    assert replayed[0]["content"][0]["name"] == "old_tool"


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice(), {"type": "auto"}),
        (ToolChoice("any"), {"type": "any"}),
        (ToolChoice("none"), {"type": "none"}),
        (ToolChoice("specific", "my.tool"), {"type": "tool", "name": "my_tool"}),
    ],
)
def test_the_tool_choice_is_sent_with_tools_only(choice: ToolChoice, sent: Any) -> None:
    tools = (tool("my.tool"),)
    assert body(ASK, tools=tools, tool_choice=choice)["tool_choice"] == sent
    assert not body(ASK, tool_choice=choice).keys() & {"tools", "tool_choice"}
    one = body(ASK, tools=tools, tool_choice=choice, runtime=RequestRuntime(parallel_tool_calls=False))["tool_choice"]
    assert one == (sent if choice.mode == "none" else {**sent, "disable_parallel_tool_use": True})


@pytest.mark.parametrize("choice", [ToolChoice("any"), ToolChoice("specific", "f")])
def test_no_call_is_forced_while_thinking_has_a_budget_unless_the_profile_says_so(choice: ToolChoice) -> None:
    def mode(**flags: Any) -> Any:
        options = {"tools": (tool("f"),), "tool_choice": choice, "reasoning": ReasoningOptions(True, "low")}
        return body(ASK, **options, flags=flags)["tool_choice"]["type"]

    forced = {"any": "any", "specific": "tool"}[choice.mode]
    assert mode(thinking="budget") == "auto"
    assert mode(thinking="budget", forced_calls_while_thinking=True) == forced
    assert mode() == forced
    assert mode(thinking="none") == forced


def test_the_providers_own_search_is_a_tool_of_its_type() -> None:
    live = RequestRuntime(hosted_web_search="live", parallel_tool_calls=False)
    sent = body(ASK, runtime=live)
    assert sent["tools"] == [{"type": "web_search_20250305", "name": "web_search"}]
    assert sent["tool_choice"] == {"type": "auto"}
    sent = body(ASK, tools=(tool("f"),), runtime=live, flags={"web_search": "web_search_next", **MARKED})
    assert [part.get("type") for part in sent["tools"]] == [None, "web_search_next"]
    assert sent["tools"][-1]["cache_control"] == MARK["cache_control"]


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"runtime": RequestRuntime(hosted_web_search="cached")}, {}),
        ({"runtime": RequestRuntime(hosted_web_search="live")}, {"web_search": None}),
        ({"output": OutputRequest(response_format={"type": "object"})}, {"structured_output": False}),
    ],
)
def test_what_the_wire_has_no_word_for_is_refused(options: Any, flags: Any) -> None:
    with pytest.raises(ProviderFailure) as caught:
        body(ASK, **options, flags=flags)
    assert (caught.value.kind.name, caught.value.cause) == ("INVALID_REQUEST", "unsupported")


# -- options


@pytest.mark.parametrize(
    ("flags", "wanted", "sent"),
    [
        (
            {"thinking": "budget"},
            ReasoningOptions(True, "high"),
            {"thinking": {"type": "enabled", "budget_tokens": 20480}},
        ),
        (
            {"thinking": "budget"},
            ReasoningOptions(True, "minimal"),
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        ),
        ({"thinking": "budget"}, ReasoningOptions(True), {"thinking": {"type": "enabled", "budget_tokens": 10240}}),
        (
            {"thinking": "budget"},
            ReasoningOptions(True, "odd"),
            {"thinking": {"type": "enabled", "budget_tokens": 10240}},
        ),
        (
            {"thinking": "budget", "max_tokens": 2000},
            ReasoningOptions(True, "high"),
            {"thinking": {"type": "enabled", "budget_tokens": 1999}},
        ),
        ({"thinking": "budget", "max_tokens": 1024}, ReasoningOptions(True, "high"), {}),
        ({}, ReasoningOptions(), {}),
        ({}, ReasoningOptions(False, "none"), {}),
        ({"thinking": "budget"}, ReasoningOptions(True, "none"), {}),
        ({}, ReasoningOptions(True, "high"), {"thinking": {"type": "adaptive"}}),
        (
            {"send_effort": True, "thinking_display": "summarized"},
            ReasoningOptions(True, "minimal"),
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "low"}},
        ),
        (
            {"thinking": "budget", "send_effort": True},
            ReasoningOptions(True, "max"),
            {"thinking": {"type": "enabled", "budget_tokens": 10240}, "output_config": {"effort": "max"}},
        ),
        ({"send_effort": True}, ReasoningOptions(True), {"thinking": {"type": "adaptive"}}),
        ({"thinking": "none"}, ReasoningOptions(True, "high"), {}),
        ({"thinking": "none", "send_effort": True}, ReasoningOptions(True, "none"), {}),
        ({"send_effort": True}, ReasoningOptions(False, "high"), {}),
    ],
)
def test_thinking_is_asked_for_as_the_profile_says(flags: Any, wanted: ReasoningOptions, sent: Any) -> None:
    written = body(ASK, reasoning=wanted, flags=flags)
    assert {name: written[name] for name in ("thinking", "output_config") if name in written} == sent


def test_sampling_is_left_out_while_thinking_is_on_or_where_a_model_takes_none() -> None:
    output = OutputRequest(temperature=0.0, top_p=0.5)
    sent = body(ASK, output=output)
    assert (sent["temperature"], sent["top_p"]) == (0.0, 0.5)
    for options in ({"reasoning": ReasoningOptions(True, "low")}, {"flags": {"sampling": False}}):
        assert not body(ASK, output=output, **options).keys() & {"temperature", "top_p"}


def test_the_limit_of_the_answer_is_always_sent() -> None:
    row = ModelDescriptor(provider="acme", id="m", max_output_tokens=64000)
    assert body(ASK, output=OutputRequest(max_tokens=9))["max_tokens"] == 9
    assert body(ASK)["max_tokens"] == 32000
    assert Profile().for_model(row).max_tokens == 64000


def test_a_schema_of_the_answer_stands_beside_the_effort() -> None:
    schema = {"type": "object", "additionalProperties": False}
    options = {"output": OutputRequest(response_format=schema), "reasoning": ReasoningOptions(True, "high")}
    config = body(ASK, **options, flags={"send_effort": True})["output_config"]
    assert config == {"effort": "high", "format": {"type": "json_schema", "schema": schema}}


@pytest.mark.parametrize(
    ("tier", "sent"),
    [
        ("auto", "auto"),
        ("priority", "auto"),
        ("standard_only", "standard_only"),
        ("default", "standard_only"),
        ("flex", None),
        (None, None),
    ],
)
def test_the_tier_is_one_of_two(tier: str | None, sent: str | None) -> None:
    assert body(ASK, runtime=RequestRuntime(service_tier=tier)).get("service_tier") == sent


@pytest.mark.parametrize(("limit", "trigger"), [(115_200, 115_200), (10, 50_000), (0, None), (None, None)])
def test_the_server_is_asked_to_compact_where_there_is_a_limit(limit: int | None, trigger: int | None) -> None:
    runtime = RequestRuntime(auto_compact_token_limit=limit)
    sent = body(ASK, runtime=runtime)
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": trigger}}
    assert sent.get("context_management") == (None if trigger is None else {"edits": [edit]})
    assert betas(sent, Profile()) == ([] if trigger is None else ["compact-2026-01-12"])
    assert "context_management" not in body(ASK, runtime=runtime, flags={"compaction_edit": None})


def test_only_the_betas_that_are_used_are_named() -> None:
    profile = Profile(betas=["mine", "mine"], mid_system_beta="mid", compaction_beta=None)  # type: ignore[arg-type]
    plain = body(ASK, runtime=RequestRuntime(auto_compact_token_limit=60_000))
    assert betas(plain, profile) == ["mine"]
    told = Instructions(developer_context="c")
    mid = body(ASK, instructions=told, flags={**MARKED, "mid_system": True})
    assert betas(mid, profile) == ["mine", "mid"]
    assert betas(mid, Profile()) == []


def test_a_models_row_says_what_it_takes() -> None:
    def row(*supports: str, style: str = "none", **fields: Any) -> ModelDescriptor:
        return ModelDescriptor(provider="acme", id="m", supports=frozenset(supports), reasoning_style=style, **fields)

    profile = Profile()
    assert profile.for_model(None) is profile
    assert profile.for_model(row()) == profile
    assert profile.for_model(row(style="budget")) == Profile(thinking="budget")
    rich = profile.for_model(row("images", "sampling", "structured", "prompt_cache", "mid_system", style="effort"))
    assert (rich.vision, rich.sampling, rich.structured_output, rich.prompt_cache) == (True, True, True, True)
    assert (rich.mid_system, rich.thinking, rich.send_effort) == (True, "adaptive", True)
    poor = profile.for_model(row("tools", style="budget"))
    assert (poor.vision, poor.sampling, poor.structured, poor.prompt_cache) == (False, False, False, False)
    assert (poor.mid_system, poor.thinking, poor.send_effort) == (False, "budget", False)
    styles = {style: profile.for_model(row("tools", style=style)) for style in ("level", "toggle", "none")}
    assert {name: (found.thinking, found.send_effort) for name, found in styles.items()} == {
        "level": ("budget", True),
        "toggle": ("adaptive", False),
        "none": ("none", False),
    }


# -- bytes


def test_two_rounds_of_a_thread_share_their_bytes() -> None:
    options: dict[str, Any] = {
        "instructions": Instructions(system="s", developer="d"),
        "tools": (tool("f"),),
        "reasoning": ReasoningOptions(True, "low"),
        "flags": MARKED,
    }
    first = [ASK, stored(THOUGHT, used("1")), ToolCall("1", "f", "{}"), ToolResult("1", "f", "r")]
    later = [*first, AssistantMessage("so"), stored(said("so")), ASK, ToolCall("1", "f", "{}")]
    shorter, longer = encode_json(body(*first, **options)), encode_json(body(*later, **options))
    assert shorter.endswith(b"]}]}")
    assert longer.startswith(shorter.removesuffix(b"]}"))
