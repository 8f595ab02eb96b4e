"""Damage that a SQLite store meets, and what a deletion leaves: nothing."""

from functools import partial

import attrs
import pytest

from roder_trio.errors import (
    AppendOutcomeUnknown,
    CorruptRecord,
    StorageError,
)
from roder_trio.schema.event import ThreadMetadataChanged
from roder_trio.stores import MemoryThreadStore, copy_store, export_thread
from roder_trio.testing._sample import Sample
from tests.sqlite_support import Flaw, fill, opened, raw, texts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "agent.db"


# -- damage


@pytest.mark.parametrize(
    ("statement", "position"),
    [
        ("UPDATE entry SET body = '{' WHERE position = 2", 2),
        ("UPDATE entry SET body = json_remove(body, '$.source') WHERE position = 2", 2),
        ("UPDATE entry SET body = json_set(body, '$.thread_id', 'other') WHERE position = 2", 2),
        ("UPDATE entry SET body = json_set(body, '$.timestamp', '2026-01-01T00:00:00') WHERE position = 2", 2),
        ("DELETE FROM entry WHERE position = 2", 2),
        ("DELETE FROM entry WHERE position = 3", 3),
        ("UPDATE thread SET metadata = '{}' WHERE thread_id = 'bad'", "its metadata"),
    ],
)
async def test_damage_names_its_place_and_harms_no_other_thread(path, statement, position):
    await fill(path, ["fine"], thread_id="good")
    await fill(path, ["one"], ["two"], ["three"], thread_id="bad")
    raw(path, statement + (" AND thread = 2" if "entry" in statement else ""))
    async with opened(path) as store:
        with pytest.raises(CorruptRecord) as error:
            await store.load_thread("bad")
        assert (error.value.thread_id, error.value.position) == ("bad", position)
        page = await store.list_threads()
        if position == "its metadata":
            assert ([m.thread_id for m in page.threads], page.damaged) == (["good"], ("bad",))
            with pytest.raises(CorruptRecord):
                await store.append("bad", [attrs.evolve(Sample("bad").user("x"), event_id="new")])
        else:
            assert (len(page.threads), page.damaged) == (2, ())
        assert texts(await store.load_thread("good")) == ["fine"]


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_a_log_that_lacks_a_record_is_not_passed_on_as_whole(path, tmp_path, lost):
    await fill(path, ["one"], ["two"], ["three"])
    raw(path, f"DELETE FROM entry WHERE position = {lost}")
    async with opened(path) as store:
        calls = (
            partial(store.load_events, "t"),
            partial(store.read_log, "t"),
            partial(export_thread, store, "t", tmp_path / "export"),
        )
        for call in calls:
            with pytest.raises(CorruptRecord) as error:
                await call()
            assert (error.value.thread_id, error.value.position) == ("t", lost)
        assert not (tmp_path / "export").exists()
        assert list((await copy_store(store, MemoryThreadStore())).failed) == ["t"]
        # no read that an error ended holds what is to be removed
        assert await store.delete_thread("t")


async def test_a_row_without_a_date_is_listed_as_damaged(path):
    await fill(path, ["fine"])
    raw(path, "UPDATE thread SET updated_at = 'yesterday'")
    async with opened(path) as store:
        page = await store.list_threads()
    assert (page.threads, page.damaged) == ((), ("t",))


@pytest.mark.parametrize("damage", ["DELETE FROM entry WHERE position = 0", "UPDATE entry SET body = '[]'"])
async def test_a_creation_that_is_lost_is_told_by_who_needs_it(path, damage):
    await fill(path)
    raw(path, damage)
    async with opened(path) as store:
        with pytest.raises(CorruptRecord, match="its creation"):
            await store.create_thread(Sample("t").metadata())
        assert (await store.load_metadata("t")).thread_id == "t"


async def test_a_broken_file_is_corrupt_not_a_crash(path):
    await fill(path, ["x" * 100_000])
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (size - 8192))
    async with opened(path) as store:
        with pytest.raises(CorruptRecord, match="the database file"):
            await store.load_thread("t")
        with pytest.raises(StorageError):
            await store.append("t", Sample("t").texts("x"))


async def test_a_reader_that_fails_is_replaced(path):
    await fill(path, ["one"])
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        for error in (OSError("gone"), RuntimeError("a bug")):
            flaw.fail["SELECT"] = error
            with pytest.raises(StorageError, match=str(error)):
                await store.load_thread("t")
        assert texts(await store.load_thread("t")) == ["one"]


# -- deletion


async def test_a_deleted_thread_leaves_no_byte_in_any_file(path):
    marker = "Marker-4711-"
    keep = Sample("kept")
    async with opened(path) as store:
        await store.create_thread(keep.metadata())
        samples = [Sample(f"{marker}{n}") for n in range(30)]
        for sample in samples:
            await store.create_thread(sample.metadata(labels={marker: marker}, title=marker * 3))
        for round in range(10):
            for sample in samples:
                change = ThreadMetadataChanged(title=marker * (round + 1), labels={marker: marker * round})
                await store.append(
                    sample.thread_id,
                    [
                        sample.user(marker * 40 * round),
                        sample.usage(f"{marker}{round}", 1, 1, 1, 2),
                        sample.envelope(change, None),
                    ],
                )
                await store.append("kept", keep.texts("x" * 300))
        for n, sample in enumerate(samples):
            if n % 2:
                await store.archive_thread(sample.thread_id)
            assert await store.delete_thread(sample.thread_id)
        assert len((await store.load_thread("kept")).events) == 300
        assert all(marker.encode() not in file.read_bytes() for file in path.parent.iterdir())
    assert all(marker.encode() not in file.read_bytes() for file in path.parent.iterdir())


async def test_a_deletion_whose_bytes_a_reader_holds_says_so_and_a_later_change_removes_them(path, monkeypatch):
    monkeypatch.setattr("roder_trio.stores.sqlite.writer.SCRUB_SECONDS", 0.05)
    sample = await fill(path, ["first"])
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        await store.create_thread(Sample("other").metadata())
        await store.append("t", sample.texts("Marker-4712"))
        reader = store._database.connect_reader()
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM thread").fetchall()
        with pytest.raises(AppendOutcomeUnknown, match="deleted"):
            await store.delete_thread("t")
        assert await store.load_thread("t") is None
        await store.append("other", Sample("other").texts("x"))
        assert flaw.seen.count("VACUUM") == 1
        with pytest.raises(AppendOutcomeUnknown):
            await store.delete_thread("t")
        reader.close()
        await store.append("other", [Sample("other").user("y")])
        assert not await store.delete_thread("t")
        assert b"Marker-4712" not in path.with_name("agent.db-wal").read_bytes() + path.read_bytes()
