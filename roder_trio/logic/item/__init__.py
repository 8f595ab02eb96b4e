"""From the transcript to the items of a user interface: projection, fold, ids."""

from roder_trio.logic.item.fold import ItemFold, fold_items, fold_kind
from roder_trio.logic.item.number import ItemNumbers
from roder_trio.logic.item.projection import (
    ItemStep,
    Pinned,
    derive,
    event_count,
    first_seq,
    id_base,
    merge,
    message_base,
    project,
    project_turn,
    steps,
)

__all__ = [
    "ItemFold",
    "ItemNumbers",
    "ItemStep",
    "Pinned",
    "derive",
    "event_count",
    "first_seq",
    "fold_items",
    "fold_kind",
    "id_base",
    "merge",
    "message_base",
    "project",
    "project_turn",
    "steps",
]
