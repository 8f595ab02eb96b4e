"""The store that keeps threads in memory, beyond what `check_thread_store` looks at."""

import math

import attrs
import pytest
import trio

from roder_trio import stores
from roder_trio.errors import InvalidCursor, InvalidRecord
from roder_trio.schema import item as items
from roder_trio.schema import transcript
from roder_trio.schema.event import TranscriptItemAppended, Unknown
from roder_trio.schema.item import ItemCompleted, ItemStarted, ThreadItemEvent
from roder_trio.schema.thread import ExtensionStateRecord, OpaqueRecord, TurnScope
from roder_trio.stores import MemoryThreadStore
from roder_trio.testing._sample import START, Sample, at


@pytest.fixture
def store():
    return MemoryThreadStore()


@pytest.fixture
def sample():
    return Sample("t")


async def test_payloads_are_neither_copied_nor_encoded(store, sample):
    payload = {"deep": [1, 2, 3]}
    record = sample.item(transcript.ProviderMetadata(payload))
    await store.create_thread(sample.metadata())
    await store.append("t", [record])
    snapshot = await store.load_thread("t")
    assert snapshot.events[0] is record
    assert snapshot.turns[0].items[0].payload is payload


async def test_a_snapshot_does_not_grow_with_the_log(store, sample):
    await store.create_thread(sample.metadata())
    before = await store.load_thread("t")
    await store.append("t", [sample.user("x")])
    assert before.events == ()
    assert before.metadata.message_count == 0


@pytest.mark.parametrize(
    "part",
    [
        Unknown("newer", {"x": math.nan}),
        TranscriptItemAppended(0, transcript.OpaqueItem("newer", {"x": b""})),
        TranscriptItemAppended(0, transcript.ToolResult("c", "t", "r", display_payload={"x": {1}})),
    ],
)
async def test_a_part_that_can_not_be_encoded_is_refused_wherever_it_stands(store, sample, part):
    await store.create_thread(sample.metadata())
    with pytest.raises(InvalidRecord):
        await store.append("t", [sample.user("good"), sample.envelope(part)])
    assert (await store.load_thread("t")).events == ()


@pytest.mark.parametrize("event", [ItemStarted(items.Raw("i", {1})), ItemCompleted(items.AgentMessage("i", 3))])
async def test_items_of_hosts_are_looked_into(store, sample, event):
    await store.create_thread(sample.metadata())
    record = ThreadItemEvent(event_id="e", seq=1, timestamp=START, thread_id="t", turn_id="u", event=event)
    with pytest.raises(InvalidRecord):
        await store.append("t", [record])


@pytest.mark.parametrize(
    "record",
    [
        attrs.evolve(Sample("t").user("x"), event_id=""),
        attrs.evolve(Sample("t").user("x"), event_id="x" * 513),
        attrs.evolve(Sample("t").user("x"), event_id=None),
        attrs.evolve(Sample("t").user("x"), timestamp=START.replace(tzinfo=None)),
        attrs.evolve(Sample("t").delta("x"), timestamp=START.replace(tzinfo=None)),
        attrs.evolve(Sample("t").state("k", 1), scope=TurnScope("other", "u")),
        OpaqueRecord("newer", {"type": "newer"}),
        OpaqueRecord("newer", {"type": "newer", "event_id": "e", "value": {1}}),
        Sample("t").metadata(),
    ],
)
async def test_records_that_no_log_takes_are_refused(store, sample, record):
    await store.create_thread(sample.metadata())
    with pytest.raises(InvalidRecord):
        await store.append("t", [record])


async def test_labels_that_no_thread_may_have_are_refused_with_the_whole_batch(store, sample):
    from roder_trio.schema.event import ThreadMetadataChanged

    await store.create_thread(sample.metadata())
    for labels in ({"": "x"}, {"k": 1}, {str(n): "" for n in range(65)}, 7):
        bad = sample.envelope(ThreadMetadataChanged(title="new", labels=labels), None)
        with pytest.raises(InvalidRecord):
            await store.append("t", [sample.user("x"), bad])
    assert await store.load_metadata("t") == sample.metadata()


async def test_an_opaque_record_with_an_id_is_kept_for_an_export_and_shown_nowhere(store, sample):
    await store.create_thread(sample.metadata())
    record = OpaqueRecord("newer", {"type": "newer", "record_id": "r", "x": 1})
    await store.append("t", [record, record])
    assert await store.load_metadata("t") == sample.metadata()
    assert (await store.load_thread("t")).extension_states == ()


async def test_an_append_of_more_than_64_mib_is_refused_and_16_mib_in_one_record_are_not(store, sample):
    await store.create_thread(sample.metadata())
    megabyte = 1024 * 1024
    await store.append("t", [sample.user("x" * (16 * megabyte))])
    batch = [sample.user("x" * (13 * megabyte)) for _ in range(5)]
    with pytest.raises(InvalidRecord, match="67108864"):
        await store.append("t", batch)
    assert len((await store.load_thread("t")).events) == 1


