"""A SQLite store whose disk fails: what is told, what is stored, and that it goes on."""

import sqlite3
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from roder_trio.errors import (
    AppendOutcomeUnknown,
    InvalidRecord,
    StorageError,
)
from roder_trio.schema import transcript
from roder_trio.testing import check_thread_store
from roder_trio.testing._sample import Sample
from tests.sqlite_support import Flaw, blocked_in, error_of, fill, later, made, opened, outcome, raw, released, texts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.db"


# -- commits that fail


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY])
async def test_a_commit_that_is_undone_for_certain_stored_nothing_for_all_of_its_group(path, code):
    await fill(path)
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        flaw.fail["COMMIT"] = error_of(code)
        with pytest.raises(StorageError) as error:
            await store.append("t", [later("x")])
        assert not isinstance(error.value, AppendOutcomeUnknown)
        assert texts(await store.load_thread("t")) == []
        await store.append("t", [later("x")])
        assert texts(await store.load_thread("t")) == ["x"]


@pytest.mark.parametrize("also", [{}, {"ROLLBACK": error_of(sqlite3.SQLITE_IOERR)}])
async def test_a_commit_that_fails_on_the_medium_is_unknown_and_the_store_answers_from_the_file(path, also):
    await fill(path)
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        flaw.fail.update({"COMMIT": error_of(sqlite3.SQLITE_IOERR), **also})
        with pytest.raises(AppendOutcomeUnknown, match="unknown"):
            await store.append("t", [later("x")])
        assert (await store.load_metadata("t")).message_count == 0
        await store.append("t", [later("x")])
        assert texts(await store.load_thread("t")) == ["x"]


async def test_an_unknown_commit_is_unknown_to_those_alone_whose_records_were_in_it(path):
    await fill(path)
    flaw = Flaw()
    outcomes = {}
    bad = Sample("t").item(transcript.ProviderMetadata({"value": {1}}))
    async with opened(path, connection=flaw.connection) as store:
        async with trio.open_nursery() as nursery:
            await blocked_in(
                flaw, "BEGIN", nursery, partial(outcome, outcomes, "a", partial(store.append, "t", [later("a")]))
            )
            for name, batch in {"b": [later("b")], "bad": [bad]}.items():
                nursery.start_soon(outcome, outcomes, name, partial(store.append, "t", batch))
            await wait_all_tasks_blocked()
            flaw.fail["BEGIN"] = error_of(sqlite3.SQLITE_IOERR)
            flaw.fail["COMMIT"] = error_of(sqlite3.SQLITE_IOERR)
            released(flaw)
        assert {name: type(error) for name, error in outcomes.items()} == {
            "a": StorageError,
            "b": AppendOutcomeUnknown,
            "bad": InvalidRecord,
        }
        assert texts(await store.load_thread("t")) == []


async def test_a_full_disk_fails_the_group_and_the_store_goes_on(path):
    sample = await fill(path, ["one"])
    async with opened(path) as store:
        connection = store._writer.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageError, match="full") as error:
            await store.append("t", [sample.user("x" * 200_000)])
        assert not isinstance(error.value, AppendOutcomeUnknown)
        connection.execute("PRAGMA max_page_count = 1000000")
        await store.append("t", [later("x")])
        assert texts(await store.load_thread("t")) == ["one", "x"]


async def test_a_transaction_that_the_database_ended_fails_all_that_were_in_it(path):
    await fill(path)
    flaw = Flaw()
    outcomes = {}

    def ended():
        store._writer.connection.rollback()
        return error_of(sqlite3.SQLITE_FULL, "the disk is full")

    async with opened(path, connection=flaw.connection) as store:
        async with trio.open_nursery() as nursery:
            await blocked_in(flaw, "COMMIT", nursery, partial(store.append, "t", [later("first")]))
            for name in ("a", "b"):
                nursery.start_soon(outcome, outcomes, name, partial(store.append, "t", [later(name)]))
                await wait_all_tasks_blocked()
            flaw.fail["INSERT INTO entry"] = ended
            released(flaw)
        assert {type(error) for error in outcomes.values()} == {StorageError}
        assert texts(await store.load_thread("t")) == ["first"]


