"""Turns whose tools run while something else happens: interrupts, steers, deadlines, failures in a row, a kill."""

import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, providers, stores, testing, transcript
from roder_trio.schema.event import ApprovalRequested, ApprovalResolved, ExternalToolRequested, ExternalToolResolved
from roder_trio.tools import ExternalTool
from tests.log_laws import check_log
from tests.turn_support import DONE, Scene, call, failure, history_of, say, settings, used

Clock = trio.testing.MockClock
Behave = Callable[[rt.ToolContext], Awaitable[str]]

LAST = [say("done"), DONE]
OBJECT = {"type": "object", "properties": {}}


class Worker(rt.Tool):
    """Does what it is told, and notes the calls that ran."""

    def __init__(self, behave: Behave | None = None, name: str = "look", **spec: Any) -> None:
        effects = spec.pop("effects", {"read"})
        self.spec = rt.ToolSpec(name=name, description=f"Does {name}.", parameters=OBJECT, effects=effects, **spec)
        self.started = trio.Event()
        self.runs: list[str] = []
        self._behave = behave or _at_once

    async def run(self, context: rt.ToolContext, arguments: Mapping[str, Any]) -> rt.ToolOutput:
        self.runs.append(context.call_id)
        self.started.set()
        return rt.ToolOutput(await self._behave(context))


async def _at_once(context: rt.ToolContext) -> str:
    await trio.lowlevel.checkpoint()
    return "seen"


async def for_ever(context: rt.ToolContext) -> str:
    await trio.sleep_forever()
    raise AssertionError


async def failing(context: rt.ToolContext) -> str:
    await trio.lowlevel.checkpoint()
    raise rt.ToolError("no")


def tidying(seconds: float) -> Behave:
    """Works until it is cancelled, then tidies up for so long, out of reach."""

    async def behave(context: rt.ToolContext) -> str:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)
        raise AssertionError

    return behave


@asynccontextmanager
async def working(
    *steps: Any,
    tools: Any,
    store: rt.ThreadStore | None = None,
    engine: rt.InferenceEngine | None = None,
    **config: Any,
) -> AsyncIterator[Scene]:
    """A runtime with these tools and one thread."""
    engine = providers.ScriptedEngine(steps)
    options = settings(**{"provider_retry_initial_backoff": 0.0, **config})
    async with rt.open_runtime(engines=[engine], tools=tools, store=store, config=options) as runtime:
        thread = await runtime.create_thread()
        async with runtime.subscribe_events(thread_id=thread.thread_id) as subscription:
            yield Scene(runtime, engine, thread.thread_id, subscription)


def calling(*calls: tuple[str, str]) -> list[Any]:
    """A step that calls these tools, each given as id and name."""
    return [*[part for id, name in calls for part in call(id, name)], DONE]


async def results(scene: Scene) -> list[tuple[str, str, bool]]:
    """Id, text and error flag of each result, in order; the log is checked too."""
    snapshot = await scene.snapshot()
    check_log(snapshot)
    return results_in(snapshot)


def results_in(snapshot: rt.ThreadSnapshot) -> list[tuple[str, str, bool]]:
    found = [item for item in history_of(snapshot) if isinstance(item, transcript.ToolResult)]
    return [(item.id, item.result, item.is_error) for item in found]


# -- an interrupt ------------------------------------------------------------------------------------------------------


async def test_a_turn_that_starts_behind_an_interrupt_waits_for_the_tool_to_end(autojump_clock: Clock) -> None:
    slow = Worker(tidying(1.0))
    async with working(calling(("c1", "look")), LAST, tools=[slow]) as scene:
        first = await scene.start("one")
        await slow.started.wait()
        await scene.interrupt(first)
        began = trio.current_time()
        second = await scene.start("two")
        assert trio.current_time() == began + 1.0
        (end,) = scene.ends
        assert end.reason == "user"
        assert (await scene.wait(second)).status == "completed"
        started = [e.turn_id for e in scene.seen if e.kind in ("turn.started", "turn.interrupted", "turn.completed")]
        assert started == [first, first, second, second]
        assert await results(scene) == [("c1", "interrupted", True)]


