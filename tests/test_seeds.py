"""The flows that bind the whole runtime, end to end, on a store in memory and on one on disk."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest
import trio

import roder_trio as rt
from roder_trio import compaction, events, goals, items, providers, stores, transcript
from roder_trio.schema.thread import Record
from tests.flow_engines import (
    CompactionEngine,
    Ending,
    TransactionEngine,
    compaction_usage,
    normal_usage,
    original_history,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
StoreFactory = Callable[[], rt.ThreadStore]
PATIENCE = 60.0
"""Seconds after which a flow hangs."""


@pytest.fixture(params=["memory", "jsonl"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    """Gives the same storage each time it is called: one store in memory, or a new one on the same folder."""
    if request.param == "memory":
        store = stores.MemoryThreadStore()
        return lambda: store
    return lambda: stores.JsonlThreadStore(tmp_path / "threads")


# -- usage of compactions ----------------------------------------------------------------------------------------------


async def exercise(store: rt.ThreadStore, workspace: Path, *, interrupt: bool) -> None:
    engine = CompactionEngine(interrupt=interrupt)
    config = rt.RuntimeConfig(default_provider="mock", default_model="mock", auto_compact_token_limit=1_000)
    async with rt.open_runtime(engines=[engine], store=store, config=config) as runtime:
        thread = (await runtime.create_thread()).thread_id
        objective = goals.GoalPatch(objective="Exercise compaction accounting", token_budget=42)
        await runtime.thread_goal_set(thread, objective)
        async with runtime.subscribe_events() as subscription:
            turn = await runtime.start_turn(thread, "Inspect the evidence", workspace=str(workspace))
            if interrupt:
                await interrupt_when_charged(runtime, engine, thread, turn)
            with trio.fail_after(PATIENCE):
                terminal = await usage_at_the_end(subscription, turn, interrupt=interrupt)
        await runtime.drain_active_turns(PATIENCE)

        expected = normal_usage(True) + compaction_usage()
        if not interrupt:
            expected += normal_usage(False)
        assert terminal == expected
        snapshot = await runtime.load_thread(thread)
        assert snapshot is not None
        assert snapshot.metadata is not None
        usage = snapshot.metadata.usage
        assert usage is not None
        assert usage.prompt_tokens == expected.prompt_tokens
        assert usage.completion_tokens == expected.completion_tokens
        assert usage.total_tokens == expected.total_tokens
        assert usage.cached_prompt_tokens == expected.cached_prompt_tokens
        assert usage.cache_creation_prompt_tokens == expected.cache_creation_prompt_tokens
        goal = await runtime.thread_goal_get(thread)
        assert goal is not None
        assert goal.tokens_used == expected.total_tokens
        assert engine.compaction_calls == 1
        assert engine.sampling_calls == (1 if interrupt else 2)


async def interrupt_when_charged(runtime: rt.Runtime, engine: CompactionEngine, thread: str, turn: str) -> None:
    with trio.fail_after(PATIENCE):
        await engine.stalled.wait()
    with trio.fail_after(PATIENCE):
        while True:
            goal = await runtime.thread_goal_get(thread)
            assert goal is not None
            if goal.tokens_used >= 36:
                break
            await trio.lowlevel.checkpoint()
    await runtime.interrupt_turn(thread, turn)


async def usage_at_the_end(subscription, turn: str, *, interrupt: bool) -> rt.TokenUsage | None:
    async for envelope in subscription:
        if envelope.turn_id != turn:
            continue
        match envelope.event:
            case events.TurnInterrupted(usage=usage) if interrupt:
                return usage
            case events.TurnCompleted(usage=usage) if not interrupt:
                return usage
            case events.TurnFailed(error=error):
                raise AssertionError(f"turn failed: {error}")
    raise AssertionError("the events ended before the turn did")


async def test_an_interrupted_native_compaction_preserves_observed_usage_once(reopen, tmp_path):
    await exercise(reopen(), tmp_path, interrupt=True)


async def test_normal_and_native_compaction_rounds_share_terminal_accounting(reopen, tmp_path):
    await exercise(reopen(), tmp_path, interrupt=False)


# -- compactions as transactions ---------------------------------------------------------------------------------------


def transactional(engine: TransactionEngine, store: rt.ThreadStore):
    reliability = rt.ReliabilityConfig(provider_retry_max_attempts=2, provider_retry_initial_backoff=0.0)
    return rt.open_runtime(engines=[engine], store=store, config=rt.RuntimeConfig(reliability=reliability))


async def persist_history(runtime: rt.Runtime, thread: str, turn: str) -> None:
    for item in original_history():
        await runtime.persist_turn_item(thread, turn, item)


async def assert_replay_and_billing(runtime: rt.Runtime, thread: str, expected_tokens: int) -> None:
    snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    kept = [item for turn in snapshot.turns for item in turn.items]
    assert compaction.trim_to_last_boundary(kept) == original_history(), "a failed compaction must leave the log intact"
    assert not any(compaction.is_boundary(item) for item in kept)
    assert snapshot.metadata is not None
    assert snapshot.metadata.usage is not None
    assert snapshot.metadata.usage.total_tokens == expected_tokens, "usage is billed though the candidate was dropped"


@pytest.mark.parametrize(
    "ending", [Ending.DISCONNECT, Ending.FAILED, Ending.CONFLICTING_BOUNDARY, Ending.TOOL_CALL], ids=lambda e: e.value
)
async def test_a_failed_compaction_preserves_history_and_usage_after_a_cold_restart(reopen, ending):
    engine = TransactionEngine(ending)
    turn = "compact-failure"
    async with transactional(engine, reopen()) as live:
        thread = (await live.create_thread()).thread_id
        await persist_history(live, thread, turn)
        with pytest.raises(rt.ProviderFailure):
            await live.compact_with_provider(thread, turn, "transactional", "model", original_history())
        billed = engine.attempts * 40
        assert engine.attempts == (2 if ending is Ending.DISCONNECT else 1)
        await assert_replay_and_billing(live, thread, billed)
    async with transactional(engine, reopen()) as restarted:
        await assert_replay_and_billing(restarted, thread, billed)


async def test_steering_discards_the_staged_candidate_but_keeps_observed_usage(reopen):
    engine = TransactionEngine(Ending.PENDING)
    turn = "preempted-compaction"
    signal = rt.SteeringSignal()

    async def steer() -> None:
        await engine.stalled.wait()
        signal.notify()

    async with transactional(engine, reopen()) as live:
        thread = (await live.create_thread()).thread_id
        await persist_history(live, thread, turn)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(steer)
                with pytest.raises(rt.CompactionPreempted), signal.preemptible():
                    await live.compact_with_provider(thread, turn, "transactional", "model", original_history())
        await assert_replay_and_billing(live, thread, 40)
    async with transactional(engine, reopen()) as restarted:
        await assert_replay_and_billing(restarted, thread, 40)


# -- threads in memory -------------------------------------------------------------------------------------------------


class CountingStore(rt.ThreadStore):
    """Keeps snapshots as they are given and appended to, and counts how often one is loaded."""

    id = "counting"

    def __init__(self, snapshots: Sequence[rt.ThreadSnapshot]) -> None:
        self.snapshots = {s.metadata.thread_id: s for s in snapshots if s.metadata is not None}
        self.load_count = 0

    async def create_thread(self, metadata: rt.ThreadMetadata) -> rt.ThreadMetadata:
        await trio.lowlevel.checkpoint()
        self.snapshots[metadata.thread_id] = rt.ThreadSnapshot(metadata=metadata)
        return metadata

    async def list_threads(
        self, *, limit: int = 50, cursor: str | None = None, label: tuple[str, str] | None = None
    ) -> rt.ThreadPage:
        await trio.lowlevel.checkpoint()
        return rt.ThreadPage(threads=[s.metadata for s in self.snapshots.values() if s.metadata is not None])

    async def load_thread(self, thread_id: str) -> rt.ThreadSnapshot | None:
        await trio.lowlevel.checkpoint()
        self.load_count += 1
        return self.snapshots.get(thread_id)

    async def archive_thread(self, thread_id: str) -> bool:
        await trio.lowlevel.checkpoint()
        return self.snapshots.pop(thread_id, None) is not None

    async def append(self, thread_id: str, records: Sequence[Record]) -> None:
        await trio.lowlevel.checkpoint()
        snapshot = self.snapshots.get(thread_id)
        if snapshot is None:
            return
        envelopes = [record for record in records if isinstance(record, rt.EventEnvelope)]
        item_events = [record for record in records if isinstance(record, items.ThreadItemEvent)]
        self.snapshots[thread_id] = attrs.evolve(
            snapshot,
            events=(*snapshot.events, *envelopes),
            item_events=(*snapshot.item_events, *item_events),
        )


def counting_snapshot(thread_id: str) -> rt.ThreadSnapshot:
    turn_id = f"{thread_id}-turn"
    metadata = rt.ThreadMetadata(
        thread_id=thread_id,
        title=f"Thread {thread_id}",
        workspace=str(Path.cwd()),
        provider="mock",
        model="mock",
        created_at=EPOCH,
        updated_at=EPOCH,
        message_count=1,
    )
    turn = rt.TurnRecord(
        thread_id=thread_id,
        turn_id=turn_id,
        created_at=EPOCH,
        items=[transcript.UserMessage("one"), transcript.UserMessage("two")],
    )
    started = items.ItemStarted(items.AgentMessage("existing-item", "", status=items.ItemStatus.IN_PROGRESS))
    item_event = items.ThreadItemEvent(
        seq=7,
        event_id=f"{turn_id}-item-event-7",
        thread_id=thread_id,
        turn_id=turn_id,
        timestamp=EPOCH,
        event=started,
    )
    return rt.ThreadSnapshot(metadata=metadata, turns=[turn], item_events=[item_event])


def counting_runtime(store: CountingStore):
    return rt.open_runtime(engines=[providers.Offline("mock")], store=store)


async def test_a_persisted_snapshot_is_hydrated_once_per_thread():
    store = CountingStore([counting_snapshot("thread-1")])
    thread, turn = "thread-1", "thread-1-turn"
    async with counting_runtime(store) as runtime:
        assert await runtime.thread_item_exists(thread, turn, "existing-item")
        assert not await runtime.thread_item_exists(thread, turn, "missing-item")
        assert await runtime.latest_transcript_item_index(thread, turn) == 1
        assert await runtime.latest_transcript_item_index(thread, turn) == 1

        async def record(text: str) -> items.ThreadItemEvent:
            delta = items.ItemDelta("existing-item", items.AgentMessageText(text))
            return await runtime.record_thread_item_event_kind(thread, turn, EPOCH, delta)

        first, second = await record("a"), await record("b")
        assert (first.seq, second.seq) == (8, 9)
        assert store.load_count == 1


async def test_archived_threads_are_forgotten():
    store = CountingStore([counting_snapshot("thread-1")])
    thread, turn = "thread-1", "thread-1-turn"
    async with counting_runtime(store) as runtime:
        assert await runtime.thread_item_exists(thread, turn, "existing-item")
        assert await runtime.archive_thread(thread)
        assert not await runtime.thread_item_exists(thread, turn, "existing-item")
        assert store.load_count == 2


async def test_the_least_recently_used_threads_are_evicted():
    capacity = 256
    store = CountingStore([counting_snapshot(f"thread-{index}") for index in range(capacity + 1)])
    async with counting_runtime(store) as runtime:
        for index in range(capacity + 1):
            thread = f"thread-{index}"
            assert await runtime.thread_item_exists(thread, f"{thread}-turn", "existing-item")
        first_pass_loads = store.load_count
        assert first_pass_loads == capacity + 1
        assert await runtime.thread_item_exists("thread-0", "thread-0-turn", "existing-item")
        assert store.load_count == first_pass_loads + 1
