"""Chunks of a Gemini stream as events.

Pure; fresh ids come from outside. Each frame is a whole chunk: content comes first, then usage. The end is the end of
the stream, after a finish reason.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.sse import Frame
from roder_trio.logic.stop import finish_reason
from roder_trio.providers._calls import CallQueue
from roder_trio.providers._dialect import Output, inner, parse_frame, text_of
from roder_trio.providers._facts import Facts
from roder_trio.providers.gemini.image import without_bytes
from roder_trio.providers.gemini.profile import Profile
from roder_trio.providers.gemini.usage import context_tokens, read_tier, read_usage
from roder_trio.schema import inference
from roder_trio.schema.inference import MessageDelta, ReasoningDelta
from roder_trio.schema.usage import TokenUsage

AFTER_FINISH = 2.0
"""Seconds without a chunk after which a finished answer is taken for whole."""

Kind = ProviderFailureKind

_STOPS = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "MODEL_ARMOR"),
        "content_filter",
    ),
}
_BROKEN = {
    **dict.fromkeys(
        ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"),
        (Kind.STREAM_INTERRUPTED, "malformed_output"),
    ),
    "MISSING_THOUGHT_SIGNATURE": (Kind.INVALID_REQUEST, "bad_request"),
}
_GROUNDING = ("groundingMetadata", "citationMetadata", "urlContextMetadata")


class GeminiDecoder:
    """Reads one answer; see `Decoder`."""

    def __init__(self, facts: Facts[Profile]) -> None:
        self._facts = facts
        self._calls = CallQueue()
        self._hosted: set[str] = set()
        self._usage: TokenUsage | None = None
        self._raw_usage: Mapping[str, Any] | None = None
        self._tier: str | None = None
        self._response_id: str | None = None
        self._finish: str | None = None
        self._finish_message = ""
        self._output: list[Any] = []
        self._grounding: dict[str, Any] = {}
        self._warnings: list[str] = []
        self._over = False

    @property
    def patience(self) -> float | None:
        """Seconds to wait for a chunk: short once a finish reason came."""
        return AFTER_FINISH if self._finish is not None else None

    def feed(self, frame: Frame) -> list[Output]:
        """Take one frame."""
        if self._over:
            return []
        value = parse_frame(frame, self._facts.redactor)
        if isinstance(value, ProviderFailure):
            # what broke off behind the end of an answer takes nothing from it
            return self.eof() if frame.tail and self._finish is not None else self._failed(value)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, Mapping):
            self._warn("a frame was no object")
            return []
        return self._chunk(value)

    def whole(self, value: Mapping[str, Any]) -> list[Output]:
        """Take an answer that came as one object."""
        return [*self._chunk(value), *self.eof()]

    def eof(self) -> list[Output]:
        """Take the end of the stream."""
        if self._over:
            return []
        if self._finish is None:
            return self._failed(self._facts.truncated(self._response_id))
        if self._finish in _BROKEN:
            return self._failed(self._broken(self._finish))
        return self._end(self._finish)

    def settle(self) -> TokenUsage | None:
        """Return the newest running total."""
        return self._usage

    # -- one chunk

    def _chunk(self, value: Mapping[str, Any]) -> list[Output]:
        self._response_id = self._response_id or text_of(value.get("responseId")) or None
        error = value.get("error")
        out: list[Output] = [] if error else self._candidates(value.get("candidates"))
        out.extend(self._count(value.get("usageMetadata")))
        if error:
            out.extend(self._failed(self._facts.told(error, self._response_id)))
        elif not value.get("candidates"):
            out.extend(self._blocked(value.get("promptFeedback")))
        return out

    def _candidates(self, candidates: Any) -> list[Output]:
        out: list[Output] = []
        for candidate in candidates if isinstance(candidates, list) else ():
            if not isinstance(candidate, Mapping):
                continue
            if candidate.get("index") not in (0, None):
                self._warn("the answer has more than one candidate")
                continue
            parts = inner(candidate.get("content"), "parts")
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, Mapping):
                    out.extend(self._part(part))
            self._grounding |= {name: candidate[name] for name in _GROUNDING if candidate.get(name)}
            self._finish = text_of(candidate.get("finishReason")) or self._finish
            self._finish_message = text_of(candidate.get("finishMessage")) or self._finish_message
        return out

    def _part(self, part: Mapping[str, Any]) -> list[Output]:
        if isinstance(part.get("functionCall"), Mapping):
            return self._call(part, part["functionCall"])
        text = text_of(part.get("text"))
        if text or not part.keys() <= {"text", "thought"}:
            self._output.append(without_bytes(part))
        if isinstance(part.get("toolCall"), Mapping):
            return self._hosted_call(part["toolCall"])
        if not text:
            return []
        return [ReasoningDelta(text) if part.get("thought") else MessageDelta(text)]

    def _call(self, part: Mapping[str, Any], call: Mapping[str, Any]) -> list[Output]:
        given = text_of(call.get("id"))
        id = given
        while not id or id in self._calls or id in self._facts.taken:
            id = self._facts.fresh()
        # an id that the wire didn't give isn't sent back either
        named = {"id": id} if given else {}
        bare = {name: value for name, value in call.items() if name != "id"}
        self._output.append({**part, "functionCall": {**named, **bare}})
        arguments = "" if call.get("args") is None else _compact(call["args"])
        out: list[Output] = [*self._calls.start(id, self._facts.names.canonical(text_of(call.get("name"))))]
        return [*out, *self._calls.grow(id, arguments), *self._calls.close(id)]

    def _hosted_call(self, call: Mapping[str, Any]) -> list[Output]:
        id = text_of(call.get("id"))
        while not id or id in self._hosted:
            id = self._facts.fresh()
        self._hosted.add(id)
        name = text_of(call.get("toolType"))
        arguments = _compact(call.get("args") or {})
        return [inference.HostedToolCallStarted(id, name), inference.HostedToolCallCompleted(id, name, arguments)]

    def _count(self, found: Any) -> list[Output]:
        if not isinstance(found, Mapping):
            return []
        self._tier = read_tier(found) or self._tier
        usage = read_usage(found, self._tier)
        shrinks = self._usage is not None and usage.total_tokens < self._usage.total_tokens
        if usage.is_empty or (shrinks and self._finish is None):
            return []
        self._raw_usage = found
        if usage == self._usage:
            return []
        self._usage = usage
        return [inference.Usage(usage)]

    def _blocked(self, feedback: Any) -> list[Output]:
        reason = text_of(inner(feedback, "blockReason"))
        if not reason:
            return []
        told = f"{reason} {text_of(inner(feedback, 'blockReasonMessage'))}".strip()
        return self._failed(self._failure(Kind.CONTENT_FILTER, None, "blocked the prompt", told, code=reason))

    # -- the end

    def _end(self, finish: str) -> list[Output]:
        self._over = True
        stop = finish_reason(_STOPS.get(finish, finish), has_calls=len(self._calls) > 0)
        replay = self._facts.replay(
            response_id=self._response_id,
            output=self._output,
            usage=self._raw_usage,
            service_tier=self._tier,
            raw_stop_reason=finish,
            context_tokens=context_tokens(self._raw_usage) if self._raw_usage and not self._hosted else None,
            grounding=self._grounding or None,
            warnings=self._warnings,
        )
        return [*self._calls.finish(stop), replay, inference.Completed(stop, self._response_id)]

    def _broken(self, finish: str) -> ProviderFailure:
        kind, cause = _BROKEN[finish]
        told = f"{finish} {self._finish_message}".strip()
        return self._failure(kind, cause, "could not finish its answer", told, code=finish)

    def _failure(self, kind: Kind, cause: str | None, what: str, told: str, *, code: str) -> ProviderFailure:
        detail = self._facts.redactor.excerpt(told, 600)
        message = f"{self._facts.target.provider} {what}: {detail}"
        return ProviderFailure(kind, message, cause=cause, provider_code=code, response_id=self._response_id)

    def _failed(self, failure: ProviderFailure) -> list[Output]:
        self._over = True
        return [failure]

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)


def _compact(value: Mapping[str, Any] | Sequence[Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
