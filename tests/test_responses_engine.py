"""The Responses engine: what it sends, what it repairs, how it fails, and its endpoint that compacts."""

import json
from typing import Any

import httpx
import pytest
import trio

from roder_trio import providers
from roder_trio.errors import ProviderFailure
from roder_trio.logic.pairing import NO_RESULT
from roder_trio.providers.openai_responses import OpenAIResponses, Profile
from roder_trio.schema.inference import (
    Completed,
    EngineTarget,
    MessageDelta,
    ModelDescriptor,
    ProviderMetadata,
    ReasoningOptions,
)
from roder_trio.schema.transcript import ToolCall, ToolResult, UserMessage
from tests.chat import CONTEXT, Chunks, request, split_outputs, sse, told
from tests.responses import (
    answered,
    asked,
    boundary,
    call,
    done,
    ended,
    engine,
    frame,
    given,
    message,
    reasoning,
    stored,
    text,
    usage,
)

ANSWER = sse(ended(message("Hey"), usage=usage(8, 2, 10)))
HEY = [MessageDelta("Hey"), told(8, 2, 10), Completed("stop", "r1")]
STREAM = {"content-type": "text/event-stream"}
COMPACTED = {"id": "c1", "output": [boundary()], "usage": usage(30, 10, 40)}


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
        return [json.loads(sent.content) for sent in self.requests]


async def outputs_of(stream: Any) -> list[Any]:
    outputs: list[Any] = []
    try:
        async with stream as events:
            async for event in events:
                outputs.append(event)
    except ProviderFailure as failure:
        outputs.append(failure)
    split_outputs(outputs)
    return outputs


async def collect(server: Any, wanted: Any = None, **options: Any) -> list[Any]:
    return await outputs_of(engine(server, **options).stream_turn(CONTEXT, wanted or request()))


async def compact(server: Any, wanted: Any = None, **options: Any) -> list[Any]:
    stream = engine(server, **options).compact_turn(CONTEXT, wanted or request())
    assert stream is not None
    return await outputs_of(stream)


