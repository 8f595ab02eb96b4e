"""The JSON schema of a Python type, whole and closed: no references, no properties but the declared ones.

A tool's parameters take `str int float bool None`, `list[T]`, `dict[str, T]`, `Literal`, `Enum`, `Optional[T]` and
attrs classes; the answer of a turn takes dataclasses, `TypedDict`s and `tuple[T, ...]` as well. msgspec reads the
annotations. Defaults are never shown as values. Constraints of `msgspec.Meta` become keywords.
"""

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any

import attrs
from msgspec import inspect as types

Schema = dict[str, Any]

_NUMBER = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
}
_TEXT = {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"}
_LIST = {"min_length": "minItems", "max_length": "maxItems"}
_OBJECT = {"min_length": "minProperties", "max_length": "maxProperties"}


def schema_of(kind: Any, *, answer: bool = False) -> Schema:
    """Return the schema of the type `kind`; `answer` adds the types of answers. Raises TypeError."""
    try:
        read = types.type_info(kind)
    except Exception as error:  # what annotations raise that can't be resolved is up to them
        raise TypeError(f"{_name(kind)} can't be read: {error}") from error
    return _Writer(answer).write(read)


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


@attrs.define
class _Writer:
    """Writes schemas; `within` holds the classes that are being written, since none may hold itself."""

    answer: bool
    within: list[type] = attrs.field(factory=list)

    def write(self, kind: types.Type) -> Schema:
        match kind:
            case types.StrType():
                return {"type": "string", **_constraints(kind, _TEXT)}
            case types.BoolType():
                return {"type": "boolean"}
            case types.IntType():
                return {"type": "integer", **_constraints(kind, _NUMBER)}
            case types.FloatType():
                return {"type": "number", **_constraints(kind, _NUMBER)}
            case types.NoneType():
                return {"type": "null"}
            case types.LiteralType(values):
                return _choice(values)
            case types.EnumType(cls):
                return _choice([member.value for member in cls], cls)
            case _:
                return self._composite(kind)

    def _composite(self, kind: types.Type) -> Schema:
        match kind:
            case types.ListType(part):
                return {"type": "array", "items": self.write(part), **_constraints(kind, _LIST)}
            case types.VarTupleType(part) if self.answer:
                return {"type": "array", "items": self.write(part), **_constraints(kind, _LIST)}
            case types.DictType(types.StrType(), part):
                return {"type": "object", "additionalProperties": self.write(part), **_constraints(kind, _OBJECT)}
            case types.UnionType((part, types.NoneType())) | types.UnionType((types.NoneType(), part)):
                return {"anyOf": [self.write(part), {"type": "null"}]}
            case types.DataclassType(cls, fields) if self.answer or attrs.has(cls):
                return self._class(cls, [field for field in fields if field.name in _given(cls)])
            case types.TypedDictType(cls, fields) if self.answer:
                return self._class(cls, fields)
            case types.CustomType(cls):
                raise TypeError(f"{_name(cls)} has no JSON schema here")
            case _:
                raise TypeError(f"{type(kind).__name__.removesuffix('Type')} has no JSON schema here")

    def _class(self, cls: type, fields: Iterable[types.Field]) -> Schema:
        if cls in self.within:
            raise TypeError(f"{cls.__name__} holds itself, so it has no finite schema")
        self.within.append(cls)
        found = closed_object(
            {field.name: self.write(field.type) for field in fields},
            [field.name for field in fields if field.required],
        )
        self.within.pop()
        return found | _described(cls)


def closed_object(properties: Schema, required: list[str]) -> Schema:
    """Return the schema of an object that has these properties and no other."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _given(cls: type) -> set[str]:
    """Return the names of the fields that a caller may give."""
    if attrs.has(cls):
        return {field.name for field in attrs.fields(cls) if field.init}
    return {field.name for field in dataclasses.fields(cls) if field.init}


def _constraints(kind: types.Type, keywords: dict[str, str]) -> Schema:
    found = {keyword: getattr(kind, name, None) for name, keyword in keywords.items()}
    return {keyword: value for keyword, value in found.items() if value is not None}


def _choice(values: Iterable[Any], cls: type | None = None) -> Schema:
    found = list(values)
    kinds = {type(value) for value in found}
    typed = {"type": "string"} if kinds == {str} else {"type": "integer"} if kinds == {int} else {}
    return {**typed, "enum": found, **({} if cls is None else _described(cls))}


def _described(cls: type) -> Schema:
    """Return the docstring of a class, but for those that Python writes itself."""
    text = inspect.cleandoc(cls.__doc__ or "")
    generated = text.startswith(f"{cls.__name__}(") or text == "An enumeration."
    return {} if generated or not text else {"description": text}
