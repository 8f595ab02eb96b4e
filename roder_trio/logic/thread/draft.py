"""What a decision wants stored, before it has ids and numbers, and the stamping that gives it those.

Numbers are assigned and advanced in one request of the actor; after a failed append none of them has moved, while ids
that were taken stay taken.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias, assert_never

import attrs

from roder_trio.logic.item import derive, event_count, id_base
from roder_trio.logic.thread.state import ThreadState, fold_event, fold_extension, fold_item
from roder_trio.schema.event import Event, EventEnvelope, TranscriptItemAppended
from roder_trio.schema.item import (
    AgentMessage,
    AgentMessageText,
    ItemDelta,
    ItemDiscarded,
    ItemEventKind,
    ItemStarted,
    ItemStatus,
    ThreadItemEvent,
)
from roder_trio.schema.thread import ExtensionStateRecord, Record
from roder_trio.schema.transcript import TranscriptItem


@attrs.frozen
class Emit:
    """An event for the thread's log."""

    event: Event
    turn_id: str | None = None


@attrs.frozen
class AppendItem:
    """A transcript item; `live` ones complete the oldest open live item of their kind and take its id."""

    turn_id: str
    item: TranscriptItem
    item_id: str | None = None
    steer_id: str | None = None
    live: bool = False
    source: str = "thread"


@attrs.frozen
class RecordItem:
    """An item event that is stored as it is."""

    turn_id: str
    event: ItemEventKind
    timestamp: datetime


@attrs.frozen
class StoreState:
    """A host's own value."""

    record: ExtensionStateRecord


@attrs.frozen
class DiscardOpen:
    """What the turn's step left open live is discarded; with `hosted`, the provider's own calls too."""

    turn_id: str
    hosted: bool = False


@attrs.frozen
class SaveOpenText:
    """The text of open live messages that isn't stored yet, as checkpoints."""


Draft: TypeAlias = Emit | AppendItem | RecordItem | StoreState | DiscardOpen | SaveOpenText


@attrs.frozen
class OpenText:
    """Text of an open message that isn't stored yet; `first` if nothing of the message is."""

    turn_id: str
    item_id: str
    text: str
    phase: str | None
    first: bool


class OpenItems(Protocol):
    """The live items of a thread; what is taken here is given back if the append fails."""

    def take(self, turn_id: str, base: str) -> str | None:
        """Close the oldest open item of that base and return its id."""

    def leave(self, turn_id: str, hosted: bool) -> Sequence[str]:
        """Close all open items of the turn and return their ids."""

    def unsaved(self) -> Sequence[OpenText]:
        """Return the text that stands open and isn't stored yet."""


@attrs.frozen
class Stamped:
    """A record as it will be stored (None: nothing is), and the item events that follow from it."""

    record: Record | None
    derived: tuple[ThreadItemEvent, ...] = ()


@attrs.define
class _Stamper:
    """The counters of one decision; they become the state's only when its records are folded."""

    state: ThreadState
    now: datetime
    mint: Callable[[], str]
    live: OpenItems
    seq: int
    item_seq: int
    counts: dict[str, int] = attrs.field(factory=dict)

    def event(self, event: Event, turn_id: str | None, source: str) -> EventEnvelope:
        envelope = EventEnvelope(
            event_id=self.mint(),
            seq=self.seq,
            timestamp=self.now,
            source=source,
            thread_id=self.state.metadata.thread_id,
            turn_id=turn_id,
            event=event,
        )
        self.seq += 1
        return envelope

    def append(self, draft: AppendItem) -> Stamped:
        turn_id = draft.turn_id
        entry = self.state.turns.get(turn_id)
        index = self.counts.setdefault(turn_id, 0 if entry is None else entry.count)
        self.counts[turn_id] = index + 1
        item_id, item_seq = self.item_id(draft), 0
        if item_id is not None:
            self.item_seq += event_count(draft.item)
            item_seq = self.item_seq - 1
        event = TranscriptItemAppended(index, draft.item, item_id, item_seq, draft.steer_id)
        envelope = self.event(event, turn_id, "turn" if draft.live else draft.source)
        return Stamped(envelope, derive(envelope))

    def item_id(self, draft: AppendItem) -> str | None:
        if draft.item_id is not None:
            return draft.item_id
        base = id_base(draft.item)
        if base is None:
            return None
        taken = self.live.take(draft.turn_id, base) if draft.live else None
        return taken or self.state.numbers.take(draft.turn_id, base)

    def item_event(
        self, turn_id: str, event: ItemEventKind, timestamp: datetime | None = None, *, checkpoint: bool = False
    ) -> ThreadItemEvent:
        item_event = ThreadItemEvent(
            event_id=self.mint(),
            seq=self.item_seq,
            timestamp=timestamp or self.now,
            thread_id=self.state.metadata.thread_id,
            turn_id=turn_id,
            event=event,
            checkpoint=checkpoint,
        )
        self.item_seq += 1
        return item_event

    def discard(self, draft: DiscardOpen) -> Iterator[Stamped]:
        for item_id in self.live.leave(draft.turn_id, draft.hosted):
            discarded = self.item_event(draft.turn_id, ItemDiscarded(item_id))
            if item_id in self.state.checkpoints:
                yield Stamped(discarded)
            else:
                self.item_seq -= 1
                yield Stamped(None, (attrs.evolve(discarded, seq=0),))

    def save(self) -> Iterator[Stamped]:
        for part in self.live.unsaved():
            if part.first:
                item = AgentMessage(part.item_id, "", part.phase, ItemStatus.IN_PROGRESS)
                yield Stamped(self.item_event(part.turn_id, ItemStarted(item), checkpoint=True))
            delta = ItemDelta(part.item_id, AgentMessageText(part.text, part.phase))
            yield Stamped(self.item_event(part.turn_id, delta, checkpoint=True))


def stamp(
    state: ThreadState, drafts: Iterable[Draft], now: datetime, mint: Callable[[], str], live: OpenItems
) -> list[Stamped]:
    """Give drafts their ids and numbers. The state's counters don't move; item ids are taken for good."""
    stamper = _Stamper(state, now, mint, live, state.next_seq, state.next_item_seq)
    result: list[Stamped] = []
    for draft in drafts:
        match draft:
            case Emit(event, turn_id):
                result.append(Stamped(stamper.event(event, turn_id, "thread")))
            case AppendItem():
                result.append(stamper.append(draft))
            case RecordItem(turn_id, item_event, timestamp):
                result.append(Stamped(stamper.item_event(turn_id, item_event, timestamp)))
            case StoreState(record):
                result.append(Stamped(record))
            case DiscardOpen():
                result.extend(stamper.discard(draft))
            case SaveOpenText():
                result.extend(stamper.save())
            case _:
                assert_never(draft)
    return result


def fold_stamped(state: ThreadState, stamped: Sequence[Stamped]) -> None:
    """Take what was stored into the state."""
    for entry in stamped:
        record = entry.record
        if isinstance(record, EventEnvelope):
            fold_event(state, record)
            for derived in entry.derived:
                fold_item(state, derived)
        elif isinstance(record, ThreadItemEvent):
            fold_item(state, record)
        elif record is not None:
            fold_extension(state, record)