def refusal(text: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": text, "type": "invalid_request_error", **fields}}


# -- what is sent


async def test_a_request_goes_to_its_endpoint_with_the_key_and_is_read_to_its_end() -> None:
    server = Recorder()
    outputs = await collect(server, api_key="key")
    assert [output for output in outputs if not isinstance(output, ProviderMetadata)] == HEY
    [sent] = server.requests
    assert (sent.method, str(sent.url)) == ("POST", "http://localhost/v1/responses")
    assert (sent.headers["authorization"], sent.headers["accept"]) == ("Bearer key", "text/event-stream")
    assert server.bodies == [{"model": "m", "store": False, "stream": True, "input": [given("hi")]}]


def test_without_arguments_it_speaks_to_openai() -> None:
    bare = OpenAIResponses()
    assert bare.target == EngineTarget("openai_responses", "openai", "https://api.openai.com/v1")
    assert isinstance(bare.profile, Profile)
    assert providers.OpenAIResponses is OpenAIResponses
    assert not bare.requires_native_compaction
    blind = engine(vision=False, structured_output="none").capabilities
    assert (blind.image_input, blind.structured_output) == (False, False)


async def test_a_models_row_shapes_its_requests() -> None:
    row = ModelDescriptor(provider="acme", id="m", supports=frozenset({"tools"}))
    server = Recorder()
    await collect(server, request(reasoning=ReasoningOptions(True, "high")), models=[row])
    assert "reasoning" not in server.bodies[0]


async def test_calls_get_ids_that_no_other_attempt_gives() -> None:
    nameless = sse(ended(call("", "", "read", "{}"), call("", "", "read", "{}")))
    outputs = await collect(Recorder((200, nameless)))
    ids = [output.id for output in outputs if hasattr(output, "arguments")]
    assert len(set(ids)) == 2
    assert all(id.startswith("call_") and len(id) <= 40 for id in ids)


# -- repairs

STEP = [
    UserMessage("ask"),
    stored(reasoning("why", encrypted_content="e"), call("fc_1", "call_1", "read", "{}")),
    ToolCall("call_1", "read", "{}"),
    ToolResult("call_1", "read", "r"),
    ToolCall("call_2", "read", "{}"),
]
SENT = [
    given("ask"),
    reasoning("why", encrypted_content="e"),
    call("fc_1", "call_1", "read", "{}"),
    answered("call_1", "r"),
    asked("call_2", "read", "{}"),
    answered("call_2", NO_RESULT),
]
ORPHAN = (400, refusal("No tool call found for function call output with call_id call_1.", param="input"))
UNREADABLE = (400, refusal("The encrypted content could not be verified.", code="invalid_encrypted_content"))
UNKNOWN = (400, refusal("Item with id 'rs_a' not found. Items are not persisted when `store` is set to false."))


def notice(repair: str, **details: Any) -> ProviderMetadata:
    return ProviderMetadata({"kind": "request_repair", "repair": repair, **details})


async def test_an_output_whose_call_the_server_misses_is_dropped() -> None:
    server = Recorder(ORPHAN, (200, ANSWER))
    outputs = await collect(server, request(*STEP))
    assert outputs[0] == notice("output_dropped", call_id="call_1")
    assert [body["input"] for body in server.bodies] == [SENT, [*SENT[:3], *SENT[4:]]]
    assert outputs[-1] == Completed("stop", "r1")


@pytest.mark.parametrize("refused", [UNREADABLE, UNKNOWN])
async def test_reasoning_that_the_server_cant_read_is_left_out_and_calls_and_results_are_kept(refused: Any) -> None:
    server = Recorder(refused, (200, ANSWER))
    outputs = await collect(server, request(*STEP))
    assert outputs[0] == notice("reasoning_dropped")
    assert [body["input"] for body in server.bodies] == [SENT, [SENT[0], *SENT[2:]]]


async def test_each_repair_is_made_once_for_a_stream() -> None:
    server = Recorder(ORPHAN, UNREADABLE, (200, ANSWER))
    outputs = await collect(server, request(*STEP))
    assert outputs[:2] == [notice("output_dropped", call_id="call_1"), notice("reasoning_dropped")]
    assert server.bodies[-1]["input"] == [SENT[0], SENT[2], *SENT[4:]]
    other = (400, refusal("No tool call found for function call output with call_id call_2."))
    for answers in ((ORPHAN, other), (UNKNOWN, UNKNOWN), (ORPHAN, UNKNOWN, ORPHAN)):
        server = Recorder(*answers)
        [failure] = await collect(server, request(*STEP))
        assert (failure.kind.name, failure.status) == ("INVALID_REQUEST", 400)
        assert len(server.requests) == len(answers)


async def test_what_cant_be_helped_is_sent_once() -> None:
    unknown_call = (400, refusal("No tool call found for function call output with call_id other."))
    for answer in (unknown_call, (422, UNREADABLE[1]), (400, refusal("odd"))):
        server = Recorder(answer)
        assert isinstance((await collect(server, request(*STEP)))[0], ProviderFailure)
        assert len(server.requests) == 1
    server = Recorder(UNREADABLE)
    assert isinstance((await collect(server))[0], ProviderFailure)
    assert len(server.requests) == 1


async def test_after_an_event_nothing_is_repaired() -> None:
    inside = sse(text("so"), {"type": "error", **refusal("unreadable", code="invalid_encrypted_content")})
    server = Recorder((200, inside))
    outputs = await collect(server, request(*STEP))
    assert outputs[0] == MessageDelta("so")
    assert isinstance(outputs[1], ProviderFailure)
    assert len(server.requests) == 1


# -- failures


@pytest.mark.parametrize(
    ("status", "error", "kind", "cause"),
    [
        (400, refusal("too long", code="context_length_exceeded"), "CONTEXT_WINDOW_EXCEEDED", None),
        (400, refusal("Your input exceeds the context window of this model."), "CONTEXT_WINDOW_EXCEEDED", None),
        (413, refusal("too large"), "REQUEST_TOO_LARGE", None),
        (400, refusal("odd parameter"), "INVALID_REQUEST", "bad_request"),
        (404, refusal("The model `m` does not exist", code="model_not_found"), "INVALID_REQUEST", "model_not_found"),
        (401, refusal("Incorrect key", code="invalid_api_key"), "AUTHENTICATION", "unauthorized"),
        (429, refusal("pay first", code="insufficient_quota"), "QUOTA_EXCEEDED", None),
        (429, {"error": {"type": "usage_limit_reached", "resets_in_seconds": 30}}, "USAGE_LIMIT", None),
        (429, refusal("slower"), "RATE_LIMITED", None),
        (503, refusal("Slow down", code="slow_down"), "SERVER_OVERLOADED", "overloaded"),
        (500, {"error": {"type": "server_error", "message": "sorry"}}, "SERVER_OVERLOADED", "server_error"),
        (404, {"detail": "Not Found"}, "INVALID_REQUEST", "endpoint_not_found"),
    ],
)
async def test_a_refusal_is_read_for_what_it_means(status: int, error: Any, kind: str, cause: str | None) -> None:
    [failure] = await collect(Recorder((status, error)))
    assert (failure.kind.name, failure.cause, failure.status, failure.visible) == (kind, cause, status, False)


@pytest.mark.parametrize(
    ("frames", "visible"),
    [
        ([frame("created", response={"id": "r1"})], False),
        ([frame("output_item.added", item=message())], False),
        ([text("Hi")], True),
        ([done(reasoning("why"))], True),
        ([done(call("fc_1", "call_1", "read", "{}"))], True),
        ([done({"type": "web_search_call", "id": "ws_1"})], True),
        ([done(boundary())], True),
    ],
)
async def test_a_connection_that_breaks_is_an_interrupted_stream_and_says_if_something_was_shown(
    frames: list[Any], visible: bool
) -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=STREAM, stream=Chunks(sse(*frames), httpx.ReadError("gone")))

    failure = (await collect(handler))[-1]
    assert isinstance(failure, ProviderFailure)
    assert (failure.kind.name, failure.cause, failure.visible) == ("STREAM_INTERRUPTED", "truncated", visible)


