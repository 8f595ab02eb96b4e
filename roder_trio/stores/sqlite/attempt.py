"""The rows of attempts: the last total of each, by which a later report of it takes the place of an earlier one.

Rules of the room: the writer's thread alone runs this, inside an append. What is read decides what a thread's usage
becomes, so a row that is damaged, or that one of two indexes doesn't know, fails the append.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from roder_trio import codec
from roder_trio.errors import CorruptRecord
from roder_trio.stores._sql_record import RecordRow, unicode_text
from roder_trio.stores._sql_thread import AttemptRow, named_attempts
from roder_trio.stores.sqlite.query import as_json
from roder_trio.stores.sqlite.row import WRONG, StoredThread, checksum

_COUNT = """
INSERT INTO attempt (thread, attempt_id, turn_id, goal_id, origin_thread_id, report, usage, crc)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (thread, attempt_id) DO UPDATE SET turn_id = excluded.turn_id, goal_id = excluded.goal_id,
    origin_thread_id = excluded.origin_thread_id, report = excluded.report, usage = excluded.usage,
    crc = excluded.crc"""


def read_attempts(connection: sqlite3.Connection, thread: StoredThread, rows: Sequence[RecordRow]) -> list[AttemptRow]:
    """What is counted of the attempts that rows name. Raises CorruptRecord, sqlite3.Error."""
    names = named_attempts(rows)
    if not names:
        return []
    values = (thread.number, as_json(names))
    found = connection.execute(
        "SELECT attempt_id, turn_id, goal_id, origin_thread_id, report, usage, crc FROM attempt "
        "WHERE thread = ? AND attempt_id IN (SELECT value FROM json_each(?))",
        values,
    ).fetchall()
    if len(found) < len(names):
        (again,) = connection.execute(
            "SELECT count(*) FROM attempt INDEXED BY attempt_again "
            "WHERE thread = ? AND attempt_id IN (SELECT value FROM json_each(?))",
            values,
        ).fetchone()
        if again != len(found):
            raise CorruptRecord(thread.thread_id, "its attempts", "one of two indexes lacks one")
    return [_attempt(thread, row) for row in found]


def _attempt(thread: StoredThread, row: Sequence[Any]) -> AttemptRow:
    attempt_id, turn_id, goal_id, origin, report, usage, crc = row
    if crc != checksum(thread.number, *row[:-1]):
        raise CorruptRecord(thread.thread_id, f"attempt {attempt_id!r}", WRONG)
    return AttemptRow(attempt_id, turn_id, goal_id, origin, report, codec.decode_usage(usage))


def write_attempts(connection: sqlite3.Connection, thread: StoredThread, attempts: Iterable[AttemptRow]) -> None:
    """Keep what is counted of attempts now. Raises sqlite3.Error."""
    connection.executemany(_COUNT, [_values(thread.number, row) for row in attempts])


def _values(number: int, row: AttemptRow) -> tuple[str | int | None, ...]:
    names = (row.attempt_id, row.turn_id, row.goal_id, row.origin_thread_id)
    texts = [None if name is None else unicode_text(name) for name in names]
    values = (number, *texts, row.report, codec.encode_usage(row.usage).decode())
    return (*values, checksum(*values))
