"""How often a thread is read, who leaves memory and who never does, what follows an archive."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, goals, inference, items, stores, transcript
from tests.event_support import (
    DONE,
    NOW,
    counted,
    kinds,
    message,
    opened,
    raw_records,
    records_of,
    say,
    seed,
    stored_event,
)


def resident(runtime):
    return set(runtime._core.directory._threads)


async def seeded(store, count):
    return [await seed(store, f"t{number:03}") for number in range(count)]


def limit(number):
    return rt.RuntimeConfig(max_resident_threads=number)


async def hang(*arguments):
    await trio.sleep_forever()


async def touch(runtime, thread_id):
    assert await runtime.thread_item_exists(thread_id, "turn", "existing-item")


# -- loads -------------------------------------------------------------------------------------------------------------


async def test_any_mix_of_requests_on_one_thread_is_one_load():
    store = counted()
    await seed(store, "t")
    async with opened([say("a"), DONE], store=store, thread=False) as (runtime, _, _):
        assert store.loads == 0
        assert await runtime.thread_item_exists("t", "turn", "existing-item")
        assert not await runtime.thread_item_exists("t", "turn", "missing-item")
        for _ in range(3):
            assert await runtime.latest_transcript_item_index("t", "turn") == 1
        for seq in (8, 9):
            delta = items.ItemDelta("existing-item", items.AgentMessageText("x"))
            assert (await runtime.record_thread_item_event_kind("t", "turn", NOW, delta)).seq == seq
        assert await runtime.persist_turn_item("t", "turn", transcript.UserMessage("more")) == 2
        await runtime.thread_goal_set("t", goals.GoalPatch(objective="win"))
        assert (await runtime.thread_goal_get("t")).objective == "win"
        assert await runtime.thread_goal_clear("t")
        await runtime.run_turn("t", "hello")
        assert store.loads == 1


async def test_requests_at_once_share_one_load():
    store = counted()
    await seed(store, "t")
    async with opened(store=store, thread=False) as (runtime, _, _):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(touch, runtime, "t")
        assert store.loads == 1


async def test_hydration_writes_nothing_for_a_turn_that_no_event_started():
    store = counted()
    await seed(store, "t")
    appends = store.appends
    async with opened(store=store, thread=False) as (runtime, _, _):
        (turn,) = (await runtime.load_thread("t")).turns
        assert (turn.turn_id, len(turn.items), turn.completed_at) == ("turn", 2, None)
    assert store.appends == appends


async def test_a_new_thread_is_read_at_most_once():
    store = counted()
    async with opened([say("a"), DONE], store=store) as (runtime, _, thread_id):
        await runtime.run_turn(thread_id, "hello")
        await runtime.update_thread(thread_id, title="t")
        assert store.loads == 1


async def test_a_missing_thread_is_looked_for_by_each_request_and_stays_nowhere():
    store = counted()
    async with opened(store=store, thread=False) as (runtime, _, _):
        for number in range(1, 4):
            assert not await runtime.thread_item_exists("missing", "turn", "x")
            await wait_all_tasks_blocked()
            assert store.loads == number
            assert len(runtime._core.directory) == 0
        with pytest.raises(rt.ThreadNotFound):
            await runtime.start_turn("missing", "hello")
        assert await runtime.load_thread("missing") is None
        assert await runtime.load_metadata("missing") is None
        assert await runtime.load_thread("") is None
        assert store.loads == 5
        assert list(runtime._core.directory) == []


async def test_loading_a_thread_asks_its_actor_then_reads_once_more():
    store = counted()
    await seed(store, "t")
    async with opened(store=store, thread=False) as (runtime, _, _):
        for number in (2, 3):
            snapshot = await runtime.load_thread("t")
            assert store.loads == number
        assert snapshot == await records_of(store.inner, "t")


async def test_a_thread_that_is_archived_while_it_is_loaded_is_none():
    class Vanishing(stores.MemoryThreadStore):
        loads = 0

        async def load_thread(self, thread_id):
            self.loads += 1
            return None if self.loads == 2 else await super().load_thread(thread_id)

    async with opened(store=Vanishing()) as (runtime, _, thread_id):
        assert await runtime.load_thread(thread_id) is None


async def test_metadata_and_lists_come_from_the_store_alone():
    store = counted()
    await seed(store, "t")
    async with opened(store=store, thread=False) as (runtime, _, _):
        found = await runtime.load_metadata("t")
        assert (found.title, found.message_count) == ("old question", 2)
        labelled = await runtime.create_thread(labels={"team": "a"})
        page = await runtime.list_threads(limit=1)
        assert page.threads == (labelled,)
        page = await runtime.list_threads(1, page.next_cursor)
        assert [thread.thread_id for thread in page.threads] == ["t"]
        assert page.next_cursor is None
        assert (await runtime.list_threads(label=("team", "a"))).threads == (labelled,)
        with pytest.raises(ValueError, match="limit"):
            await runtime.list_threads(limit=0)
        with pytest.raises(rt.InvalidCursor):
            await runtime.list_threads(cursor="garbage")
        assert store.loads == 0
        assert len(runtime._core.directory) == 0


# -- loads that fail ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [rt.StorageError("down"), rt.CorruptRecord("t", 3)])
async def test_a_failed_load_is_told_to_all_who_wait_and_not_remembered(error):
    store, release, told = counted(), trio.Event(), []
    await seed(store, "t")
    real = store.load_state

    async def broken(thread_id):
        store.loads += 1
        await release.wait()
        raise error

    async def ask():
        with pytest.raises(type(error)) as caught:
            await touch(runtime, "t")
        told.append(caught.value)

    async with opened(store=store, thread=False) as (runtime, _, _):
        store.load_state = broken
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            release.set()
        assert told == [error] * 5
        assert store.loads == 1
        store.load_state = real
        for _ in range(5):
            await touch(runtime, "t")
        assert store.loads == 2


async def test_an_archive_that_waits_behind_a_failed_load_is_carried_out():
    store, release, done = counted(), trio.Event(), []
    await seed(store, "t")

    async def broken(thread_id):
        await release.wait()
        raise rt.StorageError("down")

    async def ask():
        with pytest.raises(rt.StorageError, match="down"):
            await touch(runtime, "t")

    async def archive():
        done.append(await runtime.archive_thread("t"))

    async with opened(store=store, thread=False) as (runtime, _, _):
        store.load_state = broken
        async with trio.open_nursery() as nursery:
            for task in (ask, archive, ask):
                nursery.start_soon(task)
                await wait_all_tasks_blocked()
            release.set()
        assert done == [True]
        assert await runtime.load_metadata("t") is None


@pytest.mark.parametrize("error", [rt.StorageError("full"), rt.AppendOutcomeUnknown("who knows")])
async def test_a_closing_append_that_fails_is_a_failed_load(error):
    """Were restarts counted, the thread would be parked in the end."""
    store = counted()
    await seed(store, "t", [stored_event("t", 1, events.TurnStarted("scripted", "scripted"))])
    async with opened(store=store, thread=False) as (runtime, _, _):
        for number in range(1, 6):
            store.fail = {store.appends + 1: error}
            with pytest.raises(rt.StorageError):
                await runtime.wait_turn("t", "turn")
            assert store.loads == number
        assert (await runtime.wait_turn("t", "turn")).reason == "runtime_restart"
    assert kinds(raw_records(store, "t")) == ["turn.started", "turn.interrupted"]


# -- eviction ----------------------------------------------------------------------------------------------------------


async def test_257_threads_are_257_loads_and_only_the_first_is_read_again():
    store = counted()
    ids = await seeded(store, 257)
    async with opened(store=store, thread=False) as (runtime, _, _):
        for thread_id in ids[:256]:
            await touch(runtime, thread_id)
        assert len(resident(runtime)) == 256
        await touch(runtime, ids[256])
        assert len(resident(runtime)) == 256
        assert store.loads == 257
        await touch(runtime, ids[256])
        assert store.loads == 257
        await touch(runtime, ids[0])
        assert store.loads == 258


async def test_a_read_renews_the_use_of_a_thread():
    store = counted()
    ids = await seeded(store, 4)
    async with opened(store=store, thread=False, config=limit(3)) as (runtime, _, _):
        for thread_id in (*ids[:3], ids[0], ids[3]):
            await touch(runtime, thread_id)
        assert resident(runtime) == {ids[0], ids[2], ids[3]}


async def running_turn(runtime, thread_id, nursery):
    await runtime.start_turn(thread_id, "hello")
    await wait_all_tasks_blocked()


async def unanswered_request(runtime, thread_id, nursery):
    """A host's record whose append hangs."""
    store = runtime._core.services.store
    store.before = hang
    kind = items.ItemStarted(message("m", ""))
    nursery.start_soon(runtime.record_thread_item_event_kind, thread_id, "turn", NOW, kind)
    await wait_all_tasks_blocked()
    store.before = None


