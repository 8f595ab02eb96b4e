"""Helpers of the tests of the Anthropic engine: requests, and streams decoded without a transport."""

import itertools
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import httpx

from roder_trio.errors import ProviderFailure
from roder_trio.logic.naming import ToolNames
from roder_trio.logic.redaction import Redactor
from roder_trio.logic.sse import Frame
from roder_trio.providers._body import Body, Whole
from roder_trio.providers._facts import Facts
from roder_trio.providers.anthropic import Anthropic, Profile
from roder_trio.providers.anthropic.decode import AnthropicDecoder
from roder_trio.providers.anthropic.encode import encode
from roder_trio.schema.inference import EngineTarget, InferenceRequest, ModelChoice
from roder_trio.schema.transcript import ProviderMetadata, UserMessage
from tests.chat import Decoded, split_outputs

TARGET = EngineTarget("anthropic", "acme", "http://localhost")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def request(*items: Any, **options: Any) -> InferenceRequest:
    options.setdefault("model", ModelChoice("acme", "m"))
    return InferenceRequest(transcript=items or (UserMessage("hi"),), **options)


def body(*items: Any, flags: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """The body of a request; without breakpoints unless the flags say otherwise."""
    profile = Profile(**{"prompt_cache": False, **(flags or {})})
    return encode(request(*items, **options), profile, target=TARGET, now=NOW)


def messages(*items: Any, **flags: Any) -> list[Any]:
    sent: list[Any] = body(*items, flags=flags)["messages"]
    return sent


def engine(handler: Any = None, **options: Any) -> Anthropic:
    """An engine over a mock transport, or one without a client if there is no handler."""
    http = None if handler is None else httpx.AsyncClient(transport=httpx.MockTransport(handler))
    return Anthropic("acme", http=http, **{"base_url": "http://localhost", **options})


# -- blocks of messages


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [said(block) if isinstance(block, str) else block for block in blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {**user(*blocks), "role": "assistant"}


def used(id: str, name: str = "f", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def result(id: str, *blocks: Any, **more: Any) -> dict[str, Any]:
    content = {"content": [said(block) if isinstance(block, str) else block for block in blocks]} if blocks else {}
    return {"type": "tool_result", "tool_use_id": id, **content, **more}


def stored(*output: Any, **more: Any) -> ProviderMetadata:
    named = {"dialect": "anthropic", "provider": "acme", "base_url": "http://localhost", "model": "m"}
    return ProviderMetadata({**named, "output": list(output), **more})


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s1s2"}


# -- frames


def began(usage: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": "r1", "content": [], "usage": usage, **more}}


def opened(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def piece(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", **fields}}


def closed(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def stopped(reason: str | None, usage: Any = None, **delta: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, **delta}, "usage": usage}


OVER = {"type": "message_stop"}


def text(index: int, *pieces: str) -> list[Any]:
    said = [piece(index, "text", text=part) for part in pieces]
    return [opened(index, "text", text=""), *said, closed(index)]


def call(index: int, id: str, name: str, *pieces: str, kind: str = "tool_use", **fields: Any) -> list[Any]:
    given = [piece(index, "input_json", partial_json=part) for part in pieces]
    return [opened(index, kind, **{"id": id, "name": name, "input": {}, **fields}), *given, closed(index)]


def sse(*frames: Any) -> bytes:
    return b"".join(f"event: {frame['type']}\ndata: {json.dumps(frame)}\n\n".encode() for frame in frames)


# -- decoding


def decoder(*, tools: Iterable[str] = (), taken: Iterable[str] = (), **flags: Any) -> AnthropicDecoder:
    count = itertools.count(1)
    facts = Facts(
        target=TARGET,
        model="m",
        profile=Profile(**flags),
        names=ToolNames(tools, 128),
        redactor=Redactor(),
        fresh=lambda: f"call_fresh{next(count)}",
        taken=set(taken),
    )
    return AnthropicDecoder(facts)


def decode(pieces: Iterable[bytes], content_type: str = "text/event-stream", **options: Any) -> Decoded:
    """Decode a whole body that comes in pieces."""
    reader, frames = decoder(**options), Body(content_type, Redactor())
    outputs: list[Any] = []

    def take(parts: Any) -> None:
        for part in parts:
            if isinstance(part, ProviderFailure):
                outputs.append(part)
            else:
                outputs.extend(reader.whole(part.value) if isinstance(part, Whole) else reader.feed(part))

    for some in pieces:
        take(frames.feed(some))
    take(frames.eof())
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


def replay_of(*frames: Any, **options: Any) -> Mapping[str, Any]:
    """The replay metadata of a stream that goes well."""
    payload: Mapping[str, Any] = events_of(*frames, **options)[-2].payload
    return payload
