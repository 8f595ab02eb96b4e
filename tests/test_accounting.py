"""The accounting actor, alone and in a runtime: when readings are stored, and what happens when they can't be."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, goals, stores, transcript
from roder_trio.actors._supervisor import supervise
from roder_trio.actors.accounting import AccountingActor
from roder_trio.logic.usage import Ledger
from roder_trio.providers.scripted import NEVER_ENDS
from roder_trio.schema.usage import Attempt, Purpose
from roder_trio.testing import FaultyStore
from tests.turn_support import DONE, folded_usage, one_thread, say, settings, used

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ZERO = rt.TokenUsage(0, 0, 0)


def total(tokens: int) -> rt.TokenUsage:
    return rt.TokenUsage(tokens, 0, tokens)


class Books:
    """An accounting actor with two threads, `t` and `u`, and a log of what it appended, when, and published."""

    def __init__(self, store: FaultyStore, config: rt.RuntimeConfig) -> None:
        self.store = store
        self.published: list[rt.EventEnvelope] = []
        self.times: list[float] = []
        self.holds: dict[str, trio.Event] = {}
        """Appends to these threads wait for the event."""
        self.crashes = 0
        """How often publishing fails from now on."""
        self.held = 0
        self.most_held: dict[str, int] = {}
        self.actor = AccountingActor(store, config, self.publish, lambda: NOW)
        store.before = self.before

    def publish(self, record: rt.EventEnvelope) -> None:
        if self.crashes:
            self.crashes -= 1
            raise RuntimeError("publishing fails")
        self.published.append(record)

    async def before(self, number: int, thread_id: str, records: Any) -> None:
        self.times.append(trio.current_time())
        self.held += 1
        self.most_held[thread_id] = max(self.most_held.get(thread_id, 0), self.held)
        try:
            if thread_id in self.holds:
                await self.holds[thread_id].wait()
        finally:
            self.held -= 1

    def open(self, name: str, thread_id: str = "t", turn_id: str = "turn", **more: Any) -> str:
        self.actor.open(
            Attempt(
                attempt_id=name,
                thread_id=thread_id,
                turn_id=turn_id,
                purpose=Purpose.SAMPLING,
                provider="p",
                model="m",
                **more,
            )
        )
        return name

    def observe(self, name: str, tokens: int) -> None:
        self.actor.observe(name, total(tokens))

    def board(self, thread_id: str = "t") -> int:
        return self.actor.totals(thread_id).thread.total_tokens

    async def stored(self, thread_id: str = "t") -> list[tuple[str, int, int]]:
        snapshot = await self.store.inner.load_thread(thread_id)
        assert snapshot is not None
        return [(e.event.attempt_id, e.event.report, e.event.usage.total_tokens) for e in snapshot.events]

    async def fold(self, thread_id: str = "t") -> int:
        snapshot = await self.store.inner.load_thread(thread_id)
        ledger = Ledger()
        for envelope in snapshot.events:
            ledger.apply(envelope.event)
        return ledger.thread.total_tokens


@asynccontextmanager
async def books(*, run: bool = True, fail: Any = None, fail_after: Any = None, **values: Any) -> AsyncIterator[Books]:
    store = FaultyStore(stores.MemoryThreadStore(), fail=fail or {}, fail_after=fail_after or {})
    for thread_id in ("t", "u"):
        await store.create_thread(rt.ThreadMetadata(thread_id=thread_id, created_at=NOW, updated_at=NOW))
    found = Books(store, settings(**values))
    async with trio.open_nursery() as nursery:
        if run:
            nursery.start_soon(supervise, "accounting", found.actor.run)
        yield found
        nursery.cancel_scope.cancel()


# -- when a reading is stored ------------------------------------------------------------------------------------------


async def test_the_first_reading_is_stored_at_once(autojump_clock):
    async with books() as b:
        b.open("a")
        b.observe("a", 4)
        began = trio.current_time()
        await wait_all_tasks_blocked()
        assert await b.stored() == [("a", 1, 4)]
        assert trio.current_time() == began


async def test_later_readings_are_stored_by_a_timer_that_counts_from_the_last_append(autojump_clock):
    async with books() as b:
        b.open("a")
        for tokens in range(1, 11):
            b.observe("a", tokens)
            await trio.sleep(0.1)
        await trio.sleep(1)
        assert [round(when - b.times[0], 6) for when in b.times] == [0, 0.25, 0.5, 0.75, 1.0]
        assert (await b.stored())[-1] == ("a", 10, 10)


async def test_a_reading_becomes_durable_while_the_stream_stalls(autojump_clock):
    async with books() as b:
        b.open("a")
        b.observe("a", 4)
        await wait_all_tasks_blocked()
        b.observe("a", 12)
        await wait_all_tasks_blocked()
        assert await b.stored() == [("a", 1, 4)]
        await trio.sleep(0.2501)
        assert await b.stored() == [("a", 1, 4), ("a", 2, 12)]


async def test_settling_stores_the_newest_reading_at_once_and_replaced_ones_leave_gaps(autojump_clock):
    async with books() as b:
        b.open("a")
        for tokens in (1, 2, 3):
            b.observe("a", tokens)
        await wait_all_tasks_blocked()
        for tokens in (4, 5, 6):
            b.observe("a", tokens)
        began = trio.current_time()
        assert await b.actor.settle("a") == total(6)
        assert trio.current_time() == began
        assert await b.stored() == [("a", 3, 3), ("a", 6, 6)]
        assert [record.event_id for record in b.published] == ["a:3", "a:6"]


async def test_a_reading_that_changes_nothing_is_not_stored(autojump_clock):
    async with books() as b:
        b.open("a")
        for tokens in (0, 12, 12, 0, 12):
            b.observe("a", tokens)
            await trio.sleep(1)
        await b.actor.settle("a")
        assert await b.stored() == [("a", 1, 12)]


async def test_an_attempt_without_a_token_leaves_no_record(autojump_clock):
    async with books() as b:
        b.open("a")
        b.observe("a", 0)
        assert await b.actor.settle("a") == ZERO
        b.open("b")
        assert await b.actor.settle("b") == ZERO
        assert (await b.stored(), b.store.appends) == ([], 0)


async def test_a_record_tells_what_the_attempt_was(autojump_clock):
    async with books() as b:
        b.open("a", goal_id="g")
        b.observe("a", 4)
        await b.actor.settle("a")
        [record] = b.published
        assert (record.event_id, record.source, record.seq, record.kind) == ("a:1", "accounting", 0, "usage.recorded")
        assert (record.thread_id, record.turn_id, record.timestamp) == ("t", "turn", NOW)
        assert record.event == events.UsageRecorded(
            attempt_id="a",
            report=1,
            turn_id="turn",
            goal_id="g",
            usage=total(4),
            purpose=Purpose.SAMPLING,
            provider="p",
            model="m",
        )


async def test_one_append_of_a_thread_is_under_way_at_a_time_and_the_next_takes_all_that_is_due(autojump_clock):
    async with books() as b:
        b.holds["t"] = trio.Event()
        for name in ("a", "b", "c"):
            b.open(name)
            b.observe(name, 1)
            await wait_all_tasks_blocked()
        assert (b.store.appends, b.board()) == (1, 3)
        b.holds["t"].set()
        await wait_all_tasks_blocked()
        assert (b.store.appends, b.most_held["t"]) == (2, 1)
        assert [name for name, *_ in await b.stored()] == ["a", "b", "c"]


async def test_a_slow_log_delays_no_other(autojump_clock):
    async with books() as b:
        b.holds["t"] = trio.Event()
        b.open("a")
        b.open("b", "u")
        b.observe("a", 1)
        b.observe("b", 2)
        began = trio.current_time()
        assert await b.actor.settle("b") == total(2)
        assert trio.current_time() == began
        assert await b.stored() == []
        b.holds["t"].set()
        assert await b.actor.settle("a") == total(1)


async def test_a_reading_observed_while_an_append_is_under_way_follows_it_in_order(autojump_clock):
    async with books() as b:
        b.holds["t"] = trio.Event()
        b.open("a")
        b.observe("a", 1)
        await wait_all_tasks_blocked()
        b.observe("a", 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.actor.settle, "a")
            await wait_all_tasks_blocked()
            assert await b.stored() == []
            b.holds["t"].set()
        assert await b.stored() == [("a", 1, 1), ("a", 2, 2)]


async def test_reading_totals_waits_for_nothing(autojump_clock):
    async with books(run=False) as b:
        b.open("a", goal_id="g")
        b.observe("a", 12)
        totals = b.actor.totals("t")
        assert (totals.thread, totals.turn("turn"), totals.goal("g")) == (total(12), total(12), 12)


async def test_settling_a_settled_reading_still_lets_others_run(autojump_clock):
    async with books() as b, trio.open_nursery() as nursery:
        b.open("a")
        b.open("b")
        ran = trio.Event()

        async def run() -> None:
            ran.set()
            await trio.lowlevel.checkpoint()

        nursery.start_soon(run)
        await b.actor.settle("a")
        await b.actor.settle("b")
        assert ran.is_set()
        with trio.testing.assert_checkpoints():
            await b.actor.drain()


async def test_a_cancel_does_not_cut_settling_short(autojump_clock):
    async with books() as b:
        b.open("a")
        b.observe("a", 3)
        with trio.CancelScope() as scope:
            scope.cancel()
            assert await b.actor.settle("a") == total(3)
        assert await b.stored() == [("a", 1, 3)]


async def test_draining_stores_everything_and_leaves_each_attempt_to_its_owner(autojump_clock):
    async with books() as b:
        b.open("a")
        b.open("b", "u")
        for name in ("a", "b"):
            b.observe(name, 1)
        await wait_all_tasks_blocked()
        for name in ("a", "b"):
            b.observe(name, 2)
        await b.actor.drain()
        assert (await b.stored())[-1] == ("a", 2, 2)
        assert (await b.stored("u"))[-1] == ("b", 2, 2)
        b.observe("a", 3)
        assert await b.actor.settle("a") == total(3)
        assert await b.actor.settle("b") == total(2)


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [rt.StorageError("no"), rt.AppendOutcomeUnknown("perhaps"), RuntimeError("a bug")])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_record_that_could_not_be_stored_is_tried_again_at_the_next_interval(autojump_clock, error, when):
    fault = {"fail" if when == "before" else "fail_after": {1: error, 2: error}}
    async with books(**fault) as b:
        b.open("a")
        b.observe("a", 4)
        await trio.sleep(0.1)
        assert (b.published, b.board()) == ([], 4)
        assert await b.actor.settle("a") == total(4)
        assert [round(when - b.times[0], 6) for when in b.times] == [0, 0.25, 0.5]
        assert (await b.stored(), await b.fold(), b.board()) == ([("a", 1, 4)], 4, 4)
        assert len(b.published) == 1


async def test_settling_fails_at_its_deadline_and_the_board_goes_back_to_what_is_durable(autojump_clock):
    failing = {number: rt.StorageError("no") for number in range(2, 100)}
    async with books(fail=failing, usage_deadline=1.1) as b:
        b.open("a", goal_id="g")
        b.observe("a", 4)
        await wait_all_tasks_blocked()
        b.observe("a", 12)
        began = trio.current_time()
        assert b.board() == 12
        with pytest.raises(rt.StorageError, match="could not be stored"):
            await b.actor.settle("a")
        assert trio.current_time() == began + 1.1
        totals = b.actor.totals("t")
        assert (totals.thread, totals.turn("turn"), totals.goal("g")) == (total(4), total(4), 4)
        assert not b.actor.has_open_attempts("t")
        appends = b.store.appends
        await trio.sleep(60)
        assert b.store.appends == appends
        assert await b.stored() == [("a", 1, 4)]


async def test_an_append_under_way_that_lands_after_the_attempt_was_given_up_counts_from_then_on(autojump_clock):
    async with books(usage_deadline=1.0) as b:
        b.holds["t"] = trio.Event()
        b.open("a")
        b.observe("a", 4)
        await wait_all_tasks_blocked()
        b.observe("a", 12)
        with pytest.raises(rt.StorageError):
            await b.actor.settle("a")
        assert b.board() == 0
        assert b.actor.has_open_attempts("t")
        b.holds["t"].set()
        await wait_all_tasks_blocked()
        assert (b.board(), await b.fold()) == (4, 4)
        assert await b.stored() == [("a", 1, 4)]
        assert not b.actor.has_open_attempts("t")
        b.actor.totals("t").begin_load()
        b.actor.totals("t").hand_over(Ledger())
        assert b.board() == 4


async def test_an_attempt_given_up_while_only_another_one_is_being_appended_is_closed_at_once(autojump_clock):
    async with books(usage_deadline=1.0) as b:
        b.holds["t"] = trio.Event()
        b.open("a")
        b.observe("a", 4)
        await wait_all_tasks_blocked()
        b.open("b")
        b.observe("b", 7)
        for name in ("b", "a"):
            with pytest.raises(rt.StorageError):
                await b.actor.settle(name)
        b.holds["t"].set()
        await wait_all_tasks_blocked()
        assert (b.board(), await b.stored()) == (4, [("a", 1, 4)])
        assert not b.actor.has_open_attempts("t")


async def test_the_failure_of_one_thread_leaves_other_threads_alone(autojump_clock):
    async with books(usage_deadline=1.0) as b:

        async def before(number: int, thread_id: str, records: Any) -> None:
            await trio.lowlevel.checkpoint()
            if thread_id == "t":
                raise ValueError("this log is broken")

        b.store.before = before
        b.open("a")
        b.open("b", "u")
        b.observe("a", 1)
        b.observe("b", 2)
        with pytest.raises(rt.StorageError):
            await b.actor.settle("a")
        assert await b.actor.settle("b") == total(2)
        assert (b.board(), b.board("u")) == (0, 2)


@pytest.mark.parametrize(
    "error", [rt.ThreadNotFound("t"), rt.UnknownTurn("x")], ids=["a storage error too", "no storage error"]
)
async def test_a_store_that_refuses_for_good_fails_settling_at_once(autojump_clock, error):
    async with books(fail=dict.fromkeys(range(1, 50), error)) as b:
        b.open("a")
        b.observe("a", 4)
        began = trio.current_time()
        with pytest.raises(rt.StorageError) as caught:
            await b.actor.settle("a")
        assert trio.current_time() == began
        assert isinstance(caught.value.__cause__, rt.StorageError)
        assert (b.store.appends, b.board(), await b.stored()) == (1, 0, [])


async def test_a_store_that_refuses_is_not_asked_again_by_the_timer(autojump_clock):
    async with books(fail=dict.fromkeys(range(1, 50), rt.ThreadNotFound("t"))) as b:
        b.open("a")
        b.observe("a", 4)
        await trio.sleep(10)
        b.observe("a", 5)
        await trio.sleep(10)
        assert b.store.appends == 1


@pytest.mark.parametrize("error", [rt.StorageError("no"), None])
async def test_draining_takes_no_longer_than_the_usage_deadline_and_raises_nothing(autojump_clock, error):
    async with books(fail={} if error is None else dict.fromkeys(range(1, 100), error)) as b:
        if error is None:
            b.holds["t"] = trio.Event()
        b.open("a")
        b.observe("a", 1)
        began = trio.current_time()
        await b.actor.drain()
        assert trio.current_time() == began + 5


async def test_draining_many_attempts_takes_one_usage_deadline(autojump_clock):
    async with books() as b:
        threads = [f"t{n}" for n in range(10)]
        for thread_id in threads:
            b.holds[thread_id] = trio.Event()
            b.open(f"a-{thread_id}", thread_id)
            b.observe(f"a-{thread_id}", 1)
        began = trio.current_time()
        await b.actor.drain()
        assert trio.current_time() == began + 5


async def test_a_crash_keeps_slots_and_board(autojump_clock, caplog):
    async with books() as b:
        b.crashes = 1
        b.open("a")
        b.open("b", "u")
        b.holds["u"] = trio.Event()
        b.observe("b", 2)
        await wait_all_tasks_blocked()
        b.observe("a", 4)
        await wait_all_tasks_blocked()
        assert "accounting crashed" in caplog.text
        b.observe("a", 5)
        b.holds["u"].set()
        assert await b.actor.settle("a") == total(5)
        assert await b.actor.settle("b") == total(2)
        assert (await b.fold(), await b.fold("u"), b.board(), b.board("u")) == (5, 2, 5, 2)


async def test_who_settles_while_accounting_crashes_gets_the_answer_of_the_next_incarnation(autojump_clock):
    async with books() as b:
        b.holds["u"] = trio.Event()
        b.open("b", "u")
        b.observe("b", 2)
        b.open("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.actor.settle, "b")
            await wait_all_tasks_blocked()
            b.crashes = 1
            b.observe("a", 1)
            await wait_all_tasks_blocked()
            assert b.store.appends >= 3
            b.holds["u"].set()
        assert await b.fold("u") == 2


async def test_once_closed_accounting_refuses_to_wait_at_once(autojump_clock):
    async with books() as b:
        b.holds["t"] = trio.Event()
        for name in ("a", "b"):
            b.open(name)
            b.observe(name, 4)
        began = trio.current_time()
        with pytest.RaisesGroup(rt.StorageError):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(b.actor.settle, "a")
                await wait_all_tasks_blocked()
                b.actor.close()
        with pytest.raises(rt.StorageError):
            await b.actor.settle("b")
        assert trio.current_time() == began


async def test_totals_of_a_thread_with_an_open_attempt_are_not_forgotten(autojump_clock):
    async with books() as b:
        b.open("a")
        b.observe("a", 4)
        b.actor.forget("t")
        assert b.board() == 4
        await b.actor.settle("a")
        b.actor.forget("t")
        assert b.board() == 0


# -- in a runtime ------------------------------------------------------------------------------------------------------


def usage_appends_fail(*, first: int = 1) -> Any:
    """A hook that fails the appends of usage records, from the `first`-th on."""
    seen = 0

    async def before(number: int, thread_id: str, records: Any) -> None:
        nonlocal seen
        await trio.lowlevel.checkpoint()
        if any(record.kind == "usage.recorded" for record in records):
            seen += 1
            if seen >= first:
                raise rt.StorageError("usage can't be stored")

    return before


async def test_a_turn_whose_usage_can_not_be_stored_fails_with_storage_and_carries_what_is_durable(autojump_clock):
    store = FaultyStore(stores.MemoryThreadStore(), before=usage_appends_fail(first=2))
    async with one_thread(
        [say("hello"), used(20), 0.1, used(30), DONE], [used(5), say("x"), DONE], store=store
    ) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "storage")
        assert outcome.usage == total(20)
        assert (await scene.runtime.load_metadata(scene.id)).usage == total(20)
        assert scene.ends[0].usage == total(20)
        history = await scene.history()
        assert transcript.AssistantMessage("hello") in history
        store.before = None
        assert (await scene.run()).usage == total(5)
        assert (await scene.runtime.load_metadata(scene.id)).usage == total(25)


async def test_a_turn_whose_thread_another_owner_took_fails_at_once(autojump_clock):
    class Taken(stores.MemoryThreadStore):
        async def append(self, thread_id: str, records: Any) -> None:
            if any(record.kind == "usage.recorded" for record in records):
                await trio.lowlevel.checkpoint()
                raise rt.ThreadNotFound(thread_id)
            await super().append(thread_id, records)

    async with one_thread([used(20), DONE], store=Taken()) as scene:
        began = trio.current_time()
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind, outcome.usage) == ("failed", "storage", None)
        assert trio.current_time() == began


async def test_a_stalled_log_of_usage_does_not_delay_another_threads_turn(autojump_clock):
    hold = trio.Event()

    async def before(number: int, thread_id: str, records: Any) -> None:
        await trio.lowlevel.checkpoint()
        if thread_id == slow and any(record.kind == "usage.recorded" for record in records):
            await hold.wait()

    store = FaultyStore(stores.MemoryThreadStore(), before=before)
    async with one_thread(*[[used(20), DONE]] * 2, store=store) as scene:
        slow = scene.id
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        other = (await scene.runtime.create_thread()).thread_id
        began = trio.current_time()
        assert (await scene.runtime.run_turn(other, "go")).status == "completed"
        assert trio.current_time() == began
        hold.set()
        assert (await scene.wait(turn_id)).usage == total(20)


async def test_a_thread_with_an_open_attempt_stays_in_memory(autojump_clock):
    stuck = trio.Event()

    async def before(number: int, thread_id: str, records: Any) -> None:
        await trio.lowlevel.checkpoint()
        if any(record.kind == "usage.recorded" for record in records):
            await stuck.wait()

    store = FaultyStore(stores.MemoryThreadStore(), before=before)
    config = settings(max_resident_threads=1, usage_deadline=1.0)
    async with one_thread([used(20), DONE], store=store, config=config) as scene:
        assert (await scene.run()).error_kind == "storage"
        resident = scene.resident
        assert not resident.is_idle
        for _ in range(3):
            other = (await scene.runtime.create_thread()).thread_id
            await scene.runtime.latest_transcript_item_index(other, "x")
        assert scene.resident is resident
        loads = store.loads
        stuck.set()
        await wait_all_tasks_blocked()
        assert resident.is_idle
        assert (await scene.runtime.load_metadata(scene.id)).usage == total(20)
        other = (await scene.runtime.create_thread()).thread_id
        await scene.runtime.latest_transcript_item_index(other, "x")
        assert scene.resident is None
        goal = await scene.runtime.thread_goal_set(scene.id, goals.GoalPatch(objective="x"))
        assert (goal.tokens_used, store.loads) == (0, loads + 2)


async def test_a_crash_of_accounting_in_a_turn_is_survived_without_a_token_lost(autojump_clock):
    hold = trio.Event()
    async with one_thread([used(20), hold, used(30), DONE]) as scene:
        accounting = scene.runtime._core.accounting
        publish = accounting._publish

        def fails_once(record: rt.EventEnvelope) -> None:
            accounting._publish = publish
            raise RuntimeError("a bug")

        accounting._publish = fails_once
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        hold.set()
        assert (await scene.wait(turn_id)).usage == total(30)
        assert folded_usage(await scene.snapshot()) == total(30)


async def test_a_runtime_that_can_not_count_ends_with_the_cause(autojump_clock):
    def fails(record: rt.EventEnvelope) -> None:
        raise RuntimeError("a bug in accounting")

    body = "running"
    with pytest.raises(RuntimeError, match="a bug in accounting"):
        async with one_thread(*[[used(n), used(n + 1), 1.0, used(n + 2), NEVER_ENDS] for n in range(1, 9)]) as scene:
            scene.runtime._core.accounting._publish = fails
            try:
                for _ in range(6):
                    thread = await scene.runtime.create_thread()
                    await scene.runtime.start_turn(thread.thread_id, "go")
                await trio.sleep(60)
            finally:
                body = "cancelled"
    assert body == "cancelled"
    with pytest.raises(rt.RuntimeClosed):
        await scene.runtime.create_thread()
    assert scene.runtime.shutdown_report is not None


async def test_the_runtime_can_be_left_while_a_store_takes_no_usage_at_all(autojump_clock):
    async def before(number: int, thread_id: str, records: Any) -> None:
        await trio.lowlevel.checkpoint()
        if any(record.kind == "usage.recorded" for record in records):
            await trio.sleep_forever()

    store = FaultyStore(stores.MemoryThreadStore(), before=before)
    async with one_thread([used(20), NEVER_ENDS], store=store) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
    assert scene.runtime.shutdown_report.status == "clean"
    snapshot = await store.inner.load_thread(scene.id)
    [record] = [turn for turn in snapshot.turns if turn.turn_id == turn_id]
    assert (record.status.value, record.usage) == ("failed", None)
