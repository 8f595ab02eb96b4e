"""What was counted: readings of attempts, and the totals that follow from them.

Within an attempt the latest reading replaces the earlier, attempts add. A record of another thread's attempt counts for
the goal that it names, never for the thread or a turn. Totals can't be subtracted from (a tier that is lost stays lost,
a sum that is full stays full), so readings that may still change stand apart from the sums.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

import attrs

from roder_trio.schema.event import EventEnvelope, UsageRecorded
from roder_trio.schema.usage import MAX_TOKENS, ZERO_USAGE, Attempt, TokenUsage


def merge(reading: TokenUsage, report: TokenUsage) -> TokenUsage:
    """Return the reading after a report of the same attempt: the report, unless it is empty and the reading isn't."""
    return reading if report.is_empty else report


class _Counted(Protocol):
    """What a sum needs to know of an attempt."""

    @property
    def turn_id(self) -> str: ...
    @property
    def goal_id(self) -> str | None: ...
    @property
    def usage(self) -> TokenUsage: ...


@attrs.define
class _Sums:
    """Totals of attempts that don't change any more."""

    thread: TokenUsage = ZERO_USAGE
    turns: dict[str, TokenUsage] = attrs.field(factory=dict)
    goals: dict[str, int] = attrs.field(factory=dict)

    def add(self, counted: _Counted, *, own: bool) -> None:
        """Add an attempt of the thread itself, or one of a thread below that is charged to a goal here."""
        if counted.usage.is_empty:
            return
        if own:
            self.thread += counted.usage
            self.turns[counted.turn_id] = self.turns.get(counted.turn_id, ZERO_USAGE) + counted.usage
        if counted.goal_id is not None:
            self.goals[counted.goal_id] = _capped(self.goals.get(counted.goal_id, 0) + counted.usage.total_tokens)


@attrs.frozen(kw_only=True)
class ClosedUsage:
    """What many attempts add up to of which no further record is expected; sums hide their readings for good."""

    thread: TokenUsage = ZERO_USAGE
    goals: Mapping[str, int] = attrs.field(factory=dict)
    attempts: AbstractSet[str] = frozenset()
    """The ids of all of them: a record of one of these can't be taken into the sums."""


_NOTHING_CLOSED = ClosedUsage()


class Ledger:
    """The fold of a log's usage records, in any order: per attempt the one with the highest report.

    `closed` is what came before as sums; the attempts in it are not among the records here, and no turn's total has
    them.
    """

    __slots__ = ("_records", "closed")

    def __init__(self, closed: ClosedUsage = _NOTHING_CLOSED) -> None:
        self._records: dict[str, UsageRecorded] = {}
        self.closed = closed

    def __iter__(self) -> Iterator[UsageRecorded]:
        """The record that counts of each attempt that isn't closed."""
        return iter(self._records.values())

    def apply(self, record: UsageRecorded) -> None:
        """Take one record of no closed attempt; one that says nothing, or less than was known, changes nothing."""
        known = self._records.get(record.attempt_id)
        if not record.usage.is_empty and (known is None or record.report > known.report):
            self._records[record.attempt_id] = record

    def closing(self, turn_id: str | None, newest: int) -> "Ledger":
        """Return the same with all attempts closed but the `newest` ones and those of one turn."""
        sums, closing, ledger = self.closed_sums(), set(self.closed.attempts), Ledger()
        for left, record in zip(range(len(self._records), 0, -1), self, strict=True):
            if left <= newest or record.turn_id == turn_id:
                ledger.apply(record)
            else:
                sums.add(record, own=record.origin_thread_id is None)
                closing.add(record.attempt_id)
        ledger.closed = ClosedUsage(thread=sums.thread, goals=sums.goals, attempts=closing)
        return ledger

    @property
    def thread(self) -> TokenUsage:
        """The total of the thread's own attempts."""
        return self._sums().thread

    def turn(self, turn_id: str) -> TokenUsage:
        """Return the total of one turn, none of whose attempts is closed."""
        return self._sums().turns.get(turn_id, ZERO_USAGE)

    def goal(self, goal_id: str) -> int:
        """Return the total tokens charged to one goal, those of threads below included."""
        return self._sums().goals.get(goal_id, 0)

    def closed_sums(self) -> _Sums:
        """Return sums that begin with what is closed."""
        return _Sums(self.closed.thread, {}, dict(self.closed.goals))

    def _sums(self) -> _Sums:
        sums = self.closed_sums()
        for record in self:
            sums.add(record, own=record.origin_thread_id is None)
        return sums


@attrs.define
class _Slot:
    """An attempt whose reading may still change, as one thread sees it."""

    turn_id: str
    goal_id: str | None
    own: bool
    report: int = 0
    usage: TokenUsage = ZERO_USAGE

    def raise_to(self, report: int, usage: TokenUsage) -> None:
        """Take a reading that is known elsewhere, if it is a later one."""
        if report > self.report:
            self.report, self.usage = report, usage


