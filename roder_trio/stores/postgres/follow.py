"""Following threads that others write: records by position, woken by hints, complete without them.

Rules of the room: a hint says that a look is worth while, and nothing else; each follower reads from its own position,
and looks every few seconds in any case. One connection listens for all followers of a store; its thread hands what it
hears to the event loop.
"""

import logging
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
import trio

from roder_trio.errors import StoreClosed
from roder_trio.schema.thread import StoredRecord
from roder_trio.stores.postgres.database import Database, Link
from roder_trio.stores.postgres.hint import CHANNEL
from roder_trio.stores.postgres.read import Tail

log = logging.getLogger(__name__)

POLL = 5.0
"""Seconds after which a follower looks without a hint."""
PAGE = 500
LISTEN_AGAIN = 1.0
"""Seconds before a broken listener connects again."""


class Follower(AsyncIterator[tuple[int, StoredRecord]]):
    """Iterates over (position, record) of one thread; ends when the thread is archived or deleted."""

    def __init__(self, after: int, read: Callable[[int, int], Awaitable[Tail]]) -> None:
        self._position = after
        self._read = read
        self._buffer: deque[tuple[int, StoredRecord]] = deque()
        self._hint = trio.Event()
        self.closed = False

    def hint(self) -> None:
        """Look again soon."""
        self._hint.set()

    async def __anext__(self) -> tuple[int, StoredRecord]:
        """Return the next record. A cancelled read loses nothing. Raises StorageError; the next read tries again."""
        await trio.lowlevel.checkpoint()
        while not self._buffer:
            if self.closed:
                raise StoreClosed("The store was closed while a thread was followed.")
            self._hint = trio.Event()
            tail = await self._read(self._position, PAGE)
            self._buffer.extend(tail.records)
            if tail.records:
                break
            if not tail.active:
                raise StopAsyncIteration
            with trio.move_on_after(POLL):
                await self._hint.wait()
        found = self._buffer.popleft()
        self._position = found[0]
        return found


class Listener:
    """Hears hints for all followers of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._limiter = trio.CapacityLimiter(2)
        """One thread listens, another one wakes it at the end."""
        self._followers: dict[str, set[Follower]] = {}
        self._line: socket.socket | None = None
        """A second handle on the socket at which the thread waits, by which it is woken."""
        self._stopped = False
        self._started = False

    @contextmanager
    def following(self, hint: str, follower: Follower, nursery: trio.Nursery | None) -> Iterator[None]:
        """Give hints to a follower while the block is open; with a nursery, listen from the first one on."""
        self._followers.setdefault(hint, set()).add(follower)
        if nursery is not None and not self._started:
            self._started = True
            nursery.start_soon(self._run)
        try:
            yield
        finally:
            followers = self._followers[hint]
            followers.discard(follower)
            if not followers:
                del self._followers[hint]

    async def stop(self) -> None:
        """Hear nothing any more, and end all followers."""
        self._stopped = True
        for followers in self._followers.values():
            for follower in followers:
                follower.closed = True
                follower.hint()
        await trio.to_thread.run_sync(self._interrupt, limiter=self._limiter)

    async def _run(self) -> None:
        """Listen until stopped; a connection that breaks is made again."""
        await trio.lowlevel.checkpoint()
        token = trio.lowlevel.current_trio_token()
        while not self._stopped:
            await trio.to_thread.run_sync(self._listen, token, limiter=self._limiter)
            if not self._stopped:
                await trio.sleep(LISTEN_AGAIN)

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _listen(self, token: trio.lowlevel.TrioToken) -> None:
        try:
            with self._database.connect() as link, _twin(link) as self._line:
                link.execute(f"LISTEN {CHANNEL}".encode())
                # what was told before the connection stood is looked for now
                token.run_sync_soon(self._hint_all)
                while not self._stopped:
                    for notice in link.notifies(timeout=POLL, stop_after=1):
                        token.run_sync_soon(self._hint, notice.payload.partition(" ")[0])
        except (psycopg.Error, OSError) as error:
            if not self._stopped:
                log.warning("hints of commits are not heard for now: %s", self._database.address.redacted(error))
        finally:
            self._line = None

    def _interrupt(self) -> None:
        """Wake the thread that waits at its socket."""
        line = self._line
        # it may have left by itself
        if line is not None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _hint(self, hint: str) -> None:
        for follower in self._followers.get(hint, ()):
            follower.hint()

    def _hint_all(self) -> None:
        for followers in self._followers.values():
            for follower in followers:
                follower.hint()


def _twin(link: Link) -> socket.socket:
    return socket.socket(fileno=os.dup(link.fileno()))
