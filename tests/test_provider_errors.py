"""What each failure of a server is called, in all dialects over real sockets, and what the runtime does with it."""

import json
from collections.abc import Mapping
from typing import Any

import attrs
import httpx
import pytest
import trio
from trio.testing import MockClock

import roder_trio as rt
from roder_trio import events
from roder_trio.errors import ProviderFailure
from roder_trio.schema.inference import InferenceRequest, MessageDelta, ModelChoice, TurnContext
from roder_trio.schema.transcript import UserMessage
from roder_trio.testing import FakeProviderServer
from roder_trio.testing.server import Reply, Reset
from tests.dialects import DIALECTS, Dialect
from tests.loopback import deaf_port
from tests.turn_support import settings

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.name for dialect in DIALECTS])
JSON = {"Content-Type": "application/json"}
CONTEXT = TurnContext(thread_id="t", turn_id="u", attempt_id="a")


@attrs.frozen
class Row:
    """A refusal, and what it is called."""

    status: int
    kind: str
    cause: str | None = None
    code: str = "odd"
    message: str = "no"
    retryable: bool = False
    retry_after: float | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return f"{self.status}-{self.code}-{'-'.join(self.headers)}".strip("-")


OVERFLOWS = [
    "This exceeds the context window",
    "maximum context length is 8",
    "prompt is too long: 9 > 8",
    "input exceeds the limit",
    "maximum prompt length is 8",
    "The input token count (9) exceeds 8",
]
REFUSALS = [
    *(Row(400, "CONTEXT_WINDOW_EXCEEDED", message=text) for text in OVERFLOWS),
    *(Row(status, "CONTEXT_WINDOW_EXCEEDED", message=OVERFLOWS[0]) for status in (413, 422)),
    Row(400, "CONTEXT_WINDOW_EXCEEDED", code="context_length_exceeded"),
    Row(413, "REQUEST_TOO_LARGE"),
    Row(413, "REQUEST_TOO_LARGE", code="request_too_large"),
    *(Row(status, "INVALID_REQUEST", "bad_request") for status in (400, 405, 418, 422, 451)),
    Row(400, "INVALID_REQUEST", "bad_request", code="INVALID_ARGUMENT"),
    Row(404, "INVALID_REQUEST", "endpoint_not_found"),
    Row(404, "INVALID_REQUEST", "model_not_found", message="There is no model m."),
    Row(404, "INVALID_REQUEST", "model_not_found", code="model_not_found"),
    *(Row(status, "INVALID_REQUEST", "redirect", headers={"Location": "http://x.example"}) for status in (301, 307)),
    Row(401, "AUTHENTICATION", "unauthorized"),
    Row(403, "AUTHENTICATION", "permission"),
    Row(402, "QUOTA_EXCEEDED"),
    Row(429, "QUOTA_EXCEEDED", code="insufficient_quota"),
    Row(400, "QUOTA_EXCEEDED", code="billing_error"),
    Row(429, "USAGE_LIMIT", code="usage_limit_reached"),
    Row(429, "USAGE_LIMIT", code="usage_not_included"),
    Row(429, "RATE_LIMITED", retryable=True),
    *(
        Row(429, "RATE_LIMITED", code=code, retryable=True)
        for code in ("rate_limit_error", "rate_limit_exceeded", "RESOURCE_EXHAUSTED")
    ),
    *(Row(status, "SERVER_OVERLOADED", "overloaded", retryable=True) for status in (503, 529)),
    Row(500, "SERVER_OVERLOADED", "overloaded", code="overloaded_error", retryable=True),
    Row(500, "SERVER_OVERLOADED", "overloaded", code="UNAVAILABLE", retryable=True),
    Row(500, "SERVER_OVERLOADED", "overloaded", message="Please slow down", retryable=True),
    *(
        Row(status, "SERVER_OVERLOADED", "server_error", retryable=True)
        for status in (500, 502, 504, 520, 521, 522, 523, 524)
    ),
    *(
        Row(500, "SERVER_OVERLOADED", "server_error", code=code, retryable=True)
        for code in ("api_error", "server_error", "INTERNAL")
    ),
    *(Row(status, "TRANSPORT", "transient_status", retryable=True) for status in (408, 409, 425)),
    Row(407, "TRANSPORT", "proxy"),
    Row(400, "STREAM_INTERRUPTED", "malformed_output", code="tool_use_failed", retryable=True),
    # advice
    Row(429, "RATE_LIMITED", retryable=True, retry_after=0.5, headers={"retry-after-ms": "500", "Retry-After": "7"}),
    Row(503, "SERVER_OVERLOADED", "overloaded", retryable=True, retry_after=7, headers={"Retry-After": "7"}),
    Row(
        429,
        "RATE_LIMITED",
        retryable=True,
        retry_after=30,
        headers={"Retry-After": "Thu, 01 Jan 2026 00:00:30 GMT", "Date": "Thu, 01 Jan 2026 00:00:00 GMT"},
    ),
    Row(
        429,
        "RATE_LIMITED",
        retryable=True,
        retry_after=360,
        headers={"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"},
    ),
    *(
        Row(429, "RATE_LIMITED", retryable=True, headers={"Retry-After": text})
        for text in ("0", "-1", "NaN", "inf", "soon")
    ),
    Row(429, "RATE_LIMITED", retryable=False, headers={"x-should-retry": "false"}),
    Row(400, "INVALID_REQUEST", "bad_request", retryable=True, headers={"x-should-retry": "true"}),
]


