"""What went wrong, read from a status, an error body or an error inside a stream.

Pure. Codes win over the status, the status over the text. Texts that come from outside are redacted before they are
cut. A body may be an object, a list of one, a page of HTML, empty or no UTF-8.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs
import orjson

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic import retry
from roder_trio.logic.redaction import Redactor

Kind = ProviderFailureKind

EXCERPT = 4096
"""Characters of an error body that are kept."""
FRAME_EXCERPT = 2000
"""Characters of a frame that couldn't be read."""
MESSAGE = 600

_REQUEST_IDS = ("x-request-id", "request-id", "cf-ray")

_CONTEXT = re.compile(
    r"context window|maximum context length|prompt is too long|input exceeds|maximum prompt length"
    r"|input token count.*exceeds|exceed context limit|context_length_exceeded",
    re.IGNORECASE | re.DOTALL,
)

Verdict = tuple[Kind, str | None]

_CODES: Mapping[str, Verdict] = {
    "context_length_exceeded": (Kind.CONTEXT_WINDOW_EXCEEDED, None),
    "request_too_large": (Kind.REQUEST_TOO_LARGE, None),
    "insufficient_quota": (Kind.QUOTA_EXCEEDED, None),
    "billing_error": (Kind.QUOTA_EXCEEDED, None),
    "usage_limit_reached": (Kind.USAGE_LIMIT, None),
    "usage_not_included": (Kind.USAGE_LIMIT, None),
    "rate_limit_error": (Kind.RATE_LIMITED, None),
    "rate_limit_exceeded": (Kind.RATE_LIMITED, None),
    "resource_exhausted": (Kind.RATE_LIMITED, None),
    "overloaded_error": (Kind.SERVER_OVERLOADED, "overloaded"),
    "unavailable": (Kind.SERVER_OVERLOADED, "overloaded"),
    "slow_down": (Kind.SERVER_OVERLOADED, "overloaded"),
    "api_error": (Kind.SERVER_OVERLOADED, "server_error"),
    "server_error": (Kind.SERVER_OVERLOADED, "server_error"),
    "internal": (Kind.SERVER_OVERLOADED, "server_error"),
    "internal_server_error": (Kind.SERVER_OVERLOADED, "server_error"),
    "timeout_error": (Kind.SERVER_OVERLOADED, "server_error"),
    "deadline_exceeded": (Kind.SERVER_OVERLOADED, "server_error"),
    "authentication_error": (Kind.AUTHENTICATION, "unauthorized"),
    "invalid_api_key": (Kind.AUTHENTICATION, "unauthorized"),
    "api_key_invalid": (Kind.AUTHENTICATION, "unauthorized"),
    "unauthenticated": (Kind.AUTHENTICATION, "unauthorized"),
    "permission_error": (Kind.AUTHENTICATION, "permission"),
    "permission_denied": (Kind.AUTHENTICATION, "permission"),
    "tool_use_failed": (Kind.STREAM_INTERRUPTED, "malformed_output"),
    "model_not_found": (Kind.INVALID_REQUEST, "model_not_found"),
    "content_filter": (Kind.CONTENT_FILTER, None),
    "content_policy_violation": (Kind.CONTENT_FILTER, None),
    "cancelled": (Kind.CANCELLED, None),
}
_BAD_REQUEST: Verdict = (Kind.INVALID_REQUEST, "bad_request")
_VAGUE_CODES = frozenset(["invalid_request_error", "invalid_argument", "failed_precondition"])
_STATUSES: Mapping[int, Verdict] = {
    400: _BAD_REQUEST,
    401: (Kind.AUTHENTICATION, "unauthorized"),
    402: (Kind.QUOTA_EXCEEDED, None),
    403: (Kind.AUTHENTICATION, "permission"),
    407: (Kind.TRANSPORT, "proxy"),
    408: (Kind.TRANSPORT, "transient_status"),
    409: (Kind.TRANSPORT, "transient_status"),
    413: (Kind.REQUEST_TOO_LARGE, None),
    422: _BAD_REQUEST,
    425: (Kind.TRANSPORT, "transient_status"),
    429: (Kind.RATE_LIMITED, None),
    501: (Kind.INVALID_REQUEST, "endpoint_not_found"),
    503: (Kind.SERVER_OVERLOADED, "overloaded"),
    529: (Kind.SERVER_OVERLOADED, "overloaded"),
}
_CONTEXT_STATUSES = (400, 413, 422)
_TEXTS: tuple[tuple[str, Verdict], ...] = (
    ("slow down", (Kind.SERVER_OVERLOADED, "overloaded")),
    ("overloaded", (Kind.SERVER_OVERLOADED, "overloaded")),
    ("rate limit", (Kind.RATE_LIMITED, None)),
)


@attrs.frozen(kw_only=True)
class ErrorBody:
    """What an error body says; `value` is the parsed JSON, None if there is none."""

    message: str = ""
    codes: tuple[str, ...] = ()
    status: int | None = None
    parameter: str | None = None
    value: Any = None


