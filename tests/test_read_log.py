"""Logs as they are stored, piece by piece, of every store."""

import pytest

from roder_trio import codec, stores
from roder_trio.errors import (
    CorruptRecord,
    InvalidCursor,
)
from roder_trio.stores import _listing
from roder_trio.stores.jsonl import pages
from roder_trio.testing._sample import Sample
from tests.transfer_support import OPAQUE, all_kinds, fill, jsonl, log_of


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
async def store(request, tmp_path):
    made = {
        "memory": stores.MemoryThreadStore,
        "jsonl": lambda: stores.JsonlThreadStore(tmp_path / "store", durability="process"),
        "sqlite": lambda: stores.SqliteThreadStore(tmp_path / "store.db", durability="process"),
    }[request.param]()
    async with made.open():
        yield made


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
    with pytest.raises(InvalidCursor):
        _listing.log_position(cursor, 4)


def test_a_cursor_may_stand_anywhere_in_a_log():
    assert [_listing.log_position(cursor, 4) for cursor in (None, "0", "4")] == [0, 0, 4]


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
