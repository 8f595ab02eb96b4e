"""Compactions in callers' own tasks: beside turns, at the runtime's exit, and cancelled at every step."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import compaction, events, inference, stores, transcript
from roder_trio.providers.scripted import NEVER_ENDS
from roder_trio.testing import FaultyStore
from tests.injection import Injector, NurseryEngine, ProbeEngine
from tests.ledger_support import (
    COMPACT_ALWAYS,
    HISTORY,
    boundary,
    cold,
    compact_directly,
    ends_of,
    goal_of,
    item,
    meta,
    persist,
    stored_boundary,
    with_goal,
)
from tests.turn_support import DONE, Scene, failure, one_thread, say, settings, used

U40, U80 = used(30, 10), used(60, 20)


# -- a compaction in a caller's task -----------------------------------------------------------------------------------


async def test_a_direct_compaction_names_an_engine_and_a_thread_that_exist(autojump_clock):
    async with with_goal(compact=[[boundary(), DONE]]) as scene:
        run = scene.runtime.compact_with_provider
        with pytest.raises(rt.UnknownProvider):
            await run(scene.id, "bare", "nobody", "m", [])
        for thread_id in ("unknown", ""):
            with pytest.raises(rt.ThreadNotFound):
                await run(thread_id, "bare", "scripted", "m", [])
        for turn_id in ("", "a\0b", "x" * 513):
            with pytest.raises(ValueError, match="a turn id is"):
                await run(scene.id, turn_id, "scripted", "m", [])
        assert (await scene.snapshot()).turns == ()
    with pytest.raises(rt.RuntimeClosed):
        await run(scene.id, "bare", "scripted", "m", [])


async def test_a_direct_compaction_needs_no_free_slot_and_the_turn_goes_on(autojump_clock):
    hold, compacting = trio.Event(), trio.Event()
    steps = [[say("a"), hold, DONE], [DONE]]
    async with with_goal(*steps, compact=[[U40, boundary(), compacting, DONE]]) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        history = await scene.history()

        async def compact() -> None:
            run = scene.runtime.compact_with_provider
            found.append(await run(scene.id, "bare", "scripted", "m", history))

        found: list[Any] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact)
            await wait_all_tasks_blocked()
            hold.set()
            assert (await scene.wait(turn_id)).usage is None
            compacting.set()
        assert found == [compaction.Preempted(scene.engine.compact_requests[0].transcript)]
        assert (await goal_of(scene)).tokens_used == 0


async def test_a_direct_compaction_between_two_rounds_shortens_the_next_request(autojump_clock):
    hold = trio.Event()
    again = inference.ProviderMetadata({"end_turn": False})
    async with with_goal([say("a"), again, DONE], [hold, DONE], compact=[[U40, boundary(), DONE]]) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        assert await compact_directly(scene) is None
        hold.set()
        await scene.wait(turn_id)
        assert compaction.is_boundary((await scene.history())[-1])


async def test_the_target_of_the_running_turns_engine_does_not_change_a_direct_window(autojump_clock):
    mine = inference.EngineTarget("d", "scripted", "u")
    foreign = transcript.ProviderMetadata({"output": [item()], "provider": "other"})
    async with with_goal([NEVER_ENDS], target=mine, compact=[[boundary("b"), DONE]]) as scene:
        await persist(scene, (*HISTORY, foreign))
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        history = [*HISTORY, foreign, transcript.UserMessage("go")]
        outcome = await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", history)
        assert isinstance(outcome, compaction.Compacted)
        await scene.interrupt(turn_id)
        await scene.wait(turn_id)


@pytest.mark.parametrize("outside", [True, False])
async def test_the_runtimes_exit_ends_a_direct_compaction_with_its_usage_counted(autojump_clock, outside):
    store = stores.MemoryThreadStore()
    found: list[BaseException] = []

    async def compact(scene: Scene) -> None:
        try:
            await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", HISTORY)
        except (rt.RuntimeClosed, trio.Cancelled) as error:
            found.append(error)
            if isinstance(error, trio.Cancelled):
                raise

    script = [[boundary(), U40, NEVER_ENDS]]
    async with trio.open_nursery() as nursery, one_thread(compact=script, store=store) as scene:
        await persist(scene)
        if outside:
            nursery.start_soon(compact, scene)
            await wait_all_tasks_blocked()
        else:
            with trio.move_on_after(1):
                await compact(scene)
    assert isinstance(found[0], rt.RuntimeClosed if outside else trio.Cancelled)
    again = await cold(store, scene.id)
    assert again.usage.total_tokens == 40
    assert not any(
        map(compaction.is_boundary, (turn_item for turn in again.snapshot.turns for turn_item in turn.items))
    )
    cancelled = [e.event for e in again.snapshot.events if isinstance(e.event, events.ContextCompactionCancelled)]
    assert [event.reason for event in cancelled] == ["interrupted"]
    assert scene.runtime.shutdown_report.overruns == ()


async def test_a_direct_compaction_that_is_asked_for_during_the_exit_is_refused(autojump_clock):
    leaving = trio.Event()
    compact = [[boundary(), U40, NEVER_ENDS], [boundary(), U40, NEVER_ENDS]]
    store = FaultyStore(stores.MemoryThreadStore())
    found: list[Any] = []

    async def compacts(scene: Scene, wait: trio.Event | None) -> None:
        if wait is not None:
            await wait.wait()
        with pytest.raises(rt.RuntimeClosed):
            await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", HISTORY)
        found.append(scene.runtime._core.services.lifecycle.closed)

    async def slow(number: int, thread_id: str, records: Any) -> None:
        await trio.lowlevel.checkpoint()
        if records[0].kind == "compaction.cancelled" and not leaving.is_set():
            leaving.set()
            await trio.sleep(1)

    async with trio.open_nursery() as nursery, one_thread(compact=compact, store=store) as scene:
        await persist(scene)
        nursery.start_soon(compacts, scene, None)
        nursery.start_soon(compacts, scene, leaving)
        await wait_all_tasks_blocked()
        store.before = slow
    assert len(found) == 2
    assert len(scene.engine.calls) == 1


async def test_a_direct_compaction_keeps_its_thread_in_memory(autojump_clock):
    hold = trio.Event()
    config = settings(max_resident_threads=1)
    async with with_goal(compact=[[boundary(), hold, DONE]], config=config) as scene:
        await persist(scene)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact_directly, scene)
            await wait_all_tasks_blocked()
            resident = scene.resident
            assert not scene.runtime._core.accounting.totals(scene.id).thread.total_tokens
            for _ in range(3):
                other = (await scene.runtime.create_thread()).thread_id
                await scene.runtime.latest_transcript_item_index(other, "x")
            assert scene.resident is resident
            hold.set()
        other = (await scene.runtime.create_thread()).thread_id
        await scene.runtime.latest_transcript_item_index(other, "x")
        assert scene.resident is None


async def test_a_direct_compaction_does_not_wait_for_ever_for_a_store_that_hangs(autojump_clock):
    hold = trio.Event()

    async def before(number: int, thread_id: str, records: Any) -> None:
        await trio.lowlevel.checkpoint()
        if records[0].kind == "compaction.started":
            await hold.wait()

    store = FaultyStore(stores.MemoryThreadStore(), before=before)
    async with with_goal(compact=[[boundary(), DONE]], store=store, config=settings(append_grace=1.0)) as scene:
        await persist(scene)
        began = trio.current_time()
        with pytest.raises(rt.StorageError, match="in time"):
            await compact_directly(scene)
        assert trio.current_time() == began + 1
        assert scene.engine.calls == []
        hold.set()
        await wait_all_tasks_blocked()
        assert list(ends_of(scene).values()) == [["Cancelled"]]


async def test_two_threads_compact_at_the_same_time(autojump_clock):
    hold = trio.Event()
    compact = [[U40, hold, boundary("a"), DONE], [U80, hold, inference.Failed("no")]]
    async with with_goal(compact=compact, config=COMPACT_ALWAYS) as scene:
        await persist(scene)
        other = (await scene.runtime.create_thread()).thread_id
        await scene.runtime.persist_turn_item(other, "bare", HISTORY[0])

        async def fails() -> None:
            with pytest.raises(rt.ProviderFailure):
                await scene.runtime.compact_thread(other)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.runtime.compact_thread, scene.id)
            await wait_all_tasks_blocked()
            nursery.start_soon(fails)
            await wait_all_tasks_blocked()
            assert scene.engine.active == 2
            hold.set()
        assert (await meta(scene)).total_tokens == 40
        assert (await scene.runtime.load_metadata(other)).usage.total_tokens == 80
        assert stored_boundary() in await scene.history()
        assert (await scene.runtime.load_thread(other)).turns[0].items == (HISTORY[0],)


# -- a cancel at every step --------------------------------------------------------------------------------------------


class EntryEngine(ProbeEngine):
    """As a probe, with a slow way in and out."""

    def block(self, context: Any, step: Any) -> Any:
        return _Slow(super().block(context, step))


class _Slow:
    def __init__(self, block: Any) -> None:
        self._block = block

    async def __aenter__(self) -> Any:
        await trio.sleep(0.1)
        return await self._block.__aenter__()

    async def __aexit__(self, *error: object) -> Any:
        result = await self._block.__aexit__(*error)
        await trio.sleep(0.1)
        return result


@pytest.mark.parametrize("make", [ProbeEngine, EntryEngine, NurseryEngine])
def test_a_cancel_at_any_step_leaves_the_log_or_commits_and_counts_everything(make):
    committed, number = set(), 0
    while True:
        number += 1
        assert number < 400
        found: list[Any] = []
        trio.run(cancelled_at, number, make, found, clock=MockClock(autojump_threshold=0))
        fired, boundaries = found
        if not fired:
            break
        committed.add(boundaries)
    assert committed == {0, 1}
    assert number > 15


async def cancelled_at(number: int, make: type[ProbeEngine], found: list[Any]) -> None:
    parts = [used(10), boundary(), used(20), 0.1, used(40), DONE]
    store = stores.MemoryThreadStore()
    engine = make([[DONE]], [[used(7), 0.1, failure()], parts])
    scope = trio.CancelScope()
    me = trio.lowlevel.current_task()
    async with one_thread(engine=engine, store=store, config=settings(provider_retry_initial_backoff=0.5)) as scene:
        scene.store = store
        await persist(scene)
        injector = Injector(number, scope.cancel, lambda task: task is me)
        with injector.watching(), scope:
            await scene.runtime.compact_with_provider(scene.id, "bare", "probe", "m", HISTORY)
        assert engine.active == 0
        assert (await meta(scene)) == engine.handed_in("bare")
        history = await scene.history()
        boundaries = sum(map(compaction.is_boundary, history))
        assert history == [*HISTORY, *[stored_boundary()] * boundaries]
        assert all(len(ends) == 1 for ends in ends_of(scene).values())
        assert not scene.runtime._core.accounting.has_open_attempts(scene.id)
        again = await cold(store, scene.id)
        assert again.usage == engine.handed_in("bare")
        assert scene.resident.pins == 0
    found += [injector.fired, boundaries]
