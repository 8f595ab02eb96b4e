"""Thread directories of Roder become threads: metadata, files, whole folders, and the same the next time."""

import json
from datetime import UTC, datetime

import pytest

import roder_trio as rt
from roder_trio import stores, testing
from roder_trio.errors import StorageError
from roder_trio.stores import import_roder
from roder_trio.stores.transfer import check_store
from tests.roder_support import GOAL, RoderThread, at, completed, moment, started, usage
from tests.test_roder_events import ITEMS, MAPPED, UNKNOWN
from tests.transfer_support import jsonl


@pytest.fixture
def roder(tmp_path):
    """Makes thread directories below a folder `threads`."""
    return lambda thread_id="thread-1", folder="threads": RoderThread(tmp_path / folder, thread_id)


@pytest.fixture
def load(tmp_path):
    """Imports the folder `threads` into a store in memory; gives the report and a snapshot."""

    async def import_one(thread_id="thread-1", store=None):
        store = store or stores.MemoryThreadStore()
        report = await import_roder(tmp_path / "threads", store)
        assert (await check_store(store)).failures == {}
        return report, await store.load_thread(thread_id)

    return import_one


async def test_metadata_are_those_of_roder(roder, load):
    roder().metadata().turn().write()
    report, snapshot = await load()
    assert report == stores.ImportReport(imported=("thread-1",))
    assert snapshot.metadata == rt.ThreadMetadata(
        thread_id="thread-1",
        title="A title",
        workspace="/srv/project",
        provider="openai",
        model="gpt",
        tool_allowlist=("read",),
        developer_instructions="be brief",
        created_at=moment(at(0)),
        updated_at=moment(at(500)),
        message_count=2,
    )


async def test_missing_metadata_are_derived_of_the_first_and_the_last_event(roder, load):
    roder().turn().item(40, {"type": "itemStarted", "item": {"type": "error", "id": "i", "message": "m"}}).write()
    report, snapshot = await load()
    metadata = snapshot.metadata
    assert (metadata.workspace, metadata.title, metadata.message_count) == (None, "question", 2)
    assert (metadata.created_at, metadata.updated_at) == (moment(at(1)), moment(at(40)))
    assert report.warnings == ()


async def test_garbage_after_the_metadata_is_ignored(roder, load):
    thread = roder().metadata().turn().write()
    thread.file("metadata.json", (thread.folder / "metadata.json").read_text() + '}\n{"title": "half')
    report, snapshot = await load()
    assert (snapshot.metadata.title, report.failed) == ("A title", {})


async def test_a_relative_workspace_is_left_out_with_a_warning(roder, load):
    roder().metadata(workspace="project").write()
    report, snapshot = await load()
    assert snapshot.metadata.workspace is None
    assert report.warnings == ("thread-1: the workspace 'project' is no absolute path and was left out",)


async def test_a_count_of_messages_beyond_those_in_the_log_is_kept(roder, load):
    roder().metadata(message_count=5).turn().write()
    assert (await load())[1].metadata.message_count == 5


@pytest.mark.parametrize("file", ["metadata.json", "events.jsonl", "item_events.jsonl"])
async def test_the_id_comes_from_what_names_it(tmp_path, roder, file):
    thread = roder().metadata().turn()
    thread.item(1, {"type": "itemStarted", "item": {"type": "error", "id": "i", "message": "m"}}).write()
    for other in ("metadata.json", "events.jsonl", "item_events.jsonl"):
        if other != file:
            (thread.folder / other).unlink()
    thread.folder.rename(thread.folder.with_name("odd name"))
    store = stores.MemoryThreadStore()
    assert (await import_roder(tmp_path / "threads", store)).imported == ("thread-1",)


async def test_a_folder_that_says_nothing_of_its_thread_gives_it_its_name_but_no_dates(roder, load):
    roder("named").file("metadata.json", {"created_at": at(0), "updated_at": at(1)})
    roder("dateless").file("metadata.json", {"created_at": at(0)})
    report, _ = await load()
    assert report.imported == ("named",)
    assert "'updated_at' is missing" in report.failed["dateless"]


# -- files


async def test_several_values_on_a_line_are_read_in_turn_and_a_torn_last_one_is_dropped(roder, load):
    thread = roder().metadata().turn()
    lines = thread.lines["events"]
    thread.write().file("events.jsonl", f"{lines[0]} {lines[1]}\n\n{lines[2]}{lines[3][:40]}")
    report, snapshot = await load()
    assert len(snapshot.events) == 3
    assert report.warnings == ("thread-1: events.jsonl line 3 is cut off and was dropped",)


