"""Telling those who follow threads elsewhere that one has changed.

Rules of the room: a hint goes out right after the commit that it tells of, with all others that came meanwhile, in a
transaction that waits for no disk; within the commit it would make the commits of a whole database wait for each
other. One that is lost costs a follower some seconds.
"""

import hashlib
import logging
from collections.abc import Sequence

import trio

from roder_trio.errors import StorageError
from roder_trio.stores.postgres.database import Database, Link
from roder_trio.stores.postgres.lease import Key

log = logging.getLogger(__name__)

CHANNEL = "roder_trio"


def hint_of(key: Key) -> str:
    """Sixteen hex digits that stand for a thread of a tenant; two may share them, which costs a look in vain."""
    return hashlib.sha256(f"{len(key.tenant)}:{key.tenant}{key.thread_id}".encode()).hexdigest()[:16]


class Hints:
    """The hints of one store; with `enabled` false it sends none."""

    def __init__(self, database: Database, *, enabled: bool) -> None:
        self.enabled = enabled
        self._database = database
        self._limiter = trio.CapacityLimiter(1)
        self._positions: dict[str, int] = {}
        """What is to be told: how far each log goes; 0 if the thread was archived, brought back or deleted."""
        self._wake = trio.Event()

    def note(self, key: Key, position: int) -> None:
        """Tell soon that the log of a thread goes to `position`."""
        if self.enabled:
            hint = hint_of(key)
            self._positions[hint] = max(position, self._positions.get(hint, 0))
            self._wake.set()

    async def run(self) -> None:
        """Send hints as they come, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            # taken here, where they are noted; what was taken is sent, within the connection's own time limits
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._send, self._taken(), limiter=self._limiter)

    def flush(self) -> None:
        """Send what is to be told now; to be called in a worker, when nothing is noted any more."""
        self._send(self._taken())

    def _taken(self) -> Sequence[str]:
        positions, self._positions = self._positions, {}
        return [f"{hint} {position}" for hint, position in positions.items()]

    def _send(self, payloads: Sequence[str]) -> None:
        if not payloads:
            return
        try:
            self._database.change(lambda link, doubt: _notify(link, payloads))
        except StorageError as error:
            log.info("hints of %d threads are lost: %s", len(payloads), error)


def _notify(link: Link, payloads: Sequence[str]) -> None:
    link.execute("SET LOCAL synchronous_commit = off")
    link.execute("SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload", (CHANNEL, list(payloads)))
