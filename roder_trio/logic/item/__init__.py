"""From the transcript to the items of a user interface: projection, fold, ids."""

from roder_trio.logic.item.fold import ItemFold, fold_items, fold_kind
from roder_trio.logic.item.number import ItemNumbers
from roder_trio.logic.item.projection import (
    derive,
    event_count,
    id_base,
    merge,
    message_base,
    project,
    project_turn,
)

__all__ = [
    "ItemFold",
    "ItemNumbers",
    "derive",
    "event_count",
    "fold_items",
    "fold_kind",
    "id_base",
    "merge",
    "message_base",
    "project",
    "project_turn",
]
