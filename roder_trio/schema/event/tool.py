"""Events of tool calls, of policy and of hooks."""

from typing import ClassVar

import attrs

from roder_trio.schema.policy import ApprovalOutcome, ExternalOutcome, PolicyDecision, PolicyMode


@attrs.frozen
class ToolArgumentsRewritten:
    """A hook changed a call's arguments: `arguments`, JSON text, is what ran in place of what the model wrote."""

    kind: ClassVar[str] = "tool.arguments_rewritten"
    durable: ClassVar[bool] = True
    call_id: str
    arguments: str
    by: str


@attrs.frozen
class ToolCallRepaired:
    """A call's arguments were a JSON string that held an object; they were unwrapped."""

    kind: ClassVar[str] = "tool.repaired"
    durable: ClassVar[bool] = False
    call_id: str


@attrs.frozen
class ToolStarted:
    """A tool begins to run."""

    kind: ClassVar[str] = "tool.started"
    durable: ClassVar[bool] = False
    call_id: str
    name: str


@attrs.frozen
class ToolProgress:
    """A running tool tells how far it is."""

    kind: ClassVar[str] = "tool.progress"
    durable: ClassVar[bool] = False
    call_id: str
    text: str


@attrs.frozen
class ToolFinished:
    """A call has its result, whether it ran or was refused."""

    kind: ClassVar[str] = "tool.finished"
    durable: ClassVar[bool] = False
    call_id: str
    is_error: bool


@attrs.frozen
class ToolOutputTruncated:
    """A result was cut; it had this many lines and characters."""

    kind: ClassVar[str] = "tool.output_truncated"
    durable: ClassVar[bool] = False
    call_id: str
    lines: int
    characters: int


@attrs.frozen
class PolicyModeChanged:
    """A policy mode changed: a thread's own, or the runtime's, which is not stored. Nothing is read back from it."""

    kind: ClassVar[str] = "policy.mode_changed"
    durable: ClassVar[bool] = True
    mode: PolicyMode
    previous: PolicyMode


@attrs.frozen
class PolicyDecided:
    """What policy says of a call; `rule` names what decided."""

    kind: ClassVar[str] = "policy.decided"
    durable: ClassVar[bool] = False
    call_id: str
    decision: PolicyDecision
    reason: str = ""
    rule: str = ""


@attrs.frozen
class HookFailed:
    """A hook raised, overran or returned nonsense; what it was asked about goes on."""

    kind: ClassVar[str] = "hook.failed"
    durable: ClassVar[bool] = False
    hook: str
    point: str
    message: str


@attrs.frozen
class ApprovalRequested:
    """A call waits for someone's consent, which `resolve_approval` gives or refuses; `arguments` is JSON text."""

    kind: ClassVar[str] = "approval.requested"
    durable: ClassVar[bool] = True
    approval_id: str
    call_id: str
    name: str
    arguments: str
    reason: str = ""


@attrs.frozen
class ApprovalResolved:
    """A request for consent has its one answer."""

    kind: ClassVar[str] = "approval.resolved"
    durable: ClassVar[bool] = True
    approval_id: str
    outcome: ApprovalOutcome


@attrs.frozen
class ExternalToolRequested:
    """The host is to run a call and to give its result by `resolve_external_tool`; `arguments` is JSON text."""

    kind: ClassVar[str] = "external_tool.requested"
    durable: ClassVar[bool] = True
    request_id: str
    call_id: str
    name: str
    arguments: str


@attrs.frozen
class ExternalToolResolved:
    """A request to the host has its one answer."""

    kind: ClassVar[str] = "external_tool.resolved"
    durable: ClassVar[bool] = True
    request_id: str
    outcome: ExternalOutcome
