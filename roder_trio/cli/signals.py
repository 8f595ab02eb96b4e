"""Ctrl-C: the first interrupts the turn and keeps what was said, the next one ends the command.

While no turn runs, the first one ends the command already. After that the signal has its usual meaning again, so a
third one kills a command that takes too long to leave.
"""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

Stop = Callable[[], Awaitable[None]]


class Interrupts:
    """What a Ctrl-C does at this moment."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._stop: Stop | None = None

    @contextmanager
    def calling(self, stop: Stop) -> Iterator[None]:
        """Let the next Ctrl-C call `stop`, within the block."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    async def watch(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take signals until one of them ends the command."""
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                if self._stop is None:
                    break
                self._nursery.start_soon(self._stop)
                self._stop = None
        self._nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_interrupts() -> AsyncIterator[Interrupts]:
    """Handle Ctrl-C within the block, which is cancelled, without an error, by the one that ends the command.

    The block is the body of a nursery: it should let no exception out.
    """
    async with trio.open_nursery() as nursery:
        interrupts = Interrupts(nursery)
        await nursery.start(interrupts.watch)
        yield interrupts
        nursery.cancel_scope.cancel()
