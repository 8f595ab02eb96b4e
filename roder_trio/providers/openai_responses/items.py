"""The items of one answer: found again whatever a frame names them by, with what of them was handed on already.

Pure. A frame names an item by its id, by its place, or by neither; servers change ids on the way, so a place counts
where an id is unknown. What the final frame lists wins over what was collected.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from roder_trio.logic.boundary import COMPACTION_TYPES
from roder_trio.providers._dialect import text_of

CALL_TYPES = ("function_call", "custom_tool_call")

Part = tuple[str, int]
"""The kind of a text, and its place among the texts of its kind."""


@attrs.define(eq=False)
class Item:
    """One item, as far as it is known; `value` is its newest form."""

    value: Mapping[str, Any]
    type: str
    place: int
    told: set[Part] = attrs.field(factory=set)
    """The parts of which some text was handed on."""
    call: str | None = None
    """The id that its call was announced under."""
    name: str = ""
    """The name that its call was announced under."""
    pieces: list[str] = attrs.field(factory=list)
    """What came of its call's arguments."""
    done: bool = False
    """Whether all of it was handed on."""

    @property
    def id(self) -> str:
        """Its id; "" if it has none."""
        return text_of(self.value.get("id"))

    @property
    def phase(self) -> str | None:
        """The phase of a message."""
        return text_of(self.value.get("phase")) or None

    @property
    def is_call(self) -> bool:
        """Whether it is a call of a tool of ours."""
        return self.type in CALL_TYPES

    @property
    def is_hosted(self) -> bool:
        """Whether it is a call that the provider runs."""
        return self.type.endswith("_call") and not self.is_call

    @property
    def is_compaction(self) -> bool:
        """Whether it is a boundary."""
        return self.type in COMPACTION_TYPES


class Items:
    """The items of one answer, in order of appearance."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def add(self, value: Mapping[str, Any], place: Any = None) -> Item:
        """Take a new item, in its first form."""
        known = place if type(place) is int else len(self._items)
        item = Item(value, text_of(value.get("type")), known)
        self._items.append(item)
        return item

    def named(self, id: Any) -> Item | None:
        """Return the item of an id."""
        return next((item for item in self._items if item.id == id), None) if isinstance(id, str) and id else None

    def of_frame(self, frame: Mapping[str, Any], *types: str) -> Item | None:
        """Return the item that a frame about a part of one means; None if no item of these types is meant."""
        return self._meant(frame.get("item_id"), frame.get("output_index"), types)

    def of_value(self, value: Mapping[str, Any], place: Any) -> Item | None:
        """Return the item that a frame with a finished one means; None if that is new."""
        return self._meant(value.get("id"), place, (text_of(value.get("type")),))

    def finals(self, output: Sequence[Mapping[str, Any]]) -> list[Item | None]:
        """Return the item that each one of a final list is: that of its id, else that of its type at its place."""
        found = [self.named(value.get("id")) for value in output]
        for place, value in enumerate(output):
            if found[place] is None:
                here = [item for item in self._items if item.place == place and item.type == value.get("type")]
                found[place] = next((item for item in here if item not in found), None)
        return found

    def _meant(self, id: Any, place: Any, types: Sequence[str]) -> Item | None:
        known = self.named(id)
        if known is not None:
            return known
        open_ones = [item for item in self._items if item.type in types and not item.done]
        if type(place) is int:
            return next((item for item in open_ones if item.place == place), None)
        return None if isinstance(id, str) and id else next(reversed(open_ones), None)


def as_replayed(item: Item, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a finished item as it is stored: under the id of its call, without the bytes of an image."""
    if item.is_compaction and item.done:
        return item.value
    if item.is_call and item.call is not None and value.get("call_id") != item.call:
        return {**value, "call_id": item.call}
    if item.type == "image_generation_call" and value.get("result"):
        return {**value, "result": None}
    return value
