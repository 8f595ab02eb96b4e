"""The writer of the SQLite store: groups, savepoints, busy databases, commits that fail, cancellation, its end."""

import os
import sqlite3
import threading
from functools import partial

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
from tests.sqlite_support import Flaw, blocked_in, error_of, fill, later, made, opened, outcome, released, texts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.db"


# -- groups


async def test_a_hundred_appends_at_once_share_a_commit_that_one_thread_makes(path):
    await fill(path)
    flaw = Flaw()
    async with opened(path, connection=flaw.connection, durability="power") as store:
        samples = [Sample(f"t{number}") for number in range(100)]
        for sample in samples:
            await store.create_thread(sample.metadata())
        writer = store._writer
        async with trio.open_nursery() as nursery:
            await blocked_in(flaw, "COMMIT", nursery, partial(store.append, "t", [later("first")]))
            before, threads = writer.commits, set(threading.enumerate())
            for sample in samples:
                nursery.start_soon(store.append, sample.thread_id, sample.texts("x"))
            await wait_all_tasks_blocked()
            released(flaw)
        assert writer.commits - before == 2
        assert writer.committers == {writer._thread.ident}
        assert set(threading.enumerate()) <= threads
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


async def test_a_caller_whose_time_is_over_holds_up_nobody_behind_it(path, mock_clock):
    await fill(path)
    flaw = Flaw()
    outcomes = {}
    async with opened(path, connection=flaw.connection) as store:
        writer = store._writer
        async with trio.open_nursery() as nursery:
            await blocked_in(flaw, "COMMIT", nursery, partial(store.append, "t", [later("first")]))
            writer._bound = 1
            nursery.start_soon(outcome, outcomes, "late", partial(store.append, "t", [later("late")]))
            await wait_all_tasks_blocked()
            writer._bound = 30
            for name in ("a", "b"):
                nursery.start_soon(outcome, outcomes, name, partial(store.append, "t", [later(name)]))
                await wait_all_tasks_blocked()
            mock_clock.jump(1)
            await wait_all_tasks_blocked()
            assert list(outcomes) == ["late"]
            released(flaw)
        assert {name: type(error) for name, error in outcomes.items()} == {
            "late": StorageError,
            "a": type(None),
            "b": type(None),
        }
        assert texts(await store.load_thread("t")) == ["first", "a", "b"]
        assert writer._woken is None


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


async def test_a_writer_that_is_kept_waiting_too_long_stored_nothing(path, monkeypatch, mock_clock):
    monkeypatch.setattr("roder_trio.stores.sqlite.database.BUSY_SECONDS", 0.01)
    await fill(path)
    outcomes = {}
    async with opened(path, append_timeout=1) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(outcome, outcomes, name, partial(store.append, "t", [later(name)]))
            await wait_all_tasks_blocked()
            mock_clock.jump(1)
        assert {type(error) for error in outcomes.values()} == {StorageError}
        assert "nothing was stored" in str(outcomes["a"])
        other.execute("COMMIT")
        other.close()
        await store.append("t", [later("c")])
        assert texts(await store.load_thread("t")) == ["c"]


async def test_a_commit_that_takes_too_long_is_unknown_and_may_be_repeated(path, mock_clock):
    await fill(path)
    flaw = Flaw()
    outcomes = {}
    async with opened(path, connection=flaw.connection, append_timeout=1) as store:
        async with trio.open_nursery() as nursery:
            append = partial(store.append, "t", [later("x")])
            await blocked_in(flaw, "COMMIT", nursery, partial(outcome, outcomes, "x", append))
            mock_clock.jump(1)
        with pytest.raises(AppendOutcomeUnknown, match="may still store"):
            raise outcomes["x"]
        released(flaw)
        await store.append("t", [later("x")])
        assert texts(await store.load_thread("t")) == ["x"]


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


async def test_damage_in_the_way_of_a_change_is_told_as_damage(path):
    await fill(path)
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        flaw.fail["SELECT thread.number"] = error_of(sqlite3.SQLITE_CORRUPT, "malformed")
        with pytest.raises(CorruptRecord, match="malformed"):
            await store.append("t", [later("x")])
