"""The engine that answers when no other was given: no network, no model, always the same answer to the same request.

It shows what an engine does: it streams word by word, counts its tokens, ends, and compacts. Its boundaries name
their dialect, so that no other engine takes them for its own.
"""

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio

from roder_trio.logic.boundary import compaction_items, is_boundary
from roder_trio.logic.estimate import byte_length, quarter, sums
from roder_trio.ports import InferenceEngine, InferenceStream
from roder_trio.schema.cost import BUCKETS, Price
from roder_trio.schema.inference import (
    Completed,
    EngineTarget,
    InferenceCapabilities,
    InferenceEvent,
    InferenceRequest,
    MessageDelta,
    ModelDescriptor,
    ProviderMetadata,
    TurnContext,
    Usage,
)
from roder_trio.schema.transcript import AssistantMessage, ContextCompaction, ToolResult, TranscriptItem, UserMessage
from roder_trio.schema.transcript import ProviderMetadata as MetadataItem
from roder_trio.schema.usage import TokenUsage

MODEL = "offline"
CONTEXT_WINDOW = 32_000
_LINE_CHARACTERS = 120
_DIGEST_CHARACTERS = 4_000
_WORDS = re.compile(r"\s*\S+|\s+$")

_HELP = (
    "No model answers here: this is the offline engine, which only shows that everything works. "
    "For a real model, set a key, such as OPENAI_API_KEY, and choose its provider: RODER_TRIO_PROVIDER=openai, or "
    "--provider openai on the command line, or an engine among `open_runtime(engines=[...])`. "
    "A local server needs no key: choose ollama, lmstudio, llamacpp or vllm."
)
_LABELS = ("goal", "constraints", "progress", "decisions", "files_and_artifacts", "open_questions", "next_steps")


class Offline(InferenceEngine):
    """Repeats the last user message and says how to configure a real model."""

    capabilities = InferenceCapabilities.text_only()

    def __init__(self, id: str = "offline") -> None:
        self.id = id
        self.target: EngineTarget = EngineTarget(dialect="offline", provider=id, base_url="")

    def stream_turn(
        self, context: TurnContext, request: InferenceRequest
    ) -> AbstractAsyncContextManager[InferenceStream]:
        """Stream the answer, a word an event, with running totals of the usage."""
        summary = request.metadata.get("compaction_summary") is True
        text = _snapshot(request.transcript) if summary else _answer(request.transcript)
        return _open(_spoken(text, request))

    def compact_turn(
        self, context: TurnContext, request: InferenceRequest
    ) -> AbstractAsyncContextManager[InferenceStream]:
        """Stream one boundary, whose content is a digest of the transcript."""
        return _open(self._compacted(request))

    async def list_models(self) -> Sequence[ModelDescriptor]:
        """Return the one model."""
        await trio.lowlevel.checkpoint()
        return (
            ModelDescriptor(
                provider=self.id,
                id=MODEL,
                display_name="Offline",
                context_window=CONTEXT_WINDOW,
                description="Repeats the last message and says how to configure a real model.",
                price=Price(dict.fromkeys(BUCKETS, 0)),
            ),
        )

    def _compacted(self, request: InferenceRequest) -> Iterator[InferenceEvent]:
        asked = _last_user_text(request.transcript)
        digest = _digest(request.transcript) or "(nothing was said)"
        item: dict[str, Any] = {"type": "compaction", "encrypted_content": digest}
        if asked is not None:
            item["last_user_message"] = asked
        yield Usage(_usage(_prompt_tokens(request), quarter(byte_length(digest))))
        yield ProviderMetadata(
            {
                "dialect": self.target.dialect,
                "provider": self.target.provider,
                "base_url": self.target.base_url,
                "model": request.model.model,
                "output": [item],
                "compacted_input": [item],
            }
        )
        yield Completed("stop")


class _OfflineStream:
    """Delivers events that exist already, each after a checkpoint."""

    __slots__ = ("_events", "_usage")

    def __init__(self, events: Iterator[InferenceEvent]) -> None:
        self._events = events
        self._usage: TokenUsage | None = None

    def __aiter__(self) -> "_OfflineStream":
        return self

    async def __anext__(self) -> InferenceEvent:
        await trio.lowlevel.checkpoint()
        for event in self._events:
            if isinstance(event, Usage):
                self._usage = event.usage
            return event
        raise StopAsyncIteration

    def settle(self) -> TokenUsage | None:
        """Return the newest usage that was delivered."""
        return self._usage