async def test_dates_without_offset_and_what_is_no_metadata_are_refused(store, sample):
    with pytest.raises(InvalidRecord, match="offset"):
        await store.create_thread(attrs.evolve(sample.metadata(), created_at=START.replace(tzinfo=None)))
    with pytest.raises(InvalidRecord, match="offset"):
        await store.create_thread(attrs.evolve(sample.metadata(), updated_at=START.replace(tzinfo=None)))
    with pytest.raises(TypeError):
        await store.create_thread({"thread_id": "t"})
    assert (await store.list_threads()).threads == ()


async def test_events_are_read_in_pages_by_seq(store, sample):
    await store.create_thread(sample.metadata())
    records = [sample.user(str(number)) for number in range(5)]
    await store.append("t", [*records, sample.usage("a", 1, 1, 1, 2), sample.delta("x")])
    assert await store.load_events("t") == records
    assert await store.load_events("t", after=1, limit=2) == records[1:3]
    assert await store.load_events("t", after=5) == []
    assert await store.load_events("unknown") == []


async def test_a_walk_meets_a_thread_that_changes_meanwhile_at_most_once(store):
    samples = [Sample(f"t{number}") for number in range(6)]
    for number, sample in enumerate(samples):
        await store.create_thread(sample.metadata(number))
    seen = []
    cursor = None
    for step in range(6):
        page = await store.list_threads(limit=1, cursor=cursor)
        seen += [metadata.thread_id for metadata in page.threads]
        cursor = page.next_cursor
        if step == 1:
            await store.append("t0", [samples[0].user("x", seconds=1000)])
        if cursor is None:
            break
    assert seen == ["t5", "t4", "t3", "t2", "t1"]


async def test_cursors_belong_to_one_list(store):
    for number in range(3):
        await store.create_thread(Sample(f"t{number}").metadata())
    cursor = (await store.list_threads(limit=1)).next_cursor
    for bad in ("", "x", cursor[:-4], cursor + "=", "é", "W10=", "bnVsbA==", 7):
        with pytest.raises(InvalidCursor):
            await store.list_threads(cursor=bad)
    with pytest.raises(InvalidCursor):
        await store.list_archived(cursor=cursor)
    with pytest.raises(ValueError, match="label"):
        await store.list_threads(label="no pair")


async def test_a_page_that_is_just_full_has_no_cursor(store):
    for number in range(4):
        await store.create_thread(Sample(f"t{number}").metadata(number))
    assert (await store.list_threads(limit=4)).next_cursor is None
    page = await store.list_threads(limit=2)
    page = await store.list_threads(limit=2, cursor=page.next_cursor)
    assert [metadata.thread_id for metadata in page.threads] == ["t1", "t0"]
    assert page.next_cursor is None


async def test_a_cancelled_call_changes_nothing(store, sample):
    await store.create_thread(sample.metadata())
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.append("t", [sample.user("x")])
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.archive_thread("t")
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.create_thread(Sample("other").metadata())
    assert [m.thread_id for m in (await store.list_threads()).threads] == ["t"]
    assert (await store.load_thread("t")).events == ()


async def test_the_runtime_may_close_it_and_open_it_again(store, sample):
    async with store.open():
        await store.create_thread(sample.metadata())
    async with store.open():
        assert await store.load_metadata("t") is not None
    assert repr(store) == "<MemoryThreadStore with 1 threads>"


async def test_ids_are_free_text(store):
    names = ["../../x", "/abs", "a/b", "CON", "A", "a", "\u00e9", "e\u0301", "x" * 512]
    for name in names:
        await store.create_thread(Sample(name).metadata())
    assert len((await store.list_threads()).threads) == len(names)


async def test_state_of_a_scope_without_thread_is_stored(store, sample):
    from roder_trio.schema.thread import WorkspaceScope

    await store.create_thread(sample.metadata())
    record = ExtensionStateRecord(
        record_id="r", extension_id="x", key="k", scope=WorkspaceScope("/w"), schema_version=1, value=None
    )
    await store.append("t", [record])
    assert (await store.load_thread("t")).extension_states == (record,)


async def test_an_import_keeps_its_dates(store, sample):
    await store.create_thread(sample.metadata(100))
    await store.append("t", [sample.user("old", seconds=5)])
    assert (await store.load_metadata("t")).updated_at == at(100)


def test_the_stores_module_names_what_it_has():
    assert {"JsonlThreadStore", "MemoryThreadStore", "StoreRepair"} <= set(dir(stores))
    assert {stores.JsonlThreadStore.id, stores.MemoryThreadStore.id} == {"jsonl", "memory"}
    with pytest.raises(AttributeError, match="nothing"):
        _ = stores.nothing
