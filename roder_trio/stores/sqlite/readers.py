"""The connections that read: a few of them, each used by one worker thread at a time.

Rules of the room: a call never waits for the writer, and sees one moment. The limiter hands out the worker threads, so
there is always a connection for the one that runs. A connection that failed is closed, never used again.
"""

import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import trio

from roder_trio.schema.ids import ThreadId
from roder_trio.stores.sqlite.database import Database
from roder_trio.stores.sqlite.fault import storage_error

READERS = 4

T = TypeVar("T")


class Readers:
    """Runs calls that only read a database."""

    def __init__(self, database: Database) -> None:
        self.limiter = trio.CapacityLimiter(READERS)
        self._database = database
        self._idle: deque[sqlite3.Connection] = deque()

    async def ask(self, thread_id: ThreadId, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` in a worker thread and return its value. Cancelled, it is waited for and its value dropped.

        Raises StorageError.
        """
        return await trio.to_thread.run_sync(self._read, thread_id, read, limiter=self.limiter)

    def _read(self, thread_id: ThreadId, read: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection = self._idle.pop() if self._idle else self._database.connect_reader()
            try:
                value = read(connection)
            except sqlite3.Error:
                connection.close()
                raise
            except BaseException:
                self._idle.append(connection)
                raise
        except Exception as error:
            found = storage_error(thread_id, error)
            raise found from found.__cause__
        self._idle.append(connection)
        return value

    def close(self) -> None:
        """Close the connections; nobody may use them any more."""
        while self._idle:
            with suppress(sqlite3.Error):
                self._idle.pop().close()
