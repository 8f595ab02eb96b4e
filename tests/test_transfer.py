"""Exports and imports: whatever the store, a thread arrives as it was, once, or not at all."""

import json

import attrs
import pytest
import trio

import roder_trio as rt
from roder_trio import stores, testing
from roder_trio.errors import (
    StorageError,
    ThreadExists,
    ThreadNotFound,
)
from roder_trio.stores import _batch, copy_store, export_thread, import_thread, memory
from roder_trio.stores._frame import encode_batch
from roder_trio.stores.jsonl import pages
from roder_trio.stores.transfer import file
from roder_trio.testing._sample import START, Sample
from tests.transfer_support import Plain, all_kinds, exported, fill, jsonl, log_of, random_batches, same_threads


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
async def store(request, tmp_path):
    made = {
        "memory": stores.MemoryThreadStore,
        "jsonl": lambda: stores.JsonlThreadStore(tmp_path / "store", durability="process"),
        "sqlite": lambda: stores.SqliteThreadStore(tmp_path / "store.db", durability="process"),
    }[request.param]()
    async with made.open():
        yield made


async def test_export_import_export_gives_equal_records(store, tmp_path):
    await fill(store, title="Title", labels={"a": "b"}, workspace="/tmp")
    await export_thread(store, "t", tmp_path / "first")
    other = stores.MemoryThreadStore()
    imported = await import_thread(other, tmp_path / "first")
    assert imported == await store.load_metadata("t") == await other.load_metadata("t")
    await same_threads(store, other, "t")
    await export_thread(other, "t", tmp_path / "second")
    assert await log_of(other) == await log_of(store)
    first, second = [(tmp_path / name).read_text().splitlines() for name in ("first", "second")]
    assert first[:2] == second[:2]
    records = [[record for line in lines[2:] for record in json.loads(line)["records"]] for lines in (first, second)]
    assert records[0] == records[1] == (await log_of(store))[1]


async def test_an_export_has_the_form_of_a_journal_and_the_text_of_the_store(tmp_path):
    async with jsonl(tmp_path / "store") as store:
        await fill(store)
        await export_thread(store, "t", tmp_path / "export")
        header, *batches = (tmp_path / "export").read_bytes().splitlines(keepends=True)
        begin, *journal = (tmp_path / "store" / "threads" / "t.jsonl").read_bytes().splitlines(keepends=True)
        assert json.loads(header) == json.loads(begin) | {"closed": True}
        assert batches == [*journal, encode_batch(len(journal) + 1, [])]
        assert (tmp_path / "export").stat().st_mode & 0o777 == 0o600
    (tmp_path / "other" / "threads").mkdir(parents=True)
    (tmp_path / "export").rename(tmp_path / "other" / "threads" / "t.jsonl")
    async with jsonl(tmp_path / "other") as other:
        assert (await other.load_thread("t")).metadata.message_count == 2
        more = Sample("t")
        more.made = 100
        await other.append("t", [more.user("more")])
        await other.release_thread("t")
        assert (await other.load_thread("t")).metadata.message_count == 3


async def test_an_archived_thread_is_exported_as_well(store, tmp_path):
    await fill(store)
    before = await store.load_thread("t")
    await store.archive_thread("t")
    await export_thread(store, "t", tmp_path / "export")
    assert await store.load_thread("t") is None
    other = stores.MemoryThreadStore()
    await import_thread(other, tmp_path / "export")
    assert attrs.evolve(await other.load_thread("t"), repairs=()) == before


async def test_an_export_of_a_store_that_shows_no_logs_is_made_of_its_snapshot(tmp_path):
    plain, other = Plain(), stores.MemoryThreadStore()
    await fill(plain)
    await export_thread(plain, "t", tmp_path / "export")
    await import_thread(other, tmp_path / "export")
    await same_threads(plain, other, "t")
    assert len((await log_of(other))[1]) == len(all_kinds()) - 1, "what a snapshot can't hold is left out"
    await plain.archive_thread("t")
    with pytest.raises(ThreadNotFound):
        await export_thread(plain, "t", tmp_path / "another")


async def test_what_a_log_does_not_explain_of_metadata_survives_a_snapshot(tmp_path):
    class Counts(Plain):
        async def load_thread(self, thread_id):
            snapshot = await super().load_thread(thread_id)
            found = attrs.evolve(
                snapshot.metadata, message_count=7, usage=rt.TokenUsage(9, 9, 18), updated_at=START.replace(year=2030)
            )
            return attrs.evolve(snapshot, metadata=found)

    store = Counts()
    await fill(store, batches=[[Sample("t").user("x")]])
    await export_thread(store, "t", tmp_path / "export")
    imported = await import_thread(stores.MemoryThreadStore(), tmp_path / "export")
    assert imported == (await store.load_thread("t")).metadata


