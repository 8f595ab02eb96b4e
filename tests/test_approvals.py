"""Calls that wait for consent: each request gets exactly one answer, and is stored before anyone acts on it."""

import json
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, stores, transcript
from roder_trio.schema.policy import ApprovalOutcome
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
    external,
    outcomes,
    pending_on,
    results,
    results_of,
    settled,
)
from tests.ledger_support import as_if_killed
from tests.turn_support import DONE, Scene, call, history_of, started

Clock = trio.testing.MockClock
TOLD = ("policy.decided", "approval.requested", "approval.resolved", "tool.started", "tool.finished")
TWO = calling(("c1", "change"), ("c2", "change"))

# -- answers -----------------------------------------------------------------------------------------------------------


async def test_a_call_that_got_consent_runs_after_the_answer_was_stored(autojump_clock: Clock) -> None:
    deed = Deed()
    async with consenting(tools=[deed]) as scene:
        turn_id, approval_id = await pending_on(scene)
        assert deed.runs == []
        (requested,) = scene.of(events.ApprovalRequested)
        reason = "in mode 'default', by its effects write"
        assert requested == events.ApprovalRequested(approval_id, "c1", "change", "{}", reason)
        assert approval_id != "c1"
        assert await scene.runtime.resolve_approval(approval_id, True) is True
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.text, deed.runs) == ("completed", "done", ["c1"])
        assert await results_of(scene) == {"c1": ("change done", False)}
        assert [kind for kind in scene.kinds if kind in TOLD] == list(TOLD)
        assert scene.of(events.ApprovalResolved) == [events.ApprovalResolved(approval_id, ApprovalOutcome.APPROVED)]
        stored = [e.kind for e in (await settled(scene)).events if e.kind.startswith(("approval", "turn.item"))]
        appended = ["turn.item_appended"]
        assert stored == [*appended * 2, "approval.requested", "approval.resolved", *appended * 2]


async def test_a_call_that_was_refused_consent_is_not_run(autojump_clock: Clock) -> None:
    deed = Deed()
    async with consenting(tools=[deed]) as scene:
        turn_id, approval_id = await pending_on(scene)
        assert await scene.runtime.resolve_approval(approval_id, False) is True
        assert (await scene.wait(turn_id)).status == "completed"
        assert await results_of(scene) == {"c1": ("approval denied", True)}
        assert (deed.runs, outcomes(scene.happened)) == ([], ["denied"])
        assert [kind for kind in scene.kinds if kind in TOLD] == [k for k in TOLD if k != "tool.started"]
        assert scene.of(events.ToolFinished) == [events.ToolFinished("c1", True)]
        await settled(scene)


@pytest.mark.parametrize("first", [True, False])
async def test_only_the_first_answer_counts(autojump_clock: Clock, first: bool) -> None:
    async with consenting(tools=[Deed()]) as scene:
        turn_id, approval_id = await pending_on(scene)
        answers = [await scene.runtime.resolve_approval(approval_id, said) for said in (first, not first, first)]
        assert answers == [True, False, False]
        await scene.wait(turn_id)
        assert await scene.runtime.resolve_approval(approval_id, True) is False
        assert outcomes(e.event for e in (await settled(scene)).events) == ["approved" if first else "denied"]


async def test_of_two_who_answer_at_once_one_is_first(autojump_clock: Clock) -> None:
    async with consenting(tools=[Deed()]) as scene:
        turn_id, approval_id = await pending_on(scene)
        answers: list[bool] = []

        async def answer(approved: bool) -> None:
            answers.append(await scene.runtime.resolve_approval(approval_id, approved))

        async with trio.open_nursery() as nursery:
            for approved in (True, False, True):
                nursery.start_soon(answer, approved)
        assert sorted(answers) == [False, False, True]
        await scene.wait(turn_id)
        assert len(outcomes(scene.happened)) == 1


