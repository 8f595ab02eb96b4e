"""The store of journals, beyond what `check_thread_store` looks at: files, damage, lock, index, cancellation."""

import errno
import json
import os
import stat
import uuid
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from roder_trio.errors import (
    AppendOutcomeUnknown,
    CorruptRecord,
    InvalidRecord,
    NotAStore,
    SchemaTooNew,
    StorageError,
    StoreClosed,
    StoreInUse,
    StoreReadOnly,
    ThreadExists,
    ThreadNotFound,
)
from roder_trio.schema import transcript
from roder_trio.schema.event import TranscriptItemAppended, TurnCompleted, TurnStarted, Unknown
from roder_trio.schema.thread import ThreadPage
from roder_trio.schema.usage import TokenUsage
from roder_trio.stores import JsonlThreadStore
from roder_trio.stores._frame import encode_batch
from roder_trio.stores._lock import take_lock
from roder_trio.stores.jsonl import lane
from roder_trio.testing._appends import failed_append
from roder_trio.testing._sample import START, Sample
from tests.jsonl_support import FlakyDisk, fill, index_at_rest, journal, opened, texts
from tests.lock_support import lock_copies


@pytest.fixture
def base(tmp_path):
    return tmp_path / "store"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def contents(base):
    return {path: path.read_bytes() for path in sorted(base.rglob("*")) if path.is_file() and path.name != "lock"}


# -- files


async def test_only_the_owner_can_read_what_lies_there(base):
    await fill(base, ["a"])
    assert {mode(path) for path in (base, *base.rglob("*")) if path.is_dir()} == {0o700}
    assert {mode(path) for path in base.rglob("*") if path.is_file()} == {0o600}
    assert {path.name for path in base.iterdir()} == {"lock", "threads", "archived", "torn", "index.json"}


async def test_a_person_can_read_a_journal(base):
    await fill(base, ["a", "é"], ["c"])
    header, *batches = map(json.loads, journal(base).read_text().splitlines())
    assert header == {"format": "roder_trio.thread", "version": 1, "thread_id": "t"}
    assert [batch["batch"] for batch in batches] == [1, 2, 3]
    assert batches[0]["records"][0]["type"] == "thread"
    assert [record["event"]["item"]["text"] for batch in batches[1:] for record in batch["records"]] == ["a", "é", "c"]


async def test_each_batch_is_one_write(base):
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        await store.create_thread(Sample("t").metadata())
        await store.append("t", Sample("t").texts("a", "b", "c"))
    (written,) = [data for data in disk.written if data.startswith(b'{"batch":2')]
    assert written.endswith(b"]}\n")
    assert written.count(b"\n") == 1
    assert journal(base).read_bytes().endswith(written)


async def test_a_thousand_turns_take_at_most_two_and_a_half_mebibytes(base):
    sample = Sample(str(uuid.uuid4()))
    usage = TokenUsage(1234, 56, 1290, cached_prompt_tokens=1024)
    async with opened(base) as store:
        await store.create_thread(sample.metadata())
        before = journal(base, sample.thread_id).stat().st_size
        for _ in range(20):
            turn = str(uuid.uuid4())
            said = [
                TurnStarted("scripted", "scripted-model"),
                TranscriptItemAppended(0, transcript.UserMessage("What is the answer?"), f"{turn}-user", 2),
                TranscriptItemAppended(1, transcript.AssistantMessage("Forty-two."), f"{turn}-message", 3),
                TurnCompleted(usage, "stop"),
            ]
            records = [attrs.evolve(sample.envelope(event, turn), event_id=str(uuid.uuid4())) for event in said]
            counted = sample.usage(str(uuid.uuid4()), 1, 1234, 56, 1290, turn=turn)
            for batch in (records[:2], [counted], records[2:]):
                await store.append(sample.thread_id, batch)
    assert journal(base, sample.thread_id).stat().st_size - before < 20 * 2.5 * 1024 * 1024 / 1000


NAMES = ["../../x", "/abs", "a/b", "CON", "con", "A", "a", "\u00e9", "e\u0301", "x" * 512, ".", "~a", "nul"]


async def test_any_id_is_a_thread_of_its_own_inside_the_folder(base):
    async with opened(base) as store:
        for name in NAMES:
            await store.create_thread(Sample(name).metadata(title=name))
    async with opened(base) as store:
        for name in NAMES:
            assert (await store.load_thread(name)).metadata.title == name
        assert {metadata.thread_id for metadata in (await store.list_threads()).threads} == set(NAMES)
    assert len(list((base / "threads").iterdir())) == len(NAMES)
    assert list(base.parent.iterdir()) == [base]


async def test_symbolic_links_are_not_followed(base, tmp_path):
    await fill(base, ["secret"], thread_id="t")
    outside = tmp_path / "outside.jsonl"
    journal(base).rename(outside)
    journal(base).symlink_to(outside)
    before = outside.read_bytes()
    async with opened(base) as store:
        assert (await store.list_threads()).threads == ()
        with pytest.raises(StorageError):
            await store.load_thread("t")
        with pytest.raises(StorageError):
            await store.append("t", Sample("t").texts("x"))
        with pytest.raises(StorageError):
            await store.create_thread(Sample("t").metadata())
    assert outside.read_bytes() == before


