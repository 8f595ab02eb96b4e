"""Pages of a listing of threads, newest first, and the cursors between them.

Rules of the room: pure; a cursor holds the key of the last row and never an offset, so that a walk meets each thread
that doesn't change exactly once. A cursor is of one kind of store, one list and one label.
"""

import base64
import binascii
import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeAlias

from roder_trio.errors import InvalidCursor
from roder_trio.schema.thread import ThreadMetadata, ThreadPage

MAX_PAGE = 500
MAX_DIGITS = 18

Key: TypeAlias = tuple[datetime, str]
Label: TypeAlias = tuple[str, str]


def check_limit(limit: int) -> None:
    """Check the size of a page. Raises ValueError."""
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit must be an integer from 1 to {MAX_PAGE}, not {limit!r}")


def check_label(label: Label | None) -> None:
    """Check what to filter by. Raises ValueError."""
    pair = isinstance(label, tuple) and len(label) == 2 and all(isinstance(part, str) for part in label)  # noqa: PLR2004
    if label is not None and not pair:
        raise ValueError(f"label must be a pair of texts or None, not {label!r}")


def check_events(after: int, limit: int) -> None:
    """Check which envelopes to read. Raises ValueError."""
    if type(after) is not int or after < 0:
        raise ValueError(f"after must be an integer of at least 0, not {after!r}")
    if type(limit) is not int or limit < 1:
        raise ValueError(f"limit must be an integer of at least 1, not {limit!r}")


def write_cursor(scope: Sequence[str | None], key: Key) -> str:
    """The text that says where the next page begins."""
    text = json.dumps([*scope, key[0].isoformat(), key[1]], ensure_ascii=True, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def read_cursor(scope: Sequence[str | None], cursor: str) -> Key:
    """Where the page after `cursor` begins. Raises InvalidCursor if it is not of this `scope`."""
    try:
        parts = json.loads(base64.b64decode(cursor.encode(), altchars=b"-_", validate=True))
        updated_at = datetime.fromisoformat(parts[-2])
        thread_id = parts[-1]
        fits = parts[:-2] == list(scope) and write_cursor(scope, (updated_at, thread_id)) == cursor
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, binascii.Error) as error:
        raise InvalidCursor("The cursor was not made by this store; list from the start.") from error
    if not fits or updated_at.utcoffset() is None or not isinstance(thread_id, str):
        raise InvalidCursor("The cursor belongs to another store, list or label; list from the start.")
    return (updated_at, thread_id)


def page(
    store_id: str,
    order: Sequence[Key],
    find: Callable[[str], ThreadMetadata],
    *,
    limit: int,
    cursor: str | None,
    label: Label | None = None,
    archived: bool = False,
    damaged: Sequence[str] = (),
) -> ThreadPage:
    """Cut one page out of `order`, the keys of all threads, oldest first. Raises ValueError, InvalidCursor.

    `damaged` ids have no key, so they stand on the first page.
    """
    check_limit(limit)
    check_label(label)
    scope = (store_id, "archived" if archived else "active", *(label or (None, None)))
    position = len(order) if cursor is None else bisect_left(order, read_cursor(scope, cursor))
    rows: list[ThreadMetadata] = []
    more = False
    while position and not more:
        position -= 1
        row = find(order[position][1])
        if label is None or row.labels.get(label[0]) == label[1]:
            more = len(rows) == limit
            rows.append(row)
    rows = rows[:limit]
    following = write_cursor(scope, (rows[-1].updated_at, rows[-1].thread_id)) if more else None
    return ThreadPage(threads=rows, next_cursor=following, damaged=sorted(damaged) if cursor is None else ())


def log_position(cursor: str | None, last: int) -> int:
    """The number that a cursor into a log of `last` records holds; 0 at its beginning. Raises InvalidCursor."""
    if cursor is None:
        return 0
    written = isinstance(cursor, str) and cursor.isascii() and cursor.isdigit() and len(cursor) <= MAX_DIGITS
    if not written or int(cursor) > last:
        raise InvalidCursor("The cursor was not made by this store; read the log from its beginning.")
    return int(cursor)