async def test_what_nobody_asked_for_can_not_be_answered(autojump_clock: Clock) -> None:
    async with consenting(calling(("c1", "ask_host")), DONE_STEP, tools=[external()]) as scene:
        runtime = scene.runtime
        assert await runtime.resolve_approval("unknown", True) is False
        turn_id = await scene.start()
        await scene.wait_for(lambda scene: bool(scene.of(events.ExternalToolRequested)))
        (request,) = scene.of(events.ExternalToolRequested)
        assert await runtime.resolve_approval("c1", True) is False
        assert await runtime.resolve_approval(request.request_id, True) is False
        assert runtime.pending_approvals() == ()
        assert await runtime.resolve_external_tool(request.request_id, "here") is True
        await scene.wait(turn_id)
        await settled(scene)


async def test_a_closed_runtime_takes_no_answer() -> None:
    async with consenting(tools=[Deed()]) as scene:
        pass
    with pytest.raises(rt.RuntimeClosed):
        await scene.runtime.resolve_approval("any", True)
    with pytest.raises(rt.RuntimeClosed):
        scene.runtime.pending_approvals()


async def test_a_tool_starts_when_the_answer_is_durable_and_nobody_sees_it_before(autojump_clock: Clock) -> None:
    store, deed = HeldStore(), Deed()
    async with consenting(tools=[deed], store=store) as scene:
        turn_id, approval_id = await pending_on(scene)
        answers: list[bool] = []

        async def answer() -> None:
            answers.append(await scene.runtime.resolve_approval(approval_id, True))

        store.hold("approval.resolved")
        async with trio.open_nursery() as nursery:
            await started(nursery, answer)
            assert (answers, deed.runs, outcomes(scene.happened)) == ([], [], [])
            assert [envelope.event.approval_id for envelope in scene.runtime.pending_approvals()] == [approval_id]
            store.let_go()
        assert answers == [True]
        await scene.wait(turn_id)
        assert deed.runs == ["c1"]


