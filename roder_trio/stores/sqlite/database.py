"""The database file: whether it is a store, making it, bringing it to the present schema, connecting to it.

Rules of the room: every method blocks and runs in a worker thread. The file is looked at through SQLite alone, since
closing it by other means would drop the locks of this process. A new file appears whole, by a rename.
"""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import attrs

from roder_trio.errors import NotAStore, SchemaTooNew, StorageError
from roder_trio.stores._foreign import refuse_roder_threads
from roder_trio.stores._lock import release_lock, take_lock
from roder_trio.stores.sqlite.fault import is_damage
from roder_trio.stores.sqlite.schema import APPLICATION_ID, PAGE_BYTES, SCHEMA, Migration, Schema

BUSY_SECONDS = 5.0
"""How long one try waits for a foreign connection."""
MAX_LOG_BYTES = 64 * 1024 * 1024
"""What the write-ahead log is cut back to."""
LOG_PAGES = 4096
"""Pages in the write-ahead log from which a commit also moves them to the database."""

Identity: TypeAlias = tuple[int, int] | None

_DEFAULT_CONNECTION: type[sqlite3.Connection] = sqlite3.Connection


@attrs.frozen
class Database:
    """The file at `path`. With `power`, a commit waits for the medium. Tests put in faulty connections."""

    path: Path
    power: bool
    schema: Schema = SCHEMA
    connection: type[sqlite3.Connection] = _DEFAULT_CONNECTION

    def beside(self, suffix: str) -> Path:
        """The file that has this suffix after the database's name."""
        return self.path.with_name(self.path.name + suffix)

    # -- opening -------------------------------------------------------------------------------------------------------

    def own(self) -> tuple[int, sqlite3.Connection]:
        """Lock the store, make or migrate it, and connect; the descriptor holds the lock.

        Raises StoreInUse, NotAStore, SchemaTooNew, StorageError.
        """
        with self._errors():
            self._refuse_folder()
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = take_lock(self.beside(".lock"))
            try:
                self._clean()
                if self._is_absent():
                    self._create()
                else:
                    self._check()
                return lock, self._open_writer()
            except BaseException:
                release_lock(lock)
                raise

    def _open_writer(self) -> sqlite3.Connection:
        writer = self.connect()
        try:
            # what a killed process left in the log may be in the kernel alone, and a repeat of it writes nothing
            writer.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._migrate(writer)
        except BaseException:
            writer.close()
            raise
        return writer

    def check_readable(self) -> None:
        """Check that a store of the present schema is there, changing nothing.

        Raises NotAStore, SchemaTooNew, StorageError.
        """
        with self._errors():
            self._refuse_folder()
            if self._is_absent():
                raise StorageError(f"There is no store in {str(self.path)!r} to read.")
            version = self._check()
        if version < self.schema.version:
            raise StorageError(
                f"The store in {str(self.path)!r} has schema {version} of an earlier version; "
                "open it once without read_only, which migrates it."
            )

    def _refuse_folder(self) -> None:
        if self.path.is_dir():
            refuse_roder_threads(self.path)
            raise StorageError(f"The store's path {str(self.path)!r} is a folder; give the path of a file.")

    def _is_absent(self) -> bool:
        if _size(self.path):
            return False
        if _size(self.beside("-wal")):
            raise StorageError(
                f"There is a write-ahead log beside {str(self.path)!r}, but no database; "
                "bring the database back, or move the log away."
            )
        return True

    def _check(self) -> int:
        """The version of the store's schema. Raises NotAStore, SchemaTooNew."""
        try:
            with closing(self.connect_reader()) as connection:
                (mark,) = connection.execute("PRAGMA application_id").fetchone()
                (version,) = connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.Error as error:
            if is_damage(error):
                raise NotAStore(f"The file {str(self.path)!r} is no SQLite database; give another path.") from error
            raise
        if mark != APPLICATION_ID:
            raise NotAStore(f"The database {str(self.path)!r} belongs to another program; give another path.")
        if version > self.schema.version:
            raise SchemaTooNew(
                f"The store in {str(self.path)!r} has schema {version}, this program reads up to "
                f"{self.schema.version}; upgrade it."
            )
        return int(version)

    # -- making and migrating ------------------------------------------------------------------------------------------

    def _clean(self) -> None:
        """Remove what a crash left half made; the store must be locked."""
        for suffix in (".new", ".new-journal", ".new-wal", ".new-shm", ".bak.new", ".bak.new-journal"):
            self.beside(suffix).unlink(missing_ok=True)

    def _create(self) -> None:
        new = self.beside(".new")
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(new, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("BEGIN")
            for statement in self.schema.tables:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {self.schema.version}")
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")
        new.replace(self.path)
        self._sync_folder()

    def _sync_folder(self) -> None:
        if not self.power or sys.platform == "win32":
            return
        descriptor = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for number in range(version, self.schema.version):
            step = self.schema.migrations.get(number)
            if step is None:
                raise StorageError(f"Nothing leads on from schema {number} of the store in {str(self.path)!r}.")
            try:
                self._step(connection, number, step)
            except Exception as error:
                raise StorageError(
                    f"The store in {str(self.path)!r} could not be migrated to schema {number + 1} "
                    f"and is left at {number}: {error}."
                ) from error

    def _step(self, connection: sqlite3.Connection, number: int, step: Migration) -> None:
        if step.rewrites_bodies:
            new = self.beside(".bak.new")
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            connection.execute("VACUUM INTO ?", (str(new),))
            new.replace(self.beside(f".v{number}.bak"))
            self._sync_folder()
        connection.execute("BEGIN IMMEDIATE")
        try:
            step.apply(connection)
            connection.execute(f"PRAGMA user_version = {number + 1}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    # -- connecting ----------------------------------------------------------------------------------------------------

    def connect(self) -> sqlite3.Connection:
        """A connection that writes. Raises sqlite3.Error, StorageError."""
        connection = self._connect("rw")
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageError(f"The file system of {str(self.path)!r} has no write-ahead log; use a local one.")
        full = "ON" if self.power else "OFF"
        connection.execute(f"PRAGMA synchronous = {'FULL' if self.power else 'NORMAL'}")
        connection.execute(f"PRAGMA fullfsync = {full}")
        connection.execute(f"PRAGMA checkpoint_fullfsync = {full}")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")

    def connect_reader(self) -> sqlite3.Connection:
        """A connection that only reads. Raises sqlite3.Error."""
        return self._connect("ro")

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=self.connection,
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:
            raise StorageError(f"The store in {str(self.path)!r} can't be opened: its schema is damaged.") from error
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"The store in {str(self.path)!r} can't be opened: {error}.") from error

    # -- standing ------------------------------------------------------------------------------------------------------

    def standing(self) -> tuple[Identity, Identity]:
        """Which files the database and its log are now; other ones if they were removed or replaced."""
        return _identity(self.path), _identity(self.beside("-wal"))


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _identity(path: Path) -> Identity:
    with suppress(FileNotFoundError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None
