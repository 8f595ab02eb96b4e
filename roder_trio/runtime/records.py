"""What a host records and follows on threads: items, goals, subscriptions, views, compactions."""

import copy
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import get_args

import trio

from roder_trio.actors._reader import Filter
from roder_trio.actors._services import envelope, new_id
from roder_trio.actors.broadcast import DEFAULT_BUFFER, ItemView, Subscription
from roder_trio.actors.follow import Follower
from roder_trio.codec import check_json
from roder_trio.errors import ActorCrashed, RuntimeClosed, ThreadNotFound
from roder_trio.runtime.base import Base
from roder_trio.schema import command as c
from roder_trio.schema.compaction import CompactionResult, NativeCompactionOutcome
from roder_trio.schema.event import LiveEvent, ThreadEvent
from roder_trio.schema.goal import Goal, GoalPatch
from roder_trio.schema.ids import is_valid_id
from roder_trio.schema.item import ItemDelta, ItemDiscarded, ItemEventKind, Raw, ThreadItem, ThreadItemEvent
from roder_trio.schema.transcript import ProviderMetadata, ToolResult, TranscriptItem

_LEAVES = [kind.kind for kind in (*get_args(ThreadEvent), *get_args(LiveEvent), *get_args(ItemEventKind))]
_KINDS = frozenset(".".join(leaf.split(".")[:depth]) for leaf in _LEAVES for depth in range(1, leaf.count(".") + 2))
"""All that a subscription may ask for: the kinds of events, and their beginnings."""


