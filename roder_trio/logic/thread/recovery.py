"""What hydration stores about turns that their log says were running: each one's end. Nothing is run again."""

from datetime import datetime

from roder_trio.logic.thread.draft import AppendItem, Draft, Emit, RecordItem
from roder_trio.logic.thread.facts import Facts
from roder_trio.logic.thread.state import ThreadState
from roder_trio.logic.thread.turns import end_left_turn, end_open_turn, undelivered
from roder_trio.logic.usage import Ledger
from roder_trio.schema.event import ContextCompactionCancelled, TurnInterrupted
from roder_trio.schema.item import AgentMessage, ItemDiscarded, ItemStatus
from roder_trio.schema.transcript import AssistantMessage
from roder_trio.schema.usage import TokenUsage

RESTART = "runtime_restart"
RESTARTED = "runtime restarted"
OUTCOME_UNKNOWN = "outcome unknown after restart"
"""Of a call that the host was asked to run."""


def close_open_work(state: ThreadState, ledger: Ledger, facts: Facts) -> tuple[Draft, ...]:
    """Return what closes all that a crash left open; nothing if nothing is."""
    turn = state.open_turn
    turn_id = None if turn is None else turn.turn_id
    left = {earlier.turn_id for earlier in state.left_open}
    stray = tuple(
        Emit(ContextCompactionCancelled(compaction_id, RESTART), owner)
        for compaction_id, owner in state.compactions.items()
        if owner != turn_id and owner not in left
    )
    earlier = _ends_of_left_turns(state, ledger, facts)
    if turn is None:
        return (*earlier, *stray)
    event = TurnInterrupted(RESTART, _usage(ledger, turn.turn_id), undelivered(state))
    end = end_open_turn(
        state, facts, event, call_error=RESTARTED, asked_error=OUTCOME_UNKNOWN, compaction_reason=RESTART
    )
    return (*earlier, *_unfinished_text(state, turn.turn_id, facts.now), *stray, *end)


def _ends_of_left_turns(state: ThreadState, ledger: Ledger, facts: Facts) -> tuple[Draft, ...]:
    drafts: list[Draft] = []
    for turn in state.left_open:
        drafts += _unfinished_text(state, turn.turn_id, facts.now)
        event = TurnInterrupted(RESTART, _usage(ledger, turn.turn_id), tuple(turn.steers))
        drafts += end_left_turn(state, turn, event, call_error=RESTARTED, asked_error=OUTCOME_UNKNOWN, reason=RESTART)
    return tuple(drafts)


def _usage(ledger: Ledger, turn_id: str) -> TokenUsage | None:
    usage = ledger.turn(turn_id)
    return None if usage.is_empty else usage


def _unfinished_text(state: ThreadState, turn_id: str, now: datetime) -> tuple[Draft, ...]:
    """What checkpoints hold of open messages, under their own ids; one of white space only is dropped."""
    held = [text.item for text in state.checkpoints.values() if text.turn_id == turn_id]
    return tuple(
        AppendItem(turn_id, AssistantMessage(item.text, item.phase, interrupted=True), item_id=item.id)
        if item.text.strip()
        else RecordItem(turn_id, ItemDiscarded(item.id), now)
        for item in held
        if isinstance(item, AgentMessage) and item.status is ItemStatus.IN_PROGRESS
    )