async def direct_compaction(runtime, thread_id, nursery):
    snapshot = await runtime.load_thread(thread_id)
    window = [item for turn in snapshot.turns for item in turn.items]
    nursery.start_soon(runtime.compact_with_provider, thread_id, "direct", "scripted", "scripted", window)
    await wait_all_tasks_blocked()
    assert runtime._core.directory.get(thread_id).pins == 1


async def open_attempt(runtime, thread_id, nursery):
    """Usage that its turn gave up on while its append hangs."""
    store = runtime._core.services.store

    async def hold(number, thread_id, records):
        if records[0].kind == "usage.recorded":
            await trio.sleep_forever()

    store.before = hold
    assert (await runtime.run_turn(thread_id, "hello")).error_kind == "storage"
    store.before = None
    await wait_all_tasks_blocked()
    assert runtime._core.directory.get(thread_id).job is None


async def parked_thread(runtime, thread_id, nursery):
    store = runtime._core.services.store
    for _ in range(4):
        store.fail = {store.appends + 1: rt.AppendOutcomeUnknown("who knows")}
        with pytest.raises(rt.AppendOutcomeUnknown):
            await runtime.persist_turn_item(thread_id, "turn", transcript.UserMessage("x"))
        await wait_all_tasks_blocked()


@pytest.mark.parametrize("keep", [running_turn, unanswered_request, direct_compaction, open_attempt, parked_thread])
async def test_a_thread_that_is_not_idle_stays_though_it_is_the_least_recently_used(keep, autojump_clock):
    store = counted()
    ids = await seeded(store, 4)
    step = [inference.Usage(rt.TokenUsage(3, 1, 4)), DONE if keep is open_attempt else trio.Event()]
    runtime_for_two = opened(step, store=store, thread=False, config=limit(2), compact=[[trio.Event()]])
    async with runtime_for_two as (runtime, _, _), trio.open_nursery() as nursery:
        await keep(runtime, ids[0], nursery)
        for thread_id in ids[1:]:
            await touch(runtime, thread_id)
        assert resident(runtime) == {ids[0], ids[3]}
        nursery.cancel_scope.cancel()


