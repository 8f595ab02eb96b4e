"""Recorded Responses streams, run as turns through a real server and a whole runtime."""

from typing import Any

import roder_trio as rt
from roder_trio import providers, transcript
from tests.chat import sse
from tests.loopback import STREAM, serving
from tests.responses import ended, message, usage
from tests.test_recorded_turns import run_as_turn
from tests.test_responses_recorded import (
    calls_of,
    counts_of,
    deltas,
    every_stream,
    final_of,
    objects_of,
    stream_of,
)

LAST_WORD = sse(ended(message("done"), usage=usage(1, 1, 2)))


def check_turn(outcome: rt.TurnOutcome, items: list[Any], recorded: list[rt.TokenUsage], raw: bytes) -> None:
    objects = objects_of(raw)
    final = final_of(objects)
    wanted = calls_of(final["output"])
    said = [item.text for item in items if isinstance(item, transcript.AssistantMessage)]
    calls = [item for item in items if isinstance(item, transcript.ToolCall)]
    results = [item for item in items if isinstance(item, transcript.ToolResult)]
    assert (outcome.status, outcome.finish_reason) == ("completed", "stop")
    assert "".join(said) == deltas(objects, "output_text") + ("done" if wanted else "")
    assert [[call.id, call.name, call.arguments] for call in calls] == wanted
    assert [result.id for result in results] == [call.id for call in calls]
    last = recorded[0]
    parts = (last.cached_prompt_tokens, last.cache_creation_prompt_tokens, last.reasoning_tokens)
    assert (last.prompt_tokens, last.completion_tokens, last.total_tokens, *parts) == counts_of(final["usage"])
    assert outcome.usage == sum(recorded[1:], recorded[0])
    kept = [item.payload["output"] for item in items if isinstance(item, transcript.ProviderMetadata)]
    assert list(kept[0]) == final["output"]


@every_stream
async def test_a_recorded_stream_runs_as_a_turn_over_a_real_server(name: str) -> None:
    raw = stream_of(name)
    async with serving([STREAM, raw], [STREAM, LAST_WORD]) as server:
        engine = providers.OpenAIResponses("acme", base_url=server.base_url)
        outcome, items, recorded = await run_as_turn(engine)
    check_turn(outcome, items, recorded, raw)
    assert len(server.requests) == len(recorded)
