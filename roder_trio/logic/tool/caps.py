"""How much of a tool's text the log and the model get: its beginning and its end.

Lines are those that a line feed ends, characters are code points. The text left out is kept nowhere.
"""

import attrs

MAX_LINES = 200
HEAD_LINES = 120
TAIL_LINES = 80
MAX_CHARACTERS = 20_000
HEAD_CHARACTERS = 12_000


@attrs.frozen
class Capped:
    """A text as it is stored and sent; `lines` and `characters` are its size before, `cut` whether any was left out."""

    text: str
    lines: int
    characters: int
    cut: bool


def capped(text: str) -> Capped:
    """Cut a text to its limits: first the lines, then the characters."""
    lines = text.count("\n")
    kept = _cap_characters(_cap_lines(text, lines))
    return Capped(kept, lines, len(text), kept != text)


def _cap_lines(text: str, lines: int) -> str:
    if lines <= MAX_LINES:
        return text
    parts = text.split("\n", HEAD_LINES)
    tail = parts.pop().rsplit("\n", TAIL_LINES + 1)[1:]
    marker = f"[... {lines - HEAD_LINES - TAIL_LINES} lines left out ...]"
    return "\n".join([*parts, marker, *tail])


def _cap_characters(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    tail = MAX_CHARACTERS - HEAD_CHARACTERS
    while True:  # the fewer are kept, the longer the number may be
        marker = f"[... {len(text) - HEAD_CHARACTERS - tail} characters left out ...]"
        room = MAX_CHARACTERS - HEAD_CHARACTERS - len(marker)
        if tail <= room:
            return text[:HEAD_CHARACTERS] + marker + text[len(text) - tail :]
        tail = room
