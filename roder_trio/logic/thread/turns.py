"""Commands on a running turn, and what its job reports.

A turn's single terminal event is made here: in the commit of its final step, else from the job's last word.
"""

from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from typing import assert_never

import attrs

from roder_trio.errors import NoActiveTurn, SteerQueueFull, UnknownTurn
from roder_trio.logic.boundary import is_boundary
from roder_trio.logic.thread import tools
from roder_trio.logic.thread.compactions import in_band_recorded
from roder_trio.logic.thread.draft import AppendItem, DiscardOpen, Draft, Emit
from roder_trio.logic.thread.facts import DEFERRED, FROM_LOG, VIEW, Decision, Deferred, Facts, Phase
from roder_trio.logic.thread.goals import at_turn_end, goes_on, pause_goal
from roder_trio.logic.thread.state import OpenTurn, ThreadState, TurnEntry
from roder_trio.schema.command import (
    CancelJob,
    CompactionEnded,
    ContinueLater,
    EndTurn,
    Failed,
    FinalStep,
    Finished,
    FreeSlot,
    Interrupt,
    Interrupted,
    ItemsDone,
    JobEnded,
    PreemptStep,
    Publish,
    Steer,
    StepEnded,
    TakeSteers,
    ToolResultsDone,
    WaitTurn,
)
from roder_trio.schema.event import (
    ContextCompactionCancelled,
    SteerAccepted,
    TerminalEvent,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnInterruptRequested,
)
from roder_trio.schema.transcript import ErrorNote, ProviderMetadata, ToolCall, ToolResult, TranscriptItem
from roder_trio.schema.turn import TurnOutcome
from roder_trio.schema.usage import TokenUsage

CALLER_LEFT = "caller_left"
BY_USER = "user"
DEADLINE = "deadline"
"""The cause of a turn whose time is over; whoever interrupts it still says why."""

# -- commands ----------------------------------------------------------------------------------------------------------


def steer(state: ThreadState, command: Steer, facts: Facts) -> Decision:
    """Accept a steer: it is durable before it cancels anything."""
    turn = state.open_turn
    takes = facts.slot.phase is Phase.RUNNING and facts.cause is None
    if turn is None or turn.turn_id != command.turn_id or facts.slot.turn_id != command.turn_id or not takes:
        raise NoActiveTurn(command.turn_id)
    if len(turn.steers) >= facts.config.max_pending_steers:
        raise SteerQueueFull(facts.config.max_pending_steers)
    accepted = Emit(SteerAccepted(command.steer_id, command.message), command.turn_id)
    return Decision((accepted,), (PreemptStep(),))


def interrupt(state: ThreadState, command: Interrupt, facts: Facts) -> Decision:
    """Cancel a running turn, or a manual compaction whose caller left; all else is left alone, silently.

    One that a user means for the turn that just ended stops what goes on with its goal, and what goes on after that.
    """
    if command.reason == BY_USER:
        if facts.slot.continues == command.turn_id and facts.slot.turn_id is not None:
            command = attrs.evolve(command, turn_id=facts.slot.turn_id)
        if facts.continues_after == command.turn_id:
            return pause_goal(state, facts)
    if facts.slot.turn_id != command.turn_id:
        return Decision()
    if facts.slot.phase is Phase.COMPACTING and command.reason == CALLER_LEFT:
        return Decision(effects=(CancelJob(command.reason),))
    if facts.slot.phase is not Phase.RUNNING:
        return Decision()
    first = facts.cause if facts.cause not in (None, DEADLINE) else command.reason
    requested = Publish(TurnInterruptRequested(first), command.turn_id)
    return Decision(effects=(CancelJob(command.reason), requested))


def wait_turn(state: ThreadState, command: WaitTurn, facts: Facts) -> Decision | Deferred:
    """Answer with the turn's outcome, once its terminal event is stored."""
    entry = state.turns.get(command.turn_id)
    if entry is None or not (entry.started or entry.ended):
        raise UnknownTurn(command.turn_id)
    if entry.in_log:
        return Decision(reply=FROM_LOG)
    if entry.terminal is None:
        return DEFERRED
    return Decision(reply=outcome_of(command.turn_id, entry, entry.terminal))


