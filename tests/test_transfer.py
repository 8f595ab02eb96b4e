"""Exports, imports and copies: whatever the store, a thread arrives as it was, once, or not at all."""

import json
import re

import attrs
import pytest
import trio

import roder_trio as rt
from roder_trio import codec, stores, testing
from roder_trio.errors import (
    CorruptRecord,
    InvalidCursor,
    SchemaTooNew,
    StorageError,
    StoreUnsupported,
    ThreadExists,
    ThreadNotFound,
)
from roder_trio.stores import _batch, _listing, copy_store, export_thread, import_thread, memory
from roder_trio.stores._frame import encode_batch, encode_header
from roder_trio.stores.jsonl import pages
from roder_trio.stores.transfer import copy, file
from roder_trio.testing._sample import START, Sample
from tests.transfer_support import OPAQUE, Plain, all_kinds, fill, jsonl, log_of, random_batches, same_threads


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
async def store(request, tmp_path):
    made = {
        "memory": stores.MemoryThreadStore,
        "jsonl": lambda: stores.JsonlThreadStore(tmp_path / "store", durability="process"),
        "sqlite": lambda: stores.SqliteThreadStore(tmp_path / "store.db", durability="process"),
    }[request.param]()
    async with made.open():
        yield made


# -- exports and imports


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
        assert (tmp_path / "export").read_bytes() == (tmp_path / "store" / "threads" / "t.jsonl").read_bytes()
        assert (tmp_path / "export").stat().st_mode & 0o777 == 0o600
    (tmp_path / "other" / "threads").mkdir(parents=True)
    (tmp_path / "export").rename(tmp_path / "other" / "threads" / "t.jsonl")
    async with jsonl(tmp_path / "other") as other:
        assert (await other.load_thread("t")).metadata.message_count == 2


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
    with pytest.raises(ValueError, match="a thread id must be text"):
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


# -- damage


async def exported(tmp_path, batches=None):
    async with jsonl(tmp_path / "origin") as store:
        await fill(store, batches=batches or ())
        await export_thread(store, "t", tmp_path / "export")
    return tmp_path / "export"


async def test_a_damaged_export_is_refused_and_leaves_no_thread(tmp_path):
    path = await exported(tmp_path, [[Sample("t").user("a")], [Sample("t").user("b")]])
    whole = path.read_bytes()
    target = stores.MemoryThreadStore()
    for index in range(0, len(whole), 7):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises((CorruptRecord, SchemaTooNew)):
            await import_thread(target, path)
    assert (await target.list_threads()).threads == ()


async def test_an_export_that_is_cut_anywhere_but_between_batches_is_refused(tmp_path):
    path = await exported(tmp_path, [[Sample("t").user("a")]])
    whole = path.read_bytes()
    ends = {match.end() for match in re.finditer(b"\n", whole)}
    for size in range(0, len(whole), 5):
        if size not in ends:
            path.write_bytes(whole[:size])
            with pytest.raises(CorruptRecord):
                await import_thread(stores.MemoryThreadStore(), path)


def batch(number, *values):
    return encode_batch(number, [json.dumps(value).encode() for value in values])


CREATION = {"type": "thread", "metadata": {"thread_id": "t", "created_at": "2026-01-01T00:00:00Z"}}
CREATION["metadata"]["updated_at"] = CREATION["metadata"]["created_at"]
STATE = {"type": "extension_state", "record_id": "r", "extension_id": "x", "key": "k", "schema_version": 1, "value": 1}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "line 2"),
        ([batch(2, CREATION)], "line 2"),
        ([batch(1, STATE)], "not the creation"),
        ([batch(1, {"type": "thread", "metadata": {}})], "its creation"),
        ([batch(1, {**CREATION, "metadata": {**CREATION["metadata"], "thread_id": "u"}})], "it creates 'u'"),
        ([batch(1, CREATION), batch(3, STATE)], "batch 2 is damaged or missing"),
        ([batch(1, CREATION), batch(2, {**STATE, "scope": {"type": "thread", "thread_id": "u"}})], "another thread"),
        ([batch(1, CREATION), batch(2, STATE)], "damaged at 1"),
        ([batch(1, CREATION), batch(2, {"type": "event", "event_id": "e"})], "damaged at 1"),
    ],
)
async def test_what_does_not_fit_in_an_export_is_told_by_place(tmp_path, lines, told):
    (tmp_path / "export").write_bytes(encode_header("t") + b"".join(lines))
    target = stores.MemoryThreadStore()
    with pytest.raises(CorruptRecord, match=told):
        await import_thread(target, tmp_path / "export")
    assert await target.load_thread("t") is None


