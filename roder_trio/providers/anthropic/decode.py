"""Frames of a Messages stream as events.

Pure; fresh ids come from outside. The content comes as blocks, each with a start, pieces and a stop. Within a frame
content comes first, then usage, then the end. A stream is over at `message_stop`, or at its end if a stop reason came
and no block is open.
"""

from collections.abc import Mapping
from typing import Any

from roder_trio.errors import ProviderFailure
from roder_trio.logic.sse import Frame
from roder_trio.logic.stop import finish_reason
from roder_trio.providers._calls import CallQueue
from roder_trio.providers._dialect import Output, is_told, parse_frame, text_of
from roder_trio.providers._facts import Facts
from roder_trio.providers.anthropic.block import COMPACTION, HOSTED, Block
from roder_trio.providers.anthropic.profile import Profile
from roder_trio.providers.anthropic.usage import Count
from roder_trio.schema import inference
from roder_trio.schema.inference import CompactionStatus, MessageDelta, ReasoningDelta
from roder_trio.schema.usage import TokenUsage

_PAUSES = ("pause_turn", COMPACTION)
"""Stop reasons after which the model wants to go on."""
_STOPS = {"model_context_window_exceeded": "length"}
_IMPLIED = {"text_delta": "text", "thinking_delta": "thinking"}
"""What a piece without a block begins."""


