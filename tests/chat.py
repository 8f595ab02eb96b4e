"""Helpers of the tests of the Chat Completions engine: requests, and streams decoded without a transport."""

import itertools
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import trio

from roder_trio.errors import ProviderFailure
from roder_trio.logic.naming import ToolNames
from roder_trio.logic.redaction import Redactor
from roder_trio.logic.sse import Frame, SseDecoder
from roder_trio.providers._body import Body, Whole
from roder_trio.providers._facts import Facts
from roder_trio.providers.chat_completions import ChatCompletions, Profile
from roder_trio.providers.chat_completions.decode import ChatDecoder
from roder_trio.schema import inference
from roder_trio.schema.inference import EngineTarget, InferenceRequest, ModelChoice, ToolDefinition, TurnContext
from roder_trio.schema.transcript import UserMessage
from roder_trio.schema.usage import TokenUsage
from roder_trio.testing.grammar import check_grammar

TARGET = EngineTarget("chat_completions", "acme", "http://localhost/v1")
CONTEXT = TurnContext(thread_id="t", turn_id="u", attempt_id="a")
Decoded = tuple[list[Any], ProviderFailure | None]


def tool(name: str, **options: Any) -> ToolDefinition:
    return ToolDefinition(
        name, options.pop("description", ""), options.pop("parameters", {"type": "object"}), **options
    )


def request(*items: Any, **options: Any) -> InferenceRequest:
    options.setdefault("model", ModelChoice("acme", "m"))
    return InferenceRequest(transcript=items or (UserMessage("hi"),), **options)


def engine(handler: Any = None, **options: Any) -> ChatCompletions:
    """An engine over a mock transport, or one without a client if there is no handler."""
    http = None if handler is None else httpx.AsyncClient(transport=httpx.MockTransport(handler))
    options = {"base_url": "http://localhost/v1", **options}
    return ChatCompletions("acme", http=http, **options)


def sse(*frames: Any) -> bytes:
    texts = (frame if isinstance(frame, str) else json.dumps(frame) for frame in frames)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "r1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def fragment(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> Any:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    named = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    return {**named, "function": function}


def calls(*fragments: Any, finish: str | None = None) -> dict[str, Any]:
    return chunk(finish, tool_calls=list(fragments))


def usage(prompt: int, completion: int, total: int | None = None, **more: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **more}
    return {"choices": [], "usage": counts if total is None else {**counts, "total_tokens": total}}


def decoder(*, tools: Iterable[str] = (), taken: Iterable[str] = (), **flags: Any) -> ChatDecoder:
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
    return ChatDecoder(facts)


def split_outputs(outputs: list[Any]) -> Decoded:
    """Take a failure at the end off, and check the grammar of it all."""
    failure = outputs[-1] if outputs and isinstance(outputs[-1], ProviderFailure) else None
    events = outputs if failure is None else outputs[:-1]
    check_grammar(events, failure)
    return events, failure


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


def frames_of(stream: bytes) -> list[Frame]:
    reader = SseDecoder()
    return [*reader.feed(stream), *reader.eof()]


def assert_cuts_change_nothing(raw: bytes) -> None:
    """Check that a body gives equal frames at every cut of its first 2 KiB; a decoder is fed with nothing else."""
    head = raw[:3000]
    whole = parts_of(head)
    for cut in range(min(len(head), 2048)):
        assert parts_of(head[:cut], head[cut:]) == whole


def parts_of(*pieces: bytes) -> list[Any]:
    body = Body("text/event-stream", Redactor())
    return [*(part for piece in pieces for part in body.feed(piece)), *body.eof()]


def run(*frames: Any, **options: Any) -> Decoded:
    return decode([sse(*frames)], **options)


def events_of(*frames: Any, **options: Any) -> list[Any]:
    events, failure = run(*frames, **options)
    assert failure is None, failure
    return events


def without_metadata(events: Iterable[Any]) -> list[Any]:
    return [event for event in events if not isinstance(event, inference.ProviderMetadata)]


def told(prompt: int, completion: int, total: int, **more: Any) -> inference.Usage:
    return inference.Usage(TokenUsage(prompt, completion, total, **more))


def completed_calls(events: Iterable[Any]) -> list[tuple[str, str, str]]:
    found = [event for event in events if isinstance(event, inference.ToolCallCompleted)]
    return [(event.id, event.name, event.arguments) for event in found]


class Chunks(httpx.AsyncByteStream):
    """A body of scripted steps: bytes to give, seconds to wait, errors to raise."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps
        self.closed = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:  # noqa: ASYNC900 - what httpx iterates over
        for step in self.steps:
            if isinstance(step, bytes):
                yield step
            elif isinstance(step, Exception):
                raise step
            else:
                await trio.sleep(step)

    async def aclose(self) -> None:
        self.closed += 1
