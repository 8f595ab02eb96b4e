"""Helpers of the tests of the Gemini engine: requests, and streams decoded without a transport."""

import itertools
from collections.abc import Iterable
from typing import Any

import httpx

from roder_trio.errors import ProviderFailure
from roder_trio.logic.naming import ToolNames
from roder_trio.logic.redaction import Redactor
from roder_trio.logic.sse import Frame
from roder_trio.providers._body import Body, Whole
from roder_trio.providers._facts import Facts
from roder_trio.providers.gemini import Gemini, Profile
from roder_trio.providers.gemini.decode import GeminiDecoder
from roder_trio.schema.inference import EngineTarget, InferenceRequest, ModelChoice
from roder_trio.schema.transcript import UserMessage
from tests.chat import Decoded, split_outputs, sse

TARGET = EngineTarget("gemini", "acme", "http://localhost")


def request(*items: Any, **options: Any) -> InferenceRequest:
    options.setdefault("model", ModelChoice("acme", "m"))
    return InferenceRequest(transcript=items or (UserMessage("hi"),), **options)


def engine(handler: Any = None, **options: Any) -> Gemini:
    """An engine over a mock transport, or one without a client if there is no handler."""
    http = None if handler is None else httpx.AsyncClient(transport=httpx.MockTransport(handler))
    return Gemini("acme", http=http, **{"base_url": "http://localhost", **options})


def chunk(*parts: Any, finish: str | None = None, usage: Any = None, **candidate: Any) -> dict[str, Any]:
    """A chunk whose parts are texts, or objects as they are."""
    written = [{"text": part} if isinstance(part, str) else part for part in parts]
    content = {"content": {"role": "model", "parts": written}} if parts else {}
    ending = {} if finish is None else {"finishReason": finish}
    counted = {} if usage is None else {"usageMetadata": usage}
    return {"candidates": [{**content, **ending, "index": 0, **candidate}], **counted, "responseId": "g1"}


def thought(text: str) -> dict[str, Any]:
    return {"text": text, "thought": True}


def call(name: str, args: Any = None, id: str | None = None, **more: Any) -> dict[str, Any]:
    named = {} if id is None else {"id": id}
    return {"functionCall": {**named, "name": name, **({} if args is None else {"args": args})}, **more}


def counts(prompt: int, total: int, **more: int) -> dict[str, Any]:
    names = {
        "candidates": "candidatesTokenCount",
        "thoughts": "thoughtsTokenCount",
        "cached": "cachedContentTokenCount",
    }
    counted = {names[name]: value for name, value in more.items()}
    return {"promptTokenCount": prompt, **counted, "totalTokenCount": total}


def decoder(*, tools: Iterable[str] = (), taken: Iterable[str] = (), **flags: Any) -> GeminiDecoder:
    count = itertools.count(1)
    facts = Facts(
        target=TARGET,
        model="m",
        profile=Profile(**flags),
        names=ToolNames(tools),
        redactor=Redactor(),
        fresh=lambda: f"call_fresh{next(count)}",
        taken=set(taken),
    )
    return GeminiDecoder(facts)


def decode(pieces: Iterable[bytes], content_type: str = "text/event-stream", **options: Any) -> Decoded:
    """Decode a whole body that comes in pieces."""
    body, reader = Body(content_type, Redactor()), decoder(**options)
    outputs: list[Any] = []

    def take(parts: Any) -> None:
        for part in parts:
            if isinstance(part, ProviderFailure):
                outputs.append(part)
            else:
                outputs.extend(reader.whole(part.value) if isinstance(part, Whole) else reader.feed(part))

    for piece in pieces:
        take(body.feed(piece))
    take(body.eof())
    outputs.extend(reader.eof())
    return split_outputs(outputs)


def decode_frames(frames: Iterable[Frame], **options: Any) -> Decoded:
    reader = decoder(**options)
    outputs = [output for frame in frames for output in reader.feed(frame)]
    return split_outputs([*outputs, *reader.eof()])


def run(*frames: Any, **options: Any) -> Decoded:
    return decode([sse(*frames)], **options)


def events_of(*frames: Any, **options: Any) -> list[Any]:
    events, failure = run(*frames, **options)
    assert failure is None, failure
    return events


def failure_of(*frames: Any) -> tuple[list[Any], ProviderFailure]:
    events, failure = run(*frames)
    assert failure is not None
    return events, failure
