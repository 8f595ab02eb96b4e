"""Policy modes while turns run: what each allows, asks and denies, and what a change does to what waits."""

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, stores
from roder_trio.schema.policy import PolicyMode
from tests.consent_support import (
    CHANGE,
    DONE_STEP,
    Deed,
    HeldStore,
    Says,
    asked,
    beside,
    calling,
    consenting,
    outcomes,
    pending_on,
    results_of,
    settled,
)
from tests.turn_support import Scene, started

Clock = trio.testing.MockClock
DEFAULT, ACCEPT_ALL, PLAN, BYPASS = PolicyMode

# -- the table ---------------------------------------------------------------------------------------------------------

TABLE = [
    ((), ("allowed", "allowed", "allowed", "allowed")),
    (("read",), ("allowed", "allowed", "allowed", "allowed")),
    (("network",), ("ask", "auto", "ask", "auto")),
    (("process",), ("ask", "auto", "denied", "auto")),
    (("write",), ("ask", "auto", "denied", "auto")),
    (("read", "network", "write"), ("ask", "auto", "denied", "auto")),
    (None, ("ask", "auto", "denied", "auto")),
]


@pytest.mark.parametrize(
    ("effects", "mode", "decision"),
    [(effects, mode, cell) for effects, row in TABLE for mode, cell in zip(PolicyMode, row, strict=True)],
)
async def test_a_mode_and_a_tools_effects_decide_what_becomes_of_a_call(
    autojump_clock: Clock, effects: Any, mode: PolicyMode, decision: str
) -> None:
    tool = Deed("get_time", effects)
    async with consenting(calling(("c1", "get_time")), DONE_STEP, tools=[tool], policy_mode=mode) as scene:
        turn_id = await scene.start()
        if decision == "ask":
            (approval_id,) = await asked(scene)
            assert tool.runs == []
            assert await scene.runtime.resolve_approval(approval_id, True)
        assert (await scene.wait(turn_id)).status == "completed"
        (decided,) = scene.of(events.PolicyDecided)
        assert (decided.call_id, decided.decision.value, decided.rule) == ("c1", decision, "table")
        assert len(scene.of(events.ApprovalRequested)) == (decision == "ask")
        assert tool.runs == ([] if decision == "denied" else ["c1"])
        ended = (f"policy denied: {decided.reason}", True) if decision == "denied" else ("get_time done", False)
        assert await results_of(scene) == {"c1": ended}


async def test_the_library_trusts_the_tools_that_its_host_chose(autojump_clock: Clock) -> None:
    tool = Deed("get_time", None)
    config = rt.RuntimeConfig()
    async with consenting(
        calling(("c1", "get_time")), DONE_STEP, tools=[tool], policy_mode=config.policy_mode
    ) as scene:
        await scene.run()
        assert (config.policy_mode, tool.runs) == (ACCEPT_ALL, ["c1"])


@pytest.mark.parametrize("mode", PolicyMode)
async def test_a_denied_tool_runs_in_no_mode(autojump_clock: Clock, mode: PolicyMode) -> None:
    tool = Deed("see", ["read"])
    script = [calling(("c1", "see")), DONE_STEP]
    async with consenting(*script, tools=[tool], denied_tools=["see"]) as scene:
        await scene.runtime.set_policy_mode(mode)
        await scene.runtime.set_policy_mode(mode, scene.id)
        await scene.run()
        assert await results_of(scene) == {"c1": ("policy denied: 'see' is among the denied tools", True)}
        assert (tool.runs, scene.of(events.PolicyDecided)[0].rule) == ([], "denied_tools")


async def test_a_policy_that_asks_is_heard_unless_the_mode_is_bypass(autojump_clock: Clock) -> None:
    says, deed = Says("ask", "hm"), Deed()
    async with consenting(
        CHANGE, DONE_STEP, CHANGE, DONE_STEP, tools=[deed], policies=[says], policy_mode="accept_all"
    ) as scene:
        turn_id, approval_id = await pending_on(scene)
        assert await scene.runtime.resolve_approval(approval_id, True)
        await scene.wait(turn_id)
        await scene.runtime.set_policy_mode("bypass")
        await scene.run()
        assert len(scene.of(events.ApprovalRequested)) == 1
        assert len(deed.runs) == len(says.asked) == 2
        assert [decided.decision.value for decided in scene.of(events.PolicyDecided)] == ["ask", "auto"]


