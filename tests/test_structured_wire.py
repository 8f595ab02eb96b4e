"""Structured answers over Chat Completions, with a server on loopback."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import roder_trio as rt
from roder_trio import providers
from tests.answer_support import SCHEMA, VALID, WRONG, Count
from tests.chat import calls as called
from tests.chat import chunk, fragment, sse, usage
from tests.loopback import STREAM, Server, serving
from tests.turn_support import settings


def bodies(server: Server) -> list[dict[str, Any]]:
    return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]


def said(text: str) -> list[bytes]:
    return [STREAM, sse(chunk(content=text), chunk("stop"), usage(10, 1, 11), "[DONE]")]


def gave(id: str, arguments: str) -> list[bytes]:
    step = called(fragment(0, id, "final_answer", arguments), finish="tool_calls")
    return [STREAM, sse(step, usage(10, 1, 11), "[DONE]")]


@asynccontextmanager
async def over_http(server: Server, **flags: Any) -> AsyncIterator[tuple[rt.Runtime, str]]:
    engine = providers.ChatCompletions("acme", base_url=server.base_url, default_model="m", **flags)
    async with rt.open_runtime(engines=[engine], config=settings()) as runtime:
        yield runtime, (await runtime.create_thread()).thread_id


@pytest.mark.parametrize("strict", [False, True])
async def test_over_chat_completions_the_schema_goes_as_the_response_format(strict: bool) -> None:
    async with serving(said(WRONG), said(VALID)) as server, over_http(server, strict_schemas=strict) as (runtime, id):
        outcome = await runtime.run_turn(id, "go", output_type=Count)
    assert (outcome.output, outcome.usage) == (Count(1), rt.TokenUsage(20, 2, 22))
    form = {"name": "output", "schema": SCHEMA, **({"strict": True} if strict else {})}
    first, second = bodies(server)
    for body in (first, second):
        assert body["response_format"] == {"type": "json_schema", "json_schema": form}
        assert {"tools", "tool_choice"}.isdisjoint(body)
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert "$.n: type" in second["messages"][2]["content"]


@pytest.mark.parametrize("form", ["none", "json_object"])
async def test_over_chat_completions_without_schemas_the_answer_is_a_call(form: str) -> None:
    answers = [said("Well."), gave("f1", WRONG), gave("f2", VALID)]
    async with serving(*answers) as server, over_http(server, structured_output=form) as (runtime, id):
        outcome = await runtime.run_turn(id, "go", output_type=Count)
    assert (outcome.output, outcome.text, outcome.usage) == (Count(1), VALID, rt.TokenUsage(30, 3, 33))
    first, second, third = bodies(server)
    for body in (first, second, third):
        assert "response_format" not in body
        [tool] = body["tools"]
        assert (tool["function"]["name"], tool["function"]["parameters"]) == ("final_answer", SCHEMA)
    specific = {"type": "function", "function": {"name": "final_answer"}}
    assert [body["tool_choice"] for body in (first, second, third)] == ["auto", specific, "auto"]
    assert [message["role"] for message in third["messages"]] == ["user", "assistant", "tool", "user"]
    assert third["messages"][2]["content"] == "invalid output"
