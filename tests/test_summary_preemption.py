"""What preempts a summary: steers, interrupts, deadlines, callers who leave, and a log that grows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import compaction, events, inference, stores, transcript
from roder_trio.providers.scripted import NEVER_ENDS, ScriptedEngine
from roder_trio.testing import FaultyStore
from tests.ledger_support import (
    GO,
    InstantStore,
    ends_of,
    limit,
    meta,
    persist,
    with_goal,
)
from tests.summary_support import (
    DRAFT,
    LONG,
    SHORT,
    TOLD,
    U40,
    asked_lines,
    model,
    quick,
    sampled,
    summaries,
)
from tests.turn_support import DONE, failure, history_of, say, used


class StuckAtTheDoor(ScriptedEngine):
    """Its first stream never opens."""

    def stream_turn(self, context: Any, request: Any) -> Any:
        block = super().stream_turn(context, request)
        return _Stuck() if len(self.calls) <= 2 else block


class _Stuck:
    async def __aenter__(self) -> Any:
        await trio.sleep_forever()

    async def __aexit__(self, *error: object) -> None:
        await trio.lowlevel.checkpoint()


PHASES = {
    "opening": (StuckAtTheDoor, [DONE], 0),
    "reading": (ScriptedEngine, [U40, say("so"), NEVER_ENDS], 40),
    "back-off": (ScriptedEngine, [U40, failure()], 40),
}
phases = pytest.mark.parametrize(("kind", "first", "billed"), PHASES.values(), ids=PHASES)


@phases
async def test_a_steer_preempts_a_summary_at_once(autojump_clock, kind, first, billed):
    engine = kind([first, DRAFT, [DONE]])
    async with with_goal(engine=engine, config=limit(1_000, max_model_calls_per_turn=1)) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await scene.steer(turn_id, "first")
        outcome = await scene.wait(turn_id)
        assert trio.current_time() == began
        assert (outcome.status, outcome.usage.total_tokens) == ("completed", 40 + billed)
        assert list(ends_of(scene).values()) == [["Cancelled"], ["Recorded"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["new_input"]
        (request,) = sampled(scene)
        (made,) = summaries(await scene.history())
        assert list(request.transcript) == [made, transcript.UserMessage("first")]
        assert engine.active == 0


@phases
@pytest.mark.parametrize("how", ["interrupt", "deadline", "manual"])
async def test_whatever_else_ends_a_summary_leaves_the_log_as_it_was(autojump_clock, kind, first, billed, how):
    engine = kind([first, DRAFT])
    config = limit(1_000, turn_deadline=0.5 if how == "deadline" else None)
    async with with_goal(engine=engine, config=config) as scene:
        await persist(scene, LONG)
        if how == "manual":
            with trio.move_on_after(0.5) as scope:
                await scene.runtime.compact_thread(scene.id)
            assert scope.cancelled_caught
            await wait_all_tasks_blocked()
            assert await scene.history() == list(LONG)
        else:
            turn_id = await scene.start()
            await wait_all_tasks_blocked()
            if how == "interrupt":
                await scene.interrupt(turn_id)
            outcome = await scene.wait(turn_id)
            ended = ("interrupted", None) if how == "interrupt" else ("failed", "deadline_timeout")
            assert (outcome.status, outcome.error_kind) == ended
            assert (await scene.history())[:5] == [*LONG, GO]
        assert not any(map(compaction.is_boundary, await scene.history()))
        assert len(ends_of(scene)) == 1
        assert getattr(await meta(scene), "total_tokens", 0) == billed
        assert engine.active == 0


async def test_a_steer_between_two_chunks_opens_no_further_one(autojump_clock):
    hold = trio.Event()
    steps = [[say("state 1"), hold, DONE], DRAFT, DRAFT, DRAFT, [DONE]]
    async with with_goal(*steps, config=limit(1_000), models=[model(2_000)]) as scene:
        await persist(scene, TOLD)
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.steer(turn_id, "first")
        outcome = await scene.wait(turn_id)
        assert (outcome.status, asked_lines(scene)[:2]) == ("completed", [["0", "1"], ["0", "1"]])


async def test_steady_steering_can_not_starve_a_summary(autojump_clock):
    hold = trio.Event()
    steps = [*[[U40, NEVER_ENDS]] * 3, [U40, say(SHORT), hold, DONE], [DONE]]
    async with with_goal(*steps, config=limit(1_000)) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        for number in range(1, 5):
            await wait_all_tasks_blocked()
            await scene.steer(turn_id, str(number))
        await wait_all_tasks_blocked()
        assert list(ends_of(scene).values()) == [["Cancelled"]] * 3 + [[]]
        hold.set()
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.usage.total_tokens) == ("completed", 160)
        assert list(ends_of(scene).values()) == [["Cancelled"]] * 3 + [["Recorded"]]
        (request,) = sampled(scene)
        assert [entry.text for entry in request.transcript[1:]] == ["3", "4"]


class SlowToLeave(ScriptedEngine):
    """Its streams take a while to close."""

    def stream_turn(self, context: Any, request: Any) -> Any:
        return self._slowly(super().stream_turn(context, request))

    @asynccontextmanager
    async def _slowly(self, block: Any) -> AsyncIterator[Any]:
        async with block as stream:
            yield stream
            await trio.sleep(1)


async def test_a_steer_that_comes_while_a_failed_draft_is_closed_counts_before_the_failure(autojump_clock):
    engine = SlowToLeave([[U40, inference.Failed("no")], DRAFT, [DONE]])
    async with with_goal(engine=engine, config=limit(1_000)) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await trio.sleep(0.5)
        await scene.steer(turn_id, "first")
        assert (await scene.wait(turn_id)).usage.total_tokens == 80
        assert list(ends_of(scene).values()) == [["Cancelled"], ["Recorded"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["new_input"]


async def test_a_steer_that_comes_while_a_whole_draft_is_closed_follows_the_summary(autojump_clock):
    async with with_goal(engine=SlowToLeave([DRAFT, [DONE]]), config=limit(1_000)) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await trio.sleep(0.5)
        await scene.steer(turn_id, "first")
        assert (await scene.wait(turn_id)).status == "completed"
        assert list(ends_of(scene).values()) == [["Recorded"]]
        (made,) = summaries(await scene.history())
        assert list(sampled(scene)[0].transcript) == [made, GO, transcript.UserMessage("first")]


async def test_a_summary_of_a_window_that_grew_meanwhile_is_dropped(autojump_clock):
    hold = trio.Event()
    steps = [[U40, say(SHORT), hold, DONE], DRAFT, [DONE]]
    async with with_goal(*steps, config=quick()) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await persist(scene, (transcript.AssistantMessage("from the host"),))
        hold.set()
        assert (await scene.wait(turn_id)).usage.total_tokens == 80
        assert list(ends_of(scene).values()) == [["Cancelled"], ["Recorded"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["stale_window"]


@pytest.mark.parametrize("how", ["steer", "interrupt"])
async def test_what_comes_while_a_summary_is_committed_takes_effect_after_it(autojump_clock, how):
    hold = trio.Event()

    async def before(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "compaction.recorded" for record in records):
            await hold.wait()

    store = FaultyStore(InstantStore(), before=before)
    async with with_goal(DRAFT, [DONE], store=store, config=quick()) as scene:
        await persist(scene, LONG)
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.steer if how == "steer" else scene.interrupt, turn_id)
            await wait_all_tasks_blocked()
            hold.set()
        outcome = await scene.wait(turn_id)
        assert list(ends_of(scene).values()) == [["Recorded"]]
        assert outcome.status == ("completed" if how == "steer" else "interrupted")
        assert len(sampled(scene)) == (how == "steer")


async def test_a_commit_that_can_not_be_stored_fails_the_turn_and_writes_no_boundary(autojump_clock):
    async def before(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "compaction.recorded" for record in records):
            raise rt.StorageError("full")

    store = FaultyStore(stores.MemoryThreadStore(), before=before)
    async with with_goal(DRAFT, store=store, config=quick()) as scene:
        await persist(scene, LONG)
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind, outcome.usage.total_tokens) == ("failed", "storage", 40)
        assert summaries(await scene.history()) == []
        assert list(ends_of(scene).values()) == [["Failed"]]


async def test_two_threads_are_summarised_side_by_side(autojump_clock):
    def answer(request: Any) -> list[Any]:
        if not request.metadata:
            return [DONE]
        return [used(1), 1.0, say(f"state of {request.runtime.prompt_cache_key}"), DONE]

    engine = ScriptedEngine(iter(lambda: answer, None))
    async with with_goal(engine=engine, config=limit(1_000)) as scene:
        other = (await scene.runtime.create_thread()).thread_id
        for thread_id in (scene.id, other):
            for entry in LONG:
                await scene.runtime.persist_turn_item(thread_id, "bare", entry)
        async with trio.open_nursery() as nursery:
            for thread_id in (scene.id, other):
                nursery.start_soon(scene.runtime.run_turn, thread_id, "go")
        assert engine.most_active == 2
        for thread_id in (scene.id, other):
            snapshot = await scene.runtime.load_thread(thread_id)
            (made,) = summaries(history_of(snapshot))
            assert made.summary == f"state of {thread_id}"
            assert snapshot.metadata.usage == rt.TokenUsage(1, 0, 1)
