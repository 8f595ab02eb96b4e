"""Exports, imports and copies are killed at every step: nothing is left in between, and the next one completes it."""

import sys
from functools import partial
from itertools import count

import pytest

from roder_trio import stores
from roder_trio.stores.transfer import check_store
from roder_trio.testing import CrashPoint, check_crashes, open_victims
from tests import transfer_crash
from tests.roder_support import RoderThread, usage
from tests.transfer_support import fill, jsonl, log_of, random_batches

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="victims are forked and killed"),
    pytest.mark.unmeasured,
]


@pytest.fixture(scope="module")
def victims():
    with open_victims() as warm:
        yield warm


@pytest.mark.parametrize("moment", ["before", "in", "after"])
async def test_a_kill_in_an_export_leaves_the_old_file_or_the_new_one(victims, tmp_path, moment):
    path = tmp_path / "export"
    async with jsonl(tmp_path / "store") as store:
        await fill(store)
        await stores.export_thread(store, "t", tmp_path / "whole")
    new = (tmp_path / "whole").read_bytes()
    for number in count(1):
        path.write_bytes(b"old")
        died = victims.run(transfer_crash.export, CrashPoint(moment, number), tmp_path / "store", path)
        assert path.read_bytes() in ((b"old", new) if died else (new,))
        if not died:
            break
    assert number > 5
    assert sorted(path.name for path in tmp_path.glob("export*")) == ["export"], "the next one uses the same name"


async def prepared(tmp_path):
    """What is brought in, by the kind of work, and the threads that the store then holds."""
    async with jsonl(tmp_path / "source") as source:
        await fill(source)
        await fill(source, "gone", batches=random_batches("gone", 2, 2))
        await stores.export_thread(source, "t", tmp_path / "export")
        await source.archive_thread("gone")
    for name, folder in (("active", "threads"), ("old", "archived_threads")):
        thread = RoderThread(tmp_path / "roder" / folder, name).metadata(usage=usage(9, 9))
        thread.turn(told=usage(1, 1)).state("a", 1).write()
    return {
        transfer_crash.import_file: (tmp_path / "export", {"new"}, set()),
        transfer_crash.import_roder: (tmp_path / "roder" / "threads", {"active"}, {"old"}),
        transfer_crash.copy: (tmp_path / "source", {"t"}, {"gone"}),
    }


async def contents(base):
    async with jsonl(base) as store:
        assert (await check_store(store)).failures == {}
        active = {row.thread_id for row in (await store.list_threads()).threads}
        archived = {row.thread_id for row in (await store.list_archived()).threads}
        return active, archived, [await log_of(store, thread_id) for thread_id in sorted(active | archived)]


@pytest.mark.parametrize("work", [transfer_crash.import_file, transfer_crash.import_roder, transfer_crash.copy])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_kill_in_an_import_or_a_copy_leaves_what_the_next_one_completes(victims, tmp_path, work, moment):
    source, *threads = (await prepared(tmp_path))[work]
    nowhere = CrashPoint("nowhere")
    assert not victims.run(work, nowhere, tmp_path / "whole", source)
    *found, wanted = await contents(tmp_path / "whole")
    assert found == threads
    for number in count(1):
        base = tmp_path / f"{number}"
        died = victims.run(work, CrashPoint(moment, number), base, source)
        await contents(base)
        victims.run(work, nowhere, base, source)
        assert await contents(base) == (*threads, wanted)
        if not died:
            break
    assert number > 5


async def test_the_sqlite_store_survives_every_crash(tmp_path):
    await check_crashes(partial(transfer_crash.sqlite, tmp_path))