async def test_a_thread_that_is_not_there_is_not_exported(store, tmp_path):
    for missing in ("missing", ""):
        with pytest.raises(ThreadNotFound):
            await export_thread(store, missing, tmp_path / "export")
    assert not list(tmp_path.glob("export*"))


async def test_a_file_is_overwritten_only_where_that_is_wanted(store, tmp_path):
    await fill(store)
    path = tmp_path / "export"
    path.write_text("mine")
    with pytest.raises(StorageError, match=r"There is a file at .*export.*overwrite=True"):
        await export_thread(store, "t", path)
    assert path.read_text() == "mine"
    await export_thread(store, "t", path, overwrite=True)
    assert path.read_text().startswith('{"format":"roder_trio.thread"')
    assert sorted(tmp_path.glob("export*")) == [path]


async def test_a_file_that_comes_while_an_export_is_written_is_not_replaced(tmp_path):
    class Slow(stores.MemoryThreadStore):
        async def read_log(self, thread_id, cursor=None):
            (tmp_path / "export").write_text("mine")
            return await super().read_log(thread_id, cursor)

    store = Slow()
    await fill(store)
    with pytest.raises(StorageError, match="There is a file"):
        await export_thread(store, "t", tmp_path / "export")
    assert (tmp_path / "export").read_text() == "mine"
    assert len(list(tmp_path.glob("export*"))) == 1


async def test_an_export_that_can_not_be_written_says_so_and_one_that_is_cancelled_leaves_nothing(tmp_path):
    store = stores.MemoryThreadStore()
    await fill(store)
    with pytest.raises(StorageError, match=r"can't be written: .*No such file"):
        await export_thread(store, "t", tmp_path / "missing" / "export")

    class Hangs(stores.MemoryThreadStore):
        async def read_log(self, thread_id, cursor=None):
            page = await super().read_log(thread_id, cursor)
            if cursor is not None:
                scope.cancel()
                await trio.sleep_forever()
            return attrs.evolve(page, next_cursor="1")

    store = Hangs()
    await fill(store)
    with trio.CancelScope() as scope:
        await export_thread(store, "t", tmp_path / "export")
    assert scope.cancelled_caught
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(3))
async def test_random_threads_arrive_as_they_were_piece_by_piece(store, tmp_path, monkeypatch, seed):
    for module, name, value in (
        (memory, "LOG_PAGE", 3),
        (pages, "PIECE", 100),
        (file, "CHUNK_RECORDS", 2),
        (_batch, "CHUNK_RECORDS", 2),
    ):
        monkeypatch.setattr(module, name, value)
    await fill(store, batches=random_batches("t", seed))
    await export_thread(store, "t", tmp_path / "export")
    async with jsonl(tmp_path / "other") as other:
        await import_thread(other, tmp_path / "export")
        await same_threads(store, other, "t")
        assert await log_of(other) == await log_of(store)
        third = stores.MemoryThreadStore()
        await copy_store(other, third)
        assert await log_of(third) == await log_of(store)


async def test_batches_are_appended_together_up_to_some_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(_batch, "CHUNK_BYTES", 3000)
    sample = Sample("t")
    async with jsonl(tmp_path / "store") as store:
        await fill(store, batches=[[sample.user("x" * size)] for size in (10, 10, 10, 5000, 10, 2000, 2000)])
        await export_thread(store, "t", tmp_path / "export")
        imported, copied = [testing.FaultyStore(stores.MemoryThreadStore()) for _ in range(2)]
        await import_thread(imported, tmp_path / "export")
        await copy_store(store, copied)
        for target in (imported, copied):
            assert target.appends == 4
            await same_threads(store, target, "t")


