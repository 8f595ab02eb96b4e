"""The metadata of all threads in memory, and the cache file that saves reading every journal at start.

Rules of the room: the index is changed on the event loop only; reading and writing its file, and reading journals for
it, block and run in a worker thread. The file is never trusted beyond what size and date of a journal confirm.
"""

import enum
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from roder_trio import codec
from roder_trio.codec.text import dump
from roder_trio.errors import StorageError
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import ThreadMetadata
from roder_trio.stores._disk import Disk
from roder_trio.stores._listing import Key
from roder_trio.stores.jsonl.layout import NEW, Layout
from roder_trio.stores.jsonl.names import SUFFIX, file_name, thread_id_of

FORMAT = "roder_trio.index"
VERSION = 1


@attrs.define(eq=False)
class Row:
    """What is known of one journal: its metadata, as of a size and a date."""

    metadata: ThreadMetadata
    size: int
    modified: int
    """Nanoseconds, as the file system tells them."""
    archived: bool = False
    encoded: bytes | None = None

    def encode(self) -> bytes:
        """The metadata as JSON, made once."""
        if self.encoded is None:
            self.encoded = codec.encode_metadata(self.metadata)
        return self.encoded


class Standing(enum.Enum):
    """News of a journal other than a new row."""

    GONE = "gone"
    ARCHIVED = "archived"
    ACTIVE = "active"
    DAMAGED = "damaged"
    DOUBTFUL = "doubtful"
    """It may hold more or less than is known; it must be read before anything is said of it."""


News: TypeAlias = Row | Standing


class Index:
    """Rows by file name, and the orders in which they are listed."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.damaged: dict[str, bool] = {}
        """Whether it is archived, by file name."""
        self.doubtful: set[ThreadId] = set()
        self.dirty = False
        self._orders: dict[bool, list[Key]] = {}

    def fill(self, rows: dict[str, Row], damaged: dict[str, bool]) -> None:
        """Take over all that was read."""
        self.rows, self.damaged = rows, damaged
        self._orders.clear()

    def take(self, thread_id: ThreadId, news: News) -> None:
        """Take what a call on one thread brought."""
        if news is Standing.DOUBTFUL:
            self.doubtful.add(thread_id)
            return
        name = file_name(thread_id)
        self.doubtful.discard(thread_id)
        place, row = self.damaged.pop(name, None), self.rows.pop(name, None)
        if news is Standing.GONE and place is None and row is None:
            return
        if isinstance(news, Row):
            self.rows[name] = news
        elif news is Standing.DAMAGED:
            self.damaged[name] = row.archived if row is not None else place is True
        elif news is not Standing.GONE and row is not None:
            self.rows[name] = attrs.evolve(row, archived=news is Standing.ARCHIVED)
        elif news is not Standing.GONE and place is not None:
            self.damaged[name] = news is Standing.ARCHIVED
        elif news is not Standing.GONE:
            # it moved before anything was known of it
            self.doubtful.add(thread_id)
        self.dirty = True
        self._orders.clear()

    def order(self, *, archived: bool) -> list[Key]:
        """The keys of the active or archived threads, oldest first."""
        order = self._orders.get(archived)
        if order is None:
            found = [row.metadata for row in self.rows.values() if row.archived is archived]
            order = self._orders[archived] = sorted((row.updated_at, row.thread_id) for row in found)
        return order

    def find(self, thread_id: str) -> ThreadMetadata:
        """The metadata of a listed thread."""
        return self.rows[file_name(thread_id)].metadata

    def damaged_ids(self, *, archived: bool) -> list[str]:
        """The ids, or at least the file names, of what can't be read."""
        return [thread_id_of(name) or name for name, place in self.damaged.items() if place is archived]


# -- the file ----------------------------------------------------------------------------------------------------------


def encode_index(rows: dict[str, Row]) -> bytes:
    """The cache as JSON text."""
    lines = []
    for name, row in rows.items():
        head = {"name": name, "archived": row.archived, "size": row.size, "modified": row.modified}
        lines.append(dump(head)[:-1] + b',"metadata":' + row.encode() + b"}")
    opening = dump({"format": FORMAT, "version": VERSION})[:-1]
    return opening + b',"threads":[\n' + b",\n".join(lines) + b"\n]}\n"


def decode_index(data: bytes) -> dict[str, Row]:
    """The rows of a cache; none if it can't be read."""
    try:
        value = codec.parse_json(data)
        if value["format"] != FORMAT or value["version"] != VERSION:
            return {}
        rows = {entry["name"]: _decode_row(entry) for entry in value["threads"]}
    except (ValueError, TypeError, LookupError, AttributeError):
        return {}
    return {name: row for name, row in rows.items() if file_name(row.metadata.thread_id) == name}


def _decode_row(entry: dict[str, Any]) -> Row:
    return Row(codec.decode_metadata(entry["metadata"]), entry["size"], entry["modified"], entry["archived"] is True)


def write_index(layout: Layout, disk: Disk, rows: dict[str, Row]) -> None:
    """Write the cache. It needs no sync: what a loss of power leaves of it is rebuilt if it can't be read."""
    new = layout.index.with_name(layout.index.name + NEW)
    disk.write_new(new, encode_index(rows), sync=False)
    disk.rename(new, layout.index)


def scan(
    layout: Layout, disk: Disk, known: dict[str, Row], read: Callable[[str, bool], Row | None]
) -> tuple[dict[str, Row], dict[str, bool], bool]:
    """Return rows and damage of all journals, and whether any row of `known` was missing or stale.

    `read` makes the row of a journal by its name and whether it is archived; it raises StorageError.
    """
    rows: dict[str, Row] = {}
    damaged: dict[str, bool] = {}
    for archived, folder in ((True, layout.archived), (False, layout.threads)):
        for name, path in _journals(folder):
            row = _confirmed(disk, path, known.get(name))
            try:
                row = row or read(name, archived)
            except StorageError:
                damaged[name] = archived
            else:
                if row is not None:
                    rows[name] = row if row.archived is archived else attrs.evolve(row, archived=archived)
    changed = len(rows) != len(known) or any(known.get(name) is not row for name, row in rows.items())
    return rows, damaged, changed


def _journals(folder: Path) -> Iterable[tuple[str, Path]]:
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                yield entry.name.removesuffix(SUFFIX), Path(entry.path)


def _confirmed(disk: Disk, path: Path, row: Row | None) -> Row | None:
    """The known row, if the file is as it was then."""
    found = disk.stat(path)
    if row is None or found is None or (found.st_size, found.st_mtime_ns) != (row.size, row.modified):
        return None
    return row
