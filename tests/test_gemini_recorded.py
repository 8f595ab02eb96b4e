"""Recorded Gemini streams and requests, against an independent reading of their raw frames; each also as a turn."""

import json
from typing import Any

import httpx
import pytest

import roder_trio as rt
from roder_trio import providers, transcript
from roder_trio.providers.gemini import Profile
from roder_trio.providers.gemini.encode import encode
from roder_trio.schema import inference
from roder_trio.schema.inference import (
    InferenceRequest,
    Instructions,
    ModelChoice,
    OutputRequest,
    ReasoningOptions,
    RequestRuntime,
    ToolDefinition,
)
from roder_trio.schema.transcript import ProviderMetadata, ToolCall, ToolResult, UserMessage
from tests.chat import Decoded, assert_cuts_change_nothing, frames_of, sse
from tests.gemini import TARGET, chunk, decode, decode_frames
from tests.loopback import STREAM, serving
from tests.support import SHARED, shared
from tests.test_recorded_turns import OneByteAtATime, run_as_turn

NAMES = sorted(path.name for path in (SHARED / "wire/gemini").glob("*.sse")) or ["absent"]
every_stream = pytest.mark.parametrize("name", NAMES)
CUTS = 12
FINISH = {"STOP": "stop", None: None}
COUNTS = ("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")


def stream_of(name: str) -> bytes:
    return shared(f"wire/gemini/{name}").read_bytes()


# -- an independent reader: straight over the raw lines, with nothing of the package in it


def objects_of(raw: bytes) -> list[Any]:
    return [json.loads(line[5:]) for line in raw.decode().splitlines() if line.startswith("data:")]


