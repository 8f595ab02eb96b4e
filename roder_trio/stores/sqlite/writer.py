"""The one thread that writes: it takes every call that waits and commits them together.

Rules of the room: the thread lives as long as the store is open; calls reach it through a queue, and it answers
through the event loop's token. A group is what arrived during the commit before it. Each call of a group has a
savepoint, so a bad one fails alone. Who takes a call's one claim decides what becomes of it: the thread, once it holds
the database, or the caller, whose time is over. Callers wake in the order of their calls: each, as it goes on, wakes
the next.
"""

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import trio

from roder_trio.errors import AppendOutcomeUnknown, StorageError
from roder_trio.schema.ids import ThreadId
from roder_trio.stores.sqlite.database import BUSY_SECONDS, Database
from roder_trio.stores.sqlite.fault import code_of, is_busy, storage_error
from roder_trio.stores.sqlite.job import Job, undone, unknown

log = logging.getLogger(__name__)

MAX_GROUP = 512
"""Calls in one commit, at most."""
SCRUB_SECONDS = 1.0
"""How long a deletion waits for readers of what it removed."""

MAX_PACKED_BYTES = 64 * 1024 * 1024
"""Up to this size the file is written anew after a deletion; a larger one would keep others waiting."""


class Writer:
    """Runs the calls that change a database. `bound` limits each, in seconds.

    `commits` counts the transactions that were committed, `committers` holds the identities of the threads that did.
    """

    def __init__(
        self, database: Database, connection: sqlite3.Connection, bound: float, token: trio.lowlevel.TrioToken
    ) -> None:
        self.connection: sqlite3.Connection | None = connection
        self.commits = 0
        self.committers: set[int] = set()
        self._database = database
        self._bound = bound
        self._standing = database.standing()
        self._pack_due = False
        self._scrub_due = False
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._answered: deque[Job] = deque()
        self._woken: Job | None = None
        self._ended = trio.Event()
        self._token = token
        self._thread = threading.Thread(target=self._run, name="roder_trio sqlite writer", daemon=True)

    # -- on the event loop ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def close(self) -> None:
        """Finish what was handed over, then end the thread. Not to be cancelled."""
        self._queue.put(None)
        await self._ended.wait()
        self._thread.join()

    async def call(
        self, thread_id: ThreadId, work: Callable[[sqlite3.Connection], Any], *, scrubs: bool = False
    ) -> Any:
        """Run `work` in a transaction and return its value once it is committed.

        Cancelled, nothing happened; once it is handed over, the call is shielded. Raises what `work` raises,
        StorageError, and AppendOutcomeUnknown if no answer came in time.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        job = Job(thread_id, work, scrubs)
        self._queue.put(job)
        try:
            with trio.move_on_after(self._bound, shield=True):
                await job.done.wait()
        finally:
            job.awaited = False
            if self._woken is job:
                self._wake_next()
        if not job.done.is_set():
            if job.claim():
                raise StorageError(f"The store was busy for {self._bound:g} s; nothing was stored.")
            raise AppendOutcomeUnknown(f"The store did not answer within {self._bound:g} s; it may still store this.")
        if job.error is not None:
            raise job.error
        return job.value

    def _begin_waking(self) -> None:
        if self._woken is None:
            self._wake_next()

    def _wake_next(self) -> None:
        """Wake one caller, who wakes the next as it returns: two that wake in one tick run in any order."""
        self._woken = None
        while self._answered and self._woken is None:
            job = self._answered.popleft()
            job.done.set()
            if job.awaited:
                self._woken = job

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        more = True
        while more:
            group, more = self._next_group()
            try:
                self._commit(group)
            except Exception as error:  # whatever it is, nobody may wait for ever
                self._give_up(group, error)
            self._answered.extend(group)
            self._tell(self._begin_waking)
        self._disconnect()
        self._tell(self._ended.set)

    def _tell(self, call: Callable[[], Any]) -> None:
        # an event loop that has ended has nobody who waits
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call)

    def _next_group(self) -> tuple[list[Job], bool]:
        """What waits, once anything does; and whether more may come."""
        group: list[Job] = []
        job = self._queue.get()
        while job is not None:
            group.append(job)
            if len(group) == MAX_GROUP:
                return group, True
            try:
                job = self._queue.get_nowait()
            except Empty:
                return group, True
        return group, False

    def _commit(self, group: Sequence[Job]) -> None:
        """Run a group as one transaction. Raises what failed as a whole."""
        if not any(job.waits for job in group):
            return
        connection = self._connected()
        self._begin(connection, group)
        claimed = [job for job in group if job.claim()]
        for job in claimed:
            self._perform(connection, job)
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo(claimed, error)
            return
        self.commits += 1
        self.committers.add(threading.get_ident())
        self._scrub(connection, claimed)

    def _connected(self) -> sqlite3.Connection:
        """The connection to the files that the store was opened with. Raises StorageError, sqlite3.Error."""
        database, log = self._database.standing()
        # the log goes and comes with the last connection
        if database != self._standing[0] or (self.connection is not None and log != self._standing[1]):
            raise StorageError(
                f"The files of the store in {str(self._database.path)!r} were removed or replaced, "
                "so nothing was stored; bring them back."
            )
        if self.connection is None:
            self.connection = self._database.connect()
            self._standing = self._database.standing()
        return self.connection

    def _begin(self, connection: sqlite3.Connection, group: Sequence[Job]) -> None:
        """Take the database, as long as anyone waits for it. Raises sqlite3.Error."""
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or not any(job.waits for job in group):
                    raise
            else:
                return

    def _perform(self, connection: sqlite3.Connection, job: Job) -> None:
        connection.execute("SAVEPOINT job")
        try:
            job.value = job.work(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise
            job.error = storage_error(job.thread_id, error)
            connection.execute("ROLLBACK TO job")
        connection.execute("RELEASE job")

    def _undo(self, jobs: Sequence[Job], error: sqlite3.Error) -> None:
        """After a commit that failed: whether it is undone for certain decides what its calls are told."""
        code = code_of(error)
        ended = self.connection is None or not self.connection.in_transaction
        # what reached the log before an error of the medium may come back after a crash
        certain = code != sqlite3.SQLITE_IOERR and (not ended or code == sqlite3.SQLITE_FULL)
        certain = self._roll_back() and certain
        for job in jobs:
            if job.error is None:
                job.error = undone(job, error) if certain else unknown(job, error)

    def _give_up(self, jobs: Sequence[Job], error: Exception) -> None:
        """After anything else that failed: nothing was committed, unless that can't be told."""
        certain = isinstance(error, sqlite3.Error | StorageError)
        certain = self._roll_back() and certain
        for job in jobs:
            waited = job.claim()
            if job.error is None:
                job.error = undone(job, error) if waited or certain else unknown(job, error)

    def _roll_back(self) -> bool:
        """End the transaction if there is one; a connection that can't is dropped."""
        if self.connection is None or not self.connection.in_transaction:
            return True
        try:
            self.connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()
            return False
        return True

    def _scrub(self, connection: sqlite3.Connection, jobs: Sequence[Job]) -> None:
        """Leave no byte of what was deleted: in pages, then in the write-ahead log."""
        scrubbing = [job for job in jobs if job.scrubs and job.error is None]
        if scrubbing:
            self._pack_due = self._scrub_due = True
        if not self._scrub_due:
            return
        try:
            connection.execute(f"PRAGMA busy_timeout = {(SCRUB_SECONDS if scrubbing else 0) * 1000:.0f}")
            self._remove_bytes(connection)
        except sqlite3.Error as error:
            log.info("what was deleted could not be removed yet: %s", error)
        connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
        for job in scrubbing if self._scrub_due else ():
            job.error = AppendOutcomeUnknown(
                f"Thread {job.thread_id!r} is deleted, but its bytes are still in the files, which a reader uses; "
                "they go with one of the next changes, or delete it again to know."
            )

    def _remove_bytes(self, connection: sqlite3.Connection) -> None:
        if self._pack_due:
            _pack(connection)
            self._pack_due = False
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._scrub_due = bool(busy)

    def _disconnect(self) -> None:
        if self.connection is not None:
            with suppress(sqlite3.Error):
                self.connection.close()
        self.connection = None


def _pack(connection: sqlite3.Connection) -> None:
    """Write the pages anew if they aren't too many; where rows moved, old copies may stand in free parts of pages."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    if pages * size <= MAX_PACKED_BYTES:
        connection.execute("VACUUM")
