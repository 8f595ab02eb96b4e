"""JSON schemas in the subset that Gemini takes.

Pure. References are replaced by what they name, a cycle by a plain object. What the wire has no word for is left out,
since it refuses a whole request for one unknown word; the runtime checks arguments against the real schema anyway.
Only keywords are meant: a property that is called like one stays.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from roder_trio.providers._dialect import inner, sorted_schema

# fmt: off
_LEFT_OUT = frozenset(
    [
        "additionalProperties", "examples", "definitions", "patternProperties", "propertyNames",
        "unevaluatedProperties", "unevaluatedItems", "dependencies", "dependentRequired", "dependentSchemas",
        "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems", "contains", "minContains",
        "maxContains", "prefixItems", "additionalItems", "not", "if", "then", "else", "readOnly", "writeOnly",
        "deprecated", "contentEncoding", "contentMediaType", "contentSchema",
    ]
)
# fmt: on
_DATA = frozenset(["default", "example", "required", "enum", "propertyOrdering"])
"""Keywords whose values are no schemas."""
DEEPEST, MOST = 50, 1000
"""References within each other, and in all, that are replaced; beyond that a small schema could become a huge one."""
_PLAIN_OBJECT = {"type": "object"}


def translated(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` as Gemini takes it, with its keys in one order."""
    ordered: dict[str, Any] = sorted_schema(_Translator(schema).schema(schema, ()))
    return ordered


class _Translator:
    """Translates the parts of one schema; `inside` are the references that led to a part."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._replaced = 0
        """How many references were replaced."""

    def schema(self, value: Any, inside: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            return {}
        reference = value.get("$ref")
        if isinstance(reference, str):
            beside = {name: part for name, part in value.items() if name != "$ref"}
            ends = reference in inside or len(inside) == DEEPEST or self._replaced == MOST
            found = None if ends else self._find(reference)
            if not isinstance(found, Mapping):
                return {**_PLAIN_OBJECT, **self._keywords(beside, inside)}
            self._replaced += 1
            return self.schema({**found, **beside}, (*inside, reference))
        return self._keywords(value, inside)

    def _keywords(self, value: Mapping[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, part in value.items():
            if name in _LEFT_OUT or name.startswith(("$", "x-")):
                continue
            match name:
                case "const":
                    out["enum"] = [part]
                case "properties" if isinstance(part, Mapping):
                    out[name] = {key: self.schema(typed, inside) for key, typed in part.items()}
                case "anyOf" | "oneOf" if isinstance(part, list | tuple):
                    out["anyOf"] = [self.schema(choice, inside) for choice in part]
                case "allOf" if isinstance(part, list | tuple):
                    out = _merged([self.schema(whole, inside) for whole in part], out)
                case _ if name in _DATA:
                    out[name] = part
                case _ if isinstance(part, Mapping) or (name == "items" and isinstance(part, bool)):
                    out[name] = self.schema(part, inside)
                case _:
                    out[name] = part
        return _with_nullable(out)

    def _find(self, reference: str) -> Any:
        """Return what a reference inside the schema names; None for one that leads nowhere or outside."""
        if not reference.startswith("#"):
            return None
        found: Any = self._root
        for step in _steps(reference):
            found = inner(found, int(step) if isinstance(found, list) and step.isdecimal() else step)
        return found


def _steps(reference: str) -> Iterator[str]:
    for step in reference[1:].split("/")[1:]:
        yield unquote(step).replace("~1", "/").replace("~0", "~")


def _merged(parts: list[dict[str, Any]], into: dict[str, Any]) -> dict[str, Any]:
    """Return one schema for several that all hold: properties and required names are joined, else the first wins."""
    out = dict(into)
    for part in parts:
        for name, value in part.items():
            if name == "properties" and name in out:
                out[name] = {**value, **out[name]}
            elif name == "required" and name in out:
                out[name] = [*out[name], *(key for key in value if key not in out[name])]
            else:
                out.setdefault(name, value)
    return out


def _with_nullable(value: dict[str, Any]) -> dict[str, Any]:
    """Say "or null" as the wire does: by a flag."""
    kinds, choices, values = value.get("type"), value.get("anyOf"), value.get("enum")
    out = dict(value)
    if isinstance(kinds, list | tuple):
        out.pop("type")
        named = [kind for kind in kinds if kind != "null"]
        if len(named) == 1:
            out["type"] = named[0]
        elif named:
            out["anyOf"] = [{"type": kind} for kind in named]
        out |= {"nullable": True} if "null" in kinds else {}
    if isinstance(choices, list):
        left = [choice for choice in choices if choice.get("type") != "null"]
        out["anyOf"] = left
        if len(left) < 2:  # noqa: PLR2004
            out.pop("anyOf")
            out = {**dict(*left), **out}
        out |= {"nullable": True} if len(left) < len(choices) else {}
    if isinstance(values, list | tuple) and None in values:
        out.pop("enum")
        named = [part for part in values if part is not None]
        out |= {"enum": named, "nullable": True} if named else {"nullable": True}
    return out