async def test_text_that_is_hard_to_write_is_stored(base):
    hard = ["a\0b", "\ud800 alone", " \n ", "\u2028\u2029\x85", '"\\\n']
    await fill(base, hard)
    async with opened(base, read_only=True) as store:
        assert texts(await store.load_thread("t")) == ["a\0b", "\ufffd alone", " \n ", "\u2028\u2029\x85", '"\\\n']


async def test_a_creation_with_a_lone_surrogate_may_be_repeated(base):
    metadata = Sample("t").metadata(title="\ud800")
    async with opened(base) as store:
        first = await store.create_thread(metadata)
        assert first == await store.create_thread(metadata) == await store.load_metadata("t")


async def test_an_append_of_more_than_64_mib_is_refused_alone(base):
    sample = Sample("t")
    async with opened(base) as store:
        await store.create_thread(sample.metadata())
        with pytest.raises(InvalidRecord, match="67108864"):
            await store.append("t", [sample.user("x" * 34 * 1024 * 1024) for _ in range(2)])
        await store.append("t", [sample.user("x")])
        assert texts(await store.load_thread("t")) == ["x"]


# -- torn tails and damage


async def test_a_last_batch_cut_at_any_byte_is_set_aside_and_the_rest_stays(base):
    sample = await fill(base, ["first"], ["second"])
    whole = journal(base).read_bytes()
    start = whole.rindex(b'{"batch":3')
    for cut in range(start + 1, len(whole)):
        journal(base).write_bytes(whole[:cut])
        async with opened(base) as store:
            assert len((await store.list_threads()).threads) == 1
            snapshot = await store.load_thread("t")
            assert texts(snapshot) == ["first"]
            (repair,) = snapshot.repairs
            assert repair.bytes == cut - start
            assert Path(repair.path).read_bytes() == whole[start:cut]
            await store.append("t", sample.texts("next"))
            assert texts(await store.load_thread("t")) == ["first", "next"]
    assert len(list((base / "torn").iterdir())) == len(whole) - start - 1


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\0" * 4096 + b"\n", b'{"batch":4,"crc":"00000000","records":[]}\n'])
async def test_bytes_that_are_no_batch_are_set_aside_by_an_append_too(base, tail):
    sample = await fill(base, ["first"])
    whole = journal(base).read_bytes()
    journal(base).write_bytes(whole + tail)
    async with opened(base) as store:
        await store.append("t", sample.texts("next"))
        snapshot = await store.load_thread("t")
    assert texts(snapshot) == ["first", "next"]
    assert [repair.bytes for repair in snapshot.repairs] == [len(tail)]
    assert (base / "torn" / "t.1").read_bytes() == tail


async def test_a_repair_is_told_until_the_thread_is_released(base):
    await fill(base, ["first"])
    journal(base).write_bytes(journal(base).read_bytes() + b"torn")
    async with opened(base) as store:
        assert len((await store.load_thread("t")).repairs) == 1
        assert len((await store.load_thread("t")).repairs) == 1
        await store.release_thread("t")
        assert (await store.load_thread("t")).repairs == ()


async def test_a_reader_skips_a_torn_tail_and_changes_nothing(base):
    await fill(base, ["first"])
    journal(base).write_bytes(journal(base).read_bytes() + b"torn")
    before = contents(base)
    async with opened(base, read_only=True) as store:
        snapshot = await store.load_thread("t")
        assert (texts(snapshot), snapshot.repairs) == (["first"], ())
        assert len(await store.load_events("t")) == 1
        assert len((await store.list_threads()).threads) == 1
    assert contents(base) == before


async def damaged(base, damage):
    """A store with a good thread, and one whose journal `damage` rewrote; the error that loading that one raises."""
    await fill(base, ["fine"], thread_id="good")
    await fill(base, ["one"], ["two"], thread_id="bad")
    path = journal(base, "bad")
    path.write_bytes(damage(path.read_bytes()))
    async with opened(base) as store:
        for call in (store.load_thread, store.load_metadata, store.load_events):
            with pytest.raises(StorageError) as error:
                await call("bad")
        with pytest.raises(StorageError):
            await store.append("bad", Sample("bad").texts("x"))
        with pytest.raises(StorageError):
            await store.create_thread(Sample("bad").metadata())
        page = await store.list_threads()
        assert [metadata.thread_id for metadata in page.threads] == ["good"]
        assert page.damaged == ("bad",)
        assert texts(await store.load_thread("good")) == ["fine"]
    async with opened(base, read_only=True) as store:
        assert (await store.list_threads()).damaged == ("bad",)
    return error.value


def replaced(old, new):
    return lambda data: data.replace(old, new, 1)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (replaced(b'"one"', b'"One"'), r"bad\.jsonl line 3, offset \d+"),
        (replaced(b'{"batch":2', b'\0"batch":2'), r"bad\.jsonl line 3, offset \d+"),
        (lambda data: data[: data.index(b'{"batch":2')] + data[data.index(b'{"batch":3') :], r"line 3.*batch 3 stands"),
        (lambda data: b"", "bad.jsonl line 1, offset 0"),
        (replaced(b'"thread_id":"bad"}', b'"thread_id":"other"}'), "it is of thread 'other'"),
        (lambda data: data[: data.index(b"\n") + 1], "the batch that created the thread is missing"),
    ],
)
async def test_inner_damage_names_file_line_and_offset_and_harms_no_other_thread(base, damage, told):
    error = await damaged(base, damage)
    assert isinstance(error, CorruptRecord)
    assert error.thread_id == "bad"
    with pytest.raises(CorruptRecord, match=told):
        raise error


