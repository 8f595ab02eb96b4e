"""A cancel while the runtime opens."""

import pytest
import trio

import roder_trio as rt


@pytest.mark.parametrize("ticks", range(12))
async def test_a_cancel_at_any_tick_of_the_opening_ends_it(ticks: int) -> None:
    async def stay_open(scope: trio.CancelScope) -> None:
        with scope:
            async with rt.open_runtime():
                await trio.sleep_forever()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(stay_open, scope)
            for _ in range(ticks):
                await trio.lowlevel.checkpoint()
            scope.cancel()
    assert scope.cancelled_caught
