"""A turn's structured answer: the schema it must fit, how it is asked for, and what is said of one that doesn't fit.

An engine with `structured_output` gets the schema as its response format; any other is offered the tool `final_answer`.
All violations of an answer are collected, so that one repair round can name them all.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, is_typeddict

import attrs

from roder_trio.errors import ToolDefinitionError
from roder_trio.logic import strict_json
from roder_trio.logic.json_schema import Validate, compiled, ordered
from roder_trio.logic.type_schema import schema_of
from roder_trio.schema.inference import InferenceCapabilities, ModelDescriptor, ToolChoice, ToolDefinition
from roder_trio.schema.transcript import ToolCall, ToolResult, UserMessage

FINAL_ANSWER: Final = "final_answer"
FORCED: Final = ToolChoice("specific", FINAL_ANSWER)
"""The tool choice of the round after a step that would have finished without the answer."""
ACCEPTED: Final = "accepted"
INVALID: Final = "invalid output"
REPLACED: Final = "not taken: a later call of the same step gave the answer"
NOT_THE_END: Final = "not taken: the turn did not end with it; give the answer again when all else is done"
LACKING: Final = ("the answer was not given: call the tool final_answer",)
"""The violations of a step that had to call `final_answer` and did not."""
_UNFINISHED: Final = frozenset({"length", "content_filter", "refusal"})

Structure = Callable[[Any], tuple[Any, tuple[str, ...]]]
"""Makes the value of the type that was asked for, or says what doesn't fit."""


@attrs.frozen(eq=False)
class OutputForm:
    """What an answer must be: `kind` is the type that it becomes, None where the parsed value is the output."""

    schema: Mapping[str, Any]
    validate: Validate
    kind: Any = None

    @property
    def tool(self) -> ToolDefinition:
        """The tool by which an engine without structured output answers."""
        return ToolDefinition(
            FINAL_ANSWER, "Give the final answer. Call this once, when all else is done.", self.schema
        )


@attrs.frozen
class Answer:
    """An answer as it was read: the output, or the violations."""

    value: Any = None
    violations: tuple[str, ...] = ()


def output_form(output_type: Any) -> OutputForm:
    """Return the form of an attrs class, a dataclass, a `TypedDict` or an object's JSON schema. Raises TypeError."""
    kind = None if isinstance(output_type, Mapping) else output_type
    schema = ordered(output_type if kind is None else _schema_of_class(kind))
    if schema.get("type") != "object":
        raise TypeError("output_type must be a JSON schema whose type is object, or a class that has one")
    try:
        return OutputForm(schema, compiled(schema, "output_type"), kind)
    except ToolDefinitionError as error:
        raise TypeError(str(error)) from error


def takes_format(capabilities: InferenceCapabilities, model: ModelDescriptor | None) -> bool:
    """Whether an engine takes a response format for a model; a row without any `supports` forbids nothing."""
    knows = model is None or not model.supports or "structured" in model.supports
    return capabilities.structured_output and knows


def _schema_of_class(kind: Any) -> dict[str, Any]:
    is_class = isinstance(kind, type) and (attrs.has(kind) or dataclasses.is_dataclass(kind) or is_typeddict(kind))
    if not is_class:
        raise TypeError("output_type must be an attrs class, a dataclass, a TypedDict or a JSON schema of an object")
    return schema_of(kind, answer=True)


def read_answer(form: OutputForm, text: str, finish_reason: str | None, structure: Structure) -> Answer:
    """Read the raw text of an answer; `structure` is asked only for a value that fits the schema."""
    cut = (f"the answer was not finished: {finish_reason}",) if finish_reason in _UNFINISHED else ()
    try:
        value = strict_json.parse(text)
    except strict_json.JsonFlaw as flaw:
        return Answer(violations=(*cut, str(flaw)))
    found = tuple(map(str, form.validate(value)))
    if not found and form.kind is not None:
        value, found = structure(value)
    return Answer(violations=(*cut, *found)) if cut or found else Answer(value)


def not_taken(calls: Iterable[ToolCall], why: str) -> tuple[ToolResult, ...]:
    """Return the results of calls whose answers don't count."""
    return tuple(ToolResult(call.id, call.name, why, is_error=True) for call in calls)


def repair_message(violations: Iterable[str]) -> UserMessage:
    """Return the message that begins a repair round."""
    listed = "\n".join(f"- {violation}" for violation in violations)
    return UserMessage(
        f"The answer does not fit the schema that was asked for:\n{listed}\nGive the whole answer again."
    )


def output_error(violations: Iterable[str]) -> str:
    """Return what a turn says that fails because its last answer was invalid."""
    return f"The answer does not fit the output type: {'; '.join(violations)}"
