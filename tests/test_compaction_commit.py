"""What a compaction commits and what it doesn't: stale windows, open calls, faults of the store."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import compaction, events, stores, transcript
from roder_trio.testing import FaultyStore
from tests.ledger_support import (
    COMPACT_ALWAYS,
    HISTORY,
    boundary,
    compact_calls,
    compact_directly,
    compactions,
    ends_of,
    meta,
    persist,
    stored_boundary,
    with_goal,
)
from tests.turn_support import DONE, used

U40, U80 = used(30, 10), used(60, 20)


# -- the commit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["direct", "manual"])
async def test_an_item_that_is_appended_meanwhile_makes_the_window_stale(autojump_clock, way):
    hold = trio.Event()
    note = transcript.UserMessage("meanwhile")
    async with with_goal(compact=[[U40, boundary(), hold, DONE]]) as scene:
        await persist(scene)
        found: list[Any] = []

        async def compact() -> None:
            try:
                run = scene.runtime.compact_with_provider
                if way == "direct":
                    found.append(await run(scene.id, "bare", "scripted", "m", HISTORY))
                else:
                    found.append(await scene.runtime.compact_thread(scene.id))
            except rt.CompactionPreempted as error:
                found.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact)
            await wait_all_tasks_blocked()
            await scene.runtime.persist_turn_item(scene.id, "other", note)
            hold.set()
        [outcome] = found
        if way == "direct":
            assert isinstance(outcome, compaction.Preempted)
            assert list(outcome.window) == list(HISTORY)
        else:
            assert isinstance(outcome, rt.CompactionPreempted)
        assert await scene.history() == [*HISTORY, note]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["stale_window"]
        assert ((await meta(scene)).total_tokens, compact_calls(scene)) == (40, 1)


async def test_an_item_that_is_appended_in_a_turn_makes_it_compact_again_and_not_for_ever(autojump_clock):
    async with with_goal([DONE], config=COMPACT_ALWAYS) as scene:
        script: list[Any] = []

        def meddle(request: Any) -> Any:
            done = trio.Event()

            async def append() -> None:
                await scene.runtime.persist_turn_item(scene.id, "other", transcript.UserMessage("x"))
                done.set()

            nursery.start_soon(append)
            return done

        script += [[U40, boundary(), meddle, DONE]] * 3
        scene.engine._compact_steps, scene.engine._compacts = iter(script), True
        async with trio.open_nursery() as nursery:
            outcome = await scene.run()
        assert (outcome.status, compact_calls(scene), outcome.usage.total_tokens) == ("completed", 3, 120)
        assert list(ends_of(scene).values()) == [["Cancelled"]] * 3
        assert [len(request.transcript) for request in scene.engine.compact_requests] == [1, 2, 3]
        assert len(scene.engine.requests[0].transcript) == 4
        assert scene.of(events.ContextCompactionSkipped) == [events.ContextCompactionSkipped("failed_before")]


@pytest.mark.parametrize("way", ["direct", "manual"])
async def test_a_call_without_a_result_is_never_cut_off_from_it(autojump_clock, way):
    async with with_goal(compact=[[U40, boundary(), DONE]] * 2) as scene:
        await persist(scene, HISTORY[:2])
        if way == "direct":
            outcome = await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", HISTORY[:2])
            assert isinstance(outcome, compaction.Preempted)
        else:
            with pytest.raises(rt.CompactionPreempted):
                await scene.runtime.compact_thread(scene.id)
        assert await scene.history() == list(HISTORY[:2])
        await persist(scene, HISTORY[2:])
        assert (await scene.runtime.compact_thread(scene.id)).compacted


async def test_a_turn_does_not_compact_while_a_call_is_open(autojump_clock):
    async with with_goal([DONE], config=COMPACT_ALWAYS) as scene:
        await persist(scene, HISTORY[:2])
        assert (await scene.run()).status == "completed"
        assert (compact_calls(scene), compactions(scene)) == (0, [])


@pytest.mark.parametrize(
    "given", [[], HISTORY[:1], (*HISTORY, HISTORY[0]), HISTORY[::-1]], ids=["nothing", "less", "more", "other"]
)
async def test_a_transcript_that_is_not_the_window_opens_nothing(autojump_clock, given):
    async with with_goal(compact=[[boundary(), DONE]]) as scene:
        await persist(scene)
        outcome = await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", given)
        assert outcome == compaction.Preempted(list(given))
        assert [*given] == outcome.window
        assert (compact_calls(scene), compactions(scene), await meta(scene)) == (0, [], None)


async def test_error_notes_do_not_matter_to_whether_a_transcript_is_the_window(autojump_clock):
    note = transcript.ErrorNote("it broke")
    async with with_goal(compact=[[boundary(), DONE]] * 2) as scene:
        await persist(scene, (HISTORY[0], note, *HISTORY[1:]))
        outcome = await scene.runtime.compact_with_provider(
            scene.id, "bare", "scripted", "m", [note, *HISTORY[:2], note, HISTORY[2]]
        )
        assert outcome == compaction.Compacted([stored_boundary()])
        assert list(scene.engine.compact_requests[0].transcript) == [HISTORY[0], note, *HISTORY[1:]]


def commits_fail(error: Exception, *, after: bool = False, times: int = 1) -> FaultyStore:
    """A store that fails the first appends that hold a boundary."""
    left = times

    async def fail(number: int, thread_id: str, records: Any) -> None:
        nonlocal left
        await trio.lowlevel.checkpoint()
        if left and any(record.kind == "compaction.recorded" for record in records):
            left -= 1
            raise error

    store = FaultyStore(stores.MemoryThreadStore())
    setattr(store, "after" if after else "before", fail)
    return store


async def test_a_commit_that_can_not_be_stored_leaves_the_window(autojump_clock):
    store = commits_fail(rt.StorageError("the disk is full"), times=3)
    async with with_goal([DONE], compact=[[U40, boundary(), DONE]] * 4, store=store, config=COMPACT_ALWAYS) as scene:
        await persist(scene)
        for call in (scene.runtime.compact_thread(scene.id), compact_directly(scene)):
            with pytest.raises(rt.StorageError, match="disk is full"):
                await call
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind, outcome.usage.total_tokens) == ("failed", "storage", 40)
        assert not any(map(compaction.is_boundary, await scene.history()))
        assert list(ends_of(scene).values()) == [["Failed"]] * 3
        assert [event.error_kind for event in scene.of(events.ContextCompactionFailed)] == ["storage"] * 3
        assert (await scene.run()).status == "completed"
        assert any(map(compaction.is_boundary, await scene.history()))
        assert (await meta(scene)).total_tokens == 160


@pytest.mark.parametrize("way", ["direct", "manual", "in a turn"])
@pytest.mark.parametrize("landed", [True, False])
async def test_a_commit_of_unknown_outcome_is_what_the_log_says(autojump_clock, way, landed):
    store = commits_fail(rt.AppendOutcomeUnknown("perhaps"), after=landed)
    async with with_goal([DONE], compact=[[U40, boundary(), DONE]], store=store, config=COMPACT_ALWAYS) as scene:
        await persist(scene)
        if way == "in a turn":
            await scene.run()
        else:
            with pytest.raises((rt.StorageError, rt.ActorCrashed)):
                await (compact_directly(scene) if way == "direct" else scene.runtime.compact_thread(scene.id))
        assert any(map(compaction.is_boundary, await scene.history())) == landed
        snapshot = await scene.snapshot()
        kinds = [e.kind for e in snapshot.events if e.kind.startswith("compaction.")]
        assert kinds == ["compaction.started", "compaction.recorded" if landed else "compaction.cancelled"]
        assert (await meta(scene)).total_tokens == 40


async def test_a_direct_compaction_survives_a_crash_of_the_thread_and_finds_itself_ended(autojump_clock):
    hold = trio.Event()
    fails: list[Exception] = []

    async def crash(number: int, thread_id: str, records: Any) -> None:
        await trio.lowlevel.checkpoint()
        if fails:
            raise fails.pop()

    store = FaultyStore(stores.MemoryThreadStore(), before=crash)
    async with with_goal(compact=[[U40, hold, boundary(), DONE]], store=store) as scene:
        await persist(scene)
        found: list[Any] = []

        async def compact() -> None:
            run = scene.runtime.compact_with_provider
            found.append(await run(scene.id, "bare", "scripted", "m", HISTORY))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact)
            await wait_all_tasks_blocked()
            fails.append(rt.AppendOutcomeUnknown("perhaps"))
            with pytest.raises(rt.AppendOutcomeUnknown):
                await scene.runtime.persist_turn_item(scene.id, "other", HISTORY[0])
            await wait_all_tasks_blocked()
            hold.set()
        assert isinstance(found[0], compaction.Preempted)
        assert list(ends_of(scene).values()) == [["Cancelled"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["runtime_restart"]
        assert (await meta(scene)).total_tokens == 40


async def test_usage_that_can_not_be_stored_fails_the_compaction_with_storage(autojump_clock):
    async def fail(number: int, thread_id: str, records: Any) -> None:
        await trio.lowlevel.checkpoint()
        if records[0].kind == "usage.recorded":
            raise rt.StorageError("no")

    store = FaultyStore(stores.MemoryThreadStore(), before=fail)
    async with with_goal([DONE], compact=[[U40, boundary(), DONE]] * 3, store=store, config=COMPACT_ALWAYS) as scene:
        await persist(scene)
        for call in (scene.runtime.compact_thread(scene.id), compact_directly(scene)):
            with pytest.raises(rt.StorageError, match="usage"):
                await call
        assert (await scene.run()).error_kind == "storage"
        assert list(ends_of(scene).values()) == [["Failed"]] * 3
        assert not any(map(compaction.is_boundary, await scene.history()))
