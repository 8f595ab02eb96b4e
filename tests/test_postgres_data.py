"""What stands in PostgreSQL's tables: tenants apart, deleted threads gone, damage told, no password anywhere."""

import logging
from typing import Any

import attrs
import hypothesis
import psycopg
import pytest
import trio
from hypothesis import strategies as st

import roder_trio as rt
from roder_trio import stores, transcript
from roder_trio.stores.postgres import read
from roder_trio.stores.postgres.address import read_address
from roder_trio.testing._sample import Sample
from tests.postgres_support import Tables, created, open_stores, texts

SECRET = "p%40ss'w\\ord"
TENANTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=191)


@hypothesis.settings(max_examples=8, deadline=None)
@hypothesis.given(names=st.lists(TENANTS.filter(str.strip), min_size=2, max_size=3, unique_by=str.strip))
def test_tenants_never_see_each_other(database: str, names: list[str]) -> None:
    """Whatever their names: each has a thread of the same id, with a log, a listing and labels of its own."""

    async def check() -> None:
        for number, name in enumerate([*names, f"{names[0]} "]):
            async with open_stores(database, name) as (store,):
                sample = Sample("same")
                again = number == len(names)
                metadata = sample.metadata(title=names[0 if again else number], labels={"k": "v"})
                await store.create_thread(metadata)
                await store.append("same", [sample.user("hello")])
                page = await store.list_threads(label=("k", "v"))
                assert [thread.title for thread in page.threads] == [metadata.title]
                assert await texts(store, "same") == ["hello"]
        for name in names:
            async with open_stores(database, name) as (store,):
                assert await store.delete_thread("same")

    trio.run(check)


@pytest.mark.parametrize("tenant", ["", "  ", "x" * 192, "a\0b", "\ud800", None, 3])
def test_a_tenant_that_is_none_is_refused(tenant: Any) -> None:
    with pytest.raises(ValueError, match="tenant"):
        stores.PostgresThreadStore("postgresql://localhost/x", tenant)


def test_a_tenant_is_trimmed() -> None:
    assert "'a b'" in repr(stores.PostgresThreadStore("postgresql://localhost/x", "  a b\n"))