def read_independently(values: list[Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"text": "", "reasoning": "", "calls": [], "hosted": [], "parts": [], "usage": None}
    said |= {"finish": None, "id": values[0]["responseId"], "grounding": {}}
    highest = -1
    for value in values:
        [candidate] = value["candidates"]
        for part in candidate.get("content", {}).get("parts", []):
            if "functionCall" in part:
                said["calls"].append((part["functionCall"]["name"], part["functionCall"]["args"]))
            if "toolCall" in part:
                said["hosted"].append(part["toolCall"]["id"])
            said["reasoning" if part.get("thought") else "text"] += part.get("text", "")
            said["parts"] += [part] if part != {"text": ""} else []
        said["finish"] = candidate.get("finishReason", said["finish"])
        for name in ("groundingMetadata", "citationMetadata", "urlContextMetadata"):
            said["grounding"] |= {name: candidate[name]} if candidate.get(name) else {}
        usage = value.get("usageMetadata", {})
        total = usage.get("totalTokenCount", 0)
        if total >= highest or said["finish"]:
            highest, said["usage"] = total, usage
    return said


def counts_of(usage: Any) -> Any:
    if usage is None:
        return None
    prompt, tool, text, thoughts = (usage.get(name, 0) for name in COUNTS)
    total, cached = usage["totalTokenCount"], usage.get("cachedContentTokenCount", 0)
    return (prompt + tool, text + thoughts, total, cached, thoughts, usage.get("serviceTier"))


def numbers(usage: rt.TokenUsage) -> Any:
    last = usage
    parts = (last.cached_prompt_tokens, last.reasoning_tokens, last.service_tier)
    return (last.prompt_tokens, last.completion_tokens, last.total_tokens, *parts)


def told_counts(events: list[Any]) -> Any:
    told = [event.usage for event in events if isinstance(event, inference.Usage)]
    return numbers(told[-1]) if told else None


def joined(events: list[Any], kind: type) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def outputs(decoded: Decoded) -> Any:
    events, failure = decoded
    return events, failure and (failure.kind, failure.message, failure.status)


@every_stream
def test_a_recorded_stream_says_what_its_raw_frames_say(name: str) -> None:
    said = read_independently(objects_of(stream_of(name)))
    events, failure = decode([stream_of(name)])
    assert failure is None
    assert joined(events, inference.MessageDelta) == said["text"]
    assert joined(events, inference.ReasoningDelta) == said["reasoning"]
    assert told_counts(events) == counts_of(said["usage"])
    calls = [event for event in events if isinstance(event, inference.ToolCallCompleted)]
    assert [(event.name, json.loads(event.arguments)) for event in calls] == said["calls"]
    hosted = [event.id for event in events if isinstance(event, inference.HostedToolCallCompleted)]
    assert hosted == said["hosted"]
    payload = events[-2].payload
    assert payload["output"] == said["parts"]
    assert payload["usage"] == said["usage"]
    assert payload.get("grounding", {}) == said["grounding"]
    assert ("context_tokens" in payload) == (not hosted)
    stop = "tool_use" if calls else FINISH[said["finish"]]
    assert events[-1] == inference.Completed(stop, said["id"])


@pytest.mark.unmeasured
@every_stream
def test_a_recorded_stream_is_the_same_in_single_bytes_and_at_every_cut(name: str) -> None:
    raw = stream_of(name)
    whole = outputs(decode([raw]))
    assert outputs(decode(raw[at : at + 1] for at in range(len(raw)))) == whole
    assert_cuts_change_nothing(raw)
    for cut in range(0, len(raw), max(1, len(raw) // CUTS)):
        assert outputs(decode([raw[:cut], raw[cut:]])) == whole


@every_stream
def test_a_recorded_stream_cut_after_a_frame_is_interrupted_until_its_end_rule_is_met(name: str) -> None:
    frames, values = frames_of(stream_of(name)), objects_of(stream_of(name))
    assert len(frames) == len(values)
    for cut in range(1, len(frames) + 1):
        said = read_independently(values[:cut])
        events, failure = decode_frames(frames[:cut])
        assert told_counts(events) == counts_of(said["usage"])
        if said["finish"]:
            assert failure is None
        else:
            assert failure is not None
            assert (failure.kind.name, failure.cause) == ("STREAM_INTERRUPTED", "truncated")


# -- as turns

LAST_WORD = sse(chunk("done", finish="STOP"))


def check_turn(outcome: rt.TurnOutcome, items: list[Any], recorded: list[rt.TokenUsage], raw: bytes) -> None:
    said = read_independently(objects_of(raw))
    told = "".join(item.text for item in items if isinstance(item, transcript.AssistantMessage))
    calls = [item for item in items if isinstance(item, transcript.ToolCall)]
    results = [item for item in items if isinstance(item, transcript.ToolResult)]
    assert (outcome.status, outcome.finish_reason) == ("completed", "stop")
    assert told == said["text"] + ("done" if said["calls"] else "")
    assert [(call.name, json.loads(call.arguments)) for call in calls] == said["calls"]
    assert [call.id for call in calls] == [result.id for result in results]
    assert outcome.usage == recorded[-1]
    assert numbers(recorded[-1]) == counts_of(said["usage"])


def check_second_request(body: Any, raw: bytes) -> None:
    """The stored parts stand between the question and the results, as they came."""
    said = read_independently(objects_of(raw))
    asked, model, results = body["contents"]
    assert asked == {"role": "user", "parts": [{"text": "Go."}]}
    assert model == {"role": "model", "parts": said["parts"]}
    answered = [part["functionResponse"] for part in results["parts"]]
    ids = [part["functionCall"].get("id") for part in said["parts"] if "functionCall" in part]
    assert [answer["name"] for answer in answered] == [name for name, _ in said["calls"]]
    assert [answer.get("id") for answer in answered] == ids


@every_stream
async def test_a_recorded_stream_runs_as_a_turn_over_a_real_server(name: str) -> None:
    raw = stream_of(name)
    async with serving([STREAM, raw], [STREAM, LAST_WORD]) as server:
        engine = providers.Gemini("acme", base_url=f"http://127.0.0.1:{server.port}", api_key="secret-key")
        outcome, items, recorded = await run_as_turn(engine)
    check_turn(outcome, items, recorded, raw)
    head = server.requests[0].partition(b"\r\n\r\n")[0].decode()
    assert head.splitlines()[0] == "POST /v1beta/models/m:streamGenerateContent?alt=sse HTTP/1.1"
    assert "x-goog-api-key: secret-key" in head
    if any(isinstance(item, transcript.ToolCall) for item in items):
        check_second_request(json.loads(server.requests[1].partition(b"\r\n\r\n")[2]), raw)
    else:
        assert len(server.requests) == 1


@every_stream
async def test_a_recorded_stream_runs_as_a_turn_when_it_comes_byte_by_byte(name: str) -> None:
    raw = stream_of(name)
    answers = [raw, LAST_WORD]

    def handler(request: httpx.Request) -> httpx.Response:
        body = OneByteAtATime(answers.pop(0))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=body)

    async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
        engine = providers.Gemini("acme", base_url="http://localhost", http=client)
        outcome, items, recorded = await run_as_turn(engine)
    check_turn(outcome, items, recorded, raw)


# -- requests

DIFFERENCES = {
    "responseModalities": "text is what a server gives unasked",
    "toolConfig": "we say `AUTO` where the recorder leaves it out",
    "parameters_json_schema": "the recorder sends the schema as it is, we translate it",
    "parameters": "the other side of the same",
    "responseJsonSchema": "the recorder sends the schema as it is, we translate it",
    "responseSchema": "the other side of the same",
    "generationConfig": "an empty object is the same as none",
    "systemInstruction.role": "the role of instructions is not read",
}
"""Keys that one of the two may have alone, with the reason; where both have them they are equal."""


def model_of(body: dict[str, Any]) -> InferenceRequest:
    """Return our request for a recorded body."""
    items: list[Any] = []
    for content in body["contents"]:
        for part in content["parts"]:
            if "functionCall" in part:
                call = part["functionCall"]
                stored = {"dialect": "gemini", "provider": "acme", "model": "m", "output": content["parts"]}
                items += [ProviderMetadata(stored), ToolCall(call["id"], call["name"], json.dumps(call["args"]))]
            elif "functionResponse" in part:
                answered = part["functionResponse"]
                items.append(ToolResult(answered["id"], None, answered["response"]["return_value"]))
            else:
                items.append(UserMessage(part["text"]))
    functions = [function for entry in body.get("tools", ()) for function in entry.get("functionDeclarations", ())]
    generation = body["generationConfig"]
    return InferenceRequest(
        model=ModelChoice("acme", "m"),
        instructions=Instructions(
            system=body.get("systemInstruction", {"parts": [{"text": None}]})["parts"][0]["text"]
        ),
        transcript=items,
        tools=tuple(
            ToolDefinition(entry["name"], entry["description"], entry.get("parameters") or entry[SCHEMA])
            for entry in functions
        ),
        reasoning=ReasoningOptions(enabled="thinkingConfig" in generation),
        output=OutputRequest(
            temperature=generation.get("temperature"), response_format=generation.get("responseJsonSchema")
        ),
        runtime=RequestRuntime(
            hosted_web_search="live" if {"googleSearch": {}} in body.get("tools", ()) else "disabled"
        ),
    )


SCHEMA = "parameters_json_schema"


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return where two bodies differ, but for keys that one may have alone."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        alone = ours.keys() ^ theirs.keys()
        odd = {name for name in alone if not {name, f"{path}.{name}".lstrip(".")} & DIFFERENCES.keys()}
        both = ours.keys() & theirs.keys()
        deeper = [found for name in both for found in differences(ours[name], theirs[name], f"{path}.{name}")]
        return [*(f"{path}.{name}" for name in odd), *deeper]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [found for at, (our, their) in pairs for found in differences(our, their, f"{path}[{at}]")]
    return [] if ours == theirs else [path]


@every_stream
def test_a_recorded_request_is_what_our_own_encodes_to(name: str) -> None:
    body = json.loads(shared(f"wire/gemini/{name.removesuffix('.sse')}.request.json").read_text())
    flags = {"show_hosted_calls": "toolConfig" in body, "dummy_signature": None}
    # a result is called otherwise, and tools of the provider that we have no word for are left out
    theirs = json.loads(json.dumps(body).replace('"return_value"', '"result"'))
    theirs["tools"] = [entry for entry in body.get("tools", ()) if not entry.keys() & {"fileSearch", "urlContext"}]
    ours = encode(model_of(body), Profile(**flags), target=TARGET)
    if not theirs["tools"]:
        del theirs["tools"]
        theirs.pop("toolConfig", None)
    assert differences(ours, theirs) == []


def test_there_are_recorded_streams_to_read_where_the_shared_folder_is() -> None:
    if NAMES == ["absent"]:
        pytest.skip("the recorded provider streams are not beside this repository")
    assert len(NAMES) >= 9
