"""Which tools a request offers, and how: in the order of their names, with schemas whose bytes never change."""

from collections.abc import Collection, Iterable

from roder_trio.errors import DuplicateTool
from roder_trio.logic.json_schema import ordered
from roder_trio.schema.inference import InferenceCapabilities, ModelDescriptor, ToolDefinition
from roder_trio.schema.tool import ToolSpec


def is_permitted(name: str, *allowlists: Collection[str]) -> bool:
    """Whether every allowlist has the tool; an empty one has all."""
    return all(not names or name in names for names in allowlists)


def takes_tools(capabilities: InferenceCapabilities, row: ModelDescriptor | None) -> bool:
    """Whether an engine takes tools for a model; a row without any `supports` forbids nothing."""
    return capabilities.tool_calls and (row is None or not row.supports or "tools" in row.supports)


def offered(specs: Iterable[ToolSpec], *allowlists: Collection[str]) -> tuple[ToolDefinition, ...]:
    """Return the definitions of the tools that the allowlists permit, in name order."""
    return tuple(
        definition(spec) for spec in sorted(specs, key=lambda spec: spec.name) if is_permitted(spec.name, *allowlists)
    )


def definition(spec: ToolSpec) -> ToolDefinition:
    """Return a tool as a request has it."""
    return ToolDefinition(spec.name, spec.description, ordered(spec.parameters), spec.freeform_field)


def check_names(specs: Iterable[ToolSpec]) -> None:
    """Check that no two tools have one name. Raises DuplicateTool."""
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise DuplicateTool(spec.name)
        seen.add(spec.name)
