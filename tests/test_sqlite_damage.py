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
from roder_trio.stores.sqlite.schema import PAGE_BYTES
from roder_trio.stores.transfer import check_store
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


# -- rows that say what nobody stored


READS = {
    "thread": lambda store: store.load_thread("t"),
    "state": lambda store: store.load_state("t"),
    "events": lambda store: store.load_events("t"),
    "log": lambda store: store.read_log("t"),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("damage", "position"),
    [
        ("UPDATE entry SET body = replace(body, 'two', 'ten') WHERE position = 2", 2),
        ("UPDATE entry SET body = CAST(body AS BLOB) WHERE position = 2", 2),
        ("UPDATE entry SET record_id = 't/7' WHERE position = 2", 2),
        ("UPDATE entry SET crc = crc + 1 WHERE position = 1", 1),
        ("UPDATE thread SET last_position = 2", "its metadata"),
        ("UPDATE thread SET last_seq = 2", "its metadata"),
        ("UPDATE thread SET archived_at = '2026'", "its metadata"),
        ("UPDATE thread SET number = 2", "its metadata"),
    ],
)
async def test_a_row_that_was_changed_is_never_believed(path, damage, position, read):
    await fill(path, ["one"], ["two"], ["three"])
    raw(path, damage)
    async with opened(path) as store:
        with pytest.raises(CorruptRecord) as error:
            await READS[read](store)
        assert error.value.position == position


@pytest.mark.parametrize(
    "field", ["metadata = replace(metadata, ':3', ':4')", "updated_at = '2027'", "last_item_seq = 1"]
)
async def test_metadata_that_were_changed_are_never_believed(path, field):
    sample = await fill(path, ["one"], ["two"], ["three"])
    raw(path, f"UPDATE thread SET {field}")
    async with opened(path) as store:
        assert (await store.list_threads()).damaged == ("t",)
        for call in (
            partial(store.load_metadata, "t"),
            partial(store.append, "t", sample.texts("four")),
            partial(store.archive_thread, "t"),
            partial(store.create_thread, sample.metadata()),
        ):
            with pytest.raises(CorruptRecord, match="its metadata"):
                await call()


async def test_an_attempt_that_was_changed_fails_the_report_that_follows(path):
    sample = await fill(path)
    async with opened(path) as store:
        await store.append("t", [sample.usage("a", 1, 3, 1, 4), sample.usage("b", 1, 3, 1, 4)])
        raw(path, "UPDATE attempt SET report = 9 WHERE attempt_id = 'a'")
        with pytest.raises(CorruptRecord, match="attempt 'a'"):
            await store.append("t", [sample.usage("a", 2, 5, 1, 6)])
        await store.append("t", [sample.usage("b", 2, 5, 1, 6)])
        assert (await store.load_metadata("t")).usage.total_tokens == 10


async def test_text_that_is_no_unicode_is_damage_whose_error_does_not_quote_it(path):
    await fill(path, ["a secret"])
    raw(path, "UPDATE entry SET body = CAST(x'ff' || CAST(body AS BLOB) AS TEXT) WHERE position = 1")
    async with opened(path) as store:
        with pytest.raises(CorruptRecord, match="no UTF-8") as error:
            await store.load_thread("t")
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


# -- indexes that lost something


def lose_last(path, *names):
    """Have the one page of each of these indexes or tables hold one entry less, as a flipped bit may."""
    for name in names:
        ((root,),) = raw(path, "SELECT rootpage FROM sqlite_master WHERE name = ?", name)
        with path.open("r+b") as file:
            file.seek((root - 1) * PAGE_BYTES + 3)
            count = int.from_bytes(file.read(2), "big")
            file.seek(-2, 1)
            file.write((count - 1).to_bytes(2, "big"))


async def test_a_thread_that_an_index_of_names_lost_is_not_unknown(path):
    sample = await fill(path, ["one"])
    lose_last(path, "thread_name")
    async with opened(path) as store:
        for call in (
            partial(store.load_thread, "t"),
            partial(store.load_metadata, "t"),
            partial(store.append, "t", sample.texts("two")),
            partial(store.create_thread, sample.metadata()),
            partial(store.delete_thread, "t"),
        ):
            with pytest.raises(CorruptRecord, match="one of two indexes"):
                await call()
        assert await store.load_thread("nobody") is None


@pytest.mark.parametrize("index", ["attempt", "attempt_again"])
async def test_an_attempt_that_an_index_lost_is_not_counted_anew(path, index):
    sample = await fill(path)
    async with opened(path) as store:
        await store.append("t", [sample.usage("a", 1, 3, 1, 4)])
    lose_last(path, index)
    async with opened(path) as store:
        if index == "attempt":
            with pytest.raises(CorruptRecord, match="its attempts"):
                await store.append("t", [sample.usage("a", 2, 5, 1, 6)])
            assert (await store.load_metadata("t")).usage.total_tokens == 4
        await store.append("t", [sample.usage("b", 1, 5, 1, 6)])
        assert (await store.load_metadata("t")).usage.total_tokens == 10