async def stream(dialect: Dialect, url: str) -> tuple[list[Any], ProviderFailure]:
    """Read a stream to its failure."""
    seen: list[Any] = []
    async with plain_client() as http:
        engine = dialect.engine(url, api_key="k", http=http)
        wanted = InferenceRequest(model=ModelChoice(engine.id, "m"), transcript=(UserMessage("hi"),))
        with pytest.raises(ProviderFailure) as caught:
            async with engine.stream_turn(CONTEXT, wanted) as opened:
                async for event in opened:
                    seen.append(event)
    return seen, caught.value


def plain_client() -> httpx.AsyncClient:
    """A client that reads no certificates, which takes longer than a whole exchange."""
    return httpx.AsyncClient(verify=False)


def verdict(failure: ProviderFailure) -> tuple[Any, ...]:
    return (failure.kind.name, failure.cause, failure.retryable, failure.retry_after)


def refused(dialect: Dialect, row: Row) -> Reply:
    body = json.dumps(dialect.error(row.status, row.code, row.message)).encode()
    return Reply(status=row.status, headers={**JSON, "x-request-id": "q1", **row.headers}, steps=[body])


@every_dialect
@pytest.mark.parametrize("row", REFUSALS, ids=str)
async def test_a_refusal_is_classified_by_code_status_and_text(dialect: Dialect, row: Row) -> None:
    async with FakeProviderServer([refused(dialect, row)]).open() as server:
        seen, failure = await stream(dialect, server.url)
    assert verdict(failure) == (row.kind, row.cause, row.retryable, row.retry_after)
    assert (failure.status, failure.request_id, failure.visible, seen) == (row.status, "q1", False, [])
    assert row.message in (failure.body_excerpt or "")
    assert len(server.requests) == 1


SHAPES = {
    "": "answered 500.",
    "<html><h1>Bad gateway</h1></html>": "answered 500.",
    "plain words": "plain words",
    '{"error": "a text"}': "a text",
    '[{"error": {"message": "in a list"}}]': "in a list",
    '{"detail": "a detail"}': "a detail",
    '{"message": "bare"}': "bare",
    "\udcff no UTF-8": "no UTF-8",
}


@every_dialect
async def test_a_body_of_any_shape_tells_what_it_can(dialect: Dialect) -> None:
    replies = [Reply(status=500, headers={}, steps=[body.encode(errors="surrogateescape")]) for body in SHAPES]
    async with FakeProviderServer(replies).open() as server:
        for said in SHAPES.values():
            _, failure = await stream(dialect, server.url)
            assert verdict(failure) == ("SERVER_OVERLOADED", "server_error", True, None)
            assert said in failure.message


TOLD = [
    Row(400, "CONTEXT_WINDOW_EXCEEDED", code="context_length_exceeded"),
    Row(400, "CONTEXT_WINDOW_EXCEEDED", message=OVERFLOWS[5]),
    Row(429, "RATE_LIMITED", code="rate_limit_exceeded", retryable=True),
    Row(429, "QUOTA_EXCEEDED", code="insufficient_quota"),
    Row(529, "SERVER_OVERLOADED", "overloaded", code="overloaded_error", retryable=True),
    Row(503, "SERVER_OVERLOADED", "overloaded", code="UNAVAILABLE", retryable=True),
    Row(500, "SERVER_OVERLOADED", "server_error", code="api_error", retryable=True),
    Row(401, "AUTHENTICATION", "unauthorized", code="authentication_error"),
    Row(403, "AUTHENTICATION", "permission", code="permission_error"),
    Row(499, "CANCELLED", code="CANCELLED"),
    Row(400, "STREAM_INTERRUPTED", "malformed_output", code="tool_use_failed", retryable=True),
]


