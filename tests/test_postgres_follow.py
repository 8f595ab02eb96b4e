"""Following threads that another process writes: every record once, in order, with hints or without."""

import threading
from typing import Any

import pytest
import trio

import roder_trio as rt
from roder_trio.stores.postgres import follow
from roder_trio.stores.postgres.hint import hint_of
from roder_trio.stores.postgres.lease import Key
from roder_trio.testing._sample import Sample
from tests.postgres_support import Tables, created, listeners, named, open_stores, until


async def read(reader: Any, count: int) -> list[tuple[int, str]]:
    found = []
    with trio.fail_after(60.0):
        for _ in range(count):
            position, record = await anext(reader)
            found.append((position, record.record_id))
    return found


async def listening(url: str) -> None:
    """Wait until somebody listens under the URL's name."""
    await until(lambda: listeners(url))


@pytest.fixture
def own(database: str, tenant: str) -> str:
    """The URL of the database, with a name that no other test's connections have."""
    return named(database, tenant)


async def test_a_follower_gets_what_is_there_and_what_comes(own: str, tenant: str) -> None:
    async with open_stores(own, tenant, 2) as (owner, store):
        sample = await created(owner)
        records = sample.texts(*map(str, range(7)))
        await owner.append("t", records[:3])
        wanted = [(position, record.record_id) for position, record in enumerate(records, 1)]
        async with store.follow("t") as reader, store.follow("t", after=2) as later:
            assert await read(reader, 3) == wanted[:3]
            await listening(own)
            await owner.append("t", records[3:5])
            await owner.append("t", records[5:])
            assert await read(reader, 4) == wanted[3:]
            assert await read(later, 5) == wanted[2:]


async def test_a_hint_wakes_a_follower_long_before_it_would_look(
    own: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "POLL", 1000.0)
    async with open_stores(own, tenant, 2) as (owner, store):
        sample = await created(owner)
        async with store.follow("t") as reader, trio.open_nursery() as nursery:
            nursery.start_soon(read, reader, 2)
            for text in "ab":
                await listening(own)
                await owner.append("t", [sample.user(text)])


async def test_a_lost_hint_only_delays(database: str, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL", 0.05)
    async with open_stores(database, tenant, notify=False) as (owner,), open_stores(database, tenant) as (store,):
        sample = await created(owner)
        async with store.follow("t") as reader, trio.open_nursery() as nursery:
            nursery.start_soon(read, reader, 20)
            for number in range(20):
                await owner.append("t", [sample.user(str(number))])


async def test_a_store_without_hints_opens_no_listener(
    database: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "POLL", 0.05)
    async with open_stores(database, tenant, notify=False) as (store,):
        sample = await created(store)
        async with store.follow("t") as reader, trio.open_nursery() as nursery:
            nursery.start_soon(read, reader, 1)
            await store.append("t", [sample.user("x")])
        assert not store._session.listener._started


async def test_one_connection_hears_for_all_followers(own: str, tenant: str) -> None:
    async with open_stores(own, tenant) as (store,):
        samples = [await created(store, f"t{number}") for number in range(10)]
        async with trio.open_nursery() as nursery:
            for sample in samples:

                async def one(sample: Sample = sample) -> None:
                    async with store.follow(sample.thread_id) as reader:
                        assert len(await read(reader, 1)) == 1

                nursery.start_soon(one)
            await listening(own)
            assert listeners(own) == 1
            for sample in samples:
                await store.append(sample.thread_id, [sample.user("x")])


async def test_the_end_of_a_thread_ends_its_followers(database: str, tenant: str) -> None:
    async with open_stores(database, tenant, 2) as (owner, store):
        sample = await created(owner)
        async with store.follow("t") as reader:
            await owner.append("t", [sample.user("last")])
            await owner.archive_thread("t")
            assert len(await read(reader, 1)) == 1
            with pytest.raises(StopAsyncIteration), trio.fail_after(60.0):
                await anext(reader)


async def test_closing_the_store_ends_followers_with_an_error(own: str, tenant: str) -> None:
    told: list[type] = []

    async def wait(reader: Any) -> None:
        try:
            await anext(reader)
        except rt.StoreClosed as error:
            told.append(type(error))

    async with trio.open_nursery() as nursery, open_stores(own, tenant) as (store,):
        await created(store)
        following = store.follow("t")
        reader = await following.__aenter__()
        nursery.start_soon(wait, reader)
        await listening(own)
    assert told == [rt.StoreClosed]
    await following.__aexit__(None, None, None)


@pytest.mark.parametrize("has_read", [False, True])
async def test_who_begins_to_follow_while_the_store_closes_is_told_so(
    database: str, tenant: str, monkeypatch: pytest.MonkeyPatch, has_read: bool
) -> None:
    reading, closed = threading.Event(), threading.Event()

    async def begin(store: Any) -> None:
        with pytest.raises(rt.StoreClosed):
            async with store.follow("t"):
                pass

    async with trio.open_nursery() as nursery:
        async with open_stores(database, tenant) as (store,):
            await created(store)
            whole = store._session.database.read

            def held(work: Any) -> Any:
                found = whole(work) if has_read else None
                reading.set()
                closed.wait()
                return found or whole(work)

            monkeypatch.setattr(store._session.database, "read", held)
            nursery.start_soon(begin, store)
            await until(reading.is_set)
        closed.set()


async def test_a_cancelled_read_loses_nothing(database: str, tenant: str) -> None:
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        records = sample.texts(*map(str, range(30)))
        await store.append("t", records)
        found: list[str] = []
        async with store.follow("t") as reader:
            for ticks in range(1000):
                with trio.CancelScope() as scope:
                    scope.deadline = trio.current_time() + ticks * 0.0002
                    while len(found) < 30:
                        found.append((await anext(reader))[1].record_id)
                if len(found) == 30:
                    break
        assert found == [record.record_id for record in records]


async def test_what_can_not_be_followed_is_refused(database: str, tenant: str) -> None:
    async with open_stores(database, tenant) as (store,):
        await created(store)
        for bad in (-1, True, "1"):
            with pytest.raises(ValueError, match="after"):
                async with store.follow("t", after=bad):
                    pass
        with pytest.raises(rt.ThreadNotFound):
            async with store.follow("unknown"):
                pass


async def test_a_gap_in_a_log_is_damage(database: str, tenant: str) -> None:
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        await store.append("t", sample.texts("a", "b", "c"))
        Tables(database, tenant).run("DELETE FROM record WHERE tenant = %s AND position = 2", tenant)
        async with store.follow("t") as reader:
            with pytest.raises(rt.CorruptRecord, match="2"):
                await anext(reader)
        with pytest.raises(rt.CorruptRecord):
            await store.load_thread("t")


async def test_hints_that_can_not_be_sent_are_lost_and_harm_nobody(
    database: str, tenant: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "roder_trio")
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        await store.append("t", [sample.user("x")])
        await until(lambda: not store._session.hints._positions)
        await store.release_thread("t")
        store._session.database.close()
        store._session.hints.note(Key(tenant, "t"), 1)
        store._session.hints.note(Key(tenant, "t"), 0)
        await until(lambda: "hints of 1 threads are lost" in caplog.text)


def test_a_hint_tells_threads_and_tenants_apart() -> None:
    hints = {hint_of(Key(*pair)) for pair in [("a", "bc"), ("ab", "c"), ("a", "bd"), ("b", "bc")]}
    assert len(hints) == 4
    assert all(len(hint) == 16 for hint in hints)