async def test_a_damaged_thread_is_told_wherever_it_is_moved(base):
    async def damaged():
        return (await store.list_threads()).damaged, (await store.list_archived()).damaged

    await fill(base, ["one"], ["two"])
    path = journal(base)
    path.write_bytes(path.read_bytes().replace(b'"text":"one"', b'"text":"One"'))
    async with opened(base) as store:
        assert await damaged() == (("t",), ())
        assert await store.archive_thread("t")
        assert await damaged() == ((), ("t",))
        assert await store.load_thread("t") is None
        with pytest.raises(CorruptRecord):
            await store.read_log("t")
        assert await damaged() == ((), ("t",))
        assert await store.unarchive_thread("t")
        assert await damaged() == (("t",), ())
        with pytest.raises(CorruptRecord):
            await store.load_metadata("t")
        assert await store.delete_thread("t")
        assert await damaged() == ((), ())


async def test_a_journal_of_a_later_version_is_refused_and_left_alone(base):
    error = await damaged(base, replaced(b'"version":1', b'"version":2'))
    assert isinstance(error, SchemaTooNew)
    assert journal(base, "bad").read_bytes().count(b'"version":2') == 1


def rewritten(change, batch=2):
    """Damage that changes the first record of a batch (1 is the creation) and gives it a good checksum."""

    def damage(data):
        lines = data.splitlines(keepends=True)
        records = json.loads(lines[batch])["records"]
        change(records[0])
        lines[batch] = encode_batch(batch, [json.dumps(record).encode() for record in records])
        return b"".join(lines)

    return damage


def naive(record):
    record["timestamp"] = "2026-01-01T00:00:00"


def keyless(record):
    del record["source"]


def elsewhere(record):
    record["thread_id"] = "other"


def labelled(record):
    record["event"] = {"type": "thread.metadata_changed", "labels": {"": "x"}}


@pytest.mark.parametrize("change", [naive, keyless, elsewhere, labelled])
async def test_a_record_that_can_not_be_read_names_its_position(base, change):
    error = await damaged(base, rewritten(change))
    assert isinstance(error, CorruptRecord)
    assert error.position == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(type="event"),
        lambda record: record.update(metadata=None),
        lambda record: record.pop("metadata"),
        lambda record: record["metadata"].pop("created_at"),
        lambda record: record["metadata"].update(thread_id="other"),
    ],
)
async def test_a_creation_that_can_not_be_read_is_damage(base, change):
    error = await damaged(base, rewritten(change, batch=1))
    with pytest.raises(CorruptRecord, match="line 2"):
        raise error


async def test_files_that_are_named_wrongly_are_listed_as_damaged(base):
    await fill(base, ["one"])
    long = await fill(base, ["two"], thread_id="X" * 300)
    (base / "threads" / "Foo.jsonl").write_bytes(journal(base).read_bytes())
    (base / "threads" / ("~~" + "0" * 64 + ".jsonl")).write_bytes(b"")
    (base / "threads" / "notes.txt").write_bytes(b"mine")
    (base / "index.json").unlink()
    async with opened(base) as store:
        page = await store.list_threads()
    assert {metadata.thread_id for metadata in page.threads} == {"t", long.thread_id}
    assert page.damaged == ("Foo", "~~" + "0" * 64)


async def test_what_a_newer_version_wrote_is_read_and_kept(base):
    sample = await fill(base, ["one"])
    newer_event = {
        "type": "event",
        "event_id": "n2",
        "timestamp": "2026-01-01T00:00:00Z",
        "source": "thread",
        "thread_id": "t",
        "new_key": 1,
        "event": {"type": "newer.kind", "z": 1, "a": 2},
    }
    newer = [
        b'{"type":"newer_record","event_id":"n1","x":[1]}',
        b'{"type":"newer_record"}',
        json.dumps(newer_event).encode(),
    ]
    with journal(base).open("ab") as file:
        file.write(encode_batch(3, newer))
    before = journal(base).read_bytes()
    async with opened(base) as store:
        snapshot = await store.load_thread("t")
        assert snapshot.events[1].event == Unknown("newer.kind", {"type": "newer.kind", "z": 1, "a": 2})
        assert len(snapshot.events) == 2
        await store.append("t", [attrs.evolve(sample.user("known id"), event_id="n1")])
        await store.append("t", sample.texts("next"))
    assert journal(base).read_bytes().startswith(before)
    assert b"known id" not in journal(base).read_bytes()


# -- the disk fails


async def test_a_write_that_fails_is_undone_and_may_be_repeated(base):
    sample = await fill(base, ["first"])
    before = journal(base).read_bytes()
    disk = FlakyDisk()
    batch = sample.texts("second")
    async with opened(base, disk) as store:
        disk.fail["write"] = errno.ENOSPC
        with pytest.raises(StorageError, match="No space") as error:
            await store.append("t", batch)
        assert not isinstance(error.value, AppendOutcomeUnknown)
        assert journal(base).read_bytes() == before
        await store.append("t", batch)
        assert texts(await store.load_thread("t")) == ["first", "second"]


