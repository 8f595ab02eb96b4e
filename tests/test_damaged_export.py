"""A damaged export is refused, with the place of the damage and nothing stored."""

import json
import re

import pytest

from roder_trio import stores
from roder_trio.errors import (
    CorruptRecord,
    SchemaTooNew,
    StorageError,
)
from roder_trio.stores import import_thread
from roder_trio.stores._frame import encode_batch, encode_header
from roder_trio.testing._sample import Sample
from tests.transfer_support import exported


async def test_a_damaged_export_is_refused_and_leaves_no_thread(tmp_path):
    path = await exported(tmp_path, [[Sample("t").user("a")], [Sample("t").user("b")]])
    whole = path.read_bytes()
    target = stores.MemoryThreadStore()
    for index in range(0, len(whole), 7):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises((CorruptRecord, SchemaTooNew)):
            await import_thread(target, path)
    assert (await target.list_threads()).threads == ()


async def test_an_export_that_is_cut_anywhere_is_refused(tmp_path):
    path = await exported(tmp_path, [[Sample("t").user("a")], [Sample("t").user("b")]])
    whole = path.read_bytes()
    ends = [match.end() for match in re.finditer(b"\n", whole)]
    assert ends.pop() == len(whole)
    target = stores.MemoryThreadStore()
    for size in (*range(0, len(whole), 7), *ends):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptRecord):
            await import_thread(target, path)
    assert (await target.list_threads()).threads == ()


async def test_what_follows_the_end_of_an_export_is_refused(tmp_path):
    path = await exported(tmp_path, [[Sample("t").user("a")]])
    path.write_bytes(path.read_bytes() + batch(4, {**STATE, "scope": {"type": "thread", "thread_id": "t"}}))
    with pytest.raises(CorruptRecord, match="batch 5 is damaged or missing"):
        await import_thread(stores.MemoryThreadStore(), path)


async def test_the_journal_of_a_store_is_imported_as_it_is(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(encode_header("t") + batch(1, CREATION))
    assert (await import_thread(stores.MemoryThreadStore(), path)).thread_id == "t"


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
    with pytest.raises(StorageError, match="its id is not Unicode text"):
        await import_thread(target, path)
    assert await target.load_thread("t") is None


async def test_a_newer_export_and_no_export_are_told(tmp_path):
    path = tmp_path / "export"
    path.write_bytes(encode_header("t").replace(b'"version":1', b'"version":2'))
    with pytest.raises(SchemaTooNew):
        await import_thread(stores.MemoryThreadStore(), path)
    with pytest.raises(StorageError, match=r"missing' can't be read: .*No such file"):
        await import_thread(stores.MemoryThreadStore(), tmp_path / "missing")
