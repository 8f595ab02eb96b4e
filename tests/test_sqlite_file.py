"""The file of a SQLite store: ownership, what is no store, other versions, reading beside an owner, torn logs."""

import os
import sqlite3
import stat

import pytest

from roder_trio.errors import (
    CorruptRecord,
    NotAStore,
    SchemaTooNew,
    StorageError,
    StoreInUse,
    StoreReadOnly,
)
from roder_trio.logic.thread.hydration import fold_snapshot
from roder_trio.stores._lock import take_lock
from roder_trio.stores.sqlite.database import Database
from roder_trio.stores.sqlite.query import load_thread
from roder_trio.stores.sqlite.schema import APPLICATION_ID, SCHEMA, TABLES, Migration, Schema
from roder_trio.testing._sample import Sample
from tests.kept_states import fingerprint
from tests.lock_support import lock_copies
from tests.sqlite_sample import SAMPLES, dump, restore
from tests.sqlite_sample import fill as fill_sample
from tests.sqlite_support import Flaw, error_of, fill, made, opened, raw, sign, texts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.db"


async def refused(path, error, match, **options):
    with pytest.raises(error, match=match):
        async with opened(path, **options):
            pass


# -- ownership


async def test_a_second_owner_is_told_who_the_first_is(path):
    async with opened(path):
        await refused(path, StoreInUse, f"process {os.getpid()} ")
    async with opened(path) as store:
        assert (await store.list_threads()).threads == ()


async def test_the_text_of_a_dead_holder_is_no_obstacle_and_a_lock_is(path):
    lock = path.with_name("agent.db.lock")
    lock.write_text('{"pid": 1}')
    await fill(path)
    held = take_lock(lock)
    try:
        await refused(path, StoreInUse, "in use by process")
    finally:
        os.close(held)


async def test_a_copy_of_the_lock_in_a_child_process_does_not_outlive_the_store(path, monkeypatch):
    with lock_copies(monkeypatch, "roder_trio.stores.sqlite.database"):
        await fill(path)
        await fill(path, thread_id="u")


async def test_a_store_that_can_not_be_opened_leaves_the_lock(path):
    path.write_bytes(b"notes of mine")
    for _ in range(2):
        await refused(path, NotAStore, "no SQLite database")


# -- what is no store


@pytest.mark.parametrize("content", [b"notes of mine", b"\0" * 4096, b"SQLite format 2\0" + b"x" * 5000])
@pytest.mark.parametrize("read_only", [True, False])
async def test_a_file_that_is_no_database_is_left_alone(path, content, read_only):
    path.write_bytes(content)
    await refused(path, NotAStore, "no SQLite database", read_only=read_only)
    assert path.read_bytes() == content


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
@pytest.mark.parametrize("read_only", [True, False])
async def test_a_database_of_another_program_is_left_alone(path, mode, read_only):
    raw(path, f"PRAGMA journal_mode = {mode}")
    raw(path, "CREATE TABLE thread (thread_id)")
    before = path.read_bytes()
    await refused(path, NotAStore, "another program", read_only=read_only)
    assert path.read_bytes() == before


async def test_a_folder_is_no_file_and_threads_of_roder_are_named(path):
    path.mkdir()
    await refused(path, StorageError, "is a folder")
    (path / "one").mkdir()
    (path / "one" / "events.jsonl").write_bytes(b"")
    await refused(path, NotAStore, "import_roder")
    await refused(path, NotAStore, "import_roder", read_only=True)


async def test_a_path_below_a_file_is_an_error_that_names_it(path):
    path.write_bytes(b"")
    await refused(path / "inner" / "agent.db", StorageError, "inner")


