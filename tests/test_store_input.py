"""What every store makes of bad and of odd input: the same."""

import json
from contextlib import asynccontextmanager
from functools import partial
from unicodedata import normalize

import attrs
import pytest

import roder_trio as rt
from roder_trio import stores, transcript
from roder_trio.schema.event import ThreadMetadataChanged
from roder_trio.testing._sample import Sample

KINDS = ("memory", "jsonl", "sqlite", "postgres")
BAD_IDS = ["", "x" * 513, "a\0b", "\ud800"]
GOOD_IDS = ["../../x", "/abs", "a/b", "CON", "A", "a", *(normalize(form, "é") for form in ("NFC", "NFD")), "x" * 512]


@asynccontextmanager
async def opened(made):
    async with made.open():
        yield made


async def fill(store, thread_id, *texts):
    sample = Sample(thread_id)
    await store.create_thread(sample.metadata())
    records = [attrs.evolve(record, event_id=f"r{record.seq}") for record in sample.texts(*texts)]
    await store.append(thread_id, records)
    return sample


@pytest.fixture(params=KINDS)
def make(request, tmp_path):
    """Makes a store that isn't open, of each kind, on the same threads each time if it keeps any."""
    if request.param == "memory":
        store = stores.MemoryThreadStore()
        return lambda: store
    if request.param == "jsonl":
        return partial(stores.JsonlThreadStore, tmp_path / "threads", durability="process")
    if request.param == "sqlite":
        return partial(stores.SqliteThreadStore, tmp_path / "threads.db", durability="process")
    database, tenant = request.getfixturevalue("database"), request.getfixturevalue("tenant")
    return partial(stores.PostgresThreadStore, database, tenant)


@pytest.mark.parametrize("bad", BAD_IDS)
async def test_what_can_be_no_id_is_refused_and_unknown(make, bad):
    async with opened(make()) as store:
        with pytest.raises(ValueError, match="thread id"):
            await store.create_thread(Sample(bad).metadata())
        for call in (store.load_thread, store.load_metadata, store.load_state, store.read_log):
            assert await call(bad) is None
        for call in (store.archive_thread, store.unarchive_thread, store.delete_thread):
            assert await call(bad) is False
        assert list(await store.load_events(bad)) == []
        with pytest.raises(rt.ThreadNotFound):
            await store.append(bad, [])
        assert (await store.list_threads()).threads == ()


async def test_any_other_id_is_a_thread_of_its_own(make):
    async with opened(make()) as store:
        for name in GOOD_IDS:
            await fill(store, name, f"of {name}")
    async with opened(make()) as store:
        for name in GOOD_IDS:
            (envelope,) = (await store.load_thread(name)).events
            assert envelope.event.item.text == f"of {name}"
        assert {row.thread_id for row in (await store.list_threads()).threads} == set(GOOD_IDS)


@pytest.mark.parametrize("bad", ["", "a\0", "x" * 513, "\ud800"])
async def test_a_record_whose_id_is_none_is_refused_with_its_batch(make, bad):
    sample = Sample("t")
    async with opened(make()) as store:
        await store.create_thread(sample.metadata())
        with pytest.raises(rt.InvalidRecord):
            await store.append("t", [sample.user("good"), attrs.evolve(sample.user("bad"), event_id=bad)])
        assert (await store.load_thread("t")).events == ()


async def test_what_a_listing_or_a_page_can_not_be_asked_is_refused(make):
    async with opened(make()) as store:
        sample = await fill(store, "t", "a", "b")
        for limit in (0, 501, True, None, "5", 2.0):
            for listing in (store.list_threads, store.list_archived):
                with pytest.raises(ValueError, match="limit"):
                    await listing(limit=limit)
        for label in ("ab", ("a",), ("a", 1), ["a", "b"]):
            with pytest.raises(ValueError, match="label"):
                await store.list_threads(label=label)
        for after, limit in ((-1, 5), (True, 5), ("1", 5), (0, 0), (0, -1), (0, None)):
            with pytest.raises(ValueError, match="must be an integer"):
                await store.load_events("t", after, limit)
        assert len(await store.load_events("t", sample.seq - 1, 10**30)) == 1
        assert list(await store.load_events("t", 10**30)) == []


async def test_a_cursor_is_of_one_kind_of_store_one_list_and_one_label(make):
    async with opened(make()) as store:
        for name in "abcd":
            await store.create_thread(Sample(name).metadata(labels={"k": "v"}))
        for name in "ab":
            await store.archive_thread(name)
        active = (await store.list_threads(limit=1)).next_cursor
        archived = (await store.list_archived(limit=1)).next_cursor
        labelled = (await store.list_threads(limit=1, label=("k", "v"))).next_cursor
        strange = FOREIGN[store.id != "memory"]
        for cursor in ("", "garbage", "\ud800", 3, archived, labelled, strange):
            with pytest.raises(rt.InvalidCursor):
                await store.list_threads(cursor=cursor)
        for cursor in ("garbage", active, strange):
            with pytest.raises(rt.InvalidCursor):
                await store.list_archived(cursor=cursor)
        for cursor in ("", "garbage", "-1", 3, "9" * 18, "9" * 40):
            with pytest.raises(rt.InvalidCursor):
                await store.read_log("c", cursor)