async def test_a_record_that_an_index_lost_and_that_is_stored_again_is_told_by_who_reads(path):
    sample = await fill(path, ["one"])
    async with opened(path) as store:
        await store.append("t", again := sample.texts("two"))
    lose_last(path, "sqlite_autoindex_entry_2")
    async with opened(path) as store:
        await store.append("t", again)
        for read in (store.load_thread, store.load_state):
            with pytest.raises(CorruptRecord, match="the same record stands before it already") as told:
                await read("t")
            assert told.value.position == 3
        assert "stands before it already" in (await check_store(store)).failures["t"]


@pytest.mark.parametrize("index", ["thread_listing", "label_pair", "label_again"])
async def test_a_listing_that_an_index_shortened_says_so(path, index):
    async with opened(path) as store:
        for name in "abc":
            await store.create_thread(Sample(name).metadata(labels={"k": "v"}))
    lose_last(path, index)
    async with opened(path) as store:
        listing = {"label": ("k", "v")} if "label" in index else {}
        with pytest.raises(StorageError, match="REINDEX"):
            await store.list_threads(**listing)
        assert (await store.load_metadata("c")).thread_id == "c"
    raw(path, "REINDEX")
    async with opened(path) as store:
        assert len((await store.list_threads(**listing)).threads) == 3


async def test_labels_that_contradict_their_threads_are_told(path):
    async with opened(path) as store:
        for name, value in ("av", "bw"):
            await store.create_thread(Sample(name).metadata(labels={"k": value}))
    raw(path, "UPDATE label SET thread_id = 'c' WHERE thread_id = 'a'")
    async with opened(path) as store:
        page = await store.list_threads(label=("k", "v"))
        assert (page.threads, page.damaged) == ((), ("c",))
        raw(path, "UPDATE label SET value = 'v' WHERE thread_id = 'b'")
        with pytest.raises(StorageError, match="hasn't this label"):
            await store.list_threads(label=("k", "v"))


@pytest.mark.parametrize("threads", [1, 3])
async def test_a_listing_of_another_length_than_was_counted_is_told_at_its_end(path, threads):
    async with opened(path) as store:
        for name in "ab":
            await store.create_thread(Sample(name).metadata())
        raw(path, "UPDATE tally SET threads = ? WHERE archived = 0", threads)
        page = await store.list_threads(limit=1)
        with pytest.raises(StorageError, match="another number"):
            await store.list_threads(cursor=page.next_cursor)
        assert (await store.list_archived()).threads == ()


@pytest.mark.parametrize("date", ["2026", "3026"])
async def test_an_index_with_an_entry_out_of_place_hides_no_thread(path, date):
    async with opened(path) as store:
        for number, name in enumerate("abcd"):
            await store.create_thread(Sample(name).metadata(number))
    ((root,),) = raw(path, "SELECT rootpage FROM sqlite_master WHERE name = 'thread_listing'")
    page = bytearray(path.read_bytes()[(root - 1) * PAGE_BYTES : root * PAGE_BYTES])
    found = page.index(b"2026-01-02T03:04:05")
    page[found : found + 19] = f"{date}-01-02T03:04:07".encode()
    with path.open("r+b") as file:
        file.seek((root - 1) * PAGE_BYTES)
        file.write(page)
    async with opened(path) as store:
        with pytest.raises(StorageError, match="REINDEX"):
            cursor = None
            for _ in "abc":
                cursor = (await store.list_threads(limit=2, cursor=cursor)).next_cursor


async def test_a_labelled_thread_that_is_damaged_is_named(path):
    async with opened(path) as store:
        for number, name in enumerate("abcd"):
            await store.create_thread(Sample(name).metadata(number, labels={"k": "v"}))
        await store.archive_thread("d")
    raw(path, "UPDATE thread SET updated_at = '2020' WHERE thread_id = 'b'")
    async with opened(path) as store:
        page = await store.list_threads(label=("k", "v"))
        assert ([row.thread_id for row in page.threads], page.damaged) == (["c", "a"], ("b",))
        page = await store.list_threads(label=("k", "v"), limit=1)
        assert ([row.thread_id for row in page.threads], page.damaged) == (["c"], ())
        page = await store.list_threads(label=("k", "v"), limit=1, cursor=page.next_cursor)
        assert ([row.thread_id for row in page.threads], page.next_cursor, page.damaged) == (["a"], None, ("b",))


@pytest.mark.parametrize("archived_at", ["NULL", "'2026'"])
async def test_a_thread_that_is_damaged_can_be_deleted_and_the_others_are_counted(path, archived_at):
    await fill(path, ["one"], thread_id="a")
    await fill(path, ["two"], thread_id="b")
    raw(path, f"UPDATE thread SET archived_at = {archived_at}, metadata = '{{}}' WHERE thread_id = 'a'")
    async with opened(path) as store:
        assert await store.delete_thread("a")
        assert await store.load_thread("a") is None
        assert [row.thread_id for row in (await store.list_threads()).threads] == ["b"]
        assert (await store.list_archived()).threads == ()


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
