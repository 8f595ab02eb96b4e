"""Recorded Chat Completions streams, against an independent reading of their raw frames."""

import json
from pathlib import Path
from typing import Any

import hypercorn.trio
import pytest
import trio
from hypercorn.config import Config

from roder_trio.providers.chat_completions import Profile
from roder_trio.providers.chat_completions.encode import encode
from roder_trio.schema import inference
from roder_trio.schema.inference import (
    InferenceRequest,
    Instructions,
    ModelChoice,
    OutputRequest,
    ReasoningOptions,
    ToolChoice,
    ToolDefinition,
)
from roder_trio.schema.transcript import AssistantMessage, ToolCall, ToolResult, UserMessage
from tests.chat import (
    CONTEXT,
    TARGET,
    Decoded,
    assert_cuts_change_nothing,
    decode,
    decode_frames,
    engine,
    frames_of,
    request,
    split_outputs,
)
from tests.support import SHARED, shared

NAMES = sorted(path.name for path in (SHARED / "wire/chat_completions").glob("*.sse")) or ["absent"]
every_stream = pytest.mark.parametrize("name", NAMES)
CUTS = 12


def stream_of(name: str) -> bytes:
    return shared(f"wire/chat_completions/{name}").read_bytes()


# -- an independent reader: straight over the raw lines, with nothing of the package in it


