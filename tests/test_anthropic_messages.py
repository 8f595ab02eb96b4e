"""Transcripts as messages: what was said, called and answered, and what the provider wants back."""

import itertools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.providers.anthropic import Profile
from roder_trio.providers.anthropic.encode import betas
from roder_trio.schema.inference import (
    ModelChoice,
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
from tests.anthropic_support import NOW, THOUGHT, assistant, body, messages, result, said, stored, used, user

ASK = UserMessage("ask")
PICTURE = Image("data:image/png;base64,AA")
BYTES = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
MARK = {"cache_control": {"type": "ephemeral"}}
MARKED = {"prompt_cache": True}
CUT_OFF = "[The message above was cut off before it was finished.]"


# -- messages


def test_neighbours_of_one_role_are_one_message_and_blank_texts_are_none() -> None:
    items = [ASK, UserMessage(" "), UserMessage("more"), AssistantMessage("a"), AssistantMessage("\n"), ASK]
    assert messages(*items) == [user("ask", "more"), assistant("a"), user("ask")]


@pytest.mark.parametrize(("last", "sent"), [("so \n", [assistant("so")]), (" \n", []), ("so", [assistant("so")])])
def test_a_last_assistant_text_is_trimmed_and_dropped_if_nothing_is_left(last: str, sent: list[Any]) -> None:
    assert messages(ASK, AssistantMessage(last)) == [user("ask"), *sent]
    assert messages(ASK, AssistantMessage("so \n"), ASK) == [user("ask"), assistant("so \n"), user("ask")]


def test_calls_with_the_text_around_them_are_one_message_and_all_results_the_next() -> None:
    items = [
        ASK,
        AssistantMessage("first"),
        ToolCall("1", "f", '{"a":1}'),
        AssistantMessage("then"),
        ToolCall("2", "g", ""),
        ToolResult("2", "g", "two", is_error=True),
        ToolResult("1", "f", ""),
        UserMessage("steer"),
    ]
    assert messages(*items) == [
        user("ask"),
        assistant("first", used("1", a=1), "then", used("2", "g")),
        user(result("1"), result("2", "two", is_error=True), "steer"),
    ]


def test_a_call_that_is_no_json_an_open_one_and_a_cut_off_text_are_sent_well_formed() -> None:
    items = [ASK, ToolCall("1", "f", '{"pa'), AssistantMessage("half", interrupted=True), UserMessage("steer")]
    none = result("1", "no result was recorded for this call", is_error=True)
    assert messages(*items) == [
        user("ask"),
        assistant(used("1", _raw='{"pa'), "half"),
        user(none, CUT_OFF, "steer"),
    ]


def test_a_text_that_was_cut_off_is_noted_before_the_next_user_text_or_at_the_end() -> None:
    half = AssistantMessage("half", interrupted=True)
    assert messages(ASK, half, UserMessage("steer")) == [user("ask"), assistant("half"), user(CUT_OFF, "steer")]
    assert messages(ASK, half) == [user("ask"), assistant("half"), user(CUT_OFF)]


def test_images_have_two_kinds_of_sources() -> None:
    linked = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    assert messages(UserMessage("see", (PICTURE, Image("https://x/y.png")))) == [user("see", BYTES, linked)]
    assert messages(UserMessage("", (PICTURE,))) == [user(BYTES)]
    plain = {"type": "image", "source": {"type": "base64", "media_type": "image/svg+xml", "data": "PHN2Zz4="}}
    assert messages(UserMessage("", (Image("data:image/svg+xml;charset=utf-8,%3Csvg%3E"),))) == [user(plain)]
    assert (
        messages(UserMessage("", (Image("data:;base64,AA"),)))[0]["content"][0]["source"]["media_type"] == "text/plain"
    )


def test_images_of_results_are_blocks_in_them() -> None:
    items = [ToolCall("1", "f", "{}"), ToolResult("1", "f", "seen", images=(PICTURE,))]
    assert messages(*items)[1] == user(result("1", "seen", BYTES))
    assert messages(items[0], ToolResult("1", "f", "", images=(PICTURE,)))[1] == user(result("1", BYTES))


def test_a_model_without_vision_gets_notes_instead() -> None:
    note = "[1 image was left out: this model takes no images.]"
    assert messages(UserMessage("see", (PICTURE,)), vision=False) == [user(f"see\n{note}")]
    assert messages(UserMessage("", (PICTURE,)), vision=False) == [user(note)]
    items = [ToolCall("1", "f", "{}"), ToolResult("1", "f", "", images=(PICTURE,))]
    assert messages(*items, vision=False)[1] == user(result("1", note))


def test_ids_are_rewritten_on_both_sides_into_the_letters_of_the_wire() -> None:
    items = [ToolCall("a.b", "f", "{}"), ToolCall("a:b", "f", "{}"), ToolCall("", "f", "{}")]
    items_and_results = [*items, *(ToolResult(item.id, "f", item.id or "empty") for item in items)]
    calls, results = messages(*items_and_results)
    assert [block["id"] for block in calls["content"]] == ["a_b", "a_b_2", "call"]
    assert results == user(result("a_b", "a.b"), result("a_b_2", "a:b"), result("call", "empty"))


def test_a_summary_is_a_user_message_and_nothing_before_it_is_sent() -> None:
    sent = messages(ASK, AssistantMessage("old"), ContextCompaction("sum"), UserMessage("new"))
    assert sent == [user("Context summary:\nsum", "new")]


# -- what the provider wants back

REDACTED = {"type": "redacted_thinking", "data": "x"}


def test_thinking_goes_back_verbatim_before_the_calls_and_what_it_stands_for_is_not_said_twice() -> None:
    output = [THOUGHT, REDACTED, said("let me"), used("1", a=1)]
    items = [
        ASK,
        ReasoningSummary("hm"),
        AssistantMessage("let me"),
        stored(*output),
        ToolCall("1", "f", '{"a": 1}'),
        ToolResult("1", "f", "r"),
    ]
    assert messages(*items) == [user("ask"), assistant(*output), user(result("1", "r"))]


def test_a_stored_call_is_sent_under_a_unique_id() -> None:
    earlier = [ToolCall("1", "f", "{}"), ToolResult("1", "f", "a"), ASK]
    items = [*earlier, stored(THOUGHT, used("1")), ToolCall("1", "f", "{}"), ToolResult("1", "f", "b")]
    assert messages(*items) == [
        assistant(used("1")),
        user(result("1", "a"), "ask"),
        assistant(THOUGHT, used("1_2")),
        user(result("1_2", "b")),
    ]


@pytest.mark.parametrize("field", ["dialect", "provider", "model"])
def test_of_another_origin_only_canonical_items_are_sent(field: str) -> None:
    foreign = ProviderMetadata({**stored(THOUGHT, said("so"), used("1")).payload, field: "other"})
    items = [ASK, ReasoningSummary("hm"), AssistantMessage("so"), foreign, ToolCall("1", "f", "{}")]
    sent = messages(*items, ToolResult("1", "f", "r"))
    assert sent == [user("ask"), assistant("so", used("1")), user(result("1", "r"))]


@pytest.mark.parametrize(
    "part",
    [said(" \n"), {"type": "thinking", "thinking": "cut"}, {"type": "thinking", "thinking": "", "signature": ""}, {}],
)
def test_a_stored_block_that_the_server_would_refuse_stays_behind(part: Any) -> None:
    assert messages(ASK, stored(part, said("so"), "odd"), ASK) == [user("ask"), assistant("so"), user("ask")]
    assert messages(ASK, stored(part), ASK) == [user("ask", "ask")]


SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}


