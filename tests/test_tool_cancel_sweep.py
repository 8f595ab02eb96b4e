"""A turn with tools, an approval and a failed attempt, disturbed at every one of its steps, in every way there is.

The first step of the turn calls two tools that run side by side and one that waits for consent; the next attempt fails
and is made again. Whatever comes between, the history is well paired and in order, nothing pends, nothing ran twice.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, items, stores, testing, transcript
from roder_trio.schema.config import Deadlines
from roder_trio.schema.event import ApprovalRequested, ApprovalResolved, ToolFinished
from roder_trio.schema.policy import ApprovalOutcome
from tests.injection import Injector, NurseryEngine, ProbeEngine, SettlingEngine, Watches, is_any, is_job, is_runtime
from tests.turn_support import DONE, Scene, call, failure, folded_usage, history_of, say, settings, used

pytestmark = pytest.mark.unmeasured

CALLS = [say("look", "commentary"), *call("c1", "look"), *call("c2", "peek"), *call("c3", "change"), used(20, 4), DONE]
LOST = [used(3), say("hal"), used(3, 1), failure("STREAM_INTERRUPTED")]
LAST = [say("do"), used(5), say("ne"), used(5, 1), DONE]
OBJECT = {"type": "object", "properties": {}}

ENDLESS = 1e6
GRACES = {field.name: ENDLESS for field in attrs.fields(Deadlines)}
TERMINAL_KINDS = ("turn.completed", "turn.failed", "turn.interrupted")


class Bench:
    """The tools of a runtime: each call is counted, and seen as long as it is under way."""

    def __init__(self) -> None:
        self.runs: Counter[tuple[str, str]] = Counter()
        self.active = 0
        self.tools = [Worker(self, "look", "read"), Worker(self, "peek", "read"), Worker(self, "change", "write")]


class Worker(rt.Tool):
    """Works for a while; a cancel finds it with something to tidy up."""

    def __init__(self, bench: Bench, name: str, effect: str) -> None:
        self.spec = rt.ToolSpec(name=name, description=f"Does {name}.", parameters=OBJECT, effects={effect})
        self._bench = bench

    async def run(self, context: rt.ToolContext, arguments: Mapping[str, Any]) -> rt.ToolOutput:
        self._bench.runs[context.turn_id, context.call_id] += 1
        self._bench.active += 1
        try:
            await trio.lowlevel.checkpoint()
            context.report_progress("half")
            await trio.sleep(0.01)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.01)
            self._bench.active -= 1
        return rt.ToolOutput(f"{self.spec.name} done")


def is_turn(task: trio.lowlevel.Task) -> bool:
    """The task of the job, and those of its tools."""
    return is_job(task) or task.name.startswith("roder_trio.actors.tool.")


@attrs.define
class Run:
    """One run of the flow, with one disturbance."""

    engine: ProbeEngine
    bench: Bench
    injector: Injector
    scene: Scene
    turn_id: str | None = None
    reached: bool = False
    """The job could still be reached when it was disturbed."""
    asked: int = 0
    """Requests that were sent until then."""


def parts(make: type[ProbeEngine]) -> tuple[ProbeEngine, Bench]:
    return make([CALLS, LOST, LAST]), Bench()


def watched_store(bench: Bench, inner: rt.ThreadStore) -> testing.FaultyStore:
    """A store whose appends have a step before they write and one after; tools are gone when a turn's end comes."""

    async def before(number: int, thread_id: str, records: Sequence[Any]) -> None:
        if any(record.kind in TERMINAL_KINDS for record in records):
            assert bench.active == 0
        await trio.lowlevel.checkpoint()

    async def after(number: int, thread_id: str, records: Sequence[Any]) -> None:
        await trio.lowlevel.checkpoint()

    return testing.FaultyStore(inner, before=before, after=after)


async def approve(runtime: rt.Runtime, thread_id: str) -> None:
    """Consent to whatever asks for it."""
    async with runtime.subscribe_events(thread_id=thread_id, kinds=["approval.requested"]) as asked:
        async for envelope in asked:
            assert isinstance(envelope.event, ApprovalRequested)
            await runtime.resolve_approval(envelope.event.approval_id, True)


