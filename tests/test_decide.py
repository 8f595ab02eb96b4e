"""Decisions on commands: what is stored, done and answered in each phase, and what is refused."""

import pytest

from roder_trio.errors import (
    NoActiveTurn,
    SteerQueueFull,
    ThreadNotFound,
    UnknownProvider,
    UnknownTurn,
)
from roder_trio.logic.thread.decide import answer_of_no_thread
from roder_trio.logic.thread.draft import Emit, RecordItem
from roder_trio.logic.thread.facts import DEFERRED, Decision
from roder_trio.logic.thread.state import TurnEntry
from roder_trio.logic.thread.turns import outcome_of
from roder_trio.schema import command as c
from roder_trio.schema import inference
from roder_trio.schema.config import RuntimeConfig
from roder_trio.schema.event import (
    SteerAccepted,
    ThreadMetadataChanged,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnInterruptRequested,
    TurnStarted,
)
from roder_trio.schema.goal import GoalPatch
from roder_trio.schema.item import AgentMessage, ItemDelta, ItemDiscarded, ItemStarted
from roder_trio.schema.thread import ExtensionStateRecord, ThreadScope
from roder_trio.schema.turn import TurnOutcome
from tests.thread_support import (
    ANSWER,
    AT,
    BEGUN,
    PHASES,
    STEER,
    THREAD,
    USED,
    USER,
    Desk,
    answer,
    in_phase,
    start,
)

# -- steers and interrupts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "running"])
def test_only_a_running_turn_takes_a_steer(phase):
    assert answer(in_phase(phase), c.Steer("u", "s", USER)) is NoActiveTurn


def test_a_steer_is_durable_before_it_preempts():
    desk = in_phase("running")
    decision = desk.decide(c.Steer("u", "s", USER))
    assert decision == Decision((Emit(SteerAccepted("s", USER), "u"),), (c.PreemptStep(),))
    assert answer(desk, c.Steer("v", "s", USER)) is NoActiveTurn


def test_no_more_steers_wait_than_may():
    desk = Desk(config=RuntimeConfig(max_pending_steers=2))
    desk.start()
    for id in ("s1", "s2"):
        desk.do(c.Steer("u", id, USER))
    with pytest.raises(SteerQueueFull) as raised:
        desk.decide(c.Steer("u", "s3", USER))
    assert raised.value.limit == 2
    desk.do(c.TakeSteers("u"))
    assert isinstance(desk.decide(c.Steer("u", "s3", USER)), Decision)


@pytest.mark.parametrize("phase", PHASES)
def test_an_interrupt_cancels_a_running_turn_and_is_silent_else(phase):
    decision = in_phase(phase).decide(c.Interrupt("u", "drain"))
    requested = {"running": "drain", "told to stop": "user"}.get(phase)
    if requested is None:
        assert decision == Decision()
    else:
        published = c.Publish(TurnInterruptRequested(requested), "u")
        assert decision == Decision(effects=(c.CancelJob("drain"), published))
    assert in_phase(phase).decide(c.Interrupt("v", "user")) == Decision()


def test_a_manual_compaction_is_cancelled_by_its_own_id_only():
    decision = in_phase("compacting").decide(c.Interrupt("compact-k", "caller_left"))
    assert decision == Decision(effects=(c.CancelJob("caller_left"),))


# -- waiting for a turn ------------------------------------------------------------------------------------------------


def test_a_turn_is_waited_for_until_it_has_its_end():
    desk = in_phase("running")
    assert answer(desk, c.WaitTurn("u")) is DEFERRED
    assert answer(desk, c.WaitTurn("v")) is UnknownTurn
    desk.do(c.PersistItem("bare", USER))
    assert answer(desk, c.WaitTurn("bare")) is UnknownTurn
    desk.do(c.FinalStep("u", (ANSWER,), "stop"))
    expected = TurnOutcome("u", "completed", "hi", None, finish_reason="stop", cost=0)
    assert desk.do(c.WaitTurn("u")) == expected


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (TurnCompleted(USED, "length"), TurnOutcome("u", "completed", "hi", USED, finish_reason="length")),
        (
            TurnFailed("x", "protocol", USED, (STEER,)),
            TurnOutcome("u", "failed", "hi", USED, error="x", error_kind="protocol", undelivered_steers=(STEER,)),
        ),
        (
            TurnInterrupted("drain", None, (STEER,)),
            TurnOutcome("u", "interrupted", "hi", None, reason="drain", undelivered_steers=(STEER,), cost=0),
        ),
    ],
)
def test_an_outcome_is_read_from_the_terminal_event(event, outcome):
    assert outcome_of("u", TurnEntry(2, "hi", started=True, terminal=event), event) == outcome