async def test_a_record_without_an_id_is_refused_before_anything_is_stored(tmp_path):
    path = tmp_path / "export"
    path.write_bytes(encode_header("t") + batch(1, CREATION) + batch(2, {"type": "newer", "value": 1}))
    target = stores.MemoryThreadStore()
    with pytest.raises(StorageError, match="its id is not text"):
        await import_thread(target, path)
    assert await target.load_thread("t") is None


async def test_a_newer_export_and_no_export_are_told(tmp_path):
    path = tmp_path / "export"
    path.write_bytes(encode_header("t").replace(b'"version":1', b'"version":2'))
    with pytest.raises(SchemaTooNew):
        await import_thread(stores.MemoryThreadStore(), path)
    with pytest.raises(StorageError, match=r"missing' can't be read: .*No such file"):
        await import_thread(stores.MemoryThreadStore(), tmp_path / "missing")


# -- copies


async def test_all_threads_are_copied_archived_ones_too_and_again_adds_nothing(store, tmp_path):
    for name in ("a", "b", "gone"):
        await fill(store, name, batches=random_batches(name, name))
    await store.archive_thread("gone")
    target = stores.MemoryThreadStore()
    for _ in range(2):
        report = await copy_store(store, target)
        assert sorted(report.copied) == ["a", "b", "gone"]
        assert report.failed == {}
        await same_threads(store, target, "a", "b")
        assert [row.thread_id for row in (await target.list_archived()).threads] == ["gone"]
        assert await log_of(target, "gone") == await log_of(store, "gone")
    await store.append("a", [Sample("a").user("new")])
    await copy_store(store, target)
    await same_threads(store, target, "a")


async def test_a_damaged_thread_does_not_stop_the_others(tmp_path):
    async with jsonl(tmp_path / "store") as store:
        for name in ("a", "b", "c"):
            await fill(store, name)
    path = tmp_path / "store" / "threads" / "b.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[3].replace(b'"crc":"', b'"crc":"0'), *lines[4:]]))
    async with jsonl(tmp_path / "store") as store, jsonl(tmp_path / "target") as target:
        report = await copy_store(store, target)
        assert sorted(report.copied) == ["a", "c"]
        assert report.failed == {"b": "it is damaged and can't be described"}
        assert await target.load_thread("b") is None


async def test_a_thread_that_the_target_refuses_is_told_by_name(tmp_path):
    store, target = stores.MemoryThreadStore(), stores.MemoryThreadStore()
    for name in ("a", "b"):
        await fill(store, name)
    await target.create_thread(Sample("a").metadata(title="Another"))
    report = await copy_store(store, target)
    assert report.copied == ("b",)
    assert "'a' is taken" in report.failed["a"]


async def test_plain_stores_are_copied_as_far_as_they_show_themselves():
    source_, target = Plain(), Plain()
    await fill(source_, "a")
    await fill(source_, "gone")
    await source_.archive_thread("gone")
    assert (await copy_store(source_, target)).copied == ("a",)
    await same_threads(source_, target, "a")
    shipped = stores.MemoryThreadStore()
    await fill(shipped, "b")
    await shipped.archive_thread("b")
    assert (await copy_store(shipped, target)).copied == ("b",)
    assert await target.load_thread("b") is None


@pytest.mark.parametrize("error", [StorageError, StoreUnsupported])
async def test_a_store_that_can_not_list_is_no_source(error):
    class Mute(Plain):
        async def list_threads(self, **_):
            raise error("mute")

    with pytest.raises(error, match="mute"):
        await copy_store(Mute(), Plain())


async def test_every_page_of_a_listing_is_copied(monkeypatch):
    monkeypatch.setattr(copy, "MAX_PAGE", 2)
    store, target = stores.MemoryThreadStore(), stores.MemoryThreadStore()
    for number in range(10):
        await fill(store, f"{number}", batches=[[Sample(f"{number}").user("x")]])
    for number in range(0, 10, 2):
        await store.archive_thread(f"{number}")
    assert len((await copy_store(store, target)).copied) == 10
    assert len((await target.list_threads()).threads) == len((await target.list_archived()).threads) == 5


