"""How a turn ends: by its job, or by the next reading of its log."""

from typing import Any

import pytest

from roder_trio.codec.state import encode_state
from roder_trio.errors import InvalidRecord
from roder_trio.logic.boundary import has_open_call
from roder_trio.logic.thread.draft import AppendItem, Emit
from roder_trio.logic.thread.facts import Decision, Slot
from roder_trio.logic.thread.hydration import Hydration
from roder_trio.logic.thread.recovery import close_open_work
from roder_trio.logic.thread.turns import end_open_turn
from roder_trio.logic.usage import Ledger
from roder_trio.schema import command as c
from roder_trio.schema import inference
from roder_trio.schema.event import (
    TERMINAL_EVENTS,
    ContextCompactionCancelled,
    ContextCompactionStarted,
    GoalTimeRecorded,
    GoalUpdated,
    TranscriptItemAppended,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from roder_trio.schema.goal import GoalCause, GoalStatus
from roder_trio.schema.item import AgentMessage, ItemDiscarded, ItemStarted, ItemStatus
from roder_trio.schema.transcript import (
    AssistantMessage,
    ErrorNote,
    ToolCall,
    ToolResult,
)
from tests.thread_support import (
    ANSWER,
    AT,
    BEGUN,
    CALL,
    LEFT,
    RESULT,
    STEER,
    USED,
    USER,
    Desk,
    hydrated,
    in_phase,
    laden,
    parts,
)

# -- how a job ends ----------------------------------------------------------------------------------------------------


def test_an_old_jobs_end_is_dropped():
    assert in_phase("idle").decide(c.JobEnded("u", c.Finished())) == Decision()
    assert in_phase("running").decide(c.JobEnded("old", c.Interrupted("user"))) == Decision()


@pytest.mark.parametrize(
    "outcome", [c.Finished(), c.Failed("x", "storage", (ANSWER,)), c.Interrupted("user", (ANSWER,))]
)
def test_a_job_whose_turn_has_its_end_only_frees_the_slot(outcome):
    assert in_phase("ended").decide(c.JobEnded("u", outcome)) == Decision(effects=(c.FreeSlot(),))


def test_a_manual_compaction_that_ends_frees_the_slot_and_leaves_no_compaction_open():
    desk = in_phase("compacting")
    ended = c.JobEnded("compact-k", c.CompactionEnded("k"))
    assert desk.decide(ended) == Decision(effects=(c.FreeSlot(),))
    desk.do(c.RecordCompaction("compact-k", BEGUN))
    desk.do(c.RecordCompaction("v", ContextCompactionStarted("other", "direct", 1, 1)))
    cancelled = Emit(ContextCompactionCancelled("k", "interrupted"), "compact-k")
    assert desk.decide(ended) == Decision((cancelled,), (c.FreeSlot(),))


@pytest.mark.parametrize(
    ("outcome", "end", "call_error", "status", "notes"),
    [
        (c.Interrupted("user", LEFT), TurnInterrupted("user", USED, (STEER,)), "interrupted", GoalStatus.PAUSED, []),
        (
            c.Failed("it broke", "protocol", LEFT, "not run: protocol"),
            TurnFailed("it broke", "protocol", USED, (STEER,)), "not run: protocol", GoalStatus.BLOCKED,
            [ErrorNote("it broke")],
        ),
        (
            c.Failed("no more", "usage_limit", LEFT),
            TurnFailed("no more", "usage_limit", USED, (STEER,)), "not run: the turn failed",
            GoalStatus.USAGE_LIMITED, [ErrorNote("no more")],
        ),
    ],
)  # fmt: skip
def test_an_early_end_closes_all_that_is_open_in_order(outcome, end, call_error, status, notes):
    desk = laden()
    before = len(desk.records)
    desk.do(c.JobEnded("u", outcome))
    stored = desk.since(before)
    appended = [event.item for event in stored if isinstance(event, TranscriptItemAppended)]
    assert appended == [
        *LEFT,
        ToolResult("c0", "look", call_error, is_error=True),
        ToolResult("c1", "look", call_error, is_error=True),
        *notes,
    ]
    rest = [event for event in stored if not isinstance(event, TranscriptItemAppended)]
    assert [type(event) for event in rest] == [
        ContextCompactionCancelled, GoalTimeRecorded, GoalUpdated, type(end),
    ]  # fmt: skip
    cancelled, time, updated, terminal = rest
    assert cancelled == ContextCompactionCancelled("k", "interrupted")
    assert time == GoalTimeRecorded("g", "u", 3.0)
    assert (updated.goal.status, updated.cause) == (status, GoalCause.TURN_OUTCOME)
    assert terminal == end
    if notes:
        assert stored.index(cancelled) < [getattr(event, "item", None) for event in stored].index(notes[0])
        assert [getattr(event, "item", None) for event in stored].index(notes[0]) < stored.index(time)
    assert desk.performed[-2:] == [c.EndTurn("u"), c.FreeSlot()]
    assert (list(desk.live), desk.state.compactions, desk.state.checkpoints) == ([], {}, {})
    assert desk.do(c.WaitTurn("u")).undelivered_steers == (STEER,)


def test_discards_stand_between_the_results_and_the_note():
    desk = laden()
    before = len(desk.records)
    desk.do(c.JobEnded("u", c.Failed("it broke", "protocol")))
    assert [type(event) for event in desk.since(before)] == [
        TranscriptItemAppended, ContextCompactionCancelled, ItemDiscarded, TranscriptItemAppended, GoalTimeRecorded,
        GoalUpdated, TurnFailed,
    ]  # fmt: skip


def test_finished_tools_keep_their_results():
    desk = in_phase("running")
    first, second = ToolCall("c1", "look", "{}"), ToolCall("c2", "look", "{}")
    desk.do(c.StepEnded("u", (first, second)))
    desk.do(c.JobEnded("u", c.Interrupted("user", (RESULT,))))
    failed = ToolResult("c2", "look", "interrupted", is_error=True)
    assert desk.state.history.items == [USER, first, second, RESULT, failed]


@pytest.mark.parametrize("outcome", [c.Finished(), c.CompactionEnded("k")])
def test_a_job_without_an_outcome_is_a_bug_that_the_turn_tells(outcome):
    desk = in_phase("running")
    desk.do(c.StepEnded("u", (CALL,)))
    desk.do(c.JobEnded("u", outcome))
    message = "The job ended without an outcome."
    assert desk.events[-1] == TurnFailed(message, "internal")
    assert desk.state.history.items[-2:] == [
        ToolResult("c1", "look", "not run: internal", is_error=True),
        ErrorNote(message),
    ]


@pytest.mark.parametrize(
    "outcome", [c.Finished(), c.Interrupted("user"), c.Failed("x", "internal"), c.CompactionEnded("k")]
)
def test_whatever_a_job_says_its_turn_has_one_terminal_event(outcome):
    for phase in ("running", "told to stop", "interrupted", "ended"):
        desk = in_phase(phase)
        desk.do(c.JobEnded("u", outcome))
        desk.do(c.JobEnded("u", outcome))
        assert sum(isinstance(event, TERMINAL_EVENTS) for event in desk.events) == 1
        assert desk.slot == Slot()


def test_without_an_open_turn_there_is_nothing_to_end():
    desk = Desk()
    assert end_open_turn(desk.state, desk.facts(), TurnInterrupted("user"), (ANSWER,), call_error="x") == ()


# -- recovery ----------------------------------------------------------------------------------------------------------


def recovered(desk: Desk) -> tuple[Desk, list[Any]]:
    """The thread as its log is read again, and what that stored."""
    state, ledger = hydrated(desk.records)
    again = Desk(desk.records)
    again.commit(close_open_work(state, ledger, again.facts()))
    return again, again.since(len(desk.records))


def test_a_restart_closes_all_that_was_open_in_order():
    again, stored = recovered(laden())
    assert [type(event) for event in stored] == [
        TranscriptItemAppended, TranscriptItemAppended, ContextCompactionCancelled, GoalUpdated, TurnInterrupted,
    ]  # fmt: skip
    message, result, cancelled, updated, end = stored
    assert (message.item, message.item_id) == (AssistantMessage("so far", interrupted=True), "u-message")
    assert result.item == ToolResult("c0", "look", "runtime restarted", is_error=True)
    assert cancelled == ContextCompactionCancelled("k", "runtime_restart")
    assert updated.goal.status is GoalStatus.PAUSED
    assert end == TurnInterrupted("runtime_restart", USED, (STEER,))
    assert (again.state.open_turn, again.state.checkpoints, again.goal.tokens_used) == (None, {}, 9)
    assert recovered(again)[1] == []


def test_a_restart_closes_each_turn_whose_end_the_log_lacks_though_others_followed_it():
    desk = laden()
    desk.commit([Emit(TurnStarted("one", "m"), "v"), AppendItem("v", USER)])
    desk.commit([AppendItem("u", ToolResult("c0", "look", "of a host")), AppendItem("v", CALL)])
    desk.commit([Emit(TurnStarted("one", "m"), "w"), AppendItem("w", CALL), AppendItem("w", USER)])
    state, ledger = hydrated(desk.records)
    assert ([turn.turn_id for turn in state.left_open], state.open_turn.turn_id) == (["u", "v"], "w")
    assert (parts(state), CALL.id in state.call_ids) == (parts(desk.state), True)
    with pytest.raises(InvalidRecord, match="once those are closed"):
        encode_state(Hydration(state, ledger))
    again, stored = recovered(desk)
    texts = [event.item.result for event in stored if isinstance(getattr(event, "item", None), ToolResult)]
    assert texts == ["runtime restarted"] * 2
    assert [event for event in stored if isinstance(event, TurnInterrupted)] == [
        TurnInterrupted("runtime_restart", USED, (STEER,)), TurnInterrupted("runtime_restart"),
        TurnInterrupted("runtime_restart"),
    ]  # fmt: skip
    assert stored[0].item == AssistantMessage("so far", interrupted=True)
    assert stored[1] == ContextCompactionCancelled("k", "runtime_restart")
    assert [type(event) for event in stored[-2:]] == [GoalUpdated, TurnInterrupted]
    assert (again.state.left_open, has_open_call(again.state.history.items)) == ([], False)
    assert {turn_id for turn_id, entry in again.state.turns.items() if not entry.ended} == set()
    assert recovered(again)[1] == []
    assert encode_state(Hydration(*hydrated(again.records)))


def test_a_restart_of_a_turn_that_used_nothing_tells_no_usage():
    _, stored = recovered(in_phase("running"))
    assert stored == [TurnInterrupted("runtime_restart", None)]


@pytest.mark.parametrize("phase", ["idle", "ended", "compacting"])
def test_a_restart_without_open_work_stores_nothing(phase):
    desk = in_phase(phase)
    assert close_open_work(desk.state, Ledger(), desk.facts()) == ()


def test_a_restart_ends_compactions_of_no_turn():
    desk = Desk()
    desk.do(c.RecordCompaction("compact-k", BEGUN))
    again, stored = recovered(desk)
    assert stored == [ContextCompactionCancelled("k", "runtime_restart")]
    assert recovered(again)[1] == []
    desk.start()
    _, stored = recovered(desk)
    assert stored == [
        ContextCompactionCancelled("k", "runtime_restart"),
        TurnInterrupted("runtime_restart"),
    ]


def test_a_restart_leaves_open_items_of_hosts_alone():
    desk = in_phase("running")
    desk.do(c.RecordItemEvent("u", AT, ItemStarted(AgentMessage("own", "a", status=ItemStatus.IN_PROGRESS))))
    desk.do(c.RecordItemEvent("bare", AT, ItemStarted(AgentMessage("other", "b", status=ItemStatus.IN_PROGRESS))))
    again, stored = recovered(desk)
    assert [type(event) for event in stored] == [TurnInterrupted]
    assert [item.status for item in again.state.items.items()][1:] == [ItemStatus.IN_PROGRESS] * 2


def test_a_restart_drops_open_text_of_white_space():
    desk = in_phase("running")
    desk.show(inference.MessageDelta(" \n"), inference.MessageDelta("a", "plan"))
    desk.do(c.Checkpoint())
    again, stored = recovered(desk)
    assert stored[0] == ItemDiscarded("u-message")
    assert stored[1].item == AssistantMessage("a", "plan", interrupted=True)
    assert [item.id for item in again.state.items.items()] == ["u-user", "u-message-plan"]