async def test_a_policy_that_denies_is_heard_in_bypass_too(autojump_clock: Clock) -> None:
    deed = Deed()
    async with consenting(tools=[deed], policies=[Says("denied", "no")], policy_mode="bypass") as scene:
        await scene.run()
        assert await results_of(scene) == {"c1": ("policy denied: no", True)}
        assert (deed.runs, scene.of(events.PolicyDecided)[0].rule) == ([], "policy")


async def test_policies_and_tools_are_told_the_mode_of_now(autojump_clock: Clock) -> None:
    says, deed = Says("allowed"), Deed()
    async with consenting(*[CHANGE, DONE_STEP] * 3, tools=[deed], policies=[says], policy_mode="bypass") as scene:
        await scene.run()
        await scene.runtime.set_policy_mode("accept_all")
        await scene.run()
        await scene.runtime.set_policy_mode("bypass", scene.id)
        await scene.run()
        assert [mode for _, mode in says.asked] == deed.modes == [BYPASS, ACCEPT_ALL, BYPASS]


async def test_a_tool_that_waited_for_consent_is_told_the_mode_in_which_it_starts(autojump_clock: Clock) -> None:
    deed = Deed()
    async with consenting(tools=[deed]) as scene:
        turn_id, _ = await pending_on(scene)
        await scene.runtime.set_policy_mode(ACCEPT_ALL)
        await scene.wait(turn_id)
        assert deed.modes == [ACCEPT_ALL]


# -- a change of mode --------------------------------------------------------------------------------------------------


async def test_a_change_of_the_runtimes_mode_is_told_and_not_stored(autojump_clock: Clock) -> None:
    async with consenting(tools=[Deed()]) as scene, scene.runtime.subscribe_events() as everything:
        await scene.history()
        await scene.runtime.set_policy_mode("plan")
        (told,) = [everything.take() for _ in range(everything.buffered)]
        assert told.event == events.PolicyModeChanged(PLAN, DEFAULT)
        assert (told.seq, told.thread_id, told.source) == (0, None, "runtime")
        assert not (await scene.snapshot()).events


async def test_a_change_of_a_threads_own_mode_is_stored(autojump_clock: Clock) -> None:
    async with consenting(tools=[Deed()]) as scene, beside(scene) as other:
        await scene.runtime.set_policy_mode("plan", scene.id)
        await scene.runtime.set_policy_mode(BYPASS, scene.id)
        changes = [events.PolicyModeChanged(PLAN, DEFAULT), events.PolicyModeChanged(BYPASS, PLAN)]
        snapshot = await scene.snapshot()
        assert [(e.event, e.seq) for e in snapshot.events] == list(zip(changes, (1, 2), strict=True))
        assert scene.happened == changes
        assert (other.happened, list((await other.snapshot()).events)) == ([], [])


@pytest.mark.parametrize("own", [False, True], ids=["runtime", "thread"])
@pytest.mark.parametrize(
    ("mode", "outcome", "runs", "result"),
    [
        ("bypass", "policy_approved", ["c1"], ("change done", False)),
        ("accept_all", "policy_approved", ["c1"], ("change done", False)),
        ("plan", "policy_denied", [], ("policy denied: in mode 'plan', by its effects write", True)),
    ],
)
async def test_a_change_of_mode_decides_what_waits_again(
    autojump_clock: Clock, own: bool, mode: str, outcome: str, runs: list[str], result: tuple[str, bool]
) -> None:
    deed, says = Deed(), Says("auto")
    async with consenting(tools=[deed], policies=[says]) as scene:
        turn_id, approval_id = await pending_on(scene)
        await scene.runtime.set_policy_mode("default", scene.id if own else None)
        await scene.runtime.set_policy_mode(mode, scene.id if own else None)
        assert scene.runtime.pending_approvals() == ()
        assert await scene.runtime.resolve_approval(approval_id, True) is False
        assert (await scene.wait(turn_id)).status == "completed"
        assert await results_of(scene) == {"c1": result}
        assert (deed.runs, outcomes(scene.happened), len(says.asked)) == (runs, [outcome], 1)
        await settled(scene)