async def test_a_request_is_durable_before_anyone_sees_it(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(tools=[Deed()], store=store) as scene:
        store.hold("approval.requested")
        turn_id = await scene.start()
        await store.held.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert scene.of(events.ApprovalRequested) == []
        assert scene.runtime.pending_approvals() == ()
        store.let_go()
        (approval_id,) = await asked(scene)
        assert await scene.runtime.resolve_approval(approval_id, True)
        await scene.wait(turn_id)


async def test_an_answer_that_can_not_be_stored_leaves_the_request_pending(autojump_clock: Clock) -> None:
    store, deed = HeldStore(), Deed()
    async with consenting(tools=[deed], store=store) as scene:
        turn_id, approval_id = await pending_on(scene)
        store.fail_at("approval.resolved")
        with pytest.raises(rt.StorageError, match="the disk is full"):
            await scene.runtime.resolve_approval(approval_id, True)
        await trio.testing.wait_all_tasks_blocked()
        assert (deed.runs, outcomes(scene.happened)) == ([], [])
        assert [envelope.event.approval_id for envelope in scene.runtime.pending_approvals()] == [approval_id]
        assert await scene.runtime.resolve_approval(approval_id, False) is True
        await scene.wait(turn_id)
        assert outcomes(scene.happened) == ["denied"]
        await settled(scene)


async def test_a_request_that_can_not_be_stored_fails_the_turn_and_asks_nobody(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(tools=[Deed()], store=store) as scene:
        store.fail_at("approval.requested")
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "storage")
        assert scene.of(events.ApprovalRequested, events.ApprovalResolved) == []
        assert await results_of(scene) == {"c1": ("not run: storage", True)}
        await settled(scene)


async def test_rewritten_arguments_are_what_consent_is_asked_for(autojump_clock: Clock) -> None:
    class Rewrites(rt.Hook):
        async def tool_calling(self, context: Any, name: str, arguments: Any) -> rt.Rewrite:
            return rt.Rewrite({"by": "hook"})

    async with consenting(tools=[Deed()], hooks=[Rewrites()]) as scene:
        turn_id, approval_id = await pending_on(scene)
        (requested,) = scene.of(events.ApprovalRequested)
        assert json.loads(requested.arguments) == {"by": "hook"}
        await scene.runtime.resolve_approval(approval_id, True)
        await scene.wait(turn_id)
        stored = [item for item in await scene.history() if isinstance(item, transcript.ToolCall)]
        assert [item.arguments for item in stored] == ["{}"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [(r'{ "to": "\u00e9" , "n": 1e400000000000000000000 }', None), (r'"{\"to\": \"é\"}"', '{"to":"é"}'), ("", "{}"),
     (f'{{"n": {10**30}}}', f'{{"n":{10**30}}}')],
)  # fmt: skip
async def test_consent_is_asked_for_what_would_run_in_readable_json(
    autojump_clock: Clock, written: str, shown: str | None
) -> None:
    async with consenting([*call("c1", "change", written), DONE], DONE_STEP, tools=[Deed()]) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        waiting = scene.runtime.pending_approvals()
        assert [envelope.event.arguments for envelope in waiting] == ([] if shown is None else [shown])
        for envelope in waiting:
            await scene.runtime.resolve_approval(envelope.event.approval_id, False)
        await scene.wait(turn_id)


async def test_a_rewrite_is_stored_before_the_tool_starts(autojump_clock: Clock) -> None:
    class Rewrites(rt.Hook):
        async def tool_calling(self, context: Any, name: str, arguments: Any) -> rt.Rewrite:
            return rt.Rewrite({"by": "hook"})

    store = stores.MemoryThreadStore()

    class Dies(Deed):
        async def run(self, context: rt.ToolContext, arguments: Any) -> rt.ToolOutput:
            self.left = await as_if_killed(store, context.thread_id)
            self.given = dict(arguments)
            return rt.ToolOutput("")

    deed = Dies(effects=["read"])
    async with consenting(tools=[deed], hooks=[Rewrites()], store=store) as scene:
        await scene.run()
    assert deed.given == {"by": "hook"}
    async with rt.open_runtime(store=deed.left) as runtime:
        snapshot = await runtime.load_thread(scene.id)
    assert snapshot is not None
    rewritten = [e.event for e in snapshot.events if isinstance(e.event, events.ToolArgumentsRewritten)]
    assert [(e.call_id, json.loads(e.arguments), e.by) for e in rewritten] == [("c1", {"by": "hook"}, "Rewrites")]
    (stored,) = [item for item in history_of(snapshot) if isinstance(item, transcript.ToolCall)]
    assert stored.arguments == "{}"
    assert results(history_of(snapshot)) == {"c1": ("runtime restarted", True)}


# -- several at once ---------------------------------------------------------------------------------------------------


async def test_calls_of_a_batch_wait_side_by_side_and_are_answered_in_any_order(autojump_clock: Clock) -> None:
    batch = calling(("c1", "change"), ("c2", "move"), ("c3", "change"), ("c4", "see"))
    deed, move, see = Deed(), Deed("move", ["process"], "exclusive"), Deed("see", ["read"])
    async with consenting(batch, DONE_STEP, tools=[deed, move, see]) as scene:
        turn_id = await scene.start()
        await asked(scene, 3)
        by_call = {event.call_id: event.approval_id for event in scene.of(events.ApprovalRequested)}
        assert list(by_call) == ["c1", "c2", "c3"]  # people are asked in call order
        assert len(set(by_call.values())) == 3
        for call_id, approved in (("c3", True), ("c1", False), ("c2", True)):
            assert await scene.runtime.resolve_approval(by_call[call_id], approved)
            await trio.testing.wait_all_tasks_blocked()
        await scene.wait(turn_id)
        assert (deed.runs, move.runs, see.runs) == (["c3"], ["c2"], ["c4"])
        assert list((await results_of(scene)).items()) == [
            ("c1", ("approval denied", True)),
            ("c2", ("move done", False)),
            ("c3", ("change done", False)),
            ("c4", ("see done", False)),
        ]
        await settled(scene)


async def test_a_call_that_needs_no_consent_does_not_wait_for_one_that_does(autojump_clock: Clock) -> None:
    see = Deed("see", ["read"])
    async with consenting(calling(("c1", "change"), ("c2", "see")), DONE_STEP, tools=[Deed(), see]) as scene:
        turn_id, approval_id = await pending_on(scene)
        assert see.runs == ["c2"]
        assert await results_of(scene) == {}
        await scene.runtime.resolve_approval(approval_id, True)
        await scene.wait(turn_id)
        assert list(await results_of(scene)) == ["c1", "c2"]


async def test_one_call_id_that_waits_on_two_threads_is_two_requests(autojump_clock: Clock) -> None:
    async with consenting(CHANGE, CHANGE, DONE_STEP, DONE_STEP, tools=[Deed()]) as one, beside(one) as two:
        first, approval = await pending_on(one)
        second, other = await pending_on(two)
        assert approval != other
        assert await one.runtime.resolve_approval(other, False)
        assert await one.runtime.resolve_approval(approval, True)
        await one.wait(first)
        await two.wait(second)
        assert await results_of(one) == {"c1": ("change done", False)}
        assert await results_of(two) == {"c1": ("approval denied", True)}


async def test_what_waits_is_told_oldest_first_of_one_thread_or_of_all(autojump_clock: Clock) -> None:
    async with consenting(TWO, CHANGE, calling(("c9", "change")), tools=[Deed()]) as one, beside(one) as two:
        runtime = one.runtime
        assert runtime.pending_approvals() == ()
        await two.start()
        await asked(two, 2)
        await one.start()
        await asked(one)
        seen = [e for e in two.seen + one.seen if e.kind == "approval.requested"]
        assert list(runtime.pending_approvals()) == seen
        assert list(runtime.pending_approvals(one.id)) == seen[2:]
        assert list(runtime.pending_approvals(two.id)) == seen[:2]
        assert runtime.pending_approvals("unknown") == ()
        assert {envelope.thread_id for envelope in seen} == {one.id, two.id}
        assert await runtime.resolve_approval(seen[0].event.approval_id, True)
        assert list(runtime.pending_approvals()) == seen[1:]
        async with beside(one) as three:
            await three.start()
            await asked(three)
            assert [e.thread_id for e in runtime.pending_approvals()] == [two.id, one.id, three.id]


async def test_a_turn_that_asked_can_be_followed_by_one_that_asks_for_the_same_call(autojump_clock: Clock) -> None:
    async with consenting(CHANGE, DONE_STEP, CHANGE, DONE_STEP, tools=[Deed()]) as scene:
        for turn in (1, 2):
            turn_id = await scene.start()
            approval_id = (await asked(scene, turn))[-1]
            assert await scene.runtime.resolve_approval(approval_id, True)
            await scene.wait(turn_id)
        assert len({event.call_id for event in scene.of(events.ApprovalRequested)}) == 2
        await settled(scene)


async def test_a_policy_that_asks_is_heard_and_its_reason_is_shown(autojump_clock: Clock) -> None:
    see, says = Deed("see", ["read"]), Says("ask", "it looks odd")
    async with consenting(calling(("c1", "see")), DONE_STEP, tools=[see], policies=[says]) as scene:
        turn_id, approval_id = await pending_on(scene)
        (requested,) = scene.of(events.ApprovalRequested)
        assert requested.reason == "it looks odd"
        assert await scene.runtime.resolve_approval(approval_id, True)
        await scene.wait(turn_id)
        assert (see.runs, [call_id for call_id, _ in says.asked]) == (["c1"], ["c1"])


async def test_consent_is_asked_for_inside_an_engines_stream_too(autojump_clock: Clock) -> None:
    class RunsTools(rt.InferenceEngine):
        id = "inside"
        default_model = "m"
        capabilities = rt.InferenceCapabilities.agent()

        def stream_turn(self, context: Any, request: Any) -> Any:
            return _Inside(context)

    class _Inside:
        def __init__(self, context: Any) -> None:
            self.context, self.parts = context, [*DONE_STEP]

        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *error: object) -> None:
            await trio.lowlevel.checkpoint()

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            if len(self.parts) == 2:
                self.result = await self.context.run_tool(transcript.ToolCall("c1", "change", "{}"))
            return self.parts.pop(0)

    deed = Deed()
    async with (
        rt.open_runtime(
            engines=[RunsTools()], tools=[deed], config=rt.RuntimeConfig(policy_mode="default", default_model="m")
        ) as runtime,
    ):
        thread_id = (await runtime.create_thread()).thread_id
        async with runtime.subscribe_events(thread_id=thread_id) as subscription:
            scene = Scene(runtime, None, thread_id, subscription)
            turn_id, approval_id = await pending_on(scene)
            assert await runtime.resolve_approval(approval_id, True)
            assert (await scene.wait(turn_id)).status == "completed"
            assert deed.runs == ["c1"]
            await settled(scene)
