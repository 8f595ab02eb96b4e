"""The one writer of usage records: every observed token is counted once.

`observe` is synchronous, so nothing can fall between a decoder and its slot. A slot holds an attempt's running total;
what is newer replaces what waits. Records go down in one append per thread at a time, each in a task of its own, so a
slow log delays no other; what is due is started where it is observed, the actor's own task waits for the rest. Slots
and the board outlive a crash of the task.
"""

import logging
import math
from collections.abc import Callable, Iterable
from datetime import datetime

import attrs
import trio

from roder_trio.errors import CommandRefused, LeaseLost, StorageError, ThreadOwnedElsewhere
from roder_trio.logic.usage import ThreadTotals
from roder_trio.ports import ThreadStore
from roder_trio.schema.config import RuntimeConfig
from roder_trio.schema.event import EventEnvelope, UsageRecorded
from roder_trio.schema.usage import ZERO_USAGE, Attempt, TokenUsage

log = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Slot:
    """One open attempt: its newest reading, and how much of it is stored."""

    attempt: Attempt
    report: int = 0
    usage: TokenUsage = ZERO_USAGE
    stored: int = 0
    stored_usage: TokenUsage = ZERO_USAGE
    due_at: float = -math.inf
    """When the newest reading is to be stored if nobody settles."""
    retry_at: float = -math.inf
    """Before this a failed append is not tried again."""
    settling: bool = False
    appending: bool = False
    dropped: bool = False
    refused: StorageError | None = None
    """Why no append can ever succeed."""
    ended: trio.Event | None = None
    """Set when an append of this slot ended, whichever way."""

    @property
    def unsaved(self) -> bool:
        return self.stored < self.report

    @property
    def append_at(self) -> float:
        """When the newest reading is to be stored."""
        return self.retry_at if self.settling else max(self.retry_at, self.due_at)

    def record(self, now: datetime) -> EventEnvelope:
        attempt = self.attempt
        event = UsageRecorded(
            attempt_id=attempt.attempt_id,
            report=self.report,
            turn_id=attempt.turn_id,
            goal_id=attempt.goal_id,
            usage=self.usage,
            purpose=attempt.purpose,
            provider=attempt.provider,
            model=attempt.model,
            ancestors=attempt.ancestors,
        )
        return EventEnvelope(
            event_id=f"{attempt.attempt_id}:{self.report}",
            timestamp=now,
            source="accounting",
            thread_id=attempt.thread_id,
            turn_id=attempt.turn_id,
            event=event,
        )


