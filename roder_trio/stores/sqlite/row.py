"""Rows with their checksums, by which damage inside the file is told from what was stored.

Rules of the room: pure. A checksum is over all that a row says and over the key under which it stands, so a row that
was changed, or that is met in another's place, is never taken for what it isn't.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import attrs

from roder_trio.errors import CorruptRecord
from roder_trio.schema.ids import ThreadId

WRONG = "its checksum is not that of what stands there"

_HALF = 2**31


def checksum(*parts: object) -> int:
    """The CRC-32 of a row, signed, which takes four bytes."""
    text = "\0".join(["\1" if part is None else str(part) for part in parts])
    return zlib.crc32(text.encode()) - _HALF


THREAD = (
    "thread.number, thread.thread_id, thread.metadata, thread.updated_at, thread.archived_at, "
    "thread.last_position, thread.last_seq, thread.last_item_seq, thread.crc"
)
"""What `checked_thread` reads."""


@attrs.frozen
class StoredThread:
    """The row of a thread; `metadata` is its document, dates are as they are written."""

    number: int
    thread_id: ThreadId
    metadata: str
    updated_at: str
    archived_at: str | None = None
    last_position: int = 0
    last_seq: int = 0
    last_item_seq: int = 0

    @property
    def crc(self) -> int:
        """The checksum of the row."""
        return checksum(
            self.number,
            self.thread_id,
            self.metadata,
            self.updated_at,
            self.archived_at,
            self.last_position,
            self.last_seq,
            self.last_item_seq,
        )


def checked_thread(row: Sequence[Any]) -> StoredThread | None:
    """The row that the columns of `THREAD` make; None if it is damaged."""
    thread = StoredThread(*row[:-1])
    return thread if thread.crc == row[-1] else None


def damaged_thread(thread_id: ThreadId, detail: str = WRONG) -> CorruptRecord:
    """What is raised for a row of a thread that can't be trusted."""
    return CorruptRecord(thread_id, "its metadata", detail)
