"""A thread's state is the fold of its log: what each event does, and how a log is read and written."""

from typing import Any

import pytest

from roder_trio.logic.item import derive
from roder_trio.logic.thread.draft import AppendItem, DiscardOpen, Emit, RecordItem, SaveOpenText, StoreState
from roder_trio.logic.thread.hydration import fold_snapshot
from roder_trio.logic.thread.recovery import close_open_work
from roder_trio.logic.thread.state import HeldText, OpenTurn, ThreadState, TurnEntry
from roder_trio.schema import inference
from roder_trio.schema.event import (
    ContextCompactionCancelled,
    ContextCompactionFailed,
    ContextCompactionRecorded,
    ContextCompactionStarted,
    EventEnvelope,
    GoalCleared,
    GoalTimeRecorded,
    GoalUpdated,
    SteerAccepted,
    ThreadMetadataChanged,
    TranscriptItemAppended,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
    Unknown,
)
from roder_trio.schema.goal import Goal, GoalCause, GoalStatus
from roder_trio.schema.item import (
    AgentMessage,
    AgentMessageText,
    ItemCompleted,
    ItemDelta,
    ItemDiscarded,
    ItemStarted,
    ItemStatus,
    ThreadItemEvent,
)
from roder_trio.schema.thread import ExtensionStateRecord, ThreadScope, ThreadSnapshot, TurnRecord, TurnScope
from roder_trio.schema.transcript import (
    AssistantMessage,
    ErrorNote,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    UserMessage,
)
from roder_trio.schema.usage import TokenUsage
from tests.thread_support import (
    ANSWER,
    AT,
    CALL,
    RESULT,
    THREAD,
    USER,
    Desk,
    envelope,
    hydrated,
    item_event,
    metadata,
    parts,
)

STARTED = TurnStarted("one", "m")


def goal(status: GoalStatus = GoalStatus.ACTIVE, goal_id: str = "g", **fields: Any) -> Goal:
    return Goal(goal_id=goal_id, thread_id=THREAD, objective="x", status=status, created_at=AT, updated_at=AT, **fields)


def appended(what: Any, index: int = 0, item_id: str | None = None, item_seq: int = 0) -> TranscriptItemAppended:
    return TranscriptItemAppended(index, what, item_id, item_seq)


def log(*events: Any) -> list[EventEnvelope]:
    """Envelopes of one turn; (turn id, event) is of another."""
    pairs = [event if isinstance(event, tuple) else ("u", event) for event in events]
    return [envelope(event, turn_id, seq) for seq, (turn_id, event) in enumerate(pairs, 1)]


def fold(*events: Any) -> ThreadState:
    return hydrated(log(*events))[0]


# -- what each event does ----------------------------------------------------------------------------------------------


def test_a_new_thread_knows_nothing():
    state = fold()
    assert parts(state) == parts(ThreadState(metadata()))
    assert (state.next_seq, state.next_item_seq, state.open_turn, state.goal) == (1, 1, None, None)


def test_a_turn_is_open_from_its_start_to_its_first_end():
    state = fold(STARTED, appended(USER))
    assert state.open_turn == OpenTurn("u", "one", "m")
    assert (state.is_open("u"), state.is_open("v"), state.is_open(None)) == (True, False, False)
    assert (state.last_turn_id, state.last_model, state.next_seq) == ("u", ("one", "m"), 3)

    state = fold(STARTED, TurnCompleted(None, "stop"), TurnInterrupted("user"))
    assert (state.open_turn, state.is_open(None)) == (None, False)
    assert state.turns == {"u": TurnEntry(0, "", started=True, terminal=TurnCompleted(None, "stop"))}


def test_the_end_of_another_turn_ends_only_that():
    state = fold(STARTED, ("v", TurnFailed("x", "internal")))
    assert state.is_open("u")
    assert state.turns["v"] == TurnEntry(terminal=TurnFailed("x", "internal"))


def test_events_of_no_turn_that_need_one_change_only_the_counter():
    events = [appended(USER), STARTED, TurnCompleted(), SteerAccepted("s", USER), Unknown("later.kind", {})]
    state = hydrated([envelope(event, None, seq) for seq, event in enumerate(events, 1)])[0]
    assert state.next_seq == 6
    assert parts(state) == {**parts(fold()), "numbers": (6, 1)}