async def test_an_empty_file_becomes_a_store(path):
    path.touch(mode=0o644)
    await fill(path, ["one"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with opened(path) as store:
        assert texts(await store.load_thread("t")) == ["one"]


async def test_a_log_without_its_database_is_not_thrown_away(path):
    path.with_name("agent.db-wal").write_bytes(b"committed")
    for read_only in (False, True):
        await refused(path, StorageError, "write-ahead log", read_only=read_only)
    assert path.with_name("agent.db-wal").read_bytes() == b"committed"


async def test_what_a_crash_left_half_made_is_removed(path):
    for suffix in (".new", ".new-journal", ".bak.new"):
        path.with_name(path.name + suffix).write_bytes(b"half")
    await fill(path)
    assert {file.name for file in path.parent.iterdir()} == {"agent.db", "agent.db.lock"}


async def test_a_failure_while_it_is_made_leaves_no_store(path, monkeypatch):
    broken = Schema(1, (*TABLES, "CREATE nonsense"))
    await refused(path, StorageError, "can't be opened", schema=broken)
    assert not path.exists()
    await fill(path, ["one"])


async def test_a_file_system_without_a_log_is_told(path):
    class NoLog(sqlite3.Connection):
        def execute(self, statement, *values):
            if statement.startswith("PRAGMA journal_mode"):
                statement = "SELECT 'delete'"
            return super().execute(statement, *values)

    await refused(path, StorageError, "write-ahead log", connection=NoLog)


async def test_an_error_of_the_database_while_opening_names_the_path(path):
    await fill(path)
    flaw = Flaw()
    flaw.fail["PRAGMA application_id"] = error_of(sqlite3.SQLITE_IOERR, "disk I/O error")
    await refused(path, StorageError, "agent.db' can't be opened: disk I/O error", connection=flaw.connection)


# -- versions


async def check_sample(store):
    snapshot = await store.load_thread("active")
    assert [type(e.event).__name__ for e in snapshot.events] == [
        "TurnStarted",
        "TranscriptItemAppended",
        "UsageRecorded",
        "TranscriptItemAppended",
        "ThreadMetadataChanged",
        "TurnCompleted",
    ]
    assert snapshot.events[1].event.item.text == "Grüße\0"
    assert snapshot.metadata.usage.total_tokens == 4
    assert (len(snapshot.item_events), len(snapshot.extension_states)) == (1, 1)
    state = await store.load_state("active")
    assert fingerprint(state) == fingerprint(fold_snapshot(snapshot, snapshot.metadata))
    assert [m.thread_id for m in (await store.list_threads(label=("team", "red"))).threads] == ["active"]
    assert [m.thread_id for m in (await store.list_archived()).threads] == ["archived"]


async def test_what_version_1_stored_stays_readable(path):
    restore(SAMPLES / "sqlite_v1.sql", path)
    async with opened(path, read_only=True) as store:
        await check_sample(store)
    async with opened(path) as store:
        await check_sample(store)
        assert await store.unarchive_thread("archived")


async def test_the_sample_of_the_present_version_is_what_it_writes(tmp_path):
    await fill_sample(tmp_path / "now.db")
    now = [line for line in "\n".join(dump(tmp_path / "now.db")).split("\n") if "INSERT" not in line]
    sample = (SAMPLES / f"sqlite_v{SCHEMA.version}.sql").read_text("utf-8")
    assert now == [line for line in sample.rstrip("\n").split("\n") if "INSERT" not in line]


def add_column(connection):
    connection.execute("ALTER TABLE thread ADD COLUMN note TEXT")


def rewrite_bodies(connection):
    connection.execute("UPDATE entry SET body = replace(body, 'answer', 'reply')")
    sign(connection)


def fail(connection):
    connection.execute("DELETE FROM entry")
    raise RuntimeError("a bug in a step")


def later(*steps):
    return Schema(1 + len(steps), TABLES, dict(enumerate(steps, start=1)))


async def test_an_older_store_is_brought_up_step_by_step_with_a_copy_before_bodies_change(path):
    restore(SAMPLES / "sqlite_v1.sql", path)
    schema = later(Migration(add_column), Migration(rewrite_bodies, rewrites_bodies=True))
    async with opened(path, schema=schema) as store:
        assert (await store.load_thread("active")).events[3].event.item.text == "reply"
    assert raw(path, "PRAGMA user_version") == [(3,)]
    copy = path.with_name("agent.db.v2.bak")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert raw(copy, "PRAGMA user_version") == [(2,)]
    assert raw(copy, "PRAGMA application_id") == [(APPLICATION_ID,)]
    async with opened(copy, schema=later(Migration(add_column)), read_only=True) as store:
        assert (await store.load_thread("active")).events[3].event.item.text == "answer"
    assert not path.with_name("agent.db.v1.bak").exists()


async def test_a_step_that_fails_leaves_the_version_before_it(path):
    restore(SAMPLES / "sqlite_v1.sql", path)
    schema = later(Migration(add_column), Migration(fail))
    await refused(path, StorageError, "left at 2: a bug in a step", schema=schema)
    assert raw(path, "PRAGMA user_version") == [(2,)]
    async with opened(path, schema=later(Migration(add_column), Migration(rewrite_bodies))) as store:
        await check_sample_texts(store)


async def check_sample_texts(store):
    assert (await store.load_thread("active")).events[3].event.item.text == "reply"


async def test_a_version_that_nothing_leads_on_from_is_told(path):
    restore(SAMPLES / "sqlite_v1.sql", path)
    await refused(path, StorageError, "Nothing leads on from schema 1", schema=Schema(2, TABLES))


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_newer_store_is_refused_and_left_alone(path, read_only):
    restore(SAMPLES / "sqlite_v1.sql", path)
    raw(path, "PRAGMA user_version = 7")
    before = path.read_bytes()
    await refused(path, SchemaTooNew, "schema 7", read_only=read_only)
    assert path.read_bytes() == before


async def test_a_reader_migrates_nothing(path):
    restore(SAMPLES / "sqlite_v1.sql", path)
    await refused(path, StorageError, "without read_only", schema=later(Migration(add_column)), read_only=True)
    assert raw(path, "PRAGMA user_version") == [(1,)]


# -- reading only


async def test_a_reader_works_beside_the_owner_and_changes_nothing(path):
    sample = await fill(path, ["one"])
    async with opened(path, read_only=True) as reader:
        assert texts(await reader.load_thread("t")) == ["one"]
        async with opened(path) as store:
            await store.append("t", sample.texts("two"))
            assert texts(await reader.load_thread("t")) == ["one", "two"]
            assert (await reader.load_metadata("t")).message_count == 2
            assert len((await reader.list_threads()).threads) == 1
            assert len(await reader.load_events("t")) == 2
        for call in (
            lambda: reader.create_thread(Sample("x").metadata()),
            lambda: reader.append("t", sample.texts("x")),
            lambda: reader.archive_thread("t"),
            lambda: reader.unarchive_thread("t"),
            lambda: reader.delete_thread("t"),
        ):
            with pytest.raises(StoreReadOnly):
                await call()
        assert texts(await reader.load_thread("t")) == ["one", "two"]


async def test_a_reader_sees_whole_batches_only(path):
    sample = await fill(path, ["one"])
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store, opened(path, read_only=True) as reader:
        flaw.fail["COMMIT"] = error_of(sqlite3.SQLITE_FULL)
        with pytest.raises(StorageError):
            await store.append("t", sample.texts("two", "three"))
        assert texts(await reader.load_thread("t")) == ["one"]


async def test_there_must_be_a_store_to_read(path):
    await refused(path, StorageError, "no store", read_only=True)
    assert list(path.parent.iterdir()) == []


# -- a log that a crash or a bad medium left


async def torn(tmp_path, monkeypatch):
    """The files that a crash after two appends leaves, in small pages; the size of the log before the second."""
    monkeypatch.setattr("roder_trio.stores.sqlite.database.PAGE_BYTES", 512)
    path = tmp_path / "live" / "agent.db"
    sample = await fill(path)
    log = path.with_name("agent.db-wal")
    async with opened(path) as store:
        await store.append("t", sample.texts("first"))
        size = log.stat().st_size
        await store.append("t", sample.texts("second"))
        files = path.read_bytes(), log.read_bytes()
    return (*files, size)


class Torn:
    """A database with a log that can be damaged."""

    def __init__(self, path, database, log):
        self.database = Database(path, power=False)
        path.write_bytes(database)
        self.log = path.with_name(path.name + "-wal")
        self.log.write_bytes(log)

    def read(self):
        """What it gives: texts, or None if the thread is told to be damaged."""
        connection = self.database.connect_reader()
        try:
            return texts(load_thread(connection, "t"))
        except (CorruptRecord, sqlite3.DatabaseError):
            return None
        finally:
            connection.close()


async def test_a_log_cut_at_any_byte_of_its_last_batch_keeps_what_was_before(tmp_path, monkeypatch):
    database, log, size = await torn(tmp_path, monkeypatch)
    store = Torn(tmp_path / "cut.db", database, log)
    assert store.read() == ["first", "second"]
    for cut in reversed(range(size, len(log))):
        os.truncate(store.log, cut)
        assert store.read() == ["first"], cut


async def test_a_flipped_byte_of_the_log_never_changes_what_is_read(tmp_path, monkeypatch):
    database, log, size = await torn(tmp_path, monkeypatch)
    store = Torn(tmp_path / "flip.db", database, log)
    with store.log.open("r+b", buffering=0) as file:
        for place in range(0, len(log), 5):
            file.seek(place)
            file.write(bytes([log[place] ^ 0x41]))
            found = store.read()
            assert found in (None, ["first"], ["first", "second"]) or (place < size and found == []), place
            file.seek(place)
            file.write(log[place : place + 1])
    assert store.read() == ["first", "second"]


async def test_a_store_goes_on_after_a_torn_log(tmp_path, monkeypatch):
    database, log, size = await torn(tmp_path, monkeypatch)
    path = tmp_path / "torn.db"
    path.write_bytes(database)
    path.with_name("torn.db-wal").write_bytes(log[: size + 700])
    async with opened(path) as store:
        assert texts(await store.load_thread("t")) == ["first"]
        assert (await store.load_metadata("t")).message_count == 1
        sample = Sample("t")
        sample.made = 9
        await store.append("t", sample.texts("next"))
        assert texts(await store.load_thread("t")) == ["first", "next"]


async def test_what_a_killed_process_left_in_the_log_is_brought_to_the_medium_when_the_store_opens(
    tmp_path, monkeypatch
):
    database, log, _ = await torn(tmp_path, monkeypatch)
    path = tmp_path / "left.db"
    path.write_bytes(database)
    path.with_name("left.db-wal").write_bytes(log)
    assert b'"second"' not in database
    async with opened(path):
        assert b'"second"' in path.read_bytes()


def test_the_store_reads_through_the_database_it_was_made_with(path):
    assert made(path, schema=later(Migration(add_column)))._readers._database.schema.version == 2
