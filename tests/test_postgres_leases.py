"""Who owns a thread in PostgreSQL: claims, fences, renewals and releases, with the rows looked at from outside."""

import logging
from typing import Any

import psycopg
import pytest
import trio

import roder_trio as rt
from roder_trio import stores
from roder_trio.stores.postgres import write
from roder_trio.stores.postgres.lease import Fence, Key
from roder_trio.testing._sample import Sample
from tests.postgres_support import ENDLESS, Tables, created, open_stores, texts


@pytest.fixture
def tables(database: str, tenant: str) -> Tables:
    return Tables(database, tenant)


async def test_every_claim_raises_the_epoch(database: str, tenant: str, tables: Tables) -> None:
    async with open_stores(database, tenant) as (store,):
        await store.create_thread(Sample("t").metadata())
        first = tables.lease()
        await store.claim_thread("t")
        second = tables.lease()
        assert second == (first[0], first[1] + 1, True)
        await store.release_thread("t")
        assert tables.lease() == (first[0], second[1], False)
    async with open_stores(database, tenant) as (other,):
        await other.claim_thread("t")
        owner, epoch, lasts = tables.lease()
        assert (owner != first[0], epoch, lasts) == (True, second[1] + 1, True)
    assert tables.lease() == (owner, epoch, False)


async def test_another_owner_is_named_with_the_seconds_that_are_left(database: str, tenant: str) -> None:
    async with open_stores(database, tenant, 2) as (store, rival):
        await created(store)
        with pytest.raises(rt.ThreadOwnedElsewhere, match=store._session.owner) as refused:
            await rival.claim_thread("t")
        assert refused.value.owner == store._session.owner
        assert 0 < refused.value.expires_in <= 30.0


async def test_a_stale_owner_writes_nothing_and_is_told_once(database: str, tenant: str, tables: Tables) -> None:
    lost: list[str] = []
    async with open_stores(database, tenant, 2) as (store, rival):
        store.watch_ownership(lost.append)
        sample = await created(store)
        await store.append("t", [sample.user("mine")])
        tables.expire()
        await rival.claim_thread("t")
        for _ in range(2):
            with pytest.raises(rt.LeaseLost, match="claims it anew"):
                await store.append("t", [sample.user("too late")])
        assert lost == ["t"]
        await rival.append("t", [sample.user("now mine")])
        with pytest.raises(rt.ThreadOwnedElsewhere):
            await store.claim_thread("t")
        assert await texts(store) == ["mine", "now mine"]


async def test_a_lost_lease_needs_a_claim_even_without_a_rival(database: str, tenant: str, tables: Tables) -> None:
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        tables.expire()
        for _ in range(2):
            with pytest.raises(rt.LeaseLost):
                await store.append("t", [sample.user("lost")])
        await store.claim_thread("t")
        await store.append("t", [sample.user("claimed")])
        assert await texts(store) == ["claimed"]


async def test_an_append_from_before_a_claim_is_fenced(database: str, tenant: str, tables: Tables) -> None:
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        owner, epoch, _ = tables.lease()
        await store.claim_thread("t")
        key, rows = Key(tenant, "t"), write.records.encode_rows([sample.user("late")])
        for fence in (Fence(owner, epoch), Fence("nobody", epoch + 1)):
            with pytest.raises(rt.LeaseLost):
                store._session.database.change(
                    lambda link, doubt, fence=fence: write.append(link, key, fence, rows, doubt=doubt)
                )
        await store.append("t", [sample.user("now")])
        assert await texts(store) == ["now"]


async def test_a_change_from_before_a_claim_takes_nothing_from_it(database: str, tenant: str, tables: Tables) -> None:
    """It was made beside the thread's owner, in the same process, and had to wait for the claim."""
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        held = tables.lease()
        key, rows = Key(tenant, "t"), write.records.encode_rows([sample.user("beside")])
        fence = Fence(held[0], None)
        store._session.database.change(lambda link, doubt: write.append(link, key, fence, rows, doubt=doubt))
        assert tables.lease() == held
        await store.append("t", [sample.user("owner")])
        assert await texts(store) == ["beside", "owner"]


