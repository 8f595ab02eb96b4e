"""The writer of the SQLite store: groups, savepoints, busy databases, commits that fail, cancellation, its end."""

import os
import sqlite3
import threading
from functools import partial

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from roder_trio.errors import (
    AppendOutcomeUnknown,
    CorruptRecord,
    InvalidRecord,
    StorageError,
    ThreadNotFound,
)
from roder_trio.schema import transcript
from roder_trio.stores.sqlite.writer import Writer
from roder_trio.testing._sample import Sample
from tests.sqlite_support import Flaw, error_of, fill, made, opened, raw, texts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.db"


def later(text):
    """A record that no other call of these tests makes."""
    return attrs.evolve(Sample("t").user(text), event_id=text)


async def blocked_in(flaw, statement, nursery, call):
    """Start a call and wait until the writer is held in a statement of it."""
    flaw.block.add(statement)
    nursery.start_soon(call)
    await trio.to_thread.run_sync(flaw.blocked.wait)


def released(flaw):
    flaw.block.clear()
    flaw.release.set()


async def outcome(outcomes, name, call):
    try:
        await call()
        outcomes[name] = None
    except Exception as error:
        outcomes[name] = error


# -- groups


async def test_a_hundred_appends_at_once_share_commits_that_one_thread_makes(path):
    async with opened(path, durability="power") as store:
        samples = [Sample(f"t{number}") for number in range(100)]
        for sample in samples:
            await store.create_thread(sample.metadata())
        writer = store._writer
        before = writer.commits
        threads = threading.active_count()
        async with trio.open_nursery() as nursery:
            for sample in samples:
                nursery.start_soon(store.append, sample.thread_id, sample.texts("x"))
        assert 1 <= writer.commits - before <= 20
        assert writer.committers == {writer._thread.ident}
        assert threading.active_count() == threads
        for sample in samples:
            assert texts(await store.load_thread(sample.thread_id)) == ["x"]


async def test_a_group_is_what_arrived_during_the_commit_before(path):
    await fill(path)
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        async with trio.open_nursery() as nursery:
            await blocked_in(flaw, "COMMIT", nursery, partial(store.append, "t", [later("first")]))
            for number in range(30):
                nursery.start_soon(store.append, "t", [later(f"{number}")])
            await wait_all_tasks_blocked()
            before = store._writer.commits
            released(flaw)
        assert store._writer.commits - before == 2


async def test_a_group_has_a_bound(path, monkeypatch):
    monkeypatch.setattr("roder_trio.stores.sqlite.writer.MAX_GROUP", 4)
    await fill(path)
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        async with trio.open_nursery() as nursery:
            await blocked_in(flaw, "COMMIT", nursery, partial(store.append, "t", [later("first")]))
            for number in range(8):
                nursery.start_soon(store.append, "t", [later(f"{number}")])
            await wait_all_tasks_blocked()
            released(flaw)
        assert store._writer.commits == 3


async def test_callers_wake_in_the_order_of_their_calls(path):
    await fill(path)
    flaw = Flaw()
    asked, woken = [], []

    async def append(store, name):
        asked.append(name)
        await store.append("t", [later(name)])
        woken.append(name)

    async with opened(path, connection=flaw.connection) as store:
        async with trio.open_nursery() as nursery:
            await blocked_in(flaw, "COMMIT", nursery, partial(append, store, "first"))
            for number in range(40):
                nursery.start_soon(append, store, f"{number}")
            await wait_all_tasks_blocked()
            released(flaw)
        assert woken == asked
        assert texts(await store.load_thread("t")) == asked


async def test_a_bad_append_of_a_group_fails_alone(path):
    sample = await fill(path, ["one"])
    flaw = Flaw()
    outcomes = {}
    bad = sample.item(transcript.ProviderMetadata({"value": {1}}))
    async with opened(path, connection=flaw.connection) as store:
        async with trio.open_nursery() as nursery:
            await blocked_in(flaw, "COMMIT", nursery, partial(store.append, "t", [later("first")]))
            for name, batch in {"good": [later("a")], "bad": [later("b"), bad], "fine": [later("c")]}.items():
                nursery.start_soon(outcome, outcomes, name, partial(store.append, "t", batch))
                await wait_all_tasks_blocked()
            nursery.start_soon(outcome, outcomes, "gone", partial(store.append, "gone", [Sample("gone").user("x")]))
            await wait_all_tasks_blocked()
            released(flaw)
        assert {name: type(error) for name, error in outcomes.items()} == {
            "good": type(None),
            "bad": InvalidRecord,
            "fine": type(None),
            "gone": ThreadNotFound,
        }
        assert texts(await store.load_thread("t")) == ["one", "first", "a", "c"]


