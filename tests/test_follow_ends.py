"""How following a thread ends: archived, deleted, or the runtime left, with all that was stored given before."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, stores
from tests.event_support import DONE, opened, say
from tests.test_follow_thread import persist


@pytest.mark.parametrize("remove", ["archive_thread", "delete_thread"])
@pytest.mark.parametrize("backlog", [0, 20, 1300])
async def test_an_archive_or_delete_ends_the_iteration_after_the_last_stored_event(remove, backlog):
    """Also for a reader that has read nothing: what it would have read from the store it gets before."""
    gate = trio.Event()
    async with opened([say("a"), gate, DONE]) as (runtime, _, thread_id):
        await persist(runtime, thread_id, backlog)
        async with runtime.follow_thread(thread_id) as reader:
            await runtime.start_turn(thread_id, "hello")
            await wait_all_tasks_blocked()
            assert await getattr(runtime, remove)(thread_id)
            seen = [envelope async for envelope in reader]
        assert [envelope.seq for envelope in seen] == list(range(1, len(seen) + 1))
        assert len(seen) > backlog
        assert isinstance(seen[-1].event, events.TurnInterrupted)
        assert seen[-1].event.reason == "archive"


async def test_an_exit_ends_the_iteration_after_the_terminal_events_of_the_shutdown(nursery):
    seen = {}

    async def follow(runtime, thread_id, skip):
        async with runtime.follow_thread(thread_id) as reader:
            await skip.wait()
            seen[skip] = [envelope async for envelope in reader]

    fast, slow = trio.Event(), trio.Event()
    fast.set()
    async with opened([say("a"), trio.Event(), DONE]) as (runtime, _, thread_id):
        await persist(runtime, thread_id, 700)
        for pace in (fast, slow):
            nursery.start_soon(follow, runtime, thread_id, pace)
            await wait_all_tasks_blocked()
        await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
    slow.set()
    await wait_all_tasks_blocked()
    assert seen[fast] == seen[slow]
    assert seen[fast][-1].event.reason == "shutdown"
    assert [envelope.seq for envelope in seen[fast]] == list(range(1, len(seen[fast]) + 1))


async def test_what_can_not_be_read_before_the_archive_is_an_error_and_never_a_silent_end():
    class Broken(stores.MemoryThreadStore):
        broken = False

        async def load_events(self, thread_id, after=0, limit=500):
            if self.broken:
                await trio.lowlevel.checkpoint()
                raise rt.StorageError("broken")
            return await super().load_events(thread_id, after, limit)

    store = Broken()
    async with opened(store=store) as (runtime, _, thread_id):
        await persist(runtime, thread_id, 2)
        async with runtime.follow_thread(thread_id) as reader:
            store.broken = True
            assert await runtime.archive_thread(thread_id)
            store.broken = False
            for _ in range(2):
                with pytest.raises(rt.ThreadNotFound):
                    await anext(reader)
            await runtime.unarchive_thread(thread_id)
            assert [envelope.seq async for envelope in reader] == [1, 2]


async def test_a_page_that_arrives_after_the_archive_read_the_rest_is_not_given_twice(nursery):
    reading, release = trio.Event(), trio.Event()

    class Slow(stores.MemoryThreadStore):
        async def load_events(self, thread_id, after=0, limit=500):
            page = await super().load_events(thread_id, after, limit)
            if not reading.is_set():
                reading.set()
                await release.wait()
            return page

    async with opened(store=Slow()) as (runtime, _, thread_id):
        await persist(runtime, thread_id, 4)
        async with runtime.follow_thread(thread_id) as reader:
            seen = []

            async def read():
                seen.extend([envelope.seq async for envelope in reader])

            nursery.start_soon(read)
            await reading.wait()
            await runtime.archive_thread(thread_id)
            release.set()
            await wait_all_tasks_blocked()
            assert seen == [1, 2, 3, 4]