def test_a_hosted_call_waits_for_its_result_at_the_end_and_the_result_opens_what_follows() -> None:
    paused = stored(said("let me"), SEARCH, end_turn=False)
    items = [ASK, AssistantMessage("let me"), paused]
    assert messages(*items) == [user("ask"), assistant("let me", SEARCH)]
    items += [AssistantMessage("so"), stored(FOUND, said("so"))]
    assert messages(*items, ASK) == [user("ask"), assistant("let me", SEARCH, FOUND, "so"), user("ask")]


def test_a_hosted_call_may_wait_while_ours_are_answered() -> None:
    items = [ASK, stored(SEARCH, used("1")), ToolCall("1", "f", "{}"), ToolResult("1", "f", "r")]
    assert messages(*items) == [user("ask"), assistant(SEARCH, used("1")), user(result("1", "r"))]


def test_a_hosted_call_whose_result_was_lost_stays_behind() -> None:
    paused = stored(said("let me"), SEARCH, end_turn=False)
    items = [ASK, AssistantMessage("let me"), paused, UserMessage("steer")]
    assert messages(*items) == [user("ask"), assistant("let me"), user("steer")]
    assert messages(ASK, stored(SEARCH), UserMessage("steer")) == [user("ask", "steer")]


def test_a_hosted_result_without_its_call_stays_behind() -> None:
    boundary = ContextCompaction("sum", retained_count=1)
    items = [ASK, stored(SEARCH, end_turn=False), stored(FOUND, said("so")), boundary, ASK]
    assert messages(*items) == [user("Context summary:\nsum"), assistant("so"), user("ask")]


