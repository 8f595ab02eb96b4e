"""Helpers of the tests of the Responses engine: requests, frames, and streams decoded without a transport."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from roder_trio.errors import ProviderFailure
from roder_trio.logic.naming import ToolNames
from roder_trio.logic.redaction import Redactor
from roder_trio.logic.sse import Frame
from roder_trio.providers._body import Body, Whole
from roder_trio.providers._facts import Facts
from roder_trio.providers.openai_responses import OpenAIResponses, Profile
from roder_trio.providers.openai_responses.decode import CompactionDecoder, ResponsesDecoder
from roder_trio.providers.openai_responses.encode import encode
from roder_trio.schema import inference
from roder_trio.schema.inference import Completed, EngineTarget, Usage
from roder_trio.schema.transcript import ProviderMetadata
from tests.chat import Decoded, request, split_outputs, sse, without_metadata

TARGET = EngineTarget("openai_responses", "acme", "http://localhost/v1")


def engine(handler: Any = None, **options: Any) -> OpenAIResponses:
    """An engine over a mock transport, or one without a client if there is no handler."""
    http = None if handler is None else httpx.AsyncClient(transport=httpx.MockTransport(handler))
    options = {"base_url": "http://localhost/v1", **options}
    return OpenAIResponses("acme", http=http, **options)


# -- frames


def frame(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def added(item: dict[str, Any], place: int | None = 0) -> dict[str, Any]:
    return frame("output_item.added", item=item, **({} if place is None else {"output_index": place}))


def done(item: dict[str, Any], place: int | None = 0) -> dict[str, Any]:
    return frame("output_item.done", item=item, **({} if place is None else {"output_index": place}))


def text(delta: str, id: str = "m1", **fields: Any) -> dict[str, Any]:
    return frame("output_text.delta", item_id=id, delta=delta, **{"content_index": 0, **fields})


def summary(delta: str, place: int = 0, id: str = "rs_a") -> dict[str, Any]:
    return frame("reasoning_summary_text.delta", item_id=id, summary_index=place, delta=delta)


def grown(id: str, delta: str) -> dict[str, Any]:
    return frame("function_call_arguments.delta", item_id=id, delta=delta)


def message(said: str = "", id: str = "m1", **fields: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": said, "annotations": []}] if said else []
    return {"type": "message", "id": id, "role": "assistant", "content": content, **fields}


def reasoning(*texts: str, id: str = "rs_a", **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": id, "summary": [{"type": "summary_text", "text": t} for t in texts], **fields}


def call(id: str, call_id: str, name: str, arguments: str = "", **fields: Any) -> dict[str, Any]:
    named = {"call_id": call_id, "name": name, "arguments": arguments}
    return {"type": "function_call", "id": id, **named, **fields}


def custom(id: str, call_id: str, name: str, given: str = "", **fields: Any) -> dict[str, Any]:
    return {"type": "custom_tool_call", "id": id, "call_id": call_id, "name": name, "input": given, **fields}


def boundary(content: str = "opaque", id: str = "cmp_1") -> dict[str, Any]:
    return {"type": "compaction", "id": id, "encrypted_content": content}


def usage(prompt: int, completion: int, total: int, **more: int) -> dict[str, Any]:
    parts = {
        "input_tokens_details": {name: more[name] for name in ("cached_tokens", "cache_write_tokens") if name in more},
        "output_tokens_details": {name: more[name] for name in ("reasoning_tokens",) if name in more},
    }
    return {"input_tokens": prompt, "output_tokens": completion, "total_tokens": total, **parts}


def ended(*output: dict[str, Any], state: str = "completed", **fields: Any) -> dict[str, Any]:
    return frame(state, response={"id": "r1", "status": state, "output": list(output), **fields})


def arguments_done(id: str, written: str) -> dict[str, Any]:
    return frame("function_call_arguments.done", item_id=id, arguments=written)


END = Completed("stop", "r1")
CALLED = Completed("tool_use", "r1")
BEGINS = [frame(kind, response={"id": "r1", "status": kind}) for kind in ("created", "queued", "in_progress")]


# -- decoding


def facts(*, tools: Iterable[str] = (), **flags: Any) -> Facts[Profile]:
    count = itertools.count(1)
    return Facts(
        target=TARGET,
        model="m",
        profile=Profile(**flags),
        names=ToolNames(tools),
        redactor=Redactor(),
        fresh=lambda: f"call_fresh{next(count)}",
    )


def decode(pieces: Iterable[bytes], content_type: str = "text/event-stream", **options: Any) -> Decoded:
    """Decode a whole body that comes in pieces."""
    return _decode(ResponsesDecoder(facts(**options)), pieces, content_type)


def decode_compaction(body: bytes, content_type: str = "application/json") -> Decoded:
    return _decode(CompactionDecoder(facts()), [body], content_type)


def _decode(reader: ResponsesDecoder | CompactionDecoder, pieces: Iterable[bytes], content_type: str) -> Decoded:
    body = Body(content_type, Redactor())
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
    assert reader.eof() == []
    told = [output.usage for output in outputs if isinstance(output, inference.Usage)]
    assert reader.settle() == (told[-1] if told else None)
    return split_outputs(outputs)


def decode_frames(frames: Iterable[Frame], **options: Any) -> Decoded:
    reader = ResponsesDecoder(facts(**options))
    outputs: list[Any] = [output for part in frames for output in reader.feed(part)]
    return split_outputs([*outputs, *reader.eof()])


def run(*frames: Any, **options: Any) -> Decoded:
    return decode([sse(*frames)], **options)


def events_of(*frames: Any, **options: Any) -> list[Any]:
    events, failure = run(*frames, **options)
    assert failure is None, failure
    return events


def failure_of(*frames: Any, **options: Any) -> ProviderFailure:
    failure = run(*frames, **options)[1]
    assert failure is not None
    return failure


def payload(events: list[Any]) -> Any:
    """The replay metadata of a stream."""
    assert isinstance(events[-2], inference.ProviderMetadata)
    return events[-2].payload


def without_end(events: list[Any]) -> list[Any]:
    """The content of a stream: all but usage, metadata and the end."""
    return [event for event in without_metadata(events) if not isinstance(event, Usage | Completed)]


# -- a step in the log


def stored(*output: dict[str, Any], **fields: Any) -> ProviderMetadata:
    named = {"dialect": TARGET.dialect, "provider": TARGET.provider, "base_url": TARGET.base_url, "model": "m"}
    return ProviderMetadata({**named, "output": list(output), **fields})


# -- bodies


def body(*items: Any, flags: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return encode(request(*items, **options), Profile(**(flags or {})), target=TARGET)


def sent(*items: Any, flags: Mapping[str, Any] | None = None, **options: Any) -> list[Any]:
    found: list[Any] = body(*items, flags=flags, **options)["input"]
    return found


def given(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **fields}


def asked(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def answered(call_id: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}
