"""JSON text of a model, read strictly, with the place of the first flaw.

Refused beside what is no JSON at all: keys that come twice, NaN and Infinity, numbers beyond any float, text with half
a surrogate pair, and nesting that no other parser in use here takes.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

MAX_DEPTH = 200
MAX_DIGITS = 4300
"""Python reads no longer integer."""

_TOO_DEEP = f"it nests deeper than {MAX_DEPTH} levels"
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?(?:NaN|Infinity)|-?\d[\d.eE+-]*|[{}\[\]:]', re.DOTALL)


class JsonFlaw(ValueError):
    """Text is no JSON that is accepted here; `position` counts characters from 0."""

    def __init__(self, position: int, what: str) -> None:
        super().__init__(f"not valid JSON at character {position}: {what}")
        self.position = position


def parse(text: str) -> Any:
    """Return the value that `text` holds. Raises JsonFlaw."""
    try:
        value = json.loads(text, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise JsonFlaw(error.pos, error.msg[:1].lower() + error.msg[1:]) from None
    except RecursionError:
        where = next((position for position, _ in _flaws(text)), 0)
        raise JsonFlaw(where, _TOO_DEEP) from None
    for position, what in _flaws(text):
        raise JsonFlaw(position, what)
    return value


def _integer(text: str) -> int:
    return int(text) if len(text) <= MAX_DIGITS else 0


def is_deep(text: str | bytes, value: Any) -> bool:
    """Whether `value`, the JSON that `text` holds, nests deeper than `MAX_DEPTH` levels."""
    opened = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if opened <= MAX_DEPTH:
        return False
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [part for outer in level for part in _parts(outer)]
        if not level:
            return False
    return True


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal as JSON: 1 is 1.0, but true is no 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _flaws(text: str) -> Iterator[tuple[int, str]]:
    keys: list[set[str]] = []
    last = (0, "")
    for match in _TOKEN.finditer(text):
        position, part = match.start(), match.group()
        if part in ("{", "["):
            keys.append(set())
            if len(keys) > MAX_DEPTH:
                yield position, _TOO_DEEP
        elif part in ("}", "]"):
            keys.pop()
        elif part == ":":
            start, key = last
            if key in keys[-1]:
                yield start, f"the key {key!r} comes twice"
            keys[-1].add(key)
        elif part[0] == '"':
            last = (position, _unquoted(part))
            if not _is_encodable(last[1]):
                yield position, "the text has half a surrogate pair"
        elif not _is_number(part):
            yield position, f"{part[:20]} is no number that JSON has, or too large"


def _unquoted(part: str) -> str:
    text: str = json.loads(part) if "\\" in part else part[1:-1]
    return text


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(part: str) -> bool:
    if part.lstrip("-").isdigit():
        return len(part) <= MAX_DIGITS
    return math.isfinite(float(part))