# -- a foreign tool in the way


async def test_a_writer_that_is_kept_waiting_stores_when_the_other_tool_is_done(path, monkeypatch):
    monkeypatch.setattr("roder_trio.stores.sqlite.database.BUSY_SECONDS", 0.01)
    await fill(path)
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        flaw.seen.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.append, "t", [later("x")])
            while flaw.seen.count("BEGIN IMMEDIATE") < 3:  # noqa: ASYNC110 - a thread makes them
                await trio.lowlevel.checkpoint()
            other.execute("COMMIT")
        other.close()
        assert texts(await store.load_thread("t")) == ["x"]


async def test_a_writer_that_is_kept_waiting_too_long_stored_nothing(path, monkeypatch):
    monkeypatch.setattr("roder_trio.stores.sqlite.database.BUSY_SECONDS", 0.01)
    await fill(path)
    outcomes = {}
    async with opened(path, append_timeout=0.1) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(outcome, outcomes, name, partial(store.append, "t", [later(name)]))
        assert {type(error) for error in outcomes.values()} == {StorageError}
        assert "nothing was stored" in str(outcomes["a"])
        other.execute("COMMIT")
        other.close()
        await store.append("t", [later("c")])
        assert texts(await store.load_thread("t")) == ["c"]


async def test_a_commit_that_takes_too_long_is_unknown_and_may_be_repeated(path):
    await fill(path)
    flaw = Flaw()
    async with opened(path, connection=flaw.connection, append_timeout=0.05) as store:
        flaw.block.add("COMMIT")
        with pytest.raises(AppendOutcomeUnknown, match="may still store"):
            await store.append("t", [later("x")])
        released(flaw)
        await store.append("t", [later("x")])
        assert texts(await store.load_thread("t")) == ["x"]


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


# -- bugs, cancellation, the end


async def test_a_crash_of_the_writer_fails_every_waiting_call_with_its_cause(path, monkeypatch):
    await fill(path)
    outcomes = {}
    async with opened(path) as store:
        bug = RuntimeError("a bug")

        def crash(group):
            raise bug

        monkeypatch.setattr(store._writer, "_commit", crash)
        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(outcome, outcomes, name, partial(store.append, "t", [later(name)]))
        assert {type(error) for error in outcomes.values()} == {StorageError}
        assert all(error.__cause__ is bug for error in outcomes.values())
        monkeypatch.undo()
        await store.append("t", [later("a")])
        assert texts(await store.load_thread("t")) == ["a"]


async def test_a_crash_in_the_middle_of_a_group_is_unknown(path, monkeypatch):
    await fill(path)
    async with opened(path) as store:

        def crash(connection, jobs):
            raise RuntimeError("a bug")

        monkeypatch.setattr(store._writer, "_scrub", crash)
        with pytest.raises(AppendOutcomeUnknown, match="a bug"):
            await store.append("t", [later("a")])
        monkeypatch.undo()
        await store.append("t", [later("a"), later("b")])
        assert texts(await store.load_thread("t")) == ["a", "b"]


