"""Ctrl-C, once and twice."""

import signal
from collections.abc import Iterator

import pytest
import trio

from roder_trio.cli.signals import open_interrupts


@pytest.fixture(autouse=True)
def usual_meaning() -> Iterator[None]:
    """A program that a shell starts in the background ignores Ctrl-C, and so may the one that runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


async def test_the_first_ctrl_c_stops_the_turn_and_the_block_goes_on() -> None:
    stopped = trio.Event()

    async def stop() -> None:
        await trio.lowlevel.checkpoint()
        stopped.set()

    reached = False
    async with open_interrupts() as interrupts:
        with interrupts.calling(stop):
            press_ctrl_c()
            await stopped.wait()
        reached = True
    assert reached


async def test_a_second_ctrl_c_ends_the_block_though_the_first_one_is_still_at_work() -> None:
    stopping = trio.Event()

    async def stop() -> None:
        stopping.set()
        await trio.sleep_forever()

    reached = False
    async with open_interrupts() as interrupts:
        with interrupts.calling(stop):
            press_ctrl_c()
            await stopping.wait()
            press_ctrl_c()
            await trio.sleep_forever()
        reached = True
    assert not reached


async def test_without_a_turn_the_first_ctrl_c_ends_the_block() -> None:
    async with open_interrupts() as interrupts:
        with interrupts.calling(trio.sleep_forever):
            pass
        press_ctrl_c()
        await trio.sleep_forever()


async def test_after_the_end_ctrl_c_has_its_usual_meaning_again() -> None:
    async with open_interrupts():
        pass
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c()
        await trio.sleep(1)
