"""The SQLite store, beyond what `check_thread_store` looks at: its file, its calls, bad input, damage."""

import json
import random
import stat
from functools import partial

import attrs
import pytest
import trio

from roder_trio.errors import (
    InvalidCursor,
    InvalidRecord,
    StorageError,
    StoreClosed,
    ThreadExists,
    ThreadNotFound,
)
from roder_trio.schema import transcript
from roder_trio.schema.event import ThreadMetadataChanged, TurnStarted
from roder_trio.schema.thread import OpaqueRecord
from roder_trio.stores import SqliteThreadStore
from roder_trio.stores.sqlite import query
from roder_trio.testing import check_thread_store
from roder_trio.testing._sample import Sample
from tests.sqlite_support import Flaw, fill, opened, raw, signed, texts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "agent.db"


async def test_the_sqlite_store_passes_in_both_durabilities(tmp_path):
    await check_thread_store(lambda: SqliteThreadStore(tmp_path / "power.db"))
    await check_thread_store(lambda: SqliteThreadStore(tmp_path / "process.db", durability="process"))


@pytest.mark.parametrize("bad", [{"durability": "none"}, {"append_timeout": 0}, {"append_timeout": float("nan")}])
def test_settings_out_of_range_are_refused(bad, path):
    with pytest.raises(ValueError, match=next(iter(bad))):
        SqliteThreadStore(path, **bad)


@pytest.mark.parametrize("nothing", [":memory:", ""])
def test_a_store_without_a_file_is_refused(nothing):
    with pytest.raises(ValueError, match="MemoryThreadStore"):
        SqliteThreadStore(nothing)


async def test_a_store_is_used_inside_its_block_and_opened_once(path):
    store = SqliteThreadStore(path)
    assert repr(store) == f"<SqliteThreadStore {str(path)!r}>"
    sample = Sample("t")
    calls = (
        partial(store.create_thread, sample.metadata()),
        partial(store.load_thread, "t"),
        partial(store.load_metadata, "t"),
        partial(store.load_events, "t"),
        store.list_threads,
        store.list_archived,
        partial(store.append, "t", []),
        partial(store.archive_thread, "t"),
        partial(store.unarchive_thread, "t"),
        partial(store.delete_thread, "t"),
    )
    for _ in range(2):
        for call in calls:
            with pytest.raises(StoreClosed):
                await call()
        if not store._opened:
            async with store.open():
                pass
    with pytest.raises(StorageError, match="opened once"):
        async with store.open():
            pass


async def test_only_the_owner_can_read_what_lies_there(path):
    async with opened(path) as store:
        await store.create_thread(Sample("t").metadata())
        assert {file.name for file in path.parent.iterdir()} == {
            "agent.db",
            "agent.db-wal",
            "agent.db-shm",
            "agent.db.lock",
        }
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {file.name for file in path.parent.iterdir()} == {"agent.db", "agent.db.lock"}