def test_the_answer_of_a_turn_is_its_last_final_message():
    state = fold(
        appended(AssistantMessage("a")), appended(AssistantMessage("b", "commentary"), 1),
        appended(AssistantMessage("c", "final_answer", interrupted=True), 2), appended(ReasoningSummary("d"), 3),
    )  # fmt: skip
    assert state.turns == {"u": TurnEntry(4, "c")}


def test_calls_are_open_until_their_result_in_the_open_turn_only():
    other = ToolCall("c2", "look", "{}")
    state = fold(STARTED, appended(CALL), appended(other, 1), appended(RESULT, 2), ("v", appended(CALL)))
    assert state.open_turn is not None
    assert state.open_turn.calls == {"c2": other}
    assert fold(appended(CALL)).open_turn is None


def test_steers_wait_until_their_message_is_appended():
    first, second = SteerAccepted("s1", USER), SteerAccepted("s2", UserMessage("more"))
    state = fold(STARTED, first, second, ("v", SteerAccepted("s3", USER)))
    assert state.open_turn is not None
    assert state.open_turn.steers == [first, second]
    state = fold(STARTED, first, second, TranscriptItemAppended(0, USER, steer_id="s1"))
    assert state.open_turn is not None
    assert state.open_turn.steers == [second]


@pytest.mark.parametrize(
    "end",
    [
        ContextCompactionRecorded("k", "native", 1, 1),
        ContextCompactionFailed("k", "x", "protocol"),
        ContextCompactionCancelled("k", "interrupted"),
    ],
)
def test_a_compaction_is_open_until_its_end(end):
    begun = ContextCompactionStarted("k", "auto", 1, 1)
    assert fold(begun).compactions == {"k": "u"}
    assert fold((None, begun)).compactions == {"k": None}
    assert fold(begun, end).compactions == {}
    assert fold(end).compactions == {}


def test_metadata_changes_only_what_is_named():
    changes = [
        ThreadMetadataChanged(provider="two", model=None, labels={"a": "b"}),
        ThreadMetadataChanged(provider=None, tool_allowlist=("look",)),
    ]
    state = hydrated([envelope(event, None, seq) for seq, event in enumerate(changes, 1)])[0]
    found = state.metadata
    assert (found.provider, found.tool_allowlist, dict(found.labels)) == (None, ("look",), {"a": "b"})


def test_a_goal_is_kept_without_its_counters():
    update = GoalUpdated(goal(tokens_used=7, time_used=8.0), GoalCause.IMPORT, 5, 6.0)
    state = fold((None, update))
    assert (state.goal, state.opening_tokens, state.opening_time) == (goal(), 5, 6.0)
    assert fold((None, update), (None, GoalCleared("g", GoalCause.HOST))).goal is None


def test_the_time_of_a_goal_is_summed_until_another_takes_its_place():
    spent = GoalTimeRecorded("g", "u", 2.0)
    update, other = (GoalUpdated(goal(goal_id=id), GoalCause.HOST, 1, 1.0) for id in ("g", "h"))
    assert fold(update, spent, spent, GoalTimeRecorded("h", "u", 9.0), update).goal_time == 4.0
    assert fold(spent).goal_time == 0.0
    state = fold(update, spent, other)
    assert (state.goal_time, state.opening_tokens) == (0.0, 1)


@pytest.mark.parametrize(
    ("events", "attached"),
    [
        ([GoalUpdated(goal(), GoalCause.HOST), STARTED], "g"),
        ([GoalUpdated(goal(GoalStatus.PAUSED), GoalCause.HOST), STARTED], None),
        ([STARTED, GoalUpdated(goal(), GoalCause.HOST)], "g"),
        ([STARTED, GoalUpdated(goal(), GoalCause.HOST), GoalUpdated(goal(GoalStatus.BUDGET_LIMITED), GoalCause.BUDGET)],
         "g"),
        ([STARTED, GoalUpdated(goal(), GoalCause.HOST), GoalUpdated(goal(GoalStatus.COMPLETE), GoalCause.HOST)], None),
        ([STARTED, GoalUpdated(goal(), GoalCause.HOST), GoalCleared("g", GoalCause.HOST)], None),
        ([STARTED, GoalUpdated(goal(), GoalCause.HOST), GoalTimeRecorded("g", "u", 1.0)], "g"),
    ],
)  # fmt: skip
def test_a_turn_is_attached_to_a_goal_while_that_is_worked_on(events, attached):
    state = fold(*events)
    assert state.open_turn is not None
    assert state.open_turn.goal_id == attached


