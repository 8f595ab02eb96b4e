"""Following a thread: every stored event once and in order, whatever happens to the thread, the store or the reader."""

from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import inference, stores, testing, transcript
from tests.event_support import DONE, call, counted, kinds, opened, say
from tests.injection import Injector, is_any

TURN = [[say("a"), *call(), DONE], [inference.Usage(rt.TokenUsage(3, 1, 4)), say("b"), say("c"), DONE]]


async def stored(store, thread_id):
    """What a follower must have given in the end."""
    return [envelope for envelope in (await store.load_thread(thread_id)).events if envelope.seq]


async def rest(reader):
    """What comes until nothing comes any more, or the end."""
    seen = []
    with trio.move_on_after(1):
        async for envelope in reader:
            seen.append(envelope)
    return seen


async def persist(runtime, thread_id, count, turn_id="host"):
    for number in range(count):
        await runtime.persist_turn_item(thread_id, turn_id, transcript.AssistantMessage(f"{number}"))


@asynccontextmanager
async def following(*steps, store=None, after=0, **options):
    """A runtime with one thread, and a follower of it."""
    store = store or stores.MemoryThreadStore()
    async with (
        opened(*steps, store=store, **options) as (runtime, _, thread_id),
        runtime.follow_thread(thread_id, after) as reader,
    ):
        yield runtime, thread_id, reader


async def test_stored_events_come_first_then_those_that_are_committed(autojump_clock):
    store = stores.MemoryThreadStore()
    async with opened(*TURN, store=store) as (runtime, _, thread_id):
        await persist(runtime, thread_id, 2)
        async with runtime.follow_thread(thread_id) as reader:
            await runtime.run_turn(thread_id, "hello")
            seen = await rest(reader)
        assert seen == await stored(store, thread_id)
        assert [envelope.seq for envelope in seen] == list(range(1, len(seen) + 1))
        assert "usage.recorded" not in kinds(seen, without=())
        assert not [kind for kind in kinds(seen) if kind.startswith("item.")]


async def test_a_reader_that_leaves_after_any_event_and_enters_again_misses_and_doubles_none(autojump_clock):
    store = stores.MemoryThreadStore()
    async with opened(*TURN, store=store) as (runtime, _, thread_id):
        await runtime.run_turn(thread_id, "hello")
        wanted = await stored(store, thread_id)
        for count in range(len(wanted) + 1):
            async with runtime.follow_thread(thread_id) as reader:
                seen = [await anext(reader) for _ in range(count)]
            last = seen[-1].seq if seen else 0
            async with runtime.follow_thread(thread_id, after=last) as reader:
                assert seen + await rest(reader) == wanted
        assert count > 6


async def join(runtime, thread_id, joined, seen):
    """Follow from the moment that `joined` is set, leaving and entering again after each event."""
    await joined.wait()
    with trio.move_on_after(1):
        while True:
            async with runtime.follow_thread(thread_id, after=seen[-1].seq if seen else 0) as reader:
                seen.append(await anext(reader))


async def test_a_follower_that_joins_at_any_moment_of_a_turn_sees_each_stored_event_once(autojump_clock):
    for number in range(1, 1000):
        store, seen, joined = stores.MemoryThreadStore(), [], trio.Event()
        async with opened(*TURN, store=store) as (runtime, _, thread_id), trio.open_nursery() as nursery:
            with Injector(number, joined.set, is_any, "after").watching() as injector:
                nursery.start_soon(join, runtime, thread_id, joined, seen)
                await runtime.run_turn(thread_id, "hello")
            joined.set()
        assert seen == await stored(store, thread_id), f"joined at step {number}"
        if not injector.fired:
            break
    assert number > 40


@pytest.mark.unmeasured
async def test_a_reader_that_sleeps_through_5000_events_gets_all_of_them_without_a_marker(autojump_clock):
    store = stores.MemoryThreadStore()
    async with following(store=store) as (runtime, thread_id, reader):
        await persist(runtime, thread_id, 5000)
        assert reader.buffered < 1024
        seen = await rest(reader)
        assert [envelope.seq for envelope in seen] == list(range(1, 5001))
        await persist(runtime, thread_id, 1)
        assert (await anext(reader)).seq == 5001
        assert {envelope.kind for envelope in seen} == {"turn.item_appended"}