async def test_what_ended_before_an_interrupt_keeps_its_result(autojump_clock: Clock) -> None:
    quick, slow = Worker(name="quick"), Worker(for_ever, "slow")
    never = Worker(name="never", concurrency="exclusive")
    batch = calling(("c1", "quick"), ("c2", "slow"), ("c3", "quick"), ("c4", "never"))
    async with working(batch, LAST, tools=[quick, slow, never]) as scene:
        turn_id = await scene.start()
        await scene.wait_for(lambda scene: scene.kinds.count("tool.finished") == 2)
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        assert (await scene.wait(turn_id)).status == "interrupted"
        assert await results(scene) == [
            ("c1", "seen", False),
            ("c2", "interrupted", True),
            ("c3", "seen", False),
            ("c4", "interrupted", True),
        ]
        assert (quick.runs, slow.runs, never.runs) == (["c1", "c3"], ["c2"], [])
        assert len(scene.engine.requests) == 1


async def test_a_tool_that_swallows_its_cancel_gains_nothing(autojump_clock: Clock) -> None:
    async def stubborn(context: rt.ToolContext) -> str:
        try:
            await trio.sleep_forever()
        except BaseException:
            return "anyway"  # noqa: ASYNC104 - what no tool should do

    tool = Worker(stubborn)
    async with working(calling(("c1", "look")), LAST, tools=[tool]) as scene:
        turn_id = await scene.start()
        await tool.started.wait()
        await scene.interrupt(turn_id)
        assert (await scene.wait(turn_id)).reason == "user"
        assert await results(scene) == [("c1", "interrupted", True)]
        assert "tool.finished" not in scene.kinds


async def breaking(seconds: float = 0.0) -> None:
    """Has a task of its own that raises when it is cancelled."""

    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)
            raise rt.StorageError("of a guest")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
        await trio.sleep_forever()