async def test_a_thread_under_a_new_id_is_the_same_thread_with_ids_of_its_own(store, tmp_path):
    await fill(store)
    await export_thread(store, "t", tmp_path / "export")
    imported = await import_thread(store, tmp_path / "export", new_id="new")
    assert imported == attrs.evolve(await store.load_metadata("t"), thread_id="new")
    (_, old), (created, new) = await log_of(store), await log_of(store, "new")
    assert created["metadata"]["thread_id"] == "new"
    renewed = [record.get("event_id") or record["record_id"] for record in new]
    assert not {record.get("event_id") or record["record_id"] for record in old} & set(renewed)
    for before, after in zip(old, new, strict=True):
        changed = json.dumps(before).replace('"thread_id": "t"', '"thread_id": "new"')
        changed = changed.replace('"value": {"thread_id": "new"}', '"value": {"thread_id": "t"}')
        for key in ("event_id", "record_id"):
            if key in before:
                changed = changed.replace(f'"{key}": "{before[key]}"', f'"{key}": "{after[key]}"')
        assert json.loads(changed) == after
    assert new[3]["event"]["ancestors"] == [
        {"thread_id": "parent", "goal_id": "p"},
        {"thread_id": "new", "goal_id": "g"},
    ]
    # again: nothing; another id: another thread
    await import_thread(store, tmp_path / "export", new_id="new")
    assert (await log_of(store, "new"))[1] == new
    await import_thread(store, tmp_path / "export", new_id="newer")
    others = [record.get("event_id") or record["record_id"] for record in (await log_of(store, "newer"))[1]]
    assert not set(others) & set(renewed)


async def test_a_copy_of_a_descendants_usage_keeps_whose_it_was(tmp_path):
    sample, store = Sample("t"), stores.MemoryThreadStore()
    batch = [sample.usage("a", 1, 1, 1, 2, origin_thread_id=origin) for origin in ("child", "t")]
    await fill(store, batches=[batch])
    await export_thread(store, "t", tmp_path / "export")
    await import_thread(store, tmp_path / "export", new_id="new")
    origins = [record["event"]["origin_thread_id"] for record in (await log_of(store, "new"))[1]]
    assert origins == ["child", "new"]


async def test_the_own_id_as_a_new_one_renews_nothing(tmp_path):
    store, other = stores.MemoryThreadStore(), stores.MemoryThreadStore()
    await fill(store)
    await export_thread(store, "t", tmp_path / "export")
    await import_thread(other, tmp_path / "export", new_id="t")
    assert await log_of(other) == await log_of(store)


async def test_an_import_that_fails_at_any_append_is_completed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "CHUNK_RECORDS", 1)
    store = stores.MemoryThreadStore()
    await fill(store)
    await exported(tmp_path)
    for number in range(1, len(all_kinds()) + 1):
        for fault in ("fail", "fail_after"):
            target = testing.FaultyStore(stores.MemoryThreadStore(), **{fault: {number: StorageError("now")}})
            with pytest.raises(StorageError, match="now"):
                await import_thread(target, tmp_path / "export")
            await import_thread(target, tmp_path / "export")
            assert await log_of(target) == await log_of(store)
            await import_thread(target, tmp_path / "export")
            assert await log_of(target) == await log_of(store)


async def test_a_thread_is_claimed_while_it_is_filled_and_released_after_all():
    calls = []

    class Shared(stores.MemoryThreadStore):
        async def claim_thread(self, thread_id):
            calls.append(("claim", thread_id))

        async def release_thread(self, thread_id):
            calls.append(("release", thread_id))

        async def append(self, thread_id, records):
            calls.append("append")
            raise StorageError("no")

    store = stores.MemoryThreadStore()
    await fill(store)
    report = await copy_store(store, Shared())
    assert report.failed == {"t": "no"}
    assert calls == [("claim", "t"), "append", ("release", "t")]


async def test_another_thread_or_an_archived_one_under_the_id_is_not_touched(tmp_path):
    store, target = stores.MemoryThreadStore(), stores.MemoryThreadStore()
    await fill(store)
    await export_thread(store, "t", tmp_path / "export")
    await target.create_thread(Sample("t").metadata(title="Another"))
    with pytest.raises(ThreadExists):
        await import_thread(target, tmp_path / "export")
    assert (await target.load_metadata("t")).title == "Another"
    await store.archive_thread("t")
    with pytest.raises(ThreadExists):
        await import_thread(store, tmp_path / "export")


@pytest.mark.parametrize("bad", ["", "a\0b", "x" * 513, 3])
async def test_a_new_id_that_is_none_is_refused(tmp_path, bad):
    with pytest.raises(ValueError, match="a thread id must be Unicode text"):
        await import_thread(stores.MemoryThreadStore(), tmp_path / "export", new_id=bad)


async def test_a_thread_that_vanishes_while_it_is_imported_is_told(tmp_path):
    class Forgets(stores.MemoryThreadStore):
        async def load_metadata(self, thread_id):
            await trio.lowlevel.checkpoint()

    store = stores.MemoryThreadStore()
    await fill(store)
    await export_thread(store, "t", tmp_path / "export")
    with pytest.raises(ThreadNotFound):
        await import_thread(Forgets(), tmp_path / "export")