def test_ids_that_are_no_texts_do_no_harm() -> None:
    odd = [{**SEARCH, "id": ["s"]}, {**FOUND, "tool_use_id": {}}]
    assert messages(ASK, stored(*odd), ASK) == [user("ask", "ask")]


BOUNDARY = {"type": "compaction", "content": "what was"}


def test_a_boundary_of_the_server_is_sent_first_and_nothing_before_it() -> None:
    boundary = ProviderMetadata({"provider": "acme", "output": [BOUNDARY]})
    items = [ASK, AssistantMessage("old"), boundary, UserMessage("look"), AssistantMessage("so"), stored(said("so"))]
    sent = body(*items, ASK)
    assert sent["messages"] == [assistant(BOUNDARY), user("look"), assistant("so"), user("ask")]
    assert betas(sent, Profile()) == ["compact-2026-01-12"]
    whole = stored(said("before"), BOUNDARY, said("after"))
    assert messages(ASK, whole, ASK) == [assistant(BOUNDARY, "after"), user("ask")]


@pytest.mark.parametrize("field", ["dialect", "provider", "base_url"])
def test_a_boundary_of_another_server_is_left_out_and_what_was_before_it_sent(field: str) -> None:
    foreign = ProviderMetadata({**stored(BOUNDARY).payload, field: "other"})
    assert messages(ASK, AssistantMessage("old"), foreign, ASK) == [user("ask"), assistant("old"), user("ask")]


def test_a_container_is_sent_while_it_is_there() -> None:
    def held(after: float, **more: Any) -> ProviderMetadata:
        expires = (NOW + timedelta(seconds=after)).isoformat().replace("+00:00", "Z")
        return stored(said("a"), container={"id": "box", "expires_at": expires, **more})

    assert list(body(ASK, held(1), ASK))[-1] == "container"
    assert body(ASK, held(1), ASK)["container"] == "box"
    assert "container" not in body(ASK, held(0), ASK)
    assert "container" not in body(ASK, held(1), held(-1), ASK)
    for expires in (None, "soon", "2025-12-31T23:59:59"):
        assert "container" not in body(ASK, held(1, expires_at=expires), ASK)
    assert body(ASK, held(1, expires_at="2026-01-01T00:00:01"), ASK)["container"] == "box"
    assert "container" not in body(ASK, held(1, id=None), ASK)
    assert "container" not in body(ASK, held(1), model=ModelChoice("acme", "other"))


# -- any transcript

_ITEMS = st.lists(
    st.one_of(
        st.sampled_from([ASK, UserMessage(""), AssistantMessage("a "), AssistantMessage("x", interrupted=True)]),
        st.builds(
            ToolCall, st.sampled_from(["a", "b.", ""]), st.just("f"), st.sampled_from(["", "{}", "[", '{"a":1}'])
        ),
        st.builds(ToolResult, st.sampled_from(["a", "b."]), st.just("f"), st.sampled_from(["", "r"])),
        st.sampled_from([stored(THOUGHT, used("a")), stored(SEARCH), stored(FOUND), stored(said(" "))]),
        st.builds(ContextCompaction, st.just("s"), retained_count=st.integers(0, 2)),
    ),
    max_size=12,
)


@given(_ITEMS)
@settings(max_examples=150, deadline=None)
def test_every_request_is_well_formed(items: list[Any]) -> None:
    sent = messages(*items) if items else []
    roles = [message["role"] for message in sent]
    assert all(one != other for one, other in itertools.pairwise(roles))
    for place, message in enumerate(sent):
        blocks = message["content"]
        assert blocks
        assert all(block["text"].strip() for block in blocks if block["type"] == "text")
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        kinds = [block["type"] for block in blocks]
        assert kinds[: len(results)] == ["tool_result"] * len(results)
        if calls:
            following = sent[place + 1]["content"]
            answered = [block["tool_use_id"] for block in following if block["type"] == "tool_result"]
            assert sorted(answered) == sorted(calls)
            assert len(set(calls)) == len(calls)
        if results:
            assert any(block["type"] == "tool_use" for block in sent[place - 1]["content"])