async def test_a_full_buffer_is_read_from_the_store_in_pages_of_500():
    pages = []

    class Paged(stores.MemoryThreadStore):
        async def load_events(self, thread_id, after=0, limit=500):
            pages.append((after, limit))
            return await super().load_events(thread_id, after, limit)

    async with following(store=Paged()) as (runtime, thread_id, reader):
        await persist(runtime, thread_id, 1024)
        assert reader.buffered == 1024
        assert not pages
        await persist(runtime, thread_id, 1)
        assert reader.buffered == 0
        await persist(runtime, thread_id, 10)
        assert [(await anext(reader)).seq for _ in range(1035)] == list(range(1, 1036))
        assert pages == [(0, 500), (500, 500), (1000, 500)]


async def test_a_reader_that_overflows_between_two_pages_goes_on_from_its_own_last_seq():
    async with opened(store=stores.MemoryThreadStore()) as (runtime, _, thread_id):
        await persist(runtime, thread_id, 600)
        async with runtime.follow_thread(thread_id) as reader:
            seen = [(await anext(reader)).seq for _ in range(300)]
            await persist(runtime, thread_id, 1500)
            seen += [(await anext(reader)).seq for _ in range(1800)]
        assert seen == list(range(1, 2101))


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_a_thread_on_disk_is_followed_from_pages_and_live(tmp_path, kind):
    store = {
        "jsonl": lambda: stores.JsonlThreadStore(tmp_path / "folder", durability="process"),
        "sqlite": lambda: stores.SqliteThreadStore(tmp_path / "file.db", durability="process"),
    }[kind]()
    async with opened(store=store) as (runtime, _, thread_id):
        await persist(runtime, thread_id, 520)
        async with runtime.follow_thread(thread_id, after=10) as reader:
            first = [(await anext(reader)).seq for _ in range(5)]
            await persist(runtime, thread_id, 3)
            assert await runtime.archive_thread(thread_id)
            assert [*first, *[envelope.seq async for envelope in reader]] == list(range(11, 524))


async def test_after_at_or_beyond_the_end_waits_for_what_comes_above_it(autojump_clock):
    async with following(after=3) as (runtime, thread_id, reader):
        await persist(runtime, thread_id, 3)
        with trio.move_on_after(1) as waiting:
            await anext(reader)
        assert waiting.cancelled_caught
        await persist(runtime, thread_id, 2)
        assert [(await anext(reader)).seq for _ in range(2)] == [4, 5]


@pytest.mark.parametrize("after", [-1, True, 1.5, None])
async def test_an_after_that_is_no_number_of_an_event_is_refused(after):
    async with opened() as (runtime, _, thread_id):
        with pytest.raises(ValueError, match="after must be an integer of at least 0"):
            async with runtime.follow_thread(thread_id, after):
                pass


async def test_a_missing_or_archived_thread_can_not_be_followed():
    async with opened() as (runtime, _, thread_id):
        await runtime.archive_thread(thread_id)
        for missing in (thread_id, "unknown"):
            with pytest.raises(rt.ThreadNotFound):
                async with runtime.follow_thread(missing):
                    pass


async def test_a_closed_runtime_has_no_followers():
    async with opened() as (runtime, _, thread_id):
        pass
    with pytest.raises(rt.RuntimeClosed):
        async with runtime.follow_thread(thread_id):
            pass


async def read_three(reader, seen, scope):
    with scope:
        while len(seen) < 3:
            seen.append(await anext(reader))


async def test_a_read_that_is_cancelled_at_any_step_loses_nothing():
    async with opened() as (runtime, _, thread_id):
        for step in range(1, 30):
            await persist(runtime, thread_id, 2)
            after = await runtime.latest_transcript_item_index(thread_id, "host") - 1
            async with runtime.follow_thread(thread_id, after) as reader:
                await persist(runtime, thread_id, 1)
                seen, scope = [], trio.CancelScope()
                with Injector(step, scope.cancel, is_any, "after").watching() as injector:
                    async with trio.open_nursery() as nursery:  # noqa: ASYNC112 - only tasks are watched
                        nursery.start_soon(read_three, reader, seen, scope)
                await read_three(reader, seen, trio.CancelScope())
            assert [envelope.seq for envelope in seen] == [after + 1, after + 2, after + 3]
            if not injector.fired:
                break
        assert step > 3


