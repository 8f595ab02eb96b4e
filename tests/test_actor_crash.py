"""Threads whose actor crashes: a few times, too often, and the threads beside them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import roder_trio as rt
from roder_trio import events, inference, stores, transcript
from roder_trio.schema.event import ThreadFailedEvent
from roder_trio.testing import FaultyStore
from tests.flow_engines import CountingEngine
from tests.log_laws import check_log
from tests.thread_reads import buffered

BOOM = transcript.UserMessage("boom")


async def explode(number: int, thread_id: str, records: Sequence[Any]) -> None:
    """A store with a bug: it raises what no store may for one message."""
    await trio.lowlevel.checkpoint()
    if any(getattr(getattr(record, "event", None), "item", None) == BOOM for record in records):
        raise ZeroDivisionError("a bug")


def exploding() -> FaultyStore:
    return FaultyStore(stores.MemoryThreadStore(), before=explode)


async def crash(runtime: rt.Runtime, thread: str, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(rt.ActorCrashed):
            await runtime.persist_turn_item(thread, "t", BOOM)


async def persist(runtime: rt.Runtime, thread: str) -> int:
    return await runtime.persist_turn_item(thread, "t", transcript.UserMessage("fine"))


async def test_a_crash_answers_the_request_in_hand_with_its_cause_and_the_next_one_works(autojump_clock):
    async with rt.open_runtime(store=exploding()) as runtime:
        thread = (await runtime.create_thread()).thread_id
        assert await persist(runtime, thread) == 0
        with pytest.raises(rt.ActorCrashed) as crashed:
            await runtime.persist_turn_item(thread, "t", BOOM)
        assert isinstance(crashed.value.__cause__, ZeroDivisionError)
        assert await persist(runtime, thread) == 1


async def test_three_crashes_in_a_minute_are_forgiven_and_the_fourth_parks_the_thread(autojump_clock):
    async with rt.open_runtime(store=exploding()) as runtime, runtime.subscribe_events() as subscription:
        thread = (await runtime.create_thread()).thread_id
        await crash(runtime, thread, 3)
        assert await persist(runtime, thread) == 0
        await crash(runtime, thread)
        with pytest.raises(rt.ThreadFailed, match="ZeroDivisionError: a bug") as failed:
            await persist(runtime, thread)
        assert failed.value.cause == "ZeroDivisionError: a bug"
        with pytest.raises(rt.ThreadFailed):
            await runtime.start_turn(thread, "hello")
        with pytest.raises(rt.ThreadFailed):
            await runtime.load_thread(thread)
        kinds = [envelope for envelope in buffered(subscription) if envelope.kind == "thread.failed"]
    assert [(e.thread_id, e.event) for e in kinds] == [(thread, ThreadFailedEvent("ZeroDivisionError: a bug"))]


async def test_crashes_that_lie_a_minute_apart_never_park_a_thread(autojump_clock):
    async with rt.open_runtime(store=exploding()) as runtime:
        thread = (await runtime.create_thread()).thread_id
        for _ in range(3):
            await crash(runtime, thread, 3)
            await trio.sleep(61)
        assert await persist(runtime, thread) == 0


async def test_a_parked_thread_tries_again_after_a_minute_with_a_fresh_budget(autojump_clock):
    async with rt.open_runtime(store=exploding()) as runtime:
        thread = (await runtime.create_thread()).thread_id
        await crash(runtime, thread, 4)
        await trio.sleep(59)
        with pytest.raises(rt.ThreadFailed):
            await persist(runtime, thread)
        await trio.sleep(1)
        assert await persist(runtime, thread) == 0
        await crash(runtime, thread, 3)
        assert await persist(runtime, thread) == 1
        await crash(runtime, thread)
        with pytest.raises(rt.ThreadFailed):
            await persist(runtime, thread)


async def test_what_needs_no_state_works_while_a_thread_is_parked(autojump_clock):
    async with rt.open_runtime(store=exploding()) as runtime:
        thread = (await runtime.create_thread("parked")).thread_id
        await crash(runtime, thread, 4)
        metadata = await runtime.load_metadata(thread)
        assert metadata is not None
        assert metadata.title == "parked"
        assert [found.thread_id for found in (await runtime.list_threads()).threads] == [thread]
        await runtime.interrupt_turn(thread, "any")
        with pytest.raises(rt.NoActiveTurn):
            await runtime.steer_turn(thread, "any", "hello")
        assert await runtime.archive_thread(thread)
        assert await runtime.load_thread(thread) is None


async def test_a_parked_thread_can_be_deleted(autojump_clock):
    async with rt.open_runtime(store=exploding()) as runtime:
        thread = (await runtime.create_thread()).thread_id
        await crash(runtime, thread, 4)
        assert await runtime.delete_thread(thread)
        assert await runtime.load_metadata(thread) is None


class Patient(CountingEngine):
    """Answers when it is let."""

    id = "patient"

    def __init__(self) -> None:
        super().__init__()
        self.let = trio.Event()

    def stream_turn(self, context: Any, request: Any) -> Any:
        said = [inference.Usage(rt.TokenUsage(1, 1, 2)), inference.MessageDelta("done"), inference.Completed("stop")]
        return self._held(said)

    @asynccontextmanager
    async def _held(self, said: Sequence[Any]) -> AsyncIterator[Any]:
        await self.let.wait()
        async with self.play(said) as stream:
            yield stream


class Clinging(CountingEngine):
    """Takes 3 s to let its stream go."""

    id = "clinging"

    @asynccontextmanager
    async def stream_turn(self, context: Any, request: Any) -> AsyncIterator[Any]:
        async with self.play([], stalls=True) as stream:
            try:
                yield stream
            finally:
                with trio.move_on_after(10, shield=True):
                    await trio.sleep(3)


async def test_other_threads_never_notice_a_thread_that_crashes(autojump_clock):
    engine = Patient()
    config = rt.RuntimeConfig(default_model="any")
    async with rt.open_runtime(engines=[engine], store=exploding(), config=config) as runtime:
        bad, good = [(await runtime.create_thread()).thread_id for _ in range(2)]
        turn = await runtime.start_turn(good, "hello")
        doomed = await runtime.start_turn(bad, "hello")
        await crash(runtime, bad)
        outcome = await runtime.wait_turn(bad, doomed)
        assert (outcome.status, outcome.reason) == ("interrupted", "runtime_restart")
        await crash(runtime, bad, 3)
        with pytest.raises(rt.ThreadFailed):
            await runtime.wait_turn(bad, doomed)
        engine.let.set()
        assert (await runtime.wait_turn(good, turn)).status == "completed"
        assert (await runtime.run_turn(good, "again")).status == "completed"
        snapshot = await runtime.load_thread(good)
        assert snapshot is not None
        check_log(snapshot)


async def test_who_waits_for_a_turn_of_a_thread_that_is_parked_is_told(autojump_clock):
    engine = Patient()
    outcomes: list[Any] = []

    async def never_stores(number: int, thread_id: str, records: Sequence[Any]) -> None:
        await trio.lowlevel.checkpoint()
        if number > 1:
            raise ZeroDivisionError("a bug")

    store = FaultyStore(stores.MemoryThreadStore(), before=never_stores)
    config = rt.RuntimeConfig(default_model="any")
    with trio.fail_after(60):
        async with rt.open_runtime(engines=[engine], store=store, config=config) as runtime:
            thread = (await runtime.create_thread()).thread_id
            turn = await runtime.start_turn(thread, "hello")

            async def wait() -> None:
                try:
                    await runtime.wait_turn(thread, turn)
                except rt.ThreadFailed as failed:
                    outcomes.append(failed.cause)

            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(rt.ActorCrashed):
                    await persist(runtime, thread)
    assert outcomes == ["ZeroDivisionError: a bug"] * 2


async def test_a_turn_that_waits_for_the_slot_is_told_of_a_crash(autojump_clock):
    engine = Clinging()
    config = rt.RuntimeConfig(default_model="any")
    async with rt.open_runtime(engines=[engine], store=exploding(), config=config) as runtime:
        thread = (await runtime.create_thread()).thread_id
        turn = await runtime.start_turn(thread, "hello")
        await engine.stalled.wait()
        await runtime.interrupt_turn(thread, turn)
        refused: list[type] = []

        async def start() -> None:
            try:
                await runtime.start_turn(thread, "next")
            except rt.ActorCrashed as error:
                refused.append(type(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            await trio.testing.wait_all_tasks_blocked()
            await crash(runtime, thread)
        assert refused == [rt.ActorCrashed]
        outcome = await runtime.wait_turn(thread, turn)
        assert isinstance(outcome, rt.TurnOutcome)
        assert outcome.reason == "runtime_restart"
        snapshot = await runtime.load_thread(thread)
        assert snapshot is not None
        assert sum(isinstance(e.event, events.TurnStarted) for e in snapshot.events) == 1


async def test_who_comes_for_the_result_of_a_compaction_after_a_crash_is_told(autojump_clock):
    engine = Clinging()
    config = rt.RuntimeConfig(default_model="any")
    busy = trio.Event()

    async def hold(number: int, thread_id: str, records: Sequence[Any]) -> None:
        if number == 1:
            await busy.wait()
        await explode(number, thread_id, records)

    store = FaultyStore(stores.MemoryThreadStore(), before=hold)
    async with rt.open_runtime(engines=[engine], store=store, config=config) as runtime, trio.open_nursery() as nursery:
        thread = (await runtime.create_thread()).thread_id

        async def compact() -> None:
            with pytest.raises(rt.ActorCrashed, match="without a result"):
                await runtime.compact_thread(thread)

        for task in (lambda: persist(runtime, thread), compact, lambda: crash(runtime, thread)):
            nursery.start_soon(task)
            await trio.testing.wait_all_tasks_blocked()
        busy.set()


async def test_a_view_ends_if_its_thread_is_gone_when_its_actor_comes_back(autojump_clock):
    inner = stores.MemoryThreadStore()

    async def vanish(number: int, thread_id: str, records: Sequence[Any]) -> None:
        if any(getattr(getattr(record, "event", None), "item", None) == BOOM for record in records):
            await inner.archive_thread(thread_id)
            raise ZeroDivisionError("a bug")

    async with rt.open_runtime(store=FaultyStore(inner, before=vanish)) as runtime:
        thread = (await runtime.create_thread()).thread_id
        async with runtime.thread_view(thread) as view:
            await crash(runtime, thread)
            assert [envelope async for envelope in view] == []


async def test_only_the_views_of_a_thread_that_can_not_be_read_again_are_outdated(autojump_clock):
    store = exploding()
    async with rt.open_runtime(store=store) as runtime, runtime.subscribe_events() as subscription:
        thread = (await runtime.create_thread()).thread_id
        async with runtime.thread_view(thread) as view:
            await crash(runtime, thread, 4)
            await trio.sleep(60)
            assert await persist(runtime, thread) == 0
            assert (await anext(view)).kind == "items.reset"
    assert [kind for kind in (e.kind for e in buffered(subscription)) if kind == "items.reset"] == []


async def test_a_torn_tail_that_was_set_aside_is_told_when_the_thread_is_read(tmp_path):
    async with rt.open_runtime(store=stores.JsonlThreadStore(tmp_path)) as runtime:
        thread = (await runtime.create_thread()).thread_id
        await persist(runtime, thread)
    [journal] = tmp_path.glob("threads/*.jsonl")
    with journal.open("ab") as file:
        file.write(b'{"batch":')
    store = stores.JsonlThreadStore(tmp_path)
    async with rt.open_runtime(store=store) as runtime, runtime.subscribe_events(kinds=["storage"]) as subscription:
        assert await runtime.latest_transcript_item_index(thread, "t") == 0
        told = await anext(subscription)
    assert [repair.bytes for repair in told.event.repairs] == [len(b'{"batch":')]
