"""How compactions end, as their callers are told."""

from collections.abc import Sequence
from typing import TypeAlias

import attrs

from roder_trio.schema.transcript import TranscriptItem
from roder_trio.schema.usage import TokenUsage


@attrs.frozen
class Compacted:
    """The boundary was committed; `window` is that boundary alone."""

    window: Sequence[TranscriptItem]


@attrs.frozen
class Unsupported:
    """The provider has no compaction of its own, and none is required."""


@attrs.frozen
class Preempted:
    """The log grew meanwhile, so the candidate was dropped; `window` is the transcript that the call was given."""

    window: Sequence[TranscriptItem]


NativeCompactionOutcome: TypeAlias = Compacted | Unsupported | Preempted


@attrs.frozen
class CompactionResult:
    """How a manual compaction ended; token counts are estimates of the window, `usage` is what was billed."""

    compacted: bool
    """True only if this call committed a boundary."""
    reason: str | None
    """Why not: `empty_transcript`, `nothing_to_compact` or `cannot_shrink`."""
    strategy: str | None
    tokens_before: int
    tokens_after: int
    usage: TokenUsage | None
