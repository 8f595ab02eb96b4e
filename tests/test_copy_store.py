"""Copies of whole stores: every thread, thread by thread, again without harm."""

import attrs
import pytest

from roder_trio import stores
from roder_trio.errors import (
    StorageError,
    StoreUnsupported,
)
from roder_trio.stores import copy_store
from roder_trio.stores.transfer import copy
from roder_trio.testing._sample import Sample
from tests.transfer_support import Plain, fill, jsonl, log_of, random_batches, same_threads


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
async def store(request, tmp_path):
    made = {
        "memory": stores.MemoryThreadStore,
        "jsonl": lambda: stores.JsonlThreadStore(tmp_path / "store", durability="process"),
        "sqlite": lambda: stores.SqliteThreadStore(tmp_path / "store.db", durability="process"),
    }[request.param]()
    async with made.open():
        yield made


async def test_all_threads_are_copied_archived_ones_too_and_again_adds_nothing(store, tmp_path):
    for name in ("a", "b", "gone"):
        await fill(store, name, batches=random_batches(name, name))
    await store.archive_thread("gone")
    target = stores.MemoryThreadStore()
    for _ in range(2):
        report = await copy_store(store, target)
        assert sorted(report.copied) == ["a", "b", "gone"]
        assert report.failed == {}
        await same_threads(store, target, "a", "b")
        assert [row.thread_id for row in (await target.list_archived()).threads] == ["gone"]
        assert await log_of(target, "gone") == await log_of(store, "gone")
    await store.append("a", [Sample("a").user("new")])
    await copy_store(store, target)
    await same_threads(store, target, "a")


async def test_a_damaged_thread_does_not_stop_the_others(tmp_path):
    async with jsonl(tmp_path / "store") as store:
        for name in ("a", "b", "c"):
            await fill(store, name)
    path = tmp_path / "store" / "threads" / "b.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[3].replace(b'"crc":"', b'"crc":"0'), *lines[4:]]))
    async with jsonl(tmp_path / "store") as store, jsonl(tmp_path / "target") as target:
        report = await copy_store(store, target)
        assert sorted(report.copied) == ["a", "c"]
        assert report.failed == {"b": "it is damaged and can't be described"}
        assert await target.load_thread("b") is None


async def test_a_thread_that_the_target_refuses_is_told_by_name(tmp_path):
    store, target = stores.MemoryThreadStore(), stores.MemoryThreadStore()
    for name in ("a", "b"):
        await fill(store, name)
    await target.create_thread(Sample("a").metadata(title="Another"))
    report = await copy_store(store, target)
    assert report.copied == ("b",)
    assert "'a' is taken" in report.failed["a"]


async def test_plain_stores_are_copied_as_far_as_they_show_themselves():
    source_, target = Plain(), Plain()
    await fill(source_, "a")
    await fill(source_, "gone")
    await source_.archive_thread("gone")
    assert (await copy_store(source_, target)).copied == ("a",)
    await same_threads(source_, target, "a")
    shipped = stores.MemoryThreadStore()
    await fill(shipped, "b")
    await shipped.archive_thread("b")
    assert (await copy_store(shipped, target)).copied == ("b",)
    assert await target.load_thread("b") is None


@pytest.mark.parametrize("error", [StorageError, StoreUnsupported])
async def test_a_store_that_can_not_list_is_no_source(error):
    class Mute(Plain):
        async def list_threads(self, **_):
            raise error("mute")

    with pytest.raises(error, match="mute"):
        await copy_store(Mute(), Plain())


async def test_every_page_of_a_listing_is_copied(monkeypatch):
    monkeypatch.setattr(copy, "MAX_PAGE", 2)
    store, target = stores.MemoryThreadStore(), stores.MemoryThreadStore()
    for number in range(10):
        await fill(store, f"{number}", batches=[[Sample(f"{number}").user("x")]])
    for number in range(0, 10, 2):
        await store.archive_thread(f"{number}")
    assert len((await copy_store(store, target)).copied) == 10
    assert len((await target.list_threads()).threads) == len((await target.list_archived()).threads) == 5


async def test_a_log_that_is_no_json_is_damage(tmp_path):
    class Broken(stores.MemoryThreadStore):
        async def read_log(self, thread_id, cursor=None):
            return attrs.evolve(await super().read_log(thread_id, cursor), batches=[b"[{]"])

    store = Broken()
    await fill(store)
    report = await copy_store(store, stores.MemoryThreadStore())
    assert "'t' is damaged at 1: not JSON" in report.failed["t"]


async def test_a_thread_that_is_removed_while_others_are_copied_is_left_out():
    class Removing(stores.MemoryThreadStore):
        async def list_threads(self, **arguments):
            page = await super().list_threads(**arguments)
            await self.delete_thread("b")
            return page

    store, target = Removing(), stores.MemoryThreadStore()
    for name in ("a", "b"):
        await fill(store, name)
    assert (await copy_store(store, target)).copied == ("a",)
    assert [row.thread_id for row in (await target.list_threads()).threads] == ["a"]


async def test_another_archived_thread_of_the_target_stays_where_it_is():
    source, target = stores.MemoryThreadStore(), stores.MemoryThreadStore()
    for store, title in ((source, "Ours"), (target, "Theirs")):
        await fill(store, "t", title=title)
        await store.archive_thread("t")
    assert list((await copy_store(source, target)).failed) == ["t"]
    assert [row.title for row in (await target.list_archived()).threads] == ["Theirs"]
