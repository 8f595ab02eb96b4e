"""One exchange over httpx: what is closed, what is waited for, what is used again, and what never shows."""

import gc
import logging
import math
import ssl
import traceback
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from roder_trio.errors import ProviderFailure
from roder_trio.logic.redaction import Redactor
from roder_trio.logic.sse import Frame
from roder_trio.providers import _http
from roder_trio.providers._body import Body, Whole
from roder_trio.providers._dialect import Timeouts
from roder_trio.providers._http import SharedClient
from roder_trio.providers.chat_completions import ChatCompletions, decode
from roder_trio.schema.inference import Completed, MessageDelta, ProviderMetadata
from roder_trio.testing.server import FakeProviderServer, Reply, Reset, Stall
from tests.chat import CONTEXT, Chunks, chunk, engine, request, split_outputs, sse, usage
from tests.loopback import deaf_port, wait_tasks

ANSWER = [chunk(content="Hey"), chunk("stop"), usage(8, 2), "[DONE]"]
NO_CHECKPOINT_BEFORE = 3


def respond(*steps: Any, status: int = 200, headers: Any = None) -> Callable[[httpx.Request], httpx.Response]:
    def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers=headers or {"content-type": "text/event-stream"}, stream=Chunks(*steps))

    return handler


async def collect(chat: ChatCompletions) -> tuple[list[Any], ProviderFailure | None]:
    outputs: list[Any] = []
    try:
        async with chat.stream_turn(CONTEXT, request()) as stream:
            async for event in stream:
                outputs.append(event)
    except ProviderFailure as failure:
        outputs.append(failure)
    return split_outputs(outputs)


async def failure_of(chat: ChatCompletions) -> ProviderFailure:
    _, failure = await collect(chat)
    assert failure is not None
    return failure


async def enter(chat: ChatCompletions) -> None:
    async with chat.stream_turn(CONTEXT, request()):
        pass


def raising(error: Exception) -> Callable[[httpx.Request], httpx.Response]:
    def handler(_: httpx.Request) -> httpx.Response:
        raise error

    return handler


def at(server: FakeProviderServer, **options: Any) -> ChatCompletions:
    return ChatCompletions("acme", base_url=f"{server.url}/v1", **{"timeouts": Timeouts(connect=60), **options})