@every_dialect
@pytest.mark.parametrize("row", TOLD, ids=str)
async def test_an_error_inside_the_stream_is_classified_alike_first_or_after_text(dialect: Dialect, row: Row) -> None:
    error = dialect.sse([dialect.told(dialect.error(row.status, row.code, row.message))])
    begun = dialect.sse(dialect.begun("so far"))
    replies = [Reply(steps=[error]), Reply(steps=[begun + error], split=5)]
    async with FakeProviderServer(replies).open() as server:
        for visible in (False, True):
            seen, failure = await stream(dialect, server.url)
            assert verdict(failure) == (row.kind, row.cause, row.retryable, None)
            assert failure.visible == visible
            assert [event for event in seen if isinstance(event, MessageDelta)] == [MessageDelta("so far")] * visible


async def test_an_error_without_a_known_code_counts_by_its_number_then_by_its_text_else_it_is_odd() -> None:
    cases = [
        ({"code": 502, "message": "no"}, "SERVER_OVERLOADED"),
        ({"code": "503", "message": "no"}, "SERVER_OVERLOADED"),
        ({"status_code": 401, "message": "no"}, "AUTHENTICATION"),
        ({"code": "new", "message": "prompt is too long"}, "CONTEXT_WINDOW_EXCEEDED"),
        ({"code": 200, "message": "slow down"}, "SERVER_OVERLOADED"),
        ({"message": "no"}, "PROTOCOL"),
        ("no", "PROTOCOL"),
    ]
    for dialect in DIALECTS:
        replies = [Reply(steps=[dialect.sse([dialect.told({"type": "error", "error": error})])]) for error, _ in cases]
        async with FakeProviderServer(replies).open() as server:
            for error, kind in cases:
                _, failure = await stream(dialect, server.url)
                assert failure.kind.name == kind, (dialect.name, error)


# -- connections and bodies


@every_dialect
async def test_ends_that_come_too_early_are_told_apart(dialect: Dialect) -> None:
    begun = dialect.sse(dialect.begun("so far"))
    half = begun[: len(begun) - 4]
    cases: list[tuple[Reply, str, str, bool]] = [
        (Reply(status=None, steps=[Reset()]), "TRANSPORT", "io", True),
        (Reply(status=None, steps=[b"nonsense\r\n\r\n"]), "TRANSPORT", "io", True),
        (Reply(steps=[]), "STREAM_INTERRUPTED", "empty_body", True),
        (Reply(steps=[b": only a comment\n\n"]), "STREAM_INTERRUPTED", "empty_body", True),
        (Reply(steps=[begun]), "STREAM_INTERRUPTED", "truncated", True),
        (Reply(steps=[begun, Reset()]), "STREAM_INTERRUPTED", "truncated", True),
        (Reply(steps=[begun + half]), "STREAM_INTERRUPTED", "truncated", True),
        (Reply(steps=[b'event: error\ndata: {"error": {"mess']), "STREAM_INTERRUPTED", "truncated", True),
        (Reply(steps=[begun, b"data: {oops\n\n"]), "PROTOCOL", "bad_json", False),
        (Reply(headers={"Content-Type": "text/html"}, steps=[b"<p>log in</p>"]), "PROTOCOL", "html_answer", False),
        (Reply(headers=JSON, steps=[b"{oops"]), "PROTOCOL", "bad_json", False),
    ]
    async with FakeProviderServer([reply for reply, *_ in cases]).open() as server:
        for _, kind, cause, retryable in cases:
            _, failure = await stream(dialect, server.url)
            assert verdict(failure) == (kind, cause, retryable, None)


@every_dialect
async def test_a_server_that_cannot_be_reached_or_asked_is_told_apart(dialect: Dialect) -> None:
    with deaf_port() as port:
        _, failure = await stream(dialect, f"http://127.0.0.1:{port}")
    assert verdict(failure) == ("TRANSPORT", "connect", True, None)
    _, failure = await stream(dialect, "nowhere://localhost")
    assert verdict(failure) == ("TRANSPORT", "url", False, None)
    engine = dialect.engine("https://api.acme.example", env_keys=["ACME_KEY"])
    wanted = InferenceRequest(model=ModelChoice(engine.id, "m"), transcript=(UserMessage("hi"),))
    with pytest.raises(ProviderFailure) as caught:
        async with engine.stream_turn(CONTEXT, wanted):
            pass
    assert verdict(caught.value) == ("AUTHENTICATION", "missing_credentials", False, None)
    assert engine.id in caught.value.message
    assert "ACME_KEY" in caught.value.message