def appended(item):
    return json.dumps({"event_id": "x", "timestamp": at(1), "event": {"TranscriptItemAppended": {"item": item}}})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{garbage", "events.jsonl line 2"),
        ("[1]", "events.jsonl line 2: a value is no JSON object"),
        ('{"event_id": 5}', "an event has no event_id"),
        ('{"event_id": "x", "event": {"A": 1, "B": 2}}', "tagged by one key"),
        ('{"event_id": "x", "thread_id": "other", "event": "A"}', "names thread 'other'"),
        ('{"event_id": "x", "event": "A", "timestamp": "2026-01-01T00:00:00"}', "events.jsonl line 2"),
        (appended({"UserMessage": {}}), "events.jsonl line 2"),
        (appended({"UserMessage": {"text": "", "images": [5]}}), "events.jsonl line 2"),
        (appended({"UserMessage": {"text": "", "images": 5}}), "events.jsonl line 2"),
        (appended({"UserMessage": {"text": ""}, "Two": {}}), "events.jsonl line 2"),
    ],
)
async def test_inner_damage_fails_its_thread_alone(roder, load, line, told):
    bad, good = roder("bad").metadata().turn(), roder("good").metadata().turn()
    bad.lines["events"].insert(1, line)
    bad.write()
    good.write()
    report, snapshot = await load("bad")
    assert snapshot is None
    assert report.imported == ("good",)
    assert told in report.failed["bad"]


@pytest.mark.parametrize(
    "fields",
    [
        {"event": 5},
        {"threadId": "other"},
        {"timestamp": None},
        {"event": {"type": "itemStarted", "item": None}},
        {"event": {"type": "itemStarted", "item": {"type": "agentMessage", "id": "m", "status": "dreaming"}}},
    ],
)
async def test_damage_among_item_events_fails_the_thread(roder, load, fields):
    roder().metadata().item(1, started({"type": "error", "id": "i", "message": "m"}), **fields).write()
    report, snapshot = await load()
    assert snapshot is None
    assert "item_events.jsonl line 1" in report.failed["thread-1"]


@pytest.mark.parametrize("text", ["", "{garbage", "[]", '{"created_at": 5, "updated_at": "x"}', '{"title": 5}'])
async def test_metadata_that_can_not_be_read_fail_the_thread(roder, load, text):
    roder().turn().write().file("metadata.json", text)
    report, snapshot = await load()
    assert snapshot is None
    assert "metadata.json line 1" in report.failed["thread-1"]


async def test_the_source_is_only_read(roder, load):
    thread = roder().metadata().turn().state("a", 1).file("goal.json", GOAL).write()
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in thread.folder.iterdir()}
    await load()
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in thread.folder.iterdir()} == before


# -- whole folders


def whole(thread):
    message = {"type": "agentMessage", "id": "m", "text": "answer", "status": "completed"}
    thread.metadata(usage=usage(50, 9)).turn(told=usage(10, 2)).item(1, completed(message)).state("a", 1)
    return thread.file("goal.json", {**GOAL, "threadId": thread.thread_id}).write()


async def test_archived_threads_beside_the_folder_are_imported_as_archived(roder, tmp_path):
    whole(roder("active"))
    whole(roder("gone", "archived_threads"))
    (tmp_path / "threads" / "notes").mkdir()
    (tmp_path / "threads" / "file").write_text("")
    store = stores.MemoryThreadStore()
    report = await import_roder(tmp_path / "threads", store)
    assert report.imported == ("active", "gone")
    assert [row.thread_id for row in (await store.list_threads()).threads] == ["active"]
    assert [row.thread_id for row in (await store.list_archived()).threads] == ["gone"]
    report = await import_roder(tmp_path / "threads", store)
    assert (report.imported, report.skipped) == ((), ("active", "gone"))


async def test_the_folder_that_holds_the_threads_will_do(roder, tmp_path):
    whole(roder("active"))
    assert (await import_roder(str(tmp_path), stores.MemoryThreadStore())).imported == ("active",)


async def test_importing_twice_adds_nothing(roder, tmp_path):
    thread = whole(roder())
    async with jsonl(tmp_path / "store") as store:
        assert (await import_roder(tmp_path / "threads", store)).imported == ("thread-1",)
        before = (tmp_path / "store" / "threads" / "thread-1.jsonl").read_bytes()
        report = await import_roder(tmp_path / "threads", store)
        assert (report.imported, report.skipped) == ((), ("thread-1",))
        assert (tmp_path / "store" / "threads" / "thread-1.jsonl").read_bytes() == before
        assert (await check_store(store)).failures == {}
        # what Roder added since is what is new
        thread.event("TurnStarted", {"provider": "p", "model": "m"}, "turn-9").write()
        assert (await import_roder(tmp_path / "threads", store)).imported == ("thread-1",)
        assert (await store.load_thread("thread-1")).turns[-1].turn_id == "turn-9"


