"""Calls that the host runs: asked for by a stored event, answered once, and never left without a result."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, stores, testing, transcript
from roder_trio.schema.policy import ExternalOutcome
from roder_trio.tools import ExternalTool
from tests.consent_support import (
    DONE_STEP,
    OBJECT,
    Deed,
    HeldStore,
    Says,
    asked,
    beside,
    calling,
    check_requests,
    consenting,
    external,
    outcomes,
    results,
    results_of,
    sent,
    settled,
)
from tests.ledger_support import InstantStore, as_if_killed
from tests.turn_support import DONE, Scene, call, history_of, started

Clock = trio.testing.MockClock
ASK = calling(("c1", "ask_host"))
TOLD = ("policy.decided", "tool.started", "external_tool.requested", "external_tool.resolved", "tool.finished")


async def sent_on(scene: Scene) -> tuple[str, str]:
    """Start a turn whose first call the host is to run; return the turn's id and the request's."""
    turn_id = await scene.start()
    (request_id,) = await sent(scene)
    return turn_id, request_id


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_error", [False, True])
async def test_the_hosts_answer_is_the_result_of_the_call(autojump_clock: Clock, is_error: bool) -> None:
    step = [*call("c1", "ask_host", '{"q": 1}'), DONE]
    async with consenting(step, DONE_STEP, tools=[external()]) as scene:
        turn_id, request_id = await sent_on(scene)
        (requested,) = scene.of(events.ExternalToolRequested)
        assert (requested.call_id, requested.name) == ("c1", "ask_host")
        assert requested.arguments.replace(" ", "") == '{"q":1}'
        assert request_id != "c1"
        assert scene.runtime.pending_approvals() == ()
        assert await scene.runtime.resolve_external_tool(request_id, "here it is", is_error) is True
        assert (await scene.wait(turn_id)).status == "completed"
        assert await results_of(scene) == {"c1": ("here it is", is_error)}
        assert [kind for kind in scene.kinds if kind in TOLD] == list(TOLD)
        resolved = events.ExternalToolResolved(request_id, ExternalOutcome.RESOLVED)
        assert scene.of(events.ExternalToolResolved) == [resolved]
        assert scene.of(events.ToolFinished) == [events.ToolFinished("c1", is_error)]
        assert list(scene.engine.requests[1].transcript)[-1] == (await scene.history())[2]
        await settled(scene)


async def test_only_the_first_answer_of_the_host_counts(autojump_clock: Clock) -> None:
    async with consenting(ASK, DONE_STEP, tools=[external()]) as scene:
        turn_id, request_id = await sent_on(scene)
        answers = [await scene.runtime.resolve_external_tool(request_id, text) for text in ("one", "two")]
        await scene.wait(turn_id)
        answers.append(await scene.runtime.resolve_external_tool(request_id, "three"))
        assert answers == [True, False, False]
        assert await results_of(scene) == {"c1": ("one", False)}
        assert outcomes(scene.happened) == ["resolved"]


async def test_what_the_host_was_not_asked_can_not_be_answered(autojump_clock: Clock) -> None:
    async with consenting(calling(("c1", "change")), DONE_STEP, tools=[Deed()]) as scene:
        runtime = scene.runtime
        turn_id = await scene.start()
        (approval_id,) = await asked(scene)
        for id in ("unknown", "c1", approval_id):
            assert await runtime.resolve_external_tool(id, "here") is False
        assert await runtime.resolve_approval(approval_id, True)
        await scene.wait(turn_id)
    with pytest.raises(rt.RuntimeClosed):
        await runtime.resolve_external_tool("unknown", "here")


async def test_an_answer_that_is_no_text_is_refused_and_the_call_waits_on(autojump_clock: Clock) -> None:
    async with consenting(ASK, DONE_STEP, tools=[external()]) as scene:
        turn_id, request_id = await sent_on(scene)
        with pytest.raises(TypeError, match="text"):
            await scene.runtime.resolve_external_tool(request_id, {"not": "text"})  # type: ignore[arg-type]
        assert await scene.runtime.resolve_external_tool(request_id, "here")
        await scene.wait(turn_id)


async def test_a_long_answer_is_cut_like_that_of_any_tool(autojump_clock: Clock) -> None:
    async with consenting(ASK, DONE_STEP, tools=[external()]) as scene:
        turn_id, request_id = await sent_on(scene)
        await scene.runtime.resolve_external_tool(request_id, "x" * 20_001)
        await scene.wait(turn_id)
        assert len((await results_of(scene))["c1"][0]) <= 20_000
        assert scene.of(events.ToolOutputTruncated) == [events.ToolOutputTruncated("c1", 0, 20_001)]


async def test_hooks_are_told_what_the_host_answered(autojump_clock: Clock) -> None:
    told: list[Any] = []

    class Listens(rt.Hook):
        async def tool_called(
            self, context: rt.ToolContext, name: str, arguments: Mapping[str, Any], output: rt.ToolOutput
        ) -> None:
            told.append((context.call_id, name, output.text))

    async with consenting(ASK, DONE_STEP, tools=[external()], hooks=[Listens()]) as scene:
        turn_id, request_id = await sent_on(scene)
        await scene.runtime.resolve_external_tool(request_id, "here")
        await scene.wait(turn_id)
    assert told == [("c1", "ask_host", "here")]


async def test_calls_wait_side_by_side_and_their_results_stand_in_call_order(autojump_clock: Clock) -> None:
    step = calling(("c1", "ask_host"), ("c2", "ask_host"), ("c3", "ask_host"))
    async with consenting(step, DONE_STEP, tools=[external()]) as scene:
        turn_id = await scene.start()
        await sent(scene, 3)
        by_call = {event.call_id: event.request_id for event in scene.of(events.ExternalToolRequested)}
        for call_id in ("c3", "c1", "c2"):
            assert await scene.runtime.resolve_external_tool(by_call[call_id], f"of {call_id}")
            await trio.testing.wait_all_tasks_blocked()
        await scene.wait(turn_id)
        expected = {call_id: (f"of {call_id}", False) for call_id in ("c1", "c2", "c3")}
        assert list((await results_of(scene)).items()) == list(expected.items())
        await settled(scene)


async def test_one_call_id_that_the_host_runs_for_two_threads_is_two_requests(autojump_clock: Clock) -> None:
    async with consenting(ASK, ASK, DONE_STEP, DONE_STEP, tools=[external()]) as one, beside(one) as two:
        (first, request), (second, other) = await sent_on(one), await sent_on(two)
        assert await one.runtime.resolve_external_tool(other, "two")
        assert await one.runtime.resolve_external_tool(request, "one")
        await one.wait(first)
        await two.wait(second)
        assert await results_of(one) == {"c1": ("one", False)}
        assert await results_of(two) == {"c1": ("two", False)}


# -- consent -----------------------------------------------------------------------------------------------------------


async def test_consent_comes_before_the_host_is_asked(autojump_clock: Clock) -> None:
    async with consenting(ASK, DONE_STEP, tools=[external(effects=["network"])]) as scene:
        turn_id = await scene.start()
        (approval_id,) = await asked(scene)
        assert scene.of(events.ExternalToolRequested) == []
        assert await scene.runtime.resolve_approval(approval_id, True)
        (request_id,) = await sent(scene)
        assert await scene.runtime.resolve_external_tool(request_id, "here")
        await scene.wait(turn_id)
        assert outcomes(scene.happened) == ["approved", "resolved"]
        await settled(scene)


@pytest.mark.parametrize(
    ("options", "result"),
    [
        ({"policy_mode": "plan"}, "policy denied: in mode 'plan', by its effects write"),
        ({"policies": [Says("denied", "no")]}, "policy denied: no"),
        ({"denied_tools": ["ask_host"]}, "policy denied: 'ask_host' is among the denied tools"),
        ({"interactive": False}, "needs approval, and nobody can give it"),
    ],
)
async def test_the_host_is_not_asked_to_run_what_is_refused(
    autojump_clock: Clock, options: dict[str, Any], result: str
) -> None:
    async with consenting(ASK, DONE_STEP, tools=[external(effects=["write"])], **options) as scene:
        assert (await scene.run()).status == "completed"
        assert await results_of(scene) == {"c1": (result, True)}
        assert scene.of(events.ExternalToolRequested) == []


async def test_a_change_of_mode_leaves_a_call_alone_that_the_host_runs(autojump_clock: Clock) -> None:
    async with consenting(ASK, DONE_STEP, tools=[external(effects=["write"])], policy_mode="bypass") as scene:
        turn_id, request_id = await sent_on(scene)
        await scene.runtime.set_policy_mode("plan")
        await scene.runtime.set_policy_mode("plan", scene.id)
        assert await scene.runtime.resolve_external_tool(request_id, "here")
        await scene.wait(turn_id)
        assert outcomes(scene.happened) == ["resolved"]


# -- the store ---------------------------------------------------------------------------------------------------------


async def test_an_answer_is_durable_before_it_is_accepted_or_seen(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(ASK, DONE_STEP, tools=[external()], store=store) as scene:
        turn_id, request_id = await sent_on(scene)
        answers: list[bool] = []

        async def answer() -> None:
            answers.append(await scene.runtime.resolve_external_tool(request_id, "here"))

        store.hold("external_tool.resolved")
        async with trio.open_nursery() as nursery:
            await started(nursery, answer)
            assert (answers, outcomes(scene.happened), scene.of(events.ToolFinished)) == ([], [], [])
            store.let_go()
        assert answers == [True]
        await scene.wait(turn_id)


async def test_an_answer_that_can_not_be_stored_leaves_the_call_waiting(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(ASK, DONE_STEP, tools=[external()], store=store) as scene:
        turn_id, request_id = await sent_on(scene)
        store.fail_at("external_tool.resolved")
        with pytest.raises(rt.StorageError, match="the disk is full"):
            await scene.runtime.resolve_external_tool(request_id, "lost")
        await trio.testing.wait_all_tasks_blocked()
        assert outcomes(scene.happened) == []
        assert await scene.runtime.resolve_external_tool(request_id, "kept") is True
        await scene.wait(turn_id)
        assert await results_of(scene) == {"c1": ("kept", False)}
        assert outcomes(scene.happened) == ["resolved"]
        await settled(scene)


async def test_a_request_is_durable_before_the_host_sees_it(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(ASK, DONE_STEP, tools=[external()], store=store) as scene:
        store.hold("external_tool.requested")
        turn_id = await scene.start()
        await store.held.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert scene.of(events.ExternalToolRequested) == []
        store.let_go()
        (request_id,) = await sent(scene)
        assert await scene.runtime.resolve_external_tool(request_id, "here")
        await scene.wait(turn_id)


@pytest.mark.parametrize("kind", ["external_tool.requested", "external_tool.resolved"])
async def test_what_the_job_can_not_store_of_a_request_fails_the_turn(autojump_clock: Clock, kind: str) -> None:
    store = HeldStore()
    async with consenting(ASK, DONE_STEP, tools=[external(timeout=1.0)], store=store) as scene:
        store.fail_at(kind)
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "storage")
        assert outcomes(scene.happened) == ([] if kind.endswith("requested") else ["cancelled"])
        assert await results_of(scene) == {"c1": ("not run: storage", True)}
        await settled(scene)


# -- how a wait ends without an answer ---------------------------------------------------------------------------------


async def test_a_call_that_the_host_does_not_answer_in_time_is_an_error_result(autojump_clock: Clock) -> None:
    async with consenting(ASK, DONE_STEP, tools=[external()]) as scene:
        outcome = await scene.run()
        assert (outcome.status, trio.current_time()) == ("completed", 300.0)
        assert await results_of(scene) == {"c1": ("timed out after 300 s", True)}
        assert outcomes(scene.happened) == ["timed_out"]
        (requested,) = scene.of(events.ExternalToolRequested)
        assert await scene.runtime.resolve_external_tool(requested.request_id, "late") is False
        await settled(scene)


async def test_a_call_without_a_limit_waits_as_long_as_it_takes(autojump_clock: Clock) -> None:
    async with consenting(ASK, DONE_STEP, tools=[external(timeout=None)], tool_timeout=1.0) as scene:
        turn_id, request_id = await sent_on(scene)
        await trio.sleep(86_000)
        assert await scene.runtime.resolve_external_tool(request_id, "at last")
        assert (await scene.wait(turn_id)).status == "completed"


async def test_an_answer_of_the_host_that_lies_in_the_mailbox_when_the_time_is_up_counts(
    autojump_clock: Clock,
) -> None:
    store = HeldStore()
    async with consenting(ASK, DONE_STEP, tools=[external(timeout=1.0)], store=store) as scene:
        turn_id, request_id = await sent_on(scene)
        store.hold("state")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.runtime.set_state, scene.id, "host", "key", 1)
            await store.held.wait()
            nursery.start_soon(scene.runtime.resolve_external_tool, request_id, "just in time")
            await trio.sleep(2)
            assert outcomes(scene.happened) == []
            store.let_go()
        await scene.wait(turn_id)
        assert await results_of(scene) == {"c1": ("just in time", False)}
        assert outcomes(scene.happened) == ["resolved"]


async def test_an_answer_behind_the_timer_in_the_mailbox_comes_too_late(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(ASK, DONE_STEP, tools=[external(timeout=1.0)], store=store) as scene:
        turn_id, request_id = await sent_on(scene)
        answers: list[bool] = []

        async def answer() -> None:
            await trio.sleep(2)
            answers.append(await scene.runtime.resolve_external_tool(request_id, "too late"))

        store.hold("state")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.runtime.set_state, scene.id, "host", "key", 1)
            nursery.start_soon(answer)
            await trio.sleep(3)
            store.let_go()
        await scene.wait(turn_id)
        assert (answers, outcomes(scene.happened)) == ([False], ["timed_out"])


@pytest.mark.parametrize("number", range(12))
async def test_an_answer_of_the_host_that_is_stored_as_the_time_is_up_reaches_its_call(
    autojump_clock: Clock, number: int
) -> None:
    async def until_then(number: int, thread_id: str, records: Sequence[Any]) -> None:
        if records[0].kind == "external_tool.resolved":
            await trio.sleep_until(1.0)

    store = testing.FaultyStore(InstantStore(), after=until_then)
    async with consenting(ASK, DONE_STEP, tools=[external(timeout=1.0)], store=store) as scene:
        turn_id, request_id = await sent_on(scene)
        with trio.fail_after(10):
            assert await scene.runtime.resolve_external_tool(request_id, "just in time")
            await scene.wait(turn_id)
        assert await results_of(scene) == {"c1": ("just in time", False)}
        assert outcomes(scene.happened) == ["resolved"]


async def test_an_interrupt_cancels_what_the_host_was_asked(autojump_clock: Clock) -> None:
    async with consenting(ASK, tools=[external()]) as scene:
        turn_id, request_id = await sent_on(scene)
        await scene.interrupt(turn_id)
        assert await scene.runtime.resolve_external_tool(request_id, "late") is False
        assert (await scene.wait(turn_id)).status == "interrupted"
        assert await results_of(scene) == {"c1": ("interrupted", True)}
        assert outcomes(scene.happened) == ["cancelled"]
        assert await scene.runtime.resolve_external_tool(request_id, "late") is False
        await settled(scene)


async def test_an_answer_of_the_host_behind_an_interrupt_is_none(autojump_clock: Clock) -> None:
    store = HeldStore()
    async with consenting(ASK, tools=[external()], store=store) as scene:
        turn_id, request_id = await sent_on(scene)
        answers: list[bool] = []

        async def answer() -> None:
            answers.append(await scene.runtime.resolve_external_tool(request_id, "late"))

        store.hold("state")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.runtime.set_state, scene.id, "host", "key", 1)
            await store.held.wait()
            await started(nursery, answer)
            await started(nursery, partial(scene.interrupt, turn_id))
            store.let_go()
        await scene.wait(turn_id)
        assert (answers, outcomes(scene.happened)) == ([False], ["cancelled"])


async def test_the_deadline_of_a_turn_covers_the_wait_for_the_host(autojump_clock: Clock) -> None:
    async with consenting(ASK, tools=[external()], turn_deadline=1.0) as scene:
        outcome = await scene.run()
        assert (outcome.error_kind, trio.current_time()) == ("deadline_timeout", 1.0)
        assert await results_of(scene) == {"c1": ("timed out", True)}
        assert outcomes(scene.happened) == ["cancelled"]
        await settled(scene)


async def test_leaving_the_runtime_cancels_what_the_host_was_asked(autojump_clock: Clock) -> None:
    store = stores.MemoryThreadStore()
    async with consenting(ASK, tools=[external()], store=store) as scene:
        await sent_on(scene)
    snapshot = await store.load_thread(scene.id)
    assert snapshot is not None
    check_requests(snapshot)
    assert outcomes(e.event for e in snapshot.events) == ["cancelled"]
    assert results(history_of(snapshot)) == {"c1": ("interrupted", True)}


async def test_a_steer_waits_for_what_the_host_runs(autojump_clock: Clock) -> None:
    async with consenting(ASK, DONE_STEP, tools=[external()]) as scene:
        turn_id, request_id = await sent_on(scene)
        await scene.steer(turn_id)
        await trio.testing.wait_all_tasks_blocked()
        assert len(scene.engine.requests) == 1
        assert await scene.runtime.resolve_external_tool(request_id, "here")
        await scene.wait(turn_id)
        assert (await scene.history())[3] == transcript.UserMessage("and this")


async def test_a_thread_that_waits_for_the_host_stays_in_memory(autojump_clock: Clock) -> None:
    async with consenting(ASK, DONE_STEP, tools=[external()], max_resident_threads=1) as scene:
        turn_id, request_id = await sent_on(scene)
        async with beside(scene) as other:
            await other.history()
        assert await scene.runtime.resolve_external_tool(request_id, "here")
        await scene.wait(turn_id)


# -- restarts ----------------------------------------------------------------------------------------------------------


async def test_after_a_kill_the_outcome_of_what_the_host_was_asked_is_unknown(autojump_clock: Clock) -> None:
    store = stores.MemoryThreadStore()
    step = calling(("c1", "ask_host"), ("c2", "change"))
    async with consenting(step, tools=[external(), Deed()], store=store) as scene:
        await scene.start()
        (request_id,) = await sent(scene)
        await asked(scene)
        left = await as_if_killed(store, scene.id)
    async with rt.open_runtime(store=left) as runtime:
        assert await runtime.resolve_external_tool(request_id, "late") is False
        snapshot = await runtime.load_thread(scene.id)
        assert snapshot is not None
        assert await runtime.resolve_external_tool(request_id, "late") is False
    check_requests(snapshot)
    assert outcomes(e.event for e in snapshot.events) == ["cancelled", "cancelled"]
    assert results(history_of(snapshot)) == {
        "c1": ("outcome unknown after restart", True),
        "c2": ("runtime restarted", True),
    }
    async with rt.open_runtime(store=left) as runtime:
        again = await runtime.load_thread(scene.id)
    assert again is not None
    assert again.events == snapshot.events


async def test_after_a_kill_between_answer_and_result_the_outcome_is_unknown_too(autojump_clock: Clock) -> None:
    store = stores.MemoryThreadStore()
    step = calling(("c1", "ask_host"), ("c2", "ask_host"))
    async with consenting(step, tools=[external()], store=store) as scene:
        await scene.start()
        await sent(scene, 2)
        by_call = {event.call_id: event.request_id for event in scene.of(events.ExternalToolRequested)}
        assert await scene.runtime.resolve_external_tool(by_call["c2"], "waits for its turn")
        await trio.testing.wait_all_tasks_blocked()
        left = await as_if_killed(store, scene.id)
    async with rt.open_runtime(store=left) as runtime:
        snapshot = await runtime.load_thread(scene.id)
    assert snapshot is not None
    check_requests(snapshot)
    assert outcomes(e.event for e in snapshot.events) == ["resolved", "cancelled"]
    unknown = ("outcome unknown after restart", True)
    assert results(history_of(snapshot)) == {"c1": unknown, "c2": unknown}


async def test_an_interrupt_keeps_an_answer_that_waits_for_its_turn(autojump_clock: Clock) -> None:
    step = calling(("c1", "ask_host"), ("c2", "ask_host"))
    async with consenting(step, tools=[external()]) as scene:
        turn_id = await scene.start()
        await sent(scene, 2)
        by_call = {event.call_id: event.request_id for event in scene.of(events.ExternalToolRequested)}
        assert await scene.runtime.resolve_external_tool(by_call["c2"], "kept")
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        await scene.wait(turn_id)
        assert await results_of(scene) == {"c1": ("interrupted", True), "c2": ("kept", False)}
        assert outcomes(scene.happened) == ["resolved", "cancelled"]
        await settled(scene)


# -- the declaration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_tool_of_the_host_waits_more_than_nothing(timeout: float) -> None:
    with pytest.raises(rt.ToolDefinitionError, match="ask_host"):
        external(timeout=timeout)


async def test_a_tool_of_the_host_does_not_run_in_this_process() -> None:
    tool = ExternalTool(rt.ToolSpec(name="ask_host", description="The host does it.", parameters=OBJECT))
    assert tool.timeout == 300.0
    with pytest.raises(rt.ToolError, match="ask_host"):
        await tool.run(rt.ToolContext(thread_id="t", turn_id="u", call_id="c"), {})