class RecordMethods(Base):
    """What a host reads and writes beside the turns."""

    # -- following ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def subscribe_events(
        self,
        *,
        thread_id: str | None = None,
        turn_id: str | None = None,
        kinds: Iterable[str] = (),
        buffer: int = DEFAULT_BUFFER,
    ) -> AsyncIterator[Subscription]:
        """Follow events from the moment the block is entered; filters are joined by "and".

        `kinds` are dotted kinds such as `events.TurnCompleted.kind`, or their beginnings such as "turn". Iteration
        gives envelopes. A slow reader never blocks anyone: it gets `Lagged(missed)`, `buffer` being how many events
        wait for it at most. Cancelling a read loses nothing. At the runtime's exit readers get the buffer's rest, then
        the end of iteration. Entering raises ValueError for a kind that no event has and a buffer that holds nothing.
        """
        self._check_open()
        wanted = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        for kind in wanted:
            if not isinstance(kind, str) or kind not in _KINDS:
                raise ValueError(f"kinds must be those of events, such as 'turn' or 'turn.completed', not {kind!r}")
        with self._core.broadcast.subscribed(Filter(thread_id, turn_id, wanted), buffer) as subscription:
            yield subscription

    @asynccontextmanager
    async def thread_view(self, thread_id: str, *, buffer: int = DEFAULT_BUFFER) -> AsyncIterator[ItemView]:
        """Show a thread: `view.items` as of now, and iteration over what happens to them from then on, with no gap.

        Iteration gives the envelopes of `item.*` events and of the terminal events of turns. A view that is too slow,
        `buffer` being how many events wait for it at most, or whose thread was restarted, starts anew with
        `ItemsReset(items)`. Archiving the thread ends the iteration. Cancelling a read loses nothing. Entering raises
        ThreadNotFound, StorageError, and ValueError for a buffer that holds nothing.
        """
        directory, broadcast = self._core.directory, self._core.broadcast

        async def renew(view: ItemView) -> None:
            try:
                await directory.ask(thread_id, c.OpenView(view.reset))
            except ActorCrashed:
                return  # the next incarnation resets the view, or is asked again
            except (ThreadNotFound, RuntimeClosed):
                view.end()

        def register(items: tuple[ThreadItem, ...]) -> None:
            if not view.ended:  # else its caller left while the thread was being read
                view.items = items
                broadcast.register(view)

        self._check_open()
        view = ItemView(thread_id, buffer, envelope, renew)
        try:
            await self._ask(thread_id, c.OpenView(register))
            yield view
        finally:
            view.end()
            broadcast.unregister(view)

    @asynccontextmanager
    async def follow_thread(self, thread_id: str, after: int = 0) -> AsyncIterator[Follower]:
        """Iterate over the stored events of a thread with a seq above `after`: from the store, then as they come.

        Each comes once and in order, however slow the reader is; who remembers the last seq it handled may leave and
        enter again. Item events and usage have no such seq and aren't among them. The thread need not stay in memory.
        Archiving or deleting it, and the runtime's exit, end the iteration after the last stored event. Cancelling a
        read loses nothing. A read raises StorageError if a page of the store fails; the next one tries again. Entering
        raises ThreadNotFound, ValueError for a negative `after`.
        """
        self._check_open()
        follower = Follower(thread_id, after, self._core.services.store.load_events)

        def register(last_seq: int) -> None:
            if not follower.ended:  # else its caller left while the thread was being read
                follower.advance(last_seq)
                self._core.broadcast.register(follower)

        try:
            await self._ask(thread_id, c.OpenFollow(register))
            yield follower
        finally:
            follower.end()
            self._core.broadcast.unregister(follower)

    # -- items -------------------------------------------------------------------------------------------------------

    async def persist_turn_item(self, thread_id: str, turn_id: str, item: TranscriptItem) -> int:
        """Append a transcript item, whether that turn runs or ever started, and return its index in the turn.

        Durable when this returns. Raises ThreadNotFound, ValueError for a turn id that can't be one, InvalidRecord for
        a payload that isn't JSON, StorageError.
        """
        self._check_open()
        index: int = await self._ask(thread_id, c.PersistItem(_checked(turn_id), _own_copy(item)))
        return index

    async def latest_transcript_item_index(self, thread_id: str, turn_id: str) -> int | None:
        """Return the highest index of a turn's transcript items; None if there are none. Raises StorageError."""
        index: int | None = await self._ask(thread_id, c.LatestIndex(turn_id))
        return index

    async def record_thread_item_event_kind(
        self, thread_id: str, turn_id: str, timestamp: datetime, kind: ItemEventKind
    ) -> ThreadItemEvent:
        """Store an item event as it is, deltas included, and return it with its seq.

        Raises ThreadNotFound, ValueError for `ItemDiscarded`, a naive timestamp or a turn id that can't be one,
        InvalidRecord for a payload that isn't JSON, StorageError.
        """
        self._check_open()
        if not isinstance(kind, get_args(ItemEventKind)):
            raise TypeError(f"an item event must be ItemStarted, ItemDelta or ItemCompleted, not {type(kind).__name__}")
        if isinstance(kind, ItemDiscarded):
            raise ValueError("ItemDiscarded can't be recorded by a host; complete the item instead")
        if timestamp.tzinfo is None:
            raise ValueError("the timestamp of an item event must have an offset, such as datetime.UTC")
        if not isinstance(kind, ItemDelta) and isinstance(kind.item, Raw):
            check_json(kind.item.payload)
        own = copy.deepcopy(kind)
        event: ThreadItemEvent = await self._ask(thread_id, c.RecordItemEvent(_checked(turn_id), timestamp, own))
        return event

    async def thread_item_exists(self, thread_id: str, turn_id: str, item_id: str) -> bool:
        """Say if an item of that turn has an item event, stored or derived, or is live now. Raises StorageError."""
        exists: bool = await self._ask(thread_id, c.ItemExists(turn_id, item_id))
        return exists

    # -- goals -------------------------------------------------------------------------------------------------------

    async def thread_goal_get(self, thread_id: str) -> Goal | None:
        """Return the thread's goal as it reads now, every token observed so far included; None if there is none.

        Raises StorageError.
        """
        goal: Goal | None = await self._ask(thread_id, c.GetGoal())
        return goal

    async def thread_goal_set(self, thread_id: str, patch: GoalPatch) -> Goal | None:
        """Create or change the goal; None if there is none and the patch has no objective.

        Never starts, steers or stops a turn. Raises ThreadNotFound, StorageError; the patch itself raises ValueError.
        """
        if not isinstance(patch, GoalPatch):
            raise TypeError(f"a goal is changed by a GoalPatch, not {type(patch).__name__}")
        goal: Goal | None = await self._ask(thread_id, c.SetGoal(new_id(), patch))
        return goal

    async def thread_goal_clear(self, thread_id: str) -> bool:
        """Remove the goal; False if there is none. Raises StorageError."""
        cleared: bool = await self._ask(thread_id, c.ClearGoal())
        return cleared

    # -- compaction --------------------------------------------------------------------------------------------------

    async def compact_thread(self, thread_id: str, preserve_hint: str | None = None) -> CompactionResult:
        """Compact the thread now, with its own provider and model; `preserve_hint` says what matters.

        Cancelling cancels the compaction; the log is then as before, what was used stays counted. Raises
        ThreadNotFound, ThreadBusy, ThreadFailed, ProviderFailure, CompactionPreempted if the log changed meanwhile or
        the runtime stopped it, StorageError.
        """
        compaction_id = new_id()
        try:
            await self._ask_for_job(thread_id, c.Compact(compaction_id, preserve_hint))
            result: CompactionResult = await self._ask(thread_id, c.WaitCompaction(compaction_id))
        except trio.Cancelled:
            self._stop_compaction(thread_id, f"compact-{compaction_id}")
            raise
        return result

    async def compact_with_provider(
        self,
        thread_id: str,
        turn_id: str,
        provider: str,
        model: str,
        transcript: Sequence[TranscriptItem],
        preserve_hint: str | None = None,
    ) -> NativeCompactionOutcome:
        """Have a provider compact `transcript`, if that is the thread's window, in the caller's task.

        Works under any turn id, needs no free slot, charges no goal, never falls back to a summary. Cancelling drops
        the candidate; what was used stays counted. Raises ThreadNotFound, UnknownProvider, ProviderFailure,
        StorageError, ValueError for a turn id that can't be one, RuntimeClosed if the runtime's exit ends it.
        """
        self._check_open()
        engine = self._core.registry[provider]
        plan = c.TurnPlan(turn_id=_checked(turn_id), provider=provider, model=model)
        return await self._core.direct.run(thread_id, plan, engine, tuple(transcript), preserve_hint)

    def _stop_compaction(self, thread_id: str, turn_id: str) -> None:
        """Cancel a manual compaction at once, or as soon as it begins."""
        thread = self._core.directory.get(thread_id)
        if thread is None:
            return
        if thread.job is not None and thread.job.turn_id == turn_id:
            thread.job.cancel("caller_left")
        thread.mailbox.post(c.Interrupt(turn_id, "caller_left"))


def _checked(turn_id: str) -> str:
    """Return a turn id that a host made. Raises ValueError."""
    if not is_valid_id(turn_id):
        raise ValueError(f"a turn id is Unicode text of 1 to 512 characters without NUL, not {turn_id!r}")
    return turn_id


def _own_copy(item: TranscriptItem) -> TranscriptItem:
    """Return the item with JSON of its own. Raises TypeError, InvalidRecord."""
    match item:
        case ProviderMetadata(payload):
            check_json(payload)
        case ToolResult(display_payload=payload) if payload is not None:
            check_json(payload)
        case _ if not isinstance(item, get_args(TranscriptItem)):
            raise TypeError(f"a transcript item is wanted, not {type(item).__name__}")
    return copy.deepcopy(item)