def outcome_of(turn_id: str, entry: TurnEntry, event: TerminalEvent) -> TurnOutcome:
    """Return how a turn ended, from its terminal event and its last answer."""
    cost = Decimal(0) if event.usage is None else None
    ended = partial(TurnOutcome, turn_id, text=entry.answer or "", usage=event.usage, cost=cost)
    match event:
        case TurnCompleted(finish_reason=reason):
            return ended(status="completed", finish_reason=reason)
        case TurnFailed(error, kind, undelivered_steers=steers):
            return ended(status="failed", error=error, error_kind=kind, undelivered_steers=steers)
        case TurnInterrupted(reason, undelivered_steers=steers):
            return ended(status="interrupted", reason=reason, undelivered_steers=steers)
    assert_never(event)


# -- reports -----------------------------------------------------------------------------------------------------------


def items_done(state: ThreadState, report: ItemsDone, facts: Facts) -> Decision:
    """Store items that the stream has completed, while it goes on."""
    return Decision(_appended(report.turn_id, report.items))


def take_steers(state: ThreadState, report: TakeSteers, facts: Facts) -> Decision:
    """Begin a round: steers that wait become messages."""
    return Decision(_steers(state, facts), reply=VIEW)


def step_ended(state: ThreadState, report: StepEnded, facts: Facts) -> Decision:
    """Close a step that another round follows."""
    drafts = (*_left_by_step(state, report.turn_id, report.items), DiscardOpen(report.turn_id), *_steers(state, facts))
    return Decision(drafts, reply=VIEW)


def final_step(state: ThreadState, report: FinalStep, facts: Facts) -> Decision:
    """Close a step that ends the turn, unless a steer or an interrupt came first."""
    if facts.cause is not None or undelivered(state):
        drafts = _left_by_step(state, report.turn_id, report.items if report.otherwise is None else report.otherwise)
        return Decision((*drafts, DiscardOpen(report.turn_id), *_steers(state, facts)), reply=VIEW)
    drafts = _left_by_step(state, report.turn_id, report.items)
    completed = TurnCompleted(_usage(report.turn_id, facts), report.finish_reason)
    goal = at_turn_end(state, facts, completed)
    ending = (DiscardOpen(report.turn_id, hosted=True), *goal, Emit(completed, report.turn_id))
    later = (ContinueLater(report.turn_id),) if goes_on(state, facts, goal) else ()
    return Decision((*drafts, *ending), (EndTurn(report.turn_id), *later), finishing=True)


def tool_results_done(state: ThreadState, report: ToolResultsDone, facts: Facts) -> Decision:
    """Store the results of a batch, in call order."""
    return Decision((*_appended(report.turn_id, report.items), *_steers(state, facts)), reply=VIEW)


def job_ended(state: ThreadState, report: JobEnded, facts: Facts) -> Decision:
    """Free the slot and, if it isn't stored yet, make the terminal event. An old job's late word is dropped."""
    if facts.slot.turn_id != report.turn_id:
        return Decision()
    if not state.is_open(report.turn_id):
        return Decision(_cancelled(state, report.turn_id, "interrupted"), (FreeSlot(),))
    drafts = _terminal(state, report, facts)
    return Decision(drafts, (EndTurn(report.turn_id), FreeSlot()))


def _terminal(state: ThreadState, report: JobEnded, facts: Facts) -> tuple[Draft, ...]:
    usage = _usage(report.turn_id, facts)
    match report.outcome:
        case Interrupted(reason, items):
            event: TerminalEvent = TurnInterrupted(reason, usage, undelivered(state))
            return end_open_turn(state, facts, event, items, call_error="interrupted")
        case Failed(error, kind, items, call_error):
            event = TurnFailed(error, kind, usage, undelivered(state))
            return end_open_turn(state, facts, event, (*items, ErrorNote(error)), call_error=call_error)
        case Finished() | CompactionEnded():
            event = TurnFailed("The job ended without an outcome.", "internal", usage, undelivered(state))
            return end_open_turn(state, facts, event, (ErrorNote(event.error),), call_error="not run: internal")
    assert_never(report.outcome)


