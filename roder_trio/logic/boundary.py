"""What a compaction boundary is: the transcript item that stands for all that came before it.

Pure. One question, asked by the window, the compaction and the item projection alike.
"""

from collections.abc import Mapping

from roder_trio.schema.transcript import ContextCompaction, ProviderMetadata, TranscriptItem

_BOUNDARY_TYPES = ("compaction", "compaction_summary")


def is_boundary(item: TranscriptItem) -> bool:
    """Say if `item` is a compaction boundary: a summary, or provider output that holds a compaction item."""
    if isinstance(item, ContextCompaction):
        return True
    if not isinstance(item, ProviderMetadata) or not isinstance(item.payload, Mapping):
        return False
    output = item.payload.get("output")
    return isinstance(output, list | tuple) and any(
        isinstance(part, Mapping) and part.get("type") in _BOUNDARY_TYPES for part in output
    )
