"""Recorded Responses streams and requests, against an independent reading of their raw frames."""

import json
from typing import Any

import pytest

from roder_trio.providers.openai_responses import Profile
from roder_trio.providers.openai_responses.encode import encode
from roder_trio.schema import inference
from roder_trio.schema.inference import (
    InferenceRequest,
    Instructions,
    ModelChoice,
    RequestRuntime,
    ToolDefinition,
)
from roder_trio.schema.transcript import ToolCall, ToolResult, TranscriptItem, UserMessage
from tests.chat import Decoded, assert_cuts_change_nothing, frames_of
from tests.responses import TARGET, decode, decode_frames, stored
from tests.support import SHARED, shared

NAMES = sorted(path.name for path in (SHARED / "wire/openai_responses").glob("*.sse")) or ["absent"]
every_stream = pytest.mark.parametrize("name", NAMES)
CUTS = 12


def stream_of(name: str) -> bytes:
    return shared(f"wire/openai_responses/{name}").read_bytes()


# -- an independent reader: straight over the raw lines, with nothing of the package in it


def objects_of(raw: bytes) -> list[Any]:
    lines = [line[5:].strip() for line in raw.decode().split("\n") if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def deltas(objects: list[Any], *kinds: str) -> str:
    return "".join(value["delta"] for value in objects if value["type"] in [f"response.{kind}.delta" for kind in kinds])


def final_of(objects: list[Any]) -> Any:
    last = objects[-1]
    return last["response"] if last["type"] == "response.completed" else None


def counts_of(usage: Any) -> Any:
    before, after = usage["input_tokens_details"], usage["output_tokens_details"]
    parts = (before["cached_tokens"], before.get("cache_write_tokens", 0), after["reasoning_tokens"])
    return (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"], *parts)


def told_counts(events: list[Any]) -> Any:
    told = [event.usage for event in events if isinstance(event, inference.Usage)]
    if not told:
        return None
    last = told[-1]
    parts = (last.cached_prompt_tokens, last.cache_creation_prompt_tokens, last.reasoning_tokens)
    return (last.prompt_tokens, last.completion_tokens, last.total_tokens, *parts)


def joined(events: list[Any], kind: type) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def calls_of(output: list[Any]) -> list[Any]:
    return [[item["call_id"], item["name"], item["arguments"]] for item in output if item["type"] == "function_call"]


def hosted_of(output: list[Any]) -> list[Any]:
    own = [item for item in output if item["type"].endswith("_call") and item["type"] != "function_call"]
    return [[item["id"], item["type"].removesuffix("_call")] for item in own]


def check(decoded: Decoded, raw: bytes) -> None:
    events, failure = decoded
    objects = objects_of(raw)
    final = final_of(objects)
    assert failure is None
    assert joined(events, inference.MessageDelta) == deltas(objects, "output_text")
    assert joined(events, inference.ReasoningDelta) == deltas(objects, "reasoning_text", "reasoning_summary_text")
    completed = [event for event in events if isinstance(event, inference.ToolCallCompleted)]
    assert [[event.id, event.name, event.arguments] for event in completed] == calls_of(final["output"])
    hosted = [event for event in events if isinstance(event, inference.HostedToolCallCompleted)]
    assert [[event.id, event.name] for event in hosted] == hosted_of(final["output"])
    assert told_counts(events) == counts_of(final["usage"])
    tier = final.get("service_tier")
    assert [event.usage.service_tier for event in events if isinstance(event, inference.Usage)] == [tier]
    stop = "tool_use" if calls_of(final["output"]) else "stop"
    assert events[-1] == inference.Completed(stop, final["id"])
    kept = events[-2].payload
    assert kept["output"] == final["output"]
    assert (kept["usage"], kept["response_id"], kept["model"]) == (final["usage"], final["id"], "m")
    assert kept.get("moderation") == final.get("moderation")


@every_stream
def test_a_recorded_stream_says_what_its_raw_frames_say(name: str) -> None:
    raw = stream_of(name)
    check(decode([raw]), raw)


@pytest.mark.unmeasured
@every_stream
def test_a_recorded_stream_is_the_same_in_single_bytes_and_at_every_cut(name: str) -> None:
    raw = stream_of(name)
    whole = decode([raw])
    assert decode(raw[at : at + 1] for at in range(len(raw))) == whole
    assert_cuts_change_nothing(raw)
    for cut in range(0, len(raw), max(1, len(raw) // CUTS)):
        assert decode([raw[:cut], raw[cut:]]) == whole


@every_stream
def test_a_recorded_stream_cut_after_a_frame_is_interrupted_until_the_server_says_how_it_ended(name: str) -> None:
    frames = frames_of(stream_of(name))
    objects = [json.loads(frame.data) for frame in frames if frame.data != "[DONE]"]
    for cut in range(1, len(objects) + 1):
        events, failure = decode_frames(frames[:cut])
        final = final_of(objects[:cut])
        assert told_counts(events) == (final and counts_of(final["usage"]))
        assert joined(events, inference.MessageDelta) == deltas(objects[:cut], "output_text")
        if final is None:
            assert failure is not None
            assert (failure.kind.name, failure.cause) == ("STREAM_INTERRUPTED", "truncated")
        else:
            assert failure is None


# -- requests


ONE_SIDED = {
    "store": "we never leave anything on the server, the recorder does",
    "strict": "the recorder marks schemas by a rule of its own, we mark none unless the profile says so",
    "tool_choice": "the recorder names one without tools that we have words for",
    "parallel_tool_calls": "we say it with every function",
    "instructions": "an empty text is the same as absent",
    "type": "a message may leave its type out",
    "background": "the canonical model has no word for it",
    "conversation": "the same; a conversation lives in our log",
    "moderation": "the same",
    "defer_loading": "the same",
    "search_context_size": "the same",
}
"""Keys that one of the two may have alone, with the reason; where both have them they are equal."""
UNEQUAL = {"strict", "description"}
"""Of these, those that may differ: a tool without a description has an empty one."""
OWN_TOOLS = ("function", "web_search")
INCLUDES = ["reasoning.encrypted_content"]


def transcript_of(body: dict[str, Any]) -> list[TranscriptItem]:
    """Return the log that a recorded `input` comes from: items with an id are what the provider itself said."""
    items: list[TranscriptItem] = []
    said: list[Any] = []
    calls: list[TranscriptItem] = []
    for part in body["input"]:
        kind = part.get("type", "message")
        if kind in ("reasoning", "function_call") and "id" in part:
            said.append(part)
        if kind == "function_call":
            calls.append(ToolCall(part["call_id"], part["name"], part["arguments"]))
        elif kind == "function_call_output":
            items.extend([stored(*said, model=body["model"])] if said else [])
            items.extend([*calls, ToolResult(part["call_id"], None, part["output"])])
            said, calls = [], []
        elif kind == "message":
            items.append(UserMessage(part["content"]))
    return items


def request_of(body: dict[str, Any]) -> InferenceRequest:
    """Return our request for a recorded body."""
    functions = [tool for tool in body["tools"] if tool["type"] == "function"]
    searches = any(tool["type"] == "web_search" for tool in body["tools"])
    return InferenceRequest(
        model=ModelChoice("acme", body["model"]),
        instructions=Instructions(system=body.get("instructions")),
        transcript=transcript_of(body),
        tools=tuple(ToolDefinition(tool["name"], tool["description"] or "", tool["parameters"]) for tool in functions),
        runtime=RequestRuntime(hosted_web_search="live" if searches else "disabled"),
    )


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return where two bodies differ, but for what the tables above explain."""
    if isinstance(ours, list) and isinstance(theirs, str):
        theirs = [{"type": "input_text", "text": theirs}]
    if isinstance(ours, dict) and isinstance(theirs, dict):
        alone = {name for name in ours.keys() ^ theirs.keys() if name not in ONE_SIDED}
        both = (ours.keys() & theirs.keys()) - UNEQUAL
        deeper = [found for name in both for found in differences(ours[name], theirs[name], f"{path}.{name}")]
        return [*(f"{path}.{name}" for name in alone), *deeper]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [found for at, (our, their) in pairs for found in differences(our, their, f"{path}[{at}]")]
    return [] if ours == theirs else [path]


@every_stream
def test_a_recorded_request_is_what_our_own_encodes_to(name: str) -> None:
    body = json.loads(shared(f"wire/openai_responses/{name.removesuffix('.sse')}.request.json").read_bytes())
    # what else a provider runs we have no words for, and nothing but reasoning is asked back
    body["tools"] = [tool for tool in body.get("tools", ()) if tool["type"] in OWN_TOOLS]
    body["include"] = [part for part in body.get("include", ()) if part in INCLUDES]
    ours = encode(request_of(body), Profile(reasons_unasked=bool(body["include"]), web_access=False), target=TARGET)
    body = {key: value for key, value in body.items() if value != []}
    assert differences(ours, body) == []
    assert ours["store"] is False
    unexplained = (body.keys() ^ ours.keys()) - ONE_SIDED.keys()
    assert unexplained == set()


def test_there_are_recorded_streams_where_the_shared_folder_is() -> None:
    if NAMES == ["absent"]:
        pytest.skip("the recorded provider streams are not beside this repository")
    assert len(NAMES) > 15