class AccountingActor:
    """Owns the slots of open attempts and the board of totals; the totals may be read by anyone, at any time."""

    def __init__(
        self,
        store: ThreadStore,
        config: RuntimeConfig,
        publish: Callable[[EventEnvelope], None],
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._interval = config.usage_checkpoint_interval
        self._deadline = config.deadlines.usage_deadline
        self._publish = publish
        self._now = now
        self._slots: dict[str, _Slot] = {}
        self._threads: dict[str, list[_Slot]] = {}
        self._in_flight: set[str] = set()
        self._totals: dict[str, ThreadTotals] = {}
        self._nursery: trio.Nursery | None = None
        """Where appends run, while the task does."""
        self._timer = trio.CancelScope()
        """What the task sleeps in; its deadline is when the next append falls due."""
        self._closed = False

    # -- the board -----------------------------------------------------------------------------------------------------

    def totals(self, thread_id: str) -> ThreadTotals:
        """Return the totals of a thread; they change at every observation."""
        totals = self._totals.get(thread_id)
        if totals is None:
            totals = self._totals[thread_id] = ThreadTotals()
        return totals

    def forget(self, thread_id: str) -> None:
        """Drop the totals of a thread that is no longer resident."""
        if thread_id not in self._threads:
            self._totals.pop(thread_id, None)

    def has_open_attempts(self, thread_id: str) -> bool:
        """Whether an attempt of the thread isn't settled yet."""
        return thread_id in self._threads

    # -- attempts ------------------------------------------------------------------------------------------------------

    def open(self, attempt: Attempt) -> None:
        """Make the slot of an attempt, before its request is sent."""
        slot = _Slot(attempt)
        self._slots[attempt.attempt_id] = slot
        self._threads.setdefault(attempt.thread_id, []).append(slot)
        self.totals(attempt.thread_id).open_attempt(attempt)

    def observe(self, attempt_id: str, usage: TokenUsage) -> None:
        """Count a reading: from here on it is in every total, and it will be stored."""
        slot = self._slots[attempt_id]
        totals = self.totals(slot.attempt.thread_id)
        if totals.observe(attempt_id, usage):
            slot.report, slot.usage = totals.reading(attempt_id)
            self._append_if_due(slot.attempt.thread_id)

    async def settle(self, attempt_id: str, grace: float = math.inf) -> TokenUsage:
        """Wait until all that was observed of an attempt is stored, close it, return its last reading.

        Shielded and bounded by `usage_deadline`, or `grace` seconds if that is less. Raises StorageError if it isn't
        stored by then: the totals go back to what is known to be stored, and nothing of the attempt is tried again.
        """
        slot = self._slots[attempt_id]
        await self._save(slot, grace)
        if slot.unsaved:
            self._drop(slot)
            raise StorageError(
                "The usage of a turn could not be stored; check the store, then start a new turn."
            ) from slot.refused
        self._remove(slot)
        return slot.usage

    def close(self) -> None:
        """Refuse to wait for anything from now on; those who wait are told at once."""
        self._closed = True
        for slot in self._slots.values():
            self._tell(slot)

    async def drain(self) -> None:
        """Wait until all that was observed so far is stored, or can't be; each attempt stays open for its owner.

        Takes at most `usage_deadline`; a cancel is heard after that.
        """
        async with trio.open_nursery() as nursery:
            for slot in self._slots.values():
                nursery.start_soon(self._save, slot, math.inf)
        await trio.lowlevel.checkpoint()

    async def _save(self, slot: _Slot, grace: float) -> None:
        """Have the newest reading stored at once, and wait for that under a shield, as long as it may take."""
        slot.settling = True
        self._append_if_due(slot.attempt.thread_id)
        if not self._is_awaited(slot):
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        with trio.move_on_after(min(self._deadline, grace), shield=True):
            while True:
                slot.ended = slot.ended or trio.Event()
                await slot.ended.wait()
                if not self._is_awaited(slot):
                    return

    def _is_awaited(self, slot: _Slot) -> bool:
        """Whether something of a slot isn't stored and still may be."""
        return slot.unsaved and slot.refused is None and not self._closed

    # -- the task ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Store readings as they fall due, until cancelled."""
        self._in_flight.clear()
        async with trio.open_nursery() as self._nursery:
            while True:
                with trio.CancelScope() as self._timer:
                    for thread_id in self._threads:
                        self._append_if_due(thread_id)
                    await trio.sleep_forever()

    def _append_if_due(self, thread_id: str) -> None:
        """Start the append of what is due of a thread, or have the task wake when it will be."""
        nursery, slots = self._nursery, self._threads.get(thread_id, ())
        unsaved = [slot for slot in slots if slot.unsaved and slot.refused is None]
        if not unsaved or thread_id in self._in_flight or nursery is None or nursery.cancel_scope.cancel_called:
            return
        now = trio.current_time()
        due = [slot for slot in unsaved if slot.append_at <= now]
        if due:
            self._in_flight.add(thread_id)
            nursery.start_soon(self._append, thread_id, due)
        else:
            self._timer.deadline = min(self._timer.deadline, *(slot.append_at for slot in unsaved))

    async def _append(self, thread_id: str, due: Iterable[_Slot]) -> None:
        began = trio.current_time()
        now = self._now()
        written = [(slot, slot.report, slot.usage, slot.record(now)) for slot in due]
        for slot, *_ in written:
            slot.due_at = began + self._interval
            slot.appending = True
        try:
            await self._store.append(thread_id, [record for *_, record in written])
        except (CommandRefused, LeaseLost, ThreadOwnedElsewhere) as error:
            for slot, *_ in written:
                slot.refused = error if isinstance(error, StorageError) else StorageError(str(error))
        except Exception as error:
            log.warning("usage of thread %s could not be stored, trying again: %s", thread_id, error)
            for slot, *_ in written:
                slot.retry_at = trio.current_time() + self._interval
        else:
            for slot, report, usage, record in written:
                self._stored(slot, report, usage)
                self.totals(thread_id).note_record(slot.attempt.attempt_id, record)
                self._publish(record)
        finally:
            self._in_flight.discard(thread_id)
            for slot, *_ in written:
                slot.appending = False
                if slot.dropped:
                    self._remove(slot)
                self._tell(slot)
            self._append_if_due(thread_id)

    def _stored(self, slot: _Slot, report: int, usage: TokenUsage) -> None:
        slot.stored, slot.stored_usage = report, usage
        if slot.dropped:
            self.totals(slot.attempt.thread_id).record_landed(slot.attempt.attempt_id, report, usage)

    def _drop(self, slot: _Slot) -> None:
        """Give an attempt up; an append of it that is under way still counts if it lands."""
        attempt = slot.attempt
        self.totals(attempt.thread_id).drop_attempt(attempt.attempt_id, slot.stored, slot.stored_usage)
        slot.dropped = True
        slot.report = slot.stored
        if not slot.appending:
            self._remove(slot)

    def _remove(self, slot: _Slot) -> None:
        attempt = slot.attempt
        if self._slots.pop(attempt.attempt_id, None) is None:
            return
        self.totals(attempt.thread_id).close_attempt(attempt.attempt_id)
        slots = self._threads[attempt.thread_id]
        slots.remove(slot)
        if not slots:
            del self._threads[attempt.thread_id]

    def _tell(self, slot: _Slot) -> None:
        if slot.ended is not None:
            slot.ended.set()
            slot.ended = None