@pytest.mark.parametrize(
    "options",
    [{"pool_size": 0}, {"pool_size": True}, {"lease_ttl": 3.0}, {"lease_ttl": -1}, {"append_timeout": 0}],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        stores.PostgresThreadStore("postgresql://localhost/x", **options)


@pytest.mark.parametrize(
    "url", ["", " ", None, "postgresql://u:s3cret@[/x", "s3cret", "colour=s3cret", "mysql://s3cret"]
)
def test_a_url_that_is_none_is_refused_without_being_repeated(url: Any) -> None:
    with pytest.raises(ValueError, match="postgresql://user:password@host/database") as refused:
        stores.PostgresThreadStore(url)
    assert "s3cret" not in repr(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://ada:{SECRET}@db.example:5433/threads", "postgresql://ada:***@db.example:5433/threads"),
        ("postgresql:///threads", "postgresql:///threads"),
        ("host=h user=u password=s3cret dbname=d", "postgresql://u:***@h/d"),
        ("postgresql://h/d?password=s3cret", "postgresql://:***@h/d"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    address = read_address(url)
    assert address.shown == shown
    store = stores.PostgresThreadStore(url)
    for said in (repr(store), repr(address), repr(vars(store)), address.redacted(f"failed: {address.parameters}")):
        for secret in (SECRET, "p@ss'w\\ord", "s3cret", "p@ss'w\\\\ord"):
            assert secret not in said


async def test_a_password_never_comes_out(postgres: str, caplog: pytest.LogCaptureFixture) -> None:
    """The server refuses the user; what is raised, with its causes, and what is logged tells no password."""
    caplog.set_level(logging.DEBUG)
    given = psycopg.conninfo.conninfo_to_dict(postgres)
    url = psycopg.conninfo.make_conninfo(**{**given, "user": "nobody_here", "password": "s3cret"})
    with pytest.raises(rt.StorageError, match="nobody_here") as refused:
        async with stores.PostgresThreadStore(url).open():
            pass
    error: BaseException | None = refused.value
    while error is not None:
        assert "s3cret" not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__
    assert "s3cret" not in caplog.text


async def test_only_the_lease_of_a_deleted_thread_stays(database: str, tenant: str) -> None:
    tables = Tables(database, tenant)
    marker = "MARKER-OF-THE-TEXT"
    async with open_stores(database, tenant) as (store,):
        sample = await created(store, title=marker, labels={"label": marker})
        state = sample.state("k", marker)
        await store.append("t", [sample.user(marker), sample.usage("a", 1, 3, 1, 4), state])
        assert [tables.count(table) for table in ("thread", "record", "attempt", "label", "lease")] == [1, 4, 1, 1, 1]
        assert await store.delete_thread("t")
        counts = [tables.count(table) for table in ("thread", "record", "attempt", "label", "checkpoint")]
        assert counts == [0] * 5
        assert tables.count("lease") == 1
        assert not tables.lease()[2]
        assert not await store.delete_thread("t")
        assert not await store.delete_thread("a\0b")
        again = await store.create_thread(Sample("t").metadata(title="again"))
        assert again.title == "again"
        assert tables.lease()[1] > 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("UPDATE record SET body = 'no JSON' WHERE tenant = %s AND position = 1", "1"),
        ("UPDATE record SET body = '[]' WHERE tenant = %s AND position = 2", "2"),
        ("DELETE FROM record WHERE tenant = %s AND position = 1", "1"),
        ("DELETE FROM record WHERE tenant = %s AND position = 2", "2"),
        ("UPDATE thread SET metadata = '{' WHERE tenant = %s AND thread_id = 't'", "metadata"),
    ],
)
async def test_damage_is_told_with_its_place(database: str, tenant: str, damage: str, told: str) -> None:
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        await created(store, "sound")
        await store.append("t", sample.texts("a", "b"))
        Tables(database, tenant).run(damage, tenant)
        for call in (store.load_thread, store.load_state):
            with pytest.raises(rt.CorruptRecord, match=told):
                await call("t")
        if told != "metadata":
            with pytest.raises(rt.CorruptRecord, match=told):
                await store.load_events("t")
        copied = await stores.copy_store(store, stores.MemoryThreadStore())
        assert (list(copied.copied), "t" in copied.failed) == (["sound"], True)
        assert await store.load_thread("sound") is not None
        page = await store.list_threads()
        damaged = ("t",) if told == "metadata" else ()
        assert (page.damaged, [thread.thread_id for thread in page.threads][-1]) == (damaged, "sound")


async def test_damage_that_an_append_meets_stores_nothing(database: str, tenant: str) -> None:
    tables = Tables(database, tenant)
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        await store.append("t", [sample.usage("a", 1, 3, 1, 4)])
        tables.run("UPDATE attempt SET usage = 'no JSON' WHERE tenant = %s", tenant)
        with pytest.raises(rt.CorruptRecord, match="attempt 'a'"):
            await store.append("t", [sample.usage("a", 2, 4, 1, 5)])
        await store.append("t", [sample.user("x")])
        tables.run("DELETE FROM record WHERE tenant = %s AND position = 0", tenant)
        with pytest.raises(rt.CorruptRecord, match="creation"):
            await store.create_thread(Sample("t").metadata())
        with pytest.raises(rt.CorruptRecord, match="creation"):
            await store.read_log("t")
        assert tables.count("record") == 2


async def test_pages_of_events_go_on_where_they_ended(
    database: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "CHUNK", 3)
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        records = sample.texts(*map(str, range(20)))
        numbered = [attrs.evolve(record, seq=number) for number, record in enumerate(records, 1)]
        for record in numbered:
            await store.append("t", [record, sample.delta("x")])
        found: list[Any] = []
        while page := await store.load_events("t", after=len(found), limit=7):
            assert len(page) <= 7
            found += page
        assert found == numbered
        assert await store.load_events("unknown") == ()
        assert await store.load_events("") == []
        await store.delete_thread("t")
        again = await created(store)
        renewed = [attrs.evolve(record, seq=number) for number, record in enumerate(again.texts("a", "b"), 7)]
        await store.append("t", renewed)
        assert list(await store.load_events("t", after=7)) == renewed[1:]


async def test_bookmarks_are_bounded(database: str, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from roder_trio.stores.postgres import store as module

    monkeypatch.setattr(module, "BOOKMARKS", 2)
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        await store.append("t", [attrs.evolve(sample.user(str(seq)), seq=seq) for seq in range(1, 9)])
        for after in range(8):
            assert [event.seq for event in await store.load_events("t", after=after, limit=1)] == [after + 1]
        assert len(store._bookmarks) == 2


async def test_a_log_is_read_piece_by_piece_as_it_is_stored(
    database: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    monkeypatch.setattr(read, "CHUNK", 3)
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        records = sample.texts(*map(str, range(7)))
        await store.append("t", records)
        await store.archive_thread("t")
        ids, cursor = [], None
        while True:
            page = await store.read_log("t", cursor)
            assert page.archived
            assert json.loads(page.created)["metadata"]["thread_id"] == "t"
            ids += [record["event_id"] for batch in page.batches for record in json.loads(batch)]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert ids == [record.record_id for record in records]
        assert await store.read_log("unknown") is None
        assert await store.read_log("") is None
        for bad in ("x", "-1", "1.5", "²"):
            with pytest.raises(rt.InvalidCursor):
                await store.read_log("t", bad)


async def test_threads_move_between_stores(database: str, tenant: str) -> None:
    source, target = stores.MemoryThreadStore(), f"{tenant}-copy"
    sample = Sample("t")
    await source.create_thread(sample.metadata(labels={"a": "b"}))
    await source.append("t", [*sample.texts("a", "b"), sample.delta("x"), sample.state("k", 1)])
    async with open_stores(database, tenant) as (store,), open_stores(database, target) as (copy,):
        await stores.copy_store(source, store)
        await stores.copy_store(store, copy)
        wanted = await source.load_thread("t")
        for held in (store, copy):
            found = await held.load_thread("t")
            assert (found.metadata, found.events) == (wanted.metadata, wanted.events)


async def test_ids_with_lone_surrogates_name_no_thread(database: str, tenant: str) -> None:
    async with open_stores(database, tenant) as (store,):
        with pytest.raises(ValueError, match="Unicode text"):
            await store.create_thread(Sample("\ud800").metadata())
        assert await store.load_metadata("\ud800") is None
        with pytest.raises(rt.ThreadNotFound):
            await store.append("\ud800", [])
        sample = await created(store)
        await store.append("t", [sample.user("\ud800 and \0"), sample.item(transcript.AssistantMessage(" \n"))])
        assert await texts(store) == ["\ufffd and \0", " \n"]


async def test_labels_that_change_are_found_and_the_old_ones_not(database: str, tenant: str) -> None:
    async with open_stores(database, tenant) as (store,):
        sample = await created(store, labels={"colour": "red"})
        await store.append("t", [sample.envelope(rt.events.ThreadMetadataChanged(labels={"colour": "blue"}))])
        assert (await store.list_threads(label=("colour", "red"))).threads == ()
        (found,) = (await store.list_threads(label=("colour", "blue"))).threads
        assert dict(found.labels) == {"colour": "blue"}


async def test_the_whole_archive_is_listed_apart(database: str, tenant: str) -> None:
    async with open_stores(database, tenant) as (store,):
        for thread_id in "abc":
            await created(store, thread_id)
        await store.archive_thread("b")
        assert [thread.thread_id for thread in (await store.list_archived()).threads] == ["b"]
        assert [thread.thread_id for thread in (await store.list_threads()).threads] == ["c", "a"]
