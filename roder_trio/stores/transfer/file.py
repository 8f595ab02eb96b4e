"""The file of an export: written beside its place and moved there when it is whole, read piece by piece.

Rules of the room: every function and method blocks and runs in a worker thread. What can't be read is `CorruptRecord`,
with the line and offset of the trouble; an export has no torn tail, since it appears in one step. A journal can be read
as an export; that nothing of it was cut off is known of an export alone.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from roder_trio.errors import CorruptRecord, StorageError
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import ThreadMetadata
from roder_trio.stores._batch import CHUNK_BYTES, CHUNK_RECORDS, MAX_APPEND_BYTES
from roder_trio.stores._disk import Disk
from roder_trio.stores._frame import Damage, batch_array, encode_array, encode_header, read_batch, read_header
from roder_trio.stores.transfer.source import read_creation

NEW = ".new"
"""The suffix of a file that isn't whole yet."""
MAX_LINE = MAX_APPEND_BYTES + 64 * 1024
"""Bytes of the longest line that any store writes, its commas and frame included."""


class ExportWriter:
    """Writes one export. Call `begin`, `add` for each batch, `finish`; `discard` at any time leaves nothing."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._path = path
        self._new = path.with_name(path.name + NEW)
        self._overwrite = overwrite
        self._disk = Disk(power=True)
        self._descriptor = -1
        self._size = 0
        self._number = 0

    def begin(self, thread_id: ThreadId, created: bytes) -> None:
        """Write the header and the creation. Raises StorageError if there is a file already, OSError."""
        self._refuse_existing()
        self._descriptor = self._disk.create(self._new)
        self._write(encode_header(thread_id, closed=True))
        self.add(b"[" + created + b"]")

    def add(self, array: bytes) -> None:
        """Write a batch. Raises OSError."""
        self._number += 1
        self._write(encode_array(self._number, array))

    def finish(self) -> None:
        """Close the file and make it appear in its place. Raises StorageError if one came meanwhile, OSError."""
        self.add(b"[]")
        self._disk.sync(self._descriptor)
        self._close()
        self._refuse_existing()
        self._disk.rename(self._new, self._path)
        self._disk.sync_directory(self._path.parent)

    def discard(self) -> None:
        """Remove what isn't in its place."""
        self._close()
        with suppress(OSError):
            self._disk.remove(self._new)

    def _write(self, data: bytes) -> None:
        self._disk.write(self._descriptor, data, self._size)
        self._size += len(data)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _refuse_existing(self) -> None:
        if not self._overwrite and os.path.lexists(self._path):
            raise StorageError(f"There is a file at {str(self._path)!r}; give another path, or overwrite=True.")


@attrs.frozen
class Place:
    """Where the next line of an export begins: its offset, its batch's number, and how many records stand before.

    `closes` if the line before is the batch that ends an export.
    """

    offset: int
    batch: int
    position: int
    closes: bool = False


@attrs.frozen
class Head:
    """What an export begins with; `closed` if it must have an end."""

    thread_id: ThreadId
    created: ThreadMetadata
    place: Place
    closed: bool


def read_head(path: Path) -> Head:
    """Read the header and the creation. Raises CorruptRecord, SchemaTooNew, OSError."""
    with path.open("rb") as file:
        first, line = file.readline(MAX_LINE), file.readline(MAX_LINE)
    try:
        header = read_header(first)
    except Damage as damage:
        raise CorruptRecord(path.name, "line 1", str(damage)) from damage
    thread_id = header.thread_id
    found = batch_array(line, 0, len(line))
    if found is None or found[0] != 1:
        raise CorruptRecord(thread_id, f"{path.name} line 2", "the batch that created the thread is missing")
    created = read_creation(thread_id, found[1][1:-1])
    return Head(thread_id, created, Place(len(first) + len(line), 2, 0), header.closed)


def read_chunk(path: Path, head: Head, place: Place) -> tuple[list[dict[str, Any]], Place]:
    """Read some batches; none at the end. Raises CorruptRecord, OSError."""
    values: list[dict[str, Any]] = []
    offset, batch, closes = place.offset, place.batch, place.closes
    with path.open("rb") as file:
        file.seek(offset)
        while len(values) < CHUNK_RECORDS:
            line = file.readline(MAX_LINE)
            ended = not line and (closes or not head.closed)
            full = values and offset + len(line) - place.offset > CHUNK_BYTES
            if ended or full:
                break
            found = read_batch(line, 0, len(line))
            if found is None or found[0] != batch:
                where = f"{path.name} line {batch + 1}, offset {offset}"
                raise CorruptRecord(head.thread_id, where, f"batch {batch} is damaged or missing")
            values.extend(found[1])
            offset += len(line)
            batch += 1
            closes = not found[1]
            if closes and not head.closed:
                raise CorruptRecord(head.thread_id, f"{path.name} line 1", "it lacks what the header of an export says")
    return values, Place(offset, batch, place.position + len(values), closes)
