"""What a process knows of its leases by its own clock, and how they are kept; no database takes part."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import roder_trio as rt
from roder_trio.stores.postgres.tenure import Tenure

TTL = 30.0


async def watched(tenure: Tenure, nursery: trio.Nursery) -> list[tuple[str, float]]:
    """What is lost from now on, and when."""
    lost: list[tuple[str, float]] = []
    tenure.tell = lambda thread_id: lost.append((thread_id, trio.current_time()))
    nursery.start_soon(tenure.watch)
    await wait_all_tasks_blocked()
    return lost


async def test_a_lease_ends_two_seconds_before_the_database_could_end_it(autojump_clock: MockClock) -> None:
    tenure = Tenure(TTL)
    async with trio.open_nursery() as nursery:
        lost = await watched(tenure, nursery)
        began = trio.current_time()
        await trio.sleep(5.0)  # the request took so long
        tenure.take("t", 1, began)
        assert tenure.epoch("t") == 1
        await trio.sleep(60.0)
        assert lost == [("t", pytest.approx(28.0))]
        with pytest.raises(rt.LeaseLost):
            tenure.epoch("t")
        nursery.cancel_scope.cancel()


async def test_each_lease_ends_at_its_own_time_in_whatever_order_they_came(autojump_clock: MockClock) -> None:
    tenure = Tenure(TTL)
    async with trio.open_nursery() as nursery:
        lost = await watched(tenure, nursery)
        await trio.sleep(10.0)
        for thread_id, began in (("late", 10.0), ("early", 0.0), ("middle", 5.0)):
            tenure.take(thread_id, 1, began)
            await wait_all_tasks_blocked()
        await trio.sleep(60.0)
        ends = [("early", 28.0), ("middle", 33.0), ("late", 38.0)]
        assert lost == [(thread_id, pytest.approx(at)) for thread_id, at in ends]
        nursery.cancel_scope.cancel()


async def test_a_renewal_prolongs_from_its_start_and_only_the_lease_it_was_for(autojump_clock: MockClock) -> None:
    tenure = Tenure(TTL)
    async with trio.open_nursery() as nursery:
        lost = await watched(tenure, nursery)
        tenure.take("kept", 1, 0.0)
        tenure.take("claimed anew", 2, 0.0)
        await trio.sleep(10.0)
        epochs = {"kept": 1, "claimed anew": 1, "released": 1}
        tenure.extend(epochs, epochs, 8.0)
        tenure.extend(epochs, epochs, 3.0)
        await trio.sleep(60.0)
        assert lost == [("claimed anew", pytest.approx(28.0)), ("kept", pytest.approx(36.0))]
        nursery.cancel_scope.cancel()


async def test_a_lease_of_a_created_thread_ends_quietly(autojump_clock: MockClock) -> None:
    tenure = Tenure(TTL)
    async with trio.open_nursery() as nursery:
        lost = await watched(tenure, nursery)
        tenure.take("t", 1, 0.0, renewed=False)
        assert tenure.epoch("t") == 1
        await trio.sleep(60.0)
        assert tenure.epoch("t") is None
        assert lost == []
        nursery.cancel_scope.cancel()


async def test_a_lease_that_is_over_is_found_so_even_before_the_watch_wakes(autojump_clock: MockClock) -> None:
    lost: list[Any] = []
    tenure = Tenure(TTL)
    tenure.tell = lost.append
    tenure.take("t", 1, trio.current_time())
    await trio.sleep(29.0)
    for _ in range(2):
        with pytest.raises(rt.LeaseLost):
            tenure.epoch("t")
    assert lost == ["t"]


async def test_what_is_lost_stays_lost_until_it_is_claimed(autojump_clock: MockClock) -> None:
    tenure = Tenure(TTL)
    tenure.take("t", 1, trio.current_time())
    tenure.end("t", 2)  # another lease
    assert tenure.epoch("t") == 1
    tenure.end("t", 1)
    tenure.end("t", 1)
    for _ in range(2):
        with pytest.raises(rt.LeaseLost):
            tenure.epoch("t")
        assert tenure.drop("t") is None
    tenure.take("t", 3, trio.current_time())
    assert tenure.epoch("t") == 3
    assert tenure.drop("t") == 3
    assert tenure.epoch("t") is None


async def test_a_claim_of_nothing_bars_changes_until_the_thread_is_given_up(autojump_clock: MockClock) -> None:
    tenure = Tenure(TTL)
    tenure.take("t", 1, trio.current_time())
    tenure.take("t", None, trio.current_time())
    with pytest.raises(rt.LeaseLost):
        tenure.epoch("t")
    assert tenure.drop("t") is None
    assert tenure.epoch("t") is None


async def test_all_that_is_held_is_given_back_at_the_end(autojump_clock: MockClock) -> None:
    tenure = Tenure(TTL)
    tenure.take("a", 1, 0.0)
    tenure.take("b", 7, 0.0, renewed=False)
    assert tenure.to_renew() == {"a": 1}
    assert tenure.drop_all() == {"a": 1, "b": 7}
    assert tenure.drop_all() == {}