class Breaks(rt.Policy, rt.Hook, rt.EventSink, providers.Offline):
    """Whatever it is asked as, it waits until it is cancelled, and then fails in a task of its own."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.id = "breaks"
        self.reached = trio.Event()
        self._seconds = seconds

    async def run(self, context: rt.ToolContext) -> str:
        await self._break()
        return ""

    async def decide(self, context: rt.ToolContext, spec: rt.ToolSpec, arguments: Mapping[str, Any]) -> None:
        await self._break()

    async def tool_calling(self, context: rt.ToolContext, name: str, arguments: Mapping[str, Any]) -> None:
        await self._break()

    async def turn_ended(self, outcome: rt.TurnOutcome) -> None:
        await self._break()

    async def emit(self, event: rt.EventEnvelope) -> None:
        if event.kind == "turn.started":
            await self._break()

    @asynccontextmanager
    async def stream_turn(self, context: Any, request: Any) -> AsyncIterator[Any]:
        await self._break()
        yield

    async def _break(self) -> None:
        self.reached.set()
        await breaking(self._seconds)


def guest(way: str, breaks: Breaks) -> dict[str, Any]:
    """What a runtime is opened with so that it meets a guest in this place."""
    engine = breaks if way == "engine" else providers.ScriptedEngine([calling(("c1", "look")), LAST])
    places = {"policies": "policy", "hooks": "hook", "sinks": "sink"}
    return {
        "engines": [engine],
        "tools": [Worker(breaks.run if way == "tool" else None)],
        **{option: [breaks] for option, place in places.items() if place == way},
    }


@pytest.mark.parametrize("way", ["tool", "policy", "hook", "engine"])
async def test_a_guest_whose_tasks_fail_as_they_are_cancelled_does_not_hide_the_interrupt(
    autojump_clock: Clock, way: str
) -> None:
    breaks = Breaks()
    async with rt.open_runtime(**guest(way, breaks)) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        turn_id = await runtime.start_turn(thread_id, "go")
        await breaks.reached.wait()
        await trio.testing.wait_all_tasks_blocked()
        await runtime.interrupt_turn(thread_id, turn_id)
        outcome = await runtime.wait_turn(thread_id, turn_id)
        assert (outcome.status, outcome.reason) == ("interrupted", "user")
        snapshot = await runtime.load_thread(thread_id)
        assert snapshot is not None
        check_log(snapshot)
        assert [text for _, text, _ in results_in(snapshot)] == ["interrupted"] * (way != "engine")


@pytest.mark.parametrize("way", ["tool", "policy", "hook", "engine", "sink"])
async def test_a_guest_that_outlasts_the_runtimes_exit_breaks_nothing_as_it_fails(
    autojump_clock: Clock, way: str
) -> None:
    breaks = Breaks(seconds=100.0)
    graces = dict.fromkeys(("policy_timeout", "hook_timeout", "sink_timeout", "stream_close_grace"), 1000.0)
    config = settings(shutdown_stage_grace=1.0, **graces)
    async with rt.open_runtime(**guest(way, breaks), config=config) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        turn_id = await runtime.start_turn(thread_id, "go")
        await breaks.reached.wait()
        await trio.testing.wait_all_tasks_blocked()
    report = runtime.shutdown_report
    assert report is not None
    if way == "sink":
        assert report.unflushed["breaks"] > 0
    else:
        assert (report.status, report.remaining) == ("deadline_exceeded", (turn_id,))


async def test_a_hook_that_is_told_of_the_last_turns_end_may_fail_as_it_is_cut_off(autojump_clock: Clock) -> None:
    breaks = Breaks(seconds=1.0)
    engine = providers.ScriptedEngine([LAST])
    config = settings(hook_timeout=1000.0)
    async with rt.open_runtime(engines=[engine], hooks=[breaks], config=config) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        assert (await runtime.run_turn(thread_id, "go")).status == "completed"
        await breaks.reached.wait()
    report = runtime.shutdown_report
    assert report is not None
    assert (report.status, report.overruns) == ("clean", ("sinks",))


async def test_a_tool_whose_tasks_fail_as_their_time_is_up_has_timed_out(autojump_clock: Clock) -> None:
    tool = Worker(Breaks().run, timeout=2.0)
    async with working(calling(("c1", "look")), LAST, tools=[tool]) as scene:
        assert (await scene.run()).text == "done"
        assert await results(scene) == [("c1", "timed out after 2 s", True)]


async def test_an_interrupt_leaves_a_blocked_thread_behind() -> None:
    started, go = threading.Event(), threading.Event()

    @rt.tool(effects={"read"})
    def block() -> str:
        """Block a thread."""
        started.set()
        go.wait(120.0)
        return "too late"

    try:
        async with working(calling(("c1", "block")), LAST, tools=[block]) as scene:
            with trio.fail_after(60.0):
                turn_id = await scene.start()
                assert await trio.to_thread.run_sync(started.wait, 60.0)
                await scene.interrupt(turn_id)
                assert (await scene.wait(turn_id)).reason == "user"
                assert await results(scene) == [("c1", "interrupted", True)]
                assert (await scene.run("again")).text == "done"
    finally:
        go.set()


async def test_an_interrupt_while_calls_are_stored_runs_none_of_them(autojump_clock: Clock) -> None:
    held, go = trio.Event(), trio.Event()

    async def hold(number: int, thread_id: str, records: Any) -> None:
        await trio.lowlevel.checkpoint()
        if any(isinstance(getattr(record.event, "item", None), transcript.ToolCall) for record in records):
            held.set()
            await go.wait()

    tool = Worker()
    store = testing.FaultyStore(stores.MemoryThreadStore(), before=hold)
    async with working(calling(("c1", "look"), ("c2", "look")), tools=[tool], store=store) as scene:
        turn_id = await scene.start()
        await held.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.interrupt, turn_id)
            await trio.testing.wait_all_tasks_blocked()
            go.set()
        assert (await scene.wait(turn_id)).status == "interrupted"
        assert await results(scene) == [("c1", "interrupted", True), ("c2", "interrupted", True)]
        assert tool.runs == []
        assert "tool.started" not in scene.kinds


async def test_a_result_that_can_not_be_stored_fails_the_turn_and_ends_the_other_tools(autojump_clock: Clock) -> None:
    async def fail(number: int, thread_id: str, records: Any) -> None:
        await trio.lowlevel.checkpoint()
        kinds = [type(getattr(record.event, "item", None)) for record in records]
        if kinds.count(transcript.ToolResult) == 1:
            raise rt.StorageError("the disk is full")

    quick, slow = Worker(name="quick"), Worker(for_ever, "slow")
    store = testing.FaultyStore(stores.MemoryThreadStore(), before=fail)
    async with working(calling(("c1", "quick"), ("c2", "slow")), tools=[quick, slow], store=store) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "storage")
        assert await results(scene) == [("c1", "seen", False), ("c2", "not run: storage", True)]


# -- the grace of a tool -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "told"), [(4.0, []), (7.0, ["look"])])
@pytest.mark.parametrize("way", ["interrupt", "deadline", "timeout"])
async def test_a_tool_that_tidies_up_for_too_long_is_told_by_name(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, way: str, seconds: float, told: list[str]
) -> None:
    caplog.set_level(logging.WARNING, logger="roder_trio")
    tool = Worker(tidying(seconds), timeout=3.0 if way == "timeout" else None)
    deadline = 3.0 if way == "deadline" else None
    async with working(calling(("c1", "look")), LAST, tools=[tool], turn_deadline=deadline) as scene:
        turn_id = await scene.start()
        began = trio.current_time()
        if way == "interrupt":
            await trio.sleep(3.0)
            await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert trio.current_time() == began + 3.0 + seconds
        assert outcome.status == {"interrupt": "interrupted", "deadline": "failed", "timeout": "completed"}[way]
        (result,) = await results(scene)
        assert result[2]
    warned = [record.getMessage() for record in caplog.records if "clean up" in record.getMessage()]
    assert [name for text in warned for name in ("look",) if name in text] == told


# -- a steer -----------------------------------------------------------------------------------------------------------


async def test_a_steer_during_a_batch_is_handed_back_by_an_interrupt(autojump_clock: Clock) -> None:
    tool = Worker(for_ever)
    async with working(calling(("c1", "look")), LAST, tools=[tool]) as scene:
        turn_id = await scene.start()
        await tool.started.wait()
        await scene.steer(turn_id, "and this")
        await trio.testing.wait_all_tasks_blocked()
        assert scene.ends == []
        await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert [steer.message.text for steer in outcome.undelivered_steers] == ["and this"]
        assert scene.ends[0].undelivered_steers == outcome.undelivered_steers
        assert await results(scene) == [("c1", "interrupted", True)]
        said = [item.text for item in await scene.history() if isinstance(item, transcript.UserMessage)]
        assert said == ["go"]


async def test_a_steer_during_a_batch_follows_its_last_result(autojump_clock: Clock) -> None:
    async def behave(context: rt.ToolContext) -> str:
        await trio.sleep(1.0)
        return "seen"

    tool = Worker(behave)
    async with working(calling(("c1", "look"), ("c2", "look")), LAST, tools=[tool]) as scene:
        turn_id = await scene.start()
        await tool.started.wait()
        await scene.steer(turn_id, "and this")
        assert (await scene.wait(turn_id)).status == "completed"
        sent = scene.engine.requests[1].transcript
        kinds = [type(item).__name__ for item in sent]
        assert kinds == ["UserMessage", *["ToolCall"] * 2, *["ToolResult"] * 2, "UserMessage"]
        assert sent[-1] == transcript.UserMessage("and this")
        assert [error for _, _, error in await results(scene)] == [False, False]


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_a_round_of_tools_gives_a_series_of_its_own(autojump_clock: Clock) -> None:
    lost = [used(3), failure("STREAM_INTERRUPTED")]
    batch = calling(("c1", "look"))
    tool = Worker()
    async with working(lost, [used(5), *batch], lost, LAST, tools=[tool], provider_retry_max_attempts=2) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.text) == ("completed", "done")
        assert [event.attempt for event in scene.of(events.RetryScheduled)] == [1, 1]
        assert outcome.usage == rt.TokenUsage(11, 0, 11)
        assert await results(scene) == [("c1", "seen", False)]
    async with working(lost, lost, LAST, tools=[tool], provider_retry_max_attempts=2) as scene:
        assert (await scene.run()).error_kind == "stream_interrupted"


async def test_five_failures_in_a_row_are_met_with_a_nudge_and_a_count_from_zero(autojump_clock: Clock) -> None:
    def batch(first: int, count: int) -> list[Any]:
        return calling(*[(f"c{number}", "look") for number in range(first, first + count)])

    tool = Worker(failing)
    async with working(batch(0, 5), batch(5, 4), batch(9, 1), LAST, tools=[tool]) as scene:
        assert (await scene.run()).status == "completed"
        assert [(event.name, event.value) for event in scene.of(events.LimitReached)] == [
            ("max_consecutive_tool_failures", 5)
        ] * 2
        kinds = [type(item).__name__ for item in await scene.history()]
        assert kinds == [
            "UserMessage",
            *["ToolCall"] * 5,
            *["ToolResult"] * 5,
            "UserMessage",
            *["ToolCall"] * 4,
            *["ToolResult"] * 4,
            "ToolCall",
            "ToolResult",
            "UserMessage",
            "AssistantMessage",
        ]
        nudges = [item.text for item in await scene.history() if isinstance(item, transcript.UserMessage)][1:]
        assert all("look: no" in text for text in nudges)
        assert {text for _, text, _ in await results(scene)} == {"no"}


async def test_failures_in_a_row_end_a_turn_that_may_not_go_on(autojump_clock: Clock) -> None:
    batch = calling(*[(f"c{number}", "look") for number in range(5)])
    config = {"continue_on_failure_limit": False}
    async with working(batch, LAST, tools=[Worker(failing)], **config) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "reliability_limit")
        assert len(await results(scene)) == 5
        assert len(scene.engine.requests) == 1


async def test_too_many_failures_in_one_turn_end_it(autojump_clock: Clock) -> None:
    batch = calling(*[(f"c{number}", "look") for number in range(128)])
    async with working(batch, LAST, LAST, tools=[Worker(failing)]) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "reliability_limit")
        assert [event.name for event in scene.of(events.LimitReached)] == ["max_tool_failures_per_turn"]
        assert len(await results(scene)) == 128
        assert (await scene.run("again")).status == "completed"


# -- the deadline ------------------------------------------------------------------------------------------------------


async def test_a_deadline_during_a_tool_gives_its_call_a_result(autojump_clock: Clock) -> None:
    quick, slow = Worker(name="quick"), Worker(for_ever, "slow")
    batch = calling(("c1", "quick"), ("c2", "slow"))
    async with working(batch, LAST, tools=[quick, slow], turn_deadline=1.0) as scene:
        began = trio.current_time()
        outcome = await scene.run()
        assert trio.current_time() == began + 1.0
        assert (outcome.status, outcome.error_kind) == ("failed", "deadline_timeout")
        assert await results(scene) == [("c1", "seen", False), ("c2", "timed out", True)]


async def test_a_deadline_while_consent_is_awaited_cancels_the_request(autojump_clock: Clock) -> None:
    tool = Worker(effects={"write"})
    config = {"policy_mode": "default", "turn_deadline": 1.0}
    async with working(calling(("c1", "look")), LAST, tools=[tool], **config) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "deadline_timeout")
        assert await results(scene) == [("c1", "timed out", True)]
        (asked,) = scene.of(ApprovalRequested)
        assert [event.outcome.value for event in scene.of(ApprovalResolved)] == ["cancelled"]
        assert not await scene.runtime.resolve_approval(asked.approval_id, True)
        assert tool.runs == []


async def test_a_deadline_while_the_host_runs_a_call_cancels_the_request(autojump_clock: Clock) -> None:
    tool = ExternalTool(Worker().spec)
    async with working(calling(("c1", "look")), LAST, tools=[tool], turn_deadline=1.0) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "deadline_timeout")
        assert await results(scene) == [("c1", "timed out", True)]
        (asked,) = scene.of(ExternalToolRequested)
        assert [event.outcome.value for event in scene.of(ExternalToolResolved)] == ["cancelled"]
        assert not await scene.runtime.resolve_external_tool(asked.request_id, "late")


async def test_a_deadline_during_a_stream_leaves_no_call(autojump_clock: Clock) -> None:
    tool = Worker()
    async with working([say("a"), *call("c1"), 60.0, DONE], tools=[tool], turn_deadline=1.0) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "deadline_timeout")
        assert await results(scene) == []
        assert tool.runs == []


# -- a kill ------------------------------------------------------------------------------------------------------------


async def test_after_a_kill_each_call_has_one_error_result_and_nothing_runs_again(autojump_clock: Clock) -> None:
    store = stores.MemoryThreadStore()
    slow, host = Worker(for_ever, "slow"), ExternalTool(Worker(name="host").spec)
    batch = calling(("c1", "quick"), ("c2", "slow"), ("c3", "host"))
    async with working(batch, tools=[Worker(name="quick"), slow, host], store=store) as scene:
        turn_id = await scene.start()
        await slow.started.wait()
        await scene.wait_for(lambda scene: "external_tool.requested" in scene.kinds)
        await trio.testing.wait_all_tasks_blocked()
        left = await store.load_thread(scene.id)
    assert left is not None
    assert left.metadata is not None
    found = stores.MemoryThreadStore()
    await found.create_thread(left.metadata)
    await found.append(scene.id, [*left.events, *left.item_events])
    counted = testing.FaultyStore(found)
    snapshots = []
    for _ in range(2):
        async with rt.open_runtime(store=counted, tools=[slow, host]) as runtime:
            snapshot = await runtime.load_thread(scene.id)
            assert snapshot is not None
            snapshots.append(snapshot)
    first, second = snapshots
    check_log(first)
    assert results_in(first) == [
        ("c1", "seen", False),
        ("c2", "runtime restarted", True),
        ("c3", "outcome unknown after restart", True),
    ]
    ends = [(e.turn_id, e.event.reason) for e in first.events if isinstance(e.event, events.TurnInterrupted)]
    assert ends == [(turn_id, "runtime_restart")]
    assert [e.event.outcome.value for e in first.events if isinstance(e.event, ExternalToolResolved)] == ["cancelled"]
    assert second.events == first.events
    assert counted.appends == 1
    assert slow.runs == ["c2"]
