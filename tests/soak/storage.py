"""The storages of the soak: where each keeps a store, and where a write of that store can be made to die.

Rules of the room: no store knows of this. A write dies "mid", with all of it prepared and nothing final; at a "cut",
with some of its bytes in a file or its commit sent and not answered; or once it is done ("wrote"), with nobody told.
"""

import os
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from roder_trio import ThreadStore, stores
from roder_trio.stores._disk import Disk
from roder_trio.testing import Crash
from tests.soak.schedule import Kill

BURIAL_SECONDS = 60.0
_STILL_CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"

COMMIT_BYTES = 4 * 8216
"""About what the write-ahead log grows by with one commit: four pages and their headers."""


class Points:
    """The places of a life's death inside the writes of its store."""

    def __init__(self, crash: Crash, kill: Kill) -> None:
        self._crash = crash
        self._kill = kill
        self._writes = 0

    def write(self, write: Callable[[], Any], cut: Callable[[float], None]) -> Any:
        """Make a write. If it is the one to be cut, `cut` is called before it, with the share that may come out."""
        self._crash.reach("mid")
        self._writes += 1
        is_cut = self._kill.place == "cut" and self._writes == self._kill.number
        if is_cut:
            cut(self._kill.share)
        done = write()
        if is_cut:
            os.kill(os.getpid(), signal.SIGKILL)
        self._crash.reach("wrote")
        return done


def limit_files(size: int) -> None:
    """Have this process die as soon as it makes a file longer than `size` bytes; what fits is written."""
    sys.dont_write_bytecode = True  # a module that is cached in part would break later processes
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


# -- SQLite ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class SqliteStorage:
    """A database file."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "agent.db"

    def dying(self, points: Points) -> ThreadStore:
        """The store of a life."""
        store = stores.SqliteThreadStore(self.path, durability="process")
        store._database = attrs.evolve(store._database, connection=self._connection(points))
        store._readers._database = store._database
        return store

    def owner(self) -> ThreadStore:
        return stores.SqliteThreadStore(self.path, durability="process")

    def reader(self) -> ThreadStore:
        return stores.SqliteThreadStore(self.path, read_only=True)

    def bury(self) -> bool:
        """After a death: whether there is anything to read."""
        return self.path.exists()

    def _connection(self, points: Points) -> type[sqlite3.Connection]:
        log = self.path.with_name(self.path.name + "-wal")

        def cut(share: float) -> None:
            limit_files(log.stat().st_size + int(share * COMMIT_BYTES))

        class Connection(sqlite3.Connection):
            writes = False

            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                run = super().execute
                if statement == "COMMIT" and self.writes:
                    self.writes = False
                    done: sqlite3.Cursor = points.write(lambda: run(statement), cut)
                    return done
                self.writes = self.writes or statement == "BEGIN IMMEDIATE"
                return run(statement, *values)

        return Connection


# -- JSONL -------------------------------------------------------------------------------------------------------------


class _DyingDisk(Disk):
    def __init__(self, points: Points) -> None:
        super().__init__(power=False)
        self._points = points

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        run = super().write
        cut = lambda share: limit_files(offset + int(share * len(data)))
        self._points.write(lambda: run(descriptor, data, offset), cut)


@attrs.frozen
class JsonlStorage:
    """A folder of journals."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "store"

    def dying(self, points: Points) -> ThreadStore:
        """The store of a life."""
        store = stores.JsonlThreadStore(self.path, durability="process")
        store._disk = _DyingDisk(points)
        return store

    def owner(self) -> ThreadStore:
        return stores.JsonlThreadStore(self.path, durability="process")

    def reader(self) -> ThreadStore:
        return stores.JsonlThreadStore(self.path, read_only=True)

    def bury(self) -> bool:
        """After a death: whether there is anything to read."""
        return (self.path / "threads").exists()


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


@attrs.frozen
class PostgresStorage:
    """A tenant of a database."""

    url: str
    tenant: str

    def dying(self, points: Points) -> ThreadStore:
        """The store of a life."""
        import psycopg

        class Connection(psycopg.Connection[Any]):
            writes = False

            def execute(self, query: Any, *values: Any, **options: Any) -> Any:
                run = super().execute
                if query == "COMMIT" and self.writes:
                    self.writes = False
                    return points.write(lambda: run(query), lambda share: None)
                self.writes = self.writes or query == "BEGIN"
                return run(query, *values, **options)

        store = self._made()
        store._session.database._pool.connection_class = Connection
        return store

    def owner(self) -> ThreadStore:
        return self._made()

    def reader(self) -> ThreadStore:
        return self._made()

    def _made(self) -> stores.PostgresThreadStore:
        mark = "&" if "?" in self.url else "?"
        return stores.PostgresThreadStore(f"{self.url}{mark}application_name={self.tenant}", self.tenant, pool_size=3)

    def bury(self) -> bool:
        """After a death: wait until the server has done what it was sent, and have the leases of the dead end."""
        import psycopg

        until = time.monotonic() + BURIAL_SECONDS
        with psycopg.connect(self.url, autocommit=True) as link:
            while link.execute(_STILL_CONNECTED, (self.tenant,)).fetchone() != (0,):
                assert time.monotonic() < until, "the server still serves a client that is dead"
                time.sleep(0.002)
            link.execute("UPDATE lease SET expires_at = clock_timestamp() WHERE tenant = %s", (self.tenant,))
        return True


Storage: TypeAlias = SqliteStorage | JsonlStorage | PostgresStorage
