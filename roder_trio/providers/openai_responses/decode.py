"""Frames of a Responses stream as events, and the answer of a compaction.

Pure. Within a frame content comes first, then usage, then the end; beside an error only the usage counts. A stream is
over when the server says how it ended, never before.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from roder_trio.errors import ProviderFailure
from roder_trio.logic.sse import Frame
from roder_trio.logic.stop import finish_reason
from roder_trio.providers._dialect import Output, inner, is_told, parse_frame, text_of
from roder_trio.providers._facts import Facts
from roder_trio.providers.openai_responses.content import Content
from roder_trio.providers.openai_responses.profile import Profile
from roder_trio.providers.openai_responses.usage import read_usage
from roder_trio.schema import inference
from roder_trio.schema.usage import TokenUsage

Value = Mapping[str, Any]

_ENDS = ("completed", "incomplete", "failed", "cancelled")
_UNWELL = ("incomplete", "failed", "cancelled")
_CANCELLED = {"code": "cancelled", "message": "the response was cancelled"}


@attrs.define
class _Heading:
    """What is known of the response as a whole."""

    id: str | None = None
    tier: str | None = None
    usage: TokenUsage | None = None
    raw_usage: Value | None = None

    def take(self, response: Value) -> list[Output]:
        """Take a response object in whatever state; return its usage if that is new."""
        self.id = text_of(response.get("id")) or self.id
        self.tier = text_of(response.get("service_tier")) or self.tier
        found = response.get("usage")
        if not isinstance(found, Mapping):
            return []
        usage = read_usage(found, self.tier)
        if usage.is_empty or usage == self.usage:
            return []
        self.usage, self.raw_usage = usage, found
        return [inference.Usage(usage)]


class ResponsesDecoder:
    """Reads one answer; see `Decoder`."""

    def __init__(self, facts: Facts[Profile]) -> None:
        self._facts = facts
        self._content = Content(facts)
        self._heading = _Heading()
        self._warnings: list[str] = []
        self._over = False

    @property
    def patience(self) -> float | None:
        """Seconds to wait for a frame: as long as it takes."""
        return None

    def feed(self, frame: Frame) -> list[Output]:
        """Take one frame."""
        if self._over:
            return []
        if frame.data.strip().lower() == "[done]":
            return self.eof()
        value = parse_frame(frame, self._facts.redactor)
        if is_told(frame, value):
            return self._broken(value if isinstance(value, Mapping) else {"message": frame.data.strip()})
        if isinstance(value, ProviderFailure):
            return self._failed(value)
        if not isinstance(value, Mapping):
            self._warnings = ["a frame was no object"]
            return []
        return self._dispatch(text_of(value.get("type")) or frame.event or "", value)

    def whole(self, value: Value) -> list[Output]:
        """Take an answer that came as one object."""
        status = text_of(value.get("status"))
        if status in _ENDS:
            return self._ended(status, value)
        if value.get("error"):
            return self._broken(value)
        return self._ended("completed", value) if not status and _items(value) else self.eof()

    def eof(self) -> list[Output]:
        """Take the end of the stream."""
        return [] if self._over else self._failed(self._facts.truncated(self._heading.id))

    def settle(self) -> TokenUsage | None:
        """Return the newest running total."""
        return self._heading.usage

    # -- frames

    def _dispatch(self, kind: str, value: Value) -> list[Output]:
        name, _, state = kind.removeprefix("response.").rpartition(".")
        if kind == "error" or (not kind and value.get("error")):
            return self._broken(value)
        if name == "output_item":
            return self._item(state, value)
        if state in ("delta", "done"):
            return self._piece(name, value, repeats=state == "done")
        response = value.get("response")
        if not isinstance(response, Mapping):
            return []
        if not name and state in _ENDS:
            return self._ended(state, response)
        return self._heading.take(response)

    def _item(self, state: str, value: Value) -> list[Output]:
        item, place = value.get("item"), value.get("output_index")
        if not isinstance(item, Mapping) or state not in ("added", "done"):
            return []
        return [*(self._content.added(item, place) if state == "added" else self._content.done(item, place))]

    def _piece(self, name: str, value: Value, *, repeats: bool) -> list[Output]:
        """Take a piece of an item, or all of that piece once more."""
        content = self._content
        match name:
            case "output_text" | "refusal":
                field = "refusal" if name == "refusal" else "text"
                return [*content.text(value, name, text_of(value.get(field if repeats else "delta")), repeats=repeats)]
            case "reasoning_summary_text" | "reasoning_text":
                text = text_of(value.get("text" if repeats else "delta"))
                return [*content.reasoning(value, name, text, repeats=repeats)]
            case "function_call_arguments" | "custom_tool_call_input":
                field = "arguments" if name == "function_call_arguments" else "input"
                if repeats:
                    return [*content.all_arguments(value, text_of(value.get(field)))]
                return [*content.arguments(value, text_of(value.get("delta")))]
        return []

    # -- the end

    def _ended(self, state: str, response: Value) -> list[Output]:
        status = text_of(response.get("status"))
        if (state == "completed" and status in _UNWELL) or status == "cancelled":
            state = status
        if state in ("failed", "cancelled"):
            return self._broken({"error": _CANCELLED if state == "cancelled" else response.get("error")}, response)
        self._over = True
        output = _items(response)
        raw = state if state == "completed" else text_of(inner(response.get("incomplete_details"), "reason")) or state
        out: list[Output] = [*self._content.rest(output)]
        stop = finish_reason(raw, has_calls=self._content.has_calls)
        stop = "refusal" if self._content.refused and stop not in ("length", "content_filter") else stop
        out.extend(self._content.finish(stop))
        out.extend(self._heading.take(response))
        return [*out, self._replay(response, output, raw), inference.Completed(stop, self._heading.id)]

    def _replay(self, response: Value, output: Sequence[Value], raw: str) -> inference.ProviderMetadata:
        end_turn = response.get("end_turn")
        return self._facts.replay(
            response_id=self._heading.id,
            output=self._content.replayed(output),
            usage=self._heading.raw_usage,
            service_tier=self._heading.tier,
            raw_stop_reason=raw,
            end_turn=end_turn if isinstance(end_turn, bool) else None,
            refused=self._content.refused or None,
            moderation=response.get("moderation"),
            warnings=self._warnings,
        )

    def _broken(self, value: Value, response: Value | None = None) -> list[Output]:
        """Take an error: an object of its own, or what holds it."""
        beside = value.get("response") if response is None else response
        out = self._heading.take(beside if isinstance(beside, Mapping) else {"usage": value.get("usage")})
        error = value.get("error") or {name: part for name, part in value.items() if part != "error"}
        return [*out, *self._failed(self._facts.told(error, self._heading.id))]

    def _failed(self, failure: ProviderFailure) -> list[Output]:
        self._over = True
        return [failure]


class CompactionDecoder:
    """Reads the answer of a compaction, which is one object; see `Decoder`."""

    def __init__(self, facts: Facts[Profile]) -> None:
        self._facts = facts
        self._heading = _Heading()
        self._over = False

    @property
    def patience(self) -> float | None:
        """Seconds to wait for a frame: as long as it takes."""
        return None

    def feed(self, frame: Frame) -> list[Output]:
        """Take one frame, which is the answer."""
        value = parse_frame(frame, self._facts.redactor)
        if isinstance(value, ProviderFailure) and not self._over:
            self._over = True
            return [value]
        return self.whole(value) if isinstance(value, Mapping) else []

    def whole(self, value: Value) -> list[Output]:
        """Take the answer."""
        if self._over:
            return []
        self._over = True
        out = self._heading.take(value)
        if value.get("error"):
            return [*out, self._facts.told(value["error"], self._heading.id)]
        output = value.get("output")
        target = self._facts.target
        payload = {
            "dialect": target.dialect,
            "provider": target.provider,
            "base_url": target.base_url,
            "model": self._facts.model,
            "output": output,
            "compacted_input": output,
        }
        return [*out, inference.ProviderMetadata(payload), inference.Completed(None, self._heading.id)]

    def eof(self) -> list[Output]:
        """Take the end of the stream."""
        if self._over:
            return []
        self._over = True
        return [self._facts.truncated(self._heading.id)]

    def settle(self) -> TokenUsage | None:
        """Return the newest running total."""
        return self._heading.usage


def _items(response: Value) -> list[Value]:
    output = response.get("output")
    return [part for part in output if isinstance(part, Mapping)] if isinstance(output, list) else []
