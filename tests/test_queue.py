"""The queue of a mailbox: order, room, cancels, the end."""

import pytest
import trio
import trio.testing

from roder_trio.actors._queue import Queue


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_items_come_out_in_the_order_in_which_they_came(nursery: trio.Nursery) -> None:
    queue: Queue[int] = Queue(2)
    for item in range(5):
        nursery.start_soon(queue.put, item)
        await settle()
    assert not queue.put_nowait(9)
    assert [await queue.take() for _ in range(3)] == [0, 1, 2]
    assert [queue.take_nowait() for _ in range(3)] == [3, 4, None]
    await settle()
    assert queue.put_nowait(5)


async def test_who_takes_waits_for_an_item(nursery: trio.Nursery) -> None:
    queue: Queue[int] = Queue(1)
    taken: list[int] = []

    async def take() -> None:
        taken.append(await queue.take())

    nursery.start_soon(take)
    await settle()
    assert taken == []
    assert queue.put_nowait(1)
    assert not queue.put_nowait(2)
    await settle()
    assert taken == [1]


async def test_a_cancelled_taker_takes_nothing() -> None:
    queue: Queue[int] = Queue(1)
    for item in range(2):
        with trio.CancelScope() as scope:
            scope.cancel()
            await queue.take()
        assert queue.put_nowait(item)
        with trio.CancelScope() as scope:
            scope.cancel()
            await queue.take()
        assert queue.take_nowait() == item


async def test_a_cancelled_sender_takes_its_item_back(nursery: trio.Nursery) -> None:
    queue: Queue[int] = Queue(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await queue.put(0)
    assert queue.take_nowait() is None
    assert queue.put_nowait(1)

    async def put() -> None:
        with scopes[0]:
            await queue.put(2)

    scopes = [trio.CancelScope()]
    nursery.start_soon(put)
    await settle()
    nursery.start_soon(queue.put, 3)
    await settle()
    scopes[0].cancel()
    await settle()
    assert [queue.take_nowait(), queue.take_nowait(), queue.take_nowait()] == [1, 3, None]


async def test_closing_returns_what_is_queued_and_refuses_the_rest() -> None:
    queue: Queue[int] = Queue(1)
    assert queue.put_nowait(1)
    with pytest.RaisesGroup(trio.ClosedResourceError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.put, 2)
            await settle()
            assert queue.close() == [1]
    with pytest.raises(trio.ClosedResourceError):
        queue.put_nowait(3)
    with pytest.raises(trio.ClosedResourceError):
        await queue.put(4)
    assert queue.take_nowait() is None