async def test_a_person_can_read_the_tables(path):
    sample = Sample("t")
    async with opened(path) as store:
        await store.create_thread(sample.metadata(labels={"team": "blue"}))
        await store.append("t", [sample.envelope(TurnStarted("p", "m"), "u"), sample.delta("x", "u")])
        await store.append("t", [sample.state("k", 1), sample.usage("a", 1, 3, 1, 4, goal_id="g")])
    assert raw(path, "SELECT thread_id, position, record_id, kind, turn_id FROM record ORDER BY position") == [
        ("t", 1, "t/1", "turn.started", "u"),
        ("t", 2, "t/2", "item_event", "u"),
        ("t", 3, "t/3", "extension_state", None),
        ("t", 4, "t/4", "usage.recorded", "turn"),
    ]
    assert [json.loads(body)["type"] for (body,) in raw(path, "SELECT body FROM record ORDER BY position")] == [
        "event",
        "item_event",
        "extension_state",
        "event",
    ]
    assert raw(path, "SELECT thread_id, last_position, last_seq, last_item_seq, archived_at FROM thread") == [
        ("t", 4, 1, 1, None)
    ]
    ((attempt, turn, goal, origin, report, usage),) = raw(
        path, "SELECT attempt_id, turn_id, goal_id, origin_thread_id, report, usage FROM attempt"
    )
    assert (attempt, turn, goal, origin, report) == ("a", "turn", "g", None, 1)
    assert json.loads(usage) == {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    assert raw(path, "SELECT thread_id, key, value FROM label") == [("t", "team", "blue")]
    assert raw(path, "PRAGMA user_version") == [(1,)]


async def test_labels_follow_the_metadata(path):
    sample = Sample("t")
    async with opened(path) as store:
        await store.create_thread(sample.metadata(labels={"a": "1", "b": "2"}))
        await store.append("t", [sample.envelope(ThreadMetadataChanged(labels={"b": "3\ud800"}), None)])
        assert (await store.list_threads(label=("a", "1"))).threads == ()
        assert len((await store.list_threads(label=("b", "3\ud800"))).threads) == 1
        await store.append("t", [sample.envelope(ThreadMetadataChanged(labels={}), None)])
        assert (await store.list_threads(label=("b", "3\ufffd"))).threads == ()
    assert raw(path, "SELECT * FROM label") == []


NAMES = ["../../x", "/abs", "a/b", "CON", "con", "A", "a", "\u00e9", "e\u0301", "x" * 512, ".", "~a", "nul", "'; --"]


async def test_any_id_is_a_thread_of_its_own(path):
    async with opened(path) as store:
        for name in NAMES:
            await store.create_thread(Sample(name).metadata(title=name))
    async with opened(path) as store:
        for name in NAMES:
            assert (await store.load_thread(name)).metadata.title == name
        listed = (await store.list_threads()).threads
        assert [metadata.thread_id for metadata in listed] == sorted(NAMES, reverse=True)


@pytest.mark.parametrize("bad", ["", "x" * 513, "a\0b", "\ud800"])
async def test_what_can_be_no_id_is_refused_and_unknown(path, bad):
    async with opened(path) as store:
        with pytest.raises(ValueError, match="thread id"):
            await store.create_thread(Sample(bad).metadata())
        assert await store.load_thread(bad) is None
        assert await store.load_metadata(bad) is None
        assert await store.load_events(bad) == []
        assert not await store.archive_thread(bad)
        assert not await store.unarchive_thread(bad)
        assert not await store.delete_thread(bad)
        with pytest.raises(ThreadNotFound):
            await store.append(bad, [])


@pytest.mark.parametrize("cursor", ["", "x", "WyJhIl0=", "\ud800"])
async def test_a_cursor_of_nobody_is_refused(path, cursor):
    async with opened(path) as store:
        with pytest.raises(InvalidCursor):
            await store.list_threads(cursor=cursor)


async def test_text_that_is_hard_to_write_is_stored(path):
    hard = ["a\0b", "\ud800 alone", " \n ", "\u2028\u2029\x85", '"\\\n']
    await fill(path, hard)
    async with opened(path, read_only=True) as store:
        assert texts(await store.load_thread("t")) == ["a\0b", "\ufffd alone", " \n ", "\u2028\u2029\x85", '"\\\n']


async def test_a_creation_may_be_repeated_after_its_metadata_changed(path):
    sample = Sample("t")
    metadata = sample.metadata(title="\ud800", provider="p")
    async with opened(path) as store:
        await store.create_thread(metadata)
        await store.append("t", [sample.envelope(ThreadMetadataChanged(title="New"), None)])
        assert (await store.create_thread(metadata)).title == "New"
        with pytest.raises(ThreadExists):
            await store.create_thread(attrs.evolve(metadata, provider="q"))


async def test_an_append_of_more_than_64_mib_is_refused_alone(path):
    sample = Sample("t")
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
        with pytest.raises(InvalidRecord, match="67108864"):
            await store.append("t", [sample.user("x" * 34 * 1024 * 1024) for _ in range(2)])
        await store.append("t", [sample.user("x")])
        assert texts(await store.load_thread("t")) == ["x"]


async def test_what_a_newer_version_wrote_is_read_and_kept(path):
    sample = await fill(path, ["one"])
    metadata = json.loads(raw(path, "SELECT metadata FROM thread")[0][0])
    raw(path, "UPDATE thread SET metadata = ?", json.dumps({**metadata, "newer": [1, {"b": 2}]}))
    signed(path)
    newer = {"type": "newer_record", "event_id": "n1", "z": 1, "a": [2]}
    async with opened(path) as store:
        await store.append("t", [OpaqueRecord("newer_record", newer), sample.user("two")])
        await store.append("t", [attrs.evolve(sample.user("known id"), event_id="n1")])
        assert texts(await store.load_thread("t")) == ["one", "two"]
    assert json.loads(raw(path, "SELECT metadata FROM thread")[0][0])["newer"] == [1, {"b": 2}]
    assert raw(path, "SELECT kind, body FROM record WHERE record_id = 'n1'") == [
        ("newer_record", json.dumps(newer, separators=(",", ":")))
    ]


async def test_a_thousand_turns_take_at_most_three_mebibytes(path):
    sample = Sample("6f0c1b52-5a5e-4a57-9d39-1f1f5f0c9a11")
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
    empty = path.stat().st_size
    async with opened(path) as store:
        for number in range(100):
            turn = f"{number:08}-5a5e-4a57-9d39-1f1f5f0c9a11"
            said = [
                sample.envelope(TurnStarted("scripted", "scripted-model"), turn),
                sample.user("What is the answer?", turn),
                sample.usage(turn, 1, 20, 4, 24, turn=turn),
                sample.item(transcript.AssistantMessage("A short answer."), turn),
            ]
            ids = [f"{number:08}-{n}e5e-4a57-9d39-1f1f5f0c9a11" for n in range(4)]
            await store.append(
                sample.thread_id, [attrs.evolve(one, event_id=key) for one, key in zip(said, ids, strict=True)]
            )
    assert path.stat().st_size - empty < 100 * 3 * 1024 * 1024 / 1000


# -- events


async def test_pages_of_events_are_read_from_where_the_last_one_ended(path):
    sample = Sample("t")
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        await store.create_thread(sample.metadata())
        await store.append("t", [one for n in range(60) for one in (sample.user(f"{n}"), sample.delta("x"))])
        seqs, after, reads = [], 0, []
        while page := await store.load_events("t", after, limit=7):
            seqs += [envelope.seq for envelope in page]
            place = store._places.before("t", after)
            reads.append(0 if place is None else place.position)
            after = page[-1].seq
        assert seqs == list(range(1, 61))
        assert reads == [0, *range(13, 120, 14)]
        assert [e.seq for e in await store.load_events("t", 20, limit=2)] == [21, 22]
        assert await store.load_events("t", 60) == ()
        assert await store.load_events("unknown") == ()
        await store.append("t", [sample.user("later")])
        assert [e.seq for e in await store.load_events("t", 60)] == [61]


async def test_events_in_no_order_are_all_found(path):
    sample = Sample("t")
    records = [sample.user(f"{n}") for n in range(6)]
    shuffled = [records[n] for n in (3, 0, 5, 1, 4, 2)]
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
        await store.append("t", shuffled)
        wanted = [e.seq for e in shuffled]
        for after in range(7):
            for limit in (1, 2, 6):
                found = [e.seq for e in await store.load_events("t", after, limit)]
                assert found == [seq for seq in wanted if seq > after][:limit]


async def test_a_page_in_the_middle_of_a_long_log_is_found_without_looking_through_it(path, monkeypatch):
    looked = []
    real = query.seq_of
    monkeypatch.setattr(query, "seq_of", lambda *row: looked.append(row[1]) or real(*row))
    sample = Sample("t")
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
        await store.append("t", [one for n in range(2000) for one in (sample.user(f"{n}"), sample.delta("x"))])
        assert [e.seq for e in await store.load_events("t", 1500, limit=3)] == [1501, 1502, 1503]
        assert 0 < len(looked) < 20
        looked.clear()
        assert [e.seq for e in await store.load_events("t", 1503, limit=1)] == [1504]
        assert looked == []


@pytest.mark.parametrize("seed", range(6))
async def test_any_page_of_any_log_is_what_its_snapshot_holds(path, monkeypatch, seed):
    monkeypatch.setattr(query, "NEAR", 1)
    chance, sample, known = random.Random(seed), Sample("t"), []
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
        for _ in range(12):
            batch = sample.any_batch(chance, known)
            if seed % 2:
                chance.shuffle(batch)
            await store.append("t", batch)
        events = (await store.load_thread("t")).events
        for after in range(sample.seq + 2):
            await store.release_thread("t")
            for limit in (1, 3, 500):
                found = await store.load_events("t", after, limit)
                assert list(found) == [event for event in events if event.seq > after][:limit]


async def test_a_place_in_a_log_that_was_deleted_is_not_used(path):
    first, second = Sample("t"), Sample("t")
    second.made = 100
    async with opened(path) as store, opened(path, read_only=True) as reader:
        await store.create_thread(first.metadata())
        await store.append("t", first.texts("a", "b", "c"))
        assert len(await reader.load_events("t", limit=3)) == 3
        await store.delete_thread("t")
        await store.create_thread(first.metadata())
        await store.append("t", [*second.texts("d", "e"), *[second.user("f") for _ in range(3)]][::-1])
        assert [e.seq for e in await reader.load_events("t", 3)] == [5, 4]
        await reader.release_thread("t")
        assert [e.seq for e in await reader.load_events("t", 3)] == [5, 4]


async def test_places_are_kept_of_the_newest_pages_and_threads_only(path, monkeypatch):
    monkeypatch.setattr("roder_trio.stores.sqlite.places.MAX_PLACES", 2)
    monkeypatch.setattr("roder_trio.stores.sqlite.places.MAX_THREADS", 1)
    async with opened(path) as store:
        for name in ("t", "u"):
            sample = Sample(name)
            await store.create_thread(sample.metadata())
            await store.append(name, sample.texts(*"abcd"))
            for after in range(4):
                assert [e.seq for e in await store.load_events(name, after, limit=1)] == [after + 1]
        assert store._places.before("t", 9) is None
        assert store._places.before("u", 2) is None
        assert store._places.before("u", 3).position == 3


# -- reading never waits for writing


async def test_readers_see_whole_commits_while_the_writer_is_in_one(path):
    await fill(path, ["one"])
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store, trio.open_nursery() as nursery:
        flaw.block.add("COMMIT")
        sample = Sample("t")
        sample.made = 50
        nursery.start_soon(store.append, "t", sample.texts("two", "three"))
        await trio.to_thread.run_sync(flaw.blocked.wait)
        async with trio.open_nursery() as readers:
            for _ in range(6):
                readers.start_soon(store.load_thread, "t")
        assert texts(await store.load_thread("t")) == ["one"]
        flaw.block.clear()
        flaw.release.set()
    async with opened(path) as store:
        assert texts(await store.load_thread("t")) == ["one", "two", "three"]
