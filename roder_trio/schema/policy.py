"""Who may run which tool: modes, decisions, and what hooks may answer."""

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from roder_trio.schema.ids import Choice


class PolicyMode(Choice):
    """How much consent a thread's tools need, by the effects that they declare.

    What only reads runs in every mode. DEFAULT asks for what writes, runs processes or uses the network; PLAN asks for
    the network and denies all else, changes of the thread itself too; ACCEPT_ALL asks only where a `Policy` says so;
    BYPASS never asks. What a `Policy` or `denied_tools` denies is denied in every mode.
    """

    DEFAULT = "default"
    ACCEPT_ALL = "accept_all"
    PLAN = "plan"
    BYPASS = "bypass"


class PolicyDecision(Choice):
    """What becomes of a call, from the loosest to the strictest."""

    ALLOWED = "allowed"
    AUTO = "auto"
    ASK = "ask"
    DENIED = "denied"


@attrs.frozen
class Verdict:
    """What a `Policy` says of a call; `decision` may be given as its text."""

    decision: PolicyDecision = attrs.field(converter=PolicyDecision)
    reason: str = ""


@attrs.frozen
class Deny:
    """A hook's answer: the call is not run."""

    reason: str = ""


@attrs.frozen
class Rewrite:
    """A hook's answer: the call is run with these arguments instead."""

    arguments: Mapping[str, Any]


class ApprovalOutcome(enum.Enum):
    """How a request for approval was resolved."""

    APPROVED = "approved"
    DENIED = "denied"
    POLICY_APPROVED = "policy_approved"
    POLICY_DENIED = "policy_denied"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class ExternalOutcome(enum.Enum):
    """How a request to the host to run a tool was resolved."""

    RESOLVED = "resolved"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
