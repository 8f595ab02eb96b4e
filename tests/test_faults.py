"""Stores that fail while usage is written, and accounting that crashes: what is counted, and who is told."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, goals, inference, stores, transcript
from roder_trio.runtime import opening
from roder_trio.schema.event import TERMINAL_EVENTS, UsageRecorded
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.testing import FaultyStore
from tests.flow_engines import CountingEngine
from tests.log_laws import check_log, total, transcript_of
from tests.thread_reads import buffered
from tests.turn_support import STILL

Failing = Callable[[Sequence[Any]], bool]
FIRST = rt.TokenUsage(20, 4, 24)
SECOND = rt.TokenUsage(5, 1, 6)


class Answering(CountingEngine):
    """Answers each turn with the next of its usages."""

    id = "answering"

    def __init__(self, *usages: rt.TokenUsage, text: str = "done") -> None:
        super().__init__()
        self.usages = list(usages)
        self.text = text

    def stream_turn(self, context: Any, request: Any) -> Any:
        usage = self.usages[len(self.readings)]
        said = [inference.Usage(usage), inference.MessageDelta(self.text), inference.Completed("stop")]
        return self.play(said)


class Recording(FaultyStore):
    """Fails the appends of which `broken` says so, and keeps the ids of all usage records that it was given."""

    def __init__(self, broken: Failing, error: Exception) -> None:
        super().__init__(stores.MemoryThreadStore(), before=self._look)
        self.broken = broken
        self.error = error
        self.given: list[tuple[float, str]] = []

    async def _look(self, number: int, thread_id: str, records: Sequence[Any]) -> None:
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        self.given += [(now, record.record_id) for record in records if is_usage(record)]
        if self.broken(records):
            raise self.error


def is_usage(record: Any) -> bool:
    return isinstance(record, rt.EventEnvelope) and isinstance(record.event, UsageRecorded)


def of_usage(records: Sequence[Any]) -> bool:
    return any(is_usage(record) for record in records)


def first(times: int, wanted: Failing) -> Failing:
    """The first few of the appends that are wanted."""
    left = [None] * times

    def is_one(records: Sequence[Any]) -> bool:
        return wanted(records) and bool(left) and left.pop() is None

    return is_one


def opened(engine: rt.InferenceEngine, store: rt.ThreadStore, **settings: Any) -> Any:
    return rt.open_runtime(
        engines=[engine], store=store, config=rt.RuntimeConfig(default_model="any", goals=STILL, **settings)
    )


async def with_goal(runtime: rt.Runtime) -> str:
    thread = (await runtime.create_thread()).thread_id
    await runtime.thread_goal_set(thread, goals.GoalPatch(objective="count"))
    return thread


async def counted(runtime: rt.Runtime, thread: str) -> tuple[int, int]:
    """The thread's total and the goal's."""
    snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    assert snapshot.metadata is not None
    goal = await runtime.thread_goal_get(thread)
    assert goal is not None
    assert runtime._core.accounting.totals(thread).thread == total(snapshot.events)
    usage = snapshot.metadata.usage
    return (0 if usage is None else usage.total_tokens), goal.tokens_used


# -- appends of usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [rt.StorageError("full"), rt.AppendOutcomeUnknown("no answer"), RuntimeError("bug")])
async def test_a_record_that_can_not_be_stored_is_tried_again_under_its_id(autojump_clock, error):
    store = Recording(first(3, of_usage), error)
    async with opened(Answering(FIRST), store) as runtime:
        thread = await with_goal(runtime)
        outcome = await runtime.run_turn(thread, "go")
        assert (outcome.status, outcome.usage) == ("completed", FIRST)
        assert await counted(runtime, thread) == (24, 24)
    assert len({record_id for _, record_id in store.given}) == 1
    times = [at for at, _ in store.given]
    assert [round(later - earlier, 3) for earlier, later in pairwise(times)] == [0.25, 0.25, 0.25]


async def test_a_record_that_was_stored_though_nobody_said_so_counts_once(autojump_clock):
    inner = stores.MemoryThreadStore()
    store = FaultyStore(inner, fail_after={3: rt.AppendOutcomeUnknown("no answer")})
    async with opened(Answering(FIRST), store) as runtime:
        thread = await with_goal(runtime)
        assert (await runtime.run_turn(thread, "go")).usage == FIRST
        assert await counted(runtime, thread) == (24, 24)
        snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    assert store.stored == 5
    assert sum(is_usage(envelope) for envelope in snapshot.events) == 1
    check_log(snapshot)


async def test_usage_that_can_not_be_settled_fails_the_turn_and_is_not_tried_again(autojump_clock):
    store = Recording(of_usage, rt.StorageError("full"))
    engine = Answering(FIRST, SECOND, text="the whole answer")
    async with opened(engine, store) as runtime:
        thread = await with_goal(runtime)
        began = trio.current_time()
        outcome = await runtime.run_turn(thread, "go")
        assert trio.current_time() - began == pytest.approx(5.0, abs=0.5)
        assert (outcome.status, outcome.error_kind, outcome.usage) == ("failed", "storage", None)
        assert await counted(runtime, thread) == (0, 0)

        store.broken = lambda records: False
        await trio.sleep(10)
        assert await counted(runtime, thread) == (0, 0)
        await runtime.thread_goal_set(thread, goals.GoalPatch(status="active"))
        assert (await runtime.run_turn(thread, "again")).usage == SECOND
        assert await counted(runtime, thread) == (6, 6)
        snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    said = [item for item in transcript_of(snapshot) if isinstance(item, transcript.AssistantMessage)]
    assert said == [transcript.AssistantMessage("the whole answer")] * 2, "a completed message isn't marked"
    check_log(snapshot)


async def test_an_append_that_lands_after_its_turn_failed_counts_from_then_on(autojump_clock):
    release = trio.Event()

    async def before(number: int, thread_id: str, records: Sequence[Any]) -> None:
        if of_usage(records) and not release.is_set():
            with trio.CancelScope(shield=True):
                await release.wait()
        await trio.lowlevel.checkpoint()

    store = FaultyStore(stores.MemoryThreadStore(), before=before)
    async with opened(Answering(FIRST, SECOND), store) as runtime:
        thread = await with_goal(runtime)
        outcome = await runtime.run_turn(thread, "go")
        assert (outcome.error_kind, outcome.usage) == ("storage", None)
        assert await counted(runtime, thread) == (0, 0)
        release.set()
        await wait_all_tasks_blocked()
        assert await counted(runtime, thread) == (24, 24)
        assert (await runtime.run_turn(thread, "again")).usage == SECOND
        assert (await counted(runtime, thread))[0] == 30
        snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    check_log(snapshot, settled=False)


async def test_usage_of_other_threads_is_stored_while_one_log_hangs(autojump_clock):
    hung: list[str] = []

    async def before(number: int, thread_id: str, records: Sequence[Any]) -> None:
        await trio.lowlevel.checkpoint()
        if thread_id in hung and of_usage(records):
            await trio.sleep_forever()

    store = FaultyStore(stores.MemoryThreadStore(), before=before)
    async with opened(Answering(FIRST, SECOND), store) as runtime:
        slow, quick = await with_goal(runtime), await with_goal(runtime)
        hung.append(slow)
        turn = await runtime.start_turn(slow, "go")
        await wait_all_tasks_blocked()
        began = trio.current_time()
        assert (await runtime.run_turn(quick, "go")).usage == SECOND
        assert trio.current_time() == began
        assert (await runtime.wait_turn(slow, turn)).error_kind == "storage"
        assert await counted(runtime, quick) == (6, 6)
        hung.clear()


async def test_a_log_that_can_never_be_written_fails_the_turn_without_waiting(autojump_clock):
    engine = Answering(FIRST)
    store = Recording(of_usage, rt.ThreadNotFound("taken over"))
    async with opened(engine, store) as runtime:
        thread = await with_goal(runtime)
        began = trio.current_time()
        outcome = await runtime.run_turn(thread, "go")
        assert outcome.error_kind == "storage"
        assert trio.current_time() - began < 1
        assert await counted(runtime, thread) == (0, 0)


async def test_a_terminal_event_that_can_not_be_stored_is_replaced_by_the_hydrated_close(autojump_clock):
    def ends(records: Sequence[Any]) -> bool:
        return any(isinstance(getattr(record, "event", None), TERMINAL_EVENTS) for record in records)

    store = Recording(first(2, ends), rt.StorageError("full"))
    async with opened(Answering(FIRST), store) as runtime:
        thread = await with_goal(runtime)
        outcome = await runtime.run_turn(thread, "go")
        assert (outcome.status, outcome.reason, outcome.usage) == ("interrupted", "runtime_restart", FIRST)
        assert await counted(runtime, thread) == (24, 24)
        snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    check_log(snapshot)


async def test_a_final_append_that_fails_once_makes_the_turn_fail_with_its_usage(autojump_clock):
    def completes(records: Sequence[Any]) -> bool:
        return any(isinstance(getattr(record, "event", None), events.TurnCompleted) for record in records)

    store = Recording(first(1, completes), rt.StorageError("full"))
    async with opened(Answering(FIRST), store) as runtime:
        thread = await with_goal(runtime)
        outcome = await runtime.run_turn(thread, "go")
        assert (outcome.status, outcome.error_kind, outcome.usage) == ("failed", "storage", FIRST)
        assert outcome.text == "done", "what was said whole is stored whole"
        async with runtime.thread_view(thread) as view:
            shown = [item.id.removeprefix(outcome.turn_id) for item in view.items]
        assert shown == ["-user", "-message", "-error"], "what was shown live is completed under its own id"
        assert await counted(runtime, thread) == (24, 24)


async def test_an_invalid_report_fails_the_attempt_and_keeps_earlier_ones(autojump_clock):
    class Careless(Answering):
        def stream_turn(self, context: Any, request: Any) -> Any:
            return self.play([inference.Usage(FIRST), inference.Usage("plenty"), inference.Completed()])  # type: ignore[arg-type]

    async with opened(Careless(), stores.MemoryThreadStore()) as runtime:
        thread = await with_goal(runtime)
        outcome = await runtime.run_turn(thread, "go")
        assert (outcome.error_kind, outcome.usage) == ("protocol", FIRST)
        assert await counted(runtime, thread) == (24, 24)


async def test_an_archived_thread_holds_all_usage_of_the_turn_it_ended(autojump_clock):
    class Stalling(Answering):
        def stream_turn(self, context: Any, request: Any) -> Any:
            return self.play([inference.Usage(FIRST)], stalls=True)

    engine = Stalling()
    async with opened(engine, stores.MemoryThreadStore()) as runtime:
        thread = await with_goal(runtime)
        turn = await runtime.start_turn(thread, "go")
        await engine.stalled.wait()
        assert await runtime.archive_thread(thread)
        assert await runtime.load_thread(thread) is None
        assert await runtime.unarchive_thread(thread)
        outcome = await runtime.wait_turn(thread, turn)
        assert (outcome.reason, outcome.usage) == ("archive", FIRST)
        assert await counted(runtime, thread) == (24, 24)


async def test_a_broken_sink_has_no_effect_on_counting(autojump_clock):
    class Broken(rt.EventSink):
        id = "broken"

        async def emit(self, envelope: rt.EventEnvelope) -> None:
            await trio.lowlevel.checkpoint()
            raise RuntimeError("no")

    config = rt.RuntimeConfig(default_model="any")
    async with rt.open_runtime(engines=[Answering(FIRST)], sinks=[Broken()], config=config) as runtime:
        thread = await with_goal(runtime)
        assert (await runtime.run_turn(thread, "go")).usage == FIRST
        assert await counted(runtime, thread) == (24, 24)


# -- the actor's own appends -------------------------------------------------------------------------------------------


async def test_a_failed_append_moves_no_number_and_publishes_nothing(autojump_clock):
    store = FaultyStore(stores.MemoryThreadStore(), fail={2: rt.StorageError("full")})
    async with rt.open_runtime(store=store) as runtime, runtime.subscribe_events() as subscription:
        thread = (await runtime.create_thread()).thread_id
        await runtime.persist_turn_item(thread, "t", transcript.UserMessage("a"))
        with pytest.raises(rt.StorageError, match="full"):
            await runtime.persist_turn_item(thread, "t", transcript.UserMessage("lost"))
        assert await runtime.persist_turn_item(thread, "t", transcript.UserMessage("b")) == 1
        snapshot = await runtime.load_thread(thread)
        shown = buffered(subscription)
    assert snapshot is not None
    assert [(e.seq, e.event.index, e.event.item_seq) for e in snapshot.events] == [(1, 0, 2), (2, 1, 4)]  # type: ignore[union-attr]
    check_log(snapshot)
    assert "lost" not in repr(shown)
    assert [e.event_id for e in shown if e.kind == "turn.item_appended"] == [e.event_id for e in snapshot.events]


async def test_nothing_durable_is_seen_before_its_append_returned(autojump_clock):
    reached, release = trio.Event(), trio.Event()

    async def after(number: int, thread_id: str, records: Sequence[Any]) -> None:
        reached.set()
        await release.wait()

    async with rt.open_runtime(store=FaultyStore(stores.MemoryThreadStore(), after=after)) as runtime:
        thread = (await runtime.create_thread()).thread_id
        async with runtime.subscribe_events() as subscription, trio.open_nursery() as nursery:
            nursery.start_soon(runtime.persist_turn_item, thread, "t", transcript.UserMessage("a"))
            await reached.wait()
            await wait_all_tasks_blocked()
            assert subscription.buffered == 0
            release.set()
            kinds = [(await anext(subscription)).kind for _ in range(3)]
    assert kinds == ["turn.item_appended", "item.started", "item.completed"]


async def test_open_text_that_can_not_be_stored_is_tried_again_by_time_only(autojump_clock):
    class Talking(Answering):
        def stream_turn(self, context: Any, request: Any) -> Any:
            return self.play([inference.MessageDelta("word " * 2_000), inference.Usage(FIRST)], stalls=True)

    tries = 0

    def text(records: Sequence[Any]) -> bool:
        nonlocal tries
        found = any(isinstance(record, ThreadItemEvent) for record in records)
        tries += found
        return found

    store = Recording(text, rt.StorageError("full"))
    engine = Talking()
    async with opened(engine, store) as runtime:
        thread = await with_goal(runtime)
        turn = await runtime.start_turn(thread, "go")
        await engine.stalled.wait()
        await trio.sleep(5)
        assert 2 <= tries <= 12
        store.broken = lambda records: False
        await trio.sleep(1)
        snapshot = await runtime.load_thread(thread)
        assert snapshot is not None
        assert snapshot.item_events[-1].event.delta.delta == "word " * 2_000  # type: ignore[union-attr]
        await runtime.interrupt_turn(thread, turn)
        await runtime.wait_turn(thread, turn)


# -- crashes of accounting ---------------------------------------------------------------------------------------------


def break_the_clock(monkeypatch: pytest.MonkeyPatch, times: float) -> list[int]:
    """Let the wall clock that accounting reads fail that often."""
    failures: list[int] = []
    read = opening.utc_now

    def utc_now() -> Any:
        if len(failures) < times:
            failures.append(len(failures))
            raise OSError("the clock stopped")
        return read()

    monkeypatch.setattr(opening, "utc_now", utc_now)
    return failures


async def test_accounting_that_crashes_within_its_budget_loses_nothing(autojump_clock, monkeypatch, caplog):
    failures = break_the_clock(monkeypatch, 3)
    async with opened(Answering(FIRST), stores.MemoryThreadStore()) as runtime:
        thread = await with_goal(runtime)
        assert (await runtime.run_turn(thread, "go")).usage == FIRST
        assert await counted(runtime, thread) == (24, 24)
    assert len(failures) == 3
    assert "accounting crashed" in caplog.text


async def test_a_runtime_that_can_not_count_ends_with_the_cause(autojump_clock, monkeypatch):
    failures = break_the_clock(monkeypatch, float("inf"))
    store = stores.MemoryThreadStore()
    began = trio.current_time()
    with pytest.RaisesGroup(
        pytest.RaisesExc(OSError, match="the clock stopped"), allow_unwrapped=True, flatten_subgroups=True
    ):
        async with opened(Answering(FIRST), store) as runtime:
            thread = await with_goal(runtime)
            await runtime.start_turn(thread, "go")
            await trio.sleep_forever()
    assert len(failures) == 4
    assert trio.current_time() - began < 1, "settling doesn't wait for accounting that is gone"
    async with opened(Answering(FIRST), FaultyStore(store)) as runtime:
        snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    check_log(snapshot)
