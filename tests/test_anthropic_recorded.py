"""Recorded streams and requests of the Messages API, against an independent reading of the raw frames."""

import json
from pathlib import Path
from typing import Any

import pytest

import roder_trio as rt
from roder_trio import providers, transcript
from roder_trio.providers.anthropic import Profile
from roder_trio.providers.anthropic.encode import encode
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
from tests.anthropic_support import (
    NOW,
    OVER,
    TARGET,
    decode,
    decode_frames,
    decoder,
    engine,
    messages,
    sse,
    stopped,
    text,
)
from tests.chat import Decoded, assert_cuts_change_nothing, frames_of
from tests.loopback import STREAM, serving
from tests.support import SHARED, shared
from tests.test_chat_recorded import joined, outputs, told_counts
from tests.test_recorded_turns import run_as_turn

NAMES = sorted(path.name for path in (SHARED / "wire/anthropic").glob("*.sse")) or ["absent"]
every_stream = pytest.mark.parametrize("name", NAMES)
CUTS = 12
LAST_WORD = sse(*text(0, "done"), stopped("end_turn"), OVER)


def stream_of(name: str) -> bytes:
    return shared(f"wire/anthropic/{name}").read_bytes()


# -- an independent reader: straight over the raw lines, with nothing of the package in it


def objects_of(raw: bytes) -> list[Any]:
    return [json.loads(line[5:]) for line in raw.decode().split("\n") if line.startswith("data:")]


