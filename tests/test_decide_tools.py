"""Decisions on calls: what is asked of people and of the host, how it is answered, and what a new mode does to it."""

from typing import Any

import attrs
import pytest

from roder_trio.errors import ThreadNotFound, UnsupportedOption
from roder_trio.logic.policy import Ruling
from roder_trio.logic.thread.decide import answer_of_no_thread
from roder_trio.logic.thread.draft import Emit
from roder_trio.logic.thread.facts import ApprovalTerms, Decision
from roder_trio.logic.thread.recovery import close_open_work
from roder_trio.logic.usage import Ledger
from roder_trio.schema import command as c
from roder_trio.schema.config import RuntimeConfig
from roder_trio.schema.event import (
    ApprovalRequested,
    ApprovalResolved,
    ExternalToolRequested,
    ExternalToolResolved,
    PolicyModeChanged,
    ToolArgumentsRewritten,
    TranscriptItemAppended,
    TurnInterrupted,
)
from roder_trio.schema.inference import InferenceCapabilities
from roder_trio.schema.policy import ApprovalOutcome, ExternalOutcome, PolicyDecision, PolicyMode, Verdict
from roder_trio.schema.tool import ToolOutput, ToolSpec
from roder_trio.schema.transcript import ToolCall, ToolResult
from tests.thread_support import ANSWER, ENGINES, Desk, hydrated, in_phase, parts, start

DEFAULT, ACCEPT_ALL, PLAN, BYPASS = PolicyMode
WRITE, READ, FETCH = (
    ToolSpec(name=name, description="", parameters={"type": "object"}, effects={effect})
    for name, effect in (("change", "write"), ("see", "read"), ("fetch", "network"))
)
CHANGE, ASK = ToolCall("c1", "change", "{}"), ToolCall("c2", "ask_host", "{}")
WHY = "in mode 'default', by its effects write"
REQUESTED = ApprovalRequested("p", "c1", "change", "{}", WHY)
SENT = ExternalToolRequested("x", "c2", "ask_host", "{}")
REWRITTEN = c.RecordToolEvents(
    "u", (ToolArgumentsRewritten("c1", '{"a":1}', "A"), ToolArgumentsRewritten("c1", "{}", "B"))
)


def wants(spec: ToolSpec = WRITE, id: str = "p", call: str = "c1", *verdicts: Verdict) -> c.RequestApproval:
    return c.RequestApproval(
        turn_id="u", approval_id=id, call_id=call, arguments="{}", spec=spec, verdicts=tuple(verdicts)
    )


SEND = c.RequestExternal(turn_id="u", request_id="x", call_id="c2", name="ask_host", arguments="{}")


def called(**facts: Any) -> Desk:
    """Turn u with two stored calls, in mode `default`."""
    desk = Desk(policy_mode=DEFAULT, **facts)
    desk.start()
    desk.do(c.StepEnded("u", (CHANGE, ASK)))
    return desk


def waiting(**facts: Any) -> Desk:
    """The same, with a request for consent and one to the host."""
    desk = called(**facts)
    desk.do(wants())
    desk.do(SEND)
    return desk


def pending(desk: Desk) -> list[str]:
    return [] if desk.state.open_turn is None else list(desk.state.open_turn.pending)


# -- requests ----------------------------------------------------------------------------------------------------------


def test_a_call_that_needs_consent_becomes_a_request_with_its_terms():
    desk, asks = called(), wants(WRITE, "p", "c1", Verdict("auto"))
    ruling = Ruling(PolicyDecision.ASK, WHY, "table")
    terms = ApprovalTerms(WRITE, (Verdict("auto"),))
    assert desk.decide(asks) == Decision((Emit(REQUESTED, "u"),), (c.Remember("p", terms),), reply=ruling)
    assert desk.do(asks) == ruling
    assert (pending(desk), desk.terms) == (["p"], {"p": terms})