@asynccontextmanager
async def opened(
    make: type[ProbeEngine],
    number: int,
    act: Callable[[Run], object],
    watches: Watches,
    at: Any = "before",
    **config: Any,
) -> AsyncIterator[Run]:
    """A runtime whose turn is disturbed at step `number`; all that must hold is checked when the block is left."""
    engine, bench = parts(make)
    store = watched_store(bench, stores.MemoryThreadStore())
    options = settings(policy_mode="default", **config)
    async with rt.open_runtime(engines=[engine], tools=bench.tools, store=store, config=options) as runtime:
        thread = await runtime.create_thread()
        async with (
            runtime.subscribe_events(thread_id=thread.thread_id) as subscription,
            trio.open_nursery() as helpers,
        ):
            helpers.start_soon(approve, runtime, thread.thread_id)
            scene = Scene(runtime, engine, thread.thread_id, subscription)
            await scene.history()  # the thread is resident now
            await trio.testing.wait_all_tasks_blocked()
            run: Run
            run = Run(engine, bench, Injector(number, lambda: act(run), watches, at), scene)
            living = trio.lowlevel.current_statistics().tasks_living
            yield run
            await trio.testing.wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().tasks_living == living
            await check(run)
            await check_next_turn(run)
            helpers.cancel_scope.cancel()


async def check(run: Run) -> None:
    """All that must hold after any turn, however it ended."""
    scene, snapshot = run.scene, await run.scene.snapshot()
    assert run.engine.active == 0
    assert run.engine.most_active <= 1
    check_ends(snapshot, run.engine)
    assert [e.turn_id for e in scene.seen if e.kind in TERMINAL_KINDS] == terminals(snapshot)
    check_calls(snapshot, run.bench)
    check_finished(snapshot, scene.of(ToolFinished))
    assert scene.runtime.pending_approvals() == ()
    assert not scene.resident.desk.requests
    async with scene.runtime.thread_view(scene.id) as view:
        assert items.ItemStatus.IN_PROGRESS not in [item.status for item in view.items]


def terminals(snapshot: rt.ThreadSnapshot) -> list[str | None]:
    return [e.turn_id for e in snapshot.events if e.kind in TERMINAL_KINDS]


def check_ends(snapshot: rt.ThreadSnapshot, engine: ProbeEngine) -> None:
    """One end for each turn, with what its attempts were told to have used."""
    began = [e.turn_id for e in snapshot.events if isinstance(e.event, events.TurnStarted)]
    assert terminals(snapshot) == began
    for envelope in snapshot.events:
        if isinstance(envelope.event, events.TurnCompleted | events.TurnFailed | events.TurnInterrupted):
            turn_id = str(envelope.turn_id)
            assert envelope.event.usage == folded_usage(snapshot, turn_id) == engine.handed_in(turn_id)
    assert snapshot.metadata is not None
    assert snapshot.metadata.usage == folded_usage(snapshot)


def check_calls(snapshot: rt.ThreadSnapshot, bench: Bench) -> None:
    """Each call has one result, in call order; it ran at most once, and only with the consent it needs."""
    history = history_of(snapshot)
    calls = [item for item in history if isinstance(item, transcript.ToolCall)]
    results = [item for item in history if isinstance(item, transcript.ToolResult)]
    assert [(item.id, item.name) for item in results] == [(item.id, item.name) for item in calls]
    ran = {call_id for _, call_id in bench.runs}
    assert ran <= {item.id for item in calls}
    assert set(bench.runs.values()) <= {1}
    for result in results:
        assert result.result in (f"{result.name} done", "interrupted", "timed out")
        assert result.is_error or result.id in ran
    asked = [e.event for e in snapshot.events if isinstance(e.event, ApprovalRequested)]
    told = [e.event for e in snapshot.events if isinstance(e.event, ApprovalResolved)]
    assert [event.approval_id for event in told] == [event.approval_id for event in asked]
    consented = {a.call_id for a, t in zip(asked, told, strict=True) if t.outcome is ApprovalOutcome.APPROVED}
    assert {item.id for item in calls if item.name == "change" and item.id in ran} <= consented


def check_finished(snapshot: rt.ThreadSnapshot, finished: Sequence[ToolFinished]) -> None:
    """What a call was seen to end with is what the history holds, whatever became of the others."""
    errors = {item.id: item.is_error for item in history_of(snapshot) if isinstance(item, transcript.ToolResult)}
    assert len({event.call_id for event in finished}) == len(finished)
    assert all(errors[event.call_id] == event.is_error for event in finished)


