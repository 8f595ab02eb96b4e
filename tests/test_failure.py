"""What a status, an error body or an error inside a stream tells, and that no secret stays in it."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from roder_trio.logic.failure import in_stream, of_response, parse_body, read_error, request_id
from roder_trio.logic.redaction import MARK, Redactor, public_url, url_secrets

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "very-hidden/key+1"


def respond(status: int, body: Any = b"", headers: dict[str, str] | None = None) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return of_response("acme", status, headers or {}, raw, now=NOW, redactor=Redactor.of([SECRET]))


def coded(code: str, message: str = "no") -> dict[str, Any]:
    return {"error": {"message": message, "code": code}}


def said(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


@pytest.mark.parametrize(
    ("status", "body", "kind", "cause"),
    [
        (400, coded("context_length_exceeded"), "CONTEXT_WINDOW_EXCEEDED", None),
        (413, said("The context window is full"), "CONTEXT_WINDOW_EXCEEDED", None),
        (400, said("This model's maximum context length is 5"), "CONTEXT_WINDOW_EXCEEDED", None),
        (422, said("prompt is too long: 9 > 5"), "CONTEXT_WINDOW_EXCEEDED", None),
        (400, said("Input exceeds the limit"), "CONTEXT_WINDOW_EXCEEDED", None),
        (400, said("the maximum prompt length is 5"), "CONTEXT_WINDOW_EXCEEDED", None),
        (400, said("The input token count (9)\nexceeds 5"), "CONTEXT_WINDOW_EXCEEDED", None),
        (404, said("context window"), "INVALID_REQUEST", "endpoint_not_found"),
        (413, b"", "REQUEST_TOO_LARGE", None),
        (400, said("bad"), "INVALID_REQUEST", "bad_request"),
        (422, {"detail": [{"msg": "field required"}]}, "INVALID_REQUEST", "bad_request"),
        (404, said("The model x does not exist"), "INVALID_REQUEST", "model_not_found"),
        (404, coded("model_not_found"), "INVALID_REQUEST", "model_not_found"),
        (404, b"<html>not found</html>", "INVALID_REQUEST", "endpoint_not_found"),
        (301, b"", "INVALID_REQUEST", "redirect"),
        (418, b"", "INVALID_REQUEST", "bad_request"),
        (401, said("no"), "AUTHENTICATION", "unauthorized"),
        (403, said("no"), "AUTHENTICATION", "permission"),
        (402, said("pay"), "QUOTA_EXCEEDED", None),
        (429, coded("insufficient_quota"), "QUOTA_EXCEEDED", None),
        (400, {"error": {"type": "billing_error"}}, "QUOTA_EXCEEDED", None),
        (429, coded("usage_limit_reached"), "USAGE_LIMIT", None),
        (429, coded("usage_not_included"), "USAGE_LIMIT", None),
        (429, said("slow down"), "RATE_LIMITED", None),
        (400, {"error": {"type": "rate_limit_error"}}, "RATE_LIMITED", None),
        (400, coded("rate_limit_exceeded"), "RATE_LIMITED", None),
        (400, [{"error": {"status": "RESOURCE_EXHAUSTED", "code": 400}}], "RATE_LIMITED", None),
        (503, b"", "SERVER_OVERLOADED", "overloaded"),
        (529, b"", "SERVER_OVERLOADED", "overloaded"),
        (500, {"error": {"type": "overloaded_error"}}, "SERVER_OVERLOADED", "overloaded"),
        (500, {"error": {"status": "UNAVAILABLE"}}, "SERVER_OVERLOADED", "overloaded"),
        (500, said("Please slow down"), "SERVER_OVERLOADED", "overloaded"),
        *((status, b"", "SERVER_OVERLOADED", "server_error") for status in (500, 502, 504, 520, 524, 599)),
        (400, {"error": {"type": "api_error"}}, "SERVER_OVERLOADED", "server_error"),
        (400, coded("server_error"), "SERVER_OVERLOADED", "server_error"),
        (400, {"error": {"status": "INTERNAL"}}, "SERVER_OVERLOADED", "server_error"),
        *((status, b"", "TRANSPORT", "transient_status") for status in (408, 409, 425)),
        (407, b"", "TRANSPORT", "proxy"),
        (400, coded("tool_use_failed"), "STREAM_INTERRUPTED", "malformed_output"),
        (400, coded("content_filter"), "CONTENT_FILTER", None),
        (501, b"", "INVALID_REQUEST", "endpoint_not_found"),
    ],
)
def test_a_response_is_classified(status: int, body: Any, kind: str, cause: str | None) -> None:
    failure = respond(status, body)
    assert (failure.kind.name, failure.cause, failure.status) == (kind, cause, status)


def test_a_reason_among_the_details_counts_as_a_code() -> None:
    error = {"code": 400, "status": "INVALID_ARGUMENT", "details": [5, {"reason": "API_KEY_INVALID"}]}
    found = read_error({"error": error})
    assert found.codes == ("INVALID_ARGUMENT", "API_KEY_INVALID")
    failure = in_stream("acme", error, redactor=Redactor())
    assert (failure.kind.name, failure.cause, failure.provider_code) == (
        "AUTHENTICATION",
        "unauthorized",
        "INVALID_ARGUMENT",
    )


def test_a_failed_response_tells_its_ids_codes_advice_and_an_excerpt() -> None:
    headers = {"x-request-id": "r1", "retry-after": "7", "x-should-retry": "false"}
    failure = respond(429, coded("rate_limit_exceeded", "too fast"), headers)
    assert (failure.request_id, failure.retry_after, failure.should_retry) == ("r1", 7.0, False)
    assert failure.provider_code == "rate_limit_exceeded"
    assert "acme" in failure.message
    assert "too fast" in failure.message
    assert json.loads(failure.body_excerpt)["error"]["message"] == "too fast"
    assert respond(407).should_retry is False
    assert respond(500).body_excerpt is None
    assert request_id({"cf-ray": "c"}) == "c"
    assert request_id({}) is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"resets_in_seconds": 90}, 90.0),
        ({"resets_at": NOW.timestamp() + 30}, 30.0),
        ({"resets_at": NOW.timestamp() - 30}, None),
        ({}, None),
    ],
)
def test_a_usage_limit_tells_when_it_resets(error: dict[str, Any], expected: float | None) -> None:
    assert respond(429, {"error": {"code": "usage_limit_reached", **error}}).retry_after == expected
    assert respond(429, {"code": "usage_limit_reached", **error}).retry_after == expected
    assert respond(429, {"error": {"code": "rate_limit_error", **error}}).retry_after is None


def test_a_usage_limit_in_a_text_tells_no_reset() -> None:
    assert respond(429, [coded("usage_limit_reached"), 1]).retry_after is None


@pytest.mark.parametrize(
    ("error", "kind", "cause", "status"),
    [
        ({"message": "backend died", "code": 502}, "SERVER_OVERLOADED", "server_error", 502),
        (
            {"code": "tool_use_failed", "status_code": 400},
            "STREAM_INTERRUPTED",
            "malformed_output",
            400,
        ),
        ({"message": "Token limit reached", "code": 400}, "INVALID_REQUEST", "bad_request", 400),
        ({"message": "x", "code": "429"}, "RATE_LIMITED", None, 429),
        ({"message": "x", "code": 7, "type": "overloaded_error"}, "SERVER_OVERLOADED", "overloaded", None),
        ({"message": "prompt is too long", "type": "invalid_request_error"}, "CONTEXT_WINDOW_EXCEEDED", None, None),
        ({"message": "x", "type": "invalid_request_error"}, "INVALID_REQUEST", "bad_request", None),
        ("Overloaded", "SERVER_OVERLOADED", "overloaded", None),
        ("please slow down", "SERVER_OVERLOADED", "overloaded", None),
        ("Rate limit reached", "RATE_LIMITED", None, None),
        ("what?", "PROTOCOL", "provider_error", None),
        ({"code": "CANCELLED"}, "CANCELLED", None, None),
        (7, "PROTOCOL", "provider_error", None),
    ],
)
def test_an_error_in_a_stream_is_classified_by_code_then_status_then_text(
    error: Any, kind: str, cause: str | None, status: int | None
) -> None:
    failure = in_stream("acme", error, redactor=Redactor(), response_id="r")
    assert (failure.kind.name, failure.cause, failure.status, failure.response_id) == (kind, cause, status, "r")


def test_an_error_in_a_stream_may_bring_advice() -> None:
    error = {"code": 429, "details": [{"retryDelay": "3s"}]}
    assert in_stream("acme", error, redactor=Redactor()).retry_after == 3.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": "text"}', "text"),
        (b'{"error": {"message": "inner"}, "message": "outer"}', "inner"),
        (b'{"error": {"code": 1}, "message": "outer"}', "outer"),
        (b'{"message": "m"}', "m"),
        (b'{"detail": "d"}', "d"),
        (b'{"detail": ["a", {"msg": "b"}, 5]}', "a; b"),
        (b'[{"error": {"message": "one"}}]', "one"),
        (b"[1, 2]", ""),
        (b"plain text", "plain text"),
        (b"<html>page</html>", ""),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'"quoted"', "quoted"),
    ],
)
def test_error_bodies_of_all_shapes_are_read(body: bytes, message: str) -> None:
    assert parse_body(body).message == message


def test_an_error_names_its_parameter() -> None:
    assert read_error({"error": {"param": "top_p"}}).parameter == "top_p"
    assert read_error({"error": {"param": None}}).parameter is None


# -- redaction


@pytest.mark.parametrize(
    "text",
    [
        "sk-abcdefghijklmnop",
        "Authorization: Bearer abc.def-ghi",
        "https://x/y?api_key=abcdef&b=1",
        "AIzaSyA-1234567890abcdefgh",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        "https://user:hunter22@host/",
        SECRET,
        "very-hidden%2Fkey%2B1",
        json.dumps(SECRET),
    ],
)
def test_secrets_and_what_looks_like_one_are_taken_out(text: str) -> None:
    redacted = Redactor.of([SECRET, "ab"]).redact(f"before {text} after")
    assert MARK in redacted
    assert redacted.startswith("before ")
    for part in ("abcdefghij", "abc.def", "abcdef", "SyA-123", "eyJzdW", "hunter22", "very-hidden"):
        assert part not in redacted


def test_ordinary_text_stays() -> None:
    text = "The key is missing; task-abcdefgh; turkey=good monkeys? 12 tokens"
    assert Redactor.of([]).redact("The key is missing, 12 tokens") == "The key is missing, 12 tokens"
    assert "task-abcdefgh" in Redactor.of([]).redact(text)


def test_a_text_is_redacted_before_it_is_cut() -> None:
    redactor = Redactor.of(["secret-of-twenty-char"])
    assert redactor.longest == 21
    assert Redactor().longest == 0
    assert redactor.excerpt("x" * 10 + "secret-of-twenty-char", 18) == "x" * 10 + MARK[:8]
    failure = respond(400, said("a" * 580 + SECRET * 50))
    assert "very-hidden" not in failure.message + failure.body_excerpt


def test_the_secret_parts_of_a_url_are_known_and_not_shown() -> None:
    url = "https://user:pass1@host:8/v1?api-version=2&api-key=hidden1#f"
    assert url_secrets(url) == ("user", "pass1", "hidden1")
    assert public_url(url) == "https://host:8/v1"
    assert url_secrets("https://host/v1") == ()
    assert public_url("https://host/v1") == "https://host/v1"
