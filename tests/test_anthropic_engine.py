"""The Anthropic engine: keys, headers, paths, models, refusals, and steps sent back."""

from typing import Any

import httpx
import orjson
import pytest
import trio
import trio.testing

from roder_trio import providers
from roder_trio.errors import ProviderFailure
from roder_trio.providers import Anthropic
from roder_trio.providers.anthropic import Profile
from roder_trio.providers.anthropic.engine import GO_ON
from roder_trio.schema.inference import (
    Completed,
    EngineTarget,
    HostedToolCallStarted,
    MessageDelta,
    ModelChoice,
    ModelDescriptor,
    ProviderMetadata,
    ReasoningOptions,
    RequestRuntime,
    ToolCallCompleted,
)
from roder_trio.schema.transcript import AssistantMessage, ToolCall, ToolResult, UserMessage
from roder_trio.schema.transcript import ProviderMetadata as StoredMetadata
from tests.anthropic_support import OVER, began, call, closed, engine, opened, piece, request, sse, stopped, text
from tests.chat import CONTEXT, Chunks, told, tool
from tests.test_chat_completions import STREAM, Recorder

ANSWER = sse(began({"input_tokens": 3}), *text(0, "Hey"), stopped("end_turn", {"output_tokens": 1}), OVER)


def server(*answers: tuple[int, Any]) -> Recorder:
    return Recorder(*(answers or [(200, ANSWER)]))


async def collect(anthropic: Anthropic, wanted: Any = None) -> list[Any]:
    async with anthropic.stream_turn(CONTEXT, wanted or request()) as stream:
        return [event async for event in stream]


async def failure_of(anthropic: Anthropic, wanted: Any = None) -> tuple[list[Any], ProviderFailure]:
    events: list[Any] = []
    with pytest.raises(ProviderFailure) as caught:
        async with anthropic.stream_turn(CONTEXT, wanted or request()) as stream:
            async for event in stream:
                events.append(event)
    return events, caught.value


# -- requests


@pytest.mark.parametrize(
    "base", ["http://localhost", "http://localhost/", "http://localhost/v1", "http://localhost/v1/"]
)
async def test_the_path_is_that_of_the_messages_whatever_the_base_ends_with(base: str) -> None:
    recorder = server()
    assert (await collect(engine(recorder, base_url=base)))[-1] == Completed("stop", "r1")
    [sent] = recorder.requests
    assert (sent.method, str(sent.url)) == ("POST", "http://localhost/v1/messages")


async def test_the_key_goes_into_its_own_header_beside_the_version() -> None:
    recorder = server()
    await collect(engine(recorder, api_key="key-1", version="2024-01-01", extra_headers={"X-Team": "red"}))
    headers = recorder.requests[0].headers
    assert (headers["x-api-key"], headers["anthropic-version"], headers["x-team"]) == ("key-1", "2024-01-01", "red")
    assert not headers.keys() & {"authorization", "anthropic-beta"}
    assert "key-1" not in str(recorder.requests[0].url)
    await collect(engine(recorder, api_key="key-1", auth="bearer"))
    assert recorder.requests[1].headers["authorization"] == "Bearer key-1"
    assert "x-api-key" not in recorder.requests[1].headers


async def test_betas_are_a_list_of_what_is_used() -> None:
    recorder = server()
    compacts = request(runtime=RequestRuntime(auto_compact_token_limit=60_000))
    await collect(engine(recorder, betas=["mine"]), compacts)
    assert recorder.requests[0].headers["anthropic-beta"] == "mine,compact-2026-01-12"
    assert orjson.loads(recorder.requests[0].content)["context_management"]["edits"][0]["trigger"]["value"] == 60_000


async def test_a_models_row_says_how_it_thinks_and_how_long_it_may_answer() -> None:
    row = ModelDescriptor(
        provider="acme",
        id="m",
        max_output_tokens=64_000,
        supports=frozenset(["tools", "prompt_cache"]),
        reasoning_style="effort",
    )
    recorder = server()
    wanted = request(reasoning=ReasoningOptions(True, "minimal"))
    await collect(engine(recorder, models=[row]), wanted)
    sent = orjson.loads(recorder.requests[0].content)
    assert (sent["max_tokens"], sent["thinking"], sent["output_config"]) == (
        64_000,
        {"type": "adaptive"},
        {"effort": "low"},
    )


async def test_without_a_key_no_socket_is_opened() -> None:
    recorder = server()
    _, failure = await failure_of(engine(recorder, base_url="https://api.example.com", env_keys=["ACME_KEY"]))
    assert (failure.kind.name, failure.cause) == ("AUTHENTICATION", "missing_credentials")
    assert "ACME_KEY" in failure.message
    _, failure = await failure_of(engine(recorder), request(runtime=RequestRuntime(hosted_web_search="cached")))
    assert (failure.kind.name, failure.cause) == ("INVALID_REQUEST", "unsupported")
    assert recorder.requests == []


