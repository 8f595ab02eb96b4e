"""The JSON that Roder's files hold, several values on a line included.

Rules of the room: blocks, in a worker thread; only reads. What a crash explains, a last line that is cut off, is told
and dropped; other damage is `RoderDamage`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import attrs

JsonObject = dict[str, Any]


class RoderDamage(ValueError):
    """A file of a thread can't be read, at this line."""

    def __init__(self, file: str, line: int, detail: str) -> None:
        super().__init__(f"{file} line {line}: {detail}")


@attrs.frozen
class Value:
    """A JSON object with the line, from 1, on which it ends."""

    line: int
    value: JsonObject


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def read_first(path: Path) -> JsonObject | None:
    """The first JSON value of a file, whatever follows it; None if there is no file. Raises RoderDamage, OSError."""
    data = _read(path)
    if data is None:
        return None
    try:
        value, _ = _decoder.raw_decode(data.decode(errors="replace").lstrip("\ufeff \t\r\n"))
    except ValueError as error:
        raise RoderDamage(path.name, 1, str(error)) from error
    if not isinstance(value, dict):
        raise RoderDamage(path.name, 1, "it is no JSON object")
    return value


def read_values(path: Path, warn: Callable[[str], None]) -> list[Value]:
    """All values of a file, in order; a torn last line is dropped with a warning. Raises RoderDamage, OSError."""
    lines = _lines(path)
    found: list[Value] = []
    for number, line in lines:
        values, error = _values(line)
        found.extend([Value(number, value) for value in values])
        if error is not None and number == lines[-1][0]:
            warn(f"{path.name} line {number} is cut off and was dropped")
        elif error is not None:
            raise RoderDamage(path.name, number, error)
    return found


def read_good_values(path: Path, warn: Callable[[str], None]) -> list[Value]:
    """The values of those lines of a file that can be read; the others are counted in a warning. Raises OSError."""
    found: list[Value] = []
    bad = 0
    for number, line in _lines(path):
        values, error = _values(line)
        found.extend([Value(number, value) for value in values])
        bad += error is not None
    if bad:
        warn(f"{bad} lines of {path.name} can't be read and were skipped")
    return found


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _lines(path: Path) -> list[tuple[int, bytes]]:
    """The numbered lines of a file that hold anything."""
    lines = (_read(path) or b"").split(b"\n")
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _values(line: bytes) -> tuple[list[JsonObject], str | None]:
    """The objects on a line up to the first that can't be read, and what is wrong with that."""
    values: list[JsonObject] = []
    try:
        text = line.decode()
        position = 0
        while position < len(text):
            if text[position].isspace():
                position += 1
                continue
            value, position = _decoder.raw_decode(text, position)
            if not isinstance(value, dict):
                return values, "a value is no JSON object"
            values.append(value)
    except (ValueError, RecursionError) as error:
        return values, str(error)
    return values, None