async def check_next_turn(run: Run) -> None:
    outcome = await run.scene.run("again")
    assert (outcome.status, outcome.error, outcome.text) == ("completed", None, "done")


async def sweep(flow: Callable[[int], Any], at_least: int) -> None:
    """Run the flow with the disturbance at each step, until a run has no such step."""
    number = 1
    while await flow(number):
        number += 1
    assert number > at_least


# -- an interrupt ------------------------------------------------------------------------------------------------------


async def test_the_turn_that_is_disturbed_has_all_that_can_be_cut(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(ProbeEngine, 0, lambda run: None, is_any) as run:
        with run.injector.watching():
            outcome = await run.scene.run()
        assert (outcome.status, outcome.text) == ("completed", "done")
        assert len(run.engine.requests) == 3
        assert len(run.scene.of(events.RetryScheduled)) == 1
        assert [type(item).__name__ for item in await run.scene.history()] == [
            "UserMessage",
            "AssistantMessage",
            *["ToolCall"] * 3,
            *["ToolResult"] * 3,
            "AssistantMessage",
        ]
        assert run.scene.kinds.count("approval.requested") == 1
        assert sum(run.bench.runs.values()) == 3


@pytest.mark.parametrize(
    ("make", "watches", "at"),
    [
        (ProbeEngine, is_any, "before"),
        (ProbeEngine, is_turn, "after"),
        (NurseryEngine, is_turn, "before"),
    ],
    ids=["all tasks", "blocked", "nursery"],
)
async def test_an_interrupt_at_any_step_leaves_every_call_with_its_result(
    autojump_clock: trio.testing.MockClock, make: type[ProbeEngine], watches: Watches, at: Any
) -> None:
    async def flow(number: int) -> bool:
        told = trio.Event()

        def interrupt(run: Run) -> None:
            job = run.scene.resident.job
            run.reached = job is not None and job.cancel("user")
            run.asked = len(run.engine.requests)
            told.set()

        async with opened(make, number, interrupt, watches, at) as run, trio.open_nursery() as nursery:

            async def record() -> None:
                await told.wait()
                if run.turn_id is not None:
                    await run.scene.interrupt(run.turn_id)

            nursery.start_soon(record)
            with run.injector.watching():
                run.turn_id = await run.scene.start()
                outcome = await run.scene.wait(run.turn_id)
                nursery.cancel_scope.cancel()
            if run.reached:
                assert len(run.engine.requests) == run.asked
            ended = (outcome.status, outcome.reason)
            assert ended == ("interrupted", "user") or (not run.reached and ended == ("completed", None))
        return run.injector.fired

    await sweep(flow, 60)


async def test_consent_that_comes_after_an_interrupt_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async def flow(number: int) -> bool:
        told = trio.Event()
        late: list[bool] = []

        async with opened(ProbeEngine, number, lambda run: told.set(), is_runtime) as run:
            async with trio.open_nursery() as nursery:

                async def interrupt() -> None:
                    await told.wait()
                    pending = run.scene.runtime.pending_approvals()
                    job = run.scene.resident.job
                    if job is not None:
                        await run.scene.interrupt(job.turn_id)
                        for envelope in pending:
                            assert isinstance(envelope.event, ApprovalRequested)
                            late.append(await run.scene.runtime.resolve_approval(envelope.event.approval_id, True))

                nursery.start_soon(interrupt)
                with run.injector.watching():
                    outcome = await run.scene.run()
                told.set()
            assert outcome.status in ("interrupted", "completed")
            assert not any(late)
        return run.injector.fired

    await sweep(flow, 60)


# -- a steer -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "watches", "at"), [(ProbeEngine, is_any, "before"), (NurseryEngine, is_turn, "after")]
)
async def test_a_steer_at_any_step_cuts_no_call(
    autojump_clock: trio.testing.MockClock, make: type[ProbeEngine], watches: Watches, at: Any
) -> None:
    async def flow(number: int) -> bool:
        told = trio.Event()
        accepted: list[str] = []

        async with opened(make, number, lambda run: told.set(), watches, at) as run:
            async with trio.open_nursery() as nursery:

                async def steer() -> None:
                    await told.wait()
                    if run.turn_id is not None:
                        try:
                            await run.scene.steer(run.turn_id, "steered")
                            accepted.append("steered")
                        except rt.NoActiveTurn:
                            pass

                nursery.start_soon(steer)
                with run.injector.watching():
                    run.turn_id = await run.scene.start()
                    outcome = await run.scene.wait(run.turn_id)
                told.set()
            assert outcome.status == "completed"
            history = await run.scene.history()
            assert [item.text for item in history if isinstance(item, transcript.UserMessage)][1:] == accepted
            results = [item for item in history if isinstance(item, transcript.ToolResult)]
            assert not any(item.is_error for item in results)
            if accepted:
                assert transcript.UserMessage("steered") in run.engine.requests[-1].transcript
        return run.injector.fired

    await sweep(flow, 60)


