"""Processes that use a SQLite store are killed at every statement; what they leave is the old state or the new one."""

import multiprocessing
import signal
import sys
import time

import attrs
import pytest

from roder_trio.errors import StoreInUse
from roder_trio.testing._sample import Sample
from tests import sqlite_crash
from tests.sqlite_sample import SAMPLES, restore
from tests.sqlite_support import opened, raw, texts

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and forkserver are not there")

# the state after each number of finished steps: texts of the active log, or where else the thread is
STATES = (None, [], ["one"], ["one", "two"], "archived", ["one", "two"], None, [], ["four"])
HANGS_AFTER = 60.0


@pytest.fixture(scope="module")
def forks():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.sqlite_crash", "roder_trio.stores.sqlite"])
    return context


def killed(forks, target, *arguments):
    """Run `target` in a process; whether it was killed, and it must not end otherwise than well."""
    process = forks.Process(target=target, args=arguments)
    process.start()
    process.join(HANGS_AFTER)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


async def state(store):
    snapshot = await store.load_thread("t")
    if snapshot is not None:
        assert snapshot.metadata == await store.load_metadata("t")
        assert snapshot.metadata.message_count == len(snapshot.events)
        return texts(snapshot)
    return "archived" if (await store.list_archived()).threads else None


async def test_a_kill_before_any_statement_leaves_the_old_state_or_the_new_one_and_the_step_may_be_repeated(
    forks, tmp_path
):
    at = 0
    while True:
        at += 1
        path, told = tmp_path / f"{at}.db", tmp_path / f"{at}.told"
        if not killed(forks, sqlite_crash.run_flow, path, at, told):
            break
        done = len(told.read_bytes())
        async with opened(path) as store:
            found = await state(store)
            assert found in (STATES[done], STATES[done + 1]), f"killed before statement {at}"
            for number, step in enumerate(sqlite_crash.FLOW[done:], start=done):
                await sqlite_crash.perform(store, Sample("t"), step)
                assert await state(store) == STATES[number + 1]
    assert at > 40


async def test_a_kill_in_a_migration_leaves_a_version_that_it_leads_on_from(forks, tmp_path):
    at = 0
    dead = True
    while dead:
        at += 1
        path = tmp_path / f"{at}.db"
        restore(SAMPLES / "sqlite_v1.sql", path)
        dead = killed(forks, sqlite_crash.run_open, path, at)
        assert raw(path, "PRAGMA user_version") in ([(1,)], [(2,)])
        async with opened(path, schema=sqlite_crash.NEXT) as store:
            assert (await store.load_thread("active")).events[3].event.item.text == "reply"
        assert raw(path, "PRAGMA user_version") == [(2,)]
    assert at > 10


async def test_a_killed_holder_frees_the_lock_and_loses_nothing_that_was_told(forks, tmp_path):
    path, told = tmp_path / "agent.db", tmp_path / "told"
    process = forks.Process(target=sqlite_crash.run_holder, args=(path, told))
    process.start()
    try:
        until = time.monotonic() + HANGS_AFTER
        while not (told.exists() and told.read_bytes().count(b"\n") > 20):
            assert time.monotonic() < until
            process.join(0.01)
        with pytest.raises(StoreInUse, match=f"process {process.pid} "):
            async with opened(path):
                pass
        async with opened(path, read_only=True) as reader:
            assert len((await reader.load_thread("t")).events) % 2 == 0
    finally:
        process.kill()
        process.join()
    async with opened(path) as store:
        found = [envelope.event_id for envelope in (await store.load_thread("t")).events]
        # the last line may be torn
        acknowledged = told.read_text().rpartition("\n")[0].split()
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) in (len(acknowledged), len(acknowledged) + 2)
        assert (await store.load_metadata("t")).message_count == len(found)
        await store.append("t", [attrs.evolve(Sample("t").user("next"), event_id="next")])
        assert len((await store.load_thread("t")).events) == len(found) + 1