async def test_more_than_the_limit_stay_while_none_is_idle_and_leave_later():
    gate = trio.Event()
    async with opened(*[[gate, DONE]] * 3, config=limit(1)) as (runtime, _, first):
        ids = [first, *[(await runtime.create_thread()).thread_id for _ in range(2)]]
        turns = [await runtime.start_turn(thread_id, "hello") for thread_id in ids]
        assert resident(runtime) == set(ids)
        gate.set()
        for thread_id, turn_id in zip(ids, turns, strict=True):
            await runtime.wait_turn(thread_id, turn_id)
        await wait_all_tasks_blocked()
        last = (await runtime.create_thread()).thread_id
        await runtime.load_thread(last)
        assert resident(runtime) == {last}


async def test_requests_that_reach_a_leaving_thread_wait_and_read_it_once_again(nursery):
    released, leaving, answers = trio.Event(), trio.Event(), []

    class Slow(stores.MemoryThreadStore):
        loads = 0

        async def load_thread(self, thread_id):
            self.loads += thread_id == "t000"
            return await super().load_thread(thread_id)

        async def release_thread(self, thread_id):
            leaving.set()
            await released.wait()

    async def ask():
        answers.append(await runtime.thread_item_exists(one, "turn", "existing-item"))

    store = Slow()
    one, two = await seeded(store, 2)
    async with opened(store=store, thread=False, config=limit(1)) as (runtime, _, _):
        await touch(runtime, one)
        await touch(runtime, two)
        await leaving.wait()
        for _ in range(3):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert (answers, store.loads) == ([], 1)
        released.set()
        await wait_all_tasks_blocked()
        assert (answers, store.loads) == ([True] * 3, 2)


async def test_a_thread_that_is_evicted_keeps_its_usage_and_numbers():
    step = [inference.Usage(rt.TokenUsage(3, 1, 4)), say("a"), DONE]
    async with opened(step, config=limit(1)) as (runtime, _, thread_id):
        turn_id = (await runtime.run_turn(thread_id, "hello")).turn_id
        await wait_all_tasks_blocked()
        await runtime.load_thread((await runtime.create_thread()).thread_id)
        assert runtime._core.directory.get(thread_id) is None
        outcome = await runtime.wait_turn(thread_id, turn_id)
        assert (outcome.text, outcome.usage) == ("a", rt.TokenUsage(3, 1, 4))
        assert await runtime.persist_turn_item(thread_id, turn_id, transcript.UserMessage("x")) == 2


async def test_interrupting_a_turn_of_a_thread_that_is_not_in_memory_reads_nothing():
    store = counted()
    await seed(store, "t")
    async with opened(store=store, thread=False) as (runtime, _, _):
        await runtime.interrupt_turn("t", "turn")
        assert store.loads == 0
