"""Regular expressions of a model, which may be of any kind, matched without holding up the event loop.

Rules of the room: in worker threads. The `regex` package lets other threads run while it matches, and can be told to
give up; its clock counts the processor time of all threads, so what it gives up too early is tried again.
"""

import time
from typing import Any

import attrs
import regex

from roder_trio.errors import ToolError

MAX_PATTERN = 4_000
SECONDS = 2.0
OVERRUN = f"matching took longer than {SECONDS:g} s and was given up; use a simpler pattern, or a path with fewer files"
_NOT_LOCAL = ("\\A", "\\Z", "\\z", "\\G", "\\K", "++", "*+", "?+", "}+", "(?", "(*")


@attrs.frozen
class Matcher:
    """A compiled pattern that gives up at `until`, a time of the monotonic clock; None: 2 seconds after each start.

    `is_local`: whatever matches in a line alone matches in a text of lines that holds it as well.
    """

    pattern: Any
    until: float | None
    is_local: bool = False

    def search(self, text: str) -> bool:
        """Whether the pattern is found. Raises ToolError for an overrun."""
        return self._match(self.pattern.search, text)

    def matches(self, text: str) -> bool:
        """Whether the whole text fits. Raises ToolError for an overrun."""
        return self._match(self.pattern.fullmatch, text)

    def _match(self, match: Any, text: str) -> bool:
        until = time.monotonic() + SECONDS if self.until is None else self.until
        while (rest := until - time.monotonic()) > 0:
            try:
                return match(text, timeout=rest) is not None
            except TimeoutError:
                continue
        raise ToolError(OVERRUN)


def compile_pattern(
    text: str,
    until: float | None = None,
    *,
    literal: bool = False,
    ignore_case: bool = False,
    word: bool = False,
    hint: str = "",
) -> Matcher:
    """Return what finds `text`. Raises ToolError for a bad pattern, with a hint of what to do instead."""
    if len(text) > MAX_PATTERN:
        raise ToolError(f"bad pattern: it is longer than {MAX_PATTERN} characters")
    source = regex.escape(text) if literal else text
    is_local = not any(sign in source.replace("(?:", "(") for sign in _NOT_LOCAL)
    if word:
        source = rf"(?<!\w)(?:{source})(?!\w)"
    try:
        pattern = regex.compile(source, regex.MULTILINE | (regex.IGNORECASE if ignore_case else 0))
    except Exception as error:  # besides its own error, deep or large patterns end in those of Python
        reason = str(error) if isinstance(error, regex.error) else type(error).__name__
        raise ToolError(f"bad pattern: {reason}{hint}") from None
    return Matcher(pattern, until, is_local)
