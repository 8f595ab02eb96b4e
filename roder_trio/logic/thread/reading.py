"""What is read from a thread's whole log because its state may not hold it: what is shown, and how turns ended."""

from roder_trio.logic.item import ItemFold, merge
from roder_trio.logic.thread.hydration import show_bare_turns
from roder_trio.logic.thread.state import TurnEntry
from roder_trio.logic.thread.turns import outcome_of
from roder_trio.schema.event import TERMINAL_EVENTS
from roder_trio.schema.item import ThreadItem
from roder_trio.schema.thread import ThreadSnapshot
from roder_trio.schema.transcript import AssistantMessage, is_final_phase
from roder_trio.schema.turn import TurnOutcome


def shown_items(snapshot: ThreadSnapshot) -> tuple[ThreadItem, ...]:
    """Return what is shown of a thread, apart from what is only live."""
    shown = ItemFold()
    item_events = merge(snapshot.item_events, snapshot.events)
    for event in item_events:
        shown.apply(event)
    show_bare_turns(shown, snapshot, item_events)
    return shown.items()


def stored_outcome(snapshot: ThreadSnapshot, turn_id: str) -> TurnOutcome | None:
    """Return how a turn ended; None if the log doesn't say."""
    entry = TurnEntry()
    for record in snapshot.turns:
        for item in record.items if record.turn_id == turn_id else ():
            if isinstance(item, AssistantMessage) and is_final_phase(item.phase):
                entry.answer = item.text
    for envelope in snapshot.events:
        if envelope.turn_id == turn_id and isinstance(envelope.event, TERMINAL_EVENTS):
            return outcome_of(turn_id, entry, envelope.event)
    return None
