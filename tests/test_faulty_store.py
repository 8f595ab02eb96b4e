"""The store whose calls fail on order: loads too, and hydration takes the way of the store inside."""

import pytest

import roder_trio as rt
from roder_trio.testing import FaultyStore
from tests.kept_states import KeepingStore


async def talked(inner):
    """The id of a thread that has had a turn."""
    async with rt.open_runtime(store=inner) as runtime:
        thread = await runtime.create_thread()
        await runtime.run_turn(thread.thread_id, "hello")
    return thread.thread_id


async def test_a_thread_comes_back_by_what_the_store_inside_keeps(autojump_clock):
    inner = KeepingStore(always=True)
    thread_id = await talked(inner)
    inner.loads = inner.states = 0
    store = FaultyStore(inner)
    async with rt.open_runtime(store=store) as runtime:
        await runtime.get_state(thread_id, "x", "k")
    assert (store.loads, inner.states, inner.loads) == (1, 1, 0)


async def test_a_load_fails_by_its_number_whichever_it_is(autojump_clock):
    inner = KeepingStore(always=True)
    thread_id = await talked(inner)
    full = rt.StorageError("the disk is gone")
    store = FaultyStore(inner, fail_loads={1: full, 3: full})
    async with rt.open_runtime(store=store) as runtime:
        with pytest.raises(rt.StorageError, match="gone"):
            await runtime.get_state(thread_id, "x", "k")
        assert await runtime.get_state(thread_id, "x", "k") is None
        with pytest.raises(rt.StorageError, match="gone"):
            await store.load_thread(thread_id)
        assert await store.load_thread(thread_id) is not None
    assert store.loads == 4
