"""A thread's state, and the fold that makes it from stored events.

`fold_event` and `fold_item` are the only functions that change a `ThreadState`, live and when a log is read alike, so
folding all events gives the live state. What the log doesn't tell (the phase of a job, waiters, open text) is not in
here.
"""

from collections.abc import Iterable
from typing import assert_never

import attrs

from roder_trio.logic.goal.rules import attach_after
from roder_trio.logic.item import ItemFold, ItemNumbers, merge, project_turn
from roder_trio.logic.usage import Ledger
from roder_trio.logic.window import History
from roder_trio.schema.event import (
    ApprovalRequested,
    ApprovalResolved,
    ContextCompactionCancelled,
    ContextCompactionFailed,
    ContextCompactionRecorded,
    ContextCompactionStarted,
    EventEnvelope,
    ExternalToolRequested,
    ExternalToolResolved,
    GoalCleared,
    GoalTimeRecorded,
    GoalUpdated,
    SteerAccepted,
    TerminalEvent,
    ThreadMetadataChanged,
    TranscriptItemAppended,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
    UsageRecorded,
)
from roder_trio.schema.goal import Goal, GoalCause, GoalStatus
from roder_trio.schema.ids import UNSET
from roder_trio.schema.item import ItemCompleted, ItemDiscarded, ThreadItemEvent
from roder_trio.schema.thread import ExtensionStateRecord, ThreadMetadata, ThreadScope, ThreadSnapshot
from roder_trio.schema.transcript import AssistantMessage, ToolCall, ToolResult, TranscriptItem, is_final_phase


@attrs.define
class TurnEntry:
    """What is kept of every turn: how many items it has, its last answer, how it ended."""

    count: int = 0
    answer: str = ""
    started: bool = False
    terminal: TerminalEvent | None = None


@attrs.frozen
class GoalStop:
    """A goal was stopped in mid-turn; a status of None says that it was cleared."""

    status: GoalStatus | None
    cause: GoalCause


@attrs.define
class OpenTurn:
    """The turn that was started and has no terminal event yet."""

    turn_id: str
    provider: str
    model: str
    automatic: bool = False
    goal_id: str | None = None
    """The goal that the turn is attached to."""
    steers: list[SteerAccepted] = attrs.field(factory=list)
    """Accepted and not delivered yet, oldest first."""
    calls: dict[str, ToolCall] = attrs.field(factory=dict)
    """Calls without a result, in call order."""
    call_ids: set[str] = attrs.field(factory=set)
    """The ids of all its calls."""
    pending: dict[str, ApprovalRequested | ExternalToolRequested] = attrs.field(factory=dict)
    """Requests for consent, and to the host, that have no answer, oldest first."""
    asked: set[str] = attrs.field(factory=set)
    """The ids of calls that the host was asked to run, answered or not."""
    worked: bool = False
    """A call was answered, a steer delivered, or the goal changed."""
    stopped: GoalStop | None = None
    """How the goal that the turn worked on was stopped since."""


@attrs.define(eq=False)
class ThreadState:
    """All that a resident thread knows of its log."""

    metadata: ThreadMetadata
    next_seq: int = 1
    next_item_seq: int = 1
    turns: dict[str, TurnEntry] = attrs.field(factory=dict)
    history: History = attrs.field(factory=History)
    numbers: ItemNumbers = attrs.field(factory=ItemNumbers)
    items: ItemFold = attrs.field(factory=ItemFold)
    open_turn: OpenTurn | None = None
    last_turn_id: str | None = None
    last_model: tuple[str, str] | None = None
    """Provider and model of the last turn that was started."""
    compactions: dict[str, str | None] = attrs.field(factory=dict)
    """Turn ids of compactions that were started and have no end yet, by compaction id."""
    checkpoints: dict[str, str] = attrs.field(factory=dict)
    """Turn ids of items of which parts are stored while they are open, by item id."""
    goal: Goal | None = None
    """The goal as it was last stored; its counters say nothing."""
    opening_tokens: int = 0
    opening_time: float = 0.0
    goal_time: float = 0.0
    empty_turns: int = 0
    """Automatic turns in a row that did nothing."""
    call_ids: set[str] = attrs.field(factory=set)
    """The ids of all calls outside the open turn."""
    extensions: dict[tuple[str, str], ExtensionStateRecord] = attrs.field(factory=dict)

    def turn(self, turn_id: str) -> TurnEntry:
        """Return the entry of a turn, making it on first mention."""
        entry = self.turns.get(turn_id)
        if entry is None:
            entry = self.turns[turn_id] = TurnEntry()
        return entry

    def is_open(self, turn_id: str | None) -> bool:
        """Return whether that turn was started and has no terminal event yet."""
        return self.open_turn is not None and self.open_turn.turn_id == turn_id