async def test_a_log_that_is_no_json_is_damage(tmp_path):
    class Broken(stores.MemoryThreadStore):
        async def read_log(self, thread_id, cursor=None):
            return attrs.evolve(await super().read_log(thread_id, cursor), batches=[b"[{]"])

    store = Broken()
    await fill(store)
    report = await copy_store(store, stores.MemoryThreadStore())
    assert "'t' is damaged at 1: not JSON" in report.failed["t"]


async def test_a_thread_that_is_removed_while_others_are_copied_is_left_out():
    class Removing(stores.MemoryThreadStore):
        async def list_threads(self, **arguments):
            page = await super().list_threads(**arguments)
            await self.delete_thread("b")
            return page

    store, target = Removing(), stores.MemoryThreadStore()
    for name in ("a", "b"):
        await fill(store, name)
    assert (await copy_store(store, target)).copied == ("a",)
    assert [row.thread_id for row in (await target.list_threads()).threads] == ["a"]


# -- logs as they are stored


async def test_a_log_is_shown_as_it_is_stored_active_or_archived(store):
    await fill(store)
    created, records = await log_of(store)
    assert created == {"type": "thread", "metadata": codec.to_json(Sample("t").metadata())}
    assert [codec.decode_record(record) for record in records] == all_kinds()
    assert records[-1] == OPAQUE.value
    assert not (await store.read_log("t")).archived
    await store.archive_thread("t")
    assert (await store.read_log("t")).archived
    assert await log_of(store) == (created, records)
    for unknown in ("unknown", "", "a\0b"):
        assert await store.read_log(unknown) is None


async def test_the_log_of_an_empty_thread_has_no_batches(store):
    await store.create_thread(Sample("t").metadata())
    page = await store.read_log("t")
    assert (page.batches, page.next_cursor) == ((), None)


@pytest.mark.parametrize("cursor", ["", "x", "-1", "5", "7-2", "9" * 30, "0-0", 5])
async def test_a_cursor_of_nobody_is_refused(tmp_path, cursor):
    async with jsonl(tmp_path / "store") as store:
        await fill(store)
        with pytest.raises(InvalidCursor):
            await store.read_log("t", cursor)
    if cursor != "5":
        with pytest.raises(InvalidCursor):
            _listing.log_position(cursor)


def cut(path, edit):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(edit(lines)))


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda lines: [lines[0].replace(b'"t"', b'"u"'), *lines[1:]], "it is of thread 'u'"),
        (lambda lines: [lines[0]], "batch that created the thread is missing"),
        (lambda lines: [lines[0], b"garbage\n", *lines[1:]], "batch that created the thread is missing"),
        (lambda lines: [*lines[:2], *lines[3:]], "batch 3 stands where batch 2 belongs"),
        (lambda lines: [*lines[:2], b"garbage\n", *lines[2:]], "offset .* no batch stand before a whole one"),
        (lambda lines: [*lines[:4], b"garbage\n", *lines[4:]], "offset .* no batch stand before a whole one"),
    ],
)
async def test_a_journal_that_is_damaged_inside_is_not_shown_as_if_it_were_whole(tmp_path, edit, told):
    async with jsonl(tmp_path / "store") as store:
        await fill(store)
    cut(tmp_path / "store" / "threads" / "t.jsonl", edit)
    async with jsonl(tmp_path / "store", read_only=True) as store:
        with pytest.raises(CorruptRecord, match=told):
            await log_of(store)


@pytest.mark.parametrize("tail", [b"torn", b"torn\n", b'{"batch":9,"crc":"00000000","records":[]}\n', b"\0" * 50])
@pytest.mark.parametrize("piece", [100, 10**6])
async def test_a_torn_tail_ends_the_log_and_stays(tmp_path, monkeypatch, tail, piece):
    monkeypatch.setattr(pages, "PIECE", piece)
    async with jsonl(tmp_path / "store") as store:
        await fill(store)
        whole = await log_of(store)
    path = tmp_path / "store" / "threads" / "t.jsonl"
    path.write_bytes(path.read_bytes() + tail)
    async with jsonl(tmp_path / "store", read_only=True) as store:
        assert await log_of(store) == whole
    assert path.read_bytes().endswith(tail)
