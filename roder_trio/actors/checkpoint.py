"""One task that asks threads to store open text, a fixed time after the first of it.

All delays are equal, so the queue is in order of time and the task sleeps only for its head. A log whose text was
stored meanwhile is passed over without a sleep of its own, so short turns cost no wake-up each.
"""

from collections import deque
from typing import Protocol

import trio


class OpenText(Protocol):
    """A log whose open text is to be stored."""

    @property
    def has_unsaved_text(self) -> bool:
        """Whether there still is any."""

    def fall_due(self) -> None:
        """Have it stored."""


class CheckpointTimer:
    """Tells a log `interval` seconds after `note`, from a task of the runtime."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._due: deque[tuple[float, OpenText]] = deque()
        self._wake = trio.Event()

    def note(self, log: OpenText) -> None:
        """Have a log told once, `interval` seconds from now; earlier if it holds nothing to store by then."""
        self._due.append((trio.current_time() + self._interval, log))
        self._wake.set()

    async def run(self) -> None:
        """Tell the logs until cancelled."""
        while True:
            if not self._due:
                self._wake = trio.Event()
                await self._wake.wait()
            await trio.sleep_until(self._due[0][0])
            now = trio.current_time()
            while self._due and (self._due[0][0] <= now or not self._due[0][1].has_unsaved_text):
                self._due.popleft()[1].fall_due()