async def test_a_thread_that_is_not_claimed_is_claimed_for_one_change_alone(
    database: str, tenant: str, tables: Tables
) -> None:
    async with open_stores(database, tenant, 2) as (store, rival):
        sample = await created(store)
        await store.release_thread("t")
        _, epoch, _ = tables.lease()
        await rival.append("t", [sample.user("in passing")])
        assert tables.lease() == (rival._session.owner, epoch + 1, False)
        await store.claim_thread("t")
        with pytest.raises(rt.ThreadOwnedElsewhere):
            await rival.append("t", [sample.user("refused")])
        for change in (rival.archive_thread, rival.delete_thread):
            with pytest.raises(rt.ThreadOwnedElsewhere):
                await change("t")
        assert await store.archive_thread("t")
        with pytest.raises(rt.ThreadOwnedElsewhere):
            await rival.unarchive_thread("t")
        await store.release_thread("t")
        assert await rival.unarchive_thread("t")
        assert await texts(rival) == ["in passing"]


async def test_a_thread_whose_lease_was_lost_can_still_be_archived(database: str, tenant: str, tables: Tables) -> None:
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        tables.expire()
        with pytest.raises(rt.LeaseLost):
            await store.append("t", [sample.user("lost")])
        assert await store.archive_thread("t")


async def test_a_claim_of_nothing_leaves_no_row_and_allows_nothing(database: str, tenant: str, tables: Tables) -> None:
    async with open_stores(database, tenant, 2) as (store, other):
        for thread_id in ("t", "", "a\0b"):
            await store.claim_thread(thread_id)
        with pytest.raises(rt.ThreadNotFound):
            await other.append("t", [Sample("t").user("x")])
        assert not await other.archive_thread("t")
        assert tables.count("lease") == 0
        sample = await created(other)
        await other.release_thread("t")
        with pytest.raises(rt.LeaseLost):  # what it read, it read before the thread was there
            await store.append("t", [sample.user("x")])
        await store.release_thread("t")
        await store.append("t", [sample.user("y")])
        assert await texts(other) == ["y"]


async def test_renewal_prolongs_and_never_shortens_or_revives(database: str, tenant: str, tables: Tables) -> None:
    lost: list[str] = []
    ends = "SELECT thread_id, expires_at FROM lease WHERE tenant = %s"
    async with open_stores(database, tenant, lease_ttl=ENDLESS) as (store,):
        store.watch_ownership(lost.append)
        for thread_id in ("near", "far", "over"):
            await created(store, thread_id)
        tables.expire("near", ENDLESS / 2)
        tables.expire("far", ENDLESS * 2)
        tables.expire("over", -1.0)
        before = dict(tables.run(ends, tenant))
        assert await store._session.keeper._renew_once()
        after = dict(tables.run(ends, tenant))
        assert after["near"] > before["near"]
        assert (after["far"], after["over"]) == (before["far"], before["over"])
        assert lost == ["over"]


async def test_a_thread_that_is_locked_is_renewed_later_and_the_others_now(
    database: str, tenant: str, tables: Tables
) -> None:
    lost: list[str] = []
    soon = ENDLESS / 2
    async with open_stores(database, tenant, lease_ttl=ENDLESS) as (store,):
        store.watch_ownership(lost.append)
        for thread_id in ("busy", "free"):
            await created(store, thread_id)
            tables.expire(thread_id, soon)
        with psycopg.connect(database) as link:
            link.execute("SELECT 1 FROM lease WHERE tenant = %s AND thread_id = 'busy' FOR UPDATE", (tenant,))
            assert not await store._session.keeper._renew_once()
            left = dict(tables.run("SELECT thread_id, expires_at - now() FROM lease WHERE tenant = %s", tenant))
            assert left["busy"].total_seconds() < soon < left["free"].total_seconds()
        assert await store._session.keeper._renew_once()
        assert lost == []


