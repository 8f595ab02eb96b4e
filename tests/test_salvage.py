"""What can be saved of a damaged journal: every whole batch, every gap told, the damaged file left alone."""

import json

import pytest

from roder_trio import stores
from roder_trio.errors import CorruptRecord, SchemaTooNew, StorageError, ThreadExists
from roder_trio.stores import import_thread, salvage_thread
from roder_trio.stores._frame import encode_batch, encode_header
from roder_trio.testing._sample import Sample
from tests.transfer_support import fill, jsonl, log_of, same_threads

TEXTS = ("one", "two", "three")


async def journal(tmp_path):
    """The path of a journal with three batches of one record each."""
    sample = Sample("t")
    async with jsonl(tmp_path / "store") as store:
        await fill(store, batches=[[sample.user(text)] for text in TEXTS], title="Title")
    return tmp_path / "store" / "threads" / "t.jsonl"


async def salvaged(path):
    """The report, and the texts and the metadata that a store then holds; a second file must hold the same."""
    before = path.read_bytes()
    store, other = stores.MemoryThreadStore(), stores.MemoryThreadStore()
    report = await salvage_thread(path, store)
    copy = path.with_name("salvaged")
    assert await salvage_thread(path, copy) == report
    await import_thread(other, copy)
    await same_threads(store, other, report.thread_id)
    assert path.read_bytes() == before
    snapshot = await store.load_thread(report.thread_id)
    assert report.records == len((await log_of(store, report.thread_id))[1])
    return report, [envelope.event.item.text for envelope in snapshot.events], snapshot.metadata


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


async def test_a_whole_journal_is_saved_without_a_gap(tmp_path):
    path = await journal(tmp_path)
    report, texts, metadata = await salvaged(path)
    assert (report.thread_id, report.records, report.gaps) == ("t", 3, ())
    assert (texts, metadata.title) == (list(TEXTS), "Title")
    header, *batches, end = lines_of(path.with_name("salvaged"))
    assert (json.loads(header)["closed"], batches, end) == (True, lines_of(path)[1:], encode_batch(5, []))


async def test_an_export_that_was_cut_between_batches_is_saved_with_a_gap_at_its_end(tmp_path):
    path = await journal(tmp_path)
    await salvage_thread(path, tmp_path / "export")
    export = tmp_path / "export"
    assert (await salvaged(export))[0].gaps == ()
    (tmp_path / "salvaged").unlink()
    export.write_bytes(b"".join(lines_of(export)[:-2]))
    report, texts, _ = await salvaged(export)
    assert texts == list(TEXTS[:2])
    (gap,) = report.gaps
    assert (gap.offset, gap.bytes) == (export.stat().st_size, 0)
    assert gap.reason == "the export was cut here: the batch that closes it is missing"
    (tmp_path / "salvaged").unlink()
    export.write_bytes(lines_of(export)[0] + b"\0")
    with pytest.raises(CorruptRecord, match="neither its creation nor any record"):
        await salvage_thread(export, tmp_path / "salvaged")


@pytest.mark.parametrize("line", [2, 3, 4])
async def test_a_batch_that_a_flipped_byte_spoiled_is_a_gap(tmp_path, line):
    path = await journal(tmp_path)
    lines = lines_of(path)
    offset = sum(map(len, lines[:line]))
    lines[line] = lines[line].replace(b"turn", b"tarn")
    path.write_bytes(b"".join(lines))
    report, texts, _ = await salvaged(path)
    assert texts == [text for number, text in enumerate(TEXTS, start=2) if number != line]
    assert (report.gaps[0].offset, report.gaps[0].bytes) == (offset, len(lines[line]))
    assert report.gaps[0].reason == "bytes that are no whole batch"
    missing = [gap.reason for gap in report.gaps[1:]]
    assert missing == ([] if line == 4 else [f"batches {line} to {line} are missing before this place"])