# -- hosts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_reads_and_records_of_hosts_pass_in_every_phase(phase):
    desk = in_phase(phase)
    stored = len(desk.records)
    assert desk.do(c.Touch()) is True
    assert desk.do(c.LatestIndex("v")) is None
    assert [desk.do(c.PersistItem("v", item)) for item in (USER, ANSWER)] == [0, 1]
    assert desk.do(c.LatestIndex("v")) == 1
    assert desk.do(c.ItemExists("v", "v-user")) is True
    assert desk.do(c.ItemExists("u", "v-user")) is False
    assert desk.do(c.GetState("x", "k")) is None
    desk.do(c.SetState("r", "x", "k", {"a": 1}, 2))
    assert desk.do(c.GetState("x", "k")) == {"a": 1}
    assert len(desk.records) == stored + 3
    assert desk.slot.phase is in_phase(phase).slot.phase


def test_a_turn_that_only_began_has_no_index():
    desk = Desk()
    desk.commit([Emit(TurnStarted("one", "m"), "u")])
    assert desk.do(c.LatestIndex("u")) is None


def test_a_hosts_item_event_is_stored_as_given():
    event = ItemStarted(AgentMessage("own", ""))
    assert Desk().decide(c.RecordItemEvent("v", AT, event)) == Decision((RecordItem("v", event, AT),))


def test_a_hosts_value_is_of_the_thread():
    desk = Desk()
    desk.do(c.SetState("r", "x", "k", 1, 3))
    [record] = desk.records
    assert record == ExtensionStateRecord(
        record_id="r", extension_id="x", key="k", scope=ThreadScope(THREAD), schema_version=3, value=1
    )


def test_metadata_changes_in_one_event_if_anything_is_named():
    desk = Desk()
    change = ThreadMetadataChanged(provider="two", title="t", reasoning=None)
    assert desk.decide(c.UpdateThread(change)) == Decision((Emit(change),))
    assert desk.decide(c.UpdateThread(ThreadMetadataChanged())) == Decision()
    cleared = ThreadMetadataChanged(provider=None)
    assert desk.decide(c.UpdateThread(cleared)) == Decision((Emit(cleared),))
    with pytest.raises(UnknownProvider):
        desk.decide(c.UpdateThread(ThreadMetadataChanged(provider="gone")))


def test_a_checkpoint_stores_the_open_text():
    desk = in_phase("running")
    desk.show(inference.MessageDelta("so far"))
    before = len(desk.records)
    desk.do(c.Checkpoint())
    assert [type(event) for event in desk.since(before)] == [ItemStarted, ItemDelta]
    desk.do(c.Checkpoint())
    assert len(desk.records) == before + 2


# -- no such thread ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (c.Archive(), False),
        (c.Checkpoint(), None),
        (c.ClearGoal(), False),
        (c.GetGoal(), None),
        (c.Interrupt("u", "user"), None),
        (c.ItemExists("u", "x"), False),
        (c.LatestIndex("u"), None),
        (c.Touch(), None),
    ],
)
def test_reads_of_no_thread_are_empty(payload, expected):
    assert answer_of_no_thread("gone", payload) is expected


@pytest.mark.parametrize(
    "payload",
    [
        start(),
        c.Compact("k", None),
        c.WaitTurn("u"),
        c.SetGoal("g", GoalPatch("x")),
        c.PersistItem("u", USER),
        c.RecordItemEvent("u", AT, ItemDiscarded("x")),
        c.UpdateThread(ThreadMetadataChanged()),
        c.GetState("x", "k"),
        c.SetState("r", "x", "k", 1, 1),
        c.RecordCompaction("u", BEGUN),
    ],
)
def test_writes_to_no_thread_are_refused(payload):
    with pytest.raises(ThreadNotFound, match="gone"):
        answer_of_no_thread("gone", payload)


def test_no_thread_takes_a_steer():
    with pytest.raises(NoActiveTurn):
        answer_of_no_thread("gone", c.Steer("u", "s", USER))
