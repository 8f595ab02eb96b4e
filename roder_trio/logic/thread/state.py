"""A thread's state, and the fold that makes it from stored events.

`fold_event`, `fold_item`, `fold_items` and `fold_extension` are the only functions that change a `ThreadState`, live
and when a log is read alike, so folding all events gives the live state. What the log doesn't tell (the phase of a job,
waiters, open text) is not in here. What only seldom anyone asks for goes with each summary, and is read from the log
again if someone does, so a thread with summaries grows by ids and counts alone.
"""

from collections.abc import Sequence
from typing import assert_never

import attrs

from roder_trio.logic.goal.rules import attach_after
from roder_trio.logic.item import ItemFold, ItemNumbers, ItemStep, Pinned, fold_kind, project
from roder_trio.logic.tool.refusal import was_refused
from roder_trio.logic.window import History
from roder_trio.schema.event import (
    ApprovalRequested,
    ApprovalResolved,
    ContextCompactionCancelled,
    ContextCompactionFailed,
    ContextCompactionRecorded,
    ContextCompactionStarted,
    ContextPruned,
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
from roder_trio.schema.item import ItemCompleted, ItemDelta, ItemDiscarded, ItemEventKind, ThreadItem, ThreadItemEvent
from roder_trio.schema.thread import ExtensionStateRecord, ThreadMetadata, ThreadScope
from roder_trio.schema.transcript import AssistantMessage, ContextCompaction, ToolCall, ToolResult, is_final_phase


@attrs.define
class TurnEntry:
    """What is kept of every turn: how many items it has, its last answer, how it ended."""

    count: int = 0
    answer: str | None = ""
    """None: not held any more."""
    started: bool = False
    terminal: TerminalEvent | None = None
    in_log: bool = False
    """The turn has ended, and only the log holds how."""

    @property
    def ended(self) -> bool:
        """Whether the turn has its terminal event."""
        return self.in_log or self.terminal is not None

    def shed(self) -> None:
        """Hold only what can't be read again by turn id: the counts."""
        self.answer, self.in_log, self.terminal = None, self.ended, None


@attrs.define
class HeldText:
    """An item of which parts are stored while it is open."""

    turn_id: str
    item: ThreadItem | None
    """As far as its stored parts tell; None if something else had ended it before."""


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
    call_ids: dict[str, None] = attrs.field(factory=dict)
    """The ids of all its calls; a set weighs three times as much while it is empty."""
    pending: dict[str, ApprovalRequested | ExternalToolRequested] = attrs.field(factory=dict)
    """Requests for consent, and to the host, that have no answer, oldest first."""
    asked: dict[str, None] = attrs.field(factory=dict)
    """The ids of calls that the host was asked to run, answered or not."""
    worked: bool = False
    """A call was run, a steer delivered, or the goal changed."""
    stopped: GoalStop | None = None
    """How the goal that the turn worked on was stopped since."""


@attrs.define(eq=False)
class ThreadState:
    """All that a resident thread knows of its log."""

    metadata: ThreadMetadata
    next_seq: int = 1
    next_item_seq: int = 1
    turns: dict[str, TurnEntry] = attrs.field(factory=dict)
    whole_turns: list[str] = attrs.field(factory=list)
    """Those that hold more than their counts."""
    history: History = attrs.field(factory=History)
    numbers: ItemNumbers = attrs.field(factory=ItemNumbers)
    items: ItemFold | None = attrs.field(factory=ItemFold)
    """What is shown of the thread; None: only the log tells."""
    open_turn: OpenTurn | None = None
    left_open: list[OpenTurn] = attrs.field(factory=list)
    """Earlier turns whose ends the log lacks, oldest first; what it says of them since is in here."""
    last_turn_id: str | None = None
    last_model: tuple[str, str] | None = None
    """Provider and model of the last turn that was started."""
    compactions: dict[str, str | None] = attrs.field(factory=dict)
    """Turn ids of compactions that were started and have no end yet, by compaction id."""
    checkpoints: dict[str, HeldText] = attrs.field(factory=dict)
    """Items of which parts are stored while they are open, by item id."""
    goal: Goal | None = None
    """The goal as it was last stored; its counters say nothing."""
    opening_tokens: int = 0
    opening_time: float = 0.0
    goal_time: float = 0.0
    empty_turns: int = 0
    """Automatic turns in a row that did nothing."""
    call_ids: dict[str, None] = attrs.field(factory=dict)
    """The ids of all calls outside the open turn."""
    extensions: dict[tuple[str, str], ExtensionStateRecord] = attrs.field(factory=dict)

    def turn(self, turn_id: str) -> TurnEntry:
        """Return the entry of a turn, making it on first mention."""
        entry = self.turns.get(turn_id)
        if entry is None:
            entry = self.turns[turn_id] = TurnEntry()
            self.whole_turns.append(turn_id)
        return entry

    def is_open(self, turn_id: str | None) -> bool:
        """Return whether that turn was started and has no terminal event yet."""
        return self.open_turn is not None and self.open_turn.turn_id == turn_id

    def shed(self) -> None:
        """Hold no more than decisions need: neither what is shown, nor how turns ended but the open one's answer."""
        self.items = None
        for turn_id in self.whole_turns:
            if not self.is_open(turn_id):
                self.turns[turn_id].shed()
        self.whole_turns = [turn_id for turn_id in self.whole_turns if self.is_open(turn_id)]


def fold_event(state: ThreadState, envelope: EventEnvelope) -> None:
    """Take one stored event into the state."""
    state.next_seq = max(state.next_seq, envelope.seq + 1)
    turn_id = envelope.turn_id
    match envelope.event:
        case TranscriptItemAppended() as event if turn_id is not None:
            fold_appended(state, turn_id, event)
        case UsageRecorded():
            pass  # it stands on the board
        case TurnStarted() as event if turn_id is not None:
            _begin_turn(state, turn_id, event)
        case TurnCompleted() | TurnFailed() | TurnInterrupted() as event if turn_id is not None:
            _end_turn(state, turn_id, event)
        case SteerAccepted() as event:
            if state.open_turn is not None and state.is_open(turn_id):
                state.open_turn.steers.append(event)
        case ContextPruned(places):
            state.history.prune(places)
        case (
            ContextCompactionStarted()
            | ContextCompactionRecorded()
            | ContextCompactionFailed()
            | ContextCompactionCancelled() as event
        ):
            _fold_compaction(state, turn_id, event)
        case ApprovalRequested() | ExternalToolRequested() | ApprovalResolved() | ExternalToolResolved() as event:
            _fold_request(state.open_turn, event)
        case GoalUpdated() | GoalCleared() | GoalTimeRecorded() as event:
            _fold_goal(state, event)
        case ThreadMetadataChanged() as event:
            changes = {field.name: getattr(event, field.name) for field in attrs.fields(ThreadMetadataChanged)}
            given = {name: value for name, value in changes.items() if value is not UNSET}
            state.metadata = attrs.evolve(state.metadata, **given)
        case _:
            pass  # unknown events of newer versions change nothing


def _begin_turn(state: ThreadState, turn_id: str, event: TurnStarted) -> None:
    state.turn(turn_id).started = True
    state.last_turn_id, state.last_model = turn_id, (event.provider, event.model)
    _leave_open(state)
    state.open_turn = OpenTurn(turn_id, event.provider, event.model, event.automatic)
    state.open_turn.goal_id = attach_after(event, None, state.goal)
    if not event.automatic:
        state.empty_turns = 0


def _leave_open(state: ThreadState) -> None:
    """Another turn starts although one has no end: that one waits for hydration to close it."""
    if state.open_turn is not None:
        state.left_open.append(state.open_turn)
        state.call_ids |= state.open_turn.call_ids


def _fold_compaction(
    state: ThreadState,
    turn_id: str | None,
    event: ContextCompactionStarted | ContextCompactionRecorded | ContextCompactionFailed | ContextCompactionCancelled,
) -> None:
    if isinstance(event, ContextCompactionStarted):
        state.compactions[event.compaction_id] = turn_id
    else:
        state.compactions.pop(event.compaction_id, None)


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
            turn.asked[call_id] = None
        case ApprovalResolved(id) | ExternalToolResolved(id):
            turn.pending.pop(id, None)
        case _:
            assert_never(event)


def fold_item(state: ThreadState, event: ThreadItemEvent) -> None:
    """Take one item event, stored or derived, into the state."""
    _fold_step(state, event)
    if state.items is not None:
        state.items.apply(event)


def fold_items(state: ThreadState, steps: Sequence[ItemStep]) -> None:
    """Take the item events of a log into the state; what is shown of them is projected when someone asks for it."""
    for step in steps:
        _fold_step(state, step)
    if state.items is not None:
        state.items.follow(steps)


def _fold_step(state: ThreadState, step: ItemStep) -> None:
    state.next_item_seq = max(state.next_item_seq, step.seq + 1)
    if isinstance(step, Pinned):
        item_id = step.item_id
        if item_id in state.checkpoints:
            for kind in project(step.item, item_id):
                _fold_held(state, step.turn_id, kind, checkpoint=False)
    else:
        item_id = step.event.item_id
        _fold_held(state, step.turn_id, step.event, checkpoint=step.checkpoint)
    state.numbers.see(step.turn_id, item_id)


def _fold_held(state: ThreadState, turn_id: str, kind: ItemEventKind, *, checkpoint: bool) -> None:
    """Keep what checkpoints hold; the first one makes the item, or finds it ended by a host."""
    item_id = kind.item_id
    held = state.checkpoints.get(item_id)
    if isinstance(kind, ItemCompleted | ItemDiscarded):
        state.checkpoints.pop(item_id, None)
    elif held is not None:
        held.item = None if held.item is None and isinstance(kind, ItemDelta) else fold_kind(held.item, kind)
    elif checkpoint:
        ended = isinstance(kind, ItemDelta) and state.numbers.knows(turn_id, item_id)
        state.checkpoints[item_id] = HeldText(turn_id, None if ended else fold_kind(None, kind))


def fold_extension(state: ThreadState, record: ExtensionStateRecord) -> None:
    """Take one value of a host into the state."""
    if isinstance(record.scope, ThreadScope):
        state.extensions[record.extension_id, record.key] = record


def fold_appended(state: ThreadState, turn_id: str, event: TranscriptItemAppended) -> None:
    """Take one transcript item into the state."""
    state.next_item_seq = max(state.next_item_seq, event.item_seq + 1)
    entry = state.turn(turn_id)
    entry.count = max(entry.count, event.index + 1)
    state.history.append(event.item, (turn_id, event.index))
    item = event.item
    if isinstance(item, ContextCompaction):
        state.history.drop_summarised()
        state.shed()
    if isinstance(item, AssistantMessage) and is_final_phase(item.phase) and entry.answer is not None:
        entry.answer = item.text
    turn = state.open_turn
    if turn is None or turn.turn_id != turn_id:
        if isinstance(item, ToolCall):
            state.call_ids[item.id] = None
        for left in state.left_open:
            if left.turn_id == turn_id and isinstance(item, ToolResult):
                left.calls.pop(item.id, None)
        return
    if event.steer_id is not None:
        turn.steers = [steer for steer in turn.steers if steer.steer_id != event.steer_id]
        turn.worked = True
    if isinstance(item, ToolCall):
        turn.calls[item.id] = item
        turn.call_ids[item.id] = None
    elif isinstance(item, ToolResult):
        turn.calls.pop(item.id, None)
        turn.worked = turn.worked or not was_refused(item)


def _end_turn(state: ThreadState, turn_id: str, event: TerminalEvent) -> None:
    entry = state.turn(turn_id)
    if not entry.ended:
        entry.terminal = event
        if entry.answer is None:
            entry.shed()
    if state.open_turn is not None and state.is_open(turn_id):
        empty = state.open_turn.automatic and not state.open_turn.worked and isinstance(event, TurnCompleted)
        state.empty_turns = state.empty_turns + 1 if empty else 0
        state.call_ids |= state.open_turn.call_ids
        state.open_turn = None
    state.left_open = [left for left in state.left_open if left.turn_id != turn_id]


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
    status = event.goal.status if isinstance(event, GoalUpdated) else None
    if turn.goal_id is not None or status is GoalStatus.COMPLETE:
        turn.stopped = None
    elif (before is not None or turn.stopped is not None) and status is not GoalStatus.BUDGET_LIMITED:
        turn.stopped = GoalStop(status, event.cause)
