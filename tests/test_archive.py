"""Threads that are archived, deleted and brought back; nothing else brings one back."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, inference, stores, transcript
from tests.event_support import (
    DONE,
    counted,
    kinds,
    opened,
    raw_records,
    say,
    seed,
    stored_event,
    taken,
)


async def touch(runtime, thread_id):
    assert await runtime.thread_item_exists(thread_id, "turn", "existing-item")


# -- archive, delete, unarchive ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["archive_thread", "delete_thread"])
@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_thread_leaves_without_being_read_and_only_once(leave, in_memory, autojump_clock):
    store = counted()
    await seed(store, "t")
    async with opened(store=store, thread=False) as (runtime, _, _):
        if in_memory:
            await touch(runtime, "t")
        loads = store.loads
        assert await getattr(runtime, leave)("t")
        assert not await getattr(runtime, leave)("t")
        await wait_all_tasks_blocked()
        assert store.loads == loads
        assert len(runtime._core.directory) == 0
        assert not await runtime.thread_item_exists("t", "turn", "existing-item")
        assert store.loads == loads + 1


async def test_an_archived_thread_can_be_deleted_and_one_that_never_was_can_not(autojump_clock):
    async with opened() as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        assert await runtime.archive_thread(thread_id)
        assert await runtime.delete_thread(thread_id)
        assert not await runtime.unarchive_thread(thread_id)
        assert not await runtime.delete_thread("never")
        assert not await runtime.archive_thread("never")
        assert not await runtime.archive_thread("")
        assert kinds(taken(subscription)) == ["thread.archived", "thread.deleted"]


async def test_an_open_turn_of_a_thread_that_is_not_in_memory_is_closed_when_it_comes_back(autojump_clock):
    store = counted()
    await seed(store, "t", [stored_event("t", 1, events.TurnStarted("scripted", "scripted"))])
    async with opened(store=store, thread=False) as (runtime, _, _):
        appends = store.appends
        assert await runtime.archive_thread("t")
        assert await runtime.unarchive_thread("t")
        assert (store.loads, store.appends) == (0, appends)
        assert (await runtime.wait_turn("t", "turn")).reason == "runtime_restart"
        assert (store.loads, store.appends) == (1, appends + 1)


async def test_a_thread_comes_back_from_the_archive_as_it_was(autojump_clock):
    async with opened([say("a"), DONE], [say("b"), DONE]) as (runtime, _, thread_id):
        await runtime.run_turn(thread_id, "hello")
        before = await runtime.load_thread(thread_id)
        assert await runtime.archive_thread(thread_id)
        with pytest.raises(rt.ThreadNotFound):
            await runtime.start_turn(thread_id, "hello")
        assert (await runtime.list_threads()).threads == ()
        assert await runtime.unarchive_thread(thread_id)
        assert await runtime.load_thread(thread_id) == before
        assert (await runtime.run_turn(thread_id, "again")).text == "b"


async def test_a_store_that_can_not_archive_keeps_the_thread(autojump_clock):
    class Stubborn(stores.MemoryThreadStore):
        async def archive_thread(self, thread_id):
            await trio.lowlevel.checkpoint()
            raise rt.StorageError("read-only")

    async with opened(store=Stubborn()) as (runtime, _, thread_id):
        for leave in (runtime.archive_thread, runtime.delete_thread):
            with pytest.raises(rt.StorageError, match="read-only"):
                await leave(thread_id)
        assert await runtime.persist_turn_item(thread_id, "turn", transcript.UserMessage("x")) == 0


async def test_a_store_without_deletion_archives_and_says_so(autojump_clock):
    class Old(stores.MemoryThreadStore):
        delete_thread = rt.ThreadStore.delete_thread
        unarchive_thread = rt.ThreadStore.unarchive_thread

    async with opened(store=Old()) as (runtime, _, thread_id):
        with pytest.raises(rt.StoreUnsupported):
            await runtime.delete_thread(thread_id)
        assert await runtime.load_metadata(thread_id) is None
        with pytest.raises(rt.StoreUnsupported):
            await runtime.unarchive_thread(thread_id)


async def test_nothing_that_comes_after_an_archive_resurrects_the_thread(autojump_clock):
    """A direct compaction is under way in another task: its commit and its usage find no thread."""
    gate, told, store = trio.Event(), [], counted()
    boundary = inference.Compaction(inference.CompactionStatus.COMPLETED, "b", {"type": "compaction", "id": "b"})
    script = [[gate, boundary, inference.Usage(rt.TokenUsage(3, 1, 4)), DONE]]
    await seed(store, "t")

    async def compact():
        with pytest.raises(rt.StorageError) as caught:
            await runtime.compact_with_provider("t", "direct", "scripted", "scripted", window)
        told.append(caught.value)

    async with opened(store=store, compact=script, thread=False) as (runtime, _, _):
        before = raw_records(store, "t")
        window = [item for turn in (await runtime.load_thread("t")).turns for item in turn.items]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact)
            await wait_all_tasks_blocked()
            assert await runtime.archive_thread("t")
            gate.set()
        assert len(told) == 1
        await runtime.unarchive_thread("t")
        log = raw_records(store, "t")
        assert log[: len(before)] == before
        assert "turn.item_appended" not in kinds(log[len(before) :])


async def test_who_waits_for_a_turn_that_an_archive_ends_hears_how_it_ended(autojump_clock):
    outcomes = []

    async def wait():
        outcomes.append(await runtime.wait_turn(thread_id, turn_id))

    async with opened([say("a"), trio.Event()]) as (runtime, _, thread_id):
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.archive_thread, thread_id)
            nursery.start_soon(wait)
        assert outcomes[0].reason == "archive"