def test_values_of_a_host_are_those_of_the_thread_and_the_last_wins():
    def value(value: Any, scope: Any, id: str) -> ExtensionStateRecord:
        return ExtensionStateRecord(record_id=id, extension_id="x", key="k", scope=scope, schema_version=1, value=value)

    mine = ThreadScope(THREAD)
    records = [value(1, mine, "a"), value(2, mine, "b"), value(3, TurnScope(THREAD, "u"), "c")]
    assert hydrated(records)[0].extensions == {("x", "k"): records[1]}


# -- reading a log -----------------------------------------------------------------------------------------------------


def test_item_events_in_any_order_continue_at_the_highest_number():
    kinds = [ItemStarted(AgentMessage(f"m{seq}", "")) for seq in (3, 7, 5)]
    events = [item_event(kind, seq) for kind, seq in zip(kinds, (3, 7, 5), strict=True)]
    state = fold_snapshot(ThreadSnapshot(metadata=metadata(), item_events=events), metadata()).state
    assert (state.next_item_seq, state.next_seq) == (8, 1)
    assert [shown.id for shown in state.items.items()] == ["m3", "m5", "m7"]
    assert state.numbers.knows("u", "m7")


def test_pinned_numbers_count_whether_a_store_merged_them_or_not():
    stored = item_event(ItemStarted(AgentMessage("x", "")), 7)
    pinned = envelope(appended(USER, 0, "u-user", 12))
    for item_events in ([stored], [stored, *derive(pinned)]):
        snapshot = ThreadSnapshot(metadata=metadata(), events=[pinned], item_events=item_events)
        state = fold_snapshot(snapshot, metadata()).state
        assert state.next_item_seq == 13
        assert [shown.id for shown in state.items.items()] == ["x", "u-user"]


def test_events_in_any_order_continue_at_the_highest_seq():
    state, _ = hydrated([envelope(appended(USER, index), "u", seq) for seq, index in ((4, 1), (2, 0))])
    assert (state.next_seq, state.turns["u"].count) == (5, 2)


def record(turn_id: str, *items: Any) -> TurnRecord:
    return TurnRecord(thread_id=THREAD, turn_id=turn_id, created_at=AT, items=items)


def test_a_turn_without_events_has_its_items_and_is_shown_and_not_open():
    snapshot = ThreadSnapshot(metadata=metadata(), turns=[record("u", USER, CALL, RESULT, ANSWER)])
    state = fold_snapshot(snapshot, metadata()).state
    assert state.turns == {"u": TurnEntry(4, "hi")}
    assert state.history.items == [USER, CALL, RESULT, ANSWER]
    assert (state.open_turn, state.next_item_seq) == (None, 1)
    assert [(shown.id, shown.status) for shown in state.items.items()] == [
        (f"u-{name}", ItemStatus.COMPLETED) for name in ("user", "tool-c1", "message")
    ]
    assert close_open_work(state, hydrated([])[1], Desk().facts()) == ()


def test_a_turn_whose_items_have_no_events_has_them_where_it_began():
    events = [
        envelope(STARTED, "v", 1), envelope(appended(USER), "v", 2), envelope(TurnCompleted(), "v", 3),
        envelope(STARTED, "u", 4),
    ]  # fmt: skip
    turns = [record("v", USER), record("u", ANSWER, CALL), record("w", ReasoningSummary("r"))]
    found = fold_snapshot(ThreadSnapshot(metadata=metadata(), turns=turns, events=events), metadata())
    state, ledger = found.state, found.ledger
    assert state.history.items == [ReasoningSummary("r"), USER, ANSWER, CALL]
    assert state.turns["u"] == TurnEntry(2, "hi", started=True)
    assert state.open_turn is not None
    assert state.open_turn.calls == {"c1": CALL}
    closing = close_open_work(state, ledger, Desk().facts())
    assert AppendItem("u", ToolResult("c1", "look", "runtime restarted", is_error=True), live=True) in closing


