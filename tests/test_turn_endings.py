"""How turns are stopped: by an interrupt, by a caller who leaves, by a drain, by the runtime's exit."""

import logging
import math
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, providers, stores, testing, transcript
from roder_trio.providers.scripted import NEVER_ENDS as NEVER
from roder_trio.schema.command import Touch
from tests.turn_support import DONE, CountingStore, call, failure, one_thread, say, settings, started, texts, used

BOUNDARY = inference.ProviderMetadata({"output": [{"type": "compaction", "id": "c", "encrypted_content": "e"}]})
CUT = failure("STREAM_INTERRUPTED")
BIG = "x" * 6000


class Hanging(providers.ScriptedEngine):
    """Takes `seconds` to close each stream, shielded from every cancel."""

    def __init__(self, *steps: Any, seconds: float = 60.0) -> None:
        super().__init__(steps)
        self.seconds = seconds

    @asynccontextmanager
    async def stream_turn(self, context: Any, request: Any) -> Any:
        async with super().stream_turn(context, request) as stream:
            try:
                yield stream
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(self.seconds)


def slow_append(kind: str, seconds: float) -> rt.ThreadStore:
    """A store that takes its time with the append of such an event."""

    async def slow(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == kind for record in records):
            await trio.sleep(seconds)

    return testing.FaultyStore(stores.MemoryThreadStore(), before=slow)


# -- an interrupt ------------------------------------------------------------------------------------------------------


async def test_a_job_that_ends_before_a_full_mailbox_waits_for_room(autojump_clock: trio.testing.MockClock) -> None:
    store = slow_append("thread.metadata_changed", 5)
    async with one_thread([say("so far"), NEVER], store=store) as scene, trio.open_nursery() as nursery:
        turn_id = await scene.start()
        await scene.wait_text("so far")
        nursery.start_soon(partial(scene.runtime.update_thread, scene.id, title="slow"))
        await trio.testing.wait_all_tasks_blocked()
        while scene.resident.mailbox.post(Touch()):
            pass
        scene.resident.job.cancel("user")
        await trio.testing.wait_all_tasks_blocked()
        assert not scene.ends
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.text) == ("interrupted", "so far")


async def test_an_interrupt_keeps_what_was_said_and_counted(autojump_clock: trio.testing.MockClock) -> None:
    step = [say("com", "commentary"), say("so "), say("far"), used(4), inference.ToolCallStarted("c1", "look"), NEVER]
    cut = [inference.ReasoningDelta("hm"), used(9), NEVER]
    async with one_thread([*step[:3], used(4), NEVER], [*step[:3], *step[4:]], cut) as scene:
        for said in (["com", "so far"], ["com", "so far"], []):
            before = len(await scene.history())
            turn_id = await scene.start()
            await trio.testing.wait_all_tasks_blocked()
            await scene.interrupt(turn_id)
            outcome = await scene.wait(turn_id)
            assert (outcome.status, outcome.reason) == ("interrupted", "user")
            assert texts((await scene.history())[before:]) == ["go", *said]
        assert [getattr(item, "interrupted", None) for item in await scene.history()] == [
            *(None, False, True),
            *(None, False, False),  # the stream had moved on to a call
            None,
        ]
        assert [end.usage for end in scene.ends] == [rt.TokenUsage(4, 0, 4), None, rt.TokenUsage(9, 0, 9)]
        assert scene.engine.active == 0


async def test_an_interrupt_is_announced_once_with_its_reason(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), NEVER]) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        await scene.interrupt(turn_id)
        await scene.interrupt(turn_id)
        await scene.wait(turn_id)
        await scene.interrupt(turn_id)
        assert scene.of(events.TurnInterruptRequested) == [events.TurnInterruptRequested("user")]
        kinds = scene.kinds
        assert kinds.index("turn.interrupt_requested") < kinds.index("turn.interrupted")


async def test_an_interrupt_reaches_the_job_while_an_append_hangs(autojump_clock: trio.testing.MockClock) -> None:
    store = slow_append("extension", 5.0)

    async with one_thread([say("a"), 3.0, say("b"), NEVER], store=store) as scene, trio.open_nursery() as nursery:
        hold = trio.Event()

        async def held(number: int, thread_id: str, records: Any) -> None:
            await hold.wait()

        turn_id = await scene.start()
        await scene.wait_text("a")
        store.before = held  # type: ignore[attr-defined]
        await started(nursery, lambda: scene.runtime.set_state(scene.id, "host", "key", 1))
        await started(nursery, lambda: scene.interrupt(turn_id))
        assert scene.engine.active == 0
        assert scene.of(events.TurnInterruptRequested) == []
        hold.set()
        assert (await scene.wait(turn_id)).reason == "user"
        assert scene.shown() == "a"