async def test_a_write_that_can_not_be_undone_is_unknown_and_the_file_is_read_again(base):
    sample = await fill(base, ["first"])
    disk = FlakyDisk()
    batch = sample.texts("second")
    async with opened(base, disk) as store:
        disk.fail.update(write=errno.ENOSPC, truncate=errno.EIO)
        with pytest.raises(AppendOutcomeUnknown):
            await store.append("t", batch)
        assert (await store.load_metadata("t")).message_count == 1
        await store.append("t", batch)
        snapshot = await store.load_thread("t")
    assert texts(snapshot) == ["first", "second"]
    assert len(snapshot.repairs) == 1


async def test_a_sync_that_fails_is_unknown_and_the_store_answers_from_the_file(base):
    sample = await fill(base, ["first"])
    disk = FlakyDisk()
    batch = sample.texts("second")
    async with opened(base, disk) as store:
        disk.fail["sync"] = errno.EIO
        with pytest.raises(AppendOutcomeUnknown):
            await store.append("t", batch)
        assert (await store.list_threads()).threads[0].message_count == 2
        await store.append("t", batch)
        assert texts(await store.load_thread("t")) == ["first", "second"]


@pytest.fixture
def no_index(monkeypatch):
    """The index is written at times of its own; here it isn't."""
    monkeypatch.setattr("roder_trio.stores.jsonl.store.write_index", lambda *_: None)


async def test_the_contract_holds_with_failures_before_in_and_after_a_write(base, no_index):
    faults = {"before": ("write", errno.EIO), "in": ("write", errno.ENOSPC), "after": ("sync", errno.EIO)}
    disk = FlakyDisk()

    def fault(store, point):
        step, error = faults[point]
        disk.fail[step] = error

    async with opened(base, disk) as store:
        verify = await failed_append(fault)(store, "t")
        assert disk.fail == {}
        await verify(store)
    async with opened(base) as store:
        await verify(store)


async def test_a_thread_of_which_nothing_is_known_is_listed_as_damaged_until_it_can_be_read(base):
    sample = await fill(base, ["first"])
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        disk.fail["sync"] = errno.EIO
        with pytest.raises(AppendOutcomeUnknown):
            await store.append("t", sample.texts("second"))
        disk.fail["read"] = errno.EIO
        page = await store.list_threads()
        assert (page.threads, page.damaged) == ((), ("t",))
        page = await store.list_threads()
        assert (len(page.threads), page.damaged) == (1, ())


async def test_a_read_that_fails_is_a_storage_error(base):
    await fill(base, ["first"])
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        disk.fail["read"] = errno.EIO
        with pytest.raises(StorageError, match="could not be read"):
            await store.load_thread("t")
        assert texts(await store.load_thread("t")) == ["first"]


async def test_a_file_removed_under_the_store_fails_its_thread_alone(base):
    sample = await fill(base, ["first"])
    other = await fill(base, ["fine"], thread_id="other")
    async with opened(base) as store:
        await store.append("t", sample.texts("second"))
        journal(base).unlink()
        with pytest.raises(StorageError):
            await store.append("t", sample.texts("third"))
        assert await store.load_thread("t") is None
        assert await store.load_metadata("t") is None
        await store.append("other", other.texts("more"))
        assert [metadata.thread_id for metadata in (await store.list_threads()).threads] == ["other"]


async def test_a_file_changed_under_the_store_is_read_again(base):
    sample = await fill(base, ["first"])
    async with opened(base) as store:
        await store.append("t", sample.texts("second"))
        with journal(base).open("ab") as file:
            file.write(b"torn")
        await store.append("t", sample.texts("third"))
        snapshot = await store.load_thread("t")
    assert texts(snapshot) == ["first", "second", "third"]
    assert len(snapshot.repairs) == 1


@pytest.mark.parametrize("step", ["write", "rename"])
async def test_a_creation_that_fails_leaves_nothing(base, step):
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        disk.fail[step] = errno.ENOSPC
        with pytest.raises(StorageError):
            await store.create_thread(Sample("t").metadata())
        assert list((base / "threads").iterdir()) == []
        assert await store.load_thread("t") is None
        await store.create_thread(Sample("t").metadata())


async def test_a_creation_whose_directory_can_not_be_synced_is_unknown_and_may_be_repeated(base):
    disk = FlakyDisk()
    metadata = Sample("t").metadata()
    async with opened(base, disk) as store:
        disk.fail["sync_directory"] = errno.EIO
        with pytest.raises(AppendOutcomeUnknown):
            await store.create_thread(metadata)
        assert [row.thread_id for row in (await store.list_threads()).threads] == ["t"]
        tried = disk.calls["sync_directory"]
        assert await store.create_thread(metadata) == metadata
        assert disk.calls["sync_directory"] == tried + 1


async def test_a_thread_that_is_archived_before_it_was_known_to_be_there_is_listed(base):
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        disk.fail["sync_directory"] = errno.EIO
        with pytest.raises(AppendOutcomeUnknown):
            await store.create_thread(Sample("t").metadata())
        assert await store.archive_thread("t")
        assert [row.thread_id for row in (await store.list_archived()).threads] == ["t"]
        assert (await store.list_threads(), await store.load_metadata("t")) == (ThreadPage(), None)
        assert await store.unarchive_thread("t")
        assert [row.thread_id for row in (await store.list_threads()).threads] == ["t"]


async def test_an_archiving_whose_directory_can_not_be_synced_is_unknown_and_shows_what_is(base):
    await fill(base, ["first"])
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        disk.fail["sync_directory"] = errno.EIO
        with pytest.raises(AppendOutcomeUnknown):
            await store.archive_thread("t")
        assert (await store.list_threads()).threads == ()
        assert await store.load_metadata("t") is None
        assert len((await store.list_archived()).threads) == 1


