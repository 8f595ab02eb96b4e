"""JSON text and JSON values, strict in both directions.

Rules of the room: no NaN, no bytes, no integer where a bool is declared and the reverse; integers of any size survive;
a lone surrogate becomes U+FFFD when it is written; times are UTC with six digits, so the order of text is that of time.
"""

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from roder_trio.errors import InvalidRecord

JsonObject = dict[str, Any]

MAX_DEPTH = 200
"""How deep JSON of a host or provider may nest; below what any JSON parser in use here takes."""

REFUSALS = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)
"""What a value that doesn't fit raises on its way."""

_DIGITS_ALIKE = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))
_LONG_NUMBER = b"0" * 19
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


class DecodeError(ValueError):
    """Stored JSON can't be read; the message names each field that is wrong."""


def check_json(value: object) -> None:
    """Check that `value` is JSON through and through. Raises InvalidRecord."""
    try:
        plain(value)
    except REFUSALS as error:
        raise InvalidRecord(f"The value is not JSON: {error}.") from error


def parse_json(data: bytes | str) -> Any:
    """Parse JSON text, integers of any size included. Raises DecodeError."""
    try:
        value = orjson.loads(data)
        raw = data if isinstance(data, bytes) else data.encode()
        # orjson reads integers beyond 64 bits as floats
        return json.loads(data) if _LONG_NUMBER in raw.translate(_DIGITS_ALIKE) else value
    except ValueError as error:
        raise DecodeError(f"not JSON: {error}") from error


def dump(value: Any) -> bytes:
    """One line of JSON for a plain value."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # an integer beyond 64 bits, or a lone surrogate
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def plain(value: object, depth: int = 0) -> Any:
    """Return `value` as plain dicts, lists and scalars. Raises for what is no JSON."""
    if value is None or type(value) is str or type(value) is bool or type(value) is int:
        return value
    if type(value) is float:
        return encode_float(value)
    if depth >= MAX_DEPTH:
        raise ValueError(f"it nests deeper than {MAX_DEPTH} levels, or holds itself")
    if isinstance(value, Mapping):
        return {encode_str(key): plain(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, depth + 1) for part in value]
    raise TypeError(f"{type(value).__name__} is no JSON type")


def plain_object(value: object) -> JsonObject:
    """As `plain`, of an object only."""
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object, not {type(value).__name__}")
    found: JsonObject = plain(value)
    return found


def encode_str(value: object, _: object = None) -> str:
    """Pass text through. Raises TypeError."""
    if type(value) is not str:
        raise TypeError(f"expected text, not {type(value).__name__}")
    return value


def encode_int(value: object, _: object = None) -> int:
    """Pass an integer through. Raises TypeError."""
    if type(value) is not int:
        raise TypeError(f"expected an integer, not {type(value).__name__}")
    return value


def encode_bool(value: object, _: object = None) -> bool:
    """Pass a bool through. Raises TypeError."""
    if type(value) is not bool:
        raise TypeError(f"expected true or false, not {type(value).__name__}")
    return value


def encode_float(value: object, _: object = None) -> float:
    """Pass a finite number through. Raises TypeError, ValueError."""
    if type(value) is not float and type(value) is not int:
        raise TypeError(f"expected a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def encode_datetime(value: datetime) -> str:
    """A time as UTC, six fractional digits and `Z`. Raises ValueError without an offset."""
    if value.tzinfo is not UTC:
        if value.utcoffset() is None:
            raise ValueError("expected a timestamp with an offset")
        value = value.astimezone(UTC)
    return value.isoformat(timespec="microseconds")[:26] + "Z"


def decode_datetime(value: object, _: object = None) -> datetime:
    """A time with any offset and 0 to 9 digits, as UTC, cut to microseconds. Raises ValueError."""
    if type(value) is not str or _TIMESTAMP.fullmatch(value) is None:
        raise ValueError("expected a timestamp with an offset")
    read = datetime.fromisoformat(value)
    return read if read.tzinfo is UTC else read.astimezone(UTC)


def decode_object(value: object, _: object = None) -> JsonObject:
    """Pass a JSON object through. Raises TypeError."""
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, not {type(value).__name__}")
    return value
