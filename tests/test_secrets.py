"""A key that a server sends back, wherever it puts it, shows in no exception, record, event or log line."""

import json
import logging
import string
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import roder_trio as rt
from roder_trio.codec import encode_record
from roder_trio.errors import ProviderFailure
from roder_trio.providers._http import ERROR_BODY
from roder_trio.schema.inference import InferenceRequest, ModelChoice, TurnContext
from roder_trio.schema.transcript import UserMessage
from tests.dialects import DIALECTS, Dialect
from tests.turn_support import settings as config

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.name for dialect in DIALECTS])
PIECE = 8
"""Characters of a key that may not show in a row."""

LETTERS = string.ascii_letters + string.digits + "+/=_-.~%"
URL = "http://localhost"
KEYS = st.text(LETTERS, min_size=24, max_size=60).filter(lambda key: len(set(key)) > 12)
STATUSES = st.sampled_from([200, 301, 302, 400, 401, 402, 403, 404, 407, 408, 413, 418, 422, 429, 500, 502, 503, 529])


def one_of_json(key: str) -> list[Any]:
    """Bodies that hold the key, each in another place."""
    told = f"Incorrect API key provided: {key}. See the manual."
    return [
        {"error": told},
        {"error": {"message": told, "code": key, "type": key, "status": key, "param": key}},
        {"type": "error", "error": {"type": "api_error", "message": key}, "request_id": key},
        [{"error": {"code": 429, "message": told, "details": [{"reason": key, "retryDelay": key}]}}],
        {"detail": [{"loc": ["header"], "msg": told}]},
        {"message": key, key: {"headers": {"authorization": f"Bearer {key}"}}},
        {"error": {"message": f"https://x.example/?key={key}"}, "id": key, "responseId": key},
        {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": key}], "responseId": key},
        {"promptFeedback": {"blockReason": key, "blockReasonMessage": key}},
        {"type": "response.failed", "response": {"id": key, "error": {"code": key, "message": told}}},
    ]


def bodies(key: str) -> st.SearchStrategy[bytes]:
    """Bodies with the key in JSON, HTML or text, also split by the cuts of what is read and of what is kept."""
    written = [json.dumps(value).encode() for value in one_of_json(key)]
    told = key.encode()
    plain = [told, b"no: " + told, b"<html><p>" + told + b"</p></html>", b"\xff" + told, b'{"error": "' + told]
    cuts = st.tuples(st.sampled_from([4096, ERROR_BODY]), st.integers(-80, 10), st.sampled_from([b"", b'{"error":"']))
    return st.one_of(
        st.sampled_from([*written, *plain]),
        cuts.map(lambda cut: cut[2] + b"#" * (cut[0] + cut[1] - len(cut[2])) + told + b" behind"),
    )


def headers(key: str) -> st.SearchStrategy[dict[str, str]]:
    names = ["x-request-id", "request-id", "cf-ray", "retry-after", "retry-after-ms", "location", "x-should-retry"]
    names += ["x-ratelimit-reset-tokens", "www-authenticate", "set-cookie", "date"]
    types = st.sampled_from(["text/event-stream", "application/json", "text/html", "text/plain", "", key])
    held = st.dictionaries(st.sampled_from(names), st.sampled_from([key, f"https://x.example/?key={key}", "5"]))
    return st.builds(lambda kind, more: {"content-type": kind, **more}, types, held)


@st.composite
def refusals(draw: Any) -> tuple[str, int, dict[str, str], bytes]:
    """A key, and an answer that holds it."""
    key = draw(KEYS)
    body = draw(bodies(key))
    if draw(st.booleans()):
        # the same inside a stream, whole or cut off
        frame = b"data: " + body.replace(b"\n", b" ") + draw(st.sampled_from([b"\n\n", b""]))
        body = draw(st.sampled_from([b"", b"event: error\n"])) + frame
    return key, draw(STATUSES), draw(headers(key)), body


def pieces(key: str) -> Iterator[str]:
    return (key[at : at + PIECE] for at in range(len(key) - PIECE + 1))


def assert_hidden(key: str, *texts: str) -> None:
    for text in texts:
        shown = [piece for piece in pieces(key) if piece in text]
        assert not shown, f"{shown[0]!r} of the key {key!r} shows in {text[:2000]!r}"


def answering(status: int, sent: dict[str, str], body: bytes) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(status, headers=sent, content=body)


async def failure_of(dialect: Dialect, url: str, key: str, http: httpx.AsyncClient) -> ProviderFailure | None:
    engine = dialect.engine("", base_url=url, http=http, api_key=key, extra_headers={"x-tenant": key})
    wanted = InferenceRequest(model=ModelChoice(engine.id, "m"), transcript=(UserMessage("hi"),))
    context = TurnContext(thread_id="t", turn_id="u", attempt_id="a")
    try:
        async with engine.stream_turn(context, wanted) as stream:
            async for _ in stream:
                pass
    except ProviderFailure as failure:
        return failure
    return None


async def turn_of(dialect: Dialect, url: str, key: str, http: httpx.AsyncClient) -> list[str]:
    """Run a turn; return all that was published, stored and told of it, as text."""
    engine = dialect.engine("", base_url=url, http=http, api_key=key)
    once = config(provider_retry_max_attempts=2, provider_retry_initial_backoff=0.0, provider_retry_max_wait=0.0)
    published: list[str] = []
    async with rt.open_runtime(engines=[engine], http=http, config=once) as runtime:
        thread = (await runtime.create_thread()).thread_id
        async with runtime.turn(thread, "go") as turn:
            async for envelope in turn:
                published.append(repr(envelope))
        snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    stored = [encode_record(envelope).decode() for envelope in snapshot.events]
    return [*published, *stored, repr(snapshot), repr(turn.outcome)]


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


def told_of(failure: ProviderFailure) -> list[str]:
    return ["".join(traceback.format_exception(failure)), repr(failure), *map(str, vars(failure).values())]


@every_dialect
@given(refusals(), st.booleans())
@settings(max_examples=40)
def test_a_key_that_comes_back_shows_nowhere(dialect: Dialect, refusal: Any, in_url: bool) -> None:
    key, status, sent, body = refusal
    lines = Lines()
    logger = logging.getLogger()
    before = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)

    async def main() -> list[str]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answering(status, sent, body))) as http:
            held = quote(key, safe="")
            url = f"http://user:{held}@localhost{dialect.base}?code=x&api_key={held}" if in_url else URL + dialect.base
            failure = await failure_of(dialect, url, key, http)
            assert failure is not None
            return [*told_of(failure), *await turn_of(dialect, url, key, http)]

    try:
        told = trio.run(main)
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)
    assert_hidden(key, *told, *lines.texts)
    assert any("HTTP Request" in line for line in lines.texts)