async def test_a_bug_in_a_worker_fails_the_calls_that_wait_and_hangs_none(base):
    sample = await fill(base, ["first"])
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        disk.fail["write"] = ZeroDivisionError("bug")
        with pytest.raises(AppendOutcomeUnknown, match="bug"):
            await store.append("t", sample.texts("second"))
        disk.fail["read"] = ZeroDivisionError("bug")
        with pytest.raises(StorageError, match="bug"):
            await store.load_thread("t")
        assert texts(await store.load_thread("t")) == ["first"]


async def test_a_bad_batch_fails_alone_among_those_that_share_a_sync(base):
    sample = await fill(base, ["first"])
    disk = FlakyDisk()
    outcomes = {}

    async def append(name, batch):
        try:
            await store.append("t", batch)
            outcomes[name] = None
        except StorageError as error:
            outcomes[name] = type(error)

    bad = sample.item(transcript.ProviderMetadata({"x": {1}}))
    async with opened(base, disk) as store, trio.open_nursery() as nursery:
        for name, batch in (("a", sample.texts("a")), ("bad", [bad]), ("b", sample.texts("b"))):
            nursery.start_soon(append, name, batch)
    assert outcomes == {"a": None, "bad": InvalidRecord, "b": None}
    async with opened(base) as store:
        assert sorted(texts(await store.load_thread("t"))) == ["a", "b", "first"]


async def test_batches_after_one_whose_outcome_is_unknown_are_not_tried(base):
    sample = await fill(base, ["first"])
    disk = FlakyDisk()
    outcomes = []

    async def append(text):
        try:
            await store.append("t", sample.texts(text))
        except StorageError as error:
            outcomes.append(type(error))

    async with opened(base, disk) as store:
        disk.fail.update(write=errno.EIO, truncate=errno.EIO)
        async with trio.open_nursery() as nursery:
            await disk.hold("write", nursery, append, "held")
            nursery.start_soon(append, "b")
            nursery.start_soon(append, "c")
            await wait_all_tasks_blocked()
            disk.block.clear()
            disk.fail.update(write=errno.EIO, truncate=errno.EIO)
            disk.release.set()
        assert outcomes[0] is AppendOutcomeUnknown
        assert len(texts(await store.load_thread("t"))) == 4 - len(outcomes)


# -- durability


