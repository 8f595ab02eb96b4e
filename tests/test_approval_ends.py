"""How the wait for consent ends when nobody answers: by time, by the turn's end, by a crash or a restart."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, stores, testing, transcript
from tests.consent_support import (
    CHANGE,
    DONE_STEP,
    Deed,
    HeldStore,
    asked,
    beside,
    calling,
    check_requests,
    consenting,
    outcomes,
    pending_on,
    results,
    results_of,
    settled,
)
from tests.ledger_support import InstantStore, as_if_killed
from tests.turn_support import history_of, started

Clock = trio.testing.MockClock
TWO = calling(("c1", "change"), ("c2", "change"))

# -- how a wait ends without an answer ---------------------------------------------------------------------------------


async def test_a_call_that_nobody_answers_in_time_is_not_run(autojump_clock: Clock) -> None:
    deed = Deed()
    async with consenting(tools=[deed], approval_timeout=1.0) as scene:
        outcome = await scene.run()
        assert (outcome.status, trio.current_time(), deed.runs) == ("completed", 1.0, [])
        assert await results_of(scene) == {"c1": ("approval timed out: nobody answered", True)}
        assert outcomes(scene.happened) == ["timed_out"]
        (requested,) = scene.of(events.ApprovalRequested)
        assert await scene.runtime.resolve_approval(requested.approval_id, True) is False
        await settled(scene)


async def test_without_a_limit_a_call_waits_as_long_as_it_takes(autojump_clock: Clock) -> None:
    async with consenting(tools=[Deed()]) as scene:
        turn_id, approval_id = await pending_on(scene)
        await trio.sleep(86_000)
        assert await scene.runtime.resolve_approval(approval_id, True)
        assert (await scene.wait(turn_id)).status == "completed"


async def test_an_answer_that_lies_in_the_mailbox_when_the_time_is_up_counts(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(tools=[Deed()], store=store, approval_timeout=1.0) as scene:
        turn_id, approval_id = await pending_on(scene)
        store.hold("state")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.runtime.set_state, scene.id, "host", "key", 1)
            await store.held.wait()
            nursery.start_soon(scene.runtime.resolve_approval, approval_id, True)
            await trio.sleep(2)
            assert outcomes(scene.happened) == []
            store.let_go()
        assert (await scene.wait(turn_id)).status == "completed"
        assert outcomes(scene.happened) == ["approved"]
        assert await results_of(scene) == {"c1": ("change done", False)}


@pytest.mark.parametrize("number", range(12))
async def test_an_answer_that_is_stored_as_the_time_is_up_reaches_its_call(autojump_clock: Clock, number: int) -> None:
    async def until_then(number: int, thread_id: str, records: Any) -> None:
        if records[0].kind == "approval.resolved":
            await trio.sleep_until(1.0)

    store = testing.FaultyStore(InstantStore(), after=until_then)
    async with consenting(tools=[Deed()], store=store, approval_timeout=1.0) as scene:
        turn_id, approval_id = await pending_on(scene)
        with trio.fail_after(10):
            assert await scene.runtime.resolve_approval(approval_id, True)
            await scene.wait(turn_id)
        assert await results_of(scene) == {"c1": ("change done", False)}
        assert outcomes(scene.happened) == ["approved"]


async def test_without_anyone_to_ask_nothing_waits(autojump_clock: Clock) -> None:
    deed = Deed()
    async with consenting(tools=[deed], interactive=False) as scene:
        assert (await scene.run()).status == "completed"
        assert await results_of(scene) == {"c1": ("needs approval, and nobody can give it", True)}
        assert (deed.runs, scene.of(events.ApprovalRequested)) == ([], [])
        (decided,) = scene.of(events.PolicyDecided)
        assert decided.decision.value == "ask"


async def test_an_interrupt_cancels_what_waits_for_consent(autojump_clock: Clock) -> None:
    deed = Deed()
    async with consenting(TWO, tools=[deed]) as scene:
        turn_id = await scene.start()
        ids = await asked(scene, 2)
        await scene.interrupt(turn_id)
        assert [await scene.runtime.resolve_approval(id, True) for id in ids] == [False, False]
        assert (await scene.wait(turn_id)).status == "interrupted"
        assert await results_of(scene) == {"c1": ("interrupted", True), "c2": ("interrupted", True)}
        assert (deed.runs, outcomes(scene.happened)) == ([], ["cancelled", "cancelled"])
        assert [await scene.runtime.resolve_approval(id, True) for id in ids] == [False, False]
        await settled(scene)


async def test_an_answer_behind_an_interrupt_is_none(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(tools=[Deed()], store=store) as scene:
        turn_id, approval_id = await pending_on(scene)
        answers: list[bool] = []

        async def answer() -> None:
            answers.append(await scene.runtime.resolve_approval(approval_id, True))

        store.hold("state")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.runtime.set_state, scene.id, "host", "key", 1)
            await store.held.wait()
            await started(nursery, answer)
            await started(nursery, partial(scene.interrupt, turn_id))
            store.let_go()
        assert answers == [False]
        assert (await scene.wait(turn_id)).status == "interrupted"
        assert outcomes(scene.happened) == ["cancelled"]
        await settled(scene)


async def test_the_deadline_of_a_turn_covers_the_wait_for_consent(autojump_clock: Clock) -> None:
    async with consenting(tools=[Deed()], turn_deadline=1.0) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind, trio.current_time()) == ("failed", "deadline_timeout", 1.0)
        assert await results_of(scene) == {"c1": ("timed out", True)}
        assert outcomes(scene.happened) == ["cancelled"]
        await settled(scene)


class Lingers(Deed):
    """A tool that needs two seconds to clean up after a cancel."""

    async def run(self, context: rt.ToolContext, arguments: Mapping[str, Any]) -> rt.ToolOutput:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2.0)


async def test_consent_that_comes_after_the_deadline_is_no_consent(autojump_clock: Clock) -> None:
    batch = calling(("c1", "change"), ("c2", "see"))
    async with consenting(batch, DONE_STEP, tools=[Deed(), Lingers("see", ["read"])], turn_deadline=1.0) as scene:
        turn_id, approval_id = await pending_on(scene)
        await trio.sleep(2.0)
        assert not await scene.runtime.resolve_approval(approval_id, True)
        with pytest.raises(rt.NoActiveTurn):
            await scene.steer(turn_id, "more")
        await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.reason) == ("interrupted", "user")
        assert [event.reason for event in scene.of(events.TurnInterruptRequested)] == ["user"]
        assert outcomes(scene.happened) == ["cancelled"]
        await settled(scene)


async def test_leaving_the_runtime_cancels_what_waits_for_consent(autojump_clock: Clock) -> None:
    store = stores.MemoryThreadStore()
    async with consenting(tools=[Deed()], store=store) as scene:
        await pending_on(scene)
    assert scene.runtime.shutdown_report.status == "clean"
    snapshot = await store.load_thread(scene.id)
    assert snapshot is not None
    check_requests(snapshot)
    assert outcomes(e.event for e in snapshot.events) == ["cancelled"]
    assert snapshot.events[-1].event.reason == "shutdown"


async def test_a_drain_cancels_what_waits_for_consent(autojump_clock: Clock) -> None:
    async with consenting(tools=[Deed()]) as scene:
        turn_id, _ = await pending_on(scene)
        drained = await scene.runtime.drain_active_turns(1.0)
        assert (drained.status, drained.interrupted) == ("clean", (turn_id,))
        assert outcomes(scene.happened) == ["cancelled"]
        await settled(scene)


async def test_archiving_a_thread_cancels_what_waits_for_consent(autojump_clock: Clock) -> None:
    async with consenting(tools=[Deed()]) as scene:
        _, approval_id = await pending_on(scene)
        assert await scene.runtime.archive_thread(scene.id)
        assert outcomes(scene.happened) == ["cancelled"]
        assert scene.runtime.pending_approvals() == ()
        assert await scene.runtime.resolve_approval(approval_id, True) is False


async def test_a_steer_does_not_end_the_wait_and_is_delivered_behind_the_batch(autojump_clock: Clock) -> None:
    async with consenting(tools=[Deed()]) as scene:
        turn_id, approval_id = await pending_on(scene)
        await scene.steer(turn_id)
        await trio.testing.wait_all_tasks_blocked()
        assert len(scene.runtime.pending_approvals()) == 1
        assert await scene.runtime.resolve_approval(approval_id, True)
        assert (await scene.wait(turn_id)).status == "completed"
        history = await scene.history()
        assert [type(item).__name__ for item in history] == [
            "UserMessage", "ToolCall", "ToolResult", "UserMessage", "AssistantMessage",
        ]  # fmt: skip
        assert history[3] == transcript.UserMessage("and this")
        assert list(scene.engine.requests[1].transcript) == history[:4]


# -- residence, crashes, restarts --------------------------------------------------------------------------------------


async def test_a_thread_that_waits_for_consent_stays_in_memory(autojump_clock: Clock) -> None:
    async with consenting(CHANGE, DONE_STEP, tools=[Deed()], max_resident_threads=1) as scene:
        turn_id, approval_id = await pending_on(scene)
        for _ in range(3):
            async with beside(scene) as other:
                await other.history()
        assert scene.resident is not None
        assert [e.event.approval_id for e in scene.runtime.pending_approvals()] == [approval_id]
        assert await scene.runtime.resolve_approval(approval_id, True)
        await scene.wait(turn_id)


async def test_after_a_kill_what_waited_for_consent_is_cancelled_once(autojump_clock: Clock) -> None:
    store, deed = stores.MemoryThreadStore(), Deed()
    async with consenting(TWO, tools=[deed], store=store) as scene:
        turn_id = await scene.start()
        ids = await asked(scene, 2)
        await scene.steer(turn_id)
        left = await as_if_killed(store, scene.id)
    async with rt.open_runtime(store=left, tools=[deed]) as runtime:
        assert runtime.pending_approvals() == ()
        assert await runtime.resolve_approval(ids[0], True) is False
        snapshot = await runtime.load_thread(scene.id)
        assert snapshot is not None
        assert runtime.pending_approvals() == ()
        assert [await runtime.resolve_approval(id, True) for id in ids] == [False, False]
    check_requests(snapshot)
    assert outcomes(e.event for e in snapshot.events) == ["cancelled", "cancelled"]
    assert results(history_of(snapshot)) == {"c1": ("runtime restarted", True), "c2": ("runtime restarted", True)}
    end = snapshot.events[-1].event
    assert (end.reason, [steer.message.text for steer in end.undelivered_steers]) == ("runtime_restart", ["and this"])
    assert deed.runs == []
    async with rt.open_runtime(store=left) as runtime:
        again = await runtime.load_thread(scene.id)
    assert again is not None
    assert again.events == snapshot.events


async def test_after_a_kill_behind_the_answer_the_call_is_not_run_again(autojump_clock: Clock) -> None:
    store = stores.MemoryThreadStore()

    class Dies(Deed):
        async def run(self, context: rt.ToolContext, arguments: Any) -> rt.ToolOutput:
            self.left = await as_if_killed(store, context.thread_id)
            return await super().run(context, arguments)

    deed = Dies()
    async with consenting(tools=[deed], store=store) as scene:
        turn_id, approval_id = await pending_on(scene)
        await scene.runtime.resolve_approval(approval_id, True)
        await scene.wait(turn_id)
    async with rt.open_runtime(store=deed.left, tools=[deed]) as runtime:
        snapshot = await runtime.load_thread(scene.id)
    assert snapshot is not None
    check_requests(snapshot)
    assert outcomes(e.event for e in snapshot.events) == ["approved"]
    assert results(history_of(snapshot)) == {"c1": ("runtime restarted", True)}
    assert deed.runs == ["c1"]


async def test_a_crash_of_the_actor_cancels_what_waits_for_consent(autojump_clock: Clock) -> None:
    async def explode(number: int, thread_id: str, records: Any) -> None:
        await trio.lowlevel.checkpoint()
        if getattr(getattr(records[0], "event", None), "item", None) == transcript.UserMessage("boom"):
            raise ZeroDivisionError("a bug")

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=explode)
    async with consenting(tools=[Deed()], store=store) as scene:
        turn_id, approval_id = await pending_on(scene)
        with pytest.raises(rt.ActorCrashed):
            await scene.runtime.persist_turn_item(scene.id, "bare", transcript.UserMessage("boom"))
        assert scene.runtime.pending_approvals() == ()
        assert await scene.runtime.resolve_approval(approval_id, True) is False
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.reason) == ("interrupted", "runtime_restart")
        assert outcomes(scene.happened) == ["cancelled"]
        await settled(scene)