FOREIGN = (
    "WyJqc29ubCIsImFjdGl2ZSIsbnVsbCxudWxsLCIyMDI2LTAxLTAyVDAzOjA0OjA1LjY3ODkwMSswMDowMCIsImQiXQ==",
    "WyJtZW1vcnkiLCJhY3RpdmUiLG51bGwsbnVsbCwiMjAyNi0wMS0wMlQwMzowNDowNS42Nzg5MDErMDA6MDAiLCJkIl0=",
)
"""Cursors of the journal store and of the one in memory."""


async def test_labels_find_threads_active_now_as_they_are_now(make):
    sample = Sample("t")
    async with opened(make()) as store:
        await store.create_thread(sample.metadata(labels={"a": "1", "b": ""}))
        await store.create_thread(Sample("u").metadata(labels={"a": "12"}))
        assert [row.thread_id for row in (await store.list_threads(label=("a", "1"))).threads] == ["t"]
        assert [row.thread_id for row in (await store.list_threads(label=("b", ""))).threads] == ["t"]
        await store.append("t", [sample.envelope(ThreadMetadataChanged(labels={"a": "2"}), None)])
        await store.archive_thread("u")
        for label in (("a", "1"), ("b", ""), ("a", "12"), ("", ""), ("a", "2\0"), ("\0", "2")):
            assert (await store.list_threads(label=label)).threads == ()
    async with opened(make()) as store:
        assert [row.thread_id for row in (await store.list_threads(label=("a", "2"))).threads] == ["t"]
        assert await store.unarchive_thread("u")
        assert [row.thread_id for row in (await store.list_threads(label=("a", "12"))).threads] == ["u"]


async def test_labels_that_no_thread_may_have_are_refused_and_change_nothing(make):
    sample = Sample("t")
    async with opened(make()) as store:
        await store.create_thread(sample.metadata(labels={"a": "1"}))
        for labels in ({str(number): "" for number in range(65)}, {"": "x"}, {"k" * 129: "x"}, {"k": "x" * 513}):
            with pytest.raises(rt.InvalidRecord):
                await store.append("t", [sample.envelope(ThreadMetadataChanged(labels=labels), None)])
        assert dict((await store.load_metadata("t")).labels) == {"a": "1"}


async def test_text_that_is_hard_to_write_is_stored(make):
    sample = Sample("t")
    hard = ["a\0b", "\ud800 alone", " \n ", "\u2028\u2029\x85", '"\\\n', "\U0001f600" * 80]
    async with opened(make()) as store:
        await store.create_thread(sample.metadata())
        await store.append("t", [sample.user(text) for text in hard])
        await store.append("t", [sample.item(transcript.ProviderMetadata({"n": 2**80, "text": "\0"}))])
    async with opened(make()) as store:
        *said, number = [envelope.event.item for envelope in (await store.load_thread("t")).events]
        assert [item.text.replace("\ufffd", "\ud800") for item in said] == hard
        assert number.payload == {"n": 2**80, "text": "\0"}
        assert (await store.load_metadata("t")).title == "a\0b"


# -- pages and places --------------------------------------------------------------------------------------------------


async def test_a_walk_meets_what_does_not_change_once_and_what_does_at_most_once(make):
    samples = [Sample(name) for name in "abcdefg"]
    async with opened(make()) as store:
        for number, sample in enumerate(samples):
            await store.create_thread(sample.metadata(number, labels={"k": "v"}))
        changing, met = iter(samples[1::2]), []
        page = await store.list_threads(limit=2, label=("k", "v"))
        while page.next_cursor is not None:
            met += [row.thread_id for row in page.threads]
            sample = next(changing)
            await store.append(sample.thread_id, [sample.user("x", seconds=100)])
            page = await store.list_threads(limit=2, cursor=page.next_cursor, label=("k", "v"))
        met += [row.thread_id for row in page.threads]
        assert len(met) == len(set(met))
        assert set(met) >= set("aceg")


async def test_an_unarchived_thread_stands_where_it_stood(make):
    async with opened(make()) as store:
        for number, name in enumerate("abc"):
            await store.create_thread(Sample(name).metadata(number))
        before = await store.list_threads()
        assert await store.archive_thread("b")
        assert [row.thread_id for row in (await store.list_archived()).threads] == ["b"]
        assert await store.unarchive_thread("b")
        assert (await store.list_threads(), (await store.list_archived()).threads) == (before, ())


async def test_what_a_newer_version_wrote_goes_through_a_store_as_it_is(make, tmp_path):
    sample = Sample("t")
    newer = {"type": "newer", "record_id": "n", "z": [1, {"b": None, "a": 2**70}], "a": {}}
    unknown = {"type": "newer.kind", "z": 1, "a": [None]}
    async with opened(make()) as store:
        await store.create_thread(sample.metadata())
        await store.append("t", [sample.user("x"), rt.OpaqueRecord("newer", newer)])
        await store.append("t", [sample.envelope(rt.events.Unknown("newer.kind", unknown))])
        await store.append("t", [rt.OpaqueRecord("newer", {"type": "newer", "record_id": "n"})])
        await stores.export_thread(store, "t", tmp_path / "export")
        assert len((await store.load_thread("t")).events) == 2
    batches = [json.loads(line)["records"] for line in (tmp_path / "export").read_bytes().splitlines()[2:]]
    records = [record for batch in batches for record in batch]
    assert json.dumps(records[1]) == json.dumps(newer)
    assert json.dumps(records[2]["event"]) == json.dumps(unknown)
    assert len(records) == 3