@pytest.mark.parametrize(
    ("mode", "spec", "verdicts", "decision"),
    [
        (BYPASS, WRITE, (), "auto"),
        (ACCEPT_ALL, WRITE, (), "auto"),
        (PLAN, WRITE, (), "denied"),
        (DEFAULT, READ, (), "allowed"),
        (BYPASS, READ, (Verdict("ask"),), "auto"),
        (BYPASS, READ, (Verdict("denied"),), "denied"),
    ],
)
def test_a_call_that_needs_no_consent_by_now_shows_no_question(mode, spec, verdicts, decision):
    decided = called().decide(wants(spec, "p", "c1", *verdicts), policy_mode=mode)
    assert (decided.drafts, decided.effects, decided.reply.decision.value) == ((), (), decision)


def test_a_denied_tool_shows_no_question():
    decided = called(config=RuntimeConfig(denied_tools=["change"])).decide(wants())
    assert (decided.drafts, decided.reply.rule) == ((), "denied_tools")


def test_the_host_is_asked_to_run_a_call():
    desk = called()
    assert desk.decide(SEND) == Decision((Emit(SENT, "u"),))
    desk.do(SEND)
    turn = desk.state.open_turn
    assert turn is not None
    assert (turn.pending, set(turn.asked)) == ({"x": SENT}, {"c2"})


def test_what_hooks_rewrote_is_stored_in_one_append_in_order():
    desk = called()
    assert desk.decide(REWRITTEN) == Decision(tuple(Emit(event, "u") for event in REWRITTEN.events))
    desk.do(REWRITTEN)
    assert desk.events[-2:] == list(REWRITTEN.events)


REPORTS = [wants(), SEND, REWRITTEN]


@pytest.mark.parametrize("phase", ["idle", "ended", "compacting"])
@pytest.mark.parametrize("report", REPORTS)
def test_an_old_turn_asks_nobody(phase, report):
    assert in_phase(phase).decide(report, policy_mode=DEFAULT).drafts == ()
    assert in_phase("running").decide(attrs.evolve(report, turn_id="old"), policy_mode=DEFAULT).drafts == ()


@pytest.mark.parametrize("phase", ["told to stop", "interrupted"])
@pytest.mark.parametrize("report", [wants(), SEND])
def test_a_turn_that_was_told_to_stop_asks_nobody(phase, report):
    decided = in_phase(phase).decide(report, policy_mode=DEFAULT)
    assert (decided.drafts, decided.effects) == ((), ())


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [ApprovalOutcome.APPROVED, ApprovalOutcome.DENIED, ApprovalOutcome.TIMED_OUT])
def test_a_request_for_consent_has_one_answer(outcome):
    desk = waiting()
    resolve = c.ResolveApproval("p", outcome)
    resolved = Emit(ApprovalResolved("p", outcome), "u")
    assert desk.decide(resolve) == Decision((resolved,), (c.Answer("p", outcome),), reply=True)
    assert desk.do(resolve) is True
    assert (pending(desk), desk.terms) == (["x"], {})
    for again in ApprovalOutcome:
        assert desk.decide(c.ResolveApproval("p", again)) == Decision(reply=False)


@pytest.mark.parametrize(
    ("outcome", "output"), [(ExternalOutcome.RESOLVED, ToolOutput("here")), (ExternalOutcome.TIMED_OUT, None)]
)
def test_a_request_to_the_host_has_one_answer(outcome, output):
    desk = waiting()
    resolve = c.ResolveExternal("x", outcome, output)
    resolved = Emit(ExternalToolResolved("x", outcome), "u")
    assert desk.decide(resolve) == Decision((resolved,), (c.Answer("x", output),), reply=True)
    assert desk.do(resolve) is True
    assert pending(desk) == ["p"]
    assert desk.decide(resolve) == Decision(reply=False)


@pytest.mark.parametrize(
    "answer", [c.ResolveApproval("x"), c.ResolveApproval("none"), c.ResolveExternal("p"), c.ResolveExternal("none")]
)
def test_an_answer_to_what_nobody_asked_is_none(answer):
    assert waiting().decide(answer) == Decision(reply=False)
    assert in_phase("idle").decide(answer) == Decision(reply=False)


