"""Consent: what becomes of a call, by the mode, the tool's effects and what the `Policy` ports said.

The order is `denied_tools`, final in every mode; then the table; then the ports, which only make it stricter. Names and
arguments are never looked at. This is consent, not a sandbox. A mode change decides again, without asking a port again.
"""

from collections.abc import Collection, Iterable
from typing import Final

import attrs

from roder_trio.logic.tool.refusal import POLICY_DENIED
from roder_trio.schema.policy import ApprovalOutcome, PolicyDecision, PolicyMode, Verdict
from roder_trio.schema.tool import ToolSpec

_ALLOWED, _AUTO, _ASK, _DENIED = PolicyDecision
STRICTNESS: Final = {decision: rank for rank, decision in enumerate(PolicyDecision)}
UNDECLARED: Final = frozenset({"write", "process", "network"})
"""What a tool that declares no effects counts as."""

TABLE: Final = {
    PolicyMode.DEFAULT: {"read": _ALLOWED, "thread": _ALLOWED, "network": _ASK, "process": _ASK, "write": _ASK},
    PolicyMode.ACCEPT_ALL: {"read": _ALLOWED, "thread": _ALLOWED, "network": _AUTO, "process": _AUTO, "write": _AUTO},
    PolicyMode.PLAN: {"read": _ALLOWED, "thread": _DENIED, "network": _ASK, "process": _DENIED, "write": _DENIED},
    PolicyMode.BYPASS: {"read": _ALLOWED, "thread": _ALLOWED, "network": _AUTO, "process": _AUTO, "write": _AUTO},
}


@attrs.frozen
class Ruling:
    """A decision about a call, why, and which rule made it: `denied_tools`, `table` or `policy`."""

    decision: PolicyDecision
    reason: str
    rule: str

    @property
    def refusal(self) -> str:
        """The text of the result of a call that this denies."""
        return f"{POLICY_DENIED}{self.reason}"


def decide(
    mode: PolicyMode,
    spec: ToolSpec,
    denied_tools: Collection[str] = (),
    verdicts: Iterable[Verdict | None] = (),
) -> Ruling:
    """Decide about a call of the tool `spec`; `verdicts` are those of the ports, in the order of registration."""
    if spec.name in denied_tools:
        return Ruling(_DENIED, f"{spec.name!r} is among the denied tools", "denied_tools")
    ruling = by_table(mode, spec.effects)
    for verdict in verdicts:
        if verdict is None:
            continue
        decision = verdict.decision
        if mode is PolicyMode.BYPASS and decision is _ASK:
            decision = _AUTO
        if STRICTNESS[decision] > STRICTNESS[ruling.decision]:
            ruling = Ruling(decision, verdict.reason or f"a policy says {decision.value!r}", "policy")
    return ruling


def by_table(mode: PolicyMode, effects: Collection[str] | None) -> Ruling:
    """Return the strictest cell of a tool's effects; None is undeclared."""
    row = TABLE[mode]
    known = sorted(UNDECLARED if effects is None else effects)
    strictest = max((row[effect] for effect in known), key=STRICTNESS.__getitem__, default=_ALLOWED)
    causes = [effect for effect in known if row[effect] is strictest]
    declared = "undeclared effects, which count as" if effects is None else "effects"
    reason = f"in mode {mode.value!r}, by its {declared} {', '.join(causes)}" if causes else "it has no effects"
    return Ruling(strictest, reason, "table")


def redecide(
    mode: PolicyMode,
    spec: ToolSpec,
    denied_tools: Collection[str] = (),
    verdicts: Iterable[Verdict | None] = (),
) -> ApprovalOutcome | None:
    """Return how a mode change resolves a pending approval, by the verdicts of its call; None: it stays pending."""
    decision = decide(mode, spec, denied_tools, verdicts).decision
    if decision is _ASK:
        return None
    return ApprovalOutcome.POLICY_DENIED if decision is _DENIED else ApprovalOutcome.POLICY_APPROVED
