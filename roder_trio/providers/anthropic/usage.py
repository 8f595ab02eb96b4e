"""Usage as the Messages API counts it.

Pure. Its prompt excludes what the cache held, so that is added here. Counters of one answer are cumulative: a newer
one replaces the former, one that is absent, null or no count leaves it. What the server sampled beside the answer, to
compact or to ask another model, stands in `iterations` alone and is billed too.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from roder_trio.providers._count import capped, counter
from roder_trio.providers._dialect import inner, text_of
from roder_trio.schema.usage import TokenUsage

_PATHS = {
    "input": ("input_tokens",),
    "written": ("cache_creation_input_tokens",),
    "cached": ("cache_read_input_tokens",),
    "output": ("output_tokens",),
    "thinking": ("output_tokens_details", "thinking_tokens"),
}
_BESIDE = ("compaction", "advisor_message")
"""Iterations that the counters of the answer don't hold."""
_ANSWERS = ("message", "fallback_message")


@attrs.define
class Count:
    """What is known of one answer's usage so far."""

    raw: dict[str, Any] | None = None
    """The usage objects of the answer, merged, as the provider wrote them."""
    service_tier: str | None = None
    _counts: dict[str, int] = attrs.field(factory=dict)
    _iterations: list[Mapping[str, Any]] = attrs.field(factory=list)

    def take(self, value: Any) -> None:
        """Take a usage object; what is none says nothing."""
        if not isinstance(value, Mapping):
            return
        self.raw = _merged(self.raw or {}, value)
        self.service_tier = text_of(value.get("service_tier")) or self.service_tier
        self._counts.update(_read(value))
        if isinstance(value.get("iterations"), list):
            self._iterations = [entry for entry in value["iterations"] if isinstance(entry, Mapping)]

    def total(self) -> TokenUsage:
        """Return the running total: the answer, and what the server sampled beside it."""
        beside = [_read(entry) for entry in self._iterations if entry.get("type") in _BESIDE]
        sums = {name: sum(counts.get(name, 0) for counts in (self._counts, *beside)) for name in _PATHS}
        prompt = capped(sums["input"] + sums["written"] + sums["cached"])
        completion = capped(sums["output"])
        return TokenUsage(
            prompt,
            completion,
            capped(prompt + completion),
            capped(sums["cached"]),
            capped(sums["written"]),
            capped(sums["thinking"]),
            self.service_tier,
        )

    def context_tokens(self, *, hosted: bool) -> int | None:
        """Return the size of the context with the answer; None if the counters are a sum over inner passes."""
        if not self._iterations:
            return None if hosted else _size(self._counts)
        for kind in _ANSWERS:
            answers = [entry for entry in self._iterations if entry.get("type") == kind]
            if answers:
                return _size(_read(answers[-1]))
        return None


def _read(value: Mapping[str, Any]) -> dict[str, int]:
    """Return the counters of a usage object that are there."""
    counts: dict[str, int] = {}
    for name, path in _PATHS.items():
        found: Any = value
        for step in path:
            found = inner(found, step)
        count = counter(found)
        if count is not None:
            counts[name] = count
    return counts


def _size(counts: Mapping[str, int]) -> int | None:
    return capped(sum(counts.get(name, 0) for name in ("input", "written", "cached", "output"))) or None


def _merged(former: Mapping[str, Any], newer: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(former)
    for name, value in newer.items():
        if isinstance(value, Mapping) and isinstance(out.get(name), Mapping):
            out[name] = _merged(out[name], value)
        elif value is not None or name not in out:
            out[name] = value
    return out