async def test_power_durability_syncs_each_change_and_process_durability_none(base, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append("file"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append("folder"))
    sample = Sample("t")
    async with opened(base, durability="power") as store:
        for call, wanted in (
            (partial(store.create_thread, sample.metadata()), ["file", "folder"]),
            (partial(store.append, "t", sample.texts("a")), ["file"]),
            (partial(store.append, "t", []), []),
            (partial(store.archive_thread, "t"), ["folder", "folder"]),
        ):
            synced.clear()
            await call()
            assert synced == wanted
    async with opened(base.with_name("other"), durability="process") as store:
        synced.clear()
        await store.create_thread(sample.metadata())
        await store.append("t", sample.texts("b"))
        assert synced == []


async def test_a_repeat_of_what_a_killed_process_left_waits_for_the_medium_once(base):
    sample = Sample("t")
    batch = sample.texts("a")
    async with opened(base) as store:
        await store.create_thread(sample.metadata())
        await store.append("t", batch)
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        disk.fail["sync"] = errno.EIO
        with pytest.raises(AppendOutcomeUnknown):
            await store.append("t", batch)
        for _ in range(2):
            await store.append("t", batch)
        assert disk.calls["sync"] == 2
        assert texts(await store.load_thread("t")) == ["a"]


async def test_appends_that_wait_together_share_a_sync_and_return_in_call_order(base):
    sample = await fill(base)
    disk = FlakyDisk()
    returned = []

    async def append(number):
        await store.append("t", sample.texts(str(number)))
        returned.append(str(number))

    async with opened(base, disk) as store:
        async with trio.open_nursery() as nursery:
            await disk.hold("sync", nursery, append, 0)
            for number in range(1, 20):
                nursery.start_soon(append, number)
                await wait_all_tasks_blocked()
            disk.let_go()
        assert disk.calls["sync"] == 2
        assert returned == texts(await store.load_thread("t")) == [str(number) for number in range(20)]


async def test_the_ids_of_a_thread_are_read_once_until_it_is_released(base):
    sample = await fill(base, ["first"])
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        before = disk.calls["read"]
        for _ in range(3):
            await store.append("t", sample.texts("more"))
        assert disk.calls["read"] == before + 1
        await store.release_thread("t")
        await store.release_thread("never touched")
        await store.append("t", sample.texts("more"))
        assert disk.calls["read"] == before + 2


async def test_a_thread_that_is_released_while_it_is_written_drops_its_ids_afterwards(base):
    sample = await fill(base, ["first"])
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        async with trio.open_nursery() as nursery:
            await disk.hold("write", nursery, store.append, "t", sample.texts("second"))
            nursery.start_soon(store.release_thread, "t")
            await wait_all_tasks_blocked()
            disk.let_go()
        before = disk.calls["read"]
        await store.append("t", sample.texts("third"))
        assert disk.calls["read"] == before + 1


async def test_whoever_looks_through_a_store_does_not_hold_all_of_it_in_memory(base, monkeypatch):
    monkeypatch.setattr(lane, "MAX_UNCLAIMED", 2)
    names = [f"t{number}" for number in range(6)]
    for name in names:
        await fill(base, ["a"], thread_id=name)
    async with opened(base) as store:
        await store.claim_thread("t0")
        for name in names * 2:
            assert texts(await store.load_thread(name)) == ["a"]
        assert len(store._lanes) == 3
        disk = store._disk = FlakyDisk()
        store._lanes.get("t0")
        await store.append("t0", Sample("t0").texts("of a claimed thread"))
        assert disk.calls["read"] == 0
        await store.release_thread("t0")
        assert len(store._lanes) == 2


async def test_a_lane_in_use_is_never_dropped(base, monkeypatch):
    monkeypatch.setattr(lane, "MAX_UNCLAIMED", 1)
    sample = await fill(base, ["first"])
    await fill(base, ["other"], thread_id="other")
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        async with trio.open_nursery() as nursery:
            await disk.hold("write", nursery, store.append, "t", sample.texts("second"))
            held = store._lanes.get("t")
            for name in ("other", "unknown", "other"):
                await store.load_thread(name)
            kept = store._lanes.get("t")
            nursery.start_soon(store.append, "t", sample.texts("third"))
            await wait_all_tasks_blocked()
            disk.let_go()
        assert kept is held
        assert texts(await store.load_thread("t")) == ["first", "second", "third"]


async def test_a_deletion_that_ends_while_the_store_closes_is_told(base):
    await fill(base, ["first"])
    disk = FlakyDisk()
    told = []

    async def delete():
        told.append(await store.delete_thread("t"))

    async with trio.open_nursery() as nursery, opened(base, disk) as store:
        await disk.hold("remove", nursery, delete)
        disk.block.clear()
        nursery.start_soon(trio.to_thread.run_sync, disk.release.set)
    assert told == [True]
    async with opened(base) as store:
        assert await store.list_threads() == ThreadPage()


# -- cancellation and deadlines


async def test_an_append_that_is_cancelled_before_its_turn_stores_nothing(base):
    sample = await fill(base)
    disk = FlakyDisk()
    scope = trio.CancelScope()

    async def cancelled():
        with scope:
            await store.append("t", sample.texts("cancelled"))

    async with opened(base, disk) as store:
        async with trio.open_nursery() as nursery:
            await disk.hold("write", nursery, store.append, "t", sample.texts("held"))
            nursery.start_soon(cancelled)
            await wait_all_tasks_blocked()
            scope.cancel()
            await wait_all_tasks_blocked()
            assert scope.cancelled_caught
            disk.let_go()
        assert texts(await store.load_thread("t")) == ["held"]


async def test_an_append_that_is_cancelled_in_its_write_returns_and_is_stored(base):
    sample = await fill(base)
    disk = FlakyDisk()
    scope = trio.CancelScope()

    async def append():
        with scope:
            await store.append("t", sample.texts("written"))

    async with opened(base, disk) as store:
        async with trio.open_nursery() as nursery:
            await disk.hold("write", nursery, append)
            scope.cancel()
            await wait_all_tasks_blocked()
            disk.let_go()
        assert not scope.cancelled_caught
        assert texts(await store.load_thread("t")) == ["written"]


async def test_a_write_that_hangs_is_unknown_and_those_behind_it_are_not_stored(base, mock_clock):
    sample = await fill(base)
    disk = FlakyDisk()

    async def let_time_pass():
        await trio.to_thread.run_sync(disk.blocked.wait)
        await wait_all_tasks_blocked()
        mock_clock.jump(20)

    async with opened(base, disk, append_timeout=20) as store:
        disk.block.add("write")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_time_pass)
            with pytest.raises(AppendOutcomeUnknown, match="20 s"):
                await store.append("t", sample.texts("hangs"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_time_pass)
            with pytest.raises(StorageError, match="nothing was stored"):
                await store.append("t", sample.texts("behind"))
        page = await store.list_threads()
        assert (page.threads, page.damaged) == ((), ("t",))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_time_pass)
            with trio.move_on_after(20) as scope:
                await store.load_metadata("t")
        assert scope.cancelled_caught
        disk.let_go()
        assert (await store.load_metadata("t")).message_count == 1
        assert texts(await store.load_thread("t")) == ["hangs"]


# -- lifetime


async def test_calls_outside_open_are_refused(base):
    store = JsonlThreadStore(base)
    calls = (
        lambda: store.create_thread(Sample("t").metadata()),
        lambda: store.append("t", []),
        lambda: store.load_thread("t"),
        lambda: store.load_metadata("t"),
        lambda: store.load_events("t"),
        lambda: store.list_threads(),
        lambda: store.list_archived(),
        lambda: store.archive_thread("t"),
        lambda: store.unarchive_thread("t"),
        lambda: store.delete_thread("t"),
    )
    for call in calls:
        with pytest.raises(StoreClosed):
            await call()
    async with store.open():
        pass
    for call in calls:
        with pytest.raises(StoreClosed):
            await call()
    await store.release_thread("t")
    with pytest.raises(StorageError, match="opened once"):
        async with store.open():
            pass


