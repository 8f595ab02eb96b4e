"""The table of consent, what denies in every mode, and what ports may add."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roder_trio.logic.policy import STRICTNESS, Ruling, by_table, decide, redecide
from roder_trio.schema.policy import ApprovalOutcome, PolicyDecision, PolicyMode, Verdict
from roder_trio.schema.tool import EFFECTS, ToolSpec

DEFAULT, ACCEPT_ALL, PLAN, BYPASS = PolicyMode
ALLOWED, AUTO, ASK, DENIED = PolicyDecision
MODES = (DEFAULT, ACCEPT_ALL, PLAN, BYPASS)

CELLS = {
    frozenset(): (ALLOWED, ALLOWED, ALLOWED, ALLOWED),
    frozenset({"read"}): (ALLOWED, ALLOWED, ALLOWED, ALLOWED),
    frozenset({"network"}): (ASK, AUTO, ASK, AUTO),
    frozenset({"process"}): (ASK, AUTO, DENIED, AUTO),
    frozenset({"write"}): (ASK, AUTO, DENIED, AUTO),
    frozenset({"read", "network"}): (ASK, AUTO, ASK, AUTO),
    frozenset({"read", "network", "write"}): (ASK, AUTO, DENIED, AUTO),
    None: (ASK, AUTO, DENIED, AUTO),
}

verdicts = st.one_of(st.none(), st.builds(Verdict, st.sampled_from(PolicyDecision), st.sampled_from(["", "why"])))
effects = st.one_of(st.none(), st.frozensets(st.sampled_from(sorted(EFFECTS))))


def spec(effects: frozenset[str] | None = None) -> ToolSpec:
    return ToolSpec(name="get_time", description="Tell the time.", parameters={"type": "object"}, effects=effects)


@pytest.mark.parametrize(
    ("effects", "mode", "decision"),
    [(effects, mode, cell) for effects, row in CELLS.items() for mode, cell in zip(MODES, row, strict=True)],
)
def test_the_table_decides_by_the_strictest_effect(
    effects: frozenset[str] | None, mode: PolicyMode, decision: PolicyDecision
) -> None:
    assert decide(mode, spec(effects)).decision is decision
    assert by_table(mode, effects).rule == "table"


@pytest.mark.parametrize("mode", MODES)
def test_a_denied_tool_is_denied_in_every_mode(mode: PolicyMode) -> None:
    ruling = decide(mode, spec(frozenset({"read"})), ["get_time"], [Verdict("allowed")])
    assert ruling == Ruling(DENIED, "'get_time' is among the denied tools", "denied_tools")
    assert ruling.refusal == "policy denied: 'get_time' is among the denied tools"


def test_a_port_makes_a_decision_stricter_and_its_reason_is_told() -> None:
    ruling = decide(ACCEPT_ALL, spec(), (), [None, Verdict("ask", "it looks odd"), Verdict("auto", "no")])
    assert ruling == Ruling(ASK, "it looks odd", "policy")


def test_a_port_without_a_reason_is_still_told() -> None:
    assert decide(ACCEPT_ALL, spec(), (), [Verdict("denied")]).reason == "a policy says 'denied'"


@pytest.mark.parametrize("word", ["allowed", "auto"])
def test_a_port_can_not_loosen_a_decision(word: str) -> None:
    assert decide(DEFAULT, spec(), (), [Verdict(word)]) == decide(DEFAULT, spec())


def test_in_bypass_a_port_that_asks_is_not_asked_for_but_a_denial_stays() -> None:
    read = spec(frozenset({"read"}))
    assert decide(BYPASS, read, (), [Verdict("ask", "hm")]).decision is AUTO
    assert decide(BYPASS, read, (), [Verdict("denied", "no")]) == Ruling(DENIED, "no", "policy")


@pytest.mark.parametrize(
    ("effects", "reason"),
    [
        (frozenset({"read", "write"}), "in mode 'default', by its effects write"),
        (frozenset(), "it has no effects"),
        (None, "in mode 'default', by its undeclared effects, which count as network, process, write"),
    ],
)
def test_the_reason_names_the_effects_that_count(effects: frozenset[str] | None, reason: str) -> None:
    assert by_table(DEFAULT, effects).reason == reason


@given(st.sampled_from(MODES), effects, st.lists(verdicts, max_size=4))
def test_ports_never_loosen_and_only_bypass_softens_an_ask(
    mode: PolicyMode, effects: frozenset[str] | None, said: list[Verdict | None]
) -> None:
    before, after = by_table(mode, effects).decision, decide(mode, spec(effects), (), said).decision
    assert STRICTNESS[after] >= STRICTNESS[before]
    if mode is BYPASS:
        assert after is not ASK
    if any(verdict is not None and verdict.decision is DENIED for verdict in said):
        assert after is DENIED


@pytest.mark.parametrize(
    ("mode", "said", "outcome"),
    [
        (BYPASS, [], ApprovalOutcome.POLICY_APPROVED),
        (ACCEPT_ALL, [], ApprovalOutcome.POLICY_APPROVED),
        (PLAN, [], ApprovalOutcome.POLICY_DENIED),
        (DEFAULT, [], None),
        (ACCEPT_ALL, [Verdict("ask")], None),
        (BYPASS, [Verdict("ask")], ApprovalOutcome.POLICY_APPROVED),
        (BYPASS, [Verdict("denied")], ApprovalOutcome.POLICY_DENIED),
    ],
)
def test_a_mode_change_decides_a_pending_approval_again(
    mode: PolicyMode, said: list[Verdict], outcome: ApprovalOutcome | None
) -> None:
    assert redecide(mode, spec(frozenset({"write"})), (), said) is outcome


def test_a_read_tool_that_a_port_asked_for_is_approved_where_the_mode_allows_it() -> None:
    assert redecide(BYPASS, spec(frozenset({"read"})), (), [Verdict("ask")]) is ApprovalOutcome.POLICY_APPROVED
