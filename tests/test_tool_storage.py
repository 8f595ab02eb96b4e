"""Turns with tools over a store that fails: what could not be stored ends the turn, and no call is left open."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, stores, testing, transcript
from tests.log_laws import check_log
from tests.tool_support import ENDING, Teller, Worker, batch, equipped, finished, object_of, told
from tests.turn_support import Scene, history_of

Clock = trio.testing.MockClock
FULL = rt.StorageError("the disk is full")
LOST = rt.AppendOutcomeUnknown("the disk went away")
FLOW = [batch(("c1", "look", '{"n": 1}'), ("c2", "look", '{"n": 1}'), ("c3", "absent")), ENDING]
APPENDS = 9
"""More than the flow has: opening, step, two rewrites, three results, end."""


def flow(store: rt.ThreadStore, look: Worker, **config: Any) -> Any:
    return equipped(*FLOW, tools=[look], hooks=[Teller(tool_calling=rt.Rewrite({"n": 2}))], store=store, **config)


def worker() -> Worker:
    return Worker(parameters=object_of("n", n="integer"))


async def check(scene: Scene, store: testing.FaultyStore, look: Worker) -> list[Any]:
    """Check that memory is what is stored, that the log is sound, and that no call ran twice."""
    snapshot = await scene.snapshot()
    stored = await store.inner.load_thread(scene.id)
    assert stored is not None
    assert history_of(stored) == history_of(snapshot)
    check_log(snapshot)
    ran = [context.call_id for context in look.contexts]
    assert len(set(ran)) == len(ran)
    return history_of(snapshot)


@pytest.mark.parametrize("number", range(2, APPENDS + 1))
async def test_an_append_that_fails_ends_the_turn_well_paired(number: int, autojump_clock: Clock) -> None:
    store, look = testing.FaultyStore(stores.MemoryThreadStore(), fail={number: FULL}), worker()
    async with flow(store, look) as scene:
        outcome = await scene.run()
        history = await check(scene, store, look)
        if store.appends < number:
            assert outcome.status == "completed"
            return
        assert (outcome.status, outcome.error_kind, outcome.error) == ("failed", "storage", str(FULL))
        assert isinstance(history[-1], transcript.ErrorNote)
        results = [item for item in history if isinstance(item, transcript.ToolResult)]
        assert [result.id for result in results] in ([], ["c1", "c2", "c3"])
        done = {id for id, _ in finished(scene)}
        for result in results:
            assert (result.result == "not run: storage") == (result.id not in done)


@pytest.mark.parametrize("number", range(2, APPENDS + 1))
async def test_an_append_whose_fate_is_unknown_ends_the_turn_by_hydration(number: int, autojump_clock: Clock) -> None:
    store, look = testing.FaultyStore(stores.MemoryThreadStore(), fail_after={number: LOST}), worker()
    async with flow(store, look) as scene:
        outcome = await scene.run()
        await check(scene, store, look)
        if store.appends >= number:
            assert outcome.status in ("interrupted", "completed")
            assert outcome.reason in (None, "runtime_restart")


@pytest.mark.parametrize("number", range(2, APPENDS + 1))
async def test_an_append_that_takes_too_long_is_reported_once(number: int, autojump_clock: Clock) -> None:
    async def hold(at: int, thread_id: str, records: Sequence[Any]) -> None:
        if at == number:
            await trio.sleep(3)

    store, look = testing.FaultyStore(stores.MemoryThreadStore(), before=hold), worker()
    async with flow(store, look, append_grace=1.0) as scene:
        outcome = await scene.run()
        history = await check(scene, store, look)
        assert outcome.status == "completed" or outcome.error_kind == "storage"
        ids = [item.id for item in history if isinstance(item, transcript.ToolResult)]
        assert len(set(ids)) == len(ids)


async def test_results_that_wait_for_one_that_can_not_be_stored_are_stored_at_the_end(autojump_clock: Clock) -> None:
    async def nap(context: rt.ToolContext, arguments: Any) -> None:
        await trio.sleep({"c1": 2, "c2": 1, "c3": 60}[context.call_id])

    async def refuse(number: int, thread_id: str, records: Sequence[Any]) -> None:
        items = [getattr(getattr(record, "event", None), "item", None) for record in records]
        if len(items) == 1 and isinstance(items[0], transcript.ToolResult):
            raise FULL

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=refuse)
    async with equipped(batch("c1", "c2", "c3"), tools=[Worker(behave=nap)], store=store) as scene:
        begun = trio.current_time()
        outcome = await scene.run()
        assert trio.current_time() - begun == pytest.approx(2.0)  # the third tool was ended
        assert outcome.error_kind == "storage"
        assert await told(scene) == [
            ("c1 of look", False),
            ("c2 of look", False),
            ("not run: storage", True),
        ]
        check_log(await scene.snapshot())


async def test_a_rewrite_that_can_not_be_stored_is_not_run(autojump_clock: Clock) -> None:
    async def refuse(number: int, thread_id: str, records: Sequence[Any]) -> None:
        if any(getattr(record, "kind", "") == "tool.arguments_rewritten" for record in records):
            raise FULL

    store, look = testing.FaultyStore(stores.MemoryThreadStore(), before=refuse), worker()
    async with flow(store, look) as scene:
        assert (await scene.run()).error_kind == "storage"
        assert look.runs == 0
        assert scene.of(events.ToolStarted, events.ToolArgumentsRewritten) == []


@pytest.mark.parametrize("number", range(2, APPENDS + 1))
async def test_a_store_with_a_bug_crashes_the_incarnation_and_hydration_closes_the_turn(
    number: int, autojump_clock: Clock
) -> None:
    store, look = testing.FaultyStore(stores.MemoryThreadStore(), fail={number: RuntimeError("a bug")}), worker()
    async with flow(store, look) as scene:
        outcome = await scene.run()
        await check(scene, store, look)
        if store.appends >= number:
            assert (outcome.status, outcome.reason) == ("interrupted", "runtime_restart")
