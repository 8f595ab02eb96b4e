"""Making a thread's state from what a store holds: its whole log, or an earlier state and the records after it.

Both ways give the same, by the folds that live events go through. A state that was kept may hold less than one that
was folded from the whole log, but only of what is read from the log when someone asks for it.
"""

from collections.abc import Iterable

import attrs

from roder_trio.logic.item import ItemFold, ItemStep, first_seq, project_turn, steps
from roder_trio.logic.thread.state import ThreadState, fold_appended, fold_event, fold_extension, fold_items
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
    untold = _untold(snapshot) if snapshot.turns else {}
    if untold:
        started = {e.turn_id for e in snapshot.events if isinstance(e.event, TurnStarted)}
        for turn_id in [turn_id for turn_id in untold if turn_id not in started]:
            _append_untold(state, turn_id, untold)
    for envelope in snapshot.events:
        fold_event(state, envelope)
        if isinstance(envelope.event, UsageRecorded):
            ledger.apply(envelope.event)
        elif untold and isinstance(envelope.event, TurnStarted) and envelope.turn_id is not None:
            _append_untold(state, envelope.turn_id, untold)
    item_steps = steps(snapshot.item_events, snapshot.events)
    fold_items(state, item_steps)
    if state.items is not None:
        show_bare_turns(state.items, snapshot, item_steps)
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
    item_steps = steps([record for record in tail if isinstance(record, ThreadItemEvent)], envelopes)
    if item_steps and first_seq(item_steps[0]) < state.next_item_seq:
        return None
    for envelope in envelopes:
        fold_event(state, envelope)
        if isinstance(envelope.event, UsageRecorded):
            if envelope.event.attempt_id in ledger.closed.attempts:
                return None
            ledger.apply(envelope.event)
    fold_items(state, item_steps)
    for record in tail:
        if isinstance(record, ExtensionStateRecord):
            fold_extension(state, record)
    return kept


def _untold(snapshot: ThreadSnapshot) -> dict[str, tuple[TranscriptItem, ...]]:
    """The items of turns whose events a store doesn't have."""
    told = {e.turn_id for e in snapshot.events if isinstance(e.event, TranscriptItemAppended)}
    return {record.turn_id: record.items for record in snapshot.turns if record.turn_id not in told}


def _append_untold(state: ThreadState, turn_id: str, untold: dict[str, tuple[TranscriptItem, ...]]) -> None:
    """Take the items of a turn whose events a store doesn't have, where the turn began."""
    for index, item in enumerate(untold.pop(turn_id, ())):
        fold_appended(state, turn_id, TranscriptItemAppended(index, item))


def show_bare_turns(shown: ItemFold, snapshot: ThreadSnapshot, item_steps: Iterable[ItemStep]) -> None:
    """Show turns that have items and no item event at all."""
    known = {step.turn_id for step in item_steps}
    for record in snapshot.turns:
        if record.turn_id not in known:
            for event in project_turn(record.turn_id, record.items):
                shown.apply(event)
