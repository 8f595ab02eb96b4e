"""What of a value doesn't have the shape that a schema asks for, in words that a model can act on.

These checks are stricter than JSON schema, and speak of names: true is no number, 3.0 is no integer, a required text
that is all white space is missing. What they can't judge, unknown and composite types and all other keywords, is left
to the compiled schema.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from roder_trio.logic.json_schema import path_text

WRONG_TYPE: Final = "wrong_type"
MISSING_REQUIRED: Final = "missing_required"
EMPTY_REQUIRED_STRING: Final = "empty_required_string"
UNEXPECTED_PROPERTY: Final = "unexpected_property"
ORDER: Final = (WRONG_TYPE, MISSING_REQUIRED, EMPTY_REQUIRED_STRING, UNEXPECTED_PROPERTY)

_KINDS = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}

Path = tuple[str | int, ...]


@attrs.frozen
class Finding:
    """One flaw of a value, of a class of `ORDER`."""

    klass: str
    text: str


def findings(schema: Mapping[str, Any], value: Any) -> tuple[Finding, ...]:
    """Return all flaws of `value`, in the order of their classes."""
    return tuple(sorted(_find(schema, value, ()), key=lambda found: ORDER.index(found.klass)))


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `name` was probably meant to be."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)


def _find(schema: Any, value: Any, path: Path) -> Iterator[Finding]:
    if not isinstance(schema, Mapping):
        return
    wanted = schema.get("type")
    if isinstance(wanted, str) and wanted in _KINDS.values() and not _is(value, wanted):
        yield Finding(WRONG_TYPE, f"{path_text(path)} must be of type {wanted}, not {_shown(value)}")
    elif isinstance(value, dict):
        yield from _find_in_object(schema, value, path)
    elif isinstance(value, list) and "prefixItems" not in schema:
        for position, part in enumerate(value):
            yield from _find(schema.get("items"), part, (*path, position))


def _is(value: Any, wanted: str) -> bool:
    kind = _KINDS[type(value)]
    return kind == wanted or (kind == "integer" and wanted == "number")


def _shown(value: Any) -> str:
    kind = _KINDS[type(value)]
    return f"{kind} ({value})" if kind == "number" else kind


def _find_in_object(schema: Mapping[str, Any], value: dict[str, Any], path: Path) -> Iterator[Finding]:
    known = schema.get("properties")
    properties = known if isinstance(known, Mapping) else {}
    yield from _find_required(schema.get("required"), properties, value, path)
    others = schema.get("additionalProperties")
    for name, part in value.items():
        if name in properties:
            yield from _find(properties[name], part, (*path, name))
        elif "patternProperties" in schema:
            continue  # what its patterns take is for the compiled schema to say
        elif others is False:
            yield Finding(UNEXPECTED_PROPERTY, _unexpected(name, properties, path))
        else:
            yield from _find(others, part, (*path, name))


def _find_required(
    required: Any, properties: Mapping[str, Any], value: dict[str, Any], path: Path
) -> Iterator[Finding]:
    for name in required if isinstance(required, list | tuple) else ():
        where = path_text((*path, name))
        if name not in value:
            yield Finding(MISSING_REQUIRED, f"{where} is missing; {_names(properties)}")
        elif _is_empty(properties.get(name), value[name]):
            yield Finding(EMPTY_REQUIRED_STRING, f"{where} is required and must not be empty")


def _is_empty(schema: Any, value: Any) -> bool:
    told = schema if isinstance(schema, Mapping) else {}
    return isinstance(value, str) and not value.strip() and told.get("minLength") != 0


def _unexpected(name: str, properties: Mapping[str, Any], path: Path) -> str:
    meant = closest(name, properties)
    hint = f"did you mean {meant!r}?" if meant is not None else _names(properties)
    return f"{path_text((*path, name))} is not allowed; {hint}"


def _names(properties: Mapping[str, Any]) -> str:
    return f"the allowed names are: {', '.join(sorted(properties)) or 'none'}"