@pytest.mark.parametrize("answer", [c.ResolveApproval("p"), c.ResolveExternal("x")])
def test_a_turn_that_was_told_to_stop_takes_no_answer(answer):
    desk = waiting()
    desk.do(c.Interrupt("u", "user"))
    assert desk.decide(answer) == Decision(reply=False)
    assert pending(desk) == ["p", "x"]


def test_an_answer_whose_append_fails_leaves_the_request_pending():
    desk = waiting()
    before = parts(desk.state)
    for answer in (c.ResolveApproval("p"), c.ResolveExternal("x")):
        desk.do(answer, fails=True)
    assert (parts(desk.state), list(desk.terms)) == (before, ["p"])
    assert [desk.do(c.ResolveApproval("p")), desk.do(c.ResolveExternal("x"))] == [True, True]


def test_a_thread_that_does_not_exist_has_nothing_to_answer_and_no_mode():
    assert answer_of_no_thread("t", c.ResolveApproval("p")) is False
    assert answer_of_no_thread("t", c.ResolveExternal("x")) is False
    with pytest.raises(ThreadNotFound):
        answer_of_no_thread("t", c.ChangePolicy(PLAN))


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "outcomes"),
    [
        (DEFAULT, {}),
        (PLAN, {"p": "policy_denied"}),
        (ACCEPT_ALL, {"p": "policy_approved", "f": "policy_approved"}),
        (BYPASS, {"p": "policy_approved", "f": "policy_approved", "a": "policy_approved"}),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_a_new_mode_decides_again_what_waits_for_consent_and_only_that(mode, outcomes, own):
    desk = waiting()
    desk.do(wants(FETCH, "f", "c3"))
    desk.do(wants(READ, "a", "c4", Verdict("ask")))
    decided = desk.decide(c.ChangePolicy(mode)) if own else desk.decide(c.ChangePolicy(), policy_mode=mode)
    resolved = {id: ApprovalOutcome(outcome) for id, outcome in outcomes.items()}
    first = (Emit(PolicyModeChanged(mode, DEFAULT)),) if own else ()
    begins = (c.SetMode(mode),) if own else ()
    assert decided.drafts == (*first, *(Emit(ApprovalResolved(id, outcome), "u") for id, outcome in resolved.items()))
    assert decided.effects == (*begins, *(c.Answer(id, outcome) for id, outcome in resolved.items()))
    assert decided.reply is None


def test_a_denied_tool_stays_denied_whatever_the_mode_becomes():
    desk = waiting()
    decided = desk.decide(c.ChangePolicy(BYPASS), config=RuntimeConfig(denied_tools=["change"]))
    assert decided.drafts[1:] == (Emit(ApprovalResolved("p", ApprovalOutcome.POLICY_DENIED), "u"),)


@pytest.mark.parametrize("phase", ["idle", "ended", "compacting"])
def test_a_mode_may_change_while_nothing_waits(phase):
    desk = in_phase(phase)
    changed = Emit(PolicyModeChanged(PLAN, ACCEPT_ALL))
    assert desk.decide(c.ChangePolicy(PLAN)) == Decision((changed,), (c.SetMode(PLAN),))
    assert desk.decide(c.ChangePolicy()) == Decision()


def test_a_new_mode_resolves_nothing_of_a_turn_that_was_told_to_stop():
    desk = waiting()
    desk.do(c.Interrupt("u", "user"))
    assert desk.decide(c.ChangePolicy(), policy_mode=BYPASS) == Decision()


def test_a_mode_is_recorded_and_never_read_back():
    desk = Desk()
    before = parts(desk.state)
    desk.do(c.ChangePolicy(BYPASS))
    assert parts(desk.state) == {**before, "numbers": (2, 1)}
    assert parts(hydrated(desk.records)[0]) == parts(desk.state)


# -- how turns end -----------------------------------------------------------------------------------------------------


def told(desk: Desk, since: int) -> list[Any]:
    return [getattr(event, "item", event) for event in desk.since(since)]


CANCELLED = [
    ApprovalResolved("p", ApprovalOutcome.CANCELLED),
    ExternalToolResolved("x", ExternalOutcome.CANCELLED),
]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (c.Interrupted("user"), "interrupted"),
        (c.Failed("late", "deadline_timeout", (), "timed out"), "timed out"),
        (c.Failed("broke", "storage", (), "not run: storage"), "not run: storage"),
        (c.Finished(), "not run: internal"),
    ],
)
def test_what_waits_when_a_turn_ends_early_is_cancelled_before_its_calls_get_their_results(outcome, text):
    desk = waiting()
    count = len(desk.records)
    desk.do(c.JobEnded("u", outcome))
    ended = told(desk, count)
    assert ended[:4] == [
        *CANCELLED,
        ToolResult("c1", "change", text, is_error=True),
        ToolResult("c2", "ask_host", text, is_error=True),
    ]
    assert (pending(desk), desk.terms) == ([], {})
    assert desk.decide(c.ResolveApproval("p")) == Decision(reply=False)