class ThreadTotals:
    """What the board holds of one thread: sums of what is closed, and the readings that may still change.

    It outlives the incarnations of the thread. A load begins with `begin_load` and ends, unless it fails, with
    `hand_over`; until then, also before the first one, each attempt that closes is kept for itself, for only then is
    it known whether the snapshot has all of it.
    """

    __slots__ = ("_closed", "_dropped", "_loading", "_open", "_records", "_running", "_sums")

    def __init__(self) -> None:
        self._sums = _Sums()
        self._open: dict[str, _Slot] = {}
        self._closed: dict[str, _Slot] = {}
        """Closed since the load began."""
        self._dropped: dict[str, _Slot] = {}
        """Closed without having been settled, so an append that is under way may still land."""
        self._loading = True
        self._running: str | None = None
        self._records: dict[str, EventEnvelope] = {}
        """The last stored record of each attempt of the running turn."""

    # -- attempts ----------------------------------------------------------------------------------------------------

    def open_attempt(self, attempt: Attempt) -> None:
        """Begin to count an attempt of this thread."""
        self._open.setdefault(attempt.attempt_id, _Slot(attempt.turn_id, attempt.goal_id, own=True))

    def open_charge(self, attempt: Attempt, goal_id: str) -> None:
        """Begin to count an attempt of a thread below, for a goal of this thread and nothing else."""
        self._open.setdefault(attempt.attempt_id, _Slot(attempt.turn_id, goal_id, own=False))

    def observe(self, attempt_id: str, usage: TokenUsage) -> bool:
        """Take a report of an open attempt; True if its reading changed."""
        slot = self._open.get(attempt_id)
        if slot is None:
            return False
        merged = merge(slot.usage, usage)
        if merged == slot.usage:
            return False
        slot.report, slot.usage = slot.report + 1, merged
        return True

    def reading(self, attempt_id: str) -> tuple[int, TokenUsage]:
        """Return report and usage of an open attempt; 0 and the empty usage if nothing was observed."""
        slot = self._open.get(attempt_id)
        return (0, ZERO_USAGE) if slot is None else (slot.report, slot.usage)

    def close_attempt(self, attempt_id: str) -> None:
        """The attempt is settled: its reading is final."""
        slot = self._open.pop(attempt_id, None)
        if slot is None:
            return
        if self._loading:
            self._closed[attempt_id] = slot
        else:
            self._sums.add(slot, own=slot.own)

    def drop_attempt(self, attempt_id: str, durable_report: int, durable_usage: TokenUsage) -> None:
        """The attempt could not be settled: its reading goes back to what is known to be durable."""
        slot = self._open.pop(attempt_id, None)
        if slot is not None:
            slot.report, slot.usage = durable_report, durable_usage
            self._dropped[attempt_id] = slot

    def record_landed(self, attempt_id: str, report: int, usage: TokenUsage) -> None:
        """An append for a dropped attempt landed after all: it counts from now on."""
        slot = self._dropped.get(attempt_id)
        if slot is not None:
            slot.raise_to(report, usage)

    def begin_turn(self, turn_id: str) -> None:
        """Keep the records of this turn, until they are taken or the thread is loaded again."""
        self._running = turn_id
        self._records = {}

    def note_record(self, attempt_id: str, record: EventEnvelope) -> None:
        """A record of an attempt of this thread was stored."""
        if record.turn_id == self._running:
            self._records[attempt_id] = record

    def take_records(self) -> tuple[EventEnvelope, ...]:
        """Return the running turn's records, the last of each attempt, and keep no more of them."""
        records, self._running, self._records = tuple(self._records.values()), None, {}
        return records

    # -- the snapshot ------------------------------------------------------------------------------------------------

    def begin_load(self) -> None:
        """The store is about to be read: what is closed by now is whole in what it will give."""
        for slot in self._closed.values():
            self._sums.add(slot, own=slot.own)
        self._closed.clear()
        self._loading = True
        self.take_records()

    def needs_readings(self, ledger: Ledger) -> bool:
        """Whether a ledger has closed an attempt whose reading may still change here: it can't be handed over."""
        slots = (self._open, self._closed, self._dropped)
        return any(attempt_id in ledger.closed.attempts for known in slots for attempt_id in known)

    def hand_over(self, ledger: Ledger) -> None:
        """Take what was loaded as the truth, but of attempts that were open since the load began the later reading."""
        sums = ledger.closed_sums()
        for record in ledger:
            apart = self._open.get(record.attempt_id) or self._dropped.get(record.attempt_id)
            apart = apart or self._closed.get(record.attempt_id)
            if apart is None:
                sums.add(record, own=record.origin_thread_id is None)
            else:
                apart.raise_to(record.report, record.usage)
        for slot in self._closed.values():
            sums.add(slot, own=slot.own)
        self._closed.clear()
        self._sums = sums
        self._loading = False

    # -- totals ------------------------------------------------------------------------------------------------------

    @property
    def thread(self) -> TokenUsage:
        """The total of the thread's own attempts."""
        return sum((slot.usage for slot in self._apart() if slot.own), self._sums.thread)

    def turn(self, turn_id: str) -> TokenUsage:
        """Return the total of one turn that wasn't forgotten."""
        closed = self._sums.turns.get(turn_id, ZERO_USAGE)
        return sum((slot.usage for slot in self._apart() if slot.own and slot.turn_id == turn_id), closed)

    def goal(self, goal_id: str) -> int:
        """Return the total tokens charged to one goal, those of threads below included."""
        charged = sum(slot.usage.total_tokens for slot in self._apart() if slot.goal_id == goal_id)
        return _capped(charged + self._sums.goals.get(goal_id, 0))

    def forget_turn(self, turn_id: str) -> None:
        """Drop the sum of a turn that has its terminal event."""
        self._sums.turns.pop(turn_id, None)

    def forget_turns(self) -> None:
        """Drop the sums of all turns: right after a load none of them runs."""
        self._sums.turns = {}

    def _apart(self) -> Iterator[_Slot]:
        for slots in (self._open, self._closed, self._dropped):
            yield from slots.values()


def _capped(tokens: int) -> int:
    return min(tokens, MAX_TOKENS)
