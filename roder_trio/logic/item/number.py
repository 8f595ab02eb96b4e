"""Which ids the items of a thread have, and which id the next one gets.

An id is `{turn_id}-{base}`, later ones of that base in the turn `-2`, `-3`. A number that was given isn't given again,
also if its item was dropped. The ids of calls have no number: a result has the id of its call.
"""

from collections.abc import Iterator

_UNNUMBERED = ("tool-", "hosted-")
_MAX_DIGITS = 9


class ItemNumbers:
    """The item ids of one thread. It holds one entry per item, and one per base from which ids were taken."""

    __slots__ = ("_elsewhere", "_highest", "_turn_of")

    def __init__(self) -> None:
        self._turn_of: dict[str, str] = {}
        self._elsewhere: set[tuple[str, str]] | None = None
        """(turn id, item id) of ids that a second turn uses as well, which only hosts can bring about."""
        self._highest: dict[str, int] = {}
        """By first id of a base: the highest number given or seen."""

    def see(self, turn_id: str, item_id: str) -> None:
        """Take note of an id found in the log."""
        owner = self._turn_of.setdefault(item_id, turn_id)
        if owner != turn_id:
            self._elsewhere = self._elsewhere or set()
            self._elsewhere.add((turn_id, item_id))
        if item_id[-1:].isdecimal():
            self._see_number(turn_id, *item_id.rsplit("-", 1))

    def _see_number(self, turn_id: str, first: str, number: str = "") -> None:
        if number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS and first.startswith(f"{turn_id}-"):
            self._highest[first] = max(self._highest.get(first, 0), int(number))

    def known(self) -> Iterator[tuple[str, str]]:
        """The (turn id, item id) of all that were seen in the log."""
        yield from ((turn_id, item_id) for item_id, turn_id in self._turn_of.items())
        yield from self._elsewhere or ()

    def knows(self, turn_id: str, item_id: str) -> bool:
        """Whether an item of that turn with that id was seen in the log."""
        if self._turn_of.get(item_id) == turn_id:
            return True
        return self._elsewhere is not None and (turn_id, item_id) in self._elsewhere

    def take(self, turn_id: str, base: str) -> str:
        """Give the next id of a base: the first number above all given and seen whose id isn't known in the turn."""
        first = f"{turn_id}-{base}"
        if base.startswith(_UNNUMBERED):
            return first
        number = self._highest.get(first, 0) + 1
        while self.knows(turn_id, _numbered(first, number)):
            number += 1
        self._highest[first] = number
        return _numbered(first, number)


def _numbered(first: str, number: int) -> str:
    return first if number == 1 else f"{first}-{number}"
