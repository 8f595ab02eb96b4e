"""From the string of arguments that a model wrote to the values that its tool is run with, or a refusal it can act on.

The text is parsed once. An object inside a JSON string is unwrapped, once; nothing else is repaired. The text that a
freeform tool was given raw stands under `input`, and becomes its one argument. A refusal names its class first, then
what was wanted and what came.
"""

from collections.abc import Iterable
from typing import Any, Final

import attrs

from roder_trio.logic import strict_json
from roder_trio.logic.json_schema import Validate
from roder_trio.logic.tool.refusal import INVALID_ARGUMENTS, UNKNOWN_TOOL
from roder_trio.logic.tool.shape import closest, findings
from roder_trio.schema.tool import ToolSpec

INVALID_JSON: Final = "invalid_json"
REPAIR_REJECTED: Final = "schema_repair_rejected"
SCHEMA_VIOLATION: Final = "schema_violation"
_CUT: Final = frozenset({"length", "content_filter"})
"""Finish reasons after which empty arguments may be the beginning of others."""


@attrs.frozen
class Checked:
    """Arguments that fit the schema; `repaired` says that they came wrapped in a JSON string."""

    arguments: dict[str, Any]
    repaired: bool = False


@attrs.frozen
class Refused:
    """Why a call isn't run: the class, and the text of its error result."""

    klass: str
    text: str


def check(spec: ToolSpec, text: str, finish_reason: str | None, validate: Validate) -> Checked | Refused:
    """Check the arguments of a call of `spec`; `finish_reason` is the normalised one of the step."""
    checked = _check(spec, text, finish_reason, validate)
    if isinstance(checked, Refused) and finish_reason == "length":
        return attrs.evolve(checked, text=f"{checked.text}; the output was cut")
    return checked


def unknown_tool(name: str, offered: Iterable[str]) -> Refused:
    """Refuse a call of a tool that doesn't exist."""
    return Refused(UNKNOWN_TOOL, f"{UNKNOWN_TOOL}: there is no tool {name!r}{_hint(name, offered)}")


def forbidden_tool(name: str, offered: Iterable[str]) -> Refused:
    """Refuse a call of a tool that stands outside the allowlists."""
    return Refused(UNKNOWN_TOOL, f"{UNKNOWN_TOOL}: the tool {name!r} is not permitted here{_hint(name, offered)}")


def _hint(name: str, offered: Iterable[str]) -> str:
    names = sorted(set(offered) - {name})
    meant = closest(name, names)
    if meant is not None:
        return f"; did you mean {meant!r}?"
    return f"; the tools are: {', '.join(names)}" if names else ""


def _check(spec: ToolSpec, text: str, finish_reason: str | None, validate: Validate) -> Checked | Refused:
    if not text.strip():
        if finish_reason in _CUT:
            return _refused(INVALID_JSON, "the arguments are empty, and the output was not finished")
        text = "{}"
    try:
        value = strict_json.parse(text)
    except strict_json.JsonFlaw as flaw:
        return _refused(INVALID_JSON, str(flaw))
    repaired = isinstance(value, str)
    if repaired:
        value = _unwrapped(value)
        if value is None:
            return _refused(REPAIR_REJECTED, "an object is wanted; a JSON string came that does not hold one")
    if spec.freeform_field is not None and isinstance(value, dict) and value.keys() == {"input"}:
        value = {spec.freeform_field: value["input"]}
    found = findings(spec.parameters, value)
    if found:
        texts = [f"{finding.klass}: {finding.text}" for finding in found]
        return Refused(found[0].klass, f"{INVALID_ARGUMENTS}{'; '.join(texts)}")
    violations = validate(value)
    if violations:
        return _refused(SCHEMA_VIOLATION, "; ".join(map(str, violations)))
    return Checked(value, repaired)


def _refused(klass: str, what: str) -> Refused:
    return Refused(klass, f"{INVALID_ARGUMENTS}{klass}: {what}")


def _unwrapped(text: str) -> dict[str, Any] | None:
    try:
        value = strict_json.parse(text)
    except strict_json.JsonFlaw:
        return None
    return value if isinstance(value, dict) else None