async def test_an_interrupt_that_is_taken_after_the_opening_cancels_the_job_as_it_starts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The opening append hangs; who interrupts knows the id from its caller."""
    async with one_thread([DONE], store=slow_append("turn.started", 2.0)) as scene:
        with trio.move_on_after(1.0):
            await scene.run()
        assert [type(end) for end in scene.ends] == [events.TurnInterrupted]
        assert scene.ends[0] == events.TurnInterrupted("caller_left")
        assert scene.engine.calls == []
        assert texts(await scene.history()) == ["go"]


async def test_an_interrupt_during_finishing_changes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), DONE], store=slow_append("turn.completed", 2.0)) as scene:
        turn_id = await scene.start()
        await trio.sleep(1.0)
        await scene.interrupt(turn_id)
        assert (await scene.wait(turn_id)).status == "completed"
        assert scene.of(events.TurnInterruptRequested) == []


async def test_a_turn_whose_final_append_fails_can_be_interrupted_no_more_and_fails(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def fail(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "turn.completed" for record in records):
            await trio.sleep(2.0)
            raise rt.StorageError("no room")

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=fail)
    async with one_thread([say("a"), DONE], store=store) as scene, trio.open_nursery() as nursery:
        turn_id = await scene.start()
        await trio.sleep(1.0)
        nursery.start_soon(scene.interrupt, turn_id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.reason or outcome.error_kind) in [
            ("failed", "storage"),
            ("interrupted", "user"),
        ]
        assert texts(await scene.history())[:2] == ["go", "a"]
        assert len(scene.ends) == 1


async def test_an_interrupt_and_a_steer_together_are_an_interrupt(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), NEVER]) as scene, trio.open_nursery() as nursery:
        turn_id = await scene.start()
        await scene.wait_text("a")
        accepted = []

        async def steer() -> None:
            try:
                await scene.steer(turn_id, "more")
                accepted.append("more")
            except rt.NoActiveTurn:
                pass

        nursery.start_soon(steer)
        nursery.start_soon(scene.interrupt, turn_id)
        outcome = await scene.wait(turn_id)
        assert outcome.status == "interrupted"
        assert [steer.message.text for steer in outcome.undelivered_steers] == accepted
        assert texts(await scene.history()) == ["go", "a"]


@pytest.mark.parametrize(
    ("steps", "usage"),
    [
        ([[*call("c1"), used(3), DONE], [NEVER]], 3),
        ([[used(3), CUT], [DONE]], 3),
    ],
    ids=["after a batch", "in back-off"],
)
async def test_an_interrupt_between_streams_ends_the_turn_at_once(
    autojump_clock: trio.testing.MockClock, steps: list[Any], usage: int
) -> None:
    async with one_thread(*steps) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.usage) == ("interrupted", rt.TokenUsage(usage, 0, usage))
        assert trio.current_time() == 0


async def test_an_interrupt_during_a_compaction_keeps_its_usage_and_no_boundary(
    autojump_clock: trio.testing.MockClock,
) -> None:
    steps = ([say(BIG), used(24), *call("c1"), DONE], [DONE])
    compact = ([used(4), used(12), BOUNDARY, NEVER],)
    config = settings(auto_compact_token_limit=1000)
    async with one_thread(*steps, compact=compact, config=config) as scene:
        turn_id = await scene.start()
        await scene.wait_for(lambda scene: bool(scene.engine.compact_requests))
        await trio.testing.wait_all_tasks_blocked()
        metadata = await scene.runtime.load_metadata(scene.id)
        assert metadata is not None
        await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.usage) == ("interrupted", rt.TokenUsage(36, 0, 36))
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["interrupted"]
        assert not any(rt.compaction.is_boundary(item) for item in await scene.history())


async def test_an_engine_that_hangs_in_its_cleanup_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    class Sticky(providers.ScriptedEngine):
        @asynccontextmanager
        async def stream_turn(self, context: Any, request: Any) -> Any:
            async with super().stream_turn(context, request) as stream:
                try:
                    yield stream
                finally:
                    await trio.sleep_forever()

    async with one_thread(engine=Sticky([[say("a"), NEVER]])) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        await scene.interrupt(turn_id)
        assert (await scene.wait(turn_id)).reason == "user"
        assert trio.current_time() == pytest.approx(5.0)
        assert texts(await scene.history()) == ["go", "a"]


async def test_an_engine_that_swallows_its_cancel_does_not_hide_the_interrupt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Swallowing(providers.ScriptedEngine):
        @asynccontextmanager
        async def stream_turn(self, context: Any, request: Any) -> Any:
            with trio.CancelScope() as own:
                async with super().stream_turn(context, request) as stream:
                    try:
                        yield stream
                    finally:
                        own.cancel()

    for steps in ([[say("a"), NEVER]], [[say("a"), CUT]]):
        async with one_thread(engine=Swallowing(steps)) as scene:
            turn_id = await scene.start()
            await scene.wait_text("a")
            await scene.interrupt(turn_id)
            assert (await scene.wait(turn_id)).reason == "user"


async def test_an_engine_that_raises_when_it_is_cancelled_does_not_hide_the_interrupt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Raising(providers.ScriptedEngine):
        @asynccontextmanager
        async def stream_turn(self, context: Any, request: Any) -> Any:
            async with trio.open_nursery() as nursery, super().stream_turn(context, request) as stream:
                nursery.start_soon(self._fail_late)
                yield stream

        async def _fail_late(self) -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("cleanup failed")

    async with one_thread(engine=Raising([[say("a"), used(3), NEVER], [DONE]])) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.reason, outcome.usage) == ("interrupted", "user", rt.TokenUsage(3, 0, 3))
        assert texts(await scene.history()) == ["go", "a"]


async def test_a_stream_that_cannot_settle_is_just_left(autojump_clock: trio.testing.MockClock) -> None:
    class Plain:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            await trio.sleep_forever()

    class Engine(providers.ScriptedEngine):
        @asynccontextmanager
        async def stream_turn(self, context: Any, request: Any) -> Any:
            await trio.lowlevel.checkpoint()
            yield Plain()

    async with one_thread(engine=Engine()) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        assert (await scene.wait(turn_id)).status == "interrupted"


# -- a caller who leaves -----------------------------------------------------------------------------------------------


async def test_cancelling_run_turn_interrupts_the_turn_and_waits_for_its_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with one_thread(engine=Hanging([say("a"), NEVER], seconds=3.0)) as scene:
        with trio.move_on_after(1.0):
            await scene.run()
        assert trio.current_time() == pytest.approx(4.0)
        assert scene.ends == [events.TurnInterrupted("caller_left")]
        assert texts(await scene.history()) == ["go", "a"]


async def test_a_caller_who_leaves_does_not_wait_longer_than_its_grace(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(engine=Hanging([say("a"), NEVER])) as scene:
        with trio.move_on_after(1.0):
            await scene.run()
        assert trio.current_time() == pytest.approx(11.0)
        assert scene.ends == []
        await scene.wait_for(lambda scene: bool(scene.ends))
        assert scene.ends == [events.TurnInterrupted("caller_left")]


async def test_cancelling_start_turn_leaves_the_turn_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), DONE], store=slow_append("turn.started", 2.0)) as scene:
        with trio.move_on_after(1.0):
            await scene.start()
        await scene.wait_for(lambda scene: bool(scene.ends))
        assert isinstance(scene.ends[0], events.TurnCompleted)


async def test_cancelling_wait_turn_leaves_the_turn_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([2.0, say("a"), DONE]) as scene:
        turn_id = await scene.start()
        with trio.move_on_after(1.0):
            await scene.wait(turn_id)
        assert (await scene.wait(turn_id)).text == "a"


async def test_a_turn_block_gives_the_turns_events_and_its_outcome(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), DONE]) as scene:
        kinds = []
        async with scene.runtime.turn(scene.id, "go") as turn:
            with pytest.raises(RuntimeError, match="left"):
                _ = turn.outcome
            async for envelope in turn:
                assert envelope.turn_id == turn.turn_id
                kinds.append(envelope.kind)
            assert [kind async for kind in turn] == []
        assert (kinds[0], kinds[-1]) == ("turn.started", "turn.completed")
        assert turn.outcome.text == "a"
        assert turn.thread_id == scene.id


async def test_a_turn_block_that_is_left_early_waits_for_the_end(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), 5.0, say("b"), DONE]) as scene:
        async with scene.runtime.turn(scene.id, "go") as turn:
            async for envelope in turn:
                if envelope.kind == "item.delta":
                    break
        assert (turn.outcome.status, turn.outcome.text) == ("completed", "ab")
        assert trio.current_time() == pytest.approx(5.0)


async def test_an_error_in_a_turn_block_interrupts_the_turn_first(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(engine=Hanging([say("a"), NEVER], seconds=2.0)) as scene:
        handle: Any = None
        with pytest.raises(LookupError, match="mine"):
            async with scene.runtime.turn(scene.id, "go") as handle:
                await scene.wait_text("a")
                raise LookupError("mine")
        assert (handle.outcome.status, handle.outcome.reason) == ("interrupted", "caller_left")
        assert trio.current_time() == pytest.approx(2.0)


async def test_a_cancel_of_a_turn_block_interrupts_the_turn_first(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), NEVER]) as scene:
        with trio.move_on_after(1.0) as scope:
            async with scene.runtime.turn(scene.id, "go") as turn:
                async for _ in turn:
                    pass
        assert scope.cancelled_caught
        assert turn.outcome.reason == "caller_left"


async def test_an_outcome_that_nobody_knows_is_not_made_up(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(engine=Hanging([say("a"), NEVER])) as scene:
        with trio.move_on_after(1.0):
            async with scene.runtime.turn(scene.id, "go") as turn:
                await trio.sleep_forever()
        with pytest.raises(RuntimeError):
            _ = turn.outcome


async def test_a_turn_block_that_is_refused_disturbs_no_other_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([2.0, say("a"), DONE]) as scene:
        turn_id = await scene.start()
        with pytest.raises(rt.ThreadBusy):
            async with scene.runtime.turn(scene.id, "go"):
                raise AssertionError("the block must not run")
        assert (await scene.wait(turn_id)).text == "a"
        assert scene.of(events.TurnInterruptRequested) == []


# -- a drain -----------------------------------------------------------------------------------------------------------


async def test_a_drain_of_a_quiet_runtime_is_clean_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), DONE]) as scene:
        assert await scene.runtime.drain_active_turns(math.inf) == rt.DrainOutcome("clean")
        await scene.history()
        assert await scene.runtime.drain_active_turns(0.0) == rt.DrainOutcome("clean")
        with pytest.raises(rt.RuntimeDraining):
            await scene.start()
        assert texts(await scene.history()) == []
        scene.runtime.resume_accepting_turns()
        scene.runtime.resume_accepting_turns()
        assert (await scene.run()).text == "a"


async def test_a_drain_interrupts_every_turn_and_names_them(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(*[[say("a"), NEVER]] * 3) as scene:
        turns = []
        for _ in range(3):
            thread = await scene.runtime.create_thread()
            turns.append((thread.thread_id, await scene.runtime.start_turn(thread.thread_id, "go")))
        await trio.testing.wait_all_tasks_blocked()
        outcome = await scene.runtime.drain_active_turns(1.0)
        assert outcome == rt.DrainOutcome("clean", tuple(sorted(turn_id for _, turn_id in turns)))
        for thread_id, turn_id in turns:
            ended = await scene.runtime.wait_turn(thread_id, turn_id)
            assert (ended.status, ended.reason) == ("interrupted", "drain")
        assert await scene.runtime.drain_active_turns(1.0) == rt.DrainOutcome("clean")


async def test_a_drain_with_an_engine_that_hangs_names_what_remains(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(engine=Hanging([say("a"), NEVER], seconds=5.0)) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        outcome = await scene.runtime.drain_active_turns(0.1)
        assert outcome == rt.DrainOutcome("deadline_exceeded", (turn_id,), (turn_id,))
        with pytest.raises(rt.RuntimeDraining):
            await scene.start()
        again = await scene.runtime.drain_active_turns(60.0)
        assert again == rt.DrainOutcome("clean", ())
        assert (await scene.wait(turn_id)).reason == "drain"
        assert trio.current_time() == pytest.approx(5.0)


async def test_a_drain_that_cannot_store_an_end_says_so(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    class Full(stores.MemoryThreadStore):
        full = True

        async def append(self, thread_id: str, records: Any) -> None:
            if self.full and any(record.kind == "turn.interrupted" for record in records):
                await trio.lowlevel.checkpoint()
                raise rt.StorageError("no room")
            await super().append(thread_id, records)

    store = Full()
    async with one_thread([say("a"), NEVER], [say("b"), DONE], store=store) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        outcome = await scene.runtime.drain_active_turns(60.0)
        assert outcome.status == "storage_failed"
        assert outcome.interrupted == (turn_id,)
        assert trio.current_time() == 0
        store.full = False
        ended = await scene.wait(turn_id)
        assert (ended.status, ended.reason) == ("interrupted", "runtime_restart")
        scene.runtime.resume_accepting_turns()
        assert (await scene.run()).text == "b"
        assert await scene.runtime.drain_active_turns(60.0) == rt.DrainOutcome("clean")


async def test_a_turn_that_starts_while_the_runtime_drains_is_interrupted_as_it_starts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with one_thread([NEVER], store=slow_append("turn.started", 2.0)) as scene, trio.open_nursery() as nursery:
        begun: list[str] = []

        async def start() -> None:
            begun.append(await scene.start())

        await started(nursery, start)
        outcome = await scene.runtime.drain_active_turns(60.0)
        assert outcome == rt.DrainOutcome("clean", tuple(begun))
        assert scene.ends == [events.TurnInterrupted("drain")]
        assert scene.engine.calls == []


async def test_turns_may_be_accepted_again_while_a_drain_waits(autojump_clock: trio.testing.MockClock) -> None:
    """The drain goes on to wait for the turns that it interrupted, and for no later one."""
    engine = Hanging([say("a"), NEVER], [2.0, say("b"), DONE], seconds=3.0)
    async with one_thread(engine=engine) as scene, trio.open_nursery() as nursery:
        other = await scene.runtime.create_thread()
        first = await scene.start()
        await scene.wait_text("a")
        outcomes: list[rt.DrainOutcome] = []

        async def drain() -> None:
            outcomes.append(await scene.runtime.drain_active_turns(math.inf))

        await started(nursery, drain)
        scene.runtime.resume_accepting_turns()
        second = await scene.runtime.start_turn(other.thread_id, "go")
        await scene.wait(first)
        await trio.testing.wait_all_tasks_blocked()
        assert outcomes == [rt.DrainOutcome("clean", (first,))]
        assert (await scene.runtime.wait_turn(other.thread_id, second)).text == "b"


async def test_a_drain_waits_for_a_manual_compaction_and_lists_it_not(autojump_clock: trio.testing.MockClock) -> None:
    compact = ([2.0, BOUNDARY, DONE],)
    async with one_thread([say("a"), DONE], compact=compact) as scene, trio.open_nursery() as nursery:
        await scene.run()
        results: list[Any] = []

        async def compact_it() -> None:
            results.append(await scene.runtime.compact_thread(scene.id))

        await started(nursery, compact_it)
        early = await scene.runtime.drain_active_turns(1.0)
        assert (early.interrupted, early.remaining) == ((), ())
        outcome = await scene.runtime.drain_active_turns(60.0)
        assert outcome == rt.DrainOutcome("clean")
        await trio.testing.wait_all_tasks_blocked()
        assert results[0].compacted


async def test_a_drain_ends_at_once_when_the_last_request_is_answered_by_a_crash(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The actor fails with a start in hand, which nobody else is told."""
    caplog.set_level(logging.CRITICAL)

    async def broken(number: int, thread_id: str, records: Any) -> None:
        await trio.sleep(1.0)
        raise ZeroDivisionError("the store has a bug")

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=broken)
    async with one_thread([DONE], store=store) as scene, trio.open_nursery() as nursery:

        async def start() -> None:
            with pytest.raises(rt.ActorCrashed):
                await scene.start()

        await started(nursery, start)
        assert await scene.runtime.drain_active_turns(60.0) == rt.DrainOutcome("clean")
        assert trio.current_time() == pytest.approx(1.0)


