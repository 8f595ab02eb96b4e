"""Structured answers: their schemas, how they are read, and what is said of one that doesn't fit."""

import dataclasses
import enum
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import attrs
import msgspec
import pytest

from roder_trio.codec.structure import structure
from roder_trio.logic.output import (
    FORCED,
    LACKING,
    Answer,
    OutputForm,
    output_error,
    output_form,
    read_answer,
    repair_message,
)
from roder_trio.logic.type_schema import schema_of
from roder_trio.schema.inference import ToolChoice, ToolDefinition


@attrs.frozen
class Count:
    n: int


class Colour(enum.Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1.5


@attrs.frozen
class Report:
    """A report.

    With details.
    """

    title: str
    counts: tuple[Count, ...]
    colour: Colour = Colour.RED
    level: Level | None = None
    notes: dict[str, list[str]] = attrs.field(factory=dict)
    total: float = attrs.field(init=False, default=0.0)


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0
    length: float = dataclasses.field(init=False, default=0.0)


class Options(TypedDict):
    name: str
    size: NotRequired[Literal["small", "large"]]


@attrs.frozen
class Node:
    children: "list[Node]"


@attrs.frozen
class Positive:
    n: int = attrs.field()

    @n.validator
    def _check(self, attribute: object, value: int) -> None:
        if value <= 0:
            raise ValueError("n must be above 0")


class Pair(NamedTuple):
    left: int


COUNT_SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
POINT_SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
    "required": ["x"],
    "additionalProperties": False,
}
OPTIONS_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "string", "enum": ["large", "small"]}},
    "required": ["name"],
    "additionalProperties": False,
}


def read(form: OutputForm, text: str, finish_reason: str | None = "stop") -> Answer:
    return read_answer(form, text, finish_reason, lambda value: structure(value, form.kind))


# -- schemas of types --------------------------------------------------------------------------------------------------

SCHEMAS: list[tuple[Any, dict[str, Any]]] = [
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (None, {"type": "null"}),
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (Literal[1, 2], {"type": "integer", "enum": [1, 2]}),
    (Literal["a", 1], {"enum": [1, "a"]}),
    (Colour, {"type": "string", "enum": ["red", "blue"], "description": "A colour."}),
    (Level, {"type": "integer", "enum": [1, 2]}),
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    (None | str, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    (Count, COUNT_SCHEMA),
    (Annotated[str, msgspec.Meta(min_length=0, pattern="^a")], {"type": "string", "minLength": 0, "pattern": "^a"}),
    (Annotated[int, msgspec.Meta(ge=1, lt=9)], {"type": "integer", "minimum": 1, "exclusiveMaximum": 9}),
    (Annotated[list[str], msgspec.Meta(max_length=3)], {"type": "array", "items": {"type": "string"}, "maxItems": 3}),
]


@pytest.mark.parametrize(("kind", "schema"), SCHEMAS)
def test_a_type_has_a_schema_for_tools_and_for_answers(kind: Any, schema: dict[str, Any]) -> None:
    assert schema_of(kind) == schema
    assert schema_of(kind, answer=True) == schema


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (Point, POINT_SCHEMA),
        (Options, OPTIONS_SCHEMA),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
    ],
)
def test_some_types_are_for_answers_only(kind: Any, schema: dict[str, Any]) -> None:
    assert schema_of(kind, answer=True) == schema
    with pytest.raises(TypeError):
        schema_of(kind)


@pytest.mark.parametrize(
    "kind",
    [
        Any,
        object,
        bytes,
        set[int],
        tuple[int, str],
        list,
        dict,
        dict[int, int],
        int | str,
        int | str | None,
        Pair,
        Mixed,
        Node,
        "Nowhere",
        Literal[b"a"],
    ],
)
def test_other_types_have_no_schema(kind: Any) -> None:
    with pytest.raises(TypeError):
        schema_of(kind, answer=True)


def test_a_class_is_written_whole_and_closed_with_its_docstring() -> None:
    assert schema_of(Report, answer=True) == {
        "type": "object",
        "description": "A report.\n\nWith details.",
        "properties": {
            "title": {"type": "string"},
            "counts": {"type": "array", "items": COUNT_SCHEMA},
            "colour": {"type": "string", "enum": ["red", "blue"], "description": "A colour."},
            "level": {"anyOf": [{"type": "integer", "enum": [1, 2]}, {"type": "null"}]},
            "notes": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
        },
        "required": ["title", "counts"],
        "additionalProperties": False,
    }


# -- what may be asked for ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "schema"), [(Count, COUNT_SCHEMA), (Point, POINT_SCHEMA), (Options, OPTIONS_SCHEMA)])
def test_a_class_can_be_asked_for(kind: Any, schema: dict[str, Any]) -> None:
    form = output_form(kind)
    assert form.schema == schema
    assert form.kind is kind


