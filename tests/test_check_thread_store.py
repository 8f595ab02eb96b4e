"""`check_thread_store` passes good stores and names the one rule that a bad one breaks; `FaultyStore`."""

import re

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from roder_trio import stores, testing
from roder_trio.errors import AppendOutcomeUnknown, InvalidRecord, StorageError, StoreUnsupported, ThreadExists
from roder_trio.schema.event import TERMINAL_EVENTS, UsageRecorded
from roder_trio.schema.usage import ZERO_USAGE
from roder_trio.stores import MemoryThreadStore
from roder_trio.testing import FaultyStore, check_thread_store
from roder_trio.testing._sample import Sample


class TakesAnotherPayload(MemoryThreadStore):
    async def create_thread(self, metadata):
        try:
            return await super().create_thread(metadata)
        except ThreadExists:
            return metadata


class DropsStates(MemoryThreadStore):
    async def load_thread(self, thread_id):
        snapshot = await super().load_thread(thread_id)
        return snapshot and attrs.evolve(snapshot, extension_states=())


class StaleMetadata(MemoryThreadStore):
    async def load_metadata(self, thread_id):
        metadata = await super().load_metadata(thread_id)
        return metadata and attrs.evolve(metadata, usage=None)


class OldestFirst(MemoryThreadStore):
    async def list_threads(self, **arguments):
        page = await super().list_threads(**arguments)
        return attrs.evolve(page, threads=page.threads[::-1])


class ArchivesAlways(MemoryThreadStore):
    async def archive_thread(self, thread_id):
        await super().archive_thread(thread_id)
        return True


class NotAtomic(MemoryThreadStore):
    async def append(self, thread_id, records):
        try:
            await super().append(thread_id, records)
        except InvalidRecord as error:
            refused = error
        else:
            return
        for record in records if isinstance(records, list) else ():
            await super().append(thread_id, [record])
        raise refused


class Reverses(MemoryThreadStore):
    async def append(self, thread_id, records):
        await super().append(thread_id, records[::-1] if isinstance(records, list) else records)


class StoresTwice(MemoryThreadStore):
    async def append(self, thread_id, records):
        thread = self._active.get(thread_id)
        if thread is not None and thread.records:
            thread.ids.clear()
        await super().append(thread_id, records)


class IgnoresTheUnknown(MemoryThreadStore):
    async def append(self, thread_id, records):
        if thread_id in self._active:
            await super().append(thread_id, records)
        else:
            await trio.lowlevel.checkpoint()


class CancelledTooLate(MemoryThreadStore):
    async def append(self, thread_id, records):
        await super().append(thread_id, records)
        await trio.lowlevel.checkpoint()


class AddsAllReports(MemoryThreadStore):
    async def load_thread(self, thread_id):
        snapshot = await super().load_thread(thread_id)
        usages = [e.event.usage for e in snapshot.events if isinstance(e.event, UsageRecorded)] if snapshot else []
        if len(usages) < 2:
            return snapshot
        return attrs.evolve(snapshot, metadata=attrs.evolve(snapshot.metadata, usage=sum(usages, ZERO_USAGE)))

    async def load_metadata(self, thread_id):
        snapshot = await self.load_thread(thread_id)
        return snapshot and snapshot.metadata


class LastEndWins(MemoryThreadStore):
    async def load_thread(self, thread_id):
        snapshot = await super().load_thread(thread_id)
        if snapshot is None:
            return None
        ends = {e.turn_id: e.timestamp for e in snapshot.events if isinstance(e.event, TERMINAL_EVENTS)}
        turns = [attrs.evolve(turn, completed_at=ends.get(turn.turn_id)) for turn in snapshot.turns]
        return attrs.evolve(snapshot, turns=turns)


class KeepsTheDeleted(MemoryThreadStore):
    def __init__(self):
        super().__init__()
        self.kept = {}

    async def delete_thread(self, thread_id):
        thread = self._active.get(thread_id)
        if thread is not None:
            self.kept[thread_id] = thread.records
        return await super().delete_thread(thread_id)

    async def create_thread(self, metadata):
        created = await super().create_thread(metadata)
        self._active[metadata.thread_id].records = self.kept.pop(metadata.thread_id, [])
        return created


class PagesTooLarge(MemoryThreadStore):
    async def load_events(self, thread_id, after=0, limit=500):
        return await super().load_events(thread_id, after, limit + 1)