async def test_an_import_that_fails_at_any_append_is_completed_by_the_next(roder, tmp_path, monkeypatch):
    monkeypatch.setattr("roder_trio.stores._batch.CHUNK_RECORDS", 2)
    whole(roder())
    whole(roder("gone", "archived_threads"))
    wanted = stores.MemoryThreadStore()
    await import_roder(tmp_path / "threads", wanted)
    for number in range(1, 11):
        for fault in ("fail", "fail_after"):
            store = testing.FaultyStore(stores.MemoryThreadStore(), **{fault: {number: StorageError("now")}})
            assert list((await import_roder(tmp_path / "threads", store)).failed.values()) == ["now"]
            await import_roder(tmp_path / "threads", store)
            for thread_id in ("thread-1", "gone"):
                await wanted.unarchive_thread(thread_id)
                assert await store.unarchive_thread(thread_id) is (thread_id == "gone")
                assert await store.load_thread(thread_id) == await wanted.load_thread(thread_id)
    assert store.appends >= 10


async def test_another_thread_under_the_id_is_not_touched(roder, tmp_path):
    whole(roder())
    store = stores.MemoryThreadStore()
    now = datetime.now(UTC)
    await store.create_thread(rt.ThreadMetadata(thread_id="thread-1", created_at=now, updated_at=now))
    report = await import_roder(tmp_path / "threads", store)
    assert "'thread-1' is taken" in report.failed["thread-1"]
    assert (await store.load_thread("thread-1")).events == ()


async def test_a_thread_that_was_archived_since_stays_so(roder, tmp_path):
    whole(roder())
    store = stores.MemoryThreadStore()
    await import_roder(tmp_path / "threads", store)
    await store.archive_thread("thread-1")
    assert (await import_roder(tmp_path / "threads", store)).skipped == ("thread-1",)
    assert await store.load_thread("thread-1") is None


async def test_no_folder_is_an_error_and_an_empty_one_is_nothing(tmp_path):
    with pytest.raises(StorageError, match=r"missing' can't be imported: .*No such file"):
        await import_roder(tmp_path / "missing", stores.MemoryThreadStore())
    report = await import_roder(tmp_path, stores.MemoryThreadStore())
    assert report == stores.ImportReport(warnings=(f"there is no thread directory in '{tmp_path}'",))


async def test_an_imported_thread_goes_on(roder, tmp_path):
    """Its open turn is closed, its next numbers follow, its history is told to the model."""
    thread = whole(roder()).metadata(workspace=None)
    thread.event("TurnStarted", {"provider": "p", "model": "m"}, "turn-2")
    thread.append("UserMessage", {"text": "open"}, "turn-2").write()
    store = stores.MemoryThreadStore()
    await import_roder(tmp_path / "threads", store)
    before = await store.load_thread("thread-1")
    async with rt.open_runtime(store=store, config=rt.RuntimeConfig(default_provider="offline")) as runtime:
        await runtime.update_thread("thread-1", provider="offline", model="offline")
        outcome = await runtime.run_turn("thread-1", "go on")
        snapshot = await runtime.load_thread("thread-1")
    assert outcome.status == "completed"
    assert [turn.status.value for turn in snapshot.turns] == ["completed", "interrupted", "completed"]
    seqs = [envelope.seq for envelope in snapshot.events if envelope.seq]
    assert seqs == list(range(1, len(seqs) + 1))
    assert snapshot.events[: len(before.events)] == before.events
    assert min(event.seq for event in snapshot.item_events[1:]) == 2


async def test_what_is_imported_survives_a_journal_as_it_was(roder, tmp_path):
    thread = whole(roder())
    for (tag, content), _ in ITEMS:
        thread.append(tag, content)
    for tag, content in [*(given for given, _ in MAPPED), *(given for given, _ in UNKNOWN)]:
        thread.event(tag, content)
    thread.write()
    store = stores.MemoryThreadStore()
    await import_roder(tmp_path / "threads", store)
    async with jsonl(tmp_path / "store") as journal:
        await import_roder(tmp_path / "threads", journal)
        assert await journal.load_thread("thread-1") == await store.load_thread("thread-1")
