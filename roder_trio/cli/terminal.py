"""What the user sees: answers on stdout, everything else on stderr, no control character of a stranger on either.

Every print of the command line goes through `Terminal`, and every text of `Terminal` through `clean`. So no model,
title, file name or error can move the cursor, hide text or write to the clipboard of who reads it. What is stored keeps
its characters. Terminal control never spans two characters that `clean` would let pass, so it needs no state between
the parts of a stream.
"""

import io
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 10_000
"""Columns of an output that is no terminal: lines are not broken there."""

_TO_THE_END = "\x1b[K"
"""Clears the rest of a terminal's line."""

_UNSAFE = [
    *(code for code in range(0x20) if chr(code) not in "\n\t"),
    *range(0x7F, 0xA0),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
]
_REMOVED = dict.fromkeys(_UNSAFE)
_ESCAPED = {code: f"\\u{code:04x}" for code in _UNSAFE}


def clean(text: str) -> str:
    """Remove control characters but line feed and tab, and the controls of bidirectional text."""
    return text.translate(_REMOVED)


def one_line(text: str) -> str:
    """Clean a text and join its lines with spaces."""
    return " ".join(clean(text).split())


def flat(text: str) -> str:
    """Clean a text and turn each of its line feeds and tabs into one space."""
    return clean(text).replace("\n", " ").replace("\t", " ")


def escape_json(line: str) -> str:
    """Write the characters that `clean` removes as JSON escapes, which changes no value."""
    return line.translate(_ESCAPED)


class Terminal:
    """Prints to two text streams. `secrets` are hidden in what goes to the second."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._console = Console(file=out, highlight=False, markup=False, width=None if out.isatty() else _WIDE)
        self._notes = Console(file=err, highlight=False, markup=False, soft_wrap=True)
        self._secrets: list[str] = []
        self._is_asking = False
        self._in_line = False
        """The answer stands in the middle of a line of this terminal."""
        self._has_progress = False

    @classmethod
    def standard(cls) -> "Terminal":
        """Return the terminal of this process; a character that its encoding lacks becomes a question mark."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        return cls(sys.stdout, sys.stderr)

    def hide(self, secret: str | None) -> None:
        """Never show `secret` in a note."""
        if secret:
            self._secrets.append(secret)

    def say(self, text: str) -> None:
        """Print a piece of an answer at once."""
        self._begin()
        self._out.write(clean(text))
        self._out.flush()
        self._in_line = self._out.isatty() and not text.endswith("\n")

    def line(self, text: str) -> None:
        """Print a line of the result."""
        self.say(text + "\n")

    def note(self, text: str, style: str = "dim") -> None:
        """Print one line for the person, apart from the result."""
        self._begin()
        self._notes.print(Text(one_line(self._without_secrets(text)), style=style))

    def exact(self, text: str) -> None:
        """Print one line for the person whose spaces all count, such as what is to be consented to."""
        self._begin()
        self._err.write(flat(self._without_secrets(text)) + "\n")
        self._err.flush()

    def ask(self, text: str) -> None:
        """Print a question, behind which the answer is typed."""
        self._begin()
        self._err.write(flat(text))
        self._err.flush()
        self._is_asking = True

    def answered(self) -> None:
        """Take note that a line was typed, so that the next print begins a line."""
        self._is_asking = False

    def error(self, text: str) -> None:
        """Print why the command failed, as one line."""
        self.note(f"roder-trio: {text}", style="red")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print rows under their headings."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in headings:
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))
        self._console.print(table)

    @property
    def is_live(self) -> bool:
        """Whether a line of the notes can be replaced by what comes next."""
        notes = self._notes
        return notes.is_terminal and not notes.is_dumb_terminal and not notes.legacy_windows

    def progress(self, text: str) -> None:
        """Show how far something is, in a line that the next print replaces; not in the middle of an answer's line."""
        if not self.is_live or self._is_asking or self._in_line:
            return
        self._err.write(f"\r{flat(text)[: self._notes.width - 1]}{_TO_THE_END}")
        self._err.flush()
        self._has_progress = True

    def _begin(self) -> None:
        """Begin a print: end the line of a question that nobody answered, take the line of progress away."""
        if self._has_progress:
            self._err.write(f"\r{_TO_THE_END}")
            self._err.flush()
            self._has_progress = False
        if self._is_asking:
            self._err.write("\n")
            self._err.flush()
            self._is_asking = False

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text
