"""Compaction boundaries, and how compactions end."""

from roder_trio.logic.boundary import is_boundary, trim_to_last_boundary
from roder_trio.schema.compaction import (
    Compacted,
    CompactionResult,
    NativeCompactionOutcome,
    Preempted,
    Unsupported,
)

__all__ = [
    "Compacted",
    "CompactionResult",
    "NativeCompactionOutcome",
    "Preempted",
    "Unsupported",
    "is_boundary",
    "trim_to_last_boundary",
]
