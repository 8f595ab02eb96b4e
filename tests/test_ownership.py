"""Threads that another owner may take: what is lost ends at once and writes nothing, the next request claims anew."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, items, stores, testing, transcript
from roder_trio.providers.scripted import NEVER_ENDS as NEVER
from roder_trio.schema.thread import Record
from tests.tool_support import ENDING, Worker, batch, equipped
from tests.turn_support import DONE, Scene, one_thread, say, started, used

Clock = trio.testing.MockClock
RIVAL = rt.ThreadOwnedElsewhere("a rival", 20.0)


class Leased(testing.FaultyStore):
    """A memory store whose threads can be lost, as told or as found by an append, and be owned by a rival."""

    def __init__(self, **faults: Any) -> None:
        super().__init__(stores.MemoryThreadStore(), **faults)
        self.claims = 0
        self.taken = False
        """Lost: appends are refused until the next claim."""
        self.rival = False
        self.told: Callable[[str], None] = lambda _: None

    def watch_ownership(self, lost: Callable[[str], None]) -> None:
        self.told = lost

    def lose(self, thread_id: str) -> None:
        self.taken = True
        self.told(thread_id)

    async def claim_thread(self, thread_id: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.rival:
            raise RIVAL
        self.claims += 1
        self.taken = False

    async def append(self, thread_id: str, records: Sequence[Record]) -> None:
        if self.taken:
            await trio.lowlevel.checkpoint()
            raise rt.LeaseLost(thread_id)
        await super().append(thread_id, records)

    async def log(self, thread_id: str) -> list[str]:
        """The kinds of what is stored."""
        snapshot = await self.inner.load_thread(thread_id)
        assert snapshot is not None
        return [envelope.kind for envelope in snapshot.events]


async def refused(call: Callable[[], Any], told: list[Any]) -> None:
    """Note with which error a call ends."""
    try:
        told.append(await call())
    except rt.RoderTrioError as error:
        told.append(type(error))


async def test_a_lost_thread_stops_its_turn_and_writes_nothing(autojump_clock: Clock) -> None:
    store, told = Leased(), list[Any]()
    async with one_thread([say("a"), used(3), NEVER], store=store) as scene, trio.open_nursery() as nursery:
        turn_id = await scene.start()
        await scene.wait_text("a")
        job = scene.resident.job
        await started(nursery, lambda: refused(lambda: scene.wait(turn_id), told))
        before = await store.log(scene.id)
        store.lose(scene.id)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [rt.LeaseLost]
        assert job.cause == "ownership_lost"
        assert scene.resident is None
        assert await store.log(scene.id) == before
        assert scene.ends == []
        assert trio.current_time() < 1.0  # nothing waited for a deadline


async def test_the_next_request_claims_reads_and_closes_the_turn(autojump_clock: Clock) -> None:
    store = Leased()
    async with one_thread([say("a"), used(3), NEVER], [say("b"), DONE], store=store) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        await trio.testing.wait_all_tasks_blocked()  # its usage is stored
        store.lose(scene.id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.usage) == ("interrupted", rt.TokenUsage(3, 0, 3))
        assert [end.reason for end in scene.ends] == ["runtime_restart"]
        assert (await scene.run()).text == "b"
        assert store.claims == 2


async def test_a_loss_that_an_append_finds_is_a_loss(autojump_clock: Clock) -> None:
    store = Leased()
    async with one_thread([say("a"), DONE], [say("b"), DONE], store=store) as scene:
        await scene.snapshot()
        store.taken = True
        with pytest.raises(rt.LeaseLost):
            await scene.run()
        assert (await scene.run()).text == "a"
        assert store.claims == 2


async def test_a_turn_whose_end_is_refused_is_no_crash(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    async def before(number: int, thread_id: str, records: Sequence[Record]) -> None:
        if any(isinstance(record.event, rt.events.TurnFailed) for record in records):  # type: ignore[union-attr]
            raise rt.LeaseLost(thread_id)

    store, told = Leased(before=before), list[Any]()
    async with one_thread(ValueError("broken"), store=store) as scene, trio.open_nursery() as nursery:
        turn_id = await scene.start()
        await started(nursery, lambda: refused(lambda: scene.wait(turn_id), told))
        await trio.testing.wait_all_tasks_blocked()
        assert told == [rt.LeaseLost]
        store.before = None
        assert (await scene.wait(turn_id)).status == "interrupted"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert scene.runtime.shutdown_report == rt.ShutdownReport("clean")


async def test_no_further_tool_starts_on_a_lost_thread(autojump_clock: Clock) -> None:
    store = Leased()

    async def lose(context: rt.ToolContext, arguments: Any) -> Any:
        store.lose(context.thread_id)
        return rt.ToolOutput("done")

    losing, later = Worker("look", lose), Worker("later")
    steps = [batch(("c1", "look"), ("c2", "later")), ENDING]
    async with equipped(*steps, tools=[losing, later], store=store, max_parallel_tools=1) as scene:
        with pytest.raises(rt.LeaseLost):
            await scene.run()
        assert (losing.runs, later.runs) == (1, 0)
        snapshot = await scene.snapshot()
        results = [item for turn in snapshot.turns for item in turn.items if isinstance(item, transcript.ToolResult)]
        assert [(result.id, result.is_error) for result in results] == [("c1", True), ("c2", True)]


async def test_requests_in_hand_and_queued_hear_of_the_loss(autojump_clock: Clock) -> None:
    gate, told = trio.Event(), list[Any]()

    class Slow(Leased):
        async def load_state(self, thread_id: str) -> Any:
            await gate.wait()
            return await super().load_state(thread_id)

    store = Slow()
    async with one_thread(store=store) as scene, trio.open_nursery() as nursery:
        for _ in range(3):
            await started(nursery, lambda: refused(lambda: scene.runtime.thread_goal_get(scene.id), told))
        store.lose(scene.id)
        await trio.testing.wait_all_tasks_blocked()
        assert told == [rt.LeaseLost] * 3
        gate.set()
        assert await scene.runtime.thread_goal_get(scene.id) is None


async def test_a_thread_that_leaves_or_is_not_in_memory_can_not_be_lost(autojump_clock: Clock) -> None:
    store = Leased()
    async with one_thread([say("a"), DONE], store=store) as scene:
        store.told("unknown")
        store.told(scene.id)
        await scene.snapshot()
        thread = scene.resident
        thread.lose()
        thread.lose()
        assert (await scene.run()).text == "a"
        assert store.claims == 2


async def test_a_thread_owned_elsewhere_is_told_to_all_who_wait_and_not_parked(autojump_clock: Clock) -> None:
    store, told = Leased(), list[Any]()
    async with one_thread([say("a"), DONE], store=store) as scene, trio.open_nursery() as nursery:
        store.rival = True
        for _ in range(5):
            await started(nursery, lambda: refused(lambda: scene.run(), told))
        await trio.testing.wait_all_tasks_blocked()
        assert told == [rt.ThreadOwnedElsewhere] * 5
        assert scene.resident is None
        store.rival = False
        assert (await scene.run()).text == "a"
        assert store.appends == 2


@pytest.mark.parametrize("error", [rt.LeaseLost("t"), RIVAL])
async def test_usage_that_another_owner_keeps_out_is_not_waited_for(
    error: rt.StorageError, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def before(number: int, thread_id: str, records: Sequence[Record]) -> None:
        if any(isinstance(record.event, events.UsageRecorded) for record in records):  # type: ignore[union-attr]
            raise error

    store = Leased(before=before)
    async with one_thread([say("a"), used(3), DONE], store=store) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "storage")
        assert trio.current_time() < 1.0
        assert "trying again" not in caplog.text


async def test_a_view_of_a_lost_thread_starts_anew(autojump_clock: Clock) -> None:
    store = Leased()
    async with one_thread([say("a"), NEVER], store=store) as scene:
        async with scene.runtime.thread_view(scene.id) as view:
            await scene.start()
            await scene.wait_text("a")
            store.lose(scene.id)
            found = [(await anext(view)).event]
            while not isinstance(found[-1], events.ItemsReset):
                found.append((await anext(view)).event)
        reset = found[-1]
        assert [type(item) for item in reset.items] == [items.UserMessage]  # what the log holds


async def test_the_store_is_asked_to_tell_before_anything_is_claimed(autojump_clock: Clock) -> None:
    store = Leased()
    async with rt.open_runtime(store=store) as runtime:
        assert store.told == runtime._core.directory.lose
        assert store.claims == 0


async def test_a_handed_over_thread_is_released_when_it_is_drained(autojump_clock: Clock) -> None:
    released: list[str] = []

    class Told(Leased):
        async def release_thread(self, thread_id: str) -> None:
            await trio.lowlevel.checkpoint()
            released.append(thread_id)

    scene: Scene
    async with one_thread([say("a"), NEVER], store=Told()) as scene:
        await scene.start()
        await scene.wait_text("a")
        assert (await scene.runtime.drain_active_turns(5.0)).status == "clean"
    assert released == [scene.id]
