"""The connections of one store, and what may go wrong with them.

Rules of the room: every method blocks and runs in a worker thread; a connection is taken from the pool for one call.
What a driver raises leaves as a `StorageError`, its text without passwords. A change is one transaction. One that
failed before its commit is known to have changed nothing and may be tried again; when a connection dies inside the
commit, nobody knows, so the change is run again and looks first.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import psycopg
from psycopg import Connection
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from roder_trio.errors import AppendOutcomeUnknown, InvalidRecord, StorageError, StoreClosed
from roder_trio.stores.postgres import schema
from roder_trio.stores.postgres.address import Address
from roder_trio.stores.postgres.schema import Row

T = TypeVar("T")
Link = Connection[Row]

MAX_CONFLICTS = 5
"""How often a change that met another is tried again."""
MAX_LOST_COMMITS = 2
"""How many commits of one change may be cut: the first try and one more."""
CONFLICT_DELAY = 0.01
"""Seconds before the first repetition, doubled each time, plus as much by chance again."""
RECONNECT_DELAY = 0.1
"""Seconds before what a cut connection interrupted is tried again, plus as much by chance again."""
READ_TRIES = 3
CONNECT_WAIT = 1.0
"""Seconds after which a call that waits for a connection asks anew to have one made."""
REASON_SECONDS = "2"
"""How long a connection is tried for to learn why none can be made."""
PATIENCE = 0.9
"""The part of an append's bound for which the database is waited for, so that its answer comes before that."""

_CUT_STATES = ("08", "57P", "25P03")
"""What a server says as it ends a connection: broken off, shut down, idle in a transaction for too long."""
_CONFLICTS = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)


class Database:
    """One database and a pool of connections to it.

    `bound` is that of an append, in seconds. `idle_seconds` bounds how long a transaction may hold its locks while its
    client is silent, frozen or cut off.
    """

    def __init__(self, address: Address, *, pool_size: int, bound: float, idle_seconds: float) -> None:
        self.address = address
        self._bound = bound * PATIENCE
        self._settings = {
            "statement_timeout": _milliseconds(self._bound),
            "idle_in_transaction_session_timeout": _milliseconds(idle_seconds),
            "TimeZone": "UTC",
        }
        self._pool: ConnectionPool[Link] = ConnectionPool(
            kwargs={**address.parameters, "autocommit": True},
            min_size=0,
            max_size=pool_size,
            open=False,
            configure=self._configure,
            timeout=CONNECT_WAIT,
            # the pool itself would try again ever more seldom; here each call that lacks a connection has one made
            reconnect_timeout=0,
            name="roder_trio",
        )

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def open(self, *, migrate: bool) -> None:
        """Check the schema, or bring it up to date, and open the pool. Raises StorageError, SchemaTooNew."""
        with self.errors("be opened"), self.connect() as link:
            if migrate:
                schema.migrate(link)
            else:
                schema.check(link)
        self._pool.open()

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def connect(self, **parameters: str) -> Link:
        """Open a connection beside the pool."""
        return psycopg.connect(**{**self.address.parameters, **parameters}, autocommit=True)  # type: ignore[arg-type]

    def _configure(self, link: Link) -> None:
        for name, value in self._settings.items():
            link.execute("SELECT set_config(%s, %s, false)", (name, value))

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn the driver's errors into those of stores."""
        try:
            yield
        except psycopg.Error as error:
            raise self.failure(what, error) from error

    def failure(self, what: str, error: psycopg.Error) -> StorageError:
        """The error that says what could not be done, and why."""
        return StorageError(f"The store at {self.address.shown} could not {what}: {self._reason(error)}.")

    def _reason(self, error: psycopg.Error) -> str:
        """What went wrong; where a connection only was waited for, why none is made."""
        if isinstance(error, PoolTimeout):
            try:
                self.connect(connect_timeout=REASON_SECONDS).close()
            except psycopg.OperationalError as reason:
                return self._reason(reason)
        return self.address.redacted(error).rstrip(".")

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, work: Callable[[Link], T]) -> T:
        """Read what one moment holds. Raises StorageError, and StoreClosed if the closing was faster."""
        tries = READ_TRIES
        while True:
            tries -= 1
            try:
                with self._pool.connection() as link:
                    link.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    found = work(link)
                    # a reader that took its time over what it read may have been cut off; it has all it needs
                    with suppress(psycopg.Error):
                        link.execute("COMMIT")
                    return found
            except PoolClosed as error:
                raise StoreClosed("The store was closed before this was read.") from error
            except _CONFLICTS as error:
                if not tries:
                    raise self.failure("be read", error) from error
            except psycopg.Error as error:
                if not tries or not _is_cut(error):
                    raise self.failure("be read", error) from error
                self._drop_dead()

    # -- changing ------------------------------------------------------------------------------------------------------

    def change(self, work: Callable[[Link, bool], T]) -> T:
        """Run one transaction and return what `work` returns; its second argument says that it may be done already.

        What `work` raises undoes it. Raises AppendOutcomeUnknown if a commit was cut and nobody answers within the
        bound of an append, and StorageError for all that is known to have changed nothing.
        """
        attempt = _Attempt(time.monotonic() + self._bound)
        while True:
            try:
                with self._pool.connection(timeout=min(CONNECT_WAIT, max(attempt.left, 0.001))) as link:
                    value = attempt.run(link, work)
            except psycopg.Error as error:
                attempt.note(error)
                if not attempt.may_go_on(error):
                    raise self._told(attempt, error) from error
                if _is_cut(error):
                    self._drop_dead()
                time.sleep(attempt.delay())
            else:
                return value

    def _told(self, attempt: "_Attempt", error: psycopg.Error) -> StorageError:
        if attempt.doubt:
            return AppendOutcomeUnknown(
                f"The store at {self.address.shown} was cut off while it stored this, and may hold it: "
                f"{self._reason(error)}."
            )
        if isinstance(error, psycopg.DataError):
            return InvalidRecord(f"The database refuses the data: {self._reason(error)}.")
        return self.failure("be changed, and nothing was stored", error)

    def _drop_dead(self) -> None:
        """A restarted server leaves a pool of dead connections: have them thrown away at once."""
        self._pool.check()


