"""The tables of a store, and the steps that lead to them from what earlier versions left.

Rules of the room: `application_id` marks a file as a store, `user_version` is the number of its schema. A version that
was released is never changed; a new one gets a step from the one before. Most of a file is ids beside short bodies, so
the rows of a log know their thread by its number and hold nothing that their bodies tell; the view `record` does.
They lie in the order of all appends: a table in the order of threads would need no index of positions, but where many
threads grow side by side its pages are split so often that a commit writes more of them, not fewer. A kept state is
packed by zlib, being a cache that nobody reads. A row has a checksum (`row.py`); what an index lost is seen by another
one, named `again`, or by the count of threads.
"""

import sqlite3
from collections.abc import Callable, Mapping
from types import MappingProxyType

import attrs

APPLICATION_ID = 0x726F6472

PAGE_BYTES = 4096
"""An append changes at least five pages and waits until the medium has them; in larger ones it waits for longer."""

TABLES = (
    """CREATE TABLE thread (
        number INTEGER PRIMARY KEY,
        thread_id TEXT NOT NULL,
        metadata TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        archived_at TEXT,
        last_position INTEGER NOT NULL,
        last_seq INTEGER NOT NULL,
        last_item_seq INTEGER NOT NULL,
        crc INTEGER NOT NULL
    )""",
    "CREATE UNIQUE INDEX thread_name ON thread (thread_id)",
    "CREATE UNIQUE INDEX thread_name_again ON thread (thread_id)",
    "CREATE INDEX thread_listing ON thread (archived_at, updated_at, thread_id)",
    "CREATE TABLE tally (archived INTEGER PRIMARY KEY, threads INTEGER NOT NULL)",
    "INSERT INTO tally VALUES (0, 0), (1, 0)",
    """CREATE TABLE entry (
        thread INTEGER NOT NULL,
        position INTEGER NOT NULL,
        record_id TEXT NOT NULL,
        body TEXT NOT NULL,
        crc INTEGER NOT NULL,
        PRIMARY KEY (thread, position),
        UNIQUE (thread, record_id)
    )""",
    """CREATE VIEW record (thread_id, position, record_id, kind, turn_id, body) AS
        SELECT
            thread.thread_id,
            entry.position,
            entry.record_id,
            CASE json_extract(entry.body, '$.type')
                WHEN 'event' THEN json_extract(entry.body, '$.event.type')
                ELSE json_extract(entry.body, '$.type')
            END,
            coalesce(json_extract(entry.body, '$.turn_id'), json_extract(entry.body, '$.scope.turn_id')),
            entry.body
        FROM thread JOIN entry ON entry.thread = thread.number
        WHERE entry.position > 0""",
    """CREATE TABLE attempt (
        thread INTEGER NOT NULL,
        attempt_id TEXT NOT NULL,
        turn_id TEXT NOT NULL,
        goal_id TEXT,
        origin_thread_id TEXT,
        report INTEGER NOT NULL,
        usage TEXT NOT NULL,
        crc INTEGER NOT NULL,
        PRIMARY KEY (thread, attempt_id)
    ) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX attempt_again ON attempt (attempt_id, thread)",
    """CREATE TABLE checkpoint (
        thread_id TEXT NOT NULL PRIMARY KEY,
        position INTEGER NOT NULL,
        fold_version INTEGER NOT NULL,
        body BLOB NOT NULL,
        crc INTEGER NOT NULL
    )""",
    """CREATE TABLE label (
        thread_id TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (thread_id, key)
    ) WITHOUT ROWID""",
    "CREATE INDEX label_pair ON label (key, value)",
    "CREATE INDEX label_again ON label (value, key)",
)


@attrs.frozen
class Migration:
    """One step to the next version. With `rewrites_bodies` a copy of the file is made before it."""

    apply: Callable[[sqlite3.Connection], None]
    rewrites_bodies: bool = False


@attrs.frozen
class Schema:
    """The tables of `version`, and by each earlier version the step that leads on from it."""

    version: int
    tables: tuple[str, ...]
    migrations: Mapping[int, Migration] = MappingProxyType({})


SCHEMA = Schema(1, TABLES)