@pytest.mark.parametrize("size", range(1, 400, 13))
async def test_a_torn_journal_is_saved_up_to_the_tear(tmp_path, size):
    path = await journal(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-size])
    report, texts, _ = await salvaged(path)
    assert texts == list(TEXTS[: len(texts)])
    assert len(texts) < 3
    (gap,) = report.gaps or [stores.transfer.Gap(len(whole) - size, 0, "cut between batches")]
    assert gap.offset + gap.bytes == len(whole) - size


async def test_a_batch_that_stands_in_the_file_again_is_kept_once(tmp_path):
    path = await journal(tmp_path)
    lines = lines_of(path)
    path.write_bytes(b"".join([*lines[:4], lines[3], *lines[4:]]))
    report, texts, _ = await salvaged(path)
    assert texts == list(TEXTS)
    assert [gap.reason for gap in report.gaps] == ["batch 3 stands here again"]


async def test_a_lost_header_is_made_up_from_the_creation_or_the_records(tmp_path):
    path = await journal(tmp_path)
    header, creation, *batches = lines_of(path)
    path.write_bytes(b"".join([b"\0" * 9, creation, *batches]))
    report, texts, metadata = await salvaged(path)
    assert (texts, metadata.title, report.gaps[0].bytes) == (list(TEXTS), "Title", 9)
    path.with_name("salvaged").unlink()
    path.write_bytes(b"".join(batches))
    report, texts, metadata = await salvaged(path)
    assert (report.thread_id, texts, metadata.title) == ("t", list(TEXTS), "one")
    assert report.gaps[0].reason == "batches 1 to 1 are missing before this place"
    path.with_name("salvaged").unlink()
    path.write_bytes(b"".join([header, *batches]))
    assert (await salvaged(path))[2] == metadata
    assert metadata.created_at == metadata.updated_at.replace(second=metadata.updated_at.second - 2)


async def test_a_record_that_can_not_be_read_is_a_gap_in_a_batch_of_which_the_rest_is_kept(tmp_path):
    path = await journal(tmp_path)
    values = json.loads(lines_of(path)[2])["records"]
    bad = [{**values[0], "thread_id": "u"}, {"type": "event", "event_id": "e"}, {"type": "thread", "metadata": {}}]
    mixed = encode_batch(
        5, [json.dumps(value).encode() for value in (bad[0], {**values[0], "event_id": "new"}, *bad[1:])]
    )
    path.write_bytes(path.read_bytes() + mixed)
    report, texts, _ = await salvaged(path)
    assert texts == [*TEXTS, "one"]
    told = [gap.reason for gap in report.gaps]
    assert [reason.partition(":")[0] for reason in told] == [f"record {n} of the batch" for n in (1, 3, 4)]
    assert {gap.bytes for gap in report.gaps} == {len(mixed)}


async def test_what_says_nothing_of_any_thread_can_not_be_saved(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(b"garbage\n")
    with pytest.raises(CorruptRecord, match="whose thread it is"):
        await salvage_thread(path, tmp_path / "salvaged")
    path.write_bytes(encode_header("t"))
    with pytest.raises(CorruptRecord, match="neither its creation nor any record"):
        await salvage_thread(path, tmp_path / "salvaged")
    path.write_bytes(encode_header("t").replace(b'"version":1', b'"version":2'))
    with pytest.raises(SchemaTooNew):
        await salvage_thread(path, tmp_path / "salvaged")
    with pytest.raises(StorageError, match=r"missing' can't be read"):
        await salvage_thread(tmp_path / "missing", tmp_path / "salvaged")
    assert not (tmp_path / "salvaged").exists()


async def test_nothing_is_overwritten(tmp_path):
    path = await journal(tmp_path)
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(StorageError, match="There is a file"):
        await salvage_thread(path, tmp_path / "mine")
    store = stores.MemoryThreadStore()
    await store.create_thread(Sample("t").metadata(title="Another"))
    with pytest.raises(ThreadExists):
        await salvage_thread(path, store)
    assert (tmp_path / "mine").read_text() == "mine"