async def test_a_thread_that_was_only_created_is_free_after_its_lease(
    database: str, tenant: str, tables: Tables
) -> None:
    lost: list[str] = []
    async with open_stores(database, tenant, 2) as (store, rival):
        store.watch_ownership(lost.append)
        await store.create_thread(Sample("t").metadata())
        assert store._session.tenure.to_renew() == {}
        with pytest.raises(rt.ThreadOwnedElsewhere):
            await rival.claim_thread("t")
        tables.expire()
        await rival.claim_thread("t")
        with pytest.raises(rt.LeaseLost):
            await store.append("t", [Sample("t").user("x")])
        assert lost == []


async def test_a_release_that_nobody_confirms_is_an_error(
    database: str, tenant: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_stores(database, tenant) as (store,):
        await created(store, "a")
        await created(store, "b")
        store._session.database.close()
        with pytest.raises(rt.StorageError, match="nothing was stored"):
            await store.release_thread("a")
    assert "the release of 1 threads is not confirmed" in caplog.text


async def test_renewal_that_fails_is_tried_again_soon(
    database: str, tenant: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with open_stores(database, tenant) as (store,):
        assert await store._session.keeper._renew_once()
        await created(store)
        store._session.database.close()
        assert not await store._session.keeper._renew_once()
    assert "could not be renewed, trying again" in caplog.text


async def test_a_silent_client_can_not_hold_a_thread(database: str, tenant: str) -> None:
    async with open_stores(database, tenant, 2) as (store, rival):
        rival._session.database._settings["statement_timeout"] = "500ms"  # as stores set it, only shorter
        sample = await created(store)
        with psycopg.connect(database) as link:
            link.execute("SELECT 1 FROM lease WHERE tenant = %s FOR UPDATE", (tenant,))
            link.execute("SET idle_in_transaction_session_timeout = '200ms'")  # the same
            await store.append("t", [sample.user("after the silent one was cut off")])
            with pytest.raises(psycopg.Error):
                link.execute("SELECT 1")
        with psycopg.connect(database) as link:
            link.execute("SELECT 1 FROM lease WHERE tenant = %s FOR UPDATE", (tenant,))
            with pytest.raises(rt.StorageError, match="nothing was stored"):
                await rival.claim_thread("t")


def test_connections_are_told_when_to_give_up(database: str) -> None:
    store = stores.PostgresThreadStore(database, lease_ttl=7.0, append_timeout=9.0)
    store._session.database.open(migrate=False)
    try:
        shown: Any = store._session.database.read(
            lambda link: [
                link.execute(f"SHOW {name}".encode()).fetchone()[0]  # type: ignore[index]
                for name in ("statement_timeout", "idle_in_transaction_session_timeout", "TimeZone")
            ]
        )
    finally:
        store._session.database.close()
    assert shown == ["8100ms", "7s", "UTC"]


async def test_owners_in_turn_never_write_one_log_at_once(database: str, tenant: str, tables: Tables) -> None:
    """Both claim and append as they can, and lose their leases by chance: the log holds what was acknowledged."""
    acknowledged: list[str] = []
    sample = Sample("t")

    async def work(store: Any, name: str) -> None:
        for number in range(30):
            record = sample.user(f"{name}{number}")
            try:
                await store.claim_thread("t")
                await store.append("t", [record])
                acknowledged.append(record.event_id)
                if number % 3 == 0:
                    tables.expire()
                else:
                    await store.release_thread("t")
            except (rt.LeaseLost, rt.ThreadOwnedElsewhere):
                await trio.lowlevel.checkpoint()

    async with open_stores(database, tenant, 3) as owners:
        await owners[0].create_thread(sample.metadata())
        await owners[0].release_thread("t")
        async with trio.open_nursery() as nursery:
            for store, name in zip(owners, "abc", strict=True):
                nursery.start_soon(work, store, name)
        snapshot = await owners[0].load_thread("t")
    assert len(acknowledged) > 0
    assert [envelope.event_id for envelope in snapshot.events] == acknowledged