class NeverEnds(MemoryThreadStore):
    async def load_events(self, thread_id, after=0, limit=500):
        return await super().load_events(thread_id, 0, 1) if limit == 1 else []

    async def read_log(self, thread_id, cursor=None):
        page = await super().read_log(thread_id)
        return page and attrs.evolve(page, next_cursor="0")


class StaleState(MemoryThreadStore):
    async def load_state(self, thread_id):
        hydration = await super().load_state(thread_id)
        if hydration is not None:
            hydration.state.goal = None
        return hydration


class NoState(MemoryThreadStore):
    async def load_state(self, thread_id):
        await trio.lowlevel.checkpoint()


class HidesArchivedLogs(MemoryThreadStore):
    async def read_log(self, thread_id, cursor=None):
        page = await super().read_log(thread_id, cursor)
        return None if page is None or page.archived else page


class WrongCreation(MemoryThreadStore):
    async def read_log(self, thread_id, cursor=None):
        page = await super().read_log(thread_id, cursor)
        created = page and page.created.replace(b'"created_at"', b'"message_count":1,"created_at"')
        return page and attrs.evolve(page, created=created)


@pytest.mark.parametrize(
    ("store", "rules"),
    [
        (PagesTooLarge, ["load_events"]),
        (NeverEnds, ["load_events", "read_log"]),
        (StaleState, ["load_state"]),
        (NoState, ["load_state"]),
        (HidesArchivedLogs, ["read_log"]),
        (WrongCreation, ["read_log"]),
    ],
)
async def test_a_store_that_reads_wrongly_in_its_own_way_fails_those_checks_alone(store, rules):
    made = store()
    with pytest.raises(AssertionError) as failure:
        await check_thread_store(lambda: made)
    assert re.findall(r"^- (\w+)", str(failure.value), re.MULTILINE) == rules


@pytest.mark.parametrize(
    ("store", "rule"),
    [
        (TakesAnotherPayload, "C1"),
        (DropsStates, "C2"),
        (StaleMetadata, "C3"),
        (OldestFirst, "C4"),
        (ArchivesAlways, "C5"),
        (NotAtomic, "C6"),
        (Reverses, "C8"),
        (StoresTwice, "C9"),
        (IgnoresTheUnknown, "C10"),
        (CancelledTooLate, "C11"),
        (AddsAllReports, "M4"),
        (LastEndWins, "P2"),
        (KeepsTheDeleted, "A0"),
    ],
)
async def test_a_store_that_breaks_one_rule_fails_that_check_alone(store, rule):
    made = store()
    with pytest.raises(AssertionError) as failure:
        await check_thread_store(lambda: made)
    assert re.findall(r"^- (\w+)", str(failure.value), re.MULTILINE) == [rule]


async def test_the_memory_store_passes():
    store = MemoryThreadStore()
    await check_thread_store(lambda: store)


async def test_a_store_wrapped_in_a_faultless_one_passes():
    store = FaultyStore(MemoryThreadStore())
    await check_thread_store(lambda: store, reopen=False)
    assert store.appends > store.stored > 0


async def test_the_jsonl_store_passes_in_both_durabilities(tmp_path):
    await check_thread_store(lambda: stores.JsonlThreadStore(tmp_path / "power"))
    await check_thread_store(lambda: stores.JsonlThreadStore(tmp_path / "process", durability="process"))


async def test_a_store_that_keeps_nothing_fails_what_is_looked_at_after_reopening():
    with pytest.raises(AssertionError, match=r"C7 durable append \(what was stored\)"):
        await check_thread_store(MemoryThreadStore)


async def test_a_difference_to_the_model_is_found_when_no_rule_tells_it():
    class DropsCommentary(MemoryThreadStore):
        async def load_thread(self, thread_id):
            snapshot = await super().load_thread(thread_id)
            return snapshot and attrs.evolve(snapshot, events=[e for e in snapshot.events if "comm" not in repr(e)])

    store = DropsCommentary()
    with pytest.raises(AssertionError, match=r"^1 checks of the store failed:\n- model"):
        await check_thread_store(lambda: store)


async def test_a_store_that_can_not_delete_or_unarchive_is_not_asked_to():
    class Plain(MemoryThreadStore):
        async def delete_thread(self, thread_id):
            raise StoreUnsupported("no")

        unarchive_thread = list_archived = delete_thread

    store = Plain()
    await check_thread_store(lambda: store)


async def test_a_store_that_can_not_do_what_is_asked_of_all_fails():
    class ForReading(MemoryThreadStore):
        async def append(self, thread_id, records):
            raise StoreUnsupported("no")

    store = ForReading()
    with pytest.raises(AssertionError, match="- C7 durable append: StoreUnsupported: no"):
        await check_thread_store(lambda: store)


