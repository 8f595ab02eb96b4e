"""Pages of a listing, and the proof that none of them hides a thread.

Rules of the room: an index says which threads there are and in what order; each row is then read by its number and
checked. What an index lost can't be seen in a page, so the end of a listing is compared with a count that is kept
beside it, and labels are looked up in two indexes. A row that is damaged is named, a damaged index is an error.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeAlias

import attrs

from roder_trio.codec.text import decode_datetime, encode_datetime
from roder_trio.errors import StorageError
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import ThreadPage
from roder_trio.stores._listing import Label
from roder_trio.stores._sql_record import unicode_text
from roder_trio.stores._sql_thread import PageQuery, page_of
from roder_trio.stores.sqlite.query import one_moment
from roder_trio.stores.sqlite.row import THREAD, StoredThread, checked_thread

_ACTIVE = "archived_at IS NULL"
_ARCHIVED = "archived_at >= ''"

_PAGE = """
SELECT listed.archived_at, listed.updated_at, listed.thread_id, {thread} FROM (
    SELECT number, archived_at, updated_at, thread_id FROM thread INDEXED BY thread_listing
    WHERE {where} ORDER BY updated_at DESC, thread_id DESC LIMIT {rows}
) AS listed LEFT JOIN thread ON thread.number = listed.number
ORDER BY listed.updated_at DESC, listed.thread_id DESC"""

_LABELLED = f"""
SELECT label.thread_id, {THREAD} FROM label INDEXED BY label_pair
LEFT JOIN thread INDEXED BY thread_name ON thread.thread_id = label.thread_id
WHERE label.key = ? AND label.value = ?
ORDER BY thread.updated_at DESC, thread.thread_id DESC"""  # noqa: S608

_COUNTS = """
SELECT
    (SELECT count(*) FROM label INDEXED BY label_pair WHERE key = ?1 AND value = ?2),
    (SELECT count(*) FROM label INDEXED BY label_again WHERE key = ?1 AND value = ?2)"""


Listed: TypeAlias = tuple[ThreadId, datetime, str]


def list_threads(connection: sqlite3.Connection, query: PageQuery) -> ThreadPage:
    """A page of a listing. Raises StorageError, sqlite3.Error."""
    with one_moment(connection):
        if query.label is None:
            return page_of(query, _listed(connection, query))
        rows, damaged = _labelled(connection, query, query.label)
    page = page_of(query, rows)
    name, value = query.label
    if any(unicode_text(value) != metadata.labels.get(unicode_text(name)) for metadata in page.threads):
        raise _damaged_index("it names a thread that hasn't this label")
    return attrs.evolve(page, damaged=[*page.damaged, *damaged])


def _listed(connection: sqlite3.Connection, query: PageQuery) -> list[Listed]:
    side, before = _side(query), _before(query)
    where = side if before is None else f"{side} AND (updated_at, thread_id) < (?, ?)"
    statement = _PAGE.format(thread=THREAD, where=where, rows=query.rows)
    rows = connection.execute(statement, before or ()).fetchall()
    _check_order([(updated_at, thread_id) for _, updated_at, thread_id, *_ in rows])
    if len(rows) < query.rows:
        _check_end(connection, query, len(rows))
    return [_row(row[0], row[1], row[2], checked_thread(row[3:])) for row in rows]


def _side(query: PageQuery) -> str:
    return _ARCHIVED if query.archived else _ACTIVE


def _before(query: PageQuery) -> tuple[str, ThreadId] | None:
    return None if query.before is None else (encode_datetime(query.before[0]), query.before[1])


def _row(archived_at: str | None, updated_at: str, thread_id: ThreadId, thread: StoredThread | None) -> Listed:
    """What the index says of a thread, and its document if its row is whole. Raises StorageError."""
    if thread is None:
        return thread_id, _date(updated_at), ""
    if (thread.archived_at, thread.updated_at, thread.thread_id) != (archived_at, updated_at, thread_id):
        raise _damaged_index("it says otherwise of a thread than the thread's row")
    return thread_id, _date(updated_at), thread.metadata


def _date(text: str) -> datetime:
    try:
        return decode_datetime(text)
    except ValueError:
        # without a date it can't be described
        return datetime.min.replace(tzinfo=UTC)


def _check_order(keys: Sequence[tuple[str, ThreadId]]) -> None:
    if any(one <= two for one, two in pairwise(keys)):
        raise _damaged_index("its threads stand in no order")


def _check_end(connection: sqlite3.Connection, query: PageQuery, rows: int) -> None:
    """At the end of a listing: as many threads are there as were stored, and as many behind its last cursor as `rows`.

    Raises StorageError.
    """
    before, there, behind = _before(query), rows, rows
    if before is not None:
        keys = connection.execute(
            f"SELECT updated_at, thread_id FROM thread INDEXED BY thread_listing WHERE {_side(query)} "  # noqa: S608
            "ORDER BY updated_at, thread_id"
        )
        with closing(keys):
            there, behind = _counted(keys, before)
    (stored,) = connection.execute("SELECT sum(threads) FROM tally WHERE archived = ?", (query.archived,)).fetchone()
    if there != stored or behind != rows:
        raise _damaged_index("it holds another number of threads than were stored")


def _counted(keys: Iterable[tuple[str, ThreadId]], before: tuple[str, ThreadId]) -> tuple[int, int]:
    """How many keys there are, and how many before that one. An entry out of place misleads every search by halving."""
    there = behind = 0
    last = None
    for key in keys:
        if last is not None and key <= last:
            raise _damaged_index("its threads stand in no order")
        last = key
        there += 1
        behind += key < before
    return there, behind


def _labelled(connection: sqlite3.Connection, query: PageQuery, label: Label) -> tuple[list[Listed], list[ThreadId]]:
    """The rows of a page of threads with a label, and the ids of damaged ones. Raises StorageError."""
    pair = [unicode_text(part) for part in label]
    one, other = connection.execute(_COUNTS, pair).fetchone()
    if one != other:
        raise _damaged_index("two indexes hold another number of threads with the label")
    with closing(connection.execute(_LABELLED, pair)) as rows:
        found, damaged = _sound(rows, query)
    _check_order([(thread.updated_at, thread.thread_id) for thread in found])
    return [(thread.thread_id, decode_datetime(thread.updated_at), thread.metadata) for thread in found], damaged


def _sound(rows: Iterable[Sequence[Any]], query: PageQuery) -> tuple[list[StoredThread], list[ThreadId]]:
    """The threads that a page needs; nothing is left out that isn't known to be whole."""
    before = _before(query)
    found: list[StoredThread] = []
    damaged: list[ThreadId] = []
    for thread_id, *row in rows:
        thread = checked_thread(row)
        if thread is None or thread.thread_id != thread_id:
            damaged.append(thread_id)
        elif (thread.archived_at is not None) == query.archived and (
            before is None or (thread.updated_at, thread.thread_id) < before
        ):
            found.append(thread)
            if len(found) == query.rows:
                break
    return found, damaged


def _damaged_index(detail: str) -> StorageError:
    return StorageError(
        f"The threads could not be listed: an index of the database file is damaged, {detail}; "
        "close the store and let SQLite REINDEX the file."
    )
