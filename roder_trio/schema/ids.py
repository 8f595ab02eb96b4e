"""Identifiers are opaque, non-empty strings; no code parses one."""

import enum
import re
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import attrs

ThreadId: TypeAlias = str
AttemptId: TypeAlias = str


class Unset(enum.Enum):
    """The type of `UNSET`, which says "keep what is there" where None has a meaning of its own."""

    UNSET = "unset"


class Choice(enum.Enum):
    """An enumeration that hosts may give by its texts; a text that it lacks is told with those that it has."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise ValueError(f"a {cls.__name__} is one of {', '.join(repr(each.value) for each in cls)}, not {value!r}")


UNSET: Final = Unset.UNSET
UnsetType: TypeAlias = Literal[Unset.UNSET]


def is_text(instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    """Check a field that hosts and engines hand in, so that nothing later meets a text that is none."""
    if not isinstance(value, str):
        raise TypeError(f"{attribute.name} must be text, not {type(value).__name__}")


def is_text_or_none(instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    """As `is_text`, for a field that may be None."""
    if value is not None:
        is_text(instance, attribute, value)


MAX_ID_LENGTH = 512

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def is_valid_id(value: object) -> bool:
    """Whether `value` can be an id: 1 to 512 code points, no NUL, no lone surrogate, which would not come back."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_LENGTH or "\0" in value:
        return False
    return value.isascii() or _LONE_SURROGATE.search(value) is None


def as_tuple(values: Iterable[Any]) -> tuple[Any, ...]:
    """Convert a field to a tuple; `tuple` itself, as a converter, is a type that checkers can't solve."""
    return tuple(values)
