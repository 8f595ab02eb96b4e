"""Several processes on one database: one that freezes, one that is killed, one that hands its threads over."""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from subprocess import PIPE
from typing import Any

import pytest
import trio

import roder_trio as rt
from roder_trio import providers, stores
from roder_trio.testing._sample import Sample
from tests.postgres_support import ENDLESS, TTL, Tables, until
from tests.support import ROOT
from tests.turn_support import DONE, say

THREAD = "shared"


@asynccontextmanager
async def owner(url: str, tenant: str, ttl: float) -> AsyncIterator[Any]:
    """Another process, with a turn running on the thread."""
    command = [sys.executable, "-W", "error", "-m", "tests.postgres_child", url, tenant, str(ttl)]
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, command, stdin=PIPE, stdout=PIPE, cwd=ROOT, check=False)
        process = await nursery.start(start)
        try:
            assert await said(process) == ["ready"]
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


async def said(process: Any) -> list[str]:
    """What a process said since the last look; waits until it said something."""
    data = b""
    with trio.fail_after(120.0):
        while not data.endswith(b"\n"):
            more = await process.stdout.receive_some()
            assert more, "the process has ended"
            data += more
    return data.decode().split("\n")[:-1]


async def claimed(runtime: rt.Runtime, call: Any) -> Any:
    """Ask until the thread can be claimed."""
    with trio.fail_after(120.0):
        while True:
            try:
                return await call()
            except rt.ThreadOwnedElsewhere as error:
                await trio.sleep(max(error.expires_in, 0.01))


async def new_thread(url: str, tenant: str) -> None:
    store = stores.PostgresThreadStore(url, tenant)
    async with store.open():
        await store.create_thread(Sample(THREAD).metadata())


async def test_an_owner_that_was_frozen_writes_nothing_after_its_rival_began(database: str, tenant: str) -> None:
    await new_thread(database, tenant)
    async with owner(database, tenant, TTL) as process:
        process.send_signal(signal.SIGSTOP)
        store = stores.PostgresThreadStore(database, tenant, lease_ttl=ENDLESS)
        engine = providers.ScriptedEngine([[say("the rival's"), DONE]])
        async with rt.open_runtime(engines=[engine], store=store) as runtime:
            outcome = await claimed(runtime, lambda: runtime.run_turn(THREAD, "take over"))
            assert outcome.text == "the rival's"
            before = await store.load_thread(THREAD)
            process.send_signal(signal.SIGCONT)
            heard: list[str] = []
            while len(heard) < 3:
                heard += await said(process)
            assert heard == ["turn LeaseLost", "append LeaseLost", "run ThreadOwnedElsewhere"]
            after = await store.load_thread(THREAD)
    assert before is not None
    assert after is not None
    assert after.events == before.events
    assert [turn.status.value for turn in after.turns] == ["interrupted", "completed"]


async def test_a_killed_owner_is_followed_when_its_lease_ends(database: str, tenant: str) -> None:
    await new_thread(database, tenant)
    async with owner(database, tenant, ENDLESS) as process:
        process.kill()
        await process.wait()
    engine = providers.ScriptedEngine([[say("the next one's"), DONE]])
    store = stores.PostgresThreadStore(database, tenant)
    async with rt.open_runtime(engines=[engine], store=store) as runtime:
        with pytest.raises(rt.ThreadOwnedElsewhere):
            await runtime.run_turn(THREAD, "go on")
        await trio.to_thread.run_sync(Tables(database, tenant).expire, THREAD, 0.5)
        outcome = await claimed(runtime, lambda: runtime.run_turn(THREAD, "go on"))
        assert outcome.text == "the next one's"
        snapshot = await runtime.load_thread(THREAD)
        assert snapshot is not None
        assert [turn.status.value for turn in snapshot.turns] == ["interrupted", "completed"]
        assert snapshot.turns[0].usage == rt.TokenUsage(3, 1, 4)


async def test_a_runtime_that_drains_hands_its_threads_over_at_once(database: str, tenant: str) -> None:
    engines = [providers.ScriptedEngine([[say(name), DONE]]) for name in "ab"]
    tables = Tables(database, tenant)
    first = stores.PostgresThreadStore(database, tenant)
    async with rt.open_runtime(engines=engines[:1], store=first) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        await runtime.run_turn(thread_id, "one")
        assert tables.lease(thread_id)[2]
    assert runtime.shutdown_report == rt.ShutdownReport("clean")
    assert not tables.lease(thread_id)[2]
    second = stores.PostgresThreadStore(database, tenant)
    async with rt.open_runtime(engines=engines[1:], store=second) as runtime:
        assert (await runtime.run_turn(thread_id, "two")).text == "b"


async def test_a_thread_that_leaves_memory_is_free_for_others(database: str, tenant: str) -> None:
    store = stores.PostgresThreadStore(database, tenant)
    config = rt.RuntimeConfig(max_resident_threads=1)
    tables = Tables(database, tenant)
    async with rt.open_runtime(store=store, config=config) as runtime:
        threads = [(await runtime.create_thread()).thread_id for _ in range(2)]
        for thread_id in threads:
            await runtime.thread_goal_get(thread_id)
        await until(lambda: not tables.lease(threads[0])[2])
        assert tables.lease(threads[1])[2]


async def test_a_lease_that_is_not_given_back_is_reported(database: str, tenant: str) -> None:
    store = stores.PostgresThreadStore(database, tenant)
    async with rt.open_runtime(store=store) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        await runtime.thread_goal_get(thread_id)
        store._session.database.close()
    report = runtime.shutdown_report
    assert report is not None
    assert report.unreleased == (thread_id,)


async def test_a_turn_on_a_lost_thread_ends_and_the_next_request_goes_on(database: str, tenant: str) -> None:
    reached = trio.Event()
    engine = providers.ScriptedEngine([[lambda request: reached.set(), trio.Event()], [say("b"), DONE]])
    store = stores.PostgresThreadStore(database, tenant)
    tables = Tables(database, tenant)
    async with rt.open_runtime(engines=[engine], store=store) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        turn_id = await runtime.start_turn(thread_id, "go")
        await reached.wait()
        await trio.to_thread.run_sync(tables.expire, thread_id)
        await store._session.keeper._renew_once()
        with trio.fail_after(60.0):
            outcome = await runtime.wait_turn(thread_id, turn_id)
        assert outcome.status == "interrupted"
        assert (await runtime.run_turn(thread_id, "again")).text == "b"
