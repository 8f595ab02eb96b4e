"""Decisions on what a job reports while its turn runs."""

import attrs
import pytest

from roder_trio.errors import StaleWindow
from roder_trio.logic.estimate import estimate
from roder_trio.logic.thread.draft import AppendItem, DiscardOpen, Emit
from roder_trio.logic.thread.facts import VIEW, Decision, Phase
from roder_trio.schema import command as c
from roder_trio.schema.event import (
    ContextCompactionCancelled,
    ContextCompactionFailed,
    ContextCompactionRecorded,
    TurnCompleted,
)
from roder_trio.schema.transcript import ProviderMetadata, UserMessage
from roder_trio.schema.usage import TokenUsage
from tests.thread_support import ANSWER, BEGUN, BOUNDARY, CALL, RESULT, USER, Desk, answer, commit, in_phase, live

# -- reports -----------------------------------------------------------------------------------------------------------


def steered(*ids: str) -> tuple[AppendItem, ...]:
    return tuple(AppendItem("u", UserMessage(id), steer_id=id) for id in ids)


def with_steers(*ids: str) -> Desk:
    desk = in_phase("running")
    for id in ids:
        desk.do(c.Steer("u", id, UserMessage(id)))
    return desk


REPORTS = [
    (c.ItemsDone("u", (ANSWER,)), live(ANSWER), None, False),
    (c.TakeSteers("u"), (), VIEW, True),
    (c.StepEnded("u"), (DiscardOpen("u"),), VIEW, True),
    (c.StepEnded("u", (ANSWER, CALL)), (*live(ANSWER, CALL), DiscardOpen("u")), VIEW, True),
    (c.ToolResultsDone("u", (RESULT,)), live(RESULT), VIEW, True),
]


@pytest.mark.parametrize(("report", "drafts", "reply", "delivers"), REPORTS)
def test_a_report_is_stored_and_steers_that_wait_follow_it(report, drafts, reply, delivers):
    assert in_phase("running").decide(report) == Decision(drafts, reply=reply)
    desk = with_steers("a", "b")
    taken = steered("a", "b") if delivers else ()
    assert desk.decide(report) == Decision((*drafts, *taken), reply=reply)
    desk.do(report)
    assert desk.state.open_turn is not None
    assert len(desk.state.open_turn.steers) == (0 if delivers else 2)


@pytest.mark.parametrize(("report", "drafts", "reply", "delivers"), REPORTS)
def test_a_turn_that_was_told_to_stop_takes_no_steers(report, drafts, reply, delivers):
    desk = with_steers("a")
    desk.cause = "user"
    assert desk.decide(report) == Decision(drafts, reply=reply)


@pytest.mark.parametrize("phase", ["idle", "ended", "compacting"])
@pytest.mark.parametrize("report", [*(row[0] for row in REPORTS), c.FinalStep("u", (ANSWER,), "stop")])
def test_a_late_word_of_an_old_turn_is_dropped(phase, report):
    assert in_phase(phase).decide(report) == Decision()
    assert in_phase("running").decide(attrs.evolve(report, turn_id="old")) == Decision()


def test_a_final_step_ends_the_turn_in_its_own_commit():
    desk = in_phase("running")
    desk.use(7)
    completed = TurnCompleted(TokenUsage(7, 0, 7), "stop")
    decision = desk.decide(c.FinalStep("u", (ANSWER,), "stop"))
    assert decision == Decision(
        (*live(ANSWER), DiscardOpen("u", hosted=True), Emit(completed, "u")), (c.EndTurn("u"),), finishing=True
    )
    desk.do(c.FinalStep("u", (ANSWER,), "stop"))
    assert (desk.state.open_turn, desk.slot.phase) == (None, Phase.CLOSING)


@pytest.mark.parametrize(("steers", "cause"), [(("a", "b"), None), (("a",), "user"), ((), "user")])
def test_a_step_is_not_final_if_a_steer_or_an_interrupt_came_first(steers, cause):
    desk = with_steers(*steers)
    desk.cause = cause
    taken = steered(*steers) if cause is None else ()
    expected = Decision((*live(ANSWER), DiscardOpen("u"), *taken), reply=VIEW)
    assert desk.decide(c.FinalStep("u", (ANSWER,), "stop")) == expected


# -- compaction --------------------------------------------------------------------------------------------------------


def test_a_boundary_and_its_record_are_one_append():
    desk = in_phase("running")
    assert desk.do(c.RecordCompaction("u", BEGUN)) is VIEW
    recorded = ContextCompactionRecorded("k", "native", 1, estimate([BOUNDARY]), 2.0)
    assert desk.decide(commit(desk)) == Decision((AppendItem("u", BOUNDARY), Emit(recorded, "u")), reply=VIEW)
    desk.do(commit(desk))
    assert desk.state.compactions == {}
    assert list(desk.state.history.window()) == [BOUNDARY]


@pytest.mark.parametrize("why", ["the log grew", "a call is open", "it ended", "it never began"])
def test_a_boundary_is_refused_if_the_window_is_stale(why):
    desk = in_phase("running")
    if why != "it never began":
        desk.do(c.RecordCompaction("u", BEGUN))
    base = len(desk.state.history)
    match why:
        case "the log grew":
            desk.do(c.PersistItem("v", USER))
        case "a call is open":
            desk.do(c.StepEnded("u", (CALL,)))
            base += 1
        case "it ended":
            desk.do(c.RecordCompaction("u", ContextCompactionCancelled("k", "new_input")))
    assert answer(desk, commit(desk, base=base)) is StaleWindow


def test_a_compaction_without_a_turn_is_committed_too():
    desk = Desk()
    desk.do(c.PersistItem("v", USER))
    desk.do(c.RecordCompaction("u", BEGUN))
    assert isinstance(desk.decide(commit(desk)), Decision)


@pytest.mark.parametrize(
    "end", [ContextCompactionFailed("k", "x", "protocol"), ContextCompactionCancelled("k", "new_input")]
)
def test_a_compaction_has_one_end(end):
    desk = in_phase("running")
    desk.do(c.RecordCompaction("u", BEGUN))
    assert desk.decide(c.RecordCompaction("u", end)) == Decision((Emit(end, "u"),), reply=VIEW)
    desk.do(c.RecordCompaction("u", end))
    assert desk.decide(c.RecordCompaction("u", end)) == Decision(reply=VIEW)


@pytest.mark.parametrize(("own", "told"), [({"id": "b1"}, "b1"), ({"id": ""}, "in-band-u"), ({}, "in-band-u")])
def test_a_boundary_that_came_in_the_stream_is_told_as_a_compaction(own, told):
    boundary = ProviderMetadata({"output": [{"type": "compaction", "encrypted_content": "x", **own}]})
    recorded = ContextCompactionRecorded(told, "in_band", 1, estimate([boundary]))
    decision = in_phase("running").decide(c.ItemsDone("u", (ANSWER, boundary)))
    assert decision == Decision((*live(ANSWER, boundary), Emit(recorded, "u")))


def test_metadata_that_is_no_boundary_is_told_as_none():
    replay = ProviderMetadata({"output": [{"type": "reasoning"}]})
    assert in_phase("running").decide(c.ItemsDone("u", (replay,))) == Decision(live(replay))