def broken(store, point):
    store.fail.clear()
    store.fail_after.clear()
    if point == "after":
        store.fail_after[store.appends + 1] = AppendOutcomeUnknown("after")
    else:
        store.fail[store.appends + 1] = StorageError(point)


async def test_injected_failures_pass_on_a_store_that_keeps_its_promise():
    store = FaultyStore(MemoryThreadStore())
    await check_thread_store(lambda: store, fault=broken)


@pytest.mark.parametrize("error", [StorageError("stored all the same"), AppendOutcomeUnknown("known to be stored")])
async def test_injected_failures_show_a_store_that_says_not_stored_of_what_it_stored(error):
    def lies(store, point):
        store.fail_after[store.appends + 1] = error

    store = FaultyStore(StoresTwice() if isinstance(error, AppendOutcomeUnknown) else MemoryThreadStore())
    with pytest.raises(AssertionError, match="- C12 failed append"):
        await check_thread_store(lambda: store, fault=lies)


async def test_a_fault_that_does_not_happen_is_told():
    asked = []
    store = FaultyStore(MemoryThreadStore())
    with pytest.raises(AssertionError, match="an append that fails before the write returned"):
        await check_thread_store(lambda: store, fault=lambda *asks: asked.append(asks))
    assert asked == [(store, "before")]


# -- FaultyStore


async def test_the_numbered_append_fails_before_or_after_its_write():
    store = FaultyStore(
        MemoryThreadStore(), fail={1: StorageError("before")}, fail_after={2: AppendOutcomeUnknown("after")}
    )
    sample = Sample("t")
    await store.create_thread(sample.metadata())
    for error in ("before", "after"):
        with pytest.raises(StorageError, match=error):
            await store.append("t", sample.texts(error))
    await store.append("t", sample.texts("fine"))
    snapshot = await store.load_thread("t")
    assert [envelope.event.item.text for envelope in snapshot.events] == ["after", "fine"]
    assert (store.appends, store.stored, store.loads) == (3, 2, 1)


async def test_a_hook_holds_an_append_before_its_write_until_cancelled(nursery):
    async def hold(number, thread_id, records):
        seen.append((number, thread_id, len(records)))
        await trio.sleep_forever()

    seen = []
    store = FaultyStore(MemoryThreadStore(), before=hold)
    sample = Sample("t")
    await store.create_thread(sample.metadata())
    scope = trio.CancelScope()

    async def append():
        with scope:
            await store.append("t", sample.texts("a", "b"))

    nursery.start_soon(append)
    await wait_all_tasks_blocked()
    scope.cancel()
    await wait_all_tasks_blocked()
    assert scope.cancelled_caught
    assert seen == [(1, "t", 2)]
    assert (await store.load_thread("t")).events == ()


async def test_a_hook_after_the_write_is_shielded(nursery):
    async def hold(number, thread_id, records):
        await release.wait()

    release = trio.Event()
    store = FaultyStore(MemoryThreadStore(), after=hold)
    sample = Sample("t")
    await store.create_thread(sample.metadata())
    scope = trio.CancelScope()

    async def append():
        with scope:
            await store.append("t", sample.texts("a"))

    nursery.start_soon(append)
    await wait_all_tasks_blocked()
    scope.cancel()
    await wait_all_tasks_blocked()
    assert len((await store.load_thread("t")).events) == 1
    release.set()
    await wait_all_tasks_blocked()
    assert not scope.cancelled_caught


async def test_the_other_calls_reach_the_inner_store():
    store = FaultyStore(MemoryThreadStore())
    sample = Sample("t")
    async with store.open():
        await store.create_thread(sample.metadata())
        await store.append("t", [sample.user("x")])
        await store.claim_thread("t")
        await store.release_thread("t")
        assert len(await store.load_events("t")) == 1
        assert (await store.load_metadata("t")).title == "x"
        assert len((await store.list_threads()).threads) == 1
        assert await store.archive_thread("t")
        assert len((await store.list_archived()).threads) == 1
        assert await store.unarchive_thread("t")
        assert await store.delete_thread("t")
        with pytest.raises(StoreUnsupported):
            store.follow("t")


def test_the_testing_module_names_what_it_has():
    assert {"FaultyStore", "check_thread_store"} <= set(dir(testing))
    with pytest.raises(AttributeError, match="nothing"):
        _ = testing.nothing