# -- files that go away


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_files_that_were_removed_fail_what_changes_until_they_are_back(path, suffix):
    await fill(path, ["one"])
    file = path.with_name(path.name + suffix)
    async with opened(path) as store:
        await store.append("t", [later("two")])
        file.rename(path.with_name("away"))
        with pytest.raises(StorageError, match="removed or replaced"):
            await store.append("t", [later("three")])
        path.with_name("away").rename(file)
        await store.append("t", [later("three")])
        assert texts(await store.load_thread("t")) == ["one", "two", "three"]


async def test_a_file_that_was_replaced_is_not_written(path, tmp_path):
    await fill(path, ["one"])
    await fill(tmp_path / "other.db", ["other"])
    async with opened(path) as store:
        (tmp_path / "other.db").replace(path)
        with pytest.raises(StorageError, match="removed or replaced"):
            await store.append("t", [later("two")])
    assert raw(path, "SELECT json_extract(body, '$.event.item.text') FROM record") == [("other",)]


# -- the contract under faults


def broken(store, point):
    flaw = store.flaw
    if point == "before":
        flaw.fail["BEGIN"] = error_of(sqlite3.SQLITE_IOERR)
    elif point == "in":
        flaw.fail["COMMIT"] = error_of(sqlite3.SQLITE_FULL)
    else:
        flaw.fail_after["COMMIT"] = error_of(sqlite3.SQLITE_IOERR)


def flawed(path):
    flaw = Flaw()
    store = made(path, connection=flaw.connection)
    store.flaw = flaw
    return store


async def test_the_contract_holds_with_failures_before_in_and_after_a_commit(path):
    await check_thread_store(lambda: flawed(path), fault=broken)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_ERROR])
async def test_an_error_after_the_commit_is_never_told_as_not_stored(path, code):
    await fill(path)
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        flaw.fail_after["COMMIT"] = error_of(code)
        with pytest.raises(AppendOutcomeUnknown):
            await store.append("t", [later("x")])
        assert texts(await store.load_thread("t")) == ["x"]
        await store.append("t", [later("x"), later("y")])
        assert texts(await store.load_thread("t")) == ["x", "y"]


@pytest.mark.parametrize("statement", ["VACUUM", "PRAGMA wal_checkpoint"])
async def test_a_deletion_whose_bytes_can_not_be_removed_now_says_so(path, statement):
    sample = await fill(path, ["Marker-4713"])
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        flaw.fail[statement] = error_of(sqlite3.SQLITE_FULL)
        with pytest.raises(AppendOutcomeUnknown, match="is deleted"):
            await store.delete_thread("t")
        assert not await store.delete_thread("t")
        await store.create_thread(sample.metadata())
    assert b"Marker-4713" not in path.read_bytes()


async def test_a_large_file_is_not_written_anew_after_a_deletion(path, monkeypatch):
    monkeypatch.setattr("roder_trio.stores.sqlite.writer.MAX_PACKED_BYTES", 0)
    await fill(path, ["Marker-4714"])
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        assert await store.delete_thread("t")
    assert "VACUUM" not in flaw.seen
    assert b"Marker-4714" not in path.read_bytes()


async def test_a_connection_that_can_not_be_made_again_fails_calls_until_it_can(path):
    await fill(path)
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        flaw.fail.update(COMMIT=error_of(sqlite3.SQLITE_FULL), ROLLBACK=error_of(sqlite3.SQLITE_IOERR))
        with pytest.raises(AppendOutcomeUnknown):
            await store.append("t", [later("x")])
        flaw.fail["PRAGMA journal_mode"] = error_of(sqlite3.SQLITE_CANTOPEN, "unable to open")
        with pytest.raises(StorageError, match="unable to open"):
            await store.append("t", [later("x")])
        await store.append("t", [later("x")])
        assert texts(await store.load_thread("t")) == ["x"]
