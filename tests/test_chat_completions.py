"""The Chat Completions engine: keys, headers, repairs, models, and a step sent back."""

import subprocess
import sys
from typing import Any

import attrs
import httpx
import orjson
import pytest
import trio
import trio.testing

from roder_trio import providers
from roder_trio.errors import ProviderFailure
from roder_trio.providers import ChatCompletions
from roder_trio.providers.catalog import Catalog, ProviderRow
from roder_trio.providers.chat_completions import Profile
from roder_trio.schema.config import ReliabilityConfig
from roder_trio.schema.inference import (
    EngineTarget,
    ModelDescriptor,
    OutputRequest,
    ProviderMetadata,
    ReasoningOptions,
    RequestRuntime,
    ToolCallCompleted,
)
from roder_trio.schema.transcript import ProviderMetadata as StoredMetadata
from roder_trio.schema.transcript import ToolCall, ToolResult, UserMessage
from tests.chat import (
    CONTEXT,
    Chunks,
    calls,
    chunk,
    completed_calls,
    engine,
    fragment,
    request,
    split_outputs,
    sse,
    tool,
)

ANSWER = sse(chunk(content="Hey"), chunk("stop"), "[DONE]")
STREAM = {"content-type": "text/event-stream"}


class Recorder:
    """A server that notes requests and answers from a list; the last answer repeats."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers) or [(200, ANSWER)]
        self.requests: list[httpx.Request] = []

    def __call__(self, sent: httpx.Request) -> httpx.Response:
        self.requests.append(sent)
        status, body = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(body, bytes):
            return httpx.Response(status, headers=STREAM, content=body)
        return httpx.Response(status, json=body)

    @property
    def bodies(self) -> list[Any]:
        return [orjson.loads(sent.content) for sent in self.requests]


async def collect(chat: ChatCompletions, wanted: Any = None) -> list[Any]:
    async with chat.stream_turn(CONTEXT, wanted or request()) as stream:
        events = [event async for event in stream]
    return split_outputs(events)[0]


async def failure_of(chat: ChatCompletions, wanted: Any = None) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await collect(chat, wanted)
    return caught.value


# -- keys


async def test_the_key_is_looked_up_for_each_call() -> None:
    server, keys = Recorder(), iter(["one", "two\n"])
    chat = engine(server, api_key=lambda: next(keys))
    await collect(chat)
    await collect(chat)
    assert [sent.headers["authorization"] for sent in server.requests] == ["Bearer one", "Bearer two"]


async def test_the_variables_are_tried_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST_KEY", "")
    monkeypatch.setenv("SECOND_KEY", "two")
    server = Recorder()
    await collect(engine(server, env_keys=["FIRST_KEY", "SECOND_KEY"], auth="api-key"))
    assert server.requests[0].headers["api-key"] == "two"
    assert "authorization" not in server.requests[0].headers


async def test_without_a_key_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "for-another")
    server = Recorder()
    failure = await failure_of(engine(server, base_url="https://api.acme.example/v1", env_keys=["ACME_KEY", "ACME"]))
    assert (failure.kind.name, failure.cause) == ("AUTHENTICATION", "missing_credentials")
    assert "acme" in failure.message
    assert "ACME_KEY, ACME" in failure.message
    assert (await failure_of(engine(server, base_url="https://api.acme.example/v1"))).cause == "missing_credentials"
    assert server.requests == []


async def test_openais_own_server_takes_the_usual_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "usual")
    server = Recorder()
    chat = ChatCompletions(http=httpx.AsyncClient(transport=httpx.MockTransport(server)))
    await collect(chat)
    assert str(server.requests[0].url) == "https://api.openai.com/v1/chat/completions"
    assert server.requests[0].headers["authorization"] == "Bearer usual"
    assert chat.target == EngineTarget("chat_completions", "openai", "https://api.openai.com/v1")


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:11434/v1", True),
        ("http://127.0.0.1/v1", True),
        ("http://[::1]/v1", True),
        ("http://192.168.1.5/v1", True),
        ("http://vllm:8000/v1", True),
        ("http://box.local/v1", True),
        ("https://8.8.8.8/v1", False),
        ("https://api.example.com/v1", False),
    ],
)
async def test_a_local_server_needs_no_key(url: str, local: bool) -> None:
    chat = engine(Recorder(), base_url=url)
    if local:
        await collect(chat)
    else:
        assert (await failure_of(chat)).kind.name == "AUTHENTICATION"
    await collect(engine(Recorder(), base_url=url, requires_auth=False))
    assert (await failure_of(engine(Recorder(), base_url=url, requires_auth=True))).kind.name == "AUTHENTICATION"


async def test_a_key_or_header_that_cannot_be_sent_is_refused_without_showing_it() -> None:
    failure = await failure_of(engine(Recorder(), api_key="kéy-hidden"))
    assert failure.kind.name == "AUTHENTICATION"
    assert "hidden" not in failure.message
    failure = await failure_of(engine(Recorder(), extra_headers={"X-Team": "a\nb"}))
    assert failure.kind.name == "INVALID_REQUEST"
    server = Recorder()
    await collect(engine(server, extra_headers={"X-Team": "red"}))
    assert server.requests[0].headers["x-team"] == "red"


# -- making


def test_an_engine_is_made_without_a_key_and_loaded_when_it_is_named() -> None:
    chat = ChatCompletions("x", base_url="https://api.example.com/v1", vision=False, structured_output="none")
    assert (chat.capabilities.image_input, chat.capabilities.structured_output) == (False, False)
    assert chat.capabilities.tool_calls
    assert chat.profile == Profile(vision=False, structured_output="none")
    with pytest.raises(TypeError):
        ChatCompletions("x", no_such_flag=True)
    assert "secret" not in repr(Profile(extra_headers={"x": "secret"}))
    assert "ChatCompletions" in dir(providers)
    with pytest.raises(AttributeError):
        _ = providers.Nothing  # type: ignore[attr-defined]


def test_naming_the_package_of_engines_loads_none_of_them() -> None:
    check = (
        "import roder_trio, roder_trio.providers, sys\n"
        "homes = {f'roder_trio.providers.{name}' for name in ('_http', 'chat_completions', 'offline', 'scripted')}\n"
        "assert not (homes | {'httpx'}) & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize("row", [row for row in Catalog.load().providers if row.dialect == "chat_completions"])
def test_every_row_of_the_catalog_makes_an_engine(row: ProviderRow) -> None:
    for chat in (ChatCompletions(row.id), ChatCompletions(row.id, base_url=row.base_url)):
        assert chat.target == EngineTarget("chat_completions", row.id, row.base_url)
        assert chat.profile == Profile(**row.flags)
        assert chat.default_model == row.default_model


async def test_a_row_counts_for_its_own_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "groq-key")
    server = Recorder()
    await collect(engine(server, base_url="https://api.groq.com/openai/v1"))
    assert server.requests[0].headers["authorization"] == "Bearer groq-key"
    http = httpx.AsyncClient(transport=httpx.MockTransport(server))
    elsewhere = ChatCompletions("groq", base_url="https://groq.example.com/v1", http=http)
    assert (await failure_of(elsewhere)).cause == "missing_credentials"
    assert elsewhere.profile == Profile()
    assert ChatCompletions("groq", vision=False).profile.max_tokens_field == "max_completion_tokens"
    assert ChatCompletions("unheard-of").target.base_url == "https://api.openai.com/v1"
    assert [row.provider for row in await ChatCompletions("openai", api_key=lambda: None, env_keys=()).list_models()][
        :1
    ] == ["openai"]


# -- requests


async def test_a_body_that_cannot_be_written_is_never_sent() -> None:
    server = Recorder()
    wanted = request(output=OutputRequest(temperature=float("nan")))
    assert (await failure_of(engine(server), wanted)).cause == "bad_request"
    assert (
        await failure_of(engine(server, structured_output="none"), request(output=OutputRequest(response_format={})))
    ).cause == "unsupported"
    assert server.requests == []


async def test_a_refused_parameter_is_left_out_once_and_remembered_for_the_model() -> None:
    refusal = {"error": {"message": "Unsupported value: 'temperature' does not support 0.2", "param": "temperature"}}
    server = Recorder((400, refusal), (200, ANSWER))
    chat = engine(server)
    wanted = request(output=OutputRequest(temperature=0.2, top_p=0.5))
    events = await collect(chat, wanted)
    notice = {"kind": "request_repair", "repair": "parameter_left_out", "parameter": "temperature"}
    assert events[0] == ProviderMetadata(notice)
    assert [("temperature" in body, "top_p" in body) for body in server.bodies] == [(True, True), (False, True)]
    assert not isinstance((await collect(chat, wanted))[0], ProviderMetadata)
    assert "temperature" not in server.bodies[2]
    await collect(chat, attrs.evolve(wanted, model=attrs.evolve(wanted.model, model="other")))
    assert "temperature" in server.bodies[3]


async def test_a_limit_is_sent_under_its_other_name_if_the_refusal_names_that() -> None:
    refusal = {"error": {"message": "'max_tokens' is not supported. Use 'max_completion_tokens' instead."}}
    server = Recorder((400, refusal), (200, ANSWER))
    await collect(engine(server), request(output=OutputRequest(max_tokens=7)))
    assert server.bodies[1]["max_completion_tokens"] == 7
    assert "max_tokens" not in server.bodies[1]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "'messages' is odd"),
        (400, "'top_p' is odd"),
        (500, "'temperature' is odd"),
        (400, "maximum context length, 'temperature'"),
    ],
)
async def test_other_failures_are_not_repaired(status: int, message: str) -> None:
    server = Recorder((status, {"error": {"message": message}}))
    await failure_of(engine(server), request(output=OutputRequest(temperature=0.2)))
    assert len(server.requests) == 1


async def test_a_repair_is_made_once() -> None:
    server = Recorder((400, {"error": {"message": "'temperature' and then 'top_p'"}}))
    assert (await failure_of(engine(server), request(output=OutputRequest(temperature=0.2, top_p=1)))).status == 400
    assert len(server.requests) == 2


async def test_an_engine_makes_no_retries_of_its_own() -> None:
    server = Recorder((429, {"error": "slow"}))
    assert (await failure_of(engine(server))).retryable
    assert len(server.requests) == 1


async def test_an_empty_body_stands_if_the_policy_is_off() -> None:
    runtime = RequestRuntime(reliability=ReliabilityConfig(retry_empty_provider_body=False))
    failure = await failure_of(engine(Recorder((200, b""))), request(runtime=runtime))
    assert (failure.cause, failure.retryable) == ("empty_body", False)


async def test_a_models_row_shapes_its_requests() -> None:
    row = ModelDescriptor(provider="acme", id="m", supports=frozenset(["tools"]))
    server = Recorder()
    wanted = request(output=OutputRequest(temperature=0.2), reasoning=ReasoningOptions(True, "high"))
    await collect(engine(server, models=[row]), wanted)
    assert not server.bodies[0].keys() & {"temperature", "reasoning_effort"}


# -- a step and the next


async def test_a_step_with_results_encodes_to_complete_pairs_with_unique_ids() -> None:
    fragments = [fragment(0, "A", "my_tool", '{"a":1}'), fragment(1, "A", "my_tool", "")]
    stream = sse(chunk(content="let me"), calls(*fragments), chunk("tool_calls"), "[DONE]")
    server = Recorder((200, stream), (200, ANSWER))
    chat = engine(server)
    earlier = [UserMessage("hi"), ToolCall("A", "my.tool", "{}"), ToolResult("A", "my.tool", "old")]
    events = await collect(chat, request(*earlier, tools=(tool("my.tool"),)))
    made = [event for event in events if isinstance(event, ToolCallCompleted)]
    assert [(name, text) for _, name, text in completed_calls(events)] == [("my.tool", '{"a":1}'), ("my.tool", "{}")]
    assert len({"A", *(event.id for event in made)}) == 3
    assert all(len(event.id) <= 40 for event in made)
    step = [
        *(ToolCall(event.id, event.name, event.arguments) for event in made),
        StoredMetadata(events[-2].payload),
        *(ToolResult(event.id, event.name, "new") for event in made),
    ]
    await collect(chat, request(*earlier, *step, tools=(tool("my.tool"),)))
    sent = server.bodies[1]["messages"]
    ids = [call["id"] for message in sent for call in message.get("tool_calls", ())]
    assert ids == ["A", *(event.id for event in made)]
    assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == ids
    assert {call["function"]["name"] for message in sent for call in message.get("tool_calls", ())} == {"my_tool"}


async def test_fresh_ids_differ_between_attempts_and_repeat_within_one() -> None:
    stream = sse(calls(fragment(0, None, "f", "{}")), "[DONE]")
    found = set()
    for attempt in ("a", "a", "b"):
        context = attrs.evolve(CONTEXT, attempt_id=attempt)
        async with engine(Recorder((200, stream))).stream_turn(context, request()) as opened:
            found |= {id for id, _, _ in completed_calls([event async for event in opened])}
    assert len(found) == 2


# -- models

LISTED = {
    "data": [
        {"id": "org/big", "context_length": 100, "name": "Big"},
        {"id": "m", "context_window": 7},
        {"id": "plain", "context_length": -1, "name": 5},
        {"id": ""},
        "odd",
    ]
}
GIVEN = ModelDescriptor(provider="acme", id="m", display_name="Mine", context_window=5, max_output_tokens=3)


async def test_models_are_listed_with_what_is_known_and_kept_for_six_hours(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = Recorder((200, LISTED))
    chat = engine(server, models=[GIVEN], api_key="k")
    rows = await chat.list_models()
    assert rows == (
        ModelDescriptor(provider="acme", id="org/big", display_name="Big", context_window=100),
        attrs.evolve(GIVEN, context_window=7),
        ModelDescriptor(provider="acme", id="plain"),
    )
    assert str(server.requests[0].url) == "http://localhost/v1/models"
    assert server.requests[0].headers["authorization"] == "Bearer k"
    await trio.sleep(6 * 3600 - 1)
    assert await chat.list_models() is rows
    assert len(server.requests) == 1
    await trio.sleep(2)
    await chat.list_models()
    assert len(server.requests) == 2


async def test_models_are_looked_for_in_a_second_place() -> None:
    server = Recorder((404, {}), (200, [{"id": "a"}]))
    assert [row.id for row in await engine(server, base_url="http://localhost").list_models()] == ["a"]
    assert [sent.url.path for sent in server.requests] == ["/models", "/v1/models"]


async def test_a_failed_call_leaves_what_was_known(autojump_clock: trio.testing.MockClock) -> None:
    server = Recorder((200, LISTED), (500, {}))
    chat = engine(server)
    rows = await chat.list_models()
    await trio.sleep(7 * 3600)
    assert await chat.list_models() is rows
    assert await engine(Recorder((500, {})), models=[GIVEN]).list_models() == (GIVEN,)
    with pytest.raises(ProviderFailure):
        await engine(Recorder((500, {}))).list_models()
    assert await engine(Recorder((200, 5))).list_models() == ()


async def test_without_a_key_the_given_models_are_listed() -> None:
    server = Recorder()
    chat = engine(server, base_url="https://api.example.com", models=[GIVEN])
    assert await chat.list_models() == (GIVEN,)
    assert server.requests == []


async def test_a_list_that_is_no_json_too_long_or_never_ends_is_a_failure(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roder_trio.providers._http.MAX_JSON", 20)

    cases = [
        ([b"{oops"], "bad_json"),
        ([b"x" * 30], "too_large"),
        ([b"[", 1000], "headers"),
        ([b"[", httpx.ReadError("x")], "io"),
    ]
    for steps, cause in cases:
        chat = engine(lambda _, steps=steps: httpx.Response(200, stream=Chunks(*steps)))
        with pytest.raises(ProviderFailure) as caught:
            await chat.list_models()
        assert caught.value.cause == cause
