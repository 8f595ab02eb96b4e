"""Which threads are in memory: the least recently used idle ones leave, and come back with one load."""

import logging
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import providers, stores, testing
from roder_trio.actors._resident import ResidentThread
from roder_trio.actors.directory import MAX_LOOKS
from roder_trio.providers.scripted import NEVER_ENDS as NEVER
from tests.turn_support import DONE, say, settings, started


class Leases(testing.FaultyStore):
    """A memory store that can be slow, or fail, to release a thread."""

    def __init__(self) -> None:
        super().__init__(stores.MemoryThreadStore())
        self.released: list[str] = []
        self.seconds = 0.0
        self.fails = False

    async def release_thread(self, thread_id: str) -> None:
        await trio.sleep(self.seconds)
        if self.fails:
            raise ConnectionError("the lease is gone")
        self.released.append(thread_id)


def residents(runtime: rt.Runtime) -> list[str]:
    return [thread.thread_id for thread in runtime._core.directory]


async def threads_of(runtime: rt.Runtime, count: int) -> list[str]:
    """New threads, each of them read once, in order."""
    made = [(await runtime.create_thread()).thread_id for _ in range(count)]
    for thread_id in made:
        await runtime.load_thread(thread_id)
    return made


async def test_the_least_recently_used_idle_threads_leave(autojump_clock: trio.testing.MockClock) -> None:
    store = Leases()
    async with rt.open_runtime(store=store, config=settings(max_resident_threads=2)) as runtime:
        a, b, c = await threads_of(runtime, 3)
        await trio.testing.wait_all_tasks_blocked()
        assert residents(runtime) == [b, c]
        await runtime.load_thread(b)
        await runtime.load_thread(a)
        await trio.testing.wait_all_tasks_blocked()
        assert residents(runtime) == [b, a]
        assert store.released == [a, c]
    assert sorted(store.released) == sorted([a, c, b, a])


async def test_a_thread_that_left_is_read_again_by_one_load(autojump_clock: trio.testing.MockClock) -> None:
    store = Leases()
    engine = providers.ScriptedEngine([[say("a"), DONE], [say("b"), DONE]])
    async with rt.open_runtime(engines=[engine], store=store, config=settings(max_resident_threads=1)) as runtime:
        (a,) = await threads_of(runtime, 1)
        await runtime.run_turn(a, "one")
        await trio.testing.wait_all_tasks_blocked()  # its job is gone
        await threads_of(runtime, 1)
        store.loads = 0
        await runtime.run_turn(a, "two")
        assert store.loads == 1
        assert [item.text for item in engine.requests[1].transcript] == ["one", "a", "two"]  # type: ignore[union-attr]


