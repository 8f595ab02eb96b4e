"""What hydration stores about a turn that its log says was running: its one end. Nothing is run again."""

from datetime import datetime

from roder_trio.logic.thread.draft import AppendItem, Draft, Emit, RecordItem
from roder_trio.logic.thread.facts import Facts
from roder_trio.logic.thread.state import ThreadState
from roder_trio.logic.thread.turns import end_open_turn, undelivered
from roder_trio.logic.usage import Ledger
from roder_trio.schema.event import ContextCompactionCancelled, TurnInterrupted
from roder_trio.schema.item import AgentMessage, ItemDiscarded, ItemStatus
from roder_trio.schema.transcript import AssistantMessage

RESTART = "runtime_restart"


def close_open_work(state: ThreadState, ledger: Ledger, facts: Facts) -> tuple[Draft, ...]:
    """Return what closes all that a crash left open; nothing if nothing is."""
    turn = state.open_turn
    turn_id = None if turn is None else turn.turn_id
    stray = tuple(
        Emit(ContextCompactionCancelled(compaction_id, RESTART), owner)
        for compaction_id, owner in state.compactions.items()
        if owner != turn_id
    )
    if turn is None:
        return stray
    usage = ledger.turn(turn.turn_id)
    event = TurnInterrupted(RESTART, None if usage.is_empty else usage, undelivered(state))
    end = end_open_turn(
        state,
        facts,
        event,
        call_error="runtime restarted",
        asked_error="outcome unknown after restart",
        compaction_reason=RESTART,
    )
    return (*_unfinished_text(state, turn.turn_id, facts.now), *stray, *end)


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
