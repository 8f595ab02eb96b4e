"""The Gemini engine: where requests go, what refusals mean, models, and steps sent back through a runtime."""

import logging
from typing import Any

import attrs
import httpx
import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import providers, transcript
from roder_trio.errors import ProviderFailure
from roder_trio.providers import Gemini
from roder_trio.schema.inference import (
    Completed,
    EngineTarget,
    MessageDelta,
    ModelDescriptor,
    ProviderMetadata,
    ReasoningOptions,
    RequestRuntime,
)
from roder_trio.testing import FakeProviderServer
from roder_trio.testing.server import Reply, Reset
from tests.chat import CONTEXT, Chunks, completed_calls, split_outputs, sse, told, tool
from tests.gemini import call, chunk, counts, engine, request, thought
from tests.test_chat_completions import Recorder
from tests.turn_support import Scene, settings

ANSWER = sse(chunk("Hey", finish="STOP"))


async def collect(gemini: Gemini, wanted: Any = None) -> list[Any]:
    async with gemini.stream_turn(CONTEXT, wanted or request()) as stream:
        events = [event async for event in stream]
    return split_outputs(events)[0]


async def failure_of(gemini: Gemini, wanted: Any = None) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await collect(gemini, wanted)
    return caught.value


# -- requests


async def test_the_url_holds_the_model_and_only_a_header_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server = Recorder((200, ANSWER))
    await collect(engine(server, api_key="hidden-key"))
    [sent] = server.requests
    assert str(sent.url) == "http://localhost/v1beta/models/m:streamGenerateContent?alt=sse"
    assert sent.headers["x-goog-api-key"] == "hidden-key"
    assert "authorization" not in sent.headers
    assert "hidden-key" not in str(sent.url) + sent.content.decode() + caplog.text


@pytest.mark.parametrize("version", ["v1beta", "v1"])
async def test_a_version_that_the_base_url_names_is_kept(version: str) -> None:
    server = Recorder((200, ANSWER), (404, {}), (200, {"models": [{"name": "models/n"}]}))
    gemini = engine(server, base_url=f"http://localhost/{version}/")
    await collect(gemini)
    assert server.requests[0].url.path == f"/{version}/models/m:streamGenerateContent"
    assert [row.id for row in await gemini.list_models()] == ["n"]
    assert server.requests[-1].url.path == f"/{version}/models"


@pytest.mark.parametrize(
    ("model", "path"), [("models/m", "models/m"), ("a/b", "models/a/b"), ("m?key=1#x", "models/m%3Fkey%3D1%23x")]
)
async def test_a_models_name_stays_inside_the_path(model: str, path: str) -> None:
    server = Recorder((200, ANSWER))
    wanted = request()
    await collect(engine(server), attrs.evolve(wanted, model=attrs.evolve(wanted.model, model=model)))
    assert server.requests[0].url.raw_path.decode() == f"/v1beta/{path}:streamGenerateContent?alt=sse"


async def test_googles_own_server_wants_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "for-another")
    server = Recorder((200, ANSWER))
    gemini = Gemini(http=httpx.AsyncClient(transport=httpx.MockTransport(server)))
    assert gemini.target == EngineTarget("gemini", "gemini", "https://generativelanguage.googleapis.com")
    assert (await failure_of(gemini)).cause == "missing_credentials"
    assert server.requests == []


async def test_what_the_wire_has_no_word_for_is_refused_before_anything_is_sent() -> None:
    server = Recorder((200, ANSWER))
    failure = await failure_of(engine(server), request(runtime=RequestRuntime(hosted_web_search="cached")))
    assert (failure.kind.name, failure.cause) == ("INVALID_REQUEST", "unsupported")
    assert server.requests == []


async def test_a_models_row_says_how_it_thinks() -> None:
    row = ModelDescriptor(provider="acme", id="m", supports=frozenset(["tools"]), reasoning_style="level")
    server = Recorder((200, ANSWER))
    await collect(engine(server, models=[row]), request(reasoning=ReasoningOptions(True, "low")))
    assert server.bodies[0]["generationConfig"] == {"thinkingConfig": {"thinkingLevel": "low", "includeThoughts": True}}


# -- failures


def refusal(status: int, name: str, message: str = "no", *details: Any) -> tuple[int, Any]:
    return status, {"error": {"code": status, "message": message, "status": name, "details": list(details)}}