def fold_event(state: ThreadState, envelope: EventEnvelope) -> None:
    """Take one stored event into the state."""
    state.next_seq = max(state.next_seq, envelope.seq + 1)
    turn_id = envelope.turn_id
    match envelope.event:
        case TranscriptItemAppended() as event if turn_id is not None:
            state.next_item_seq = max(state.next_item_seq, event.item_seq + 1)
            _append(state, turn_id, event)
        case TurnStarted() as event if turn_id is not None:
            state.turn(turn_id).started = True
            state.last_turn_id, state.last_model = turn_id, (event.provider, event.model)
            state.open_turn = OpenTurn(turn_id, event.provider, event.model, event.automatic)
            state.open_turn.goal_id = attach_after(event, None, state.goal)
            if not event.automatic:
                state.empty_turns = 0
        case TurnCompleted() | TurnFailed() | TurnInterrupted() as event if turn_id is not None:
            _end_turn(state, turn_id, event)
        case SteerAccepted() as event:
            if state.open_turn is not None and state.is_open(turn_id):
                state.open_turn.steers.append(event)
        case ContextCompactionStarted() as event:
            state.compactions[event.compaction_id] = turn_id
        case ContextCompactionRecorded() | ContextCompactionFailed() | ContextCompactionCancelled() as event:
            state.compactions.pop(event.compaction_id, None)
        case ApprovalRequested() | ExternalToolRequested() | ApprovalResolved() | ExternalToolResolved() as event:
            _fold_request(state.open_turn, event)
        case GoalUpdated() | GoalCleared() | GoalTimeRecorded() as event:
            _fold_goal(state, event)
        case ThreadMetadataChanged() as event:
            changes = {field.name: getattr(event, field.name) for field in attrs.fields(ThreadMetadataChanged)}
            given = {name: value for name, value in changes.items() if value is not UNSET}
            state.metadata = attrs.evolve(state.metadata, **given)
        case _:
            pass  # usage stands on the board; unknown events of newer versions change nothing


def _fold_request(
    turn: OpenTurn | None, event: ApprovalRequested | ExternalToolRequested | ApprovalResolved | ExternalToolResolved
) -> None:
    if turn is None:
        return
    match event:
        case ApprovalRequested(approval_id):
            turn.pending[approval_id] = event
        case ExternalToolRequested(request_id, call_id):
            turn.pending[request_id] = event
            turn.asked.add(call_id)
        case ApprovalResolved(id) | ExternalToolResolved(id):
            turn.pending.pop(id, None)
        case _:
            assert_never(event)


def fold_item(state: ThreadState, event: ThreadItemEvent) -> None:
    """Take one item event, stored or derived, into the state."""
    state.next_item_seq = max(state.next_item_seq, event.seq + 1)
    item_id = event.event.item_id
    state.numbers.see(event.turn_id, item_id)
    state.items.apply(event)
    if event.checkpoint:
        state.checkpoints[item_id] = event.turn_id
    elif isinstance(event.event, ItemCompleted | ItemDiscarded):
        state.checkpoints.pop(item_id, None)


def fold_extension(state: ThreadState, record: ExtensionStateRecord) -> None:
    """Take one value of a host into the state."""
    if isinstance(record.scope, ThreadScope):
        state.extensions[record.extension_id, record.key] = record


