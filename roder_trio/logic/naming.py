"""Names and ids as a wire takes them, and the way back.

Pure, deterministic: the same tools and ids give the same wire names in every request, so that its prefix stays cached.
"""

import hashlib
import re
from collections.abc import Callable, Iterable

_OUTSIDE = re.compile(r"[^A-Za-z0-9_-]")
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"

IdForm = Callable[[str], str]
"""How a dialect writes an id; ids that differ must stay different."""


def plain_name(name: str, limit: int = 64) -> str:
    """Return a tool's name as wires take it: other characters become `_`, an empty one becomes `tool`."""
    return _OUTSIDE.sub("_", name)[:limit] or "tool"


class ToolNames:
    """The two-way map between the names of a request's tools and their names on the wire."""

    def __init__(self, names: Iterable[str], limit: int = 64) -> None:
        self._limit = limit
        self._wire: dict[str, str] = {}
        self._canonical: dict[str, str] = {}
        for name in names:
            if name not in self._wire:
                wire = self._free(plain_name(name, limit))
                self._wire[name] = wire
                self._canonical[wire] = name

    @property
    def offered(self) -> tuple[str, ...]:
        """The wire names of the tools, in their order."""
        return tuple(self._canonical)

    def wire(self, name: str) -> str:
        """Return the wire name of a tool; one that isn't offered any more gets the plain rule."""
        return self._wire.get(name) or plain_name(name, self._limit)

    def canonical(self, wire: str) -> str:
        """Return the name of the tool that the wire calls so; an unknown one passes."""
        return self._canonical.get(wire, wire)

    def _free(self, name: str) -> str:
        count, wire = 1, name
        while wire in self._canonical:
            count += 1
            suffix = f"_{count}"
            wire = name[: self._limit - len(suffix)] + suffix
        return wire


class WireIds:
    """Gives each call of a request an id of its own; a repeated one gets `_2`, `_3`, ... in order of appearance."""

    def __init__(self, form: IdForm = str) -> None:
        self._form = form
        self._used: set[str] = set()

    def take(self, id: str) -> str:
        """Return the wire id of the next call that is named `id`."""
        count, wire = 1, self._form(id)
        while wire in self._used:
            count += 1
            wire = self._form(f"{id}_{count}")
        self._used.add(wire)
        return wire


def short_id_form(length: int) -> IdForm:
    """Return a form for wires whose ids are exactly `length` letters and digits: others are hashed into it."""
    fits = re.compile(rf"[A-Za-z0-9]{{{length}}}")

    def form(id: str) -> str:
        return id if fits.fullmatch(id) else _digest(id, length)

    return form


def _digest(text: str, length: int) -> str:
    number = int.from_bytes(hashlib.blake2s(text.encode(errors="replace")).digest())
    letters = []
    for _ in range(length):
        number, rest = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[rest])
    return "".join(letters)
