"""Recorded streams, run as turns: the log and the outcome say what an independent reading of the raw frames says."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import trio

import roder_trio as rt
from roder_trio import providers, transcript
from tests.chat import sse, usage
from tests.loopback import STREAM, serving
from tests.test_chat_recorded import NAMES, counts_of, every_stream, read_independently, stream_of

LAST_WORD = sse({"id": "z", "choices": [{"index": 0, "delta": {"content": "done"}, "finish_reason": "stop"}]}, "[DONE]")
CONFIG = rt.RuntimeConfig(reliability=rt.ReliabilityConfig(provider_retry_max_attempts=1))
FINISH = {"stop": "stop", "tool_calls": "tool_use", "length": "length"}


class OneByteAtATime(httpx.AsyncByteStream):
    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    async def __aiter__(self) -> AsyncIterator[bytes]:  # noqa: ASYNC900 - the form of httpx's streams
        for at in range(len(self.raw)):
            yield self.raw[at : at + 1]


async def run_as_turn(engine: rt.InferenceEngine) -> tuple[rt.TurnOutcome, list[Any], list[rt.TokenUsage]]:
    async with rt.open_runtime(engines=[engine], config=CONFIG) as runtime:
        thread = (await runtime.create_thread(model="m")).thread_id
        outcome = await runtime.run_turn(thread, "Go.")
        snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    assert snapshot.metadata.usage == outcome.usage
    recorded = [e.event.usage for e in snapshot.events if isinstance(e.event, rt.events.UsageRecorded)]
    return outcome, list(snapshot.turns[0].items), recorded


def check_turn(outcome: rt.TurnOutcome, items: list[Any], recorded: list[rt.TokenUsage], raw: bytes) -> None:
    said = read_independently(raw)
    answers = [item for item in items if isinstance(item, transcript.AssistantMessage)]
    calls = [item for item in items if isinstance(item, transcript.ToolCall)]
    results = [item for item in items if isinstance(item, transcript.ToolResult)]
    told = "".join(item.text for item in answers)
    expected = said["text"] if said["text"].strip() else ""
    if said["error"] is not None:
        assert outcome.status == "failed"
        assert told == expected
        assert all(item.interrupted for item in answers)
    else:
        assert outcome.status == "completed"
        assert told == expected + ("done" if said["calls"] else "")
        assert [[call.name, call.arguments] for call in calls] == [call for _, call in sorted(said["calls"].items())]
        assert outcome.finish_reason == ("stop" if calls else FINISH[said["finish"]])
    assert [call.id for call in calls] == [result.id for result in results]
    if said["usage"] is None:
        assert outcome.usage is None
    else:
        assert outcome.usage == recorded[-1]
        last = outcome.usage
        parts = (last.cached_prompt_tokens, last.cache_creation_prompt_tokens, last.reasoning_tokens)
        assert (last.prompt_tokens, last.completion_tokens, last.total_tokens, *parts) == counts_of(said["usage"])


@every_stream
async def test_a_recorded_stream_runs_as_a_turn_over_a_real_server(name: str) -> None:
    raw = stream_of(name)
    async with serving([STREAM, raw], [STREAM, LAST_WORD]) as server:
        engine = providers.ChatCompletions("acme", base_url=server.base_url)
        outcome, items, recorded = await run_as_turn(engine)
    check_turn(outcome, items, recorded, raw)
    assert len(server.requests) == (2 if any(isinstance(item, transcript.ToolCall) for item in items) else 1)


@every_stream
async def test_a_recorded_stream_runs_as_a_turn_when_it_comes_byte_by_byte(name: str) -> None:
    raw = stream_of(name)
    answers = [raw, LAST_WORD]

    def handler(request: httpx.Request) -> httpx.Response:
        body = OneByteAtATime(answers.pop(0))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=body)

    async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
        engine = providers.ChatCompletions("acme", base_url="http://localhost/v1", http=client)
        outcome, items, recorded = await run_as_turn(engine)
    check_turn(outcome, items, recorded, raw)


async def test_a_turn_over_a_real_server_can_be_interrupted_while_it_streams_and_keeps_what_was_said() -> None:
    said = sse({"id": "z", "choices": [{"index": 0, "delta": {"content": "so far"}}]}, usage(5, 2, 7))
    async with serving([STREAM, said, trio.sleep_forever]) as server:
        engine = providers.ChatCompletions("acme", base_url=server.base_url)
        async with rt.open_runtime(engines=[engine], config=CONFIG) as runtime:
            thread = (await runtime.create_thread(model="m")).thread_id
            async with runtime.turn(thread, "Go.") as turn:
                async for envelope in turn:
                    if envelope.kind == "usage.recorded":
                        await runtime.interrupt_turn(thread, turn.turn_id)
            snapshot = await runtime.load_thread(thread)
    assert turn.outcome.status == "interrupted"
    assert turn.outcome.usage == rt.TokenUsage(5, 2, 7)
    assert snapshot is not None
    assert snapshot.turns[0].items[-1] == transcript.AssistantMessage("so far", interrupted=True)


def test_there_are_recorded_streams_to_run_where_the_shared_folder_is() -> None:
    if NAMES == ["absent"]:
        pytest.skip("the recorded provider streams are not beside this repository")
    assert len(NAMES) > 20