def in_use(client: httpx.AsyncClient) -> int:
    """How many requests hold a place in the pool."""
    return len(client._transport._pool._requests)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time is that of a machine, which may be slow, no connection is given up for it."""
    if "autojump_clock" not in request.fixturenames:
        monkeypatch.setattr(_http, "LINGER", 60.0)
        monkeypatch.setattr(_http, "CLOSE_GRACE", 60.0)
        monkeypatch.setattr(decode, "AFTER_FINISH", 60.0)


# -- entering and leaving


async def test_http_failures_raise_on_entering_and_body_failures_from_the_iterator() -> None:
    with pytest.raises(ProviderFailure) as caught:
        await enter(engine(respond(b'{"error": "no"}', status=503)))
    assert caught.value.kind.name == "SERVER_OVERLOADED"
    chat = engine(respond(sse(chunk(content="a"))))
    async with chat.stream_turn(CONTEXT, request()) as stream:
        assert await anext(stream) == MessageDelta("a")
        with pytest.raises(ProviderFailure) as caught:
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert caught.value.visible


async def test_leaving_half_read_closes_the_response_without_a_warning() -> None:
    body = Chunks(sse(chunk(content="a")), 0, sse(chunk(content="b")), 100)
    chat = engine(lambda _: httpx.Response(200, stream=body))
    async with chat.stream_turn(CONTEXT, request()) as stream:
        await anext(stream)
    gc.collect()
    assert body.closed


async def test_leaving_unread_and_by_an_error_closes_the_response() -> None:
    body = Chunks(sse(*ANSWER))
    chat = engine(lambda _: httpx.Response(200, stream=body))
    with pytest.raises(ZeroDivisionError):
        async with chat.stream_turn(CONTEXT, request()):
            raise ZeroDivisionError
    gc.collect()
    assert body.closed


async def test_decoded_events_are_handed_out_without_a_checkpoint() -> None:
    chat = engine(respond(sse(*ANSWER)))
    async with chat.stream_turn(CONTEXT, request()) as stream:
        events = [await anext(stream)]
        with trio.testing.assert_no_checkpoints():
            events.extend([await anext(stream) for _ in range(NO_CHECKPOINT_BEFORE)])
    assert isinstance(events[-1], Completed)


async def test_settle_finds_usage_that_was_not_handed_out() -> None:
    chat = engine(respond(sse(chunk(content="a"), usage(8, 2)), 100))
    async with chat.stream_turn(CONTEXT, request()) as stream:
        assert stream.settle() is None
        await anext(stream)
        settled = stream.settle()
    assert settled is not None
    assert settled.total_tokens == 10


async def test_bytes_that_came_are_decoded_for_their_usage_when_the_stream_is_left() -> None:
    chat = engine(respond(sse(chunk(content="a")), sse(usage(8, 2)), 100))
    async with chat.stream_turn(CONTEXT, request()) as stream:
        await anext(stream)
    settled = stream.settle()
    assert settled is not None
    assert settled.total_tokens == 10


async def test_an_engine_keeps_its_own_client_and_else_takes_the_runtimes() -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(respond(b"", status=500))) as other:
        own = engine(respond(sse(*ANSWER)))
        own.use_client(other)
        assert (await collect(own))[1] is None
        shared = engine()
        shared.use_client(other)
        assert (await failure_of(shared)).status == 500


# -- a real server


@pytest.mark.parametrize("split", [None, 1, 7])
async def test_the_connection_is_used_again_after_an_answer(split: int | None) -> None:
    async with FakeProviderServer([Reply.sse(*ANSWER, split=split)] * 3).open() as server, SharedClient() as client:
        chat = at(server)
        chat.use_client(client)
        for _ in range(3):
            assert (await collect(chat))[1] is None
        assert server.connections == 1
        assert in_use(client) == 0
        sent = server.requests[0]
    assert (sent.method, sent.path, sent.json["stream"]) == ("POST", "/v1/chat/completions", True)
    assert sent.headers["accept"] == "text/event-stream"
    assert sent.headers["accept-encoding"] == "identity"
    assert "authorization" not in sent.headers


async def test_completed_comes_at_once_though_the_server_holds_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "LINGER", 0.1)
    async with FakeProviderServer([Reply.sse(*ANSWER, keep_open=True)]).open() as server, SharedClient() as client:
        chat = at(server)
        chat.use_client(client)
        with trio.fail_after(60):
            assert (await collect(chat))[1] is None
            await server.wait_hang_ups()
        assert in_use(client) == 0


async def test_an_engine_without_a_runtime_opens_a_client_for_the_call() -> None:
    async with FakeProviderServer([Reply.sse(*ANSWER)]).open() as server:
        assert (await collect(at(server)))[1] is None


@pytest.mark.parametrize("steps", [[], [sse(chunk(content="a"))]])
async def test_a_cancel_hangs_up_and_empties_the_pool(steps: list[bytes]) -> None:
    replies = [Reply(steps=steps, keep_open=True), Reply.sse(*ANSWER)]
    async with FakeProviderServer(replies).open() as server, SharedClient() as client:
        chat = at(server)
        chat.use_client(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, chat)
            await server.wait_requests()
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            await server.wait_hang_ups()
        assert in_use(client) == 0
        assert (await collect(chat))[1] is None


async def test_a_cancel_before_the_headers_hangs_up() -> None:
    async with FakeProviderServer([Reply(status=None, keep_open=True)]).open() as server, SharedClient() as client:
        chat = at(server)
        chat.use_client(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, chat)
            await server.wait_requests()
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            await server.wait_hang_ups()
        assert in_use(client) == 0


async def test_of_twenty_at_once_ten_are_cancelled_and_the_others_go_on() -> None:
    go = trio.Event()
    reply = Reply(steps=[sse(chunk(content="a")), go, sse(*ANSWER)])
    ended: list[int] = []

    async with FakeProviderServer([reply] * 20).open() as server, SharedClient() as client:
        chat = at(server)
        chat.use_client(client)

        async def one(number: int, scope: trio.CancelScope) -> None:
            with scope:
                _, failure = await collect(chat)
                assert failure is None
                ended.append(number)

        scopes = [trio.CancelScope() for _ in range(20)]
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number, scope in enumerate(scopes):
                    nursery.start_soon(one, number, scope)
                await server.wait_requests(20)
                for scope in scopes[::2]:
                    scope.cancel()
                go.set()
        assert sorted(ended) == list(range(1, 20, 2))
        assert in_use(client) == 0


async def test_a_connection_that_went_stale_is_replaced_once() -> None:
    replies = [Reply.sse(*ANSWER), Reply(status=None, steps=[Reset()]), Reply.sse(*ANSWER)]
    async with FakeProviderServer(replies).open() as server, SharedClient() as client:
        chat = at(server)
        chat.use_client(client)
        assert (await collect(chat))[1] is None
        events, failure = await collect(chat)
        assert failure is None
        assert events[0] == ProviderMetadata({"kind": "request_repair", "repair": "stale_connection"})
        assert (len(server.requests), server.connections) == (3, 2)


async def test_a_new_connection_that_dies_is_a_transport_failure() -> None:
    async with FakeProviderServer([Reply(status=None, steps=[Reset()])]).open() as server, SharedClient() as client:
        chat = at(server)
        chat.use_client(client)
        failure = await failure_of(chat)
        assert (failure.kind.name, failure.cause, failure.retryable) == ("TRANSPORT", "io", True)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("steps", "kind", "cause"),
    [
        ([Reset()], "TRANSPORT", "io"),
        ([b": comment\n\n", Reset()], "TRANSPORT", "io"),
        ([sse(chunk(content="a")), Reset()], "STREAM_INTERRUPTED", "truncated"),
        ([sse(chunk("stop")), Reset()], None, None),
        ([], "STREAM_INTERRUPTED", "empty_body"),
        ([b": comment\n\n", b"\n"], "STREAM_INTERRUPTED", "empty_body"),
        ([b"data: \n\n"], "STREAM_INTERRUPTED", "empty_body"),
        ([b"<html>"], "STREAM_INTERRUPTED", "empty_body"),
        ([b'data: {"choices": [{"delta'], "STREAM_INTERRUPTED", "truncated"),
    ],
)
async def test_a_body_that_ends_early_says_how(steps: Any, kind: str | None, cause: str | None) -> None:
    async with FakeProviderServer([Reply(steps=steps)]).open() as server, SharedClient() as client:
        chat = at(server)
        chat.use_client(client)
        _, failure = await collect(chat)
        assert (failure and failure.kind.name, failure and failure.cause) == (kind, cause)


async def test_redirects_are_not_followed() -> None:
    async with FakeProviderServer([Reply.sse(*ANSWER)]).open() as other:
        moved = Reply(status=307, headers={"Location": other.url})
        async with FakeProviderServer([moved]).open() as server, SharedClient() as client:
            chat = at(server)
            chat.use_client(client)
            failure = await failure_of(chat)
        assert (failure.kind.name, failure.cause) == ("INVALID_REQUEST", "redirect")
        assert other.requests == []


async def test_no_server_there_is_a_failed_connection() -> None:
    with deaf_port() as port:
        failure = await failure_of(engine(base_url=f"http://127.0.0.1:{port}"))
    assert (failure.kind.name, failure.cause) == ("TRANSPORT", "connect")


async def test_headers_that_do_not_come_time_out_on_a_real_connection(mock_clock: trio.testing.MockClock) -> None:
    async def let_time_pass() -> None:
        await server.wait_requests()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(20)

    async with FakeProviderServer([Reply(status=None, keep_open=True)]).open() as server, SharedClient() as client:
        chat = at(server, timeouts=Timeouts(headers=20))
        chat.use_client(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_time_pass)
            failure = await failure_of(chat)
        assert (failure.kind.name, failure.cause) == ("TIMEOUT", "headers")
        assert in_use(client) == 0


async def test_after_a_pool_timeout_new_requests_get_a_fresh_pool_once(mock_clock: trio.testing.MockClock) -> None:
    async def let_time_pass() -> None:
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(10)

    limits = httpx.Limits(max_connections=1)
    replies = [Reply.sse(ANSWER[0], keep_open=True), *[Reply.sse(*ANSWER)] * 2]
    async with FakeProviderServer(replies).open() as server, SharedClient(limits=limits) as client:
        chat = at(server, timeouts=Timeouts(pool=10))
        chat.use_client(client)
        async with chat.stream_turn(CONTEXT, request()) as stream:
            await anext(stream)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(let_time_pass)
                failure = await failure_of(chat)
            assert (failure.kind.name, failure.cause, failure.retryable) == ("TIMEOUT", "pool", True)
            assert (await collect(chat))[1] is None
        assert client._transport._pool.connections == []  # type: ignore[attr-defined]
        assert (await collect(chat))[1] is None


async def test_a_shared_client_can_be_closed_without_a_block() -> None:
    client = SharedClient()
    client._fresh = httpx.AsyncClient()
    await client.aclose()
    assert client.is_closed
    assert client._fresh.is_closed


async def test_a_shared_client_sends_plain_requests_too() -> None:
    async with FakeProviderServer([Reply(steps=[b"x"])]).open() as server, SharedClient() as client:
        response = await client.get(server.url)
        assert response.content == b"x"


async def test_the_answers_of_a_test_server_follow_its_script() -> None:
    async with FakeProviderServer([Reply(steps=[b"", Stall(0), b"x"], close=True)]).open() as server:
        async with httpx.AsyncClient() as client:
            assert (await client.get(server.url)).content == b"x"
        async with httpx.AsyncClient() as client:
            assert (await client.get(server.url)).status_code == 500
        assert server.connections == 2


@pytest.mark.parametrize("sent", [b"POST /", b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nhalf"])
@pytest.mark.parametrize("resets", [False, True])
async def test_a_peer_that_leaves_within_its_request_leaves_a_test_server_idle(sent: bytes, resets: bool) -> None:
    async with FakeProviderServer().open() as server:
        await trio.testing.wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
            await stream.send_all(sent)
            if resets:
                stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        with trio.fail_after(60):
            while not server.connections:  # noqa: ASYNC110 - the server tells of requests only
                await trio.lowlevel.checkpoint()
            await wait_tasks(tasks)
        assert (server.requests, server.hang_ups) == ([], 0)


# -- deadlines, on trio's clock


async def test_headers_and_the_first_byte_have_one_deadline(autojump_clock: trio.testing.MockClock) -> None:
    async def never(_: httpx.Request) -> httpx.Response:
        await trio.sleep(1000)
        raise AssertionError

    async def late(_: httpx.Request) -> httpx.Response:
        await trio.sleep(200)
        return respond(150, sse(*ANSWER))(_)

    for handler in (never, late):
        begin = trio.current_time()
        failure = await failure_of(engine(handler))
        assert (failure.kind.name, failure.cause) == ("TIMEOUT", "headers")
        assert trio.current_time() - begin == pytest.approx(300)
    begin = trio.current_time()
    await failure_of(engine(never, timeouts=Timeouts()))
    assert trio.current_time() - begin == pytest.approx(60)


async def test_a_body_may_stall_once_it_has_begun(autojump_clock: trio.testing.MockClock) -> None:
    pauses = [part for _ in range(30) for part in (b": ping\n\n", 100)]
    events, failure = await collect(engine(respond(*pauses, sse(*ANSWER))))
    assert failure is None
    assert events[0] == MessageDelta("Hey")
    _, failure = await collect(engine(respond(sse(ANSWER[0]), 100_000, sse(*ANSWER[1:]))))
    assert failure is None


async def test_a_reader_that_takes_its_time_is_not_counted(autojump_clock: trio.testing.MockClock) -> None:
    chat = engine(respond(sse(ANSWER[0]), sse(ANSWER[1]), 1, sse(*ANSWER[2:])))
    events: list[Any] = []
    async with chat.stream_turn(CONTEXT, request()) as stream:
        await trio.sleep(1000)
        async for event in stream:
            events.append(event)
            await trio.sleep(1000)
    assert len(events) == 4


async def test_a_finished_answer_waits_two_seconds_for_more_frames(autojump_clock: trio.testing.MockClock) -> None:
    comments = [part for _ in range(20) for part in (1, b": ping\n\n")]
    begin = trio.current_time()
    events, failure = await collect(engine(respond(sse(ANSWER[0], ANSWER[1]), 1.5, sse(ANSWER[2]), *comments)))
    assert failure is None
    assert events[1].usage.total_tokens == 10
    assert isinstance(events[-1], Completed)
    assert trio.current_time() - begin == pytest.approx(3.5)


async def test_after_the_end_the_rest_is_awaited_for_a_tenth_of_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    begin = trio.current_time()
    assert (await collect(engine(respond(sse(*ANSWER), 60))))[1] is None
    assert trio.current_time() - begin == pytest.approx(0.1)


async def test_closing_takes_at_most_two_seconds(autojump_clock: trio.testing.MockClock) -> None:
    class Stuck(Chunks):
        async def aclose(self) -> None:
            await trio.sleep(1000)

    chat = engine(lambda _: httpx.Response(200, stream=Stuck(sse(chunk(content="a")), 10)))
    begin = trio.current_time()
    with trio.CancelScope() as scope:
        async with chat.stream_turn(CONTEXT, request()) as stream:
            await anext(stream)
            scope.cancel()
            await anext(stream)
    assert trio.current_time() - begin == pytest.approx(2)


async def test_the_body_of_an_error_is_read_for_five_seconds(autojump_clock: trio.testing.MockClock) -> None:
    begin = trio.current_time()
    failure = await failure_of(engine(respond(b"so far", 1000, status=500)))
    assert failure.body_excerpt == "so far"
    assert trio.current_time() - begin == pytest.approx(5)


class Silent(trio.abc.Stream):
    """A connection to a server that hangs, from the beginning or once it has read the request."""

    def __init__(self, *, reads: bool) -> None:
        self.reads = reads

    async def send_all(self, data: Any) -> None:
        await trio.sleep(0 if self.reads else math.inf)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(("cause", "seconds"), [("connect", 10), ("write", 60), ("pool", 30), ("headers", 300)])
async def test_each_part_of_an_exchange_has_its_deadline(
    cause: str, seconds: float, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(*args: Any, **options: Any) -> Silent:
        await trio.sleep(math.inf if cause == "connect" else 0)
        return Silent(reads=cause != "write")

    monkeypatch.setattr(trio, "open_tcp_stream", connect)
    limits = httpx.Limits(max_connections=1)
    async with SharedClient(limits=limits, verify=False) as client, trio.open_nursery() as nursery:
        chat = engine()
        chat.use_client(client)
        if cause == "pool":
            nursery.start_soon(failure_of, chat)
            await trio.testing.wait_all_tasks_blocked()
        begin = trio.current_time()
        failure = await failure_of(chat)
        assert (failure.kind.name, failure.cause, failure.retryable) == ("TIMEOUT", cause, True)
        assert trio.current_time() - begin == pytest.approx(seconds)
        nursery.cancel_scope.cancel()


# -- failures


@pytest.mark.parametrize(
    ("error", "kind", "cause", "should_retry"),
    [
        (httpx.ConnectTimeout("x"), "TIMEOUT", "connect", None),
        (httpx.PoolTimeout("x"), "TIMEOUT", "pool", None),
        (httpx.WriteTimeout("x"), "TIMEOUT", "write", None),
        (httpx.ReadTimeout("x"), "TIMEOUT", "headers", None),
        (httpx.ConnectError("getaddrinfo failed"), "TRANSPORT", "connect", None),
        (httpx.ReadError("x"), "TRANSPORT", "io", None),
        (httpx.WriteError("x"), "TRANSPORT", "io", None),
        (httpx.RemoteProtocolError("x"), "TRANSPORT", "io", None),
        (OSError("x"), "TRANSPORT", "io", None),
        (httpx.ProxyError("407 Proxy Authentication Required"), "TRANSPORT", "proxy", False),
        (httpx.ProxyError("502 Bad Gateway"), "TRANSPORT", "proxy", None),
        (httpx.UnsupportedProtocol("x"), "TRANSPORT", "url", False),
        (httpx.LocalProtocolError("x"), "INVALID_REQUEST", "bad_request", None),
    ],
)
async def test_errors_of_the_library_are_replaced(
    error: Exception, kind: str, cause: str, should_retry: bool | None
) -> None:
    failure = await failure_of(engine(raising(error)))
    assert (failure.kind.name, failure.cause, failure.should_retry) == (kind, cause, should_retry)
    assert failure.__suppress_context__
    assert not failure.visible


async def test_an_untrusted_certificate_and_a_bad_url_are_not_tried_again() -> None:
    error = httpx.ConnectError("x")
    error.__cause__ = ssl.SSLCertVerificationError("self-signed")
    failure = await failure_of(engine(raising(error)))
    assert (failure.cause, failure.retryable) == ("tls", False)
    failure = await failure_of(engine(base_url="nowhere://localhost"))
    assert (failure.cause, failure.retryable) == ("url", False)


async def test_a_profile_names_headers_that_tell_when_a_limit_is_reset() -> None:
    sent = {"Acme-Left": "0", "Acme-Reset": "20"}
    named = {"acme-left": "x-ratelimit-remaining-acme", "acme-reset": "x-ratelimit-reset-acme"}
    for names, wait in (({}, None), (named, 20)):
        failure = await failure_of(engine(respond(status=429, headers=sent), limit_headers=names))
        assert (failure.kind.name, failure.retry_after) == ("RATE_LIMITED", wait)


async def test_errors_of_other_code_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        await enter(engine(raising(ZeroDivisionError())))


async def test_an_error_body_is_read_to_its_limit_and_cut_after_redaction() -> None:
    secret = "a-long-and-hidden-key"
    filler = b"x" * (_http.ERROR_BODY - 10)
    failure = await failure_of(engine(respond(filler + secret.encode(), 1000, status=500), api_key=secret))
    assert failure.body_excerpt == "x" * 4096
    near = b"x" * 4090 + secret.encode()
    failure = await failure_of(engine(respond(near, status=500), api_key=secret))
    assert failure.body_excerpt == "x" * 4090 + "[redac"
    failure = await failure_of(engine(respond(b"begun", httpx.ReadError("x"), status=500)))
    assert failure.body_excerpt == "begun"


@pytest.mark.parametrize(
    ("content_type", "body", "kind", "cause"),
    [
        ("text/html", b"<p>login</p>", "PROTOCOL", "html_answer"),
        ("", b" <!DOCTYPE html>", "PROTOCOL", "html_answer"),
        ("application/json", b"{oops", "PROTOCOL", "bad_json"),
        ("application/json", b"", "STREAM_INTERRUPTED", "empty_body"),
        ("application/json", b'"text"', "PROTOCOL", "provider_error"),
        ("application/json", b'[{"error": {"code": 429}}]', "RATE_LIMITED", None),
        ("", b"da", "PROTOCOL", "bad_json"),
        ("application/octet-stream", b"event: error\ndata: overloaded\n\n", "SERVER_OVERLOADED", "overloaded"),
        ("application/json", sse({"error": "slow down"}), "SERVER_OVERLOADED", "overloaded"),
    ],
)
async def test_an_answer_is_read_as_what_it_is(content_type: str, body: bytes, kind: str, cause: str | None) -> None:
    pieces = [body[at : at + 1] for at in range(len(body))]
    for steps in ([body], pieces):
        failure = await failure_of(engine(respond(*steps, headers={"content-type": content_type})))
        assert (failure.kind.name, failure.cause) == (kind, cause)


async def test_answers_that_are_too_large_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roder_trio.providers._body.MAX_JSON", 10)
    monkeypatch.setattr("roder_trio.logic.sse.MAX_BYTES", 10)
    for body in (b'{"a": "long text"}', b"data: a long line"):
        failure = await failure_of(engine(respond(body, headers={"content-type": ""})))
        assert (failure.kind.name, failure.cause) == ("PROTOCOL", "too_large")


async def test_a_json_answer_that_breaks_off_is_a_transport_failure() -> None:
    failure = await failure_of(engine(respond(b'{"choices"', httpx.ReadError("x"), headers={"content-type": ""})))
    assert (failure.kind.name, failure.cause) == ("TRANSPORT", "io")


async def test_an_empty_body_is_tried_again_only_if_the_policy_says_so() -> None:
    assert (await failure_of(engine(respond(b"")))).retryable


async def test_the_ids_of_a_request_and_a_response_are_told() -> None:
    headers = {"content-type": "text/event-stream", "X-Request-Id": "q1"}
    failure = await failure_of(engine(respond(sse(chunk(content="a")), headers=headers)))
    assert (failure.request_id, failure.response_id, failure.visible) == ("q1", "r1", True)


# -- secrets

SECRET = "hush-hush-0123456789"


@pytest.mark.parametrize(
    "handler",
    [
        raising(httpx.ConnectError(f"connect to {SECRET}")),
        raising(httpx.InvalidURL(SECRET)),
        respond(f'{{"error": "bad key {SECRET}"}}'.encode(), status=401),
        respond(f"data: oops {SECRET}\n\n".encode()),
        respond(sse({"error": f"no {SECRET}"})),
        respond(SECRET.encode(), headers={"content-type": "text/html"}),
        respond(sse(chunk(content="a")), httpx.ReadError(SECRET)),
    ],
)
async def test_no_secret_shows_in_a_failure_or_a_log_line(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    url = f"http://user:{SECRET}@localhost/v1?api-key={SECRET}&version=2"
    with caplog.at_level(logging.INFO):
        failure = await failure_of(engine(handler, base_url=url, api_key=SECRET, extra_headers={"x": SECRET}))
    texts = "".join([*traceback.format_exception(failure), failure.message, failure.body_excerpt or "", caplog.text])
    assert SECRET not in texts
    assert "user:" not in texts


async def test_a_url_with_secrets_still_goes_where_it_points() -> None:
    seen: list[httpx.Request] = []

    def handler(sent: httpx.Request) -> httpx.Response:
        seen.append(sent)
        return respond(sse(*ANSWER))(sent)

    url = f"http://user:p%40ss@localhost:8/v1/?api-key={SECRET}"
    chat = engine(handler, base_url=url)
    events, _ = await collect(chat)
    assert seen[0].url.raw_path == f"/v1/chat/completions?api-key={SECRET}".encode()
    assert seen[0].headers["authorization"] == "Basic dXNlcjpwQHNz"
    assert SECRET not in str(seen[0].url)
    assert events[-2].payload["base_url"] == "http://localhost:8/v1"


# -- the clocks before the headers


async def test_the_transport_gets_its_deadlines_and_the_bodys_is_off() -> None:
    seen: list[Any] = []

    def handler(sent: httpx.Request) -> httpx.Response:
        seen.append(sent.extensions["timeout"])
        return respond(sse(*ANSWER))(sent)

    await collect(engine(handler))
    assert seen == [{"connect": 10.0, "write": 60.0, "pool": 30.0, "read": None}]


@pytest.mark.parametrize(("last", "cause"), [(59, None), (61, "headers")])
async def test_the_clock_for_headers_starts_when_the_request_was_written(
    last: float, cause: str | None, autojump_clock: trio.testing.MockClock
) -> None:
    async def handler(sent: httpx.Request) -> httpx.Response:
        trace = sent.extensions["trace"]
        steps = [
            (29, "connection.connect_tcp.started"),
            (9, "http11.send_request_headers.started"),
            (0, "http11.send_request_headers.complete"),
            (0, "http11.send_request_body.started"),
            (100, "http11.send_request_body.complete"),
            (0, "http11.receive_response_headers.started"),
            (last, "http11.receive_response_headers.complete"),
        ]
        for seconds, name in steps:
            await trio.sleep(seconds)
            await trace(name, {})
        return respond(sse(*ANSWER))(sent)

    _, failure = await collect(engine(handler, timeouts=Timeouts()))
    assert (failure and failure.cause) == cause


# -- a body of which nothing is known yet


def test_white_space_before_an_answer_is_not_kept_however_long_it_lasts() -> None:
    body = Body("application/json", Redactor())
    for _ in range(100):
        assert body.feed(b" \r\n" * 100) == []
        assert len(body._buffer) == 0
    assert body.feed(b'\n{"id":') == []
    assert body.feed(b' "r1"}') == []
    assert body.eof() == [Whole({"id": "r1"})]


@pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"\n", b"\xef\xbb\xbf \n"])
def test_frames_behind_white_space_are_frames(head: bytes) -> None:
    body = Body(None, Redactor())
    assert [*body.feed(head), *body.feed(b"da"), *body.feed(b"ta: 1\n\n")] == [Frame(None, "1")]
