"""A turn of two rounds with a compaction between, disturbed at every one of its steps, in every way there is."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, items, stores, testing, transcript
from roder_trio.schema.config import Deadlines
from tests.injection import Injector, NurseryEngine, ProbeEngine, SettlingEngine, Watches, is_any, is_job, is_runtime
from tests.turn_support import (
    DONE,
    Scene,
    call,
    failure,
    folded_usage,
    history_of,
    say,
    settings,
    shown_texts,
    used,
    well_paired,
)

LONG = "x" * 6000
BOUNDARY = inference.ProviderMetadata({"output": [{"type": "compaction", "id": "c1", "encrypted_content": "sealed"}]})
FIRST = [
    inference.ReasoningDelta("so"),
    used(20),
    say("look", "commentary"),
    say("ing", "commentary"),
    *call("c1"),
    used(20, 2),
    say(LONG),
    say(" and more"),
    inference.ProviderMetadata({"kept": True}),
    used(20, 4),
    DONE,
]
COMPACTION = [used(4), used(10, 2), BOUNDARY, DONE]
SECOND = [say("do"), used(5), say("ne"), used(5, 1), DONE]

pytestmark = pytest.mark.unmeasured

WAYS = pytest.mark.parametrize(
    ("make", "watches", "at"),
    [
        (ProbeEngine, is_job, "before"),
        (ProbeEngine, is_job, "after"),
        (ProbeEngine, is_runtime, "before"),
        (NurseryEngine, is_job, "before"),
        (SettlingEngine, is_job, "after"),
    ],
    ids=["woken", "blocked", "all tasks", "nursery", "settle"],
)
ENGINES = pytest.mark.parametrize(("make", "watches"), [(ProbeEngine, is_any), (SettlingEngine, is_job)])

ENDLESS = 1e6
GRACES = {field.name: ENDLESS for field in attrs.fields(Deadlines)}


@attrs.define
class Run:
    """One run of the flow, with one disturbance."""

    engine: ProbeEngine
    injector: Injector
    scene: Scene
    turn_id: str | None = None
    reached: bool = False
    """The job could still be reached when it was told to stop."""
    asked: int = 0
    """Requests that were sent until then."""


RETRIED = [say("hal"), used(3), say("f"), *call("c0"), say("lost"), failure("STREAM_INTERRUPTED")]


def scripted(make: type[ProbeEngine]) -> ProbeEngine:
    return make([FIRST, SECOND], [COMPACTION])


def retrying(make: type[ProbeEngine]) -> ProbeEngine:
    return make([RETRIED, SECOND])


@asynccontextmanager
async def opened(
    make: type[ProbeEngine],
    number: int,
    act: Callable[[Run], object],
    watches: Watches,
    at: Any = "before",
    script: Callable[[type[ProbeEngine]], ProbeEngine] = scripted,
    **config: Any,
) -> AsyncIterator[Run]:
    engine = script(make)
    config = {"auto_compact_token_limit": 1000, **config}
    store = testing.FaultyStore(stores.MemoryThreadStore(), before=_step, after=_step)
    async with rt.open_runtime(engines=[engine], store=store, config=settings(**config)) as runtime:
        thread = await runtime.create_thread()
        async with runtime.subscribe_events(thread_id=thread.thread_id) as subscription:
            scene = Scene(runtime, engine, thread.thread_id, subscription)
            await scene.history()  # the thread is resident now
            await trio.testing.wait_all_tasks_blocked()
            run: Run
            injector = Injector(number, lambda: act(run), watches, at)
            run = Run(engine, injector, scene)
            living = trio.lowlevel.current_statistics().tasks_living
            yield run
            await trio.testing.wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().tasks_living == living
            check_probe(run)
            await check(run)
            await check_next_turn(run)


async def _step(number: int, thread_id: str, records: Any) -> None:
    """An append has a step of its own before it writes, and one after."""
    await trio.lowlevel.checkpoint()


def check_probe(run: Run) -> None:
    assert run.engine.active == 0
    assert run.engine.most_active <= 1


async def check(run: Run) -> None:
    """All that must hold after any turn, however it ended."""
    scene = run.scene
    snapshot = await scene.snapshot()
    began = [e.turn_id for e in snapshot.events if isinstance(e.event, events.TurnStarted)]
    ends = {e.turn_id: e.event for e in snapshot.events if e.kind in TERMINAL_KINDS}
    assert began == list(ends)
    assert [e.turn_id for e in scene.seen if e.kind in TERMINAL_KINDS] == began
    history = history_of(snapshot)
    assert well_paired(history)
    for turn_id, end in ends.items():
        assert end.usage == folded_usage(snapshot, turn_id) == run.engine.handed_in(turn_id), turn_id
    assert snapshot.metadata is not None
    assert snapshot.metadata.usage == folded_usage(snapshot)
    said = {
        e.event.item_id: e.event.item.text
        for e in snapshot.events
        if isinstance(e.event, events.TranscriptItemAppended) and isinstance(e.event.item, transcript.AssistantMessage)
    }
    assert shown_texts(scene.happened) == said
    async with scene.runtime.thread_view(scene.id) as view:
        assert items.ItemStatus.IN_PROGRESS not in [item.status for item in view.items]


TERMINAL_KINDS = ("turn.completed", "turn.failed", "turn.interrupted")


async def check_next_turn(run: Run) -> None:
    outcome = await run.scene.run("again")
    assert (outcome.status, outcome.error) == ("completed", None)
    assert outcome.text in ("done", LONG + " and more")


async def sweep(flow: Callable[[int], Any], at_least: int) -> None:
    """Run the flow with the disturbance at each step, until a run has no such step."""
    for number in count(1):
        if not await flow(number):
            assert number > at_least
            return


# -- an interrupt ------------------------------------------------------------------------------------------------------


@WAYS
async def test_an_interrupt_at_any_step_leaves_a_whole_history(
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

    await sweep(flow, 30)


async def test_an_interrupt_that_is_asked_for_at_any_step_ends_the_turn_or_finds_it_ended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def flow(number: int) -> bool:
        told = trio.Event()

        async with opened(ProbeEngine, number, lambda run: told.set(), is_any) as run:
            async with trio.open_nursery() as nursery:

                async def interrupt() -> None:
                    await told.wait()
                    job = run.scene.resident.job
                    if job is not None:
                        await run.scene.interrupt(job.turn_id)

                nursery.start_soon(interrupt)
                with run.injector.watching():
                    outcome = await run.scene.run()
                told.set()
            assert outcome.status in ("interrupted", "completed")
        return run.injector.fired

    await sweep(flow, 30)


@pytest.mark.parametrize("steers", [False, True])
@pytest.mark.parametrize(("make", "at"), [(ProbeEngine, "after"), (NurseryEngine, "before"), (SettlingEngine, "after")])
async def test_what_a_failed_attempt_said_is_discarded_or_kept_whatever_comes_between(
    autojump_clock: trio.testing.MockClock, make: type[ProbeEngine], at: Any, steers: bool
) -> None:
    async def flow(number: int) -> bool:
        told = trio.Event()

        async with opened(make, number, lambda run: told.set(), is_job, at, retrying) as run:
            async with trio.open_nursery() as nursery:

                async def disturb() -> None:
                    await told.wait()
                    job = run.scene.resident.job
                    if job is not None and steers:
                        with suppress(rt.NoActiveTurn):
                            await run.scene.steer(job.turn_id, "steered")
                    elif job is not None:
                        await run.scene.interrupt(job.turn_id)

                nursery.start_soon(disturb)
                with run.injector.watching():
                    outcome = await run.scene.run()
                told.set()
            assert outcome.status == "completed" or (outcome.status == "interrupted" and not steers)
        return run.injector.fired

    await sweep(flow, 20)


# -- a steer -----------------------------------------------------------------------------------------------------------


@WAYS
async def test_a_steer_at_any_step_is_delivered_or_refused(
    autojump_clock: trio.testing.MockClock, make: type[ProbeEngine], watches: Watches, at: Any
) -> None:
    async def flow(number: int) -> bool:
        told = trio.Event()

        async with opened(make, number, lambda run: told.set(), watches, at) as run:
            accepted = False
            async with trio.open_nursery() as nursery:

                async def steer() -> None:
                    nonlocal accepted
                    await told.wait()
                    if run.turn_id is not None:
                        try:
                            await run.scene.steer(run.turn_id, "steered")
                            accepted = True
                        except rt.NoActiveTurn:
                            pass

                nursery.start_soon(steer)
                with run.injector.watching():
                    run.turn_id = await run.scene.start()
                    outcome = await run.scene.wait(run.turn_id)
                told.set()
            assert outcome.status == "completed"
            history = await run.scene.history()
            delivered = [item for item in history if item == transcript.UserMessage("steered")]
            assert len(delivered) == accepted
            if accepted:
                asked = run.engine.requests[-1].transcript
                assert transcript.UserMessage("steered") in list(asked)
        return run.injector.fired

    await sweep(flow, 30)


# -- the deadline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "at"), [(ProbeEngine, "before"), (ProbeEngine, "after"), (SettlingEngine, "after")])
async def test_a_deadline_at_any_step_fails_the_turn_and_keeps_what_was_said(
    autojump_clock: trio.testing.MockClock, make: type[ProbeEngine], at: Any
) -> None:
    async def flow(number: int) -> bool:
        run: Run

        def jump(run: Run) -> None:
            job = run.scene.resident.job
            run.reached = job is not None and not job.sealed
            autojump_clock.jump(1000.0)

        async with opened(
            make, number, jump, is_job, at, turn_deadline=1000.0, stream_idle_timeout=None, **GRACES
        ) as run:
            with run.injector.watching():
                outcome = await run.scene.run()
            if outcome.status == "failed":
                assert run.reached
                assert outcome.error_kind == "deadline_timeout"
            else:
                assert outcome.status == "completed"
        return run.injector.fired

    await sweep(flow, 30)


# -- the caller leaves -------------------------------------------------------------------------------------------------


@ENGINES
async def test_a_caller_that_leaves_at_any_step_ends_its_turn(
    autojump_clock: trio.testing.MockClock, make: type[ProbeEngine], watches: Watches
) -> None:
    async def flow(number: int) -> bool:
        scope = trio.CancelScope()
        async with opened(make, number, lambda run: scope.cancel(), watches) as run:
            outcome = None
            with scope, run.injector.watching():
                outcome = await run.scene.run()
            ends = run.scene.ends
            if scope.cancelled_caught:
                assert outcome is None
                assert all(isinstance(end, events.TurnCompleted) or end.reason == "caller_left" for end in ends)
            else:
                assert outcome is not None
                assert outcome.status == "completed"
            job = None if run.scene.resident is None else run.scene.resident.job
            assert job is None or job.sealed
        return run.injector.fired

    await sweep(flow, 30)


# -- the runtime is left -----------------------------------------------------------------------------------------------


@ENGINES
async def test_a_runtime_that_is_left_at_any_step_stores_the_end_of_its_turn(
    autojump_clock: trio.testing.MockClock, make: type[ProbeEngine], watches: Watches
) -> None:
    async def flow(number: int) -> bool:
        store = stores.MemoryThreadStore()
        engine = scripted(make)
        told = trio.Event()
        living = trio.lowlevel.current_statistics().tasks_living
        injector = Injector(number, told.set, watches)
        config = settings(auto_compact_token_limit=1000)
        async with rt.open_runtime(engines=[engine], store=store, config=config) as runtime:
            thread_id = (await runtime.create_thread()).thread_id
            await runtime.load_thread(thread_id)
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
        assert engine.active == 0
        assert runtime.shutdown_report is not None
        assert runtime.shutdown_report.status == "clean"
        snapshot = await store.load_thread(thread_id)
        assert snapshot is not None
        assert snapshot.metadata is not None
        (end,) = [e.event for e in snapshot.events if e.kind in TERMINAL_KINDS]
        assert isinstance(end, events.TurnCompleted) or end.reason == "shutdown"
        assert well_paired(history_of(snapshot))
        assert end.usage == folded_usage(snapshot) == engine.handed_in(turn_id) == snapshot.metadata.usage
        async with rt.open_runtime(engines=[scripted(make)], store=store) as runtime:
            assert (await runtime.run_turn(thread_id, "again")).status == "completed"
        return injector.fired

    await sweep(flow, 30)


# -- a drain, an archive -----------------------------------------------------------------------------------------------


async def test_a_drain_at_any_step_ends_every_turn_that_started(autojump_clock: trio.testing.MockClock) -> None:
    async def flow(number: int) -> bool:
        told = trio.Event()
        async with opened(ProbeEngine, number, lambda run: told.set(), is_any) as run:
            runtime = run.scene.runtime
            async with trio.open_nursery() as nursery:

                async def drain() -> None:
                    await told.wait()
                    outcome = await runtime.drain_active_turns(60.0)
                    assert outcome.status == "clean"
                    assert set(outcome.interrupted) <= {run.turn_id}
                    assert run.scene.resident.job is None

                nursery.start_soon(drain)
                with run.injector.watching():
                    try:
                        run.turn_id = await run.scene.start()
                    except rt.RuntimeDraining:
                        assert run.scene.seen == []
                    else:
                        outcome = await run.scene.wait(run.turn_id)
                        assert outcome.status == "completed" or outcome.reason == "drain"
                told.set()
            runtime.resume_accepting_turns()
        return run.injector.fired

    await sweep(flow, 30)


async def test_an_archive_at_any_step_ends_the_turn_first(autojump_clock: trio.testing.MockClock) -> None:
    async def flow(number: int) -> bool:
        told = trio.Event()
        async with opened(ProbeEngine, number, lambda run: told.set(), is_runtime) as run:
            runtime = run.scene.runtime
            async with trio.open_nursery() as nursery:

                async def archive() -> None:
                    await told.wait()
                    assert await runtime.archive_thread(run.scene.id)
                    assert len(run.scene.ends) <= 1
                    assert run.scene.kinds[-1] == "thread.archived"
                    assert await runtime.load_thread(run.scene.id) is None

                nursery.start_soon(archive)
                with run.injector.watching():
                    try:
                        outcome = await run.scene.run()
                    except rt.ThreadNotFound:
                        assert run.scene.ends == [] or isinstance(run.scene.ends[0], events.TurnInterrupted)
                    else:
                        assert outcome.status == "completed" or outcome.reason == "archive"
                told.set()
            assert await runtime.unarchive_thread(run.scene.id)
            await run.scene.history()
        return run.injector.fired

    await sweep(flow, 30)