async def test_a_caller_that_leaves_while_the_thread_is_read_is_not_registered(nursery):
    reading, release = trio.Event(), trio.Event()

    class Slow(stores.MemoryThreadStore):
        async def load_thread(self, thread_id):
            reading.set()
            await release.wait()
            return await super().load_thread(thread_id)

    async with opened(store=Slow()) as (runtime, _, thread_id):
        scope = trio.CancelScope()

        async def follow():
            with scope:
                async with runtime.follow_thread(thread_id):
                    raise AssertionError("the thread can't be read yet")

        nursery.start_soon(follow)
        await reading.wait()
        scope.cancel()
        await wait_all_tasks_blocked()
        assert scope.cancelled_caught
        release.set()
        assert not await runtime.thread_item_exists(thread_id, "turn", "item")
        assert not runtime._core.broadcast.wants(thread_id)


async def test_a_page_that_fails_raises_its_error_and_the_next_read_tries_again():
    class Flaky(stores.MemoryThreadStore):
        failures = 2

        async def load_events(self, thread_id, after=0, limit=500):
            self.failures -= 1
            if self.failures >= 0:
                await trio.lowlevel.checkpoint()
                raise rt.StorageError("the disk sleeps")
            return await super().load_events(thread_id, after, limit)

    async with opened(store=Flaky()) as (runtime, _, thread_id):
        await persist(runtime, thread_id, 2)
        async with runtime.follow_thread(thread_id) as reader:
            for _ in range(2):
                with pytest.raises(rt.StorageError, match="sleeps"):
                    await anext(reader)
            assert [(await anext(reader)).seq for _ in range(2)] == [1, 2]


async def test_two_tasks_can_not_read_one_follower(nursery):
    async with following() as (_, _, reader):
        nursery.start_soon(anext, reader)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await anext(reader)
        nursery.cancel_scope.cancel()


async def test_a_follower_does_not_keep_its_thread_in_memory_and_outlives_its_eviction():
    config = rt.RuntimeConfig(max_resident_threads=1)
    store = counted()
    async with following(store=store, config=config) as (runtime, thread_id, reader):
        await persist(runtime, thread_id, 1)
        other = (await runtime.create_thread()).thread_id
        await persist(runtime, other, 1)
        before = store.loads
        await persist(runtime, thread_id, 1)
        assert store.loads == before + 1, "it had been evicted"
        assert [(await anext(reader)).seq for _ in range(2)] == [1, 2]
        assert reader.buffered == 0


@pytest.mark.parametrize("lands", [True, False])
async def test_an_append_whose_outcome_was_unknown_shows_if_it_landed_and_does_not_if_not(autojump_clock, lands):
    """What a crash kept from being published is read from the store by the next incarnation's word, or a gap."""
    store = testing.FaultyStore(stores.MemoryThreadStore())
    async with following(store=store) as (runtime, thread_id, reader):
        await persist(runtime, thread_id, 1)
        faults = store.fail_after if lands else store.fail
        faults[store.appends + 1] = rt.AppendOutcomeUnknown("who knows")
        with pytest.raises(rt.AppendOutcomeUnknown):
            await persist(runtime, thread_id, 1)
        if lands:
            assert [(await anext(reader)).seq for _ in range(2)] == [1, 2]
        await persist(runtime, thread_id, 2)
        seen = await rest(reader)
        assert [envelope.seq for envelope in seen] == ([3, 4] if lands else [1, 2, 3])
        assert (await stored(store, thread_id))[-1] == seen[-1]


async def test_a_crash_of_the_incarnation_in_a_turn_does_not_show(autojump_clock):
    store = testing.FaultyStore(stores.MemoryThreadStore())
    gate = trio.Event()
    async with following([say("a"), gate, DONE], store=store) as (runtime, thread_id, reader):
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        store.fail_after[store.appends + 1] = rt.AppendOutcomeUnknown("who knows")
        with pytest.raises(rt.AppendOutcomeUnknown):
            await runtime.persist_turn_item(thread_id, "host", transcript.UserMessage("x"))
        assert (await runtime.wait_turn(thread_id, turn_id)).status == "interrupted"
        seen = await rest(reader)
        assert seen == await stored(store, thread_id)
        assert [envelope.seq for envelope in seen] == list(range(1, len(seen) + 1))


async def test_followers_of_other_threads_hear_nothing_and_old_news_is_no_news(autojump_clock):
    async with following() as (runtime, thread_id, reader):
        other = (await runtime.create_thread()).thread_id
        await persist(runtime, other, 3)
        await persist(runtime, thread_id, 2)
        (first, second) = await rest(reader)
        assert (first.thread_id, second.seq) == (thread_id, 2)
        reader.offer(first)
        reader.advance(1)
        assert await rest(reader) == []
        reader.end()
        reader.offer(second)
        assert [envelope async for envelope in reader] == []