def test_a_schema_of_an_object_can_be_asked_for() -> None:
    form = output_form({"properties": {"b": {}, "a": {}}, "type": "object"})
    assert form.kind is None
    assert list(form.schema) == ["type", "properties"]
    assert read(form, '{"a": [1]}') == Answer({"a": [1]})


@pytest.mark.parametrize(
    "kind",
    [
        int,
        list[int],
        Any,
        Pair,
        Node,
        None,
        "Count",
        Count(1),
        {"type": "array"},
        {},
        {"type": "object", "required": 3},
    ],
)
def test_what_is_no_object_can_not_be_asked_for(kind: Any) -> None:
    with pytest.raises(TypeError):
        output_form(kind)


def test_the_tool_of_the_answer_has_the_schema() -> None:
    tool = output_form(Count).tool
    assert isinstance(tool, ToolDefinition)
    assert (tool.name, tool.parameters) == ("final_answer", COUNT_SCHEMA)
    assert ToolChoice("specific", "final_answer") == FORCED


# -- reading an answer -------------------------------------------------------------------------------------------------

ANSWERS: list[tuple[Any, str, Any]] = [
    (Count, '{"n": 1}', Count(1)),
    (Point, '{"x": 1}', Point(1.0)),
    (Options, '{"name": "a", "size": "large"}', {"name": "a", "size": "large"}),
    (
        Report,
        '{"title": "t", "counts": [{"n": 1}], "colour": "blue", "level": 2, "notes": {"a": ["b"]}}',
        Report("t", (Count(1),), Colour.BLUE, Level.HIGH, {"a": ["b"]}),
    ),
    (COUNT_SCHEMA, '{"n": 1}', {"n": 1}),
]


@pytest.mark.parametrize(("kind", "text", "value"), ANSWERS)
def test_an_answer_that_fits_becomes_the_value(kind: Any, text: str, value: Any) -> None:
    assert read(output_form(kind), text) == Answer(value)


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        (Count, '{"n": "x", "m": 2}', ["$.n", "'m'"]),
        (Count, "{}", ['"n"']),
        (Count, "[]", ["$"]),
        (Count, '{"n": 1.0}', ["$.n", "float"]),
        (Count, '{"n": true}', ["$.n"]),
        (Count, "the answer is 1", ["not valid JSON at character 0"]),
        (Count, "", ["not valid JSON"]),
        (Positive, '{"n": 0}', ["n must be above 0"]),
        (Report, '{"title": 1, "counts": [{}], "colour": "green"}', ["$.title", "$.counts[0]", "$.colour"]),
    ],
)
def test_all_violations_of_an_answer_are_named(kind: Any, text: str, named: list[str]) -> None:
    answer = read(output_form(kind), text)
    joined = "\n".join(answer.violations)
    assert answer.value is None
    assert [part for part in named if part not in joined] == []


@pytest.mark.parametrize("reason", ["length", "content_filter", "refusal"])
def test_an_unfinished_answer_is_invalid_even_if_it_fits(reason: str) -> None:
    form = output_form(Count)
    assert read(form, '{"n": 1}', reason) == Answer(violations=(f"the answer was not finished: {reason}",))
    assert len(read(form, "{", reason).violations) == 2
    assert len(read(form, '{"n": "x"}', reason).violations) == 2


def test_a_repair_and_a_failure_name_every_violation() -> None:
    assert repair_message(["$.n: type", "$: 'm'"]).text == (
        "The answer does not fit the schema that was asked for:\n- $.n: type\n- $: 'm'\nGive the whole answer again."
    )
    assert output_error(["$.n: type", "$: 'm'"]) == "The answer does not fit the output type: $.n: type; $: 'm'"
    assert "final_answer" in output_error(LACKING)


# -- values of a host's types ------------------------------------------------------------------------------------------


class Stubborn:
    def __attrs_post_init__(self) -> None:
        raise LookupError


@attrs.frozen
class Refuses(Stubborn):
    n: int


@pytest.mark.parametrize(
    ("value", "kind", "told"),
    [
        ("x", int, "expected an integer, not str @ $"),
        (True, int, "expected an integer, not bool @ $"),
        (True, float, "expected a number, not bool @ $"),
        (1, str, "expected text, not int @ $"),
        (1, bool, "expected true or false, not int @ $"),
        ("x", list[int], "expected an integer, not str @ $[0]"),
        ({}, Count, "'n' is missing"),
        ({"n": 1, "m": 2}, Count, "m"),
        ("green", Colour, "'green' is not a valid Colour @ $"),
        ({"n": 1}, Refuses, "LookupError"),
    ],
)
def test_a_value_that_does_not_fit_is_told_and_not_coerced(value: Any, kind: Any, told: str) -> None:
    made, misfits = structure(value, kind)
    assert made is None
    assert told in "; ".join(misfits)


def test_an_integer_is_a_number() -> None:
    made, misfits = structure(3, float)
    assert (made, type(made), misfits) == (3.0, float, ())