def fold_snapshot(snapshot: ThreadSnapshot, metadata: ThreadMetadata) -> tuple[ThreadState, Ledger]:
    """Make the state and the usage ledger of a thread from all that a store holds of it."""
    state = ThreadState(metadata)
    ledger = Ledger()
    told = {e.turn_id for e in snapshot.events if isinstance(e.event, TranscriptItemAppended)}
    started = {e.turn_id for e in snapshot.events if isinstance(e.event, TurnStarted)}
    untold = {record.turn_id: record.items for record in snapshot.turns if record.turn_id not in told}
    for turn_id in [turn_id for turn_id in untold if turn_id not in started]:
        _append_untold(state, turn_id, untold)
    for envelope in snapshot.events:
        fold_event(state, envelope)
        if isinstance(envelope.event, TurnStarted) and envelope.turn_id is not None:
            _append_untold(state, envelope.turn_id, untold)
        elif isinstance(envelope.event, UsageRecorded):
            ledger.apply(envelope.event)
    item_events = merge(snapshot.item_events, snapshot.events)
    for event in item_events:
        fold_item(state, event)
    _show_bare_turns(state, snapshot, {event.turn_id for event in item_events})
    for extension in snapshot.extension_states:
        fold_extension(state, extension)
    return state, ledger


def _append_untold(state: ThreadState, turn_id: str, untold: dict[str, tuple[TranscriptItem, ...]]) -> None:
    """Take the items of a turn whose events a store doesn't have, where the turn began."""
    for index, item in enumerate(untold.pop(turn_id, ())):
        _append(state, turn_id, TranscriptItemAppended(index, item))


def _show_bare_turns(state: ThreadState, snapshot: ThreadSnapshot, shown: Iterable[str]) -> None:
    for record in snapshot.turns:
        if record.turn_id not in shown:
            for event in project_turn(record.turn_id, record.items):
                state.items.apply(event)


def _append(state: ThreadState, turn_id: str, event: TranscriptItemAppended) -> None:
    entry = state.turn(turn_id)
    entry.count = max(entry.count, event.index + 1)
    state.history.append(event.item)
    item = event.item
    if isinstance(item, AssistantMessage) and is_final_phase(item.phase):
        entry.answer = item.text
    turn = state.open_turn
    if turn is None or turn.turn_id != turn_id:
        if isinstance(item, ToolCall):
            state.call_ids.add(item.id)
        return
    if event.steer_id is not None:
        turn.steers = [steer for steer in turn.steers if steer.steer_id != event.steer_id]
        turn.worked = True
    if isinstance(item, ToolCall):
        turn.calls[item.id] = item
        turn.call_ids.add(item.id)
    elif isinstance(item, ToolResult):
        turn.calls.pop(item.id, None)
        turn.worked = True


def _end_turn(state: ThreadState, turn_id: str, event: TerminalEvent) -> None:
    entry = state.turn(turn_id)
    if entry.terminal is None:
        entry.terminal = event
    if state.open_turn is not None and state.is_open(turn_id):
        empty = state.open_turn.automatic and not state.open_turn.worked and isinstance(event, TurnCompleted)
        state.empty_turns = state.empty_turns + 1 if empty else 0
        state.call_ids |= state.open_turn.call_ids
        state.open_turn = None


def _fold_goal(state: ThreadState, event: GoalUpdated | GoalCleared | GoalTimeRecorded) -> None:
    if isinstance(event, GoalTimeRecorded):
        if state.goal is not None and state.goal.goal_id == event.goal_id:
            state.goal_time += event.seconds
        return
    if event.cause in (GoalCause.HOST, GoalCause.MODEL):
        state.empty_turns = 0
    if state.open_turn is not None:
        _fold_goal_of_turn(state, state.open_turn, event)
    if isinstance(event, GoalCleared):
        state.goal = None
        return
    if state.goal is None or state.goal.goal_id != event.goal.goal_id:
        state.opening_tokens, state.opening_time, state.goal_time = event.opening_tokens, event.opening_time, 0.0
    state.goal = attrs.evolve(event.goal, tokens_used=0, time_used=0.0)


def _fold_goal_of_turn(state: ThreadState, turn: OpenTurn, event: GoalUpdated | GoalCleared) -> None:
    """Say what a change of the goal makes of the turn that is open."""
    before, turn.goal_id = turn.goal_id, attach_after(event, turn.goal_id, state.goal)
    turn.worked = turn.worked or event.cause in (GoalCause.HOST, GoalCause.MODEL)
    if turn.goal_id is not None:
        turn.stopped = None
    elif before is not None:
        status = event.goal.status if isinstance(event, GoalUpdated) else None
        turn.stopped = None if status is GoalStatus.COMPLETE else GoalStop(status, event.cause)
