"""One call that changes something, on its way from its caller to the writer and back.

Rules of the room: whoever takes the claim decides what becomes of the call; the outcome is set before `done`.
"""

import sqlite3
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import trio

from roder_trio.errors import AppendOutcomeUnknown, StorageError
from roder_trio.schema.ids import ThreadId
from roder_trio.stores.sqlite.fault import storage_error

Work: TypeAlias = Callable[[sqlite3.Connection], Any]


@attrs.define(eq=False)
class Job:
    """One call: `work` gets the connection, inside a transaction; then `value` or `error` is its outcome.

    With `scrubs`, nothing of what it removed may stay in the write-ahead log. Whose time is over no longer awaits it.
    """

    thread_id: ThreadId
    work: Work
    scrubs: bool = False
    value: Any = None
    error: Exception | None = None
    awaited: bool = True
    done: trio.Event = attrs.field(factory=trio.Event)
    _claims: list[None] = attrs.field(factory=lambda: [None])

    @property
    def waits(self) -> bool:
        """Whether nobody took the claim."""
        return bool(self._claims)

    def claim(self) -> bool:
        """Take the claim; False if it was taken. Of two threads that try, one gets it."""
        try:
            self._claims.pop()
        except IndexError:
            return False
        return True


def undone(job: Job, error: Exception) -> StorageError:
    """What a call is told if nothing of it was stored; each caller raises an error of its own."""
    found = storage_error(job.thread_id, error)
    if found is error:
        found = StorageError(str(error))
        found.__cause__ = error
    return found


def unknown(job: Job, error: Exception) -> AppendOutcomeUnknown:
    """What a call is told if it may be stored."""
    found = AppendOutcomeUnknown(f"Whether thread {job.thread_id!r} holds the change is unknown: {error}.")
    found.__cause__ = error
    return found