class _Attempt:
    """The tries of one change."""

    def __init__(self, ends_at: float) -> None:
        self._ends_at = ends_at
        self._conflicts = 0
        self._cuts = 0
        self._lost_commits = 0
        self._committing = False
        self.doubt = False
        """A commit was cut, and no later try has told what became of it."""

    @property
    def left(self) -> float:
        """Seconds until nobody waits any more."""
        return self._ends_at - time.monotonic()

    def run(self, link: Link, work: Callable[[Link, bool], T]) -> T:
        """Try once."""
        self._committing = False
        # what gives no result to wait for travels with the next that does: an append takes three round trips
        with link.pipeline():
            link.execute("BEGIN")
            value = work(link, self.doubt)
            # the lock that `work` took waits for whatever an earlier commit still does, so now its fate is known
            self.doubt = False
            self._committing = True
            link.execute("COMMIT")
        return value

    def note(self, error: psycopg.Error) -> None:
        """Learn from a try that failed."""
        if isinstance(error, _CONFLICTS):
            self._conflicts += 1
        elif _is_cut(error):
            self._cuts += 1
            if self._committing:
                self._lost_commits += 1
                self.doubt = True
        self._committing = False

    def may_go_on(self, error: psycopg.Error) -> bool:
        """Whether another try makes sense."""
        if self.left <= 0 or self._lost_commits >= MAX_LOST_COMMITS:
            return False
        if isinstance(error, _CONFLICTS):
            return self._conflicts <= MAX_CONFLICTS
        return _is_cut(error)

    def delay(self) -> float:
        """Seconds to wait before the next try."""
        delay = RECONNECT_DELAY if self._cuts else CONFLICT_DELAY * 2**self._conflicts
        return min(delay * (1 + random.random()), max(self.left, 0))  # noqa: S311 - spreads retries, keeps no secret


def _milliseconds(seconds: float) -> str:
    return f"{max(seconds * 1000, 1):.0f}ms"


def _is_cut(error: psycopg.Error) -> bool:
    """Whether the connection is gone, so that the error says nothing of the statement."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_CUT_STATES)
    return isinstance(error, psycopg.OperationalError) and not isinstance(error, PoolClosed)