def test_a_turn_of_which_any_item_event_is_stored_is_not_projected():
    snapshot = ThreadSnapshot(
        metadata=metadata(),
        turns=[record("u", USER), record("v", ErrorNote("x"))],
        item_events=[item_event(ItemStarted(AgentMessage("own", "")), 1)],
    )
    state = fold_snapshot(snapshot, metadata()).state
    assert [shown.id for shown in state.items.items()] == ["own", "v-error"]


def test_usage_goes_to_the_ledger_and_leaves_the_counter():
    desk = Desk()
    desk.start()
    desk.use(5)
    desk.use(9, report=2)
    state, ledger = hydrated(desk.records)
    assert ledger.turn("u") == TokenUsage(9, 0, 9)
    assert parts(state) == parts(desk.state)


def test_unknown_events_are_counted_and_change_nothing_else():
    known = fold(STARTED, appended(USER))
    state = hydrated([*log(STARTED, appended(USER)), envelope(Unknown("later.kind", {"a": 1}), "u", 3)])[0]
    assert parts(state) == {**parts(known), "numbers": (4, 1)}


@pytest.mark.parametrize(
    "end",
    [
        ItemCompleted(AgentMessage("u-message", "ab")),
        ItemDiscarded("u-message"),
    ],
)
def test_text_that_checkpoints_hold_is_open_until_its_item_ends(end):
    begun = [
        item_event(ItemStarted(AgentMessage("u-message", "", status=ItemStatus.IN_PROGRESS)), 1, checkpoint=True),
        item_event(ItemDelta("u-message", AgentMessageText("ab")), 2, checkpoint=True),
    ]
    state = hydrated(begun)[0]
    held = AgentMessage("u-message", "ab", status=ItemStatus.IN_PROGRESS)
    assert state.checkpoints == {"u-message": HeldText("u", held)}
    assert state.items.items() == (AgentMessage("u-message", "ab", status=ItemStatus.IN_PROGRESS),)
    assert hydrated([*begun, item_event(end, 3)])[0].checkpoints == {}


# -- stamping ----------------------------------------------------------------------------------------------------------


def test_numbers_have_no_gap_within_one_decision():
    desk = Desk()
    stamped = desk.commit(
        [
            Emit(STARTED, "u"),
            AppendItem("u", USER),
            RecordItem("v", ItemStarted(AgentMessage("own", "")), AT),
            AppendItem("u", ProviderMetadata({})),
            AppendItem("u", ANSWER, item_id="mine"),
            AppendItem("v", USER, steer_id="s"),
        ]
    )
    records = [entry.record for entry in stamped]
    events = [found for found in records if isinstance(found, EventEnvelope)]
    assert [(found.seq, found.turn_id, found.event_id) for found in events] == [
        (1, "u", "id1"), (2, "u", "id2"), (3, "u", "id4"), (4, "u", "id5"), (5, "v", "id6"),
    ]  # fmt: skip
    assert [found.event for found in events[1:]] == [
        TranscriptItemAppended(0, USER, "u-user", 2),
        TranscriptItemAppended(1, ProviderMetadata({})),
        TranscriptItemAppended(2, ANSWER, "mine", 4),
        TranscriptItemAppended(0, USER, "v-user", 6, "s"),
    ]
    assert [found.seq for found in records if isinstance(found, ThreadItemEvent)] == [3]
    assert [event.seq for entry in stamped for event in entry.derived] == [1, 2, 4, 5, 6]
    assert (desk.state.next_seq, desk.state.next_item_seq) == (6, 7)
    assert {found.source for found in events} == {"thread"}


def test_what_a_job_reports_comes_from_the_turn():
    desk = Desk()
    [stamped] = desk.stamp([AppendItem("u", ANSWER, live=True)])
    assert isinstance(stamped.record, EventEnvelope)
    assert stamped.record.source == "turn"