class AnthropicDecoder:
    """Reads one answer; see `Decoder`."""

    def __init__(self, facts: Facts[Profile]) -> None:
        self._facts = facts
        self._calls = CallQueue()
        self._taken = set(facts.taken)
        self._hosted: set[str] = set()
        self._blocks: list[Block] = []
        self._count = Count()
        self._usage: TokenUsage | None = None
        self._response_id: str | None = None
        self._stop: str | None = None
        self._container: Mapping[str, Any] | None = None
        self._warnings: list[str] = []
        self._over = False

    @property
    def patience(self) -> float | None:
        """As long as it takes: the end is told."""
        return None

    def feed(self, frame: Frame) -> list[Output]:
        """Take one frame."""
        if self._over:
            return []
        value = parse_frame(frame, self._facts.redactor)
        if isinstance(value, Mapping):
            return self._event(text_of(value.get("type")) or frame.event or "", value)
        if is_told(frame, value):
            return self._failed(self._facts.told(frame.data.strip() or "no reason was given", self._response_id))
        if isinstance(value, ProviderFailure):
            # what broke off behind the end of an answer takes nothing from it
            return self.eof() if frame.tail and self._is_whole else self._failed(value)
        self._warn("a frame was no object")
        return []

    def whole(self, value: Mapping[str, Any]) -> list[Output]:
        """Take an answer that came as one object."""
        content = value.get("content")
        if not isinstance(content, list):
            return self._event(text_of(value.get("type")), value) or self.eof()
        self._heading(value)
        out: list[Output] = []
        for index, start in enumerate(content):
            out.extend(self._open(index, start))
            out.extend(self._close(self._blocks[-1]))
        self._stop = text_of(value.get("stop_reason")) or None
        return [*out, *self._counted(value.get("usage")), *self._end()]

    def eof(self) -> list[Output]:
        """Take the end of the stream."""
        if self._over:
            return []
        if self._is_whole:
            self._warn("the stream ended without message_stop")
            return self._end()
        return self._failed(self._facts.truncated(self._response_id))

    def settle(self) -> TokenUsage | None:
        """Return the newest running total."""
        return self._usage

    # -- one frame

    def _event(self, kind: str, value: Mapping[str, Any]) -> list[Output]:
        match kind:
            case "message_start":
                message = _mapping(value.get("message"))
                self._heading(message)
                return self._counted(message.get("usage"))
            case "content_block_start":
                return self._open(self._index(value, len(self._blocks)), value.get("content_block"))
            case "content_block_delta":
                return self._grow(self._index(value), _mapping(value.get("delta")))
            case "content_block_stop":
                block = self._block(self._index(value))
                return [] if block is None else self._close(block)
            case "message_delta":
                delta = _mapping(value.get("delta"))
                self._stop = text_of(delta.get("stop_reason")) or self._stop
                self._heading({"container": delta.get("container")})
                return self._counted(value.get("usage"))
            case "message_stop":
                return [*self._counted(value.get("usage")), *self._end()]
            case _ if kind == "error" or value.get("error"):
                counted = self._counted(value.get("usage"))
                return [*counted, *self._failed(self._facts.told(value, self._response_id))]
        return []

    def _heading(self, message: Mapping[str, Any]) -> None:
        self._response_id = self._response_id or text_of(message.get("id")) or None
        if isinstance(message.get("container"), Mapping):
            self._container = message["container"]

    def _counted(self, value: Any) -> list[Output]:
        self._count.take(value)
        usage = self._count.total()
        if usage.is_empty or usage == self._usage:
            return []
        self._usage = usage
        return [inference.Usage(usage)]

    # -- blocks

    def _index(self, value: Mapping[str, Any], default: int | None = None) -> int:
        index = value.get("index")
        if type(index) is int:
            return index
        return default if default is not None else max((block.index for block in self._blocks), default=0)

    def _block(self, index: int) -> Block | None:
        return next((block for block in reversed(self._blocks) if block.index == index), None)

    def _open(self, index: int, start: Any) -> list[Output]:
        former = self._block(index)
        out = self._close(former) if former is not None else []
        block = Block(index, _mapping(start))
        self._blocks.append(block)
        if block.kind == "text":
            out.extend(_said(block.start.get("text")))
        elif block.kind == "thinking":
            out.extend(_thought(block.start.get("thinking")))
        elif block.kind == "tool_use":
            block.id = self._fresh(text_of(block.start.get("id")), self._taken)
            block.start = {**block.start, "id": block.id}
            out.extend(self._calls.start(block.id, self._facts.names.canonical(block.name)))
        elif block.kind in HOSTED:
            block.id = self._fresh(text_of(block.start.get("id")), self._hosted)
            out.append(inference.HostedToolCallStarted(block.id, block.name))
        elif block.kind == COMPACTION:
            out.append(inference.Compaction(CompactionStatus.STARTED, text_of(block.start.get("id")) or None))
        return out

    def _fresh(self, id: str, taken: set[str]) -> str:
        while not id or id in taken:
            id = self._facts.fresh()
        taken.add(id)
        return id

    def _grow(self, index: int, delta: Mapping[str, Any]) -> list[Output]:
        kind = text_of(delta.get("type"))
        block = self._block(index)
        if block is None:
            if kind not in _IMPLIED:
                self._warn("a piece came without its block")
                return []
            self._open(index, {"type": _IMPLIED[kind]})
            block = self._blocks[-1]
        if block.closed and block.kind not in _IMPLIED.values():
            return []
        block.take(delta)
        match kind:
            case "text_delta":
                return _said(delta.get("text"))
            case "thinking_delta":
                return _thought(delta.get("thinking"))
            case _ if block.kind == "tool_use":
                return [*self._calls.grow(block.id, text_of(delta.get("partial_json")))]
        return []

    def _close(self, block: Block) -> list[Output]:
        if block.closed:
            return []
        block.closed = True
        if block.kind == "tool_use":
            return [*self._calls.close(block.id, block.arguments())]
        if block.kind in HOSTED:
            return [inference.HostedToolCallCompleted(block.id, block.name, block.arguments() or "{}")]
        if block.kind == COMPACTION:
            return [_compacted(block.value())]
        return []

    # -- the end

    def _end(self) -> list[Output]:
        self._over = True
        ordered = sorted(self._blocks, key=lambda block: block.index)
        out = [output for block in ordered for output in self._close(block)]
        raw = self._stop
        stop = _STOPS.get(raw or "") or finish_reason(raw or "end_turn", has_calls=len(self._calls) > 0)
        out.extend(self._calls.finish(stop))
        replay = self._facts.replay(
            response_id=self._response_id,
            output=[value for value in map(Block.value, ordered) if _is_kept(value)],
            usage=self._count.raw,
            service_tier=self._count.service_tier,
            raw_stop_reason=raw,
            end_turn=False if raw in _PAUSES else None,
            context_tokens=self._count.context_tokens(hosted=bool(self._hosted)),
            container=self._container,
            refused=stop == "refusal" or None,
            warnings=self._warnings,
        )
        return [*out, replay, inference.Completed(stop, self._response_id)]

    @property
    def _is_whole(self) -> bool:
        """Whether the answer has ended, but for the word that says so."""
        return self._stop is not None and all(block.closed for block in self._blocks)

    def _failed(self, failure: ProviderFailure) -> list[Output]:
        self._over = True
        return [failure]

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)


def _compacted(value: dict[str, Any]) -> inference.Compaction:
    id = text_of(value.get("id")) or None
    if not _is_kept(value):
        return inference.Compaction(CompactionStatus.FAILED, id)
    return inference.Compaction(CompactionStatus.COMPLETED, id, value)


def _is_kept(value: Mapping[str, Any]) -> bool:
    """Whether a block goes back with the next request; a compaction that brought nothing is no boundary."""
    return value.get("type") != COMPACTION or bool(value.get("content") or value.get("encrypted_content"))


def _said(text: Any) -> list[Output]:
    return [MessageDelta(text)] if isinstance(text, str) and text else []


def _thought(text: Any) -> list[Output]:
    return [ReasoningDelta(text)] if isinstance(text, str) and text else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
