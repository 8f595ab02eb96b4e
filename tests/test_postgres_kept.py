"""States that are kept in PostgreSQL: hydration by them is hydration by the whole log, and reads little."""

import logging
import threading
from typing import Any

import pytest

import roder_trio as rt
from roder_trio import events, goals, providers
from roder_trio.stores.postgres import kept, read
from roder_trio.testing._sample import Sample
from tests.kept_states import fingerprint
from tests.postgres_support import Tables, created, open_stores, until
from tests.turn_support import DONE, call, failure, say, used


@pytest.fixture
def tables(database: str, tenant: str) -> Tables:
    return Tables(database, tenant)


async def kept_at(tables: Tables, position: int, tenant: str) -> None:
    """Wait until a state of this position, or a later one, is kept."""
    query = "SELECT coalesce(max(position), 0) FROM checkpoint WHERE tenant = %s"
    await until(lambda: tables.run(query, tenant)[0][0] >= position)


def ended(sample: Sample) -> Any:
    return sample.envelope(events.TurnCompleted())


def counted_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each reading of a log gave."""
    counts: list[int] = []
    whole = read.log

    def log(*arguments: Any) -> Any:
        rows = whole(*arguments)
        counts.append(len(rows))
        return rows

    monkeypatch.setattr(read, "log", log)
    return counts


async def test_a_long_thread_is_hydrated_from_its_last_records(
    database: str, tenant: str, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        for _ in range(4):
            await store.append("t", sample.texts(*map(str, range(500))))
        assert tables.count("checkpoint") == 0  # no turn has ended
        await store.append("t", [ended(sample)])
        await kept_at(tables, 2001, tenant)
        await store.append("t", [*sample.texts(*map(str, range(199))), ended(sample)])
        counts = counted_rows(monkeypatch)
        hydration = await store.load_state("t")
        assert counts == [200]
        assert fingerprint(hydration) == fingerprint(await rt.ThreadStore.load_state(store, "t"))
        assert await store.load_state("unknown") is None
        assert await store.load_state("") is None


async def test_turns_of_all_kinds_hydrate_alike_wherever_a_state_was_kept(
    database: str, tenant: str, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "RENEWED_AFTER", 1)
    steps = [
        [used(3), say("a"), DONE],
        [say("lost"), failure()],
        [used(5, 2), say("b"), *call("c1"), DONE],
        [used(7, 2), say("c"), DONE],
        ValueError("broken"),
        [used(9), say("d"), DONE],
    ]
    config = rt.RuntimeConfig(
        reliability=rt.ReliabilityConfig(provider_retry_initial_backoff=0.0),
        goals=rt.GoalConfig(auto_continue=False),  # nothing runs while states are compared
    )
    async with open_stores(database, tenant) as (reader,):
        (writer,) = [type(reader)(database, tenant)]
        async with rt.open_runtime(engines=[providers.ScriptedEngine(steps)], store=writer, config=config) as runtime:
            thread_id = (await runtime.create_thread()).thread_id
            await runtime.thread_goal_set(thread_id, goals.GoalPatch(objective="win", token_budget=1000))
            for message in ("one", "two", "three", "four"):
                await runtime.run_turn(thread_id, message)
                snapshot = await reader.load_thread(thread_id)
                if message == "two":
                    await kept_at(tables, 1, tenant)
                states = [await reader.load_state(thread_id), await rt.ThreadStore.load_state(reader, thread_id)]
                assert fingerprint(states[0]) == fingerprint(states[1])
                assert states[0].state.metadata == snapshot.metadata


@pytest.mark.parametrize("change", ["body = '{}'", "body = 'no JSON'", "fold_version = 99", "position = 99"])
async def test_a_kept_state_that_can_not_be_read_is_passed_over_and_replaced(
    database: str, tenant: str, tables: Tables, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(kept, "RENEWED_AFTER", 2)
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        await store.append("t", [*sample.texts("a", "b"), ended(sample)])
        await kept_at(tables, 3, tenant)
        tables.run(f"UPDATE checkpoint SET {change} WHERE tenant = %s", tenant)
        state, whole = await store.load_state("t"), await rt.ThreadStore.load_state(store, "t")
        assert fingerprint(state) == fingerprint(whole)
        if "position" not in change:
            await store.append("t", [*sample.texts("c", "d"), ended(sample)])
            await kept_at(tables, 6, tenant)


async def test_a_state_of_a_lost_thread_is_not_kept(
    database: str, tenant: str, tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roder_trio")
    monkeypatch.setattr(kept, "RENEWED_AFTER", 1)
    whole = kept.load

    def load(*arguments: Any) -> Any:
        tables.expire()
        return whole(*arguments)

    monkeypatch.setattr(kept, "load", load)
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        await store.append("t", [ended(sample)])
        await until(lambda: "is not kept" in caplog.text)
        assert tables.count("checkpoint") == 0
        with pytest.raises(rt.LeaseLost):
            await store.append("t", [sample.user("x")])


async def test_one_state_of_a_thread_is_kept_at_a_time(
    database: str, tenant: str, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "RENEWED_AFTER", 1)
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        store._keeping.add("t")
        await store.append("t", [ended(sample)])
        store._keeping.clear()
        assert tables.count("checkpoint") == 0
        await store.append("t", [ended(sample)])
        await kept_at(tables, 2, tenant)


async def test_a_thread_that_is_gone_meanwhile_keeps_no_state(
    database: str, tenant: str, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "RENEWED_AFTER", 1)
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        await store.append("t", [ended(sample)])
        epoch = tables.lease()[1]
        await store.delete_thread("t")
        await store._keep_state("t", epoch)
        again = await created(store)
        await store.append("t", [again.user("again")])
        await store._keep_state("t", epoch)
        assert tables.count("checkpoint") == 0


async def test_a_state_that_comes_late_takes_the_thread_from_nobody(
    database: str, tenant: str, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread was released, and claimed again, while the state was made."""
    monkeypatch.setattr(kept, "RENEWED_AFTER", 1)
    made, going_on = threading.Event(), threading.Event()
    whole = kept.text_of

    def text_of(stand: kept.Stand) -> str:
        made.set()
        going_on.wait()
        return whole(stand)

    monkeypatch.setattr(kept, "text_of", text_of)
    async with open_stores(database, tenant) as (store,):
        sample = await created(store)
        await store.append("t", [ended(sample)])
        await until(made.is_set)
        await store.release_thread("t")
        released = tables.lease()[1]
        going_on.set()
        await until(lambda: not store._keeping)
        assert tables.lease()[1] == released
        await store.claim_thread("t")
        await store.append("t", [sample.user("x")])
        assert tables.count("checkpoint") == 0
