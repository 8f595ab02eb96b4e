"""Tool calls that come in fragments, put together.

Pure. Vendors number fragments, name them by id, or do neither; they repeat ids, send them late, or never. A call is
announced when its id is known and its name can't grow; all are completed at the end, in the order of their starts.
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import attrs

from roder_trio.logic.naming import ToolNames
from roder_trio.logic.pairing import is_json_object
from roder_trio.logic.stop import MAY_BE_CUT
from roder_trio.providers._dialect import encode_json
from roder_trio.schema.inference import InferenceEvent, ToolCallCompleted, ToolCallDelta, ToolCallStarted


@attrs.define
class _Slot:
    key: Hashable
    wire_id: str | None = None
    name: str = ""
    arguments: list[str] = attrs.field(factory=list)
    id: str | None = None
    """The id it was announced under."""
    flushed: int = 0
    """How many pieces of its arguments were told."""

    @property
    def is_complete(self) -> bool:
        """Whether its arguments are a whole JSON object already."""
        last = next((piece for piece in reversed(self.arguments) if piece.strip()), "")
        return last.rstrip().endswith("}") and is_json_object("".join(self.arguments))


class CallAssembler:
    """Puts the calls of one step together. `fresh` makes new ids; `taken` holds those that name earlier calls."""

    def __init__(self, names: ToolNames, fresh: Callable[[], str], taken: Collection[str] = ()) -> None:
        self._names = names
        self._fresh = fresh
        self._taken = set(taken)
        self._slots: list[_Slot] = []
        self._started = 0

    def __len__(self) -> int:
        return len(self._slots)

    def feed(self, fragments: Any) -> list[InferenceEvent]:
        """Take the fragments of one delta, in whatever shape they come."""
        listed = fragments if isinstance(fragments, list) else [fragments]
        known = [fragment for fragment in listed if isinstance(fragment, Mapping)]
        bare = sum(_index(fragment) is None and not _text(fragment.get("id")) for fragment in known)
        for position, fragment in enumerate(known):
            self._fragment(fragment, position if bare > 1 else None)
        return self._progress()

    def finish(self, stop_reason: str | None) -> list[InferenceEvent]:
        """Take the end of the step: announce what isn't yet, complete all."""
        out: list[InferenceEvent] = []
        for slot in self._slots[self._started :]:
            out.extend(self._start(slot))
        self._started = len(self._slots)
        for slot in self._slots:
            text = "".join(slot.arguments)
            out.extend(self._flush(slot))
            if not text and stop_reason not in MAY_BE_CUT:
                text = "{}"
            out.append(ToolCallCompleted(slot.id or "", self._names.canonical(slot.name), text))
        return out

    # -- fragments

    def _fragment(self, fragment: Mapping[str, Any], position: int | None) -> None:
        function = fragment.get("function")
        function = function if isinstance(function, Mapping) else {}
        id, name, arguments = _text(fragment.get("id")), _text(function.get("name")), _arguments(function)
        slot = self._slot(_index(fragment), id, name, arguments, position)
        slot.wire_id = slot.wire_id or id or None
        if not slot.name:
            slot.name = name
        elif name and not slot.arguments and slot.id is None and self._may_become(slot.name + name):
            slot.name += name
        if arguments:
            slot.arguments.append(arguments)

    def _slot(self, index: int | None, id: str, name: str, arguments: str, position: int | None) -> _Slot:
        key: Hashable = index
        if index is None and not id and position is not None:
            key = ("position", position)
        if key is not None:
            slot = self._newest(lambda slot: slot.key == key)
            return slot if slot is not None and not _begins_anew(slot, id, name, arguments) else self._new(key)
        if id:
            slot = self._newest(lambda slot: slot.wire_id == id)
            return slot if slot is not None and not _begins_anew(slot, id, name, arguments) else self._new(("id", id))
        last = self._slots[-1] if self._slots else None
        return last if last is not None and not (name and last.name) else self._new(("bare", len(self._slots)))

    def _newest(self, fits: Callable[[_Slot], bool]) -> _Slot | None:
        return next((slot for slot in reversed(self._slots) if fits(slot)), None)

    def _new(self, key: Hashable) -> _Slot:
        self._slots.append(_Slot(key))
        return self._slots[-1]

    # -- events

    def _progress(self) -> list[InferenceEvent]:
        out: list[InferenceEvent] = []
        while self._started < len(self._slots) and self._can_start(self._slots[self._started]):
            out.extend(self._start(self._slots[self._started]))
            out.extend(self._flush(self._slots[self._started]))
            self._started += 1
        for slot in self._slots[: self._started]:
            out.extend(self._flush(slot))
        return out

    def _can_start(self, slot: _Slot) -> bool:
        if not slot.wire_id or not slot.name:
            return False
        return bool(slot.arguments) or not self._may_become(slot.name, longer=True)

    def _start(self, slot: _Slot) -> list[InferenceEvent]:
        id = slot.wire_id
        while not id or id in self._taken:
            id = self._fresh()
        self._taken.add(id)
        slot.id = id
        return [ToolCallStarted(id, self._names.canonical(slot.name))]

    def _flush(self, slot: _Slot) -> list[InferenceEvent]:
        piece, slot.flushed = "".join(slot.arguments[slot.flushed :]), len(slot.arguments)
        return [ToolCallDelta(slot.id or "", piece)] if piece else []

    def _may_become(self, name: str, *, longer: bool = False) -> bool:
        return any(offer.startswith(name) and not (longer and offer == name) for offer in self._names.offered)


def _begins_anew(slot: _Slot, id: str, name: str, arguments: str) -> bool:
    """Whether a fragment for `slot` is the beginning of another call."""
    if id and slot.wire_id and id != slot.wire_id:
        return True
    repeats = bool(name) if not id else bool(slot.wire_id and arguments.strip())
    return repeats and slot.is_complete


def _arguments(function: Mapping[str, Any]) -> str:
    value = function.get("arguments")
    if isinstance(value, str):
        return value
    return "" if value is None else encode_json(value).decode()


def _index(fragment: Mapping[str, Any]) -> int | None:
    value = fragment.get("index")
    return value if type(value) is int else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
