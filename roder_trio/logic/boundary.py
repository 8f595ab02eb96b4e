"""What a compaction boundary is: the transcript item that stands for all that came before it, but what it retains.

Pure. Asked by the window, the compaction, the step and the item projection alike.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from roder_trio.schema.inference import EngineTarget
from roder_trio.schema.transcript import ContextCompaction, ProviderMetadata, ToolCall, ToolResult, TranscriptItem

COMPACTION_TYPES = ("compaction", "compaction_summary")
_TARGET_FIELDS = ("dialect", "provider", "base_url")


def is_boundary(item: TranscriptItem) -> bool:
    """Say if `item` is a compaction boundary: a summary, or provider output that holds a compaction item."""
    if isinstance(item, ContextCompaction):
        return True
    if not isinstance(item, ProviderMetadata) or not isinstance(item.payload, Mapping):
        return False
    return bool(compaction_items(item.payload))


def compaction_items(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the compaction items in the `output` of a provider's metadata, in order."""
    output = payload.get("output")
    if not isinstance(output, list | tuple):
        return []
    return [part for part in output if isinstance(part, Mapping) and part.get("type") in COMPACTION_TYPES]


def same_boundary(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Say if two compaction items are the same: by id and content, or, without an id, as a whole."""
    if one.get("id") is None or other.get("id") is None:
        return one == other
    return bool(one["id"] == other["id"] and one.get("encrypted_content") == other.get("encrypted_content"))


def counts_for(item: TranscriptItem, target: EngineTarget | None = None) -> bool:
    """Say if `item` is a boundary that counts for `target`: an opaque one may name other engines' targets."""
    if not is_boundary(item):
        return False
    if target is None or not isinstance(item, ProviderMetadata):
        return True
    return all(item.payload.get(name) in (None, getattr(target, name)) for name in _TARGET_FIELDS)


def retained_positions(items: Sequence[TranscriptItem], position: int) -> list[int]:
    """Return where what the boundary at `position` retains stands: the nearest items before it that are no boundary."""
    boundary = items[position]
    missing = boundary.retained_count if isinstance(boundary, ContextCompaction) else 0
    retained: list[int] = []
    while missing > 0 and position > 0:
        position -= 1
        if not is_boundary(items[position]):
            retained.append(position)
            missing -= 1
    retained.reverse()
    return retained


def retained_before(items: Sequence[TranscriptItem], position: int) -> list[TranscriptItem]:
    """Return the items that the boundary at `position` retains."""
    return [items[place] for place in retained_positions(items, position)]


def trim_to_last_boundary(items: Sequence[TranscriptItem], target: EngineTarget | None = None) -> list[TranscriptItem]:
    """Return the window of a log: its last boundary that counts, what that retains, and all later items."""
    for position in range(len(items) - 1, -1, -1):
        if counts_for(items[position], target):
            return [items[position], *retained_before(items, position), *items[position + 1 :]]
    return list(items)


def has_open_call(items: Sequence[TranscriptItem]) -> bool:
    """Say if a call behind the last boundary has no result yet; a cut would separate the two."""
    answered: set[str] = set()
    for item in reversed(items):
        if is_boundary(item):
            return False
        if isinstance(item, ToolResult):
            answered.add(item.id)
        elif isinstance(item, ToolCall) and item.id not in answered:
            return True
    return False


def in_band_boundary(item: Mapping[str, Any], provider: str) -> ProviderMetadata:
    """Return what is stored, at once, when a provider has compacted inside a sampling stream."""
    return ProviderMetadata({"provider": provider, "output": [item]})


def without_stored(payload: Mapping[str, Any], stored: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return replay metadata without the compaction items that are stored already, and all that stands before them."""
    output = payload.get("output")
    if not isinstance(output, list | tuple):
        return payload
    for position in range(len(output) - 1, -1, -1):
        part = output[position]
        if isinstance(part, Mapping) and any(same_boundary(part, known) for known in stored):
            return {**payload, "output": list(output[position + 1 :])}
    return payload
