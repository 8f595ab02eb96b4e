"""Text that begins with its reasoning in `<think>` tags, taken apart as it comes.

Pure. Only a tag at the very start opens reasoning; a tag that a piece cuts in half waits for the next piece.
"""

from typing import Literal

OPEN, CLOSE = "<think>", "</think>"

Piece = tuple[Literal["text", "reasoning"], str]


class ThinkSplitter:
    """Takes text in pieces; returns it as pieces of text and of reasoning."""

    def __init__(self) -> None:
        self._state: Literal["start", "inside", "after"] = "start"
        self._held = ""
        self._trim = False

    def feed(self, text: str) -> list[Piece]:
        """Take more text."""
        out: list[Piece] = []
        self._held += text
        if self._state == "start":
            self._start()
        if self._state == "inside":
            self._inside(out)
        if self._state == "after":
            self._after(out)
        return out

    def eof(self) -> list[Piece]:
        """Take the end: what was held back is what it looked like."""
        held, self._held = self._held, ""
        kind: Literal["text", "reasoning"] = "reasoning" if self._state == "inside" else "text"
        return [(kind, held)] if held and not self._trim else []

    def _start(self) -> None:
        begin = self._held.lstrip()
        if begin.startswith(OPEN):
            self._state, self._held = "inside", begin[len(OPEN) :]
        elif not OPEN.startswith(begin):
            self._state = "after"

    def _inside(self, out: list[Piece]) -> None:
        before, tag, rest = self._held.partition(CLOSE)
        if tag:
            self._state, self._held, self._trim = "after", rest, True
        else:
            keep = next(size for size in range(len(CLOSE) - 1, -1, -1) if before.endswith(CLOSE[:size]))
            before, self._held = before[: len(before) - keep], before[len(before) - keep :]
        if before:
            out.append(("reasoning", before))

    def _after(self, out: list[Piece]) -> None:
        if self._trim:
            # the blank lines behind the closing tag belong to neither
            self._held = self._held.lstrip()
        if self._held:
            out.append(("text", self._held))
            self._held, self._trim = "", False