async def test_leaving_finishes_the_appends_that_were_accepted(base):
    sample = await fill(base)
    disk = FlakyDisk()
    async with trio.open_nursery() as nursery:  # noqa: SIM117 - the order is what is tested
        # the store is left while the nursery's tasks still append
        async with opened(base, disk) as store:
            disk.block.add("write")
            for text in "abc":
                nursery.start_soon(store.append, "t", sample.texts(text))  # noqa: ASYNC111
                await wait_all_tasks_blocked()
            await trio.to_thread.run_sync(disk.blocked.wait)
            disk.let_go()
    async with opened(base) as store:
        assert texts(await store.load_thread("t")) == ["a", "b", "c"]


async def test_an_error_in_the_block_leaves_it_as_itself(base):
    with pytest.raises(KeyError):
        async with opened(base):
            raise KeyError("mine")
    with pytest.RaisesGroup(KeyError, check=lambda group: group.message == "mine"):
        async with opened(base):
            raise ExceptionGroup("mine", [KeyError()])
    with trio.CancelScope() as scope:
        async with opened(base):
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_a_second_store_is_refused_with_the_name_of_the_holder(base):
    async with opened(base):
        with pytest.raises(StoreInUse, match=f"process {os.getpid()} "):
            async with opened(base):
                pass
    async with opened(base):
        pass


@pytest.mark.parametrize("text", [b"", b"\xff", b'{"pid": 1}', b"[]"])
async def test_the_text_of_a_dead_holder_is_no_obstacle_and_a_strange_one_no_riddle(base, text):
    base.mkdir()
    (base / "lock").write_bytes(text)
    async with opened(base):
        (base / "lock").write_bytes(text)
        with pytest.raises(StoreInUse, match="another process"):
            async with opened(base):
                pass


def test_the_lock_is_not_inherited(base):
    base.mkdir()
    descriptor = take_lock(base / "lock")
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


async def test_a_copy_of_the_lock_in_a_child_process_does_not_outlive_the_store(base, monkeypatch):
    with lock_copies(monkeypatch, "roder_trio.stores.jsonl.store"):
        for _ in range(2):
            async with opened(base):
                pass


async def test_a_file_system_without_locks_has_no_holder(base, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(StorageError, match=f"can't be opened.*{os.strerror(errno.ENOLCK)}") as refused:
        async with opened(base):
            pass
    assert not isinstance(refused.value, StoreInUse)


async def test_bad_folders_are_named(base, tmp_path):
    base.write_bytes(b"a file")
    with pytest.raises(StorageError, match="is a file"):
        async with opened(base):
            pass
    with pytest.raises(StorageError, match="can't be opened"):
        async with opened(base / "below"):
            pass
    with pytest.raises(StorageError, match="no store"):
        async with opened(tmp_path / "nothing", read_only=True):
            pass
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("where", ["", "threads"])
async def test_a_folder_of_roder_is_refused_and_left_alone(base, where):
    thread = base / where / "0193"
    thread.mkdir(parents=True)
    (thread / "events.jsonl").write_bytes(b"")
    with pytest.raises(NotAStore, match="import_roder"):
        async with opened(base):
            pass
    assert not (base / "lock").exists()


def test_bad_arguments_are_refused(base):
    with pytest.raises(ValueError, match="durability"):
        JsonlThreadStore(base, durability="none")
    with pytest.raises(ValueError, match="append_timeout"):
        JsonlThreadStore(base, append_timeout=0)
    assert repr(JsonlThreadStore(base)) == f"<JsonlThreadStore {str(base)!r}>"
    assert not base.exists()


async def test_leftovers_of_a_crash_are_removed(base):
    await fill(base, ["a"])
    leftover = base / "threads" / "b.jsonl.new"
    leftover.write_bytes(b"half")
    (base / "index.json.new").write_bytes(b"half")
    async with opened(base):
        assert not leftover.exists()
        assert not (base / "index.json.new").exists()


async def test_a_failure_to_open_gives_the_lock_back(base):
    disk = FlakyDisk()
    disk.fail["read"] = errno.EIO
    with pytest.raises(StorageError, match="can't be opened"):
        async with opened(base, disk):
            pass
    async with opened(base):
        pass


# -- read only


async def test_a_reader_changes_nothing_and_sees_what_an_owner_commits(base, no_index):
    sample = await fill(base, ["first"])
    async with opened(base) as owner, opened(base, read_only=True) as reader:
        await owner.append("t", sample.texts("second"))
        assert texts(await reader.load_thread("t")) == ["first", "second"]
        assert (await reader.load_metadata("t")).message_count == 2
        assert (await reader.list_threads()).threads[0].message_count == 2
        await owner.create_thread(Sample("new").metadata())
        assert len((await reader.list_threads()).threads) == 2
        await owner.archive_thread("t")
        assert await reader.load_thread("t") is None
        assert len((await reader.list_archived()).threads) == 1
        before = contents(base)
        for call in (
            lambda: reader.create_thread(Sample("x").metadata()),
            lambda: reader.append("new", []),
            lambda: reader.archive_thread("new"),
            lambda: reader.unarchive_thread("t"),
            lambda: reader.delete_thread("new"),
        ):
            with pytest.raises(StoreReadOnly):
                await call()
        assert contents(base) == before


# -- the index


async def test_an_index_that_fits_saves_reading_the_journals(base):
    await fill(base, ["a"])
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        assert (await store.load_metadata("t")).message_count == 1
        assert len((await store.list_threads()).threads) == 1
    assert disk.calls["read"] == 1
    assert disk.calls["rename"] == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda index: index.unlink(),
        lambda index: index.write_bytes(b"garbage"),
        lambda index: index.write_bytes(b"[]"),
        lambda index: index.write_bytes(index.read_bytes().replace(b'"version":1', b'"version":2')),
        lambda index: index.write_bytes(index.read_bytes().replace(b'"thread_id"', b'"other_id"')),
        lambda index: index.write_bytes(index.read_bytes()[:-5]),
        lambda index: index.write_bytes(index.read_bytes().replace(b'"thread_id":"t"', b'"thread_id":"u"')),
    ],
)
async def test_an_index_that_can_not_be_read_is_built_again(base, spoil):
    await fill(base, ["a"])
    before = (base / "index.json").read_bytes()
    spoil(base / "index.json")
    async with opened(base) as store:
        assert (await store.load_metadata("t")).message_count == 1
    assert (base / "index.json").read_bytes() == before


