"""Requests for consent and requests to the host: each is stored before anyone sees it, and gets exactly one answer."""

from collections.abc import Iterable

from roder_trio.logic import policy
from roder_trio.logic.thread.draft import Draft, Emit
from roder_trio.logic.thread.facts import ApprovalTerms, Decision, Facts
from roder_trio.logic.thread.state import OpenTurn, ThreadState
from roder_trio.schema.command import (
    Answer,
    ChangePolicy,
    Effect,
    RecordToolEvents,
    Remember,
    RequestApproval,
    RequestExternal,
    ResolveApproval,
    ResolveExternal,
    SetMode,
)
from roder_trio.schema.event import (
    ApprovalRequested,
    ApprovalResolved,
    ExternalToolRequested,
    ExternalToolResolved,
    PolicyModeChanged,
)
from roder_trio.schema.policy import ApprovalOutcome, ExternalOutcome, PolicyDecision


def record_tool_events(state: ThreadState, report: RecordToolEvents, facts: Facts) -> Decision:
    """Store what happened to a call before it ran."""
    if not state.is_open(report.turn_id):
        return Decision()
    return Decision(tuple(Emit(event, report.turn_id) for event in report.events))


def request_approval(state: ThreadState, report: RequestApproval, facts: Facts) -> Decision:
    """Decide a call once more, with the mode of now; only one that still has to ask becomes a request."""
    ruling = policy.decide(facts.policy_mode, report.spec, facts.config.denied_tools, report.verdicts)
    if ruling.decision is not PolicyDecision.ASK or not _may_ask(state, report.turn_id, facts):
        return Decision(reply=ruling)
    requested = ApprovalRequested(report.approval_id, report.call_id, report.spec.name, report.arguments, ruling.reason)
    terms = ApprovalTerms(report.spec, report.verdicts)
    return Decision((Emit(requested, report.turn_id),), (Remember(report.approval_id, terms),), reply=ruling)


def request_external(state: ThreadState, report: RequestExternal, facts: Facts) -> Decision:
    """Ask the host to run a call."""
    if not _may_ask(state, report.turn_id, facts):
        return Decision()
    requested = ExternalToolRequested(report.request_id, report.call_id, report.name, report.arguments)
    return Decision((Emit(requested, report.turn_id),))


def resolve_approval(state: ThreadState, command: ResolveApproval, facts: Facts) -> Decision:
    """Answer a request for consent, if it is pending."""
    turn = _turn_with(state, command.approval_id, ApprovalRequested, facts)
    if turn is None:
        return Decision(reply=False)
    resolved = Emit(ApprovalResolved(command.approval_id, command.outcome), turn.turn_id)
    return Decision((resolved,), (Answer(command.approval_id, command.outcome),), reply=True)


def resolve_external(state: ThreadState, command: ResolveExternal, facts: Facts) -> Decision:
    """Answer a request to run a call, if it is pending."""
    turn = _turn_with(state, command.request_id, ExternalToolRequested, facts)
    if turn is None:
        return Decision(reply=False)
    resolved = Emit(ExternalToolResolved(command.request_id, command.outcome), turn.turn_id)
    return Decision((resolved,), (Answer(command.request_id, command.output),), reply=True)


def change_policy(state: ThreadState, command: ChangePolicy, facts: Facts) -> Decision:
    """Decide every pending request for consent again, by the mode of now; policies are not asked again."""
    drafts: list[Draft] = []
    effects: list[Effect] = []
    mode = facts.policy_mode
    if command.mode is not None:
        mode = command.mode
        drafts.append(Emit(PolicyModeChanged(mode, facts.policy_mode)))
        effects.append(SetMode(mode))
    for approval_id, terms in facts.terms.items():
        turn = _turn_with(state, approval_id, ApprovalRequested, facts)
        outcome = policy.redecide(mode, terms.spec, facts.config.denied_tools, terms.verdicts)
        if turn is not None and outcome is not None:
            drafts.append(Emit(ApprovalResolved(approval_id, outcome), turn.turn_id))
            effects.append(Answer(approval_id, outcome))
    return Decision(tuple(drafts), tuple(effects))


def cancelled_requests(turn: OpenTurn) -> Iterable[Draft]:
    """Return what resolves all that is pending when a turn ends early."""
    for request_id, request in turn.pending.items():
        if isinstance(request, ApprovalRequested):
            yield Emit(ApprovalResolved(request_id, ApprovalOutcome.CANCELLED), turn.turn_id)
        else:
            yield Emit(ExternalToolResolved(request_id, ExternalOutcome.CANCELLED), turn.turn_id)


def _may_ask(state: ThreadState, turn_id: str, facts: Facts) -> bool:
    """Whether anyone is still asked for a turn; once it was told to stop its calls wait for nothing any more."""
    return state.is_open(turn_id) and facts.cause is None


def _turn_with(state: ThreadState, request_id: str, kind: type, facts: Facts) -> OpenTurn | None:
    """Return the turn in which a request waits; None if none does, or if the turn was told to stop."""
    turn = state.open_turn
    waits = turn is not None and isinstance(turn.pending.get(request_id), kind)
    return turn if waits and facts.cause is None else None