async def test_a_cancelled_drain_keeps_refusing_turns(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(engine=Hanging([say("a"), NEVER], seconds=5.0)) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        with trio.move_on_after(1.0):
            await scene.runtime.drain_active_turns(math.inf)
        with pytest.raises(rt.RuntimeDraining):
            await scene.start()
        assert (await scene.wait(turn_id)).reason == "drain"


# -- the runtime's exit ------------------------------------------------------------------------------------------------


async def stored_ends(store: rt.ThreadStore, thread_id: str) -> list[Any]:
    snapshot = await store.load_thread(thread_id)
    assert snapshot is not None
    return [
        envelope.event
        for envelope in snapshot.events
        if isinstance(envelope.event, (events.TurnCompleted, events.TurnFailed, events.TurnInterrupted))
    ]


async def test_leaving_the_runtime_ends_its_turns_and_reports(autojump_clock: trio.testing.MockClock) -> None:
    store = CountingStore()
    async with one_thread([say("a"), used(3), NEVER], store=store) as scene:
        await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        assert scene.runtime.shutdown_report is None
    assert scene.runtime.shutdown_report == rt.ShutdownReport("clean")
    assert await stored_ends(store, scene.id) == [events.TurnInterrupted("shutdown", rt.TokenUsage(3, 0, 3))]
    for method in (scene.start, scene.run):
        with pytest.raises(rt.RuntimeClosed):
            await method()
    with pytest.raises(rt.RuntimeClosed):
        await scene.steer("x", "y")
    with pytest.raises(rt.RuntimeClosed):
        await scene.interrupt("x")
    with pytest.raises(rt.RuntimeClosed):
        await scene.wait("x")
    with pytest.raises(rt.RuntimeClosed):
        await scene.runtime.drain_active_turns(1.0)
    with pytest.raises(rt.RuntimeClosed):
        scene.runtime.resume_accepting_turns()
    with pytest.raises(rt.RuntimeClosed):
        async with scene.runtime.turn(scene.id, "go"):
            pass


async def test_an_engine_that_never_lets_go_is_named_in_the_report(autojump_clock: trio.testing.MockClock) -> None:
    store = CountingStore()
    async with one_thread(engine=Hanging([say("a"), used(3), NEVER], seconds=100.0), store=store) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
    report = scene.runtime.shutdown_report
    assert report is not None
    assert (report.status, report.remaining) == ("deadline_exceeded", (turn_id,))
    assert report.overruns[0] == "turns"
    async with rt.open_runtime(engines=[providers.ScriptedEngine([[say("b"), DONE]])], store=store) as runtime:
        outcome = await runtime.wait_turn(scene.id, turn_id)
        assert (outcome.status, outcome.reason, outcome.usage) == (
            "interrupted",
            "runtime_restart",
            rt.TokenUsage(3, 0, 3),
        )
        assert (await runtime.run_turn(scene.id, "go")).text == "b"


async def test_turns_are_refused_while_the_runtime_shuts_down_even_if_it_was_drained_before(
    autojump_clock: trio.testing.MockClock,
) -> None:
    refused: list[type] = []
    async with trio.open_nursery() as nursery:
        async with one_thread(engine=Hanging([say("a"), NEVER], seconds=5.0)) as scene:
            await scene.start()
            await scene.wait_text("a")
            await scene.runtime.drain_active_turns(0.0)
            other = await scene.runtime.create_thread()

            async def late() -> None:
                await trio.sleep(1.0)
                try:
                    scene.runtime.resume_accepting_turns()
                    await scene.runtime.run_turn(other.thread_id, "go")
                except rt.RoderTrioError as error:
                    refused.append(type(error))

            nursery.start_soon(late)
        assert refused == [rt.RuntimeDraining]
        assert trio.current_time() == pytest.approx(5.0)
        assert len(scene.engine.calls) == 1


async def test_an_error_of_the_block_ends_the_runtime_and_is_raised(autojump_clock: trio.testing.MockClock) -> None:
    scene: Any = None
    store = CountingStore()
    with pytest.raises(LookupError, match="mine"):
        async with one_thread([say("a"), NEVER], store=store) as scene:
            await scene.start()
            await scene.wait_text("a")
            raise LookupError("mine")
    assert await stored_ends(store, scene.id) == [events.TurnInterrupted("shutdown")]


async def test_history_stays_sendable_after_every_way_a_turn_ends(autojump_clock: trio.testing.MockClock) -> None:
    calls = [*call("c1"), *call("c2")]
    steps = ([*calls, say("half"), NEVER], [*call("c3"), say("x"), inference.Failed("no")], [say("ok"), DONE])
    async with one_thread(*steps) as scene:
        turn_id = await scene.start()
        await scene.wait_text("half")
        await scene.interrupt(turn_id)
        await scene.wait(turn_id)
        await scene.run()
        assert (await scene.run()).text == "ok"
        assert [type(item) for item in scene.engine.requests[2].transcript] == [
            transcript.UserMessage,
            transcript.AssistantMessage,
            transcript.UserMessage,
            transcript.AssistantMessage,
            transcript.ErrorNote,
            transcript.UserMessage,
        ]