async def test_a_change_of_mode_that_still_asks_leaves_what_waits(autojump_clock: Clock) -> None:
    batch = calling(("c1", "fetch"), ("c2", "change"))
    fetch, change = Deed("fetch", ["network"]), Deed()
    async with consenting(batch, DONE_STEP, tools=[fetch, change]) as scene:
        turn_id = await scene.start()
        await asked(scene, 2)
        await scene.runtime.set_policy_mode("plan")
        (left,) = scene.runtime.pending_approvals()
        assert left.event.call_id == "c1"
        assert await scene.runtime.resolve_approval(left.event.approval_id, True)
        await scene.wait(turn_id)
        assert (fetch.runs, change.runs) == (["c1"], [])
        assert outcomes(scene.happened) == ["policy_denied", "approved"]
        await settled(scene)


async def test_what_a_policy_asked_for_waits_until_the_mode_is_bypass(autojump_clock: Clock) -> None:
    deed, says = Deed(), Says("ask")
    async with consenting(tools=[deed], policies=[says], policy_mode="accept_all") as scene:
        turn_id, _ = await pending_on(scene)
        for mode in ("default", "accept_all"):
            await scene.runtime.set_policy_mode(mode)
            assert len(scene.runtime.pending_approvals()) == 1
        await scene.runtime.set_policy_mode("bypass")
        await scene.wait(turn_id)
        assert (deed.runs, outcomes(scene.happened), len(says.asked)) == (["c1"], ["policy_approved"], 1)


async def test_widening_the_runtimes_mode_does_not_touch_a_thread_with_its_own(autojump_clock: Clock) -> None:
    deed = Deed()
    async with consenting(CHANGE, CHANGE, DONE_STEP, DONE_STEP, tools=[deed]) as strict, beside(strict) as other:
        await strict.runtime.set_policy_mode("default", strict.id)
        first, approval_id = await pending_on(strict)
        second, _ = await pending_on(other)
        await strict.runtime.set_policy_mode("bypass")
        await other.wait(second)
        assert (outcomes(other.happened), outcomes(strict.happened)) == (["policy_approved"], [])
        assert [e.event.approval_id for e in strict.runtime.pending_approvals()] == [approval_id]
        assert await strict.runtime.resolve_approval(approval_id, False)
        await strict.wait(first)
        await settled(strict)


async def test_a_threads_own_mode_outlives_its_time_in_memory(autojump_clock: Clock) -> None:
    deed = Deed()
    async with consenting(tools=[deed], max_resident_threads=1) as scene:
        await scene.runtime.set_policy_mode("bypass", scene.id)
        async with beside(scene) as other:
            await other.history()
        assert scene.resident is None
        await scene.run()
        assert deed.runs == ["c1"]


async def test_after_a_restart_the_configured_mode_holds(autojump_clock: Clock) -> None:
    store = stores.MemoryThreadStore()
    async with consenting(tools=[Deed()], store=store) as scene:
        await scene.runtime.set_policy_mode("bypass")
        await scene.runtime.set_policy_mode("bypass", scene.id)
        await scene.run()
        assert scene.of(events.ApprovalRequested) == []
    deed = Deed()
    async with consenting(tools=[deed], store=store) as fresh, fresh.runtime.subscribe_events() as subscription:
        again = Scene(fresh.runtime, fresh.engine, scene.id, subscription)
        turn_id, approval_id = await pending_on(again)
        assert deed.runs == []
        assert await fresh.runtime.resolve_approval(approval_id, True)
        await again.wait(turn_id)


async def test_a_change_that_makes_no_sense_changes_nothing(autojump_clock: Clock) -> None:
    async with consenting(tools=[Deed()]) as scene:
        with pytest.raises(ValueError, match="lenient"):
            await scene.runtime.set_policy_mode("lenient")
        with pytest.raises(rt.ThreadNotFound):
            await scene.runtime.set_policy_mode("bypass", "unknown")
        assert scene.happened == []
        turn_id, approval_id = await pending_on(scene)
        assert await scene.runtime.resolve_approval(approval_id, True)
        await scene.wait(turn_id)
    with pytest.raises(rt.RuntimeClosed):
        await scene.runtime.set_policy_mode("plan")


# -- changes and the store ---------------------------------------------------------------------------------------------


