"""What turns bill, whatever happens to them: scenarios with terminal event, metadata and goal, then laws."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import attrs
import hypothesis
import pytest
import trio
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, goals, inference, providers, stores, transcript
from roder_trio.logic.usage import Ledger, merge
from roder_trio.providers.scripted import NEVER_ENDS
from roder_trio.schema.usage import Purpose
from roder_trio.testing import FaultyStore
from tests.ledger_support import (
    Noted,
    as_if_killed,
    boundary,
    cold,
    compact_calls,
    goal_of,
    meta,
    patch,
    stored_boundary,
    total,
    used_and_status,
    with_goal,
)
from tests.turn_support import DONE, Scene, failure, folded_usage, say, settings, used

ZERO = rt.TokenUsage(0, 0, 0)
AGAIN = inference.ProviderMetadata({"end_turn": False})
BUDGET_42 = goals.GoalPatch(objective="prove it", token_budget=42)
BUDGET_50 = goals.GoalPatch(objective="prove it", token_budget=50)
SAMPLED = rt.TokenUsage(20, 4, 24, 2, 1, service_tier="priority")
COMPACTED = rt.TokenUsage(10, 2, 12, 3, 2, service_tier="default")
LAST = rt.TokenUsage(5, 1, 6, 1, service_tier="priority")
SEED = {
    "config": settings(auto_compact_token_limit=1_000),
    "requires_native_compaction": True,
    "goal": BUDGET_42,
}
EVIDENCE = [inference.Usage(SAMPLED), say("evidence " * 2_000), AGAIN, DONE]
COMPACT_ALWAYS = settings(auto_compact_token_limit=1, provider_retry_max_attempts=2, provider_retry_initial_backoff=0.0)


async def check(
    scene: Scene, outcome: rt.TurnOutcome, status: str, turn: int | None, thread: int | None, goal: tuple[int, str]
) -> None:
    """One row of the table: the terminal event and its usage, the metadata, the goal; then the same after a restart."""
    expected = None if turn is None else turn
    terminal = scene.ends[-1]
    [stored] = [t for t in (await scene.snapshot()).turns if t.turn_id == outcome.turn_id]
    assert terminal.usage == outcome.usage == stored.usage
    assert (outcome.status, getattr(outcome.usage, "total_tokens", None)) == (status, expected)
    assert stored.status.value == status
    assert getattr(await meta(scene), "total_tokens", None) == thread
    assert await used_and_status(scene) == goal
    again = await cold(scene.store, scene.id)
    assert (again.usage, again.fold) == (await meta(scene), await meta(scene))
    assert (again.goal.tokens_used, again.goal.status.value) == goal


# -- scenarios ---------------------------------------------------------------------------------------------------------


async def test_1_an_interrupted_compaction_is_counted_once(autojump_clock):
    compact = [[used(3, 1), inference.Usage(COMPACTED), NEVER_ENDS]]
    async with with_goal(EVIDENCE, compact=compact, **SEED) as scene:
        turn_id = await scene.start("Inspect the evidence")
        await wait_all_tasks_blocked()
        assert await used_and_status(scene) == (36, "active")
        await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert outcome.usage == rt.TokenUsage(30, 6, 36, 5, 3)
        await check(scene, outcome, "interrupted", 36, 36, (36, "paused"))
        assert (len(scene.engine.requests), compact_calls(scene)) == (1, 1)


async def completed_seed(scene: Scene) -> rt.TurnOutcome:
    outcome = await scene.run("Inspect the evidence")
    assert outcome.usage == rt.TokenUsage(35, 7, 42, 6, 3)
    return outcome


SEED_STEPS = (EVIDENCE, [inference.Usage(LAST), say("done"), DONE])
SEED_COMPACT = [[used(3, 1), inference.Usage(COMPACTED), boundary(), DONE]]


async def test_2_sampling_and_compaction_share_one_total(autojump_clock):
    async with with_goal(*SEED_STEPS, compact=SEED_COMPACT, **SEED) as scene:
        outcome = await completed_seed(scene)
        await check(scene, outcome, "completed", 42, 42, (42, "budget_limited"))
        await wait_all_tasks_blocked()
        assert len(scene.of(events.TurnStarted)) == 1
        assert (len(scene.engine.requests), compact_calls(scene)) == (2, 1)


@pytest.mark.parametrize(
    ("ending", "calls", "billed"),
    [
        ([failure()], 2, 80),
        ([inference.Failed("no")], 1, 40),
        ([boundary("b"), DONE], 1, 40),
        ([inference.ToolCallCompleted("x", "write", "{}")], 1, 40),
    ],
    ids=["disconnect", "failed", "conflict", "tool call"],
)
async def test_3_and_4_what_a_failed_direct_compaction_used_is_billed(autojump_clock, ending, calls, billed):
    script = [[boundary(), used(30, 10), *ending]] * 2
    async with with_goal(compact=script, requires_native_compaction=True, config=COMPACT_ALWAYS) as scene:
        message = transcript.UserMessage("preserve this")
        await scene.runtime.persist_turn_item(scene.id, "bare", message)
        with pytest.raises(rt.ProviderFailure):
            await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", [message])
        assert compact_calls(scene) == calls
        assert (await meta(scene)).total_tokens == billed
        assert (await goal_of(scene)).tokens_used == 0
        assert (await cold(scene.store, scene.id)).usage.total_tokens == billed


async def test_5_what_a_preempted_direct_compaction_used_is_billed(autojump_clock):
    signal = rt.SteeringSignal()
    script = [[boundary(), used(30, 10), lambda request: signal.notify(), NEVER_ENDS]]
    async with with_goal(compact=script) as scene:
        message = transcript.UserMessage("preserve this")
        await scene.runtime.persist_turn_item(scene.id, "bare", message)
        with pytest.raises(rt.CompactionPreempted), signal.preemptible():
            await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", [message])
        assert (await meta(scene)).total_tokens == 40
        assert (await cold(scene.store, scene.id)).usage.total_tokens == 40


async def test_6_a_retried_compaction_adds_to_its_turn(autojump_clock):
    compact = [[boundary(), used(30, 10), failure()], [boundary(), used(30, 10), DONE]]
    async with with_goal([used(10), say("x"), DONE], compact=compact, config=COMPACT_ALWAYS) as scene:
        await check(scene, await scene.run(), "completed", 90, 90, (90, "active"))
        assert stored_boundary() in await scene.history()


async def test_7_the_goal_reads_each_running_total_in_turn(autojump_clock):
    holds = [trio.Event() for _ in range(3)]
    script = [part for n, hold in enumerate(holds, 1) for part in (used(10 * n), hold)]
    async with with_goal([*script, DONE]) as scene:
        turn_id = await scene.start()
        seen = []
        for hold in holds:
            await wait_all_tasks_blocked()
            seen.append((await used_and_status(scene))[0])
            hold.set()
        assert seen == [10, 20, 30]
        await check(scene, await scene.wait(turn_id), "completed", 30, 30, (30, "active"))


TABLE: dict[str, tuple[list[Any], str, int | None, tuple[int, str]]] = {
    "8 two rounds": ([[used(30), say("x"), AGAIN, DONE], [used(30), DONE]], "completed", 60, (60, "active")),
    "11 round, then authentication": (
        [[used(30), say("x"), AGAIN, DONE], failure("AUTHENTICATION")],
        "failed",
        30,
        (30, "blocked"),
    ),
    "12 disconnect and retry": ([[used(30), failure()], [used(30), DONE]], "completed", 60, (60, "active")),
    "15 no usage": ([[say("x"), DONE]], "completed", None, (0, "active")),
    "19 a zero replaces nothing": ([[used(12), inference.Usage(ZERO), DONE]], "completed", 12, (12, "active")),
    "20 less replaces more": ([[used(12), used(9), DONE]], "completed", 9, (9, "active")),
    "only zeros": ([[inference.Usage(ZERO), DONE]], "completed", None, (0, "active")),
    "marker inside": (
        [[used(40), inference.ProviderMetadata({"kind": "reliability_retry_attempt"}), used(70), DONE]],
        "completed",
        70,
        (70, "active"),
    ),
    "usage limit": ([[used(30), failure("USAGE_LIMIT")]], "failed", 30, (30, "usage_limited")),
    "quota": ([[used(30), failure("QUOTA_EXCEEDED")]], "failed", 30, (30, "usage_limited")),
    "failed event": ([[used(30), inference.Failed("no")]], "failed", 30, (30, "blocked")),
    "engine bug": ([[used(30), ValueError("a bug")]], "failed", 30, (30, "blocked")),
    "report of a wrong type": ([[used(30), inference.Usage("many"), DONE]], "failed", 30, (30, "blocked")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("steps", "status", "turn", "goal"), TABLE.values(), ids=TABLE)
async def test_a_scripted_turn_bills(autojump_clock, steps, status, turn, goal):
    async with with_goal(*steps, config=settings(provider_retry_initial_backoff=0.0)) as scene:
        await check(scene, await scene.run(), status, turn, turn, goal)


async def test_13_a_steered_step_and_the_next_one_add(autojump_clock):
    async with with_goal([used(24), say("x"), NEVER_ENDS], [used(30), DONE]) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.steer(turn_id)
        await check(scene, await scene.wait(turn_id), "completed", 54, 54, (54, "active"))


async def test_16_an_interrupt_before_any_report_bills_nothing(autojump_clock):
    async with with_goal([NEVER_ENDS]) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        await check(scene, await scene.wait(turn_id), "interrupted", None, None, (0, "paused"))


async def test_17_a_manual_compaction_bills_the_thread_alone(autojump_clock):
    async with with_goal(compact=[[used(100, 20), boundary(), DONE]]) as scene:
        await scene.runtime.persist_turn_item(scene.id, "bare", transcript.UserMessage("long ago"))
        result = await scene.runtime.compact_thread(scene.id)
        assert (result.compacted, result.usage) == (True, rt.TokenUsage(100, 20, 120))
        assert await meta(scene) == rt.TokenUsage(100, 20, 120)
        assert (await used_and_status(scene), scene.ends) == ((0, "active"), [])
        [record] = scene.of(events.UsageRecorded)
        assert (record.purpose, record.turn_id, record.goal_id) == (
            Purpose.NATIVE_COMPACTION,
            f"compact-{scene.of(events.ContextCompactionStarted)[0].compaction_id}",
            None,
        )
        assert (await cold(scene.store, scene.id)).usage.total_tokens == 120


async def test_18_a_direct_compaction_bills_under_its_bare_turn_id(autojump_clock):
    async with with_goal(compact=[[used(30, 10), boundary(), DONE]]) as scene:
        message = transcript.UserMessage("long ago")
        await scene.runtime.persist_turn_item(scene.id, "bare", message)
        await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", [message])
        assert (await meta(scene)).total_tokens == 40
        assert (await used_and_status(scene), scene.ends) == ((0, "active"), [])
        again = await cold(scene.store, scene.id)
        assert (again.usage.total_tokens, again.goal.tokens_used) == (40, 0)
        assert folded_usage(again.snapshot, "bare").total_tokens == 40


async def test_a_direct_compaction_under_an_ended_turn_raises_the_threads_total_only(autojump_clock):
    async with with_goal([used(10), say("x"), DONE], compact=[[used(30, 10), boundary(), DONE]]) as scene:
        outcome = await scene.run()
        await scene.runtime.compact_with_provider(scene.id, outcome.turn_id, "scripted", "m", await scene.history())
        assert (await meta(scene)).total_tokens == 50
        assert await scene.wait(outcome.turn_id) == outcome
        again = await cold(scene.store, scene.id)
        [turn] = [t for t in again.snapshot.turns if t.turn_id == outcome.turn_id]
        assert (turn.usage, again.usage.total_tokens, again.goal.tokens_used) == (total(10), 50, 10)


async def test_22_what_was_durable_when_the_process_was_killed_is_what_the_restart_reads(autojump_clock):
    async with with_goal([used(25), 0.1, used(40), NEVER_ENDS]) as scene:
        turn_id = await scene.start()
        await trio.sleep(0.2)
        too_soon = await as_if_killed(scene.store, scene.id)
        await trio.sleep(0.2)
        killed = await as_if_killed(scene.store, scene.id)
    for store, expected in ((too_soon, 25), (killed, 40)):
        for _ in range(2):
            again = await cold(store, scene.id)
            ends = [e.event for e in again.snapshot.events if isinstance(e.event, events.TurnInterrupted)]
            assert ends == [events.TurnInterrupted("runtime_restart", total(expected))]
            assert (again.usage, again.fold) == (total(expected), total(expected))
            assert (again.goal.tokens_used, again.goal.status.value) == (expected, "paused")
            [turn] = [t for t in again.snapshot.turns if t.turn_id == turn_id]
            assert turn.usage == total(expected)


async def test_23_and_24_rounds_after_the_budget_are_charged_and_later_turns_are_not(autojump_clock):
    seen = []

    async def look(scene: Scene) -> None:
        seen.append(await used_and_status(scene))

    holds = [trio.Event(), trio.Event()]
    steps = [
        [used(30), say("a"), AGAIN, DONE],
        [used(30), holds[0], say("b"), AGAIN, DONE],
        [holds[1], used(5), say("c"), DONE],
        [used(10), DONE],
    ]
    async with with_goal(*steps, goal=BUDGET_50) as scene:
        turn_id = await scene.start()
        for hold in holds:
            await wait_all_tasks_blocked()
            await look(scene)
            hold.set()
        await check(scene, await scene.wait(turn_id), "completed", 65, 65, (65, "budget_limited"))
        assert seen == [(60, "budget_limited")] * 2
        await check(scene, await scene.run(), "completed", 10, 75, (65, "budget_limited"))
        limited = [event for event in scene.of(events.GoalUpdated) if event.goal.status.value == "budget_limited"]
        assert [event.cause for event in limited] == [goals.GoalCause.BUDGET]


async def test_25_a_pause_lets_the_request_in_flight_be_charged_whole(autojump_clock):
    hold = trio.Event()
    async with with_goal([used(10), hold, used(30), say("x"), AGAIN, DONE], [used(20), DONE]) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await patch(scene, status="paused")
        hold.set()
        await check(scene, await scene.wait(turn_id), "completed", 50, 50, (30, "paused"))


class ChunkEngine(rt.InferenceEngine):
    """One chunk holds a text delta and a report; the reader is cut on the delta."""

    id = "chunk"
    default_model = "m"

    @asynccontextmanager
    async def stream_turn(self, context: Any, request: Any) -> AsyncIterator[Any]:
        await trio.lowlevel.checkpoint()
        yield self

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        await trio.lowlevel.checkpoint()
        self.on_delta()
        return say("half")

    on_delta: Any = staticmethod(lambda: None)

    def settle(self) -> rt.TokenUsage:
        return total(18)


async def test_26_usage_in_bytes_that_were_received_is_billed_after_a_cut(autojump_clock):
    engine = ChunkEngine()
    async with with_goal(engine=engine) as scene:
        engine.on_delta = lambda: scene.resident.job.cancel("user")
        await check(scene, await scene.run(), "interrupted", 18, 18, (18, "paused"))


async def test_a_stream_that_can_not_tell_its_usage_after_a_cut_does_no_harm(autojump_clock, caplog):
    class Broken(ChunkEngine):
        def settle(self) -> rt.TokenUsage:
            raise ValueError("a bug")

    engine = Broken()
    async with with_goal(engine=engine) as scene:
        engine.on_delta = lambda: scene.resident.job.cancel("user")
        await check(scene, await scene.run(), "interrupted", None, None, (0, "paused"))
        assert "could not tell its usage" in caplog.text


@pytest.mark.parametrize("order", [1, -1])
async def test_27_records_that_were_appended_again_change_no_total(autojump_clock, order):
    async with with_goal(*SEED_STEPS, compact=SEED_COMPACT, **SEED) as scene:
        await completed_seed(scene)
        snapshot = await scene.snapshot()
    records = [e for e in snapshot.events if isinstance(e.event, events.UsageRecorded)]
    assert len(records) >= 3
    store = stores.MemoryThreadStore()
    now = datetime(2030, 1, 1, tzinfo=UTC)
    await store.create_thread(rt.ThreadMetadata(thread_id=scene.id, created_at=now, updated_at=now))
    for record in [e for e in snapshot.events if e not in records]:
        await store.append(scene.id, [record])
    for record in [*records[::order], *records[::-order]]:
        await store.append(scene.id, [record])
    again = await cold(store, scene.id)
    assert again.usage == again.fold == rt.TokenUsage(35, 7, 42, 6, 3)
    assert (again.goal.tokens_used, again.goal.status.value) == (42, "budget_limited")


async def test_28_many_reports_in_a_moment_cost_at_most_three_records(autojump_clock):
    steps = [part for n in range(1, 201) for part in (used(n), 0.0005)]
    async with with_goal([*steps, say("x"), DONE]) as scene:
        await check(scene, await scene.run(), "completed", 200, 200, (200, "active"))
        records = scene.of(events.UsageRecorded)
        assert len(records) <= 3
        assert records[-1].report == 200


async def test_who_sees_the_terminal_event_reads_final_totals(autojump_clock):
    async with with_goal([used(30), DONE], goal=BUDGET_42) as scene:
        turn_id = await scene.start()
        await scene.wait_for(lambda s: bool(s.ends))
        assert (await meta(scene), await goal_of(scene)) == (total(30), await goal_of(scene))
        assert (await scene.runtime.load_metadata(scene.id)).usage == scene.ends[0].usage
        assert (await scene.wait(turn_id)).usage == total(30)


async def test_a_report_is_on_the_board_before_the_next_event_is_read_and_nothing_is_read_from_the_store(
    autojump_clock,
):
    store = FaultyStore(stores.MemoryThreadStore())
    hold = trio.Event()
    async with with_goal([used(7), hold, DONE], store=store) as scene:
        loads = store.loads
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        assert (await goal_of(scene)).tokens_used == 7
        hold.set()
        await scene.wait(turn_id)
        assert store.loads == loads


# -- laws --------------------------------------------------------------------------------------------------------------

counts = st.integers(0, 60) | st.sampled_from([0, 2**62, 2**63 - 1])
usages = st.builds(
    rt.TokenUsage, counts, counts, counts, counts, counts, counts, st.sampled_from([None, "default", "priority"])
)
ENDINGS = ("done", "again", "drop", "steer", "interrupt", "fail", "limit", "broken")


@attrs.frozen
class Stream:
    """What one stream reports, and how it ends."""

    reports: tuple[rt.TokenUsage, ...]
    ending: str


streams = st.builds(Stream, st.lists(usages, max_size=4).map(tuple), st.sampled_from(ENDINGS))


class ProbingEngine(providers.ScriptedEngine):
    """Asserts, each time it is asked for an event, that the board holds every report that it gave before."""

    def __init__(self, steps: Any, **more: Any) -> None:
        super().__init__(steps, **more)
        self.given: dict[str, rt.TokenUsage] = {}
        self.turns: dict[str, str] = {}
        self.probes = 0
        self.broken = Noted()
        self.scene: Scene | None = None

    def stream_turn(self, context: Any, request: Any) -> AbstractAsyncContextManager[Any]:
        return self._probed(context, super().stream_turn(context, request))

    def compact_turn(self, context: Any, request: Any) -> Any:
        block = super().compact_turn(context, request)
        return None if block is None else self._probed(context, block)

    @asynccontextmanager
    async def _probed(self, context: Any, block: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        self.given[context.attempt_id], self.turns[context.attempt_id] = ZERO, context.turn_id
        async with block as stream:
            yield _Probed(self, context.attempt_id, stream)

    def probe(self, running: str) -> None:
        assert self.scene is not None
        self.probes += 1
        totals = self.scene.runtime._core.accounting.totals(self.scene.id)
        assert totals.thread == sum(self.given.values(), ZERO)
        ledger = Ledger()
        for record in self.scene.store._active[self.scene.id].records:
            if isinstance(record.event, events.UsageRecorded):
                ledger.apply(record.event)
        stored = {record.attempt_id: record.usage for record in ledger}
        settled = {id: usage for id, usage in self.given.items() if id != running and not usage.is_empty}
        assert {id: stored.get(id) for id in settled} == settled


class _Probed:
    def __init__(self, engine: ProbingEngine, attempt_id: str, stream: Any) -> None:
        self._engine = engine
        self._attempt_id = attempt_id
        self._stream = stream
        self.settle = stream.settle

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        with self._engine.broken:
            self._engine.probe(self._attempt_id)
        event = await anext(self._stream)
        if isinstance(event, inference.Usage):
            given = self._engine.given
            given[self._attempt_id] = merge(given[self._attempt_id], event.usage)
        return event


class Orders:
    """What a script wants done to its own turn, by a task beside it."""

    def __init__(self) -> None:
        self.send, self.receive = trio.open_memory_channel[str](100)

    def part(self, name: str) -> Any:
        return lambda request: self.send.send_nowait(name)

    async def carry_out(self, scene: Scene, turn_id: str) -> None:
        async for order in self.receive:
            if order == "steer":
                await scene.steer(turn_id, "and this")
            else:
                await scene.interrupt(turn_id)


def script(stream: Stream, orders: Orders) -> list[Any]:
    parts: list[Any] = [say("a")]
    for usage in stream.reports:
        parts += [inference.Usage(usage), 0.1]
    return (
        parts
        + {
            "done": [DONE],
            "again": [AGAIN, DONE],
            "drop": [failure()],
            "steer": [orders.part("steer"), NEVER_ENDS],
            "interrupt": [orders.part("interrupt"), NEVER_ENDS],
            "fail": [failure("AUTHENTICATION")],
            "limit": [failure("USAGE_LIMIT")],
            "broken": [ValueError("a bug")],
        }[stream.ending]
    )


def compact_script(stream: Stream, orders: Orders) -> list[Any]:
    parts = script(attrs.evolve(stream, ending="drop" if stream.ending == "drop" else "done"), orders)
    return [boundary(), *parts[1:]]


def run_on_mock_clock(main: Any, *args: Any) -> None:
    trio.run(main, *args, clock=MockClock(autojump_threshold=0))


async def obey_the_laws(turns: list[list[Stream]], compact: list[Stream], pause_after: int) -> None:
    orders = Orders()
    steps = [script(stream, orders) for turn in turns for stream in turn] + [[DONE]] * 50
    compactions = [compact_script(stream, orders) for stream in compact] + [[boundary(), DONE]] * 50
    engine = ProbingEngine(steps, compact=compactions)
    config = settings(
        auto_compact_token_limit=1 if compact else 0,
        provider_retry_initial_backoff=0.0,
        provider_retry_max_attempts=2,
        stream_idle_timeout=None,
    )
    async with with_goal(engine=engine, config=config) as scene:
        engine.scene = scene
        goal_id = (await goal_of(scene)).goal_id
        charged = ZERO
        for number in range(len(turns)):
            if number == pause_after:
                await patch(scene, status="paused")
            elif (await goal_of(scene)).status is not goals.GoalStatus.ACTIVE:
                await patch(scene, status="active")
            before = await goal_of(scene)
            outcome = await one_turn(scene, orders)
            usage = outcome.usage or ZERO
            growth = usage.total_tokens if before.status is goals.GoalStatus.ACTIVE else 0
            grown = min(before.tokens_used + growth, 2**63 - 1)
            assert (await goal_of(scene)).tokens_used == grown
            charged += usage if growth else ZERO
        await compare(scene, engine, goal_id)


async def one_turn(scene: Scene, orders: Orders) -> rt.TurnOutcome:
    turn_id = await scene.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(orders.carry_out, scene, turn_id)
        outcome = await scene.wait(turn_id)
        nursery.cancel_scope.cancel()
    engine = scene.engine
    mine = [engine.given[id] for id, owner in engine.turns.items() if owner == turn_id]
    snapshot = await scene.snapshot()
    [stored] = [turn for turn in snapshot.turns if turn.turn_id == turn_id]
    assert scene.ends[-1].usage == outcome.usage == stored.usage == folded_usage(snapshot, turn_id)
    expected = sum(mine, ZERO)
    assert outcome.usage == (None if expected.is_empty else expected)
    return outcome


async def compare(scene: Scene, engine: ProbingEngine, goal_id: str) -> None:
    """The thread's total is the sum of its attempts, of its turns, of its records, live and after a restart."""
    attempts = sum(engine.given.values(), ZERO)
    terminals = sum((end.usage for end in scene.ends if end.usage is not None), ZERO)
    snapshot = await scene.snapshot()
    board = scene.runtime._core.accounting.totals(scene.id)
    again = await cold(scene.store, scene.id)
    fold = again.fold or ZERO
    assert board.thread == attempts == terminals == fold == (again.usage or ZERO) == (await meta(scene) or ZERO)
    newest = {e.event.attempt_id: e.event for e in snapshot.events if isinstance(e.event, events.UsageRecorded)}
    charged = sum(record.usage.total_tokens for record in newest.values() if record.goal_id == goal_id)
    assert (await goal_of(scene)).tokens_used == board.goal(goal_id) == min(charged, 2**63 - 1)
    assert again.goal == await goal_of(scene)
    assert engine.probes > 0
    assert engine.broken.errors == []


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    turns=st.lists(st.lists(streams, min_size=1, max_size=4), min_size=1, max_size=3),
    compact=st.lists(streams, max_size=3),
    pause_after=st.integers(0, 4),
)
def test_every_reported_token_is_billed_exactly_once(turns, compact, pause_after):
    run_on_mock_clock(obey_the_laws, turns, compact, pause_after)
