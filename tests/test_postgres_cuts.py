"""Connections that die where it hurts: inside a commit, before it, and with the server itself; each record once.

Stores behind the proxy send no hints and renew no lease, so that each commit that it sees is a change's.
"""

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

import roder_trio as rt
from roder_trio import stores
from roder_trio.stores.postgres import database as module
from roder_trio.testing._appends import failed_append
from roder_trio.testing._sample import Sample
from tests.postgres_proxy import Proxy, open_proxy
from tests.postgres_server import PostgresServer, discard, new_server
from tests.postgres_support import ENDLESS, Tables, created, listeners, named, open_stores, texts, until


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    """A way to the server; its folder has a short name, since the path of a socket may not be long."""
    with TemporaryDirectory(prefix="rt-px-") as folder, open_proxy(Path(folder), database) as opened:
        yield opened


def behind(proxy: Proxy, tenant: str, **options: Any) -> AbstractAsyncContextManager[Any]:
    """A store that reaches its database through the proxy."""
    return open_stores(proxy.url, tenant, notify=False, lease_ttl=ENDLESS, **options)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads try again for half a minute, however long a new connection takes."""
    monkeypatch.setattr(module, "READ_TRIES", 30)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> None:
    """While the proxy is shut, a change that would try again finds that its time is over."""
    passed = 0.0

    def sleep(seconds: float) -> None:
        nonlocal passed
        passed += 0.0 if proxy.is_open else 60.0
        time.sleep(seconds)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed, sleep=sleep)
    monkeypatch.setattr(module, "time", clock)


async def settled(store: Any) -> None:
    """Wait until the store makes no connection any more."""

    def is_still() -> bool:
        stats = store._session.database._pool.get_stats()
        return stats["pool_size"] == stats["pool_available"]

    await until(is_still)


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_an_append_whose_commit_is_cut_is_stored_once(proxy: Proxy, tenant: str, cut: Any) -> None:
    async with behind(proxy, tenant) as (store,):
        sample = await created(store)
        proxy.cuts.append(cut)
        before = proxy.commits
        await store.append("t", [sample.user("once")])
        assert proxy.commits == before + 2
        assert await texts(store) == ["once"]
        assert (await store.load_metadata("t")).message_count == 1


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_every_change_outlives_a_cut_commit(proxy: Proxy, tenant: str, cut: Any) -> None:
    async with behind(proxy, tenant) as (store,):
        proxy.cuts.append(cut)
        sample = Sample("t")
        assert await store.create_thread(sample.metadata()) == sample.metadata()
        proxy.cuts.append(cut)
        await store.claim_thread("t")
        await store.append("t", [sample.user("x")])
        for change in (store.archive_thread, store.unarchive_thread, store.delete_thread):
            proxy.cuts.append(cut)
            assert await change("t")
        assert await store.load_thread("t") is None
        assert not proxy.cuts


@pytest.mark.usefixtures("patience")
async def test_a_cut_append_is_looked_for_even_if_the_lease_is_gone(proxy: Proxy, database: str, tenant: str) -> None:
    tables = Tables(database, tenant)
    async with behind(proxy, tenant) as (store,):
        sample = await created(store)
        stored, refused = sample.user("stored"), sample.user("refused")

        async def append_cut(record: Any, cut: Any) -> None:
            """Append with the commit cut, and the lease at its end before the store is back."""
            async with trio.open_nursery() as nursery:
                proxy.cut_and_shut(cut)
                nursery.start_soon(store.append, "t", [record])
                await until(lambda: not proxy.is_open)
                await trio.to_thread.run_sync(tables.expire)
                proxy.reopen()

        await append_cut(stored, "after")
        await store.claim_thread("t")
        with pytest.RaisesGroup(rt.LeaseLost):
            await append_cut(refused, "before")
        assert await texts(store) == ["stored"]


async def test_a_commit_that_is_cut_twice_may_be_stored(proxy: Proxy, tenant: str) -> None:
    async with behind(proxy, tenant) as (store,):
        sample = await created(store)
        record = sample.user("once")
        proxy.cuts.extend(["before", "after"])
        with pytest.raises(rt.AppendOutcomeUnknown, match="may hold it"):
            await store.append("t", [record])
        await store.append("t", [record])
        assert await texts(store) == ["once"]


async def test_a_store_keeps_its_word_about_appends_that_fail(proxy: Proxy, tenant: str) -> None:
    cuts: dict[str, list[Any]] = {
        "before": ["before", "before"],
        "in": ["before", "after"],
        "after": ["after", "before"],
    }

    def fault(store: rt.ThreadStore, point: str) -> None:
        proxy.cuts.extend(cuts[point])

    async with behind(proxy, tenant) as (store,):
        verify = await failed_append(fault)(store, "t")
        await verify(store)
        assert not proxy.cuts


@pytest.mark.usefixtures("hurried", "patience")
async def test_a_server_that_does_not_come_back_leaves_the_outcome_unknown(proxy: Proxy, tenant: str) -> None:
    async with behind(proxy, tenant) as (store,):
        sample = await created(store)
        record = sample.user("once")
        proxy.cut_and_shut("after")
        with pytest.raises(rt.AppendOutcomeUnknown):
            await store.append("t", [record])
        with pytest.raises(rt.StorageError, match="nothing was stored"):
            await store.append("t", [sample.user("later")])
        proxy.reopen()
        await store.append("t", [record])
        assert await texts(store) == ["once"]


@pytest.mark.usefixtures("patience")
async def test_connections_that_died_while_idle_are_made_again(proxy: Proxy, tenant: str) -> None:
    async with behind(proxy, tenant, pool_size=3) as (store,):
        sample = await created(store)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(store.load_thread, "t")
        await settled(store)
        proxy.cut_all()
        await store.append("t", [sample.user("after")])
        await settled(store)
        proxy.cut_all()
        assert await texts(store) == ["after"]


async def test_reads_give_up_when_nobody_answers(proxy: Proxy, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with behind(proxy, tenant) as (store,):
        await created(store)
        proxy.shut()
        with pytest.raises(rt.StorageError, match=r"be read: connection (failed: .* closed the connection|timeout)"):
            await store.load_thread("t")
        proxy.reopen()
        monkeypatch.setattr(module, "READ_TRIES", 30)
        assert await store.load_thread("t") is not None


@pytest.mark.usefixtures("patience")
async def test_a_read_that_took_too_long_over_its_end_has_what_it_read(proxy: Proxy, tenant: str) -> None:
    def slow(link: Any) -> Any:
        found = link.execute("SELECT 7").fetchone()
        proxy.cut_all()
        return found

    async with behind(proxy, tenant) as (store,):
        assert await store._session.read(slow) == (7,)
        assert await store.load_thread("t") is None


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_conflicts_are_tried_again_a_few_times(database: str, tenant: str, code: str) -> None:
    tries = 0

    def conflict(link: Any, times: int) -> int:
        nonlocal tries
        tries += 1
        if tries <= times:
            link.execute(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$")
        return tries

    async with open_stores(database, tenant) as (store,):
        data = store._session.database
        assert await trio.to_thread.run_sync(data.change, lambda link, doubt: conflict(link, 5)) == 6
        tries = 0
        with pytest.raises(rt.StorageError, match="nothing was stored"):
            await trio.to_thread.run_sync(data.change, lambda link, doubt: conflict(link, 6))
        tries = 0
        assert await trio.to_thread.run_sync(data.read, lambda link: conflict(link, 2)) == 3
        tries = 0
        with pytest.raises(rt.StorageError, match="be read"):
            await trio.to_thread.run_sync(data.read, lambda link: conflict(link, 3))


async def test_what_the_database_refuses_is_an_error_and_stored_in_no_part(database: str, tenant: str) -> None:
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        with pytest.raises(rt.InvalidRecord, match="NUL"):
            await store.append("t", [sample.user("a"), _with_turn(sample, "turn\0")])
        bug = "division by zero"
        with pytest.raises(rt.StorageError, match=bug):
            await trio.to_thread.run_sync(store._session.database.read, lambda link: link.execute("SELECT 1/0"))
        assert await texts(store) == []


def _with_turn(sample: Sample, turn_id: str) -> Any:
    return attrs.evolve(sample.user("b"), turn_id=turn_id)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    server = new_server()
    yield server
    discard(server)


async def test_a_server_that_crashes_and_restarts_loses_and_doubles_nothing(
    own_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Appends go on while the server is killed in their midst; what was acknowledged is there, each record once."""
    caplog.set_level(logging.CRITICAL)
    sample, acknowledged = Sample("t"), list[str]()

    async def append_all(store: Any, ended: trio.Event) -> None:
        while not ended.is_set():
            batch = sample.texts("a", "b")
            await store.append("t", batch)
            acknowledged.extend(record.record_id for record in batch)

    def restart() -> None:
        own_server.stop(signal.SIGQUIT)
        own_server.start()

    async with open_stores(own_server.url, "default", migrate=True, lease_ttl=ENDLESS, append_timeout=120.0) as (
        store,
    ):
        await store.create_thread(sample.metadata())
        await store.claim_thread("t")
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append_all, store, ended)
            await until(lambda: len(acknowledged) >= 100)
            await trio.to_thread.run_sync(restart)
            seen = len(acknowledged)
            await until(lambda: len(acknowledged) >= seen + 100)
            ended.set()
        snapshot = await store.load_thread("t")
    assert [envelope.event_id for envelope in snapshot.events] == acknowledged
    assert snapshot.metadata.message_count == len(acknowledged)


@pytest.mark.usefixtures("patience")
async def test_a_listener_that_was_cut_hears_again(proxy: Proxy, database: str, tenant: str) -> None:
    heard = named(database, tenant)
    async with open_stores(named(proxy.url, tenant), tenant) as (store,), open_stores(database, tenant) as (owner,):
        sample = await created(owner)
        async with store.follow("t") as reader:
            await until(lambda: listeners(heard))
            proxy.shut()
            await until(lambda: not listeners(heard))
            await owner.append("t", [sample.user("x")])
            proxy.reopen()
            assert (await anext(reader))[0] == 1
            await until(lambda: listeners(heard))


def test_a_store_of_no_database_can_not_be_opened(tmp_path: Path) -> None:
    store = stores.PostgresThreadStore(f"postgresql://ada:s3cret@/none?host={tmp_path}")

    async def enter() -> None:
        async with store.open():
            pass

    with pytest.raises(rt.StorageError, match="could not be opened") as refused:
        trio.run(enter)
    assert "s3cret" not in str(refused.value)