@asynccontextmanager
async def _open(events: Iterator[InferenceEvent]) -> AsyncIterator[InferenceStream]:
    await trio.lowlevel.checkpoint()
    yield _OfflineStream(events)


def _spoken(text: str, request: InferenceRequest) -> Iterator[InferenceEvent]:
    """Say `text` word by word, within the request's limit of tokens."""
    prompt = _prompt_tokens(request)
    limit = request.output.max_tokens
    counted = sent = 0
    yield Usage(_usage(prompt, 0))
    for word in _WORDS.findall(text):
        tokens = quarter(sent + byte_length(word))
        if limit is not None and tokens > limit:
            yield Completed("length")
            return
        sent += byte_length(word)
        yield MessageDelta(word)
        if tokens != counted:
            counted = tokens
            yield Usage(_usage(prompt, counted))
    yield Completed("stop")


def _usage(prompt: int, completion: int) -> TokenUsage:
    return TokenUsage(prompt, completion, prompt + completion)


def _prompt_tokens(request: InferenceRequest) -> int:
    instructions = request.instructions
    texts = (instructions.system, instructions.developer, instructions.developer_context)
    count = sum(byte_length(text) for text in texts if text)
    for item in request.transcript:
        count += byte_length(_digest_of(item) or "") if isinstance(item, MetadataItem) else sums(item).bytes
    return quarter(count)


def _answer(transcript: Sequence[TranscriptItem]) -> str:
    asked = _last_user_text(transcript)
    parts = [f"You said: {asked}" if asked else "You said nothing.", _HELP]
    earlier = next((text for text in map(_earlier, transcript) if text), None)
    if earlier:
        parts.insert(1, f"What was compacted before:\n{earlier}")
    return "\n\n".join(parts)


def _snapshot(transcript: Sequence[TranscriptItem]) -> str:
    """Return a summary in the seven parts that a summariser is asked for."""
    asked = _last_user_text(transcript)
    facts = {"goal": _line(asked or ""), "progress": _digest(transcript)}
    lines = (f"{label}: {facts.get(label) or 'none known'}" for label in _LABELS)
    return "state_snapshot\n" + "\n".join(lines)


def _digest(transcript: Sequence[TranscriptItem]) -> str:
    """Return what was said, a line an item; the newest lines that fit stay."""
    kept: list[str] = []
    room = _DIGEST_CHARACTERS
    for line in _lines(reversed(transcript)):
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join(reversed(kept))


def _lines(newest_first: Iterable[TranscriptItem]) -> Iterator[str]:
    for item in newest_first:
        match item:
            case UserMessage():
                yield f"user: {_line(item.text)}"
            case AssistantMessage():
                yield f"assistant: {_line(item.text)}"
            case ToolResult():
                yield f"tool: {_line(item.result)}"
            case _ if earlier := _earlier(item):
                yield from reversed(earlier.splitlines())


def _line(text: str) -> str:
    """Return `text` in one line, cut short."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _LINE_CHARACTERS else flat[:_LINE_CHARACTERS] + "..."


def _earlier(item: TranscriptItem) -> str | None:
    """Return what a boundary says of the time before it."""
    return item.summary if isinstance(item, ContextCompaction) else _digest_of(item)


def _digest_of(item: TranscriptItem) -> str | None:
    value = _own_item(item).get("encrypted_content")
    return value if isinstance(value, str) else None


def _last_user_text(transcript: Sequence[TranscriptItem]) -> str | None:
    """Return the text of the last user message; a boundary of this engine keeps the one before it."""
    for item in reversed(transcript):
        if isinstance(item, UserMessage):
            return item.text
        kept = _own_item(item).get("last_user_message")
        if isinstance(kept, str):
            return kept
    return None


def _own_item(item: TranscriptItem) -> dict[str, Any]:
    """Return the compaction item of a boundary that this engine made; else an empty one."""
    if not isinstance(item, MetadataItem) or not is_boundary(item) or item.payload.get("dialect") != "offline":
        return {}
    return dict(compaction_items(item.payload)[0])
