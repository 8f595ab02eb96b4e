"""Manual compactions: what there is to compact, who waits for whom, and who cancels them."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import compaction, events, inference, stores, transcript
from roder_trio.logic.estimate import estimate
from roder_trio.providers.scripted import NEVER_ENDS, ScriptedEngine
from tests.ledger_support import (
    COMMIT,
    GO,
    HISTORY,
    PHASES,
    as_if_killed,
    boundary,
    cold,
    compact_calls,
    compactions,
    ends_of,
    engine_in,
    limit,
    meta,
    persist,
    stored_boundary,
    with_goal,
)
from tests.turn_support import DONE, Scene, one_thread, settings, used


def text(tokens: int, *, besides: str = "go") -> transcript.UserMessage:
    """A message that, together with `besides`, is estimated at this many tokens."""
    return transcript.UserMessage("x" * (4 * tokens - len(besides)))


async def test_there_may_be_nothing_to_compact(autojump_clock):
    async with with_goal(compact=[COMMIT]) as scene:
        result = await scene.runtime.compact_thread(scene.id)
        assert result == compaction.CompactionResult(False, "empty_transcript", None, 0, 0, None)
        await persist(scene, (stored_boundary(),))
        result = await scene.runtime.compact_thread(scene.id)
        assert (result.compacted, result.reason, result.usage) == (False, "nothing_to_compact", None)
        assert result.tokens_before == result.tokens_after == estimate([stored_boundary()])
        assert (compact_calls(scene), compactions(scene)) == (0, [])


async def test_a_manual_compaction_commits_a_boundary(autojump_clock):
    async with with_goal(compact=[COMMIT]) as scene:
        await persist(scene, (text(1_000),))
        result = await scene.runtime.compact_thread(scene.id)
        after = estimate([stored_boundary()])
        assert result == compaction.CompactionResult(True, None, "native", 1_000, after, rt.TokenUsage(30, 10, 40))
        assert (await cold(scene.store, scene.id)).usage.total_tokens == 40


async def test_only_a_thread_that_is_there_and_free_is_compacted(autojump_clock):
    async with with_goal([NEVER_ENDS], compact=[COMMIT]) as scene:
        for thread_id in ("unknown", ""):
            with pytest.raises(rt.ThreadNotFound):
                await scene.runtime.compact_thread(thread_id)
        turn_id = await scene.start()
        with pytest.raises(rt.ThreadBusy) as caught:
            await scene.runtime.compact_thread(scene.id)
        assert caught.value.turn_id == turn_id
        await scene.interrupt(turn_id)
        await scene.wait(turn_id)
        await scene.runtime.archive_thread(scene.id)
        with pytest.raises(rt.ThreadNotFound):
            await scene.runtime.compact_thread(scene.id)


async def test_an_engine_that_names_no_model_can_not_compact(autojump_clock):
    class Modelless(ScriptedEngine):
        async def list_models(self) -> Any:
            await trio.lowlevel.checkpoint()
            return ()

    async with with_goal(engine=Modelless()) as scene:
        await persist(scene)
        with pytest.raises(rt.UnsupportedOption):
            await scene.runtime.compact_thread(scene.id)


async def test_a_turn_that_starts_during_a_manual_compaction_begins_from_the_new_window(autojump_clock):
    hold = trio.Event()
    async with with_goal([DONE], compact=[[boundary(), hold, DONE]]) as scene:
        await persist(scene)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.runtime.compact_thread, scene.id)
            await wait_all_tasks_blocked()
            job = scene.resident.job.turn_id
            with pytest.raises(rt.NoActiveTurn):
                await scene.steer(job)
            nursery.start_soon(scene.run)
            await wait_all_tasks_blocked()
            assert scene.of(events.TurnStarted) == []
            hold.set()
        assert list(scene.engine.requests[0].transcript) == [stored_boundary(), HISTORY[0], GO]


async def test_a_turn_that_starts_during_a_compaction_that_fails_begins_from_the_old_window(autojump_clock):
    hold = trio.Event()
    async with with_goal([DONE], compact=[[boundary(), hold, inference.Failed("no")]]) as scene:
        await persist(scene)

        async def compact() -> None:
            with pytest.raises(rt.ProviderFailure):
                await scene.runtime.compact_thread(scene.id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact)
            await wait_all_tasks_blocked()
            nursery.start_soon(scene.run)
            await wait_all_tasks_blocked()
            hold.set()
        assert list(scene.engine.requests[0].transcript) == [*HISTORY, GO]


async def test_a_second_manual_compaction_waits_and_is_decided_again(autojump_clock):
    hold = trio.Event()
    found: list[Any] = []
    async with with_goal(compact=[[boundary(), hold, DONE]]) as scene:
        await persist(scene)

        async def compact() -> None:
            found.append(await scene.runtime.compact_thread(scene.id))

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(compact)
                await wait_all_tasks_blocked()
            hold.set()
        assert [(result.compacted, result.reason) for result in found] == [(True, None), (False, "nothing_to_compact")]


@pytest.mark.parametrize("phase", PHASES)
async def test_cancelling_the_call_cancels_the_compaction(autojump_clock, phase):
    async with with_goal([DONE], engine=engine_in(phase, [DONE])) as scene:
        await persist(scene)
        with trio.move_on_after(0.5) as scope:
            await scene.runtime.compact_thread(scene.id)
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert (scene.engine.active, scene.resident.job) == (0, None)
        assert list(ends_of(scene).values()) == [["Cancelled"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["interrupted"]
        assert getattr(await meta(scene), "total_tokens", 0) == PHASES[phase][1]
        assert (await scene.runtime.compact_thread(scene.id)).compacted


async def test_a_caller_who_leaves_while_the_thread_is_read_leaves_no_compaction_behind(autojump_clock):
    class SlowToRead(stores.MemoryThreadStore):
        async def load_thread(self, thread_id: str) -> Any:
            with trio.CancelScope(shield=True):
                await trio.sleep(delay)
            return await super().load_thread(thread_id)

    delay = 0.0
    store = SlowToRead()
    async with one_thread(store=store) as scene:
        await persist(scene)
    engine = ScriptedEngine(compact=[[boundary(), NEVER_ENDS]])
    delay = 2.0
    async with rt.open_runtime(engines=[engine], store=store, config=settings(default_model="m")) as runtime:
        with trio.move_on_after(1):
            await runtime.compact_thread(scene.id)
        await trio.sleep(3)
        resident = runtime._core.directory.get(scene.id)
        assert (engine.active, resident.job, len(engine.calls)) == (0, None, 0)


async def test_a_caller_who_leaves_before_the_thread_was_asked_leaves_nothing(autojump_clock):
    async with with_goal(compact=[COMMIT]) as scene:
        other = (await scene.runtime.create_thread()).thread_id
        with trio.CancelScope() as scope:
            scope.cancel()
            await scene.runtime.compact_thread(other)
        await wait_all_tasks_blocked()
        assert scene.engine.calls == []


async def test_archiving_interrupts_a_manual_compaction(autojump_clock):
    async with with_goal(compact=[[boundary(), used(30, 10), NEVER_ENDS]]) as scene:
        await persist(scene)

        async def compact() -> None:
            with pytest.raises(rt.CompactionPreempted):
                await scene.runtime.compact_thread(scene.id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact)
            await wait_all_tasks_blocked()
            assert await scene.runtime.archive_thread(scene.id)
        await scene.runtime.unarchive_thread(scene.id)
        assert (await meta(scene)).total_tokens == 40
        assert (await scene.history(), list(ends_of(scene).values())) == (list(HISTORY), [["Cancelled"]])


async def test_a_drain_waits_for_a_manual_compaction_and_does_not_list_it(autojump_clock):
    hold = trio.Event()
    async with with_goal(compact=[[boundary(), hold, DONE]]) as scene:
        await persist(scene)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.runtime.compact_thread, scene.id)
            await wait_all_tasks_blocked()
            outcome = await scene.runtime.drain_active_turns(1)
            assert (outcome.interrupted, outcome.remaining) == ((), ())
            hold.set()
            assert (await scene.runtime.drain_active_turns(1)).status == "clean"
        with pytest.raises(rt.RuntimeDraining):
            await scene.runtime.compact_thread(scene.id)


async def test_the_runtimes_exit_interrupts_a_manual_compaction(autojump_clock):
    found: list[BaseException] = []

    async def compact(scene: Scene) -> None:
        try:
            await scene.runtime.compact_thread(scene.id)
        except (rt.CompactionPreempted, rt.RuntimeClosed) as error:
            found.append(error)

    script = [[boundary(), used(30, 10), NEVER_ENDS]]
    async with trio.open_nursery() as nursery, with_goal(compact=script) as scene:
        await persist(scene)
        nursery.start_soon(compact, scene)
        await wait_all_tasks_blocked()
    assert len(found) == 1
    assert (await cold(scene.store, scene.id)).usage.total_tokens == 40
    assert scene.runtime.shutdown_report.overruns == ()


async def test_a_compaction_that_was_open_when_the_process_was_killed_is_closed_once(autojump_clock):
    async with with_goal(compact=[[boundary(), used(30, 10), NEVER_ENDS]], config=limit(1)) as scene:
        await scene.start()
        await wait_all_tasks_blocked()
        killed = await as_if_killed(scene.store, scene.id)
    for _ in range(2):
        again = await cold(killed, scene.id)
        ends = [e.event for e in again.snapshot.events if isinstance(e.event, events.ContextCompactionCancelled)]
        assert [event.reason for event in ends] == ["runtime_restart"]
        assert again.usage.total_tokens == 40