async def test_a_bug_in_one_call_fails_that_call(path, monkeypatch):
    await fill(path)
    async with opened(path) as store:
        monkeypatch.setattr(store._documents, "read", lambda *_: 1 // 0)
        with pytest.raises(StorageError, match="ZeroDivisionError"):
            await store.append("t", [later("a")])
        monkeypatch.undo()
        await store.append("t", [later("a")])


async def test_an_append_cancelled_before_it_is_handed_over_stores_nothing_and_later_ones_return(path):
    await fill(path)
    flaw = Flaw()
    done = []
    async with opened(path, connection=flaw.connection) as store:
        with trio.CancelScope() as early:
            early.cancel()
            await store.append("t", [later("early")])
        assert early.cancelled_caught

        late = trio.CancelScope()

        async def append():
            with late:
                await store.append("t", [later("late")])
                done.append("late")

        async with trio.open_nursery() as nursery:
            await blocked_in(flaw, "COMMIT", nursery, append)
            late.cancel()
            await wait_all_tasks_blocked()
            released(flaw)
        assert (done, late.cancelled_caught) == (["late"], False)
        assert texts(await store.load_thread("t")) == ["late"]


async def test_leaving_finishes_what_was_accepted_and_ends_the_thread(path):
    await fill(path)
    flaw = Flaw()
    store = made(path, connection=flaw.connection)
    outcomes = {}
    leave = trio.Event()

    async def hold():
        async with store.open():
            opened_now.set()
            await leave.wait()

    opened_now = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await opened_now.wait()
        await blocked_in(
            flaw, "COMMIT", nursery, partial(outcome, outcomes, "a", partial(store.append, "t", [later("a")]))
        )
        nursery.start_soon(outcome, outcomes, "b", partial(store.append, "t", [later("b")]))
        await wait_all_tasks_blocked()
        leave.set()
        await wait_all_tasks_blocked()
        released(flaw)
    assert outcomes == {"a": None, "b": None}
    assert not store._writer._thread.is_alive()
    assert not path.with_name("agent.db-wal").exists()
    async with opened(path) as store:
        assert texts(await store.load_thread("t")) == ["a", "b"]


def test_a_writer_ends_without_an_event_loop_too(path):
    token = trio.run(trio.to_thread.run_sync, lambda: trio.from_thread.run_sync(trio.lowlevel.current_trio_token))
    store = made(path)
    lock, connection = store._database.own()
    writer = Writer(store._database, connection, 1.0, token)
    writer.start()
    writer._queue.put(None)
    writer._thread.join()
    os.close(lock)
    assert writer.connection is None


async def test_the_log_stays_small_while_a_store_is_used(path, monkeypatch):
    monkeypatch.setattr("roder_trio.stores.sqlite.database.LOG_PAGES", 16)
    sample = await fill(path)
    async with opened(path) as store:
        for _ in range(40):
            await store.append("t", [sample.user("x" * 20_000)])
        assert path.with_name("agent.db-wal").stat().st_size < 40 * 8192


@pytest.mark.parametrize(("durability", "level"), [("power", 2), ("process", 1)])
async def test_durability_is_how_far_a_commit_waits(path, durability, level):
    async with opened(path, durability=durability) as store:
        connection = store._writer.connection
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA secure_delete").fetchone() == (1,)
        assert connection.execute("PRAGMA fullfsync").fetchone() == (int(level == 2),)


# -- what an append costs


async def statements_of(store, call):
    """The statements that the writer runs for a call, with the numbers of rows that it may visit by scanning."""
    seen = []
    connection = store._writer.connection
    connection.set_trace_callback(seen.append)
    await call()
    connection.set_trace_callback(None)
    return seen


async def test_an_append_costs_the_same_statements_however_long_the_log_is(path):
    sample = await fill(path)
    async with opened(path) as store:
        found = []
        for length in (0, 1, 2000):
            await store.append("t", [sample.usage(f"a{n}-{length}", 1, 1, 1, 2) for n in range(length)])
            batch = [sample.user("x"), sample.usage("one", length + 1, length + 1, 1, 2)]
            found.append(await statements_of(store, partial(store.append, "t", batch)))
        shapes = [[statement.partition(" ")[0] for statement in one] for one in found]
        assert shapes[0] == shapes[1] == shapes[2]
        assert len(shapes[0]) <= 11
        plans = [
            step
            for statement in found[2]
            if statement.partition(" ")[0] in ("SELECT", "UPDATE", "INSERT")
            for (_, _, _, step) in raw(path, f"EXPLAIN QUERY PLAN {statement}")
        ]
        assert not [step for step in plans if step.startswith("SCAN") and "json_each" not in step]


async def test_damage_in_the_way_of_a_change_is_told_as_damage(path):
    await fill(path)
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        flaw.fail["SELECT number"] = error_of(sqlite3.SQLITE_CORRUPT, "malformed")
        with pytest.raises(CorruptRecord, match="malformed"):
            await store.append("t", [later("x")])