def test_a_hosts_item_has_the_time_that_the_host_gave():
    when = AT.replace(year=2020)
    [stamped] = Desk().stamp([RecordItem("u", ItemDiscarded("x"), when)])
    assert isinstance(stamped.record, ThreadItemEvent)
    assert (stamped.record.timestamp, stamped.record.checkpoint) == (when, False)


def test_what_is_reported_takes_the_id_of_the_open_item_and_a_host_gets_the_next():
    desk = Desk()
    desk.start()
    desk.show(inference.MessageDelta("hi"))
    hosts = desk.commit([AppendItem("u", AssistantMessage("host's"))])
    assert [event.event.item_id for event in hosts[0].derived] == ["u-message-2"]
    assert list(desk.live) != []
    jobs = desk.commit([AppendItem("u", ANSWER, live=True), AppendItem("u", ANSWER, live=True)])
    assert [event.event.item_id for entry in jobs for event in entry.derived] == ["u-message", "u-message-3"]
    assert list(desk.live) == []


def test_only_what_checkpoints_hold_is_discarded_in_the_log():
    desk = Desk()
    desk.start()
    desk.show(inference.MessageDelta("hi"), inference.HostedToolCallStarted("h", "search"))
    desk.commit([SaveOpenText()])
    desk.show(inference.ReasoningDelta("r"))
    before = desk.state.next_item_seq
    stamped = desk.commit([DiscardOpen("u")])
    assert [entry.record.event if isinstance(entry.record, ThreadItemEvent) else None for entry in stamped] == [
        ItemDiscarded("u-message"), None,
    ]  # fmt: skip
    [live] = stamped[1].derived
    assert (live.event, live.seq, desk.state.next_item_seq) == (ItemDiscarded("u-reasoning"), 0, before + 1)
    assert [shown.id for shown in desk.live] == ["u-hosted-h"]
    [hosted] = desk.commit([DiscardOpen("u", hosted=True)])
    assert (hosted.record, desk.state.next_item_seq) == (None, before + 1)
    assert [shown.id for shown in desk.state.items.items()] == ["u-user"]


def test_open_text_is_saved_in_parts_of_which_the_first_begins_the_item():
    desk = Desk()
    desk.start()
    desk.show(inference.MessageDelta("a", "plan"), inference.MessageDelta("b", "plan"))
    first = desk.commit([SaveOpenText()])
    desk.show(inference.MessageDelta("c", "plan"))
    second = desk.commit([SaveOpenText()])
    opened = AgentMessage("u-message-plan", "", "plan", ItemStatus.IN_PROGRESS)
    records = [entry.record for entry in (*first, *second)]
    assert all(isinstance(found, ThreadItemEvent) and found.checkpoint for found in records)
    assert [found.event for found in records if isinstance(found, ThreadItemEvent)] == [
        ItemStarted(opened),
        ItemDelta("u-message-plan", AgentMessageText("ab", "plan")),
        ItemDelta("u-message-plan", AgentMessageText("c", "plan")),
    ]
    assert desk.commit([SaveOpenText()]) == []


def test_a_failed_append_has_moved_nothing_but_taken_ids():
    desk = Desk()
    desk.start()
    desk.show(inference.MessageDelta("hi"), inference.ReasoningDelta("r"))
    before, open_before = parts(desk.state), list(desk.live)
    value = StoreState(
        ExtensionStateRecord(
            record_id="a", extension_id="x", key="k", scope=ThreadScope(THREAD), schema_version=1, value=1
        )
    )
    drafts = [AppendItem("u", ANSWER, live=True), AppendItem("u", USER), SaveOpenText(), DiscardOpen("u"), value]
    desk.commit(drafts, fails=True)
    assert (parts(desk.state), list(desk.live)) == (before, open_before)
    [again] = desk.commit([AppendItem("u", USER)])
    assert [event.event.item_id for event in again.derived] == ["u-user-3", "u-user-3"]
    desk.commit([value])
    assert desk.state.extensions == {("x", "k"): value.record}
    assert parts(hydrated(desk.records)[0]) == parts(desk.state)
