"""One task that asks threads to store open text, a fixed time after the first of it.

All delays are equal, so the queue is in order of time and the task sleeps only for its head.
"""

from collections import deque
from collections.abc import Callable

import trio


class CheckpointTimer:
    """Calls back `interval` seconds after `note`, from a task of the runtime."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._due: deque[tuple[float, Callable[[], None]]] = deque()
        self._wake = trio.Event()

    def note(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once, `interval` seconds from now."""
        self._due.append((trio.current_time() + self._interval, callback))
        self._wake.set()

    async def run(self) -> None:
        """Call back until cancelled."""
        while True:
            if not self._due:
                self._wake = trio.Event()
                await self._wake.wait()
            due_at, callback = self._due[0]
            await trio.sleep_until(due_at)
            self._due.popleft()
            callback()
