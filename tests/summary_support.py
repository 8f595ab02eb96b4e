"""What the tests of summaries share: a long history, good and bad drafts, and readings of who was asked what."""

from typing import Any

import roder_trio as rt
from roder_trio import inference, transcript
from roder_trio.schema.inference import ModelDescriptor
from roder_trio.schema.usage import Purpose
from tests.turn_support import DONE, Scene, failure, say, settings, used

U40 = used(30, 10)
MARKER = inference.ProviderMetadata({"kind": "reliability_retry_attempt"})
SHORT = "goal: prove it"
DRAFT = [U40, say(SHORT), DONE]
TASK = transcript.UserMessage("t" * 100)
RESULT = transcript.ToolResult("c", "look", "r" * 7_994)
LONG: tuple[Any, ...] = (TASK, transcript.ToolCall("c", "look", "{}"), RESULT, transcript.AssistantMessage("a" * 300))
"""2 100 tokens, which are four short lines."""
OVERFLOW = failure("CONTEXT_WINDOW_EXCEEDED")


def model(context_window: int | None) -> ModelDescriptor:
    return ModelDescriptor(
        provider="scripted", id="scripted", context_window=context_window, auto_compact_token_limit=0
    )


def drafts(scene: Scene) -> list[Any]:
    """The requests for summaries, in order."""
    calls = [call for call in scene.engine.calls if call.context.purpose is Purpose.SUMMARY]
    return [call.request for call in calls]


def sampled(scene: Scene) -> list[Any]:
    calls = [call for call in scene.engine.calls if call.context.purpose is Purpose.SAMPLING]
    return [call.request for call in calls]


def summaries(history: list[Any]) -> list[transcript.ContextCompaction]:
    return [entry for entry in history if isinstance(entry, transcript.ContextCompaction)]


def quick(tokens: int | None = 1_000, **values: Any) -> rt.RuntimeConfig:
    """Two attempts at each request, at once."""
    values = {"provider_retry_max_attempts": 2, "provider_retry_initial_backoff": 0.0, **values}
    return settings(auto_compact_token_limit=tokens, **values)


TOLD = tuple(transcript.AssistantMessage(f"{number} " + "a" * 1_900) for number in range(6))


def asked_lines(scene: Scene) -> list[list[str]]:
    """The numbers of the messages that each draft was asked about."""
    questions = [request.transcript[0].text for request in drafts(scene)]
    return [[line[11] for line in text.splitlines() if line.startswith("assistant: ")] for text in questions]


def results(*sizes: int) -> tuple[Any, ...]:
    pairs = [
        (transcript.ToolCall(f"c{n}", "read_file", "{}"), transcript.ToolResult(f"c{n}", "read_file", "r" * size))
        for n, size in enumerate(sizes)
    ]
    return tuple(entry for pair in pairs for entry in pair)


def shown(request: Any) -> list[int]:
    return [len(entry.result) for entry in request.transcript if isinstance(entry, transcript.ToolResult)]
