"""A journal read piece by piece, as its bytes are, for copies of threads.

Rules of the room: blocks, in a worker thread; a piece is some whole lines, so a cursor is the offset of a line and the
number of its batch. A torn tail ends the log and is left where it is; other damage is `CorruptRecord`.
"""

import re
from pathlib import Path

from roder_trio.errors import CorruptRecord, InvalidCursor
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import LogPage
from roder_trio.stores._disk import Disk
from roder_trio.stores._frame import Damage, batch_array, read_thread_id, whole_batches

PIECE = 1024 * 1024
"""Bytes that are read at once, if a line isn't longer."""
FIRST = 2
"""The number of the batch that follows the creation."""

_CURSOR = re.compile(r"([0-9]{1,18})-([0-9]{1,18})", re.ASCII)


def read_page(disk: Disk, path: Path, thread_id: ThreadId, cursor: str | None, *, archived: bool) -> LogPage | None:
    """Read the lines after `cursor`; None if there is no file. Raises CorruptRecord, SchemaTooNew, InvalidCursor."""
    head = whole_lines(disk, path, 0, 2)
    if head is None:
        return None
    try:
        created, begin = _creation(head, thread_id)
        start, number = (begin, FIRST) if cursor is None else _place(disk, path, cursor)
        batches, end = _batches(disk, path, start, number)
    except Damage as damage:
        raise CorruptRecord(thread_id, f"{path.name} offset {damage.offset}", str(damage)) from damage
    more = batches and disk.read_from(path, end, 1)
    return LogPage(
        created=created,
        batches=batches,
        archived=archived,
        next_cursor=f"{end}-{number + len(batches)}" if more else None,
    )


def _place(disk: Disk, path: Path, cursor: str) -> tuple[int, int]:
    """The offset and the number of the batch that a cursor tells. Raises InvalidCursor."""
    found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    offset, number = (int(found[1]), int(found[2])) if found else (0, 0)
    if not offset or disk.read_from(path, offset - 1, 1) != b"\n":
        raise InvalidCursor("The cursor was not made by this store; read the log from its beginning.")
    return offset, number


def whole_lines(disk: Disk, path: Path, start: int, count: int) -> bytes | None:
    """The bytes from `start` on: a piece, or as much more as `count` lines take; None if there is no file."""
    size = PIECE
    while True:
        data = disk.read_from(path, start, size)
        if data is None or len(data) < size or data.count(b"\n") >= count:
            return data
        size *= 4


def _creation(head: bytes, thread_id: ThreadId) -> tuple[bytes, int]:
    """The one record of the first batch, and where the next one begins. Raises Damage, SchemaTooNew."""
    named = read_thread_id(head)
    if named != thread_id:
        raise Damage(1, 0, f"it is of thread {named!r}")
    start = head.find(b"\n") + 1
    end = head.find(b"\n", start) + 1
    found = batch_array(head, start, end) if end else None
    if found is None or found[0] != FIRST - 1:
        raise Damage(2, start, "the batch that created the thread is missing")
    return found[1][1:-1], end


def _batches(disk: Disk, path: Path, start: int, number: int) -> tuple[list[bytes], int]:
    """The arrays of the whole lines from `start` on, and where they end. Raises Damage."""
    data = whole_lines(disk, path, start, 1) or b""
    batches: list[bytes] = []
    position = 0
    while end := data.find(b"\n", position) + 1:
        found = batch_array(data, position, end)
        if found is None:
            break
        expected = number + len(batches)
        if found[0] != expected:
            raise Damage(0, start + position, f"batch {found[0]} stands where batch {expected} belongs")
        batches.append(found[1])
        position = end
    if not batches and next(whole_batches(disk.read_from(path, start, -1) or b""), None) is not None:
        raise Damage(0, start, "bytes that are no batch stand before a whole one")
    return batches, start + position
