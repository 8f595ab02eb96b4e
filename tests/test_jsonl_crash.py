"""Processes that use a journal store are killed at every step; what they leave is the old state or the new one."""

import multiprocessing
import sys
import time

import attrs
import pytest

from roder_trio.errors import StoreInUse
from roder_trio.testing import CrashPoint, open_victims
from roder_trio.testing._sample import Sample
from tests import jsonl_crash
from tests.jsonl_support import fill, journal, opened, texts

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are not there")

# the state after each number of finished steps: texts of the active log, or where else the thread is
STATES = (None, [], ["one"], ["one", "two"], "archived", ["one", "two"], ["one", "two", "three"], None, [], ["four"])
HANGS_AFTER = 60.0


@pytest.fixture(scope="module")
def victims():
    with open_victims() as warm:
        yield warm


async def state(store):
    snapshot = await store.load_thread("t")
    if snapshot is not None:
        assert snapshot.metadata == await store.load_metadata("t")
        assert snapshot.metadata.message_count == len(snapshot.events)
        return texts(snapshot)
    return "archived" if (await store.list_archived()).threads else None


@pytest.mark.parametrize("moment", ["before", "in", "after"])
async def test_a_kill_at_any_step_leaves_the_old_state_or_the_new_one_and_the_step_may_be_repeated(
    victims, tmp_path, moment
):
    at = 0
    while True:
        at += 1
        base, told = tmp_path / f"{at}", tmp_path / f"{at}.told"
        if not victims.run(jsonl_crash.run_flow, CrashPoint(moment, at), base, told):
            break
        done = len(told.read_bytes())
        async with opened(base) as store:
            found = await state(store)
            assert found in (STATES[done], STATES[done + 1]), f"killed {moment} step {at} of the disk"
            for number, step in enumerate(jsonl_crash.FLOW[done:], start=done):
                await jsonl_crash.perform(store, Sample("t"), step)
                assert await state(store) == STATES[number + 1]
    assert at > (5 if moment == "in" else 15)


@pytest.mark.parametrize("moment", ["before", "in", "after"])
async def test_a_kill_in_a_repair_loses_nothing_and_the_repair_is_made_again(victims, tmp_path, moment):
    at = 0
    while True:
        at += 1
        base = tmp_path / f"{at}"
        await fill(base, ["first"], ["second"])
        journal(base).write_bytes(journal(base).read_bytes() + b"torn")
        dead = victims.run(jsonl_crash.run_repair, CrashPoint(moment, at), base)
        async with opened(base) as store:
            assert texts(await store.load_thread("t")) == ["first", "second"]
        assert b"torn" in [path.read_bytes() for path in (base / "torn").iterdir()]
        assert journal(base).read_bytes().endswith(b"}\n")
        if not dead:
            break
    assert at > (1 if moment == "in" else 2)


async def test_a_killed_holder_frees_the_lock_and_loses_nothing_that_was_told(tmp_path):
    base, told = tmp_path / "store", tmp_path / "told"
    process = multiprocessing.get_context("forkserver").Process(target=jsonl_crash.run_holder, args=(base, told))
    process.start()
    try:
        until = time.monotonic() + HANGS_AFTER
        while not (told.exists() and told.read_bytes().count(b"\n") > 20):
            assert time.monotonic() < until
            process.join(0.01)
        with pytest.raises(StoreInUse, match=f"process {process.pid} "):
            async with opened(base):
                pass
    finally:
        process.kill()
        process.join()
    async with opened(base) as store:
        found = [envelope.event_id for envelope in (await store.load_thread("t")).events]
        acknowledged = told.read_text().splitlines()
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) <= len(acknowledged) + 1
        assert (await store.load_metadata("t")).message_count == len(found)
        await store.append("t", [attrs.evolve(Sample("t").user("next"), event_id="next")])
        assert len((await store.load_thread("t")).events) == len(found) + 1