def objects_of(raw: bytes) -> list[Any]:
    lines = [line[5:].strip() for line in raw.decode().split("\n") if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def read_independently(raw: bytes) -> dict[str, Any]:
    said: dict[str, Any] = {"text": "", "reasoning": "", "calls": {}, "usage": None, "finish": None, "error": None}
    for value in objects_of(raw):
        for choice in value.get("choices", ()):
            delta = choice.get("delta", {})
            said["text"] += delta.get("content") or ""
            said["reasoning"] += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for part in delta.get("tool_calls", ()):
                call = said["calls"].setdefault(part["index"], ["", ""])
                call[0] = call[0] or part["function"].get("name") or ""
                call[1] += part["function"].get("arguments") or ""
            said["finish"] = choice.get("finish_reason") or said["finish"]
        found = value.get("usage") or (value.get("x_groq") or {}).get("usage")
        said["usage"] = found or said["usage"]
        said["error"] = value.get("error") or said["error"]
    return said


def counts_of(usage: Any) -> Any:
    if usage is None:
        return None
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    before, after = (usage.get(name) or {} for name in ("prompt_tokens_details", "completion_tokens_details"))
    reasoning = min(after.get("reasoning_tokens", 0), completion)
    cached, written = before.get("cached_tokens", 0), before.get("cache_write_tokens", 0)
    return (prompt, completion, usage["total_tokens"], cached, written, reasoning)


def told_counts(events: list[Any]) -> Any:
    told = [event.usage for event in events if isinstance(event, inference.Usage)]
    if not told:
        return None
    last = told[-1]
    parts = (last.cached_prompt_tokens, last.cache_creation_prompt_tokens, last.reasoning_tokens)
    return (last.prompt_tokens, last.completion_tokens, last.total_tokens, *parts)


def joined(events: list[Any], kind: type) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def check(decoded: Decoded, raw: bytes) -> None:
    events, failure = decoded
    said = read_independently(raw)
    assert joined(events, inference.MessageDelta) == said["text"]
    assert joined(events, inference.ReasoningDelta) == said["reasoning"]
    assert told_counts(events) == counts_of(said["usage"])
    assert (failure is not None) == (said["error"] is not None)
    if failure is not None:
        assert str(said["error"]["message"]) in failure.message
        return
    found = [event for event in events if isinstance(event, inference.ToolCallCompleted)]
    assert [[event.name, event.arguments] for event in found] == [call for _, call in sorted(said["calls"].items())]
    assert events[-2].payload["raw_stop_reason"] == said["finish"]
    assert events[-2].payload["usage"] == said["usage"]


@every_stream
def test_a_recorded_stream_says_what_its_raw_frames_say(name: str) -> None:
    raw = stream_of(name)
    check(decode([raw]), raw)


@pytest.mark.unmeasured
@every_stream
def test_a_recorded_stream_is_the_same_in_single_bytes_and_at_every_cut(name: str) -> None:
    raw = stream_of(name)
    whole = outputs(decode([raw]))
    assert outputs(decode(raw[at : at + 1] for at in range(len(raw)))) == whole
    assert_cuts_change_nothing(raw)
    for cut in range(0, len(raw), max(1, len(raw) // CUTS)):
        assert outputs(decode([raw[:cut], raw[cut:]])) == whole


def outputs(decoded: Decoded) -> Any:
    events, failure = decoded
    return events, failure and (failure.kind, failure.message, failure.status)


@every_stream
def test_a_recorded_stream_cut_after_a_frame_is_interrupted_until_its_end_rule_is_met(name: str) -> None:
    frames = frames_of(stream_of(name))
    objects = [None if frame.data == "[DONE]" else json.loads(frame.data) for frame in frames]
    for cut in range(1, len(frames)):
        seen = [value for value in objects[:cut] if value is not None]
        events, failure = decode_frames(frames[:cut])
        usages = [(value.get("usage") or (value.get("x_groq") or {}).get("usage")) for value in seen]
        assert told_counts(events) == counts_of(next((usage for usage in reversed(usages) if usage), None))
        finished = any(choice.get("finish_reason") for value in seen for choice in value.get("choices", ()))
        broken = any(value.get("error") for value in seen)
        if broken or finished:
            assert (failure is not None) == broken
        else:
            assert failure is not None
            assert failure.kind.name == "STREAM_INTERRUPTED"


def test_the_failures_that_were_recorded_are_classified() -> None:
    kinds = {name: failure.kind.name for name in NAMES if (failure := decode([stream_of(name)])[1]) is not None}
    assert set(kinds.values()) == {"STREAM_INTERRUPTED", "INVALID_REQUEST"}


# -- requests


ONE_SIDED = {
    "n": "one choice is what a server gives unasked",
    "strict": "the recorder marks schemas by a rule of its own",
    "tool_choice": "the recorder leaves `auto` out at times",
    "stream_options": "a flag of the profile",
    "clear_thinking": "a switch of one vendor that the canonical model has no word for",
    "content": "null is the same as absent",
    "tools": "an empty list is the same as absent",
}
"""Keys that one of the two may have alone, with the reason; where both have them they are equal."""


def model_of(body: dict[str, Any]) -> InferenceRequest:
    """Return our request for a recorded body."""
    items: list[Any] = []
    system = None
    for message in body["messages"]:
        content = message.get("content")
        match message["role"]:
            case "system":
                system = content
            case "user":
                items.append(UserMessage(content))
            case "assistant":
                items.extend([AssistantMessage(content)] if content else [])
                for call in message.get("tool_calls", ()):
                    items.append(ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]))
            case "tool":
                items.append(ToolResult(message["tool_call_id"], None, content))
    functions = [tool["function"] for tool in body.get("tools", ()) if tool["type"] == "function"]
    tools = tuple(ToolDefinition(part["name"], part["description"], part["parameters"]) for part in functions)
    mode = {"required": "any"}.get(body.get("tool_choice", "auto"), "auto")
    return InferenceRequest(
        model=ModelChoice("acme", body["model"]),
        instructions=Instructions(system=system),
        transcript=items,
        tools=tools,
        tool_choice=ToolChoice(mode),  # type: ignore[arg-type]
        reasoning=ReasoningOptions(enabled="reasoning" in body or "thinking" in body),
        output=OutputRequest(max_tokens=body.get("max_completion_tokens"), temperature=body.get("temperature")),
    )


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return where two bodies differ, but for keys that one may have alone."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        alone = {name for name in ours.keys() ^ theirs.keys() if name not in ONE_SIDED}
        both = ours.keys() & theirs.keys()
        deeper = [found for name in both for found in differences(ours[name], theirs[name], f"{path}.{name}")]
        return [*(f"{path}.{name}" for name in alone), *deeper]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [found for at, (our, their) in pairs for found in differences(our, their, f"{path}[{at}]")]
    return [] if ours == theirs else [path]


@every_stream
def test_a_recorded_request_is_what_our_own_encodes_to(name: str) -> None:
    body = json.loads(stream_of_request(name))
    # tools that the provider runs are no functions, so we have no words for them
    body["tools"] = [tool for tool in body.get("tools", ()) if tool["type"] == "function"]
    style = "toggle" if "thinking" in body else "object"
    profile = Profile(thinking_style=style, max_tokens_field="max_completion_tokens")
    assert differences(encode(model_of(body), profile, target=TARGET), body) == []


def stream_of_request(name: str) -> bytes:
    return shared(f"wire/chat_completions/{name.removesuffix('.sse')}.request.json").read_bytes()


# -- over a real server


async def answer_from_file(path: Path, scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    raw = path.read_bytes()
    for start in range(0, len(raw), 777):
        await send({"type": "http.response.body", "body": raw[start : start + 777], "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.mark.parametrize("name", [*NAMES[:3], *NAMES[-1:]])
async def test_a_recorded_stream_comes_whole_through_a_real_server(name: str, nursery: trio.Nursery) -> None:
    raw = stream_of(name)
    path = shared(f"wire/chat_completions/{name}")
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    stop = trio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await answer_from_file(path, scope, receive, send)

    async def serve(task_status: Any) -> None:  # noqa: ASYNC128 - hypercorn calls it
        await hypercorn.trio.serve(application, config, shutdown_trigger=stop.wait, task_status=task_status)

    [url] = await nursery.start(serve)
    chat = engine(base_url=f"{url}/v1")
    outputs: list[Any] = []
    try:
        async with chat.stream_turn(CONTEXT, request()) as stream:
            async for event in stream:
                outputs.append(event)
    except Exception as failure:
        outputs.append(failure)
    stop.set()
    check(split_outputs(outputs), raw)