def read_error(value: Any) -> ErrorBody:
    """Return what a parsed error says, in whichever of the usual shapes it comes."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, Mapping):
        return ErrorBody(message=value if isinstance(value, str) else "", value=value)
    inner = value.get("error")
    source: Mapping[str, Any] = inner if isinstance(inner, Mapping) else value
    message = next(filter(None, (_text(part) for part in (inner, source.get("message"), source.get("detail")))), "")
    details = source.get("details")
    reasons = [part.get("reason") for part in details if isinstance(part, Mapping)] if isinstance(details, list) else []
    named = [*(source.get(name) for name in ("code", "type", "status")), *reasons]
    return ErrorBody(
        message=message or _text(value.get("message")) or _text(value.get("detail")),
        codes=tuple(code for code in named if isinstance(code, str) and code and not code.isdecimal()),
        status=next(filter(None, (_status(source.get(name)) for name in ("code", "status_code", "status"))), None),
        parameter=_text(source.get("param")) or None,
        value=value,
    )


def parse_body(body: bytes) -> ErrorBody:
    """Return what the bytes of an error body say; text that is no JSON is the message."""
    text = body.decode(errors="replace").strip()
    try:
        return read_error(orjson.loads(text))
    except orjson.JSONDecodeError:
        return ErrorBody(message="" if text.startswith("<") else text)


def of_response(
    provider: str, status: int, headers: Mapping[str, str], body: bytes, *, now: datetime, redactor: Redactor
) -> ProviderFailure:
    """Return the failure that a response's status, headers (names in lower case) and error body tell."""
    error = parse_body(body)
    kind, cause = _of_codes(error.codes) or _of_status(status, error)
    text = body.decode(errors="replace")
    return ProviderFailure(
        kind,
        _message(f"{provider} answered {status}", error, redactor),
        cause=cause,
        status=status,
        provider_code=_code(error, redactor),
        request_id=redactor.redact(request_id(headers) or "") or None,
        retry_after=retry.advice(headers, error.value, now=now) or _reset(kind, error, now),
        should_retry=False if cause == "proxy" else retry.should_retry(headers),
        body_excerpt=redactor.excerpt(text, EXCERPT) or None,
    )


def in_stream(provider: str, value: Any, *, redactor: Redactor, response_id: str | None = None) -> ProviderFailure:
    """Return the failure that an error inside a 200 stream tells."""
    error = read_error(value)
    verdict = _of_codes(error.codes)
    if verdict is None and error.status is not None:
        verdict = _of_status(error.status, error)
    kind, cause = verdict or _of_text(error)
    return ProviderFailure(
        kind,
        _message(f"{provider} broke off its answer", error, redactor),
        cause=cause,
        status=error.status,
        provider_code=_code(error, redactor),
        response_id=response_id,
        retry_after=retry.advice({}, value, now=_NO_MOMENT),
    )


def request_id(headers: Mapping[str, str]) -> str | None:
    """Return the id that the provider gave to the request."""
    return next(filter(None, (headers.get(name) for name in _REQUEST_IDS)), None)


_NO_MOMENT = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def _of_codes(codes: tuple[str, ...]) -> Verdict | None:
    return next((_CODES[code.lower()] for code in codes if code.lower() in _CODES), None)


def _of_status(status: int, error: ErrorBody) -> Verdict:
    if status in _CONTEXT_STATUSES and _CONTEXT.search(error.message):
        return (Kind.CONTEXT_WINDOW_EXCEEDED, None)
    if status in _STATUSES:
        return _STATUSES[status]
    if status == 404:  # noqa: PLR2004
        unknown_model = "model" in error.message.lower() or "not_found_error" in error.codes
        return (Kind.INVALID_REQUEST, "model_not_found" if unknown_model else "endpoint_not_found")
    if status < 400:  # noqa: PLR2004
        return (Kind.INVALID_REQUEST, "redirect")
    if "slow down" in error.message.lower():
        return (Kind.SERVER_OVERLOADED, "overloaded")
    return _BAD_REQUEST if status < 500 else (Kind.SERVER_OVERLOADED, "server_error")  # noqa: PLR2004


def _of_text(error: ErrorBody) -> Verdict:
    text = error.message.lower()
    if _CONTEXT.search(text):
        return (Kind.CONTEXT_WINDOW_EXCEEDED, None)
    for part, verdict in _TEXTS:
        if part in text:
            return verdict
    if any(code.lower() in _VAGUE_CODES for code in error.codes):
        return _BAD_REQUEST
    return (Kind.PROTOCOL, "provider_error")


def _reset(kind: Kind, error: ErrorBody, now: datetime) -> float | None:
    if kind is not Kind.USAGE_LIMIT or not isinstance(error.value, Mapping):
        return None
    inner = error.value.get("error")
    source = inner if isinstance(inner, Mapping) else error.value
    at = retry.usable(source.get("resets_at"))
    return retry.usable(source.get("resets_in_seconds")) or retry.usable(at and at - now.timestamp())


def _message(prefix: str, error: ErrorBody, redactor: Redactor) -> str:
    detail = redactor.excerpt(" ".join(error.message.split()), MESSAGE)
    return f"{prefix}: {detail}" if detail else f"{prefix}."


def _code(error: ErrorBody, redactor: Redactor) -> str | None:
    return redactor.excerpt(error.codes[0], 200) if error.codes else None


def _status(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:9])
    return value if type(value) is int and 400 <= value < 600 else None  # noqa: PLR2004


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return "; ".join(
            filter(None, (_text(part.get("msg") if isinstance(part, Mapping) else part) for part in value))
        )
    return ""