async def test_a_threads_mode_that_can_not_be_stored_is_as_it_was(autojump_clock: Clock) -> None:
    store, deed = HeldStore(), Deed()
    async with consenting(tools=[deed], store=store) as scene:
        turn_id, approval_id = await pending_on(scene)
        store.fail_at("policy.mode_changed")
        with pytest.raises(rt.StorageError, match="the disk is full"):
            await scene.runtime.set_policy_mode("bypass", scene.id)
        await trio.testing.wait_all_tasks_blocked()
        assert (deed.runs, scene.of(events.PolicyModeChanged)) == ([], [])
        assert [e.event.approval_id for e in scene.runtime.pending_approvals()] == [approval_id]
        await scene.runtime.set_policy_mode("bypass", scene.id)
        await scene.wait(turn_id)
        assert scene.of(events.PolicyModeChanged) == [events.PolicyModeChanged(BYPASS, DEFAULT)]
        await settled(scene)


async def test_a_runtimes_mode_reaches_all_threads_though_one_can_not_store_it(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(CHANGE, CHANGE, *[DONE_STEP] * 2, tools=[Deed()], store=store) as one, beside(one) as two:
        turns = [(await pending_on(scene))[0] for scene in (one, two)]
        store.fail_at("approval.resolved")
        with pytest.raises(rt.StorageError, match="the disk is full"):
            await one.runtime.set_policy_mode("bypass")
        assert len(one.runtime.pending_approvals()) == 1
        await one.runtime.set_policy_mode("bypass")
        for scene, turn_id in zip((one, two), turns, strict=True):
            await scene.wait(turn_id)
            assert outcomes(scene.happened) == ["policy_approved"]


async def test_a_thread_whose_store_hangs_does_not_keep_others_from_a_new_mode(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(CHANGE, CHANGE, *[DONE_STEP] * 2, tools=[Deed()], store=store) as one, beside(one) as two:
        first, second = [(await pending_on(scene))[0] for scene in (one, two)]
        store.hold("state")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.runtime.set_state, one.id, "host", "key", 1)
            await store.held.wait()
            nursery.start_soon(one.runtime.set_policy_mode, "bypass")
            await two.wait(second)
            assert len(one.runtime.pending_approvals()) == 1
            store.let_go()
        await one.wait(first)


async def hold(scene: Scene, store: HeldStore, nursery: trio.Nursery) -> None:
    """Keep the thread's actor busy with an append."""
    store.hold("state")
    nursery.start_soon(scene.runtime.set_state, scene.id, "host", "key", 1)
    await store.held.wait()


@pytest.mark.parametrize(("mode", "runs"), [("bypass", ["c1"]), ("plan", [])])
async def test_a_change_between_verdict_and_registration_shows_no_needless_question(
    autojump_clock: Clock, mode: str, runs: list[str]
) -> None:
    store, deed = HeldStore(), Deed()

    class Slow(rt.Policy):
        async def decide(self, *asked: Any) -> None:
            await hold(scene, store, nursery)

    async with consenting(tools=[deed], policies=[Slow()], store=store) as scene, trio.open_nursery() as nursery:
        turn_id = await scene.start()
        await scene.wait_for(lambda scene: bool(scene.of(events.PolicyDecided)))
        await trio.testing.wait_all_tasks_blocked()
        await started(nursery, partial(scene.runtime.set_policy_mode, mode))
        store.let_go()
        await scene.wait(turn_id)
        (decided,) = scene.of(events.PolicyDecided)
        assert (decided.decision.value, deed.runs) == ("ask", runs)
        assert scene.of(events.ApprovalRequested, events.ApprovalResolved) == []
        await settled(scene)


@pytest.mark.parametrize("own", [False, True], ids=["runtime", "thread"])
async def test_a_change_while_a_request_is_being_stored_strands_nothing(autojump_clock: Clock, own: bool) -> None:
    store, deed = HeldStore(), Deed()
    async with consenting(tools=[deed], store=store) as scene, trio.open_nursery() as nursery:
        store.hold("approval.requested")
        turn_id = await scene.start()
        await store.held.wait()
        await started(nursery, partial(scene.runtime.set_policy_mode, "bypass", scene.id if own else None))
        store.let_go()
        assert (await scene.wait(turn_id)).status == "completed"
        assert (deed.runs, outcomes(scene.happened)) == (["c1"], ["policy_approved"])
        await settled(scene)


async def test_consent_does_not_outweigh_a_mode_that_denies_by_the_time_it_comes(autojump_clock: Clock) -> None:
    store, deed = HeldStore(), Deed()
    async with consenting(tools=[deed], store=store) as scene, trio.open_nursery() as nursery:
        turn_id, approval_id = await pending_on(scene)
        store.hold("approval.resolved")
        await started(nursery, partial(scene.runtime.resolve_approval, approval_id, True))
        await started(nursery, partial(scene.runtime.set_policy_mode, "plan"))
        store.let_go()
        await scene.wait(turn_id)
        assert (deed.runs, outcomes(scene.happened)) == ([], ["approved"])
        assert await results_of(scene) == {"c1": ("policy denied: in mode 'plan', by its effects write", True)}
        await settled(scene)


async def test_a_change_leaves_a_turn_alone_that_was_told_to_stop(autojump_clock: Clock) -> None:
    store, deed = HeldStore(), Deed()
    async with consenting(tools=[deed], store=store) as scene, trio.open_nursery() as nursery:
        turn_id, _ = await pending_on(scene)
        await hold(scene, store, nursery)
        await started(nursery, partial(scene.interrupt, turn_id))
        await started(nursery, partial(scene.runtime.set_policy_mode, "bypass"))
        store.let_go()
        assert (await scene.wait(turn_id)).status == "interrupted"
        assert (deed.runs, outcomes(scene.happened)) == ([], ["cancelled"])


async def test_a_change_of_the_runtimes_mode_does_not_mind_a_thread_that_goes(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(tools=[Deed()], store=store) as scene, trio.open_nursery() as nursery:
        await pending_on(scene)
        store.hold("turn.interrupted")
        nursery.start_soon(scene.runtime.archive_thread, scene.id)
        await store.held.wait()
        await started(nursery, partial(scene.runtime.set_policy_mode, "bypass"))
        store.let_go()
        await trio.testing.wait_all_tasks_blocked()
        assert await scene.runtime.load_thread(scene.id) is None


async def test_a_cancelled_change_of_the_runtimes_mode_holds_from_then_on(autojump_clock: Clock) -> None:
    store, deed = HeldStore(), Deed()
    steps: list[Any] = [CHANGE, DONE_STEP, CHANGE, DONE_STEP]
    async with consenting(*steps, tools=[deed], store=store) as scene, trio.open_nursery() as nursery:
        turn_id, approval_id = await pending_on(scene)
        await hold(scene, store, nursery)
        with trio.move_on_after(1):
            await scene.runtime.set_policy_mode("bypass")
        store.let_go()
        await trio.testing.wait_all_tasks_blocked()
        assert len(scene.runtime.pending_approvals()) == 1
        assert await scene.runtime.resolve_approval(approval_id, True)
        await scene.wait(turn_id)
        await scene.run()
        assert len(deed.runs) == 2
        assert len(scene.of(events.ApprovalRequested)) == 1


@pytest.mark.parametrize("number", range(8))
async def test_an_answer_and_a_change_of_mode_at_once_resolve_a_request_once(
    autojump_clock: Clock, number: int
) -> None:
    deed = Deed()
    async with consenting(tools=[deed]) as scene:
        turn_id, approval_id = await pending_on(scene)
        resolve = partial(scene.runtime.resolve_approval, approval_id, True)
        change = partial(scene.runtime.set_policy_mode, "bypass", scene.id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(resolve)
            nursery.start_soon(change)
        await scene.wait(turn_id)
        assert outcomes(scene.happened) in (["approved"], ["policy_approved"])
        assert deed.runs == ["c1"]
        await settled(scene)


async def test_a_mode_goes_with_the_thread_that_had_it(autojump_clock: Clock) -> None:
    deed, store = Deed(), stores.MemoryThreadStore()
    async with consenting(CHANGE, DONE_STEP, tools=[deed], store=store, policy_mode="accept_all") as scene:
        metadata = await scene.runtime.load_metadata(scene.id)
        assert metadata is not None
        await scene.runtime.set_policy_mode("plan", scene.id)
        assert await scene.runtime.delete_thread(scene.id)
        await store.create_thread(metadata)
        await scene.run()
        assert len(deed.runs) == 1
