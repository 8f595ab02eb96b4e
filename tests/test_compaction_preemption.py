"""What preempts a compaction: steers, interrupts, deadlines and the runtime's exit; and the signal of hosts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, transcript
from roder_trio.providers.scripted import NEVER_ENDS, ScriptedEngine
from roder_trio.testing import FaultyStore
from tests.ledger_support import (
    COMMIT,
    GO,
    PHASES,
    InstantStore,
    boundary,
    cold,
    compact_calls,
    ends_of,
    engine_in,
    limit,
    skips,
    stored_boundary,
    with_goal,
)
from tests.turn_support import DONE, failure, history_of, one_thread, used

# -- what preempts it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("phase", PHASES)
async def test_a_steer_preempts_a_compaction_at_once(autojump_clock, phase, required):
    engine = engine_in(phase, [DONE], requires_native_compaction=required)
    async with with_goal(engine=engine, config=limit(1, max_model_calls_per_turn=1)) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await scene.steer(turn_id, "first")
        outcome = await scene.wait(turn_id)
        assert trio.current_time() == began
        assert (outcome.status, getattr(outcome.usage, "total_tokens", 0)) == ("completed", 40 + PHASES[phase][1])
        assert list(ends_of(scene).values()) == [["Cancelled"], ["Recorded"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["new_input"]
        steer = transcript.UserMessage("first")
        assert list(scene.engine.compact_requests[1].transcript) == [GO, steer]
        [request] = scene.engine.requests
        assert list(request.transcript) == [stored_boundary(), steer]
        assert len(scene.of(events.InferenceStarted)) == 1
        assert scene.engine.active == 0


class FailsWhileCancelled(ScriptedEngine):
    """An engine whose block has a nursery, in which a task fails while the others are being cancelled."""

    @asynccontextmanager
    async def compact_turn(self, context: Any, request: Any) -> AsyncIterator[Any]:
        async def stubborn() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("no")

        opened = super().compact_turn(context, request)
        assert opened is not None
        async with trio.open_nursery() as nursery, opened as stream:
            nursery.start_soon(stubborn)
            yield stream
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("required", [True, False])
async def test_what_an_engine_raises_as_a_steer_cuts_it_changes_nothing(autojump_clock, required):
    compact = [[used(3), NEVER_ENDS], COMMIT]
    engine = FailsWhileCancelled([[DONE]], compact=compact, requires_native_compaction=required)
    async with one_thread(engine=engine, config=limit(1)) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.steer(turn_id, "first")
        assert (await scene.wait(turn_id)).status == "completed"
        assert list(ends_of(scene).values()) == [["Cancelled"], ["Recorded"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["new_input"]


@pytest.mark.parametrize("phase", PHASES)
async def test_an_interrupt_ends_a_compaction_and_the_turn(autojump_clock, phase):
    async with with_goal(engine=engine_in(phase, [DONE]), config=limit(1)) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.reason) == ("interrupted", "user")
        assert getattr(outcome.usage, "total_tokens", 0) == PHASES[phase][1]
        assert list(ends_of(scene).values()) == [["Cancelled"]]
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["interrupted"]
        assert (await scene.history(), compact_calls(scene), scene.engine.active) == ([GO], 1, 0)


@pytest.mark.parametrize("phase", ["opening", "reading"])
async def test_a_deadline_ends_a_compaction_and_the_turn(autojump_clock, phase):
    async with with_goal(engine=engine_in(phase, [DONE]), config=limit(1, turn_deadline=2.0)) as scene:
        outcome = await scene.run()
        assert outcome.error_kind == "deadline_timeout"
        assert getattr(outcome.usage, "total_tokens", 0) == PHASES[phase][1]
        assert list(ends_of(scene).values()) == [["Cancelled"]]
        assert compact_calls(scene) == 1


@pytest.mark.parametrize("phase", PHASES)
async def test_the_runtimes_exit_ends_a_compaction_and_the_turn(autojump_clock, phase):
    async with with_goal(engine=engine_in(phase, [DONE]), config=limit(1)) as scene:
        await scene.start()
        await wait_all_tasks_blocked()
    again = await cold(scene.store, scene.id)
    assert [turn.status.value for turn in again.snapshot.turns] == ["interrupted"]
    assert history_of(again.snapshot) == [GO]
    assert getattr(again.usage, "total_tokens", 0) == PHASES[phase][1]
    assert scene.runtime.shutdown_report.status == "clean"


async def test_a_steer_that_waits_as_a_compaction_is_to_begin_prevents_it(autojump_clock):
    hold, held = trio.Event(), trio.Event()

    async def before(number: int, thread_id: str, records: Any) -> None:
        if (
            getattr(records[0].event, "steer_id", None)
            and records[0].kind == "turn.item_appended"
            and not held.is_set()
        ):
            held.set()
            await hold.wait()

    store = FaultyStore(InstantStore(), before=before)
    async with one_thread([DONE], compact=[[NEVER_ENDS], COMMIT], store=store, config=limit(1)) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.steer, turn_id, "first")
            await held.wait()
            nursery.start_soon(scene.steer, turn_id, "second")
            await wait_all_tasks_blocked()
            hold.set()
        await scene.wait(turn_id)
        assert list(ends_of(scene).values()) == [["Cancelled"], ["Recorded"]]
        assert skips(scene) == ["new_input"]
        assert compact_calls(scene) == 2
        said = [entry.text for entry in scene.engine.compact_requests[1].transcript]
        assert said == ["go", "first", "second"]


async def test_a_steer_that_comes_while_a_compaction_is_being_announced_opens_nothing(autojump_clock):
    hold = trio.Event()

    async def before(number: int, thread_id: str, records: Any) -> None:
        if records[0].kind == "compaction.started":
            await hold.wait()

    store = FaultyStore(InstantStore(), before=before)
    async with one_thread([DONE], compact=[COMMIT], store=store, config=limit(1)) as scene:
        turn_id = await scene.start()
        async with trio.open_nursery() as nursery:
            await wait_all_tasks_blocked()
            nursery.start_soon(scene.steer, turn_id)
            await wait_all_tasks_blocked()
            hold.set()
        await scene.wait(turn_id)
        assert compact_calls(scene) == 1
        assert list(ends_of(scene).values()) == [["Cancelled"], ["Recorded"]]


async def test_steady_steering_can_not_starve_compaction(autojump_clock):
    hold = trio.Event()
    compact = [*[[used(30, 10), NEVER_ENDS]] * 3, [used(30, 10), hold, boundary(), DONE]]
    async with with_goal([DONE], compact=compact, config=limit(1)) as scene:
        turn_id = await scene.start()
        for number in range(1, 5):
            await wait_all_tasks_blocked()
            await scene.steer(turn_id, str(number))
        await wait_all_tasks_blocked()
        assert list(ends_of(scene).values()) == [["Cancelled"]] * 3 + [[]]
        hold.set()
        outcome = await scene.wait(turn_id)
        assert list(ends_of(scene).values()) == [["Cancelled"]] * 3 + [["Recorded"]]
        assert (outcome.status, outcome.usage.total_tokens) == ("completed", 160)
        [request] = scene.engine.requests
        assert request.transcript[0] == stored_boundary()
        assert [entry.text for entry in request.transcript[1:]] == ["3", "4"]
        texts = [entry.text for entry in await scene.history() if isinstance(entry, transcript.UserMessage)]
        assert texts == ["go", "1", "2", "3", "4"]
        assert len(scene.of(events.InferenceStarted)) == 1


async def test_an_interrupt_reaches_a_compaction_that_steers_do_not(autojump_clock):
    compact = [[NEVER_ENDS]] * 4
    async with with_goal(compact=compact, config=limit(1)) as scene:
        turn_id = await scene.start()
        for number in range(4):
            await wait_all_tasks_blocked()
            await scene.steer(turn_id, str(number))
        await wait_all_tasks_blocked()
        assert scene.engine.active == 1
        await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, [steer.message.text for steer in outcome.undelivered_steers]) == ("interrupted", ["3"])
        assert list(ends_of(scene).values()) == [["Cancelled"]] * 4


@pytest.mark.parametrize("how", ["steer", "interrupt"])
async def test_what_comes_while_a_boundary_is_committed_takes_effect_after_it(autojump_clock, how):
    hold = trio.Event()

    async def before(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "compaction.recorded" for record in records):
            await hold.wait()

    store = FaultyStore(InstantStore(), before=before)
    async with one_thread([DONE], compact=[COMMIT], store=store, config=limit(1)) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            act = scene.steer if how == "steer" else scene.interrupt
            nursery.start_soon(act, turn_id)
            await wait_all_tasks_blocked()
            hold.set()
        outcome = await scene.wait(turn_id)
        assert list(ends_of(scene).values()) == [["Recorded"]]
        assert stored_boundary() in await scene.history()
        assert outcome.usage.total_tokens == 40
        if how == "steer":
            [request] = scene.engine.requests
            assert list(request.transcript) == [stored_boundary(), GO, transcript.UserMessage("and this")]
            assert len(scene.of(events.InferenceStarted)) == 1
        else:
            assert (outcome.status, scene.engine.requests) == ("interrupted", [])


class Wrapping(ScriptedEngine):
    """Its compactions run beside a task of their own, and fail as they are cancelled."""

    def compact_turn(self, context: Any, request: Any) -> Any:
        return self._wrap(super().compact_turn(context, request))

    @asynccontextmanager
    async def _wrap(self, block: Any) -> AsyncIterator[Any]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fail)
            await trio.lowlevel.checkpoint()
            async with block as stream:
                yield stream
            nursery.cancel_scope.cancel()

    async def _fail(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise failure("AUTHENTICATION")


@pytest.mark.parametrize("how", ["steer", "interrupt"])
async def test_why_a_compaction_ended_is_what_was_asked_for_and_not_what_the_engine_raises(autojump_clock, how):
    engine = Wrapping([[DONE]], compact=[[used(30, 10), NEVER_ENDS], COMMIT])
    async with with_goal(engine=engine, config=limit(1)) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await (scene.steer if how == "steer" else scene.interrupt)(turn_id)
        outcome = await scene.wait(turn_id)
        assert next(iter(ends_of(scene).values())) == ["Cancelled"]
        assert outcome.status == ("completed" if how == "steer" else "interrupted")


# -- SteeringSignal ----------------------------------------------------------------------------------------------------


async def test_a_notification_that_was_not_seen_preempts_before_the_body_runs(autojump_clock):
    signal, ran = rt.SteeringSignal(), False
    signal.notify()
    signal.notify()
    with pytest.raises(rt.CompactionPreempted), signal.preemptible():
        ran = True
    assert not ran
    with signal.preemptible():
        ran = True
    assert ran


async def test_a_notification_cancels_the_body_and_counts_as_seen(autojump_clock):
    signal = rt.SteeringSignal()

    async def notify() -> None:
        await trio.sleep(1)
        signal.notify()

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notify)
        with pytest.raises(rt.CompactionPreempted), signal.preemptible():
            await trio.sleep(10)
    assert trio.current_time() == began + 1
    assert not signal.pending
    with signal.preemptible():
        await trio.sleep(1)


async def test_a_body_that_finished_uncancelled_keeps_its_result(autojump_clock):
    signal = rt.SteeringSignal()
    with signal.preemptible():
        signal.notify()
    assert signal.pending
    with pytest.raises(rt.CompactionPreempted), signal.preemptible():
        pass


async def test_a_signal_that_nobody_notifies_never_cancels(autojump_clock):
    signal = rt.SteeringSignal()
    with signal.preemptible():
        await trio.sleep(1_000)
    with pytest.raises(ValueError, match="mine"), signal.preemptible():
        raise ValueError("mine")
    signal.notify()
    assert signal.seen == 0
    signal.clear()
    assert signal.seen == 1


async def test_a_scope_that_opens_behind_an_unseen_notification_is_cancelled(autojump_clock):
    signal = rt.SteeringSignal()
    signal.notify()
    with signal.watch() as scope:
        await trio.sleep(1)
    assert scope.cancelled_caught
    assert signal.pending
