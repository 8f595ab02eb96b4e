"""The check of a whole store: it passes what follows from the logs, and names what doesn't."""

import attrs
import pytest

from roder_trio import stores
from roder_trio.errors import StorageError
from roder_trio.schema.event import GoalUpdated
from roder_trio.stores.transfer import check_store
from roder_trio.testing._sample import Sample
from tests.transfer_support import Plain, all_kinds, fill, jsonl, random_batches


async def test_a_store_that_says_what_its_logs_say_passes_and_is_counted(tmp_path):
    async with jsonl(tmp_path / "store") as store:
        for name in ("a", "b", "gone"):
            await fill(store, name)
        await fill(store, "c", batches=random_batches("c", 1))
        await store.archive_thread("gone")
        report = await check_store(store)
    async with jsonl(tmp_path / "store", read_only=True) as store:
        assert await check_store(store) == report
    assert report.failures == {}
    assert (report.threads, report.archived) == (3, 1)
    assert report.records > 3 * len(all_kinds())
    assert report.turns > 3


async def test_an_empty_store_and_a_plain_one_pass():
    assert await check_store(stores.MemoryThreadStore()) == stores.transfer.StoreCheck()
    plain = Plain()
    await fill(plain)
    report = await check_store(plain)
    assert (report.threads, report.records, report.failures) == (1, len(all_kinds()) - 1, {})


def says(change):
    """A store whose snapshots are changed."""

    class Lies(stores.MemoryThreadStore):
        async def load_thread(self, thread_id):
            snapshot = await super().load_thread(thread_id)
            return snapshot and change(snapshot)

    return Lies()


def other_goal(snapshot):
    events = [
        attrs.evolve(envelope, event=attrs.evolve(envelope.event, opening_tokens=6))
        if isinstance(envelope.event, GoalUpdated)
        else envelope
        for envelope in snapshot.events
    ]
    return attrs.evolve(snapshot, events=events)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: attrs.evolve(s, metadata=attrs.evolve(s.metadata, message_count=9)), "metadata"),
        (lambda s: attrs.evolve(s, metadata=attrs.evolve(s.metadata, usage=None)), "metadata"),
        (lambda s: attrs.evolve(s, turns=()), "turns"),
        (other_goal, "events, goal"),
        (lambda s: attrs.evolve(s, item_events=()), "item events, next numbers"),
        (lambda s: attrs.evolve(s, extension_states=()), "extension states"),
        (lambda s: None, "presence"),
    ],
)
async def test_what_does_not_follow_from_the_log_is_named(change, told):
    store = says(change)
    await fill(store)
    assert (await check_store(store)).failures == {"t": f"{told}: not as the log says"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: setattr(state, "goal", None), "goal"),
        (lambda state: setattr(state, "opening_tokens", 6), "goal"),
        (lambda state: setattr(state, "goal_time", 6.0), "goal"),
        (lambda state: setattr(state, "next_seq", 99), "next numbers"),
    ],
)
async def test_a_state_that_is_kept_beside_the_log_is_checked_too(change, told):
    class Keeps(stores.MemoryThreadStore):
        async def load_state(self, thread_id):
            hydration = await super().load_state(thread_id)
            change(hydration.state)
            return hydration

    store = Keeps()
    await fill(store)
    assert (await check_store(store)).failures == {"t": f"{told}: not as the log says"}


async def test_listed_metadata_is_checked_of_active_and_of_archived_threads():
    class Stale(stores.MemoryThreadStore):
        async def load_metadata(self, thread_id):
            return attrs.evolve(await super().load_metadata(thread_id), title="stale")

        async def list_archived(self, **arguments):
            page = await super().list_archived(**arguments)
            return attrs.evolve(page, threads=[attrs.evolve(row, title="stale") for row in page.threads])

    store = Stale()
    await fill(store, "a")
    await fill(store, "gone")
    await store.archive_thread("gone")
    assert (await check_store(store)).failures == {
        "a": "listed metadata: not as the log says",
        "gone": "metadata: not as the log says",
    }


async def test_a_thread_that_grows_between_two_looks_is_looked_at_again():
    class Busy(stores.MemoryThreadStore):
        appends = 0

        async def load_metadata(self, thread_id):
            if self.appends < 2:
                self.appends += 1
                await self.append(thread_id, [attrs.evolve(Sample("t").user("x"), event_id=f"late-{self.appends}")])
            return await super().load_metadata(thread_id)

    store = Busy()
    await fill(store)
    report = await check_store(store)
    assert report.failures == {}
    assert report.records == len(all_kinds()) + 2


async def test_damage_is_told_by_thread_and_one_that_vanished_is_no_failure(tmp_path):
    async with jsonl(tmp_path / "store") as store:
        for name in ("bad", "good", "worse"):
            await fill(store, name)
    for name, line in (("bad", 3), ("worse", 1)):
        path = tmp_path / "store" / "threads" / f"{name}.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        lines[line] = lines[line].replace(b'"crc":"', b'"crc":"0')
        path.write_bytes(b"".join(lines))

    class Seen(stores.JsonlThreadStore):
        async def list_threads(self, **arguments):
            page = await super().list_threads(**arguments)
            fake = [Sample("vanished").metadata(), Sample("worse").metadata()]
            return attrs.evolve(page, threads=[*page.threads, *fake])

    store = Seen(tmp_path / "store", read_only=True)
    async with store.open():
        report = await check_store(store)
    assert sorted(report.failures) == ["bad", "worse"]
    assert "batch that created the thread is missing" in report.failures["worse"]


async def test_a_store_that_can_not_be_listed_is_an_error(tmp_path):
    with pytest.raises(StorageError):
        await check_store(stores.JsonlThreadStore(tmp_path))
