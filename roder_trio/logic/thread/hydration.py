"""Making a thread's state from what a store holds: its whole log, or an earlier state and the records after it.

Both ways give the same, by the folds that live events go through. A state that was kept may hold less than one that
was folded from the whole log, but only of what is read from the log when someone asks for it.
"""

from collections.abc import Iterable

import attrs

from roder_trio.logic.item import ItemFold, merge, project_turn
from roder_trio.logic.thread.state import ThreadState, fold_appended, fold_event, fold_extension, fold_item
from roder_trio.logic.usage import Ledger
from roder_trio.schema.event import EventEnvelope, TranscriptItemAppended, TurnStarted, UsageRecorded
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import ExtensionStateRecord, StoredRecord, StoreRepair, ThreadMetadata, ThreadSnapshot
from roder_trio.schema.transcript import TranscriptItem


@attrs.frozen(eq=False)
class Hydration:
    """A thread as its store tells it; whoever is given one owns it."""

    state: ThreadState
    ledger: Ledger
    repairs: tuple[StoreRepair, ...] = ()
    """What was set aside to read it."""


def fold_snapshot(snapshot: ThreadSnapshot, metadata: ThreadMetadata) -> Hydration:
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
    if state.items is not None:
        show_bare_turns(state.items, snapshot, item_events)
    for extension in snapshot.extension_states:
        fold_extension(state, extension)
    return Hydration(state, ledger, snapshot.repairs)


def fold_tail(kept: Hydration, metadata: ThreadMetadata, records: Iterable[StoredRecord]) -> Hydration | None:
    """Continue a kept state with all records that were stored after it; `metadata` is that of now.

    Costs what the records cost, however long the thread is. `kept` is used up. None: only the whole log tells, since a
    record changes what `kept` holds as a sum, or has a number from before it.
    """
    state, ledger = kept.state, kept.ledger
    state.metadata = metadata
    tail = list(records)
    envelopes = [record for record in tail if isinstance(record, EventEnvelope)]
    item_events = merge([record for record in tail if isinstance(record, ThreadItemEvent)], envelopes)
    if item_events and item_events[0].seq < state.next_item_seq:
        return None
    for envelope in envelopes:
        fold_event(state, envelope)
        if isinstance(envelope.event, UsageRecorded):
            if envelope.event.attempt_id in ledger.closed.attempts:
                return None
            ledger.apply(envelope.event)
    for event in item_events:
        fold_item(state, event)
    for record in tail:
        if isinstance(record, ExtensionStateRecord):
            fold_extension(state, record)
    return kept


def _append_untold(state: ThreadState, turn_id: str, untold: dict[str, tuple[TranscriptItem, ...]]) -> None:
    """Take the items of a turn whose events a store doesn't have, where the turn began."""
    for index, item in enumerate(untold.pop(turn_id, ())):
        fold_appended(state, turn_id, TranscriptItemAppended(index, item))


def show_bare_turns(shown: ItemFold, snapshot: ThreadSnapshot, item_events: Iterable[ThreadItemEvent]) -> None:
    """Show turns that have items and no item event at all."""
    known = {event.turn_id for event in item_events}
    for record in snapshot.turns:
        if record.turn_id not in known:
            for event in project_turn(record.turn_id, record.items):
                shown.apply(event)