# -- the deadline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "at"), [(ProbeEngine, "before"), (ProbeEngine, "after"), (SettlingEngine, "after")])
async def test_a_deadline_at_any_step_gives_every_call_its_result(
    autojump_clock: trio.testing.MockClock, make: type[ProbeEngine], at: Any
) -> None:
    async def flow(number: int) -> bool:
        def jump(run: Run) -> None:
            job = run.scene.resident.job
            run.reached = job is not None and not job.sealed
            autojump_clock.jump(1000.0)

        limits = {"turn_deadline": 1000.0, "stream_idle_timeout": None, **GRACES}
        async with opened(make, number, jump, is_turn, at, **limits) as run:
            with run.injector.watching():
                outcome = await run.scene.run()
            if outcome.status == "failed":
                assert run.reached
                assert outcome.error_kind == "deadline_timeout"
            else:
                assert outcome.status == "completed"
        return run.injector.fired

    await sweep(flow, 60)


# -- the caller leaves -------------------------------------------------------------------------------------------------


async def test_a_caller_that_leaves_at_any_step_ends_its_tools(autojump_clock: trio.testing.MockClock) -> None:
    async def flow(number: int) -> bool:
        scope = trio.CancelScope()
        async with opened(ProbeEngine, number, lambda run: scope.cancel(), is_any) as run:
            outcome = None
            with scope, run.injector.watching():
                outcome = await run.scene.run()
            if scope.cancelled_caught:
                assert outcome is None
                ends = run.scene.ends
                assert all(isinstance(end, events.TurnCompleted) or end.reason == "caller_left" for end in ends)
                assert run.bench.active == 0
            else:
                assert outcome is not None
                assert outcome.status == "completed"
        return run.injector.fired

    await sweep(flow, 60)


# -- the runtime is left -----------------------------------------------------------------------------------------------


async def test_a_runtime_that_is_left_at_any_step_ends_its_tools(autojump_clock: trio.testing.MockClock) -> None:
    async def flow(number: int) -> bool:
        engine, bench = parts(ProbeEngine)
        inner = stores.MemoryThreadStore()
        told = trio.Event()
        living = trio.lowlevel.current_statistics().tasks_living
        injector = Injector(number, told.set, is_any)
        config = settings(policy_mode="default")
        async with (
            trio.open_nursery() as helpers,
            rt.open_runtime(
                engines=[engine], tools=bench.tools, store=watched_store(bench, inner), config=config
            ) as runtime,
        ):
            thread_id = (await runtime.create_thread()).thread_id
            helpers.start_soon(approve, runtime, thread_id)
            await trio.testing.wait_all_tasks_blocked()
            with injector.watching():
                turn_id = await runtime.start_turn(thread_id, "go")
                async with trio.open_nursery() as nursery:

                    async def wait_for_end() -> None:
                        await runtime.wait_turn(thread_id, turn_id)
                        told.set()

                    nursery.start_soon(wait_for_end)
                    await told.wait()
                    nursery.cancel_scope.cancel()
        assert trio.lowlevel.current_statistics().tasks_living == living
        assert (engine.active, bench.active) == (0, 0)
        assert runtime.shutdown_report is not None
        assert runtime.shutdown_report.status == "clean"
        snapshot = await inner.load_thread(thread_id)
        assert snapshot is not None
        check_ends(snapshot, engine)
        check_calls(snapshot, bench)
        (end,) = [e.event for e in snapshot.events if e.kind in TERMINAL_KINDS]
        assert isinstance(end, events.TurnCompleted) or end.reason == "shutdown"
        again = ProbeEngine([LAST])
        async with rt.open_runtime(engines=[again], store=inner) as runtime:
            assert (await runtime.run_turn(thread_id, "again")).text == "done"
        return injector.fired

    await sweep(flow, 60)
