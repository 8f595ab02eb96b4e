"""Tools as they are declared, called and answered."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from roder_trio.errors import ToolDefinitionError
from roder_trio.schema.ids import as_tuple, is_text
from roder_trio.schema.policy import PolicyMode
from roder_trio.schema.transcript import Image

EFFECTS = frozenset({"read", "write", "process", "network", "thread"})
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _effects(value: Iterable[str] | None) -> frozenset[str] | None:
    return None if value is None else frozenset(value)


@attrs.frozen(kw_only=True)
class ToolSpec:
    """What a tool is called, what it takes, and what it may touch.

    `parameters` is a JSON schema of an object. `effects` is a subset of read, write, process, network, and thread for
    what only changes the thread itself; None means undeclared, which counts as write, process and network. `timeout` is
    in seconds; an "exclusive" call runs while no other call of its step does. A freeform tool takes its one string
    argument, `freeform_field`, raw.
    """

    name: str = attrs.field(validator=is_text)
    description: str = attrs.field(validator=is_text)
    parameters: Mapping[str, Any]
    effects: frozenset[str] | None = attrs.field(default=None, converter=_effects)
    concurrency: Literal["parallel", "exclusive"] = "parallel"
    timeout: float | None = None
    freeform_field: str | None = None

    def __attrs_post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ToolDefinitionError(f"The tool name {self.name!r} is not 1 to 64 letters, digits, '_' or '-'.")
        if self.effects is not None and not self.effects <= EFFECTS:
            raise ToolDefinitionError(f"The effects of {self.name!r} must be among {', '.join(sorted(EFFECTS))}.")
        if self.concurrency not in ("parallel", "exclusive"):
            raise ToolDefinitionError(f"The concurrency of {self.name!r} must be 'parallel' or 'exclusive'.")
        if not isinstance(self.parameters, Mapping) or self.parameters.get("type") != "object":
            raise ToolDefinitionError(f"The parameters of {self.name!r} must be a JSON schema of type object.")
        if self.timeout is not None and not self.timeout > 0:
            raise ToolDefinitionError(f"The timeout of {self.name!r} must be above 0 seconds, or None.")


@attrs.frozen(kw_only=True)
class ToolContext:
    """For whom a tool runs; `deadline` is in trio's time, `report_progress` shows a text at once."""

    thread_id: str
    turn_id: str
    call_id: str
    workspace: Path | None = None
    policy_mode: PolicyMode = PolicyMode.ACCEPT_ALL
    deadline: float | None = None
    report_progress: Callable[[str], None] = lambda text: None


@attrs.frozen
class ToolOutput:
    """What a tool gives back. Only `text` and `images` reach the model; `display_payload` is JSON for interfaces."""

    text: str = attrs.field(validator=is_text)
    is_error: bool = False
    display_payload: Any = None
    images: tuple[Image, ...] = attrs.field(default=(), converter=as_tuple)