def end_open_turn(
    state: ThreadState,
    facts: Facts,
    event: TerminalEvent,
    items: Iterable[TranscriptItem] = (),
    *,
    call_error: str,
    asked_error: str | None = None,
    compaction_reason: str = "interrupted",
) -> tuple[Draft, ...]:
    """Return all of the commit that ends the open turn early: every call gets a result, every pending thing its end.

    `asked_error` is the text for calls that the host was asked to run; None: the same as for the others.
    """
    turn = state.open_turn
    if turn is None:
        return ()
    ended = _closed(state, turn, items, call_error, asked_error, compaction_reason)
    return (*ended, *at_turn_end(state, facts, event), Emit(event, turn.turn_id))


def end_left_turn(
    state: ThreadState, turn: OpenTurn, event: TerminalEvent, *, call_error: str, asked_error: str, reason: str
) -> tuple[Draft, ...]:
    """Return what ends a turn that another one followed before it had its end; the goal is the other's concern."""
    return (*_closed(state, turn, (), call_error, asked_error, reason), Emit(event, turn.turn_id))


def _closed(
    state: ThreadState,
    turn: OpenTurn,
    items: Iterable[TranscriptItem],
    call_error: str,
    asked_error: str | None,
    compaction_reason: str,
) -> tuple[Draft, ...]:
    """Return all that a turn leaves: its last items, a result for each call, an end for each pending thing."""
    spoken = [item for item in items if not isinstance(item, ErrorNote | ToolResult)]
    notes = [item for item in items if isinstance(item, ErrorNote)]
    answered = {item.id: item for item in items if isinstance(item, ToolResult)}
    calls = [*turn.calls.values(), *(item for item in spoken if isinstance(item, ToolCall))]
    errors = {call.id: asked_error or call_error if call.id in turn.asked else call_error for call in calls}
    results = [answered.get(c.id) or ToolResult(c.id, c.name, errors[c.id], is_error=True) for c in calls]
    return (
        *tools.cancelled_requests(turn),
        *_appended(turn.turn_id, [*spoken, *results]),
        *_cancelled(state, turn.turn_id, compaction_reason),
        DiscardOpen(turn.turn_id, hosted=True),
        *_appended(turn.turn_id, notes),
    )


def undelivered(state: ThreadState) -> tuple[SteerAccepted, ...]:
    """Return the steers that were accepted and not delivered, oldest first."""
    return () if state.open_turn is None else tuple(state.open_turn.steers)


def _left_by_step(state: ThreadState, turn_id: str, items: tuple[TranscriptItem, ...]) -> tuple[Draft, ...]:
    """Return what a step leaves; a call that the engine ran inside its stream and left open gets its result first."""
    calls = () if state.open_turn is None else state.open_turn.calls.values()
    answered = {item.id for item in items if isinstance(item, ToolResult)}
    cut = [ToolResult(c.id, c.name, "interrupted", is_error=True) for c in calls if c.id not in answered]
    return _appended(turn_id, (*cut, *items))


def _appended(turn_id: str, items: Iterable[TranscriptItem]) -> tuple[Draft, ...]:
    drafts: list[Draft] = []
    for item in items:
        drafts.append(AppendItem(turn_id, item, live=True))
        if isinstance(item, ProviderMetadata) and is_boundary(item):
            drafts.append(Emit(in_band_recorded(turn_id, item), turn_id))
    return tuple(drafts)


def _steers(state: ThreadState, facts: Facts) -> tuple[Draft, ...]:
    """Deliver the steers that wait, unless the turn was told to stop: then they are handed back."""
    turn = state.open_turn
    if turn is None or facts.cause is not None:
        return ()
    return tuple(AppendItem(turn.turn_id, steer.message, steer_id=steer.steer_id) for steer in turn.steers)


def _cancelled(state: ThreadState, turn_id: str, reason: str) -> tuple[Draft, ...]:
    mine = [compaction_id for compaction_id, owner in state.compactions.items() if owner == turn_id]
    return tuple(Emit(ContextCompactionCancelled(compaction_id, reason), turn_id) for compaction_id in mine)


def _usage(turn_id: str, facts: Facts) -> TokenUsage | None:
    usage = facts.totals.turn(turn_id)
    return None if usage.is_empty else usage
