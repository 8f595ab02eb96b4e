"""Identifiers are opaque, non-empty strings; no code parses one."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

ThreadId: TypeAlias = str
TurnId: TypeAlias = str
AttemptId: TypeAlias = str
GoalId: TypeAlias = str
ItemId: TypeAlias = str

JSON: TypeAlias = Mapping[str, "JSON"] | Sequence["JSON"] | str | int | float | bool | None
"""What a payload may hold. Every JSON value is one of these; producers hand in plain dicts and lists."""


class Unset(enum.Enum):
    """The type of `UNSET`, which says "keep what is there" where None has a meaning of its own."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
UnsetType: TypeAlias = Literal[Unset.UNSET]

MAX_ID_LENGTH = 512


def is_valid_id(value: object) -> bool:
    """Whether `value` can be the id of a thread: 1 to 512 code points, none of them NUL."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH and "\0" not in value


def as_tuple(values: Iterable[Any]) -> tuple[Any, ...]:
    """Convert a field to a tuple; `tuple` itself, as a converter, is a type that checkers can't solve."""
    return tuple(values)