def test_an_engine_is_made_without_a_key_under_its_usual_name() -> None:
    anthropic = providers.Anthropic()
    assert anthropic.target == EngineTarget("anthropic", "anthropic", "https://api.anthropic.com")
    plain = Anthropic("x", base_url="https://api.example.com", vision=False, structured_output=False)
    assert (plain.capabilities.image_input, plain.capabilities.structured_output) == (False, False)
    assert plain.capabilities.tool_calls
    assert plain.profile == Profile(vision=False, structured_output=False)
    with pytest.raises(TypeError):
        Anthropic("x", no_such_flag=True)


async def test_models_are_asked_for_with_the_version_too() -> None:
    listed = {"data": [{"type": "model", "id": "big", "display_name": "Big"}, {"id": "m"}], "has_more": False}
    recorder = server((404, {"error": {"type": "not_found_error", "message": "no"}}), (200, listed))
    known = ModelDescriptor(provider="acme", id="m", context_window=9)
    anthropic = engine(recorder, api_key="k", models=[known])
    rows = await anthropic.list_models()
    assert [(row.id, row.display_name, row.context_window) for row in rows] == [("big", "Big", None), ("m", None, 9)]
    paths = [sent.url.raw_path.decode() for sent in recorder.requests]
    assert paths == ["/models?limit=1000", "/v1/models?limit=1000"]
    assert all(sent.headers["anthropic-version"] == "2023-06-01" for sent in recorder.requests)
    assert all(sent.headers["x-api-key"] == "k" for sent in recorder.requests)


# -- refusals