def test_a_result_that_is_ready_when_a_turn_ends_is_kept():
    desk = waiting()
    desk.do(c.ResolveExternal("x", output=ToolOutput("here")))
    count, ready = len(desk.records), ToolResult("c2", "ask_host", "here")
    desk.do(c.JobEnded("u", c.Interrupted("user", (ready,))))
    assert told(desk, count)[:3] == [CANCELLED[0], ToolResult("c1", "change", "interrupted", is_error=True), ready]


@pytest.mark.parametrize("answered", [False, True])
def test_after_a_restart_nobody_knows_what_the_host_did(answered):
    desk = waiting()
    if answered:
        desk.do(c.ResolveExternal("x", output=ToolOutput("lost")))
    again = Desk(desk.records)
    count = len(again.records)
    again.commit(close_open_work(again.state, Ledger(), again.facts()))
    assert told(again, count) == [
        *CANCELLED[: 1 if answered else 2],
        ToolResult("c1", "change", "runtime restarted", is_error=True),
        ToolResult("c2", "ask_host", "outcome unknown after restart", is_error=True),
        TurnInterrupted("runtime_restart", None),
    ]
    assert close_open_work(again.state, Ledger(), again.facts()) == ()


def test_requests_that_no_turn_is_open_for_are_nobodys():
    desk = waiting()
    desk.do(c.ResolveApproval("p"))
    events = [
        record for record in desk.records if not isinstance(getattr(record, "event", None), TranscriptItemAppended)
    ]
    late = [record for record in events if record.event.kind.startswith(("approval", "external"))]
    state, _ = hydrated(late)
    assert state.open_turn is None
    assert state.next_seq == late[-1].seq + 1


def test_ids_of_calls_are_kept_with_the_turn_and_then_with_the_thread():
    desk = called()
    desk.do(c.PersistItem("bare", ToolCall("h", "look", "{}")))
    turn = desk.state.open_turn
    assert turn is not None
    assert (set(turn.call_ids), list(turn.calls), set(desk.state.call_ids)) == ({"c1", "c2"}, ["c1", "c2"], {"h"})
    desk.do(c.ToolResultsDone("u", (ToolResult("c1", "change", "x"), ToolResult("c2", "ask_host", "y"))))
    assert (set(turn.call_ids), turn.calls) == ({"c1", "c2"}, {})
    desk.do(c.FinalStep("u", (ANSWER,), "stop"))
    assert set(desk.state.call_ids) == {"h", "c1", "c2"}
    assert set(hydrated(desk.records)[0].call_ids) == {"h", "c1", "c2"}


# -- structured answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("structured", "calls", "names", "admitted"),
    [
        (True, False, (), True),
        (False, True, (), True),
        (False, True, ("final_answer",), False),
        (False, False, (), False),
    ],
)
def test_a_structured_answer_is_asked_of_who_can_give_one(structured, calls, names, admitted):
    desk = Desk(tool_names=names)
    capabilities = InferenceCapabilities(streaming=True, structured_output=structured, tool_calls=calls)
    engine = attrs.evolve(ENGINES["one"], capabilities=capabilities)
    command = attrs.evolve(start(), output_form="form")
    if admitted:
        decided = desk.decide(command, engines={"one": engine})
        assert decided.effects[0].plan.output_form == "form"
    else:
        with pytest.raises(UnsupportedOption, match="output_type"):
            desk.decide(command, engines={"one": engine})