async def test_a_first_frame_that_is_an_error_showed_nothing() -> None:
    limited = {"type": "error", "code": "rate_limit_exceeded", "message": "slower"}
    [failure] = await collect(Recorder((200, sse(limited))))
    assert (failure.kind.name, failure.visible) == ("RATE_LIMITED", False)


# -- the endpoint that compacts


async def test_the_server_is_asked_for_a_boundary_and_answers_in_one_object() -> None:
    server = Recorder((200, COMPACTED))
    outputs = await compact(server, request(*STEP))
    assert [outputs[0], outputs[2]] == [told(30, 10, 40), Completed(None, "c1")]
    assert outputs[1].payload["compacted_input"] == outputs[1].payload["output"] == [boundary()]
    [sent] = server.requests
    assert str(sent.url) == "http://localhost/v1/responses/compact"
    assert sent.headers["accept"] == "application/json"
    assert server.bodies == [{"model": "m", "input": SENT}]


async def test_reasoning_that_the_server_cant_read_is_no_hindrance_for_a_compaction() -> None:
    server = Recorder(UNREADABLE, (200, COMPACTED))
    outputs = await compact(server, request(*STEP))
    assert outputs[0] == notice("reasoning_dropped")
    assert len(outputs) == 4


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_the_endpoint_cant_compact(status: int) -> None:
    [failure] = await compact(Recorder((status, {"detail": "no such thing"})))
    assert (failure.kind.name, failure.cause, failure.status) == ("INVALID_REQUEST", "compaction_unsupported", status)
    assert not failure.retryable


async def test_other_refusals_of_a_compaction_are_what_they_are() -> None:
    [failure] = await compact(Recorder((500, {"error": {"message": "sorry"}})))
    assert (failure.kind.name, failure.cause) == ("SERVER_OVERLOADED", "server_error")
    [failure] = await compact(Recorder((200, {"error": {"type": "server_error"}})))
    assert failure.kind.name == "SERVER_OVERLOADED"


def test_an_engine_whose_server_has_no_such_endpoint_says_so_beforehand() -> None:
    assert engine(native_compaction=False).compact_turn(CONTEXT, request()) is None


async def test_a_compaction_may_take_longer_than_an_answer_may_take_to_begin(autojump_clock: Any) -> None:
    def handler(sent: httpx.Request) -> httpx.Response:
        compacts = sent.url.path.endswith("/compact")
        body = json.dumps(COMPACTED).encode() if compacts else ANSWER
        headers = {"content-type": "application/json"} if compacts else STREAM
        return httpx.Response(200, headers=headers, stream=Chunks(wait, body))

    wait = 200.0
    [failure] = await collect(handler)
    assert (failure.kind.name, failure.cause) == ("TIMEOUT", "headers")
    assert (await compact(handler))[-1] == Completed(None, "c1")
    wait = 400.0
    [failure] = await compact(handler)
    assert (failure.kind.name, failure.cause) == ("TIMEOUT", "headers")


async def test_the_end_is_not_waited_for_once_the_server_said_how_it_ended(autojump_clock: Any) -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=STREAM, stream=Chunks(ANSWER, 3_600.0))

    start = trio.current_time()
    assert (await collect(handler))[-1] == Completed("stop", "r1")
    assert trio.current_time() - start < 1
