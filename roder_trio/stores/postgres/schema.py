"""The tables, and the steps that make them: each version of the schema from the one before.

Rules of the room: a step that was released is never changed; a store that may not migrate runs no statement that
defines anything. Migrations hold an advisory lock of the database and, per step, the row of the version, so that of two
migrators one works and the other finds it done. Keys are compared byte for byte, which orders them by code point.
"""

from collections.abc import Sequence
from contextlib import suppress

import psycopg
from psycopg import Connection

from roder_trio.errors import SchemaTooNew, StorageError

Row = tuple[object, ...]
Step = Sequence[str]

MIGRATION_KEY = 0x726F6465725F7472
"""The advisory lock of migrations; the number is the name's first letters."""
LOCK_SECONDS = 60
"""How long a migrator waits for another one."""
MIGRATE = "roder-trio store migrate"

_VERSION_TABLE = """
CREATE TABLE IF NOT EXISTS schema_version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version integer NOT NULL
)"""

STEPS: tuple[Step, ...] = (
    (
        """
        CREATE TABLE thread (
            tenant text COLLATE "C" NOT NULL,
            thread_id text COLLATE "C" NOT NULL,
            metadata text NOT NULL,
            updated_at timestamptz NOT NULL,
            archived_at timestamptz,
            last_position bigint NOT NULL,
            last_seq bigint NOT NULL,
            last_item_seq bigint NOT NULL,
            PRIMARY KEY (tenant, thread_id)
        )""",
        # a listing reads one of these backwards; with archived_at in the key, "is null" would not keep the order
        "CREATE INDEX thread_active ON thread (tenant, updated_at, thread_id) WHERE archived_at IS NULL",
        "CREATE INDEX thread_archived ON thread (tenant, updated_at, thread_id) WHERE archived_at IS NOT NULL",
        """
        CREATE TABLE record (
            tenant text COLLATE "C" NOT NULL,
            thread_id text COLLATE "C" NOT NULL,
            position bigint NOT NULL,
            record_id text COLLATE "C" NOT NULL,
            kind text NOT NULL,
            turn_id text,
            body text NOT NULL,
            PRIMARY KEY (tenant, thread_id, position),
            UNIQUE (tenant, thread_id, record_id)
        )""",
        """
        CREATE TABLE attempt (
            tenant text COLLATE "C" NOT NULL,
            thread_id text COLLATE "C" NOT NULL,
            attempt_id text COLLATE "C" NOT NULL,
            turn_id text NOT NULL,
            goal_id text,
            origin_thread_id text,
            report bigint NOT NULL,
            usage text NOT NULL,
            PRIMARY KEY (tenant, thread_id, attempt_id)
        )""",
        """
        CREATE TABLE checkpoint (
            tenant text COLLATE "C" NOT NULL,
            thread_id text COLLATE "C" NOT NULL,
            position bigint NOT NULL,
            fold_version integer NOT NULL,
            body text NOT NULL,
            PRIMARY KEY (tenant, thread_id)
        )""",
        """
        CREATE TABLE label (
            tenant text COLLATE "C" NOT NULL,
            thread_id text COLLATE "C" NOT NULL,
            key text COLLATE "C" NOT NULL,
            value text COLLATE "C" NOT NULL,
            PRIMARY KEY (tenant, thread_id, key)
        )""",
        "CREATE INDEX label_value ON label (tenant, key, value, thread_id)",
        """
        CREATE TABLE lease (
            tenant text COLLATE "C" NOT NULL,
            thread_id text COLLATE "C" NOT NULL,
            owner text NOT NULL,
            epoch bigint NOT NULL,
            expires_at timestamptz NOT NULL,
            PRIMARY KEY (tenant, thread_id)
        )""",
    ),
)


def version_of(connection: Connection[Row]) -> int:
    """The version of the schema that the database has; 0 if there is none."""
    with connection.transaction():
        if connection.execute("SELECT to_regclass('schema_version')").fetchone() == (None,):
            return 0
        row = connection.execute("SELECT version FROM schema_version").fetchone()
    return 0 if row is None else int(str(row[0]))


def check(connection: Connection[Row], steps: Sequence[Step] = STEPS) -> None:
    """Check that the database has this version's schema, changing nothing. Raises StorageError, SchemaTooNew."""
    version = version_of(connection)
    _refuse_newer(version, steps)
    if version < len(steps):
        state = f"has version {version} of the schema" if version else "has no tables yet"
        raise StorageError(
            f"The database {state}, but version {len(steps)} is needed; run `{MIGRATE}`, or open the store with "
            "migrate=True."
        )


def migrate(connection: Connection[Row], steps: Sequence[Step] = STEPS, lock_seconds: float = LOCK_SECONDS) -> int:
    """Bring the schema up to this version, one transaction per step; how many steps were made.

    The connection must be in autocommit mode. A step that fails leaves the version before it. Raises StorageError if
    another migrator holds the lock for longer than `lock_seconds`, and SchemaTooNew.
    """
    connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{lock_seconds * 1000:.0f}ms",))
    try:
        connection.execute("SELECT pg_advisory_lock(%s)", (MIGRATION_KEY,))
    except psycopg.errors.LockNotAvailable as error:
        raise StorageError(
            f"Another migration of this database runs for more than {lock_seconds:g} s; try again when it has ended."
        ) from error
    try:
        _prepare(connection)
        _refuse_newer(version_of(connection), steps)
        return sum(_take(connection, number, step) for number, step in enumerate(steps, 1))
    finally:
        # a connection that broke holds no lock any more
        with suppress(psycopg.OperationalError):
            connection.execute("SELECT pg_advisory_unlock(%s)", (MIGRATION_KEY,))


def _prepare(connection: Connection[Row]) -> None:
    with connection.transaction():
        connection.execute(_VERSION_TABLE)
        connection.execute("INSERT INTO schema_version (version) VALUES (0) ON CONFLICT DO NOTHING")


def _take(connection: Connection[Row], number: int, step: Step) -> int:
    """Make one step if it wasn't made; 1 if it was made now."""
    with connection.transaction():
        row = connection.execute("SELECT version FROM schema_version FOR UPDATE").fetchone()
        assert row is not None
        if int(str(row[0])) >= number:
            return 0
        for statement in step:
            connection.execute(statement.encode())
        connection.execute("UPDATE schema_version SET version = %s", (number,))
    return 1


def _refuse_newer(version: int, steps: Sequence[Step]) -> None:
    if version > len(steps):
        raise SchemaTooNew(
            f"The database has version {version} of the schema, this program knows up to {len(steps)}; update it."
        )
