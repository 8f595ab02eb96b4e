"""What the database's errors mean to who uses the store.

Rules of the room: no error of `sqlite3` leaves the store; a message never shows what is stored.
"""

import sqlite3

from roder_trio.errors import CorruptRecord, StorageError
from roder_trio.schema.ids import ThreadId

_PRIMARY = 0xFF
_UNDECODED = "Could not decode to UTF-8"
"""How the error begins that quotes a text which isn't one."""


def code_of(error: sqlite3.Error) -> int:
    """The primary code of an error; 0 if it has none."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection was in the way."""
    return code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is no database, or one that is broken."""
    return code_of(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_undecoded(error: Exception) -> bool:
    """Whether text of the file, or an error that quotes it, is no UTF-8."""
    undecoded = isinstance(error, sqlite3.Error) and str(error).startswith(_UNDECODED)
    return undecoded or isinstance(error, UnicodeDecodeError)


def storage_error(thread_id: ThreadId, error: Exception) -> StorageError:
    """The error that a call on `thread_id` raises for what it met."""
    if isinstance(error, StorageError):
        return error
    found: StorageError
    if is_undecoded(error):
        return CorruptRecord(thread_id, "the database file", "it holds text that is no UTF-8")
    if isinstance(error, sqlite3.Error) and is_damage(error):
        found = CorruptRecord(thread_id, "the database file", str(error))
    elif isinstance(error, sqlite3.Error | OSError):
        found = StorageError(f"Thread {thread_id!r} could not be read or written in its store: {error}.")
    else:
        # a bug must not hang those that wait
        found = StorageError(f"The store failed: {error!r}.")
    found.__cause__ = error
    return found