@pytest.mark.parametrize(
    ("answer", "kind", "cause"),
    [
        (refusal(400, "INVALID_ARGUMENT"), "INVALID_REQUEST", "bad_request"),
        (
            refusal(400, "INVALID_ARGUMENT", "API key not valid.", {"reason": "API_KEY_INVALID"}),
            "AUTHENTICATION",
            "unauthorized",
        ),
        (refusal(400, "INVALID_ARGUMENT", "The input token count (9) exceeds 8"), "CONTEXT_WINDOW_EXCEEDED", None),
        (refusal(403, "PERMISSION_DENIED"), "AUTHENTICATION", "permission"),
        (refusal(404, "NOT_FOUND", "models/m is not found"), "INVALID_REQUEST", "model_not_found"),
        (refusal(429, "RESOURCE_EXHAUSTED"), "RATE_LIMITED", None),
        (refusal(500, "INTERNAL"), "SERVER_OVERLOADED", "server_error"),
        (refusal(503, "UNAVAILABLE"), "SERVER_OVERLOADED", "overloaded"),
        (refusal(504, "DEADLINE_EXCEEDED"), "SERVER_OVERLOADED", "server_error"),
        ((429, [refusal(429, "RESOURCE_EXHAUSTED")[1]]), "RATE_LIMITED", None),
    ],
)
async def test_a_refusal_is_classified(answer: tuple[int, Any], kind: str, cause: str | None) -> None:
    server = Recorder(answer)
    failure = await failure_of(engine(server))
    assert (failure.kind.name, failure.cause, failure.status) == (kind, cause, answer[0])
    assert len(server.requests) == 1


async def test_the_advice_of_a_refusal_is_read() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}
    failure = await failure_of(engine(Recorder(refusal(429, "RESOURCE_EXHAUSTED", "slow", info))))
    assert (failure.retry_after, failure.retryable) == (37.0, True)


async def test_a_finished_answer_needs_no_end_of_the_body(autojump_clock: trio.testing.MockClock) -> None:
    for ending in (1000.0, httpx.ReadError("x")):
        body = Chunks(sse(chunk("Hey", finish="STOP")), ending)
        gemini = engine(lambda _, body=body: httpx.Response(200, headers={"content-type": ""}, stream=body))
        begun = trio.current_time()
        events = await collect(gemini)
        assert (events[0], events[-1]) == (MessageDelta("Hey"), Completed("stop", "g1"))
        assert trio.current_time() - begun <= 3


# -- models


async def test_models_are_listed_with_their_windows() -> None:
    listed: dict[str, list[dict[str, Any]]] = {
        "models": [{"name": "models/m", "displayName": "Em", "inputTokenLimit": 100}, {"name": "models/n"}]
    }
    listed["models"][0]["supportedGenerationMethods"] = ["generateContent", "countTokens"]
    listed["models"].append({"name": "models/e", "supportedGenerationMethods": ["embedContent"]})
    server = Recorder((200, listed))
    rows = await engine(server, api_key="k").list_models()
    assert rows == (
        ModelDescriptor(provider="acme", id="m", display_name="Em", context_window=100),
        ModelDescriptor(provider="acme", id="n", display_name="n"),
    )
    assert (server.requests[0].url.path, server.requests[0].headers["x-goog-api-key"]) == ("/v1beta/models", "k")
    assert "pageSize" in server.requests[0].url.params


# -- a step and the next


async def test_a_step_with_results_encodes_to_complete_pairs_with_its_parts_verbatim() -> None:
    parts = [
        thought("hm"),
        {"text": "let me", "thoughtSignature": "T"},
        call("my_tool", {"a": 1}, thoughtSignature="S"),
        call("my_tool", {"a": 1}),
        call("my_tool", {}, "A"),
    ]
    server = Recorder((200, sse(chunk(*parts), chunk(finish="STOP"))), (200, ANSWER))
    gemini, tools = engine(server), (tool("my.tool"),)
    earlier = [
        transcript.UserMessage("hi"),
        transcript.ToolCall("A", "my.tool", "{}"),
        transcript.ToolResult("A", "my.tool", "old"),
    ]
    events = await collect(gemini, request(*earlier, tools=tools))
    made = completed_calls(events)
    assert len({"A", *(id for id, _, _ in made)}) == 4
    step = [
        transcript.ReasoningSummary("hm"),
        transcript.AssistantMessage("let me"),
        *(transcript.ProviderMetadata(event.payload) for event in events if isinstance(event, ProviderMetadata)),
        *(transcript.ToolCall(*one) for one in made),
        *(transcript.ToolResult(id, name, f"new {n}") for n, (id, name, _) in enumerate(made)),
    ]
    await collect(gemini, request(*earlier, *step, tools=tools))
    model, results = server.bodies[1]["contents"][-2:]
    assert model["parts"] == [*parts[:4], call("my_tool", {}, made[2][0])]
    answers = [part["functionResponse"] for part in results["parts"]]
    assert [answer.get("id") for answer in answers] == [None, None, made[2][0]]
    assert [answer["response"] for answer in answers] == [{"result": f"new {n}"} for n in range(3)]
    assert {answer["name"] for answer in answers} == {"my_tool"}


