"""Threads that are read again: after a kill, after a load that failed, after their actor crashed."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import compaction, events, goals, inference, items, stores, transcript
from roder_trio.goals import GoalStatus
from roder_trio.schema.event import TERMINAL_EVENTS, ThreadRecovered
from roder_trio.testing import FaultyStore
from tests.crash_flows import CallingEngine
from tests.flow_engines import CompactionEngine, TwoRounds, compaction_usage, normal_usage
from tests.log_laws import check_log, open_turns, total, transcript_of
from tests.thread_reads import buffered, loaded, opened, reads

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# -- hydration ---------------------------------------------------------------------------------------------------------


async def test_a_kill_between_call_and_result_gives_each_call_one_error_result(autojump_clock):
    image = await image_before("calls", lambda records: any(holds(record, transcript.ToolResult) for record in records))
    thread = next(iter(image._active))
    store = FaultyStore(image)
    async with rt.open_runtime(engines=[CallingEngine()], store=store) as runtime:
        snapshot = await loaded(runtime, thread)
        assert store.appends == 1
    check_log(snapshot)
    results = [item for item in transcript_of(snapshot) if isinstance(item, transcript.ToolResult)]
    assert [(r.id, r.result, r.is_error) for r in results] == [
        ("a", "runtime restarted", True),
        ("b", "runtime restarted", True),
    ]
    async with rt.open_runtime(engines=[CallingEngine()], store=store) as runtime:
        assert await loaded(runtime, thread) == snapshot
        assert store.appends == 1
    ends = [e.event for e in snapshot.events if isinstance(e.event, TERMINAL_EVENTS)]
    assert ends == [events.TurnInterrupted("runtime_restart", rt.TokenUsage(9, 3, 12))]


def holds(record: Any, kind: type) -> bool:
    return isinstance(record, rt.EventEnvelope) and isinstance(getattr(record.event, "item", None), kind)


async def image_of(store: stores.MemoryThreadStore) -> stores.MemoryThreadStore:
    """What would be left if the process were killed now."""
    image = stores.MemoryThreadStore()
    for thread_id, held in store._active.items():
        await image.create_thread(held.created)
        await image.append(thread_id, list(held.records))
    return image


async def image_before(message: str, wanted: Callable[[Sequence[Any]], bool]) -> stores.MemoryThreadStore:
    """What a process would leave that is killed before the append of such records."""
    inner = stores.MemoryThreadStore()
    images: list[stores.MemoryThreadStore] = []

    async def before(number: int, thread_id: str, records: Sequence[Any]) -> None:
        if not images and wanted(records):
            images.append(await image_of(inner))

    async with rt.open_runtime(engines=[CallingEngine()], store=FaultyStore(inner, before=before)) as runtime:
        thread = (await runtime.create_thread()).thread_id
        await runtime.run_turn(thread, message, model="any")
    return images[0]


async def test_hydration_writes_nothing_for_items_under_a_bare_turn_id(autojump_clock):
    store = FaultyStore(stores.MemoryThreadStore())
    async with rt.open_runtime(store=store) as runtime:
        thread = (await runtime.create_thread()).thread_id
        await runtime.persist_turn_item(thread, "bare", transcript.UserMessage("kept"))
        await runtime.persist_turn_item(thread, "bare", transcript.ToolCall("open", "look", "{}"))
        message = items.AgentMessage("said", "", status=items.ItemStatus.IN_PROGRESS)
        await runtime.record_thread_item_event_kind(thread, "bare", EPOCH, items.ItemStarted(message))
        before = await loaded(runtime, thread)
    written = store.appends
    async with rt.open_runtime(store=store) as runtime:
        assert await loaded(runtime, thread) == before
        with pytest.raises(rt.UnknownTurn):
            await runtime.wait_turn(thread, "bare")
    assert store.appends == written


async def test_two_restarts_without_activity_store_nothing_and_show_the_same(autojump_clock):
    store = FaultyStore(stores.MemoryThreadStore())
    async with rt.open_runtime(store=store) as runtime:
        thread = (await runtime.create_thread()).thread_id
        await runtime.run_turn(thread, "hello")
        await runtime.persist_turn_item(thread, "bare", transcript.AssistantMessage("aside"))
        snapshot = await loaded(runtime, thread)
        first = await reads(runtime, thread, snapshot)
    written = store.appends
    for _ in range(2):
        async with rt.open_runtime(store=store) as runtime:
            assert await reads(runtime, thread, snapshot) == first
            assert await loaded(runtime, thread) == snapshot
    assert store.appends == written


async def test_open_text_that_checkpoints_hold_survives_a_kill_as_an_interrupted_message(autojump_clock):
    store = stores.MemoryThreadStore()
    engine = TwoRounds()
    async with opened(engine, store) as runtime:
        thread = (await runtime.create_thread()).thread_id
        turn = await runtime.start_turn(thread, "go")
        await engine.stalled.wait()
        await trio.sleep(1)
        image = await image_of(store)
        live = (await runtime.thread_goal_get(thread), engine.billed)
    async with opened(TwoRounds(), image) as runtime:
        snapshot = await loaded(runtime, thread)
        async with runtime.thread_view(thread) as view:
            shown = view.items[-1]
    assert live == (None, normal_usage(True))
    check_log(snapshot)
    assert transcript_of(snapshot)[-1] == transcript.AssistantMessage("evidence " * 2_000, interrupted=True)
    assert shown == items.AgentMessage(f"{turn}-message", "evidence " * 2_000, None, items.ItemStatus.INTERRUPTED)
    assert total(snapshot.events) == normal_usage(True), "what was reported an interval ago is durable"


async def test_usage_reported_before_the_last_interval_survives_a_kill(autojump_clock):
    class Reporting(CompactionEngine):
        def stream_turn(self, context: Any, request: Any) -> Any:
            reports = [inference.Usage(rt.TokenUsage(n - 5, 5, n)) for n in (25, 40)]
            return self.play(reports, stalls=True)

    store = stores.MemoryThreadStore()
    engine = Reporting(interrupt=False)
    async with opened(engine, store) as runtime:
        thread = (await runtime.create_thread()).thread_id
        await runtime.thread_goal_set(thread, goals.GoalPatch(objective="count"))
        await runtime.start_turn(thread, "go")
        await engine.stalled.wait()
        await trio.sleep(0.3)
        image = await image_of(store)
    for _ in range(2):
        async with opened(TwoRounds(), image) as runtime:
            snapshot = await loaded(runtime, thread)
            ends = [e.event for e in snapshot.events if isinstance(e.event, TERMINAL_EVENTS)]
            assert ends == [events.TurnInterrupted("runtime_restart", rt.TokenUsage(35, 5, 40))]
            goal = await runtime.thread_goal_get(thread)
            assert goal is not None
            assert (goal.tokens_used, goal.status) == (40, GoalStatus.PAUSED)


async def test_a_compaction_and_a_steer_left_open_are_ended_once(autojump_clock):
    """Killed while it compacts with an undelivered steer: both are closed, nothing of the candidate is in the log."""
    inner = stores.MemoryThreadStore()
    engine = CompactionEngine(interrupt=True)
    async with opened(engine, inner) as runtime:
        thread = (await runtime.create_thread()).thread_id
        turn = await runtime.start_turn(thread, "Inspect the evidence")
        await engine.stalled.wait()
        await trio.sleep(1)
        image = await image_of(inner)
        await runtime.steer_turn(thread, turn, "later")
        steered = [e for e in (await loaded(runtime, thread)).events if isinstance(e.event, events.SteerAccepted)]
        await image.append(thread, steered)
    async with opened(TwoRounds(), image) as runtime:
        snapshot = await loaded(runtime, thread)
        outcome = await runtime.wait_turn(thread, turn)
    assert not open_turns(snapshot.events)
    assert [steer.message.text for steer in outcome.undelivered_steers] == ["later"]
    assert outcome.usage == normal_usage(True) + compaction_usage()
    cancelled = [e.event.reason for e in snapshot.events if isinstance(e.event, rt.events.ContextCompactionCancelled)]
    assert cancelled == ["runtime_restart"]
    assert not any(compaction.is_boundary(item) for item in transcript_of(snapshot))


# -- loads that fail ---------------------------------------------------------------------------------------------------


class Unreadable(FaultyStore):
    """Can't be read until a moment on trio's clock."""

    until = 0.0

    async def load_state(self, thread_id: str) -> Any:
        if trio.current_time() < self.until:
            await trio.sleep(0.5)
            raise rt.StorageError("the disk sleeps")
        return await super().load_state(thread_id)


async def test_a_store_that_fails_while_a_thread_hydrates_is_told_and_not_remembered(autojump_clock):
    store = Unreadable(stores.MemoryThreadStore())
    async with rt.open_runtime(store=store) as runtime:
        thread = (await runtime.create_thread()).thread_id
        store.until = trio.current_time() + 5
        while trio.current_time() < store.until:
            with pytest.raises(rt.StorageError, match="sleeps"):
                await runtime.start_turn(thread, "hello")
        outcome = await runtime.run_turn(thread, "hello")
        assert outcome.status == "completed"


async def test_all_who_wait_for_a_failed_load_are_told(autojump_clock):
    store = Unreadable(stores.MemoryThreadStore())
    failed: list[str] = []
    async with rt.open_runtime(store=store) as runtime:
        thread = (await runtime.create_thread()).thread_id
        store.until = trio.current_time() + 5

        async def ask(turn: str) -> None:
            try:
                await runtime.latest_transcript_item_index(thread, turn)
            except rt.StorageError:
                failed.append(turn)

        async with trio.open_nursery() as nursery:
            for turn in ("a", "b", "c"):
                nursery.start_soon(ask, turn)
    assert sorted(failed) == ["a", "b", "c"]


async def test_a_turn_that_hydration_can_not_close_is_closed_by_the_next_request(autojump_clock):
    image = await image_before("calls", lambda records: any(holds(record, transcript.ToolResult) for record in records))
    thread = next(iter(image._active))
    store = FaultyStore(image, fail={number: rt.StorageError("full") for number in range(1, 6)})
    async with rt.open_runtime(engines=[CallingEngine()], store=store) as runtime:
        for _ in range(5):
            with pytest.raises(rt.StorageError, match="full"):
                await runtime.thread_goal_get(thread)
        assert await runtime.thread_goal_get(thread) is None
        check_log(await loaded(runtime, thread))
    assert store.appends == 6


# -- an incarnation that crashes ---------------------------------------------------------------------------------------


async def test_a_crash_of_the_incarnation_in_mid_text_closes_the_turn_at_once(autojump_clock):
    store = FaultyStore(stores.MemoryThreadStore())
    engine = TwoRounds()
    async with opened(engine, store) as runtime, runtime.subscribe_events() as subscription:
        thread = (await runtime.create_thread()).thread_id
        turn = await runtime.start_turn(thread, "go")
        await engine.stalled.wait()
        crashed_at = trio.current_time()
        store.fail = {store.appends + 1: rt.AppendOutcomeUnknown("no answer"), store.appends + 2: RuntimeError("bug")}
        with pytest.raises((rt.AppendOutcomeUnknown, rt.ActorCrashed)):
            await runtime.persist_turn_item(thread, "bare", transcript.UserMessage("x"))
        outcome = await runtime.wait_turn(thread, turn)
        assert trio.current_time() - crashed_at < 1
        assert (outcome.status, outcome.reason, outcome.usage) == ("interrupted", "runtime_restart", normal_usage(True))
        assert (await runtime.run_turn(thread, "and now?")).status == "completed"
        snapshot = await loaded(runtime, thread)
        kinds = [envelope.kind for envelope in buffered(subscription)]
    check_log(snapshot)
    ending = kinds.index("turn.interrupted")
    recovered = kinds.index("thread.recovered")
    assert ending < recovered < kinds.index("turn.completed")


async def test_a_subscriber_sees_a_turn_closed_then_the_recovery_then_later_turns(autojump_clock):
    store = FaultyStore(stores.MemoryThreadStore())
    engine = TwoRounds()
    async with opened(engine, store) as runtime, runtime.subscribe_events(kinds=("turn", "thread")) as subscription:
        thread = (await runtime.create_thread()).thread_id
        turn = await runtime.start_turn(thread, "go")
        await engine.stalled.wait()
        await trio.sleep(1)
        store.fail = {store.appends + 1: rt.AppendOutcomeUnknown("no answer")}
        with pytest.raises(rt.AppendOutcomeUnknown):
            await runtime.persist_turn_item(thread, "bare", transcript.UserMessage("x"))
        await runtime.wait_turn(thread, turn)
        later = await runtime.run_turn(thread, "again")
        told = [envelope for envelope in buffered(subscription) if envelope.kind != "turn.item_appended"]
    assert [envelope.kind for envelope in told] == [
        "thread.created",
        "turn.started",
        "turn.interrupted",
        "thread.recovered",
        "turn.started",
        "turn.completed",
    ]
    assert told[2].event == events.TurnInterrupted("runtime_restart", normal_usage(True))
    assert told[3].event == ThreadRecovered((turn,))
    assert told[5].turn_id == later.turn_id


async def test_requests_that_are_queued_survive_a_crash(autojump_clock):
    reached, release = trio.Event(), trio.Event()

    async def before(number: int, thread_id: str, records: Sequence[Any]) -> None:
        if number == 1:
            reached.set()
            await release.wait()
            raise RuntimeError("a bug")
        await trio.lowlevel.checkpoint()

    answers: list[Any] = []
    async with rt.open_runtime(store=FaultyStore(stores.MemoryThreadStore(), before=before)) as runtime:
        thread = (await runtime.create_thread()).thread_id

        async def in_hand() -> None:
            with pytest.raises(rt.ActorCrashed):
                await runtime.persist_turn_item(thread, "bare", transcript.UserMessage("first"))
            answers.append("crashed")

        async def queued() -> None:
            answers.append(await runtime.persist_turn_item(thread, "bare", transcript.UserMessage("second")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_hand)
            await reached.wait()
            nursery.start_soon(queued)
            await wait_all_tasks_blocked()
            release.set()
    assert answers == ["crashed", 0]
