"""Frames of a Chat Completions stream as events.

Pure; fresh ids come from outside. Within a frame content comes first, then usage, then the end; beside an error only
the usage counts. A stream is over at `[DONE]`, or at its end if a finish reason came before.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from roder_trio.errors import ProviderFailure
from roder_trio.logic.sse import Frame
from roder_trio.logic.stop import finish_reason
from roder_trio.providers._dialect import Output, is_told, parse_frame
from roder_trio.providers._facts import Facts
from roder_trio.providers.chat_completions.calls import CallAssembler
from roder_trio.providers.chat_completions.profile import Profile
from roder_trio.providers.chat_completions.think import ThinkSplitter
from roder_trio.providers.chat_completions.usage import read_usage, usage_object
from roder_trio.schema import inference
from roder_trio.schema.inference import MessageDelta, ReasoningDelta
from roder_trio.schema.usage import TokenUsage

AFTER_FINISH = 2.0
"""Seconds without a frame after which a finished answer is taken for whole."""

_KEPT = ("annotations", "executed_tools")
_REASONING_TEXTS = {"reasoning.text": "text", "reasoning.summary": "summary"}


class ChatDecoder:
    """Reads one answer; see `Decoder`."""

    def __init__(self, facts: Facts[Profile]) -> None:
        self._facts = facts
        self._calls = CallAssembler(facts.names, facts.fresh, facts.taken)
        self._think = ThinkSplitter() if facts.profile.think_tags else None
        self._usage: TokenUsage | None = None
        self._raw_usage: Mapping[str, Any] | None = None
        self._tier: str | None = None
        self._response_id: str | None = None
        self._finish: str | None = None
        self._refused = False
        self._moderation: Any = None
        self._output: list[Any] = []
        self._reasoning_details: list[Any] = []
        self._warnings: list[str] = []
        self._over = False

    @property
    def patience(self) -> float | None:
        """Seconds to wait for a frame: short once a finish reason came."""
        return AFTER_FINISH if self._finish is not None else None

    def feed(self, frame: Frame) -> list[Output]:
        """Take one frame."""
        if self._over:
            return []
        if frame.data.strip().lower() == "[done]":
            return self._end()
        value = parse_frame(frame, self._facts.redactor)
        if is_told(frame, value):
            if isinstance(value, Mapping) and _error_of(value):
                return self._chunk(value)
            said = value if isinstance(value, Mapping) and value else frame.data.strip()
            return self._chunk({"error": said or "no reason was given"})
        if isinstance(value, ProviderFailure):
            # what broke off behind the end of an answer takes nothing from it
            return self._end() if frame.tail and self._finish is not None else self._failed(value)
        if not isinstance(value, Mapping):
            self._warn("a frame was no object")
            return []
        return self._chunk(value)

    def whole(self, value: Mapping[str, Any]) -> list[Output]:
        """Take an answer that came as one object."""
        out = self._chunk(value)
        if self._over:
            return out
        return [*out, *(self._end() if value.get("choices") else self.eof())]

    def eof(self) -> list[Output]:
        """Take the end of the stream."""
        if self._over:
            return []
        if self._finish is not None:
            return self._end()
        return self._failed(self._facts.truncated(self._response_id))

    def settle(self) -> TokenUsage | None:
        """Return the newest running total."""
        return self._usage

    # -- one frame

    def _chunk(self, value: Mapping[str, Any]) -> list[Output]:
        self._heading(value)
        error = _error_of(value)
        out: list[Output] = [] if error else self._choices(value.get("choices"))
        out.extend(self._count(value))
        if error:
            out.extend(self._failed(self._facts.told(error, self._response_id)))
        return out

    def _heading(self, value: Mapping[str, Any]) -> None:
        id, tier = value.get("id"), value.get("service_tier")
        if self._response_id is None and isinstance(id, str) and id:
            self._response_id = id
        if isinstance(tier, str) and tier:
            self._tier = tier
        if value.get("moderation") is not None:
            self._moderation = value["moderation"]

    def _choices(self, choices: Any) -> list[Output]:
        out: list[Output] = []
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, Mapping):
                continue
            if choice.get("index") not in (0, None):
                self._warn("the answer has more than one choice")
                continue
            delta = choice.get("delta")
            delta = delta if isinstance(delta, Mapping) else choice.get("message")
            if isinstance(delta, Mapping):
                out.extend(self._delta(delta))
            reason = choice.get("finish_reason")
            if isinstance(reason, str) and reason:
                self._finish = reason
        return out

    def _delta(self, delta: Mapping[str, Any]) -> list[Output]:
        out: list[Output] = self._reasoning(delta)
        out.extend(self._content(delta.get("content")))
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._refused = True
            out.append(MessageDelta(refusal))
        if delta.get("tool_calls"):
            out.extend(self._calls.feed(delta["tool_calls"]))
        if isinstance(delta.get("function_call"), Mapping):
            out.extend(self._calls.feed({"index": 0, "function": delta["function_call"]}))
        self._output.extend({"type": name, name: delta[name]} for name in _KEPT if delta.get(name))
        return out

    def _reasoning(self, delta: Mapping[str, Any]) -> list[Output]:
        details = delta.get("reasoning_details")
        entries = [entry for entry in details if isinstance(entry, Mapping)] if isinstance(details, list) else []
        self._reasoning_details.extend(entries)
        for name in self._facts.profile.reasoning_fields:
            if isinstance(delta.get(name), str) and delta[name]:
                return [ReasoningDelta(delta[name])]
        texts = [entry.get(_REASONING_TEXTS.get(str(entry.get("type")), "")) for entry in entries]
        joined = "".join(text for text in texts if isinstance(text, str))
        return [ReasoningDelta(joined)] if joined else []

    def _content(self, content: Any) -> list[Output]:
        if isinstance(content, str):
            return self._text(content)
        out: list[Output] = []
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, Mapping):
                continue
            kind = part.get("type") or ("thinking" if "thinking" in part else "text" if "text" in part else None)
            if kind == "text" and isinstance(part.get("text"), str):
                out.extend(self._text(part["text"]))
            elif kind == "thinking":
                thought = _thought(part.get("thinking"))
                out.extend([ReasoningDelta(thought)] if thought else [])
            else:
                self._output.append({"type": "content_part", "part": part})
        return out

    def _text(self, text: str) -> list[Output]:
        if self._think is None:
            return [MessageDelta(text)] if text else []
        return [_piece(kind, piece) for kind, piece in self._think.feed(text)]

    def _count(self, value: Mapping[str, Any]) -> list[Output]:
        found = usage_object(value, self._facts.profile.usage_places)
        if found is not None:
            usage = read_usage(found, self._tier)
            self._raw_usage = found if self._raw_usage is None or not usage.is_empty else self._raw_usage
        elif self._usage is not None:
            usage = attrs.evolve(self._usage, service_tier=self._tier)
        else:
            return []
        if usage.is_empty or usage == self._usage:
            return []
        self._usage = usage
        return [inference.Usage(usage)]

    # -- the end

    def _end(self) -> list[Output]:
        self._over = True
        out: list[Output] = [_piece(kind, piece) for kind, piece in self._think.eof()] if self._think else []
        calls = len(self._calls) > 0
        stop = "refusal" if self._refused else finish_reason(self._finish or "stop", has_calls=calls)
        out.extend(self._calls.finish(stop))
        return [*out, self._replay(), inference.Completed(stop, self._response_id)]

    def _replay(self) -> inference.ProviderMetadata:
        details = [{"type": "reasoning_details", "entries": self._reasoning_details}] if self._reasoning_details else []
        return self._facts.replay(
            response_id=self._response_id,
            output=[*details, *self._output],
            usage=self._raw_usage,
            service_tier=self._tier,
            raw_stop_reason=self._finish,
            refused=self._refused or None,
            moderation=self._moderation,
            warnings=self._warnings,
        )

    def _failed(self, failure: ProviderFailure) -> list[Output]:
        self._over = True
        return [failure]

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)


def _error_of(value: Any) -> Any:
    error = value.get("error") if isinstance(value, Mapping) else None
    return error if isinstance(error, Mapping | str) and error else None


def _thought(value: Any) -> str:
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else []
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def _piece(kind: str, text: str) -> Output:
    return ReasoningDelta(text) if kind == "reasoning" else MessageDelta(text)