def read_independently(values: list[Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"text": "", "reasoning": "", "output": {}, "usage": {}, "finish": None, "container": None}
    inputs: dict[int, str] = {}
    for value in values:
        block = said["output"].get(value.get("index"))
        delta = value.get("delta", {})
        if value["type"] == "message_start":
            said["usage"] = dict(value["message"]["usage"])
        elif value["type"] == "content_block_start":
            said["output"][value["index"]] = dict(value["content_block"])
        elif value["type"] == "message_delta":
            said["finish"] = delta["stop_reason"]
            said["container"] = delta.get("container")
            said["usage"] |= {name: count for name, count in value["usage"].items() if count is not None}
        elif delta.get("type") == "text_delta":
            said["text"] += delta["text"]
            block["text"] += delta["text"]
        elif delta.get("type") == "thinking_delta":
            said["reasoning"] += delta["thinking"]
            block["thinking"] += delta["thinking"]
        elif delta.get("type") == "signature_delta":
            block["signature"] += delta["signature"]
        elif delta.get("type") == "citations_delta":
            block["citations"] = [*(block["citations"] or []), delta["citation"]]
        elif delta.get("type") == "compaction_delta":
            block["content"] = delta["content"]
        elif delta.get("type") == "input_json_delta":
            inputs[value["index"]] = inputs.get(value["index"], "") + delta["partial_json"]
    for index, written in inputs.items():
        said["output"][index]["input"] = json.loads(written) if index in said["output"] and _whole(written) else {}
    return {**said, "inputs": inputs, "output": list(said["output"].values())}


def _whole(written: str) -> bool:
    try:
        json.loads(written)
    except ValueError:
        return False
    return True


def counts_of(usage: dict[str, Any]) -> Any:
    """Prompt, completion, total, cached, written and reasoning, as they are billed."""
    beside = [entry for entry in usage.get("iterations") or () if entry["type"] in ("compaction", "advisor_message")]

    def total(name: str) -> int:
        return sum(entry.get(name) or 0 for entry in (usage, *beside))

    written, cached = total("cache_creation_input_tokens"), total("cache_read_input_tokens")
    prompt, completion = total("input_tokens") + written + cached, total("output_tokens")
    return (prompt, completion, prompt + completion, cached, written, 0)


def calls_of(said: dict[str, Any], *kinds: str) -> list[Any]:
    return [(block["name"], block["input"]) for block in said["output"] if block["type"] in kinds]


def check(decoded: Decoded, raw: bytes) -> None:
    events, failure = decoded
    assert failure is None
    said = read_independently(objects_of(raw))
    assert joined(events, inference.MessageDelta) == said["text"]
    assert joined(events, inference.ReasoningDelta) == said["reasoning"]
    assert told_counts(events) == counts_of(said["usage"])
    ours = [event for event in events if isinstance(event, inference.ToolCallCompleted)]
    assert [(event.name, json.loads(event.arguments)) for event in ours] == calls_of(said, "tool_use")
    theirs = [event for event in events if isinstance(event, inference.HostedToolCallCompleted)]
    assert [(event.name, json.loads(event.arguments)) for event in theirs] == calls_of(said, "server_tool_use")
    compacted = [event.item for event in events if isinstance(event, inference.Compaction) and event.item]
    assert compacted == [block for block in said["output"] if block["type"] == "compaction"]
    payload = events[-2].payload
    assert payload["raw_stop_reason"] == said["finish"]
    assert events[-1].stop_reason == {"end_turn": "stop"}.get(said["finish"], said["finish"])
    assert payload["output"] == said["output"]
    assert payload["usage"] == said["usage"]
    assert payload.get("container") == said["container"]


@every_stream
def test_a_recorded_stream_says_what_its_raw_frames_say(name: str) -> None:
    raw = stream_of(name)
    check(decode([raw]), raw)


@every_stream
def test_a_recorded_stream_is_the_same_in_single_bytes(name: str) -> None:
    raw = stream_of(name)
    check(decode(raw[at : at + 1] for at in range(len(raw))), raw)


@pytest.mark.unmeasured
@every_stream
def test_a_recorded_stream_is_the_same_at_every_cut(name: str) -> None:
    raw = stream_of(name)
    whole = outputs(decode([raw]))
    assert_cuts_change_nothing(raw)
    for cut in range(0, len(raw), max(1, len(raw) // CUTS)):
        assert outputs(decode([raw[:cut], raw[cut:]])) == whole


@every_stream
def test_a_recorded_stream_cut_after_a_frame_is_interrupted_until_its_end_rule_is_met(name: str) -> None:
    frames = frames_of(stream_of(name))
    values = [json.loads(frame.data) for frame in frames]
    for cut in range(1, len(frames) + 1):
        events, failure = decode_frames(frames[:cut])
        said = read_independently(values[:cut])
        assert told_counts(events) == counts_of(said["usage"])
        assert joined(events, inference.MessageDelta) == said["text"]
        if said["finish"] is None:
            assert failure is not None
            assert (failure.kind.name, failure.cause) == ("STREAM_INTERRUPTED", "truncated")
        else:
            assert failure is None
            assert ("warnings" in events[-2].payload) == (cut < len(frames))


@every_stream
def test_what_was_received_of_a_recorded_stream_is_settled_at_any_time(name: str) -> None:
    reader = decoder()
    seen = None
    for frame in frames_of(stream_of(name)):
        for output in reader.feed(frame):
            seen = output.usage if isinstance(output, inference.Usage) else seen
        assert reader.settle() == seen


@every_stream
def test_what_a_recorded_stream_left_goes_back_as_it_came(name: str) -> None:
    events, _ = decode([stream_of(name)])
    called = [event for event in events if isinstance(event, inference.ToolCallCompleted)]
    items = [
        UserMessage("go"),
        ProviderMetadata({**events[-2].payload, "base_url": TARGET.base_url}),
        *(ToolCall(event.id, event.name, event.arguments) for event in called),
        *(ToolResult(event.id, event.name, "r") for event in called),
    ]
    sent = messages(*items, UserMessage("more"))
    output = list(events[-2].payload["output"])
    is_boundary = output[0]["type"] == "compaction"
    assert [message["role"] for message in sent] == ["user", "assistant", "user"][is_boundary:]
    assert sent[-2]["content"] == output
    ids = [block["tool_use_id"] for block in sent[-1]["content"] if block["type"] == "tool_result"]
    assert ids == [event.id for event in called]


# -- requests

ONE_SIDED = {
    "is_error": "false is the same as absent",
    "description": "an empty one is the same as absent",
    "defer_loading": "the canonical model has no word for tools that are searched",
    "allowed_domains": "null is the same as absent",
    "blocked_domains": "null is the same as absent",
    "max_uses": "null is the same as absent",
    "user_location": "null is the same as absent",
    "tool_choice": "where all tools are the provider's own and have no words here",
    "tools": "likewise",
    "cache_control": "the recorder set a breakpoint at the end of the conversation alone",
}
"""Keys that one of the two may have alone, with the reason; where both have them they are equal."""


def is_ours(tool: dict[str, Any]) -> bool:
    return "input_schema" in tool


def model_of(body: dict[str, Any]) -> InferenceRequest:
    """Return our request for a recorded body."""
    items: list[Any] = []
    for message in body["messages"]:
        for block in message["content"]:
            match message["role"], block["type"]:
                case "user", "text":
                    items.append(UserMessage(block["text"]))
                case "user", "tool_result":
                    items.append(ToolResult(block["tool_use_id"], None, block["content"][0]["text"]))
        if message["role"] == "assistant":
            origin = {"dialect": "anthropic", "provider": "acme", "model": body["model"]}
            items.append(ProviderMetadata({**origin, "output": message["content"]}))
            for block in message["content"]:
                if block["type"] == "tool_use":
                    items.append(ToolCall(block["id"], block["name"], json.dumps(block["input"])))
    tools = body.get("tools", ())
    edits = body.get("context_management", {"edits": []})["edits"]
    return InferenceRequest(
        model=ModelChoice("acme", body["model"]),
        instructions=Instructions(system="".join(block["text"] for block in body.get("system", ())) or None),
        transcript=items,
        tools=tuple(
            ToolDefinition(part["name"], part["description"], part["input_schema"]) for part in tools if is_ours(part)
        ),
        reasoning=ReasoningOptions(enabled="thinking" in body),
        output=OutputRequest(max_tokens=body["max_tokens"]),
        runtime=RequestRuntime(
            auto_compact_token_limit=edits[0]["trigger"]["value"] if edits else None,
            hosted_web_search="live" if any(part.get("name") == "web_search" for part in tools) else "disabled",
        ),
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
    body = json.loads(shared(f"wire/anthropic/{name.removesuffix('.sse')}.request.json").read_bytes())
    if isinstance(body.get("system"), str):
        # one text is the same as one block of it
        body["system"] = [{"type": "text", "text": body["system"]}]
    # of the tools that the provider runs, we have a word for its search only
    body["tools"] = [part for part in body.get("tools", ()) if is_ours(part) or part["name"] == "web_search"]
    profile = Profile(
        thinking="budget",
        usual_budget=body.get("thinking", {}).get("budget_tokens", 0),
        prompt_cache="cache_control" in body,
        cache_ttl=body.get("cache_control", {}).get("ttl"),
    )
    ours = encode(model_of(body), profile, target=TARGET, now=NOW)
    assert differences({"tools": [], **ours}, body) == []


# -- as turns


@every_stream
async def test_a_recorded_stream_runs_as_a_turn_over_a_real_server(name: str) -> None:
    raw = stream_of(name)
    said = read_independently(objects_of(raw))
    async with serving([STREAM, raw], [STREAM, LAST_WORD]) as server:
        outcome, items, recorded = await run_as_turn(engine(base_url=server.base_url))
    called = bool(calls_of(said, "tool_use"))
    assert outcome.status == "completed"
    assert outcome.finish_reason == "stop"
    answers = [item.text for item in items if isinstance(item, transcript.AssistantMessage)]
    assert "".join(answers) == said["text"] + ("done" if called else "")
    ours = [item for item in items if isinstance(item, transcript.ToolCall)]
    assert [(call.name, json.loads(call.arguments)) for call in ours] == calls_of(said, "tool_use")
    assert [item.id for item in items if isinstance(item, transcript.ToolResult)] == [call.id for call in ours]
    assert outcome.usage == recorded[-1]
    assert counts_of(said["usage"]) == told_counts([inference.Usage(recorded[-1])])
    assert len(server.requests) == (2 if called else 1)
    head = server.requests[0].partition(b"\r\n\r\n")[0].decode().lower()
    assert head.startswith("post /v1/messages http/1.1")
    assert "anthropic-version: 2023-06-01" in head


async def test_a_recorded_compaction_is_stored_once_and_sent_instead_of_what_was_before_it() -> None:
    [name] = [name for name in NAMES if "compaction" in name] or ["absent"]
    raw = stream_of(name)
    [block] = [block for block in read_independently(objects_of(raw))["output"] if block["type"] == "compaction"]
    async with serving([STREAM, raw], [STREAM, LAST_WORD]) as server:
        acme = providers.Anthropic("acme", base_url=server.base_url)
        async with rt.open_runtime(engines=[acme]) as runtime:
            thread = (await runtime.create_thread(model="m")).thread_id
            await runtime.run_turn(thread, "first")
            await runtime.run_turn(thread, "second")
            snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    boundaries = [item for turn in snapshot.turns for item in turn.items if rt.compaction.is_boundary(item)]
    assert boundaries == [ProviderMetadata({"provider": "acme", "output": [block]})]
    sent = json.loads(server.requests[1].partition(b"\r\n\r\n")[2])["messages"]
    assert [(message["role"], message["content"][0].get("text")) for message in sent] == [
        ("assistant", None),
        ("user", "first"),
        ("assistant", "Hello! \N{WAVING HAND SIGN}"),
        ("user", "second"),
    ]
    assert sent[0]["content"] == [block]


def test_there_are_recorded_streams_to_run_where_the_shared_folder_is() -> None:
    if NAMES == ["absent"]:
        pytest.skip("the recorded provider streams are not beside this repository")
    assert len(NAMES) == len(list(Path(SHARED / "wire/anthropic").glob("*.request.json"))) >= 8