async def test_a_thread_with_a_turn_is_never_a_victim(autojump_clock: trio.testing.MockClock) -> None:
    engine = providers.ScriptedEngine([[say("a"), NEVER]] * 3)
    async with rt.open_runtime(engines=[engine], config=settings(max_resident_threads=2)) as runtime:
        made = [(await runtime.create_thread()).thread_id for _ in range(3)]
        turns = [await runtime.start_turn(thread_id, "go") for thread_id in made]
        await trio.testing.wait_all_tasks_blocked()
        assert residents(runtime) == made
        await runtime.interrupt_turn(made[0], turns[0])
        await runtime.wait_turn(made[0], turns[0])
        await threads_of(runtime, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert made[0] not in residents(runtime)
        assert set(made[1:]) <= set(residents(runtime))


async def test_an_admission_looks_at_a_few_threads_in_use_however_many_there_are(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def is_idle(thread: ResidentThread) -> bool:
        looked.append(thread.thread_id)
        return really_idle(thread)

    really_idle = ResidentThread.is_idle.fget
    assert really_idle is not None
    monkeypatch.setattr(ResidentThread, "is_idle", property(is_idle))
    engine = providers.ScriptedEngine([[say("a"), NEVER]] * 100)
    async with rt.open_runtime(engines=[engine], config=settings(max_resident_threads=1)) as runtime:
        made = [(await runtime.create_thread()).thread_id for _ in range(100)]
        turns = [await runtime.start_turn(thread_id, "go") for thread_id in made]
        assert len(looked) <= 100 * MAX_LOOKS
        for thread_id, turn_id in zip(made, turns, strict=True):
            await runtime.interrupt_turn(thread_id, turn_id)
        await trio.testing.wait_all_tasks_blocked()
        (last,) = await threads_of(runtime, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert residents(runtime) == [last], "all that are idle leave at once"


async def test_who_asks_for_a_thread_that_leaves_waits_until_it_has_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Leases()
    async with rt.open_runtime(store=store, config=settings(max_resident_threads=1)) as runtime:
        (a,) = await threads_of(runtime, 1)
        store.seconds = 2.0
        await threads_of(runtime, 1)
        assert await runtime.load_thread(a) is not None
        assert trio.current_time() == pytest.approx(2.0)
        assert store.released == [a]


async def test_who_still_waits_when_the_runtime_closes_is_told(autojump_clock: trio.testing.MockClock) -> None:
    store = Leases()
    told: list[type] = []

    async def ask(runtime: rt.Runtime, thread_id: str) -> None:
        try:
            await runtime.load_thread(thread_id)
        except rt.RoderTrioError as error:
            told.append(type(error))

    config = settings(max_resident_threads=1)
    async with trio.open_nursery() as nursery, rt.open_runtime(store=store, config=config) as runtime:
        (a,) = await threads_of(runtime, 1)
        store.seconds = 2.0
        await threads_of(runtime, 1)
        await started(nursery, lambda: ask(runtime, a))
    assert told == [rt.RuntimeClosed]


async def test_threads_that_a_store_does_not_release_are_named(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    store = Leases()
    async with rt.open_runtime(store=store) as runtime:
        made = await threads_of(runtime, 2)
        store.fails = True
    assert runtime.shutdown_report == rt.ShutdownReport("clean", unreleased=tuple(sorted(made)))


async def test_a_thread_that_leaves_before_it_began_is_released_too() -> None:
    store = Leases()
    async with rt.open_runtime(store=store) as runtime:
        thread = await runtime._core.directory.resident("t")
        thread.evict()
        await thread.wait_gone()
        assert (residents(runtime), store.released) == ([], ["t"])


async def test_a_store_that_never_releases_overruns_its_stage(autojump_clock: trio.testing.MockClock) -> None:
    store = Leases()
    async with rt.open_runtime(store=store) as runtime:
        (a,) = await threads_of(runtime, 1)
        store.seconds = 1e9
    report: Any = runtime.shutdown_report
    assert report.overruns in ((), ("threads",))
    assert report.unreleased == (a,)
    assert trio.current_time() == pytest.approx(15.0)


async def test_a_failed_load_is_told_to_all_who_wait_and_an_archive_goes_through(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Unreadable(stores.MemoryThreadStore):
        async def load_thread(self, thread_id: str) -> Any:
            await trio.sleep(1.0)
            raise rt.StorageError("unreachable")

    async with rt.open_runtime(store=Unreadable()) as runtime, trio.open_nursery() as nursery:
        thread_id = (await runtime.create_thread()).thread_id
        told: list[Any] = []

        async def ask(what: Any) -> None:
            try:
                told.append(await what(thread_id))
            except rt.StorageError as error:
                told.append(str(error))

        for method in (runtime.load_thread, runtime.thread_goal_get, runtime.archive_thread):
            await started(nursery, lambda method=method: ask(method))  # type: ignore[misc]
        await trio.sleep(1.0)
        await trio.testing.wait_all_tasks_blocked()
        assert told == ["unreachable", "unreachable", True]
        assert trio.current_time() == pytest.approx(1.0)
