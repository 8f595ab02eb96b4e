"""Turns as the log tells them.

Rules of the room: a turn appears where the log first mentions it; its first terminal event ends it, and nothing
after that changes it but further items. A turn that only items mention stays open.
"""

from collections.abc import Iterable
from datetime import datetime

import attrs

from roder_trio.schema.event import (
    EventEnvelope,
    TerminalEvent,
    TranscriptItemAppended,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import TurnRecord
from roder_trio.schema.transcript import TranscriptItem
from roder_trio.schema.turn import TurnStatus

_STATUS: dict[type, TurnStatus] = {
    TurnCompleted: TurnStatus.COMPLETED,
    TurnFailed: TurnStatus.FAILED,
    TurnInterrupted: TurnStatus.INTERRUPTED,
}
_MENTIONS = (TurnStarted, TranscriptItemAppended, *_STATUS)


@attrs.define
class _Turn:
    created_at: datetime
    items: list[TranscriptItem] = attrs.field(factory=list)
    ended_at: datetime | None = None
    end: TerminalEvent | None = None


def turns_of(thread_id: ThreadId, envelopes: Iterable[EventEnvelope]) -> tuple[TurnRecord, ...]:
    """Return the turns of a thread, in the order of their first mention in its log."""
    turns: dict[str, _Turn] = {}
    for envelope in envelopes:
        event = envelope.event
        if envelope.turn_id is None or not isinstance(event, _MENTIONS):
            continue
        turn = turns.get(envelope.turn_id)
        if turn is None:
            turn = turns[envelope.turn_id] = _Turn(envelope.timestamp)
        if isinstance(event, TranscriptItemAppended):
            turn.items.append(event.item)
        elif isinstance(event, TurnCompleted | TurnFailed | TurnInterrupted) and turn.end is None:
            turn.end = event
            turn.ended_at = envelope.timestamp
    return tuple([_record(thread_id, turn_id, turn) for turn_id, turn in turns.items()])


def _record(thread_id: ThreadId, turn_id: str, turn: _Turn) -> TurnRecord:
    end = turn.end
    items: tuple[TranscriptItem, ...] = tuple(turn.items)
    return TurnRecord(
        thread_id=thread_id,
        turn_id=turn_id,
        created_at=turn.created_at,
        items=items,
        completed_at=turn.ended_at,
        usage=None if end is None else end.usage,
        finish_reason=end.finish_reason if isinstance(end, TurnCompleted) else None,
        status=TurnStatus.OPEN if end is None else _STATUS[type(end)],
    )
