"""JSON schemas: their bytes, their compiled form, and what of a value violates them.

A compiled schema is a pure function. References outside the schema are refused, never fetched.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import jsonschema_rs
import orjson

from roder_trio.errors import ToolDefinitionError

_FIRST = {"type": 0, "properties": 1, "required": 2, "additionalProperties": 3}
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords that map names to schemas."""
_DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are no schemas."""
_COMPOSITE = frozenset({"anyOf", "oneOf"})
"""Keywords whose message doesn't say what they want."""
MAX_SHOWN = 300
"""Characters of a schema in a message."""


@attrs.frozen
class Violation:
    """One keyword that doesn't hold at `path`, and what it wants."""

    path: str
    keyword: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.path}: {self.keyword}: {self.wanted}"


Validate = Callable[[Any], tuple[Violation, ...]]
"""A compiled schema: every violation of a value, none if it fits."""


def ordered(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an equal schema of plain dicts and lists whose keys have a fixed order, so that equal ones have one text.

    `type`, `properties` (sorted), `required` and `additionalProperties` come first, then the rest, sorted.
    """
    keys = sorted(schema, key=lambda key: (_FIRST.get(key, len(_FIRST)), key))
    return {key: _ordered_value(key, schema[key]) for key in keys}


def _ordered_value(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        if key in _NAMED:
            return {name: _ordered_value("", value[name]) for name in sorted(value)}
        return _sorted(value) if key in _DATA else ordered(value)
    if isinstance(value, list | tuple):
        return [_ordered_value(key if key in _DATA else "", part) for part in value]
    return value


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(part) for part in value] if isinstance(value, list | tuple) else value


def compiled(schema: Mapping[str, Any], name: str) -> Validate:
    """Compile a schema; `name` says whose it is. Raises ToolDefinitionError."""
    try:
        plain = ordered(schema)
        validator = jsonschema_rs.validator_for(plain, mask="the value", offline=True)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise ToolDefinitionError(f"The schema of {name!r} can't be compiled: {first}") from error

    def validate(value: Any) -> tuple[Violation, ...]:
        return tuple(_violation(error, plain) for error in validator.iter_errors(value))

    return validate


def _violation(error: jsonschema_rs.ValidationError, schema: Any) -> Violation:
    path = error.schema_path
    keyword = next((part for part in reversed(path) if isinstance(part, str)), error.kind.name)
    wanted = error.message
    if keyword in _COMPOSITE:
        wanted += _shown(schema, path)
    return Violation(path_text(error.instance_path), keyword, wanted)


def _shown(schema: Any, path: Iterable[str | int]) -> str:
    """Return the part of a schema at `path`; "" where the path starts inside a schema with an id of its own."""
    try:
        for part in path:
            schema = schema[part]
    except (LookupError, TypeError):
        return ""
    return f": {orjson.dumps(schema).decode()[:MAX_SHOWN]}"


def path_text(path: Iterable[str | int]) -> str:
    """Return a path as text: `$` is the whole, `$.a[0]` the first of the list `a`."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
