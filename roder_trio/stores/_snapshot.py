"""A snapshot as the records of a log tell it."""

from collections.abc import Iterable, Sequence

from roder_trio.logic.item import merge
from roder_trio.logic.thread.record import turns_of
from roder_trio.schema.event import EventEnvelope, TranscriptItemAppended
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import (
    ExtensionStateRecord,
    StoredRecord,
    StoreRepair,
    ThreadMetadata,
    ThreadSnapshot,
)


def snapshot_of(
    metadata: ThreadMetadata,
    records: Sequence[StoredRecord],
    repairs: Iterable[StoreRepair] = (),
    *,
    to_fold: bool = False,
) -> ThreadSnapshot:
    """Return the snapshot of a thread with this log; it shares the records and copies none.

    One that is only `to_fold` lacks what the fold finds in the events itself: the derived item events, and the turns
    that have some.
    """
    envelopes = [record for record in records if isinstance(record, EventEnvelope)]
    stored = [record for record in records if isinstance(record, ThreadItemEvent)]
    return ThreadSnapshot(
        metadata=metadata,
        turns=turns_of(metadata.thread_id, _of_bare_turns(envelopes) if to_fold else envelopes),
        events=envelopes,
        item_events=stored if to_fold else merge(stored, envelopes),
        extension_states=[record for record in records if isinstance(record, ExtensionStateRecord)],
        repairs=repairs,
    )


def _of_bare_turns(envelopes: Sequence[EventEnvelope]) -> list[EventEnvelope]:
    """Those of turns from which no item event is derived."""
    shown = {e.turn_id for e in envelopes if isinstance(e.event, TranscriptItemAppended) and e.event.item_seq > 0}
    return [envelope for envelope in envelopes if envelope.turn_id not in shown]