# -- what the runtime does

RECOVERED = ("CONTEXT_WINDOW_EXCEEDED", "REQUEST_TOO_LARGE")
SORTS = {(row.kind, row.cause): row for row in REFUSALS if not row.headers and row.kind not in RECOVERED}.values()
"""One refusal of each sort, those apart that are answered by a compaction."""


async def run(
    dialect: Dialect, *replies: Reply, clock: MockClock | None = None, **reliability: Any
) -> tuple[rt.TurnOutcome, list[Any], int]:
    """Run a turn; return its outcome, the delays of its retries, and how many requests were made.

    A clock that stands still goes from the first retry on.
    """
    config = settings(provider_retry_initial_backoff=0.0, **reliability)
    retries: list[float] = []
    async with FakeProviderServer(replies).open() as server, plain_client() as http:
        with trio.fail_after(30):
            async with rt.open_runtime(engines=[dialect.engine(server.url)], http=http, config=config) as runtime:
                thread = (await runtime.create_thread()).thread_id
                async with runtime.turn(thread, "go") as turn:
                    async for envelope in turn:
                        if isinstance(envelope.event, events.RetryScheduled):
                            retries.append(envelope.event.delay)
                            if clock is not None:
                                clock.rate = 1.0
    return turn.outcome, retries, len(server.requests)


@every_dialect
@pytest.mark.parametrize("row", SORTS, ids=str)
async def test_what_is_retryable_is_tried_again_and_nothing_else(dialect: Dialect, row: Row) -> None:
    answer = Reply(steps=[dialect.sse(dialect.text("fine"))])
    outcome, retries, requests = await run(dialect, refused(dialect, row), refused(dialect, row), answer)
    if row.retryable:
        assert (outcome.status, outcome.text, requests) == ("completed", "fine", 3)
    else:
        assert (outcome.status, outcome.error_kind, requests) == ("failed", row.kind.lower(), 1)
    assert len(retries) == (2 if row.retryable else 0)


@every_dialect
async def test_a_budget_that_is_spent_leaves_the_last_failure(dialect: Dialect) -> None:
    rows = [Row(503, "", code="a"), Row(502, "", code="b"), Row(429, "", message="the last")]
    outcome, retries, requests = await run(dialect, *(refused(dialect, row) for row in rows))
    assert (outcome.status, outcome.error_kind, requests, len(retries)) == ("failed", "rate_limited", 3, 2)
    assert "the last" in (outcome.error or "")


@every_dialect
async def test_advice_is_waited_for_unless_it_is_too_long(dialect: Dialect, mock_clock: MockClock) -> None:
    answer = Reply(steps=[dialect.sse(dialect.text("fine"))])
    soon = Row(429, "", headers={"retry-after-ms": "200"})
    outcome, [delay], _ = await run(dialect, refused(dialect, soon), answer, clock=mock_clock)
    assert outcome.status == "completed"
    assert delay == pytest.approx(0.2)
    late = Row(429, "", headers={"Retry-After": "121"})
    outcome, retries, requests = await run(dialect, refused(dialect, late), answer)
    assert (outcome.status, outcome.error_kind, retries, requests) == ("failed", "rate_limited", [], 1)


@every_dialect
async def test_an_empty_body_is_tried_again_only_if_the_policy_says_so(dialect: Dialect) -> None:
    answer = Reply(steps=[dialect.sse(dialect.text("fine"))])
    outcome, retries, _ = await run(dialect, Reply(), answer)
    assert (outcome.status, len(retries)) == ("completed", 1)
    outcome, retries, _ = await run(dialect, Reply(), answer, retry_empty_provider_body=False)
    assert (outcome.status, outcome.error_kind, retries) == ("failed", "stream_interrupted", [])


@every_dialect
async def test_text_of_a_failed_attempt_is_never_joined_to_that_of_the_next(dialect: Dialect) -> None:
    broken = Reply(steps=[dialect.sse(dialect.begun("so far")), Reset()])
    answer = Reply(steps=[dialect.sse(dialect.text("fine"))])
    outcome, retries, requests = await run(dialect, broken, answer)
    assert (outcome.status, outcome.text, len(retries), requests) == ("completed", "fine", 1, 2)
