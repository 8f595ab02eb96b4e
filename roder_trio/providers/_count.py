"""Counters of tokens as a wire writes them.

Pure. What is no natural number is ignored alone; the rest of its object counts.
"""

from collections.abc import Iterable
from typing import Any

from roder_trio.providers._dialect import inner
from roder_trio.schema.usage import MAX_TOKENS


def counter(value: Any) -> int | None:
    """Return a count of tokens; None for all that is none, a boolean, a negative or a text included."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None


def first_count(value: Any, paths: Iterable[tuple[str, ...]]) -> int:
    """Return the first counter that stands at one of `paths`; 0 if none does."""
    for path in paths:
        found = value
        for name in path:
            found = inner(found, name)
        count = counter(found)
        if count is not None:
            return count
    return 0


def capped(count: int) -> int:
    """Return a sum of counters, saturated."""
    return min(count, MAX_TOKENS)