@pytest.mark.parametrize(
    ("status", "error", "kind", "cause"),
    [
        (
            400,
            ("invalid_request_error", "prompt is too long: 205000 tokens > 200000 maximum"),
            "CONTEXT_WINDOW_EXCEEDED",
            None,
        ),
        (
            400,
            ("invalid_request_error", "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
            "CONTEXT_WINDOW_EXCEEDED",
            None,
        ),
        (413, ("request_too_large", "Request exceeds the maximum size"), "REQUEST_TOO_LARGE", None),
        (400, ("invalid_request_error", "messages: field required"), "INVALID_REQUEST", "bad_request"),
        (401, ("authentication_error", "invalid x-api-key"), "AUTHENTICATION", "unauthorized"),
        (403, ("permission_error", "no"), "AUTHENTICATION", "permission"),
        (402, ("billing_error", "credit"), "QUOTA_EXCEEDED", None),
        (400, ("billing_error", "credit"), "QUOTA_EXCEEDED", None),
        (404, ("not_found_error", "model: nobody"), "INVALID_REQUEST", "model_not_found"),
        (429, ("rate_limit_error", "slower"), "RATE_LIMITED", None),
        (500, ("api_error", "Internal server error"), "SERVER_OVERLOADED", "server_error"),
        (529, ("overloaded_error", "Overloaded"), "SERVER_OVERLOADED", "overloaded"),
    ],
)
async def test_refusals_are_told_apart(status: int, error: tuple[str, str], kind: str, cause: str | None) -> None:
    body = {"type": "error", "error": {"type": error[0], "message": error[1]}, "request_id": "req_1"}
    recorder = server((status, body))
    events, failure = await failure_of(engine(recorder))
    assert (failure.kind.name, failure.cause, failure.status) == (kind, cause, status)
    assert (events, failure.visible, failure.provider_code) == ([], False, error[0])
    assert len(recorder.requests) == 1


async def test_the_reset_of_the_exhausted_limit_is_when_to_come_back() -> None:
    def handler(sent: httpx.Request) -> httpx.Response:
        headers = {
            "date": "Thu, 01 Jan 2026 00:00:00 GMT",
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": "2026-01-01T00:00:37Z",
            "request-id": "req_1",
        }
        return httpx.Response(429, headers=headers, json={"error": {"type": "rate_limit_error", "message": "slower"}})

    _, failure = await failure_of(engine(handler))
    assert (failure.kind.name, failure.retry_after, failure.request_id) == ("RATE_LIMITED", 37.0, "req_1")


async def test_no_failure_shows_the_key() -> None:
    body = {"error": {"type": "invalid_request_error", "message": "the key secret-key-1 is odd"}}
    _, failure = await failure_of(engine(server((400, body)), api_key="secret-key-1"))
    assert "secret-key-1" not in f"{failure} {failure!r} {failure.body_excerpt}"


@pytest.mark.parametrize(
    ("frames", "told_before", "kind", "visible"),
    [
        ([{"type": "error", "error": {"type": "overloaded_error"}}], [], "SERVER_OVERLOADED", False),
        ([began({"input_tokens": 4})], [told(4, 0, 4)], "STREAM_INTERRUPTED", False),
        (
            [began({"input_tokens": 4}), *text(0, "a")],
            [told(4, 0, 4), MessageDelta("a")],
            "STREAM_INTERRUPTED",
            True,
        ),
        (
            [*text(0, "a"), {"type": "error", "error": {"type": "overloaded_error"}}],
            [MessageDelta("a")],
            "SERVER_OVERLOADED",
            True,
        ),
        (
            [opened(0, "server_tool_use", id="s", name="web_search")],
            [HostedToolCallStarted("s", "web_search")],
            "STREAM_INTERRUPTED",
            True,
        ),
    ],
)
async def test_a_failure_knows_whether_anything_was_seen(
    frames: list[Any], told_before: list[Any], kind: str, visible: bool
) -> None:
    events, failure = await failure_of(engine(server((200, sse(*frames)))))
    assert events == told_before
    assert (failure.kind.name, failure.visible) == (kind, visible)


async def test_an_answer_is_over_at_its_last_frame_though_the_socket_stays_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    body = Chunks(ANSWER, 60.0)

    def handler(sent: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=STREAM, stream=body)

    events = await collect(engine(handler))
    assert events[-1] == Completed("stop", "r1")
    assert trio.current_time() < 1
    assert body.closed == 1


async def test_what_was_received_is_settled_after_a_cancel(autojump_clock: trio.testing.MockClock) -> None:
    body = Chunks(sse(began({"input_tokens": 4}), *text(0, "a")), 60.0)

    def handler(sent: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=STREAM, stream=body)

    async with engine(handler).stream_turn(CONTEXT, request()) as stream:
        with trio.move_on_after(1):
            async for _ in stream:
                pass
        assert stream.settle() == told(4, 0, 4).usage


REFUSED = "This model does not support assistant message prefill. The conversation must end with a user message."


@pytest.mark.parametrize("times", [1, 2])
async def test_a_model_that_continues_no_message_of_its_own_is_asked_to_once(times: int) -> None:
    refusal = (400, {"error": {"type": "invalid_request_error", "message": REFUSED}})
    recorder = server(*[refusal] * times, (200, ANSWER))
    wanted = request(UserMessage("go"), AssistantMessage("so far"))
    if times == 1:
        events = await collect(engine(recorder), wanted)
        assert events[0] == ProviderMetadata({"kind": "request_repair", "repair": "user_message_added"})
    else:
        _, failure = await failure_of(engine(recorder), wanted)
        assert failure.kind.name == "INVALID_REQUEST"
    first, second = (orjson.loads(sent.content)["messages"] for sent in recorder.requests)
    assert second[:-1] == first
    assert second[-1] == {"role": "user", "content": [{"type": "text", "text": GO_ON}]}


async def test_other_refusals_are_not_repaired() -> None:
    for message, last in ((REFUSED, UserMessage("go")), ("no", AssistantMessage("so far"))):
        recorder = server((400, {"error": {"type": "invalid_request_error", "message": message}}))
        await failure_of(engine(recorder), request(last))
        assert len(recorder.requests) == 1


# -- a step sent back


THINKING = [
    opened(0, "thinking", thinking="", signature=""),
    piece(0, "thinking", thinking="hm"),
    piece(0, "signature", signature="sig"),
    closed(0),
    opened(1, "redacted_thinking", data="xyz"),
    closed(1),
]
STEP = [*THINKING, *text(2, "let me"), *call(3, "c1", "my_tool", '{"a": 1}'), *call(4, "c1", "gone")]


def after(events: list[Any]) -> list[Any]:
    """The transcript behind a step whose calls were answered."""
    called = [event for event in events if isinstance(event, ToolCallCompleted)]
    return [
        UserMessage("go"),
        *(StoredMetadata(event.payload) for event in events if isinstance(event, ProviderMetadata)),
        *(ToolCall(event.id, event.name, event.arguments) for event in called),
        *(ToolResult(event.id, event.name, event.name) for event in called),
    ]


async def test_a_step_goes_back_as_it_came_with_its_results_behind_it() -> None:
    recorder = server((200, sse(began(), *STEP, stopped("tool_use"), OVER)))
    anthropic, tools = engine(recorder), (tool("my.tool"),)
    items = after(await collect(anthropic, request(UserMessage("go"), tools=tools)))
    assert [item.name for item in items if isinstance(item, ToolCall)] == ["my.tool", "gone"]
    await collect(anthropic, request(*items, tools=tools))
    one, two = (sent.content for sent in recorder.requests)
    assert two.startswith(one.removesuffix(b"]}"))
    _, assistant, results = orjson.loads(two)["messages"]
    assert assistant["content"] == items[1].payload["output"]
    kinds = ["thinking", "redacted_thinking", "text", "tool_use", "tool_use"]
    assert [block["type"] for block in assistant["content"]] == kinds
    ids = [block["id"] for block in assistant["content"][3:]]
    assert len(set(ids)) == 2
    assert [block["tool_use_id"] for block in results["content"]] == ids
    assert [block["content"][0]["text"] for block in results["content"]] == ["my.tool", "gone"]


async def test_to_another_model_a_step_goes_back_without_what_is_signed() -> None:
    recorder = server((200, sse(began(), *STEP, stopped("tool_use"), OVER)))
    anthropic = engine(recorder)
    items = after(await collect(anthropic, request(UserMessage("go"), tools=(tool("my.tool"),))))
    await collect(anthropic, request(*items, model=ModelChoice("acme", "another")))
    foreign = orjson.loads(recorder.requests[1].content)["messages"]
    assert [block["type"] for block in foreign[1]["content"]] == ["tool_use", "tool_use"]