async def test_an_index_older_than_the_journals_makes_no_difference(base):
    sample = await fill(base, ["a"])
    old = (base / "index.json").read_bytes()
    async with opened(base) as store:
        await store.append("t", sample.texts("b"))
        await store.create_thread(Sample("new").metadata())
        await store.create_thread(Sample("gone").metadata())
        await store.delete_thread("gone")
    new = (base / "index.json").read_bytes()
    (base / "index.json").write_bytes(old)
    async with opened(base) as store:
        assert (await store.load_metadata("t")).message_count == 2
        assert {row.thread_id for row in (await store.list_threads()).threads} == {"t", "new"}
    assert sorted((base / "index.json").read_bytes().splitlines()) == sorted(new.splitlines())


async def test_the_index_is_written_soon_and_not_with_each_change(base, mock_clock):
    sample = await fill(base)
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        for writings in (1, 2):
            for number in range(15):
                await store.append("t", sample.texts(str(number)))
            assert await trio.to_thread.run_sync(disk.renamed.wait, 60)
            assert disk.calls["rename"] == writings
            disk.renamed.clear()
            await index_at_rest(store)
            await wait_all_tasks_blocked()
            mock_clock.jump(1)


async def test_an_index_that_can_not_be_written_is_no_failure(base):
    sample = await fill(base, ["a"])
    disk = FlakyDisk()
    async with opened(base, disk) as store:
        disk.fail["rename"] = errno.ENOSPC
        await store.append("t", sample.texts("b"))
    async with opened(base) as store:
        assert (await store.load_metadata("t")).message_count == 2


# -- archive and delete


async def test_an_archived_thread_keeps_every_byte(base):
    await fill(base, ["a"])
    before = journal(base).read_bytes()
    async with opened(base) as store:
        assert await store.archive_thread("t")
        assert (base / "archived" / "t.jsonl").read_bytes() == before
        assert not journal(base).exists()
        with pytest.raises(ThreadNotFound):
            await store.append("t", [])
        with pytest.raises(ThreadExists):
            await store.create_thread(Sample("t").metadata(title="other"))
    async with opened(base) as store:
        assert len((await store.list_archived()).threads) == 1
        assert await store.load_metadata("t") is None
        assert await store.unarchive_thread("t")
    assert journal(base).read_bytes() == before


async def test_a_deleted_thread_is_in_no_file_of_the_store(base):
    marker = "MARKER-1f6e"
    for name in ("active", "archived"):
        await fill(base, [marker], thread_id=name)
        async with opened(base) as store:
            await store.append(name, [Sample(f"{name}").user(marker)])
        path = journal(base, name)
        path.write_bytes(path.read_bytes() + marker.encode())
        async with opened(base) as store:
            assert len((await store.load_thread(name)).repairs) == 1
    await fill(base, ["other"], thread_id="active2")
    async with opened(base) as store:
        await store.archive_thread("archived")
    assert any(marker.encode() in data for data in contents(base).values())
    async with opened(base) as store:
        for name in ("active", "archived"):
            assert await store.delete_thread(name)
            assert not await store.delete_thread(name)
        await index_at_rest(store)
        assert not any(marker.encode() in data for data in contents(base).values())
        assert len((await store.list_threads()).threads) == 1
        created = await store.create_thread(Sample("active").metadata())
        assert await store.load_metadata("active") == created
        assert (await store.load_thread("active")).repairs == ()


async def test_bad_ids_are_nothing_to_any_call(base):
    async with opened(base) as store:
        for bad in ("", "x" * 513, "a\0b", 7, None):
            assert await store.load_thread(bad) is None
            assert await store.load_metadata(bad) is None
            assert await store.load_events(bad) == []
            assert not await store.archive_thread(bad)
            assert not await store.unarchive_thread(bad)
            assert not await store.delete_thread(bad)
            with pytest.raises(ThreadNotFound):
                await store.append(bad, [])


async def test_events_are_read_in_pages_by_seq(base):
    sample = await fill(base)
    records = [sample.user(str(number)) for number in range(5)]
    async with opened(base) as store:
        await store.append("t", [*records, sample.usage("a", 1, 1, 1, 2), sample.delta("x"), sample.state("k", 1)])
        assert await store.load_events("t") == records
        assert await store.load_events("t", after=1, limit=2) == records[1:3]
        assert await store.load_events("t", after=5) == []
        assert await store.load_events("unknown") == []


async def test_naive_dates_are_refused(base):
    async with opened(base) as store:
        with pytest.raises(InvalidRecord):
            await store.create_thread(attrs.evolve(Sample("t").metadata(), created_at=START.replace(tzinfo=None)))
        assert list((base / "threads").iterdir()) == []
