"""The items of a thread as its item events tell them.

Items stand in the order of their first mention. An event whose seq was folded already is ignored, so a snapshot and the
events that follow it may overlap. Folding a prefix and then the rest gives the same as folding all. What a log pins is
projected when something else comes or someone looks, since most threads that are read are never shown.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

import attrs

from roder_trio.logic.item.projection import ItemStep, Pinned, first_seq, project
from roder_trio.schema.item import (
    AgentMessage,
    AgentMessageText,
    ItemCompleted,
    ItemDelta,
    ItemDeltaValue,
    ItemDiscarded,
    ItemEventKind,
    ItemStarted,
    ItemStatus,
    Reasoning,
    ReasoningSummaryPartAdded,
    ReasoningSummaryText,
    ReasoningText,
    ThreadItem,
    ThreadItemEvent,
    ToolExecution,
    ToolInputText,
)

_OPEN = (None, ItemStatus.IN_PROGRESS)


class ItemFold:
    """Items that grow event by event, from `items` as they stand."""

    __slots__ = ("_items", "_later", "_seen")

    def __init__(self, items: Iterable[ThreadItem] = ()) -> None:
        self._items: dict[str, ThreadItem] = {item.id: item for item in items}
        self._seen = _SeenSeqs()
        self._later: Sequence[ItemStep] = ()
        """What a log tells and nobody has asked for yet."""

    def items(self) -> tuple[ThreadItem, ...]:
        """Return the items in the order of their first mention."""
        self._catch_up()
        return tuple(self._items.values())

    def follow(self, steps: Sequence[ItemStep]) -> None:
        """Take what a log tells, all of it in one, once something else comes or someone looks."""
        self._catch_up()
        self._later = steps

    def apply(self, event: ThreadItemEvent | ItemEventKind) -> None:
        """Take one event; one without an envelope has no seq."""
        self._catch_up()
        if isinstance(event, ThreadItemEvent):
            self._take(event.seq, event.event)
        else:
            self._take(0, event)

    def _catch_up(self) -> None:
        later, self._later = self._later, ()
        for step in later:
            kinds = project(step.item, step.item_id) if isinstance(step, Pinned) else (step.event,)
            for seq, kind in enumerate(kinds, first_seq(step)):
                self._take(seq, kind)

    def _take(self, seq: int, event: ItemEventKind) -> None:
        if seq != 0 and not self._seen.add(seq):
            return
        changed = fold_kind(self._items.get(event.item_id), event)
        if changed is None:
            self._items.pop(event.item_id, None)
        else:
            self._items[event.item_id] = changed


def fold_kind(old: ThreadItem | None, event: ItemEventKind) -> ThreadItem | None:
    """Return what an event makes of the item that it names; None stands for an item that isn't there."""
    match event:
        case ItemStarted(item):
            return item if old is None else _kept(old, item)
        case ItemCompleted(item):
            ended = attrs.evolve(item, status=ItemStatus.COMPLETED) if item.status in _OPEN else item
            return ended if old is None else _kept(old, ended)
        case ItemDelta(item_id, delta):
            return _grown(old, item_id, delta) if old is None or old.status in _OPEN else old
        case ItemDiscarded():
            return None
        case _:
            assert_never(event)


def fold_items(items: Iterable[ThreadItem], events: Iterable[ThreadItemEvent]) -> tuple[ThreadItem, ...]:
    """Return `items` after `events`, such as those of a view after what it gave since."""
    fold = ItemFold(items)
    for event in events:
        fold.apply(event)
    return fold.items()


class _SeenSeqs:
    """A set of numbers that mostly come one after the other: a run, and what lies outside it."""

    __slots__ = ("_high", "_low", "_others")

    def __init__(self) -> None:
        self._low = self._high = 0
        self._others: set[int] | None = None

    def add(self, seq: int) -> bool:
        """Take note of a number; False if it was there."""
        if self._low <= seq <= self._high or (self._others is not None and seq in self._others):
            return False
        if seq == self._high + 1 or self._high == 0:
            self._low = self._low or seq
            self._high = seq
            self._absorb()
        else:
            self._others = self._others or set()
            self._others.add(seq)
        return True

    def _absorb(self) -> None:
        while self._others and self._high + 1 in self._others:
            self._high += 1
            self._others.discard(self._high)


def _kept(old: ThreadItem, new: ThreadItem) -> ThreadItem:
    """Return `new` with what it leaves out of `old`."""
    match old, new:
        case Reasoning(), Reasoning():
            return attrs.evolve(new, summary=new.summary or old.summary, content=new.content or old.content)
        case ToolExecution(), ToolExecution():
            return attrs.evolve(
                new,
                tool_name=old.tool_name if new.tool_name is None else new.tool_name,
                input=old.input if new.input is None else new.input,
                output=old.output if new.output is None else new.output,
                error=old.error if new.error is None else new.error,
            )
    return new


def _grown(old: ThreadItem | None, item_id: str, delta: ItemDeltaValue) -> ThreadItem:
    """Return `old` with more text; a new item of the delta's type if `old` is of another type, or not there."""
    opened = ItemStatus.IN_PROGRESS
    match delta:
        case AgentMessageText(text, phase):
            message = old if isinstance(old, AgentMessage) else AgentMessage(item_id, "", status=opened)
            return attrs.evolve(
                message, text=message.text + text, phase=phase if message.phase is None else message.phase
            )
        case ToolInputText(text):
            call = old if isinstance(old, ToolExecution) else ToolExecution(item_id, "", "", status=opened)
            return attrs.evolve(call, input=(call.input or "") + text)
    reasoning = old if isinstance(old, Reasoning) else Reasoning(item_id, status=opened)
    match delta:
        case ReasoningText(text, index):
            return attrs.evolve(reasoning, content=_longer(reasoning.content, index, text))
        case ReasoningSummaryText(text, index):
            return attrs.evolve(reasoning, summary=_longer(reasoning.summary, index, text))
        case ReasoningSummaryPartAdded(index):
            return attrs.evolve(reasoning, summary=_longer(reasoning.summary, index, ""))
        case _:
            assert_never(delta)


def _longer(parts: tuple[str, ...], index: int, text: str) -> tuple[str, ...]:
    """Return `parts` with text appended to one of them, filled with empty ones up to it; a negative index is 0."""
    index = max(index, 0)
    filled = [*parts, *[""] * (index + 1 - len(parts))]
    filled[index] += text
    return tuple(filled)