@rt.tool(effects={"read"})
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    await trio.lowlevel.checkpoint()
    return a + b


async def test_a_turn_with_a_tool_sends_the_signed_call_once_and_its_result_once() -> None:
    part = call("add", {"a": 1, "b": 2}, thoughtSignature="S")
    frames = [chunk(thought("plan"), usage=counts(10, 17, thoughts=7)), chunk(part, finish="STOP")]
    replies = [Reply.sse(*frames), Reply.sse(chunk("3", finish="STOP", usage=counts(30, 31, candidates=1)))]
    async with FakeProviderServer(replies).open() as server:
        gemini = providers.Gemini("acme", base_url=server.url)
        once = settings(provider_retry_max_attempts=1)
        async with rt.open_runtime(engines=[gemini], tools=[add], config=once) as runtime:
            thread = (await runtime.create_thread(model="m")).thread_id
            outcome = await runtime.run_turn(thread, "go")
            again = await runtime.run_turn(thread, "and now?")
    assert (outcome.status, outcome.text) == ("completed", "3")
    assert outcome.usage == told(10, 7, 17, reasoning_tokens=7).usage + told(30, 1, 31).usage
    assert server.requests[1].json["contents"] == [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [thought("plan"), part]},
        {"role": "user", "parts": [{"functionResponse": {"name": "add", "response": {"result": "3"}}}]},
    ]
    assert again.status == "failed"
    prefix = server.requests[1].body.removesuffix(b"]}")
    assert server.requests[2].body.startswith(prefix)


async def test_a_steer_in_mid_text_leaves_the_text_a_note_and_the_steer() -> None:
    replies = [Reply(steps=[sse(chunk("half"))], keep_open=True), Reply.sse(chunk("done", finish="STOP"))]
    async with FakeProviderServer(replies).open() as server:
        gemini = providers.Gemini("acme", base_url=server.url)
        async with rt.open_runtime(engines=[gemini], config=settings(default_model="m")) as runtime:
            thread = (await runtime.create_thread()).thread_id
            async with runtime.subscribe_events(thread_id=thread) as subscription:
                scene = Scene(runtime, gemini, thread, subscription)
                turn_id = await scene.start("go")
                await scene.wait_for(lambda scene: scene.kinds[-1] == "item.delta")
                await runtime.steer_turn(thread, turn_id, "other way")
                assert (await scene.wait(turn_id)).status == "completed"
    note = "[The message above was cut off before it was finished.]"
    assert server.requests[1].json["contents"] == [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [{"text": "half"}]},
        {"role": "user", "parts": [{"text": note}, {"text": "other way"}]},
    ]


async def test_malformed_output_is_tried_again_and_its_usage_counts() -> None:
    bad = chunk("oops", finish="MALFORMED_FUNCTION_CALL", usage=counts(5, 6))
    good = chunk("Hey", finish="STOP", usage=counts(7, 8))
    replies = [Reply.sse(bad), Reply(steps=[sse(chunk("cu"), chunk("t")), Reset()]), Reply.sse(good)]
    async with FakeProviderServer(replies).open() as server:
        gemini = providers.Gemini("acme", base_url=server.url)
        config = settings(provider_retry_initial_backoff=0.0)
        async with rt.open_runtime(engines=[gemini], config=config) as runtime:
            thread = (await runtime.create_thread(model="m")).thread_id
            outcome = await runtime.run_turn(thread, "go")
    assert (outcome.status, outcome.text) == ("completed", "Hey")
    assert outcome.usage == told(5, 0, 6).usage + told(7, 0, 8).usage
    assert len(server.requests) == 3


async def test_a_blocked_prompt_is_sent_exactly_once() -> None:
    replies = [Reply.sse({"promptFeedback": {"blockReason": "SAFETY"}})]
    async with FakeProviderServer(replies).open() as server:
        gemini = providers.Gemini("acme", base_url=server.url)
        async with rt.open_runtime(engines=[gemini]) as runtime:
            thread = (await runtime.create_thread(model="m")).thread_id
            outcome = await runtime.run_turn(thread, "go")
    assert (outcome.status, outcome.error_kind) == ("failed", "content_filter")
    assert len(server.requests) == 1
