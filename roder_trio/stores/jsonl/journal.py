"""The journal of one thread, and what each call of the store does to it.

Rules of the room: every method blocks; a lane runs them in a worker thread, one at a time. `OSError`s leave as
`StorageError`. What is held in memory (record ids, the fold of the metadata, the size) is dropped whenever the file
may differ from it, and read again by the next call.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from roder_trio import codec
from roder_trio.errors import (
    AppendOutcomeUnknown,
    CorruptRecord,
    InvalidRecord,
    StorageError,
    ThreadExists,
    ThreadNotFound,
)
from roder_trio.logic.thread.metadata import MetadataFold
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import (
    LogPage,
    StoredRecord,
    StoreRepair,
    ThreadMetadata,
    ThreadSnapshot,
)
from roder_trio.stores._batch import MAX_APPEND_BYTES, creation, fresh, record_id
from roder_trio.stores._disk import Disk
from roder_trio.stores._frame import Damage, encode_batch, encode_creation, encode_header, read_thread_id
from roder_trio.stores._snapshot import snapshot_of
from roder_trio.stores.jsonl.events import EventPages
from roder_trio.stores.jsonl.index import News, Row, Standing
from roder_trio.stores.jsonl.layout import NEW, Layout
from roder_trio.stores.jsonl.names import file_name, thread_id_of
from roder_trio.stores.jsonl.pages import read_page
from roder_trio.stores.jsonl.replay import Replay, replay


@attrs.define(eq=False)
class _State:
    """What is known of the file as it stands."""

    fold: MetadataFold
    ids: set[str]
    batches: int
    size: int
    synced: bool = False
    """Whether the medium has all of it; what a killed process left may be in the kernel alone."""


class ThreadJournal:
    """The file of one thread. With `owner`, torn tails are set aside and nobody else writes meanwhile."""

    def __init__(self, layout: Layout, disk: Disk, thread_id: ThreadId, *, owner: bool) -> None:
        self._layout = layout
        self._disk = disk
        self._thread_id = thread_id
        self._owner = owner
        self._name = file_name(thread_id)
        self._path = layout.journal(self._name)
        self._archived_path = layout.journal(self._name, archived=True)
        self._state: _State | None = None
        self._events = EventPages(disk, thread_id)
        self._repairs: list[StoreRepair] = []
        self.news: News | None = None
        """What the last call found out for the index."""

    # -- reading -------------------------------------------------------------------------------------------------------

    def load(self) -> ThreadSnapshot | None:
        """All that the file holds; None if the thread isn't active. Raises StorageError."""
        log = self._read()
        return None if log is None else snapshot_of(log.fold.metadata, log.records, self._repairs)

    def load_metadata(self) -> ThreadMetadata | None:
        """The metadata as the file tells it; None if the thread isn't active. Raises StorageError."""
        log = self._read()
        return None if log is None else log.fold.metadata

    def load_events(self, after: int, limit: int) -> list[EventEnvelope]:
        """At most `limit` envelopes with a seq above `after`. Raises StorageError."""
        with self._errors():
            return self._events.read(self._path, after, limit)

    def read_page(self, cursor: str | None) -> LogPage | None:
        """A piece of the log as the file has it, active or archived; None if there is none. Raises StorageError."""
        with self._errors():
            for path in (self._path, self._archived_path):
                page = read_page(self._disk, path, self._thread_id, cursor, archived=path is self._archived_path)
                if page is not None:
                    return page
        return None

    def describe(self, *, archived: bool) -> Row | None:
        """The row of the file for the index, changing nothing. Raises StorageError."""
        with self._errors():
            path = self._archived_path if archived else self._path
            found = self._disk.stat(path)
            data = self._disk.read(path)
            if data is None:
                return None
            log = replay(self._thread_id, data, path.name)
        # the date is of before the reading, so a later change makes the row stale
        return Row(log.fold.metadata, len(data), 0 if found is None else found.st_mtime_ns, archived)

    def look(self) -> None:
        """Find out for the index what there is, active or archived. Raises StorageError."""
        self._read()
        if self.news is Standing.ARCHIVED:
            self.news = self.describe(archived=True) or Standing.GONE

    def _read(self) -> Replay | None:
        """Read the active file, set a torn tail aside and keep what appends need."""
        self._state = None
        with self._errors():
            data = self._disk.read(self._path)
            if data is None:
                self.news = Standing.GONE if self._disk.stat(self._archived_path) is None else Standing.ARCHIVED
                return None
            log = replay(self._thread_id, data, self._path.name)
            if self._owner:
                if log.tail:
                    self._set_tail_aside(data, log.end)
                self._state = _State(log.fold, log.ids, log.batches, log.end)
                self.news = self._row(self._state)
        return log

    def _set_tail_aside(self, data: bytes, end: int) -> None:
        """Copy the torn tail to a file of its own, then cut it off; a crash between leaves both."""
        number = 1
        while (self._layout.torn / f"{self._name}.{number}").exists():
            number += 1
        path = self._layout.torn / f"{self._name}.{number}"
        self._disk.write_new(path, data[end:])
        self._disk.sync_directory(self._layout.torn)
        with self._opened() as descriptor:
            self._disk.truncate(descriptor, end)
            self._disk.sync(descriptor)
        self._repairs.append(StoreRepair(str(path), len(data) - end))

    # -- writing -------------------------------------------------------------------------------------------------------

    def create(self, metadata: ThreadMetadata) -> ThreadMetadata:
        """Store a new thread, or return what is stored. Raises StorageError, ThreadExists, InvalidRecord."""
        encoded = codec.encode_metadata(metadata)
        wanted = codec.decode_metadata(encoded)
        with self._errors():
            if os.path.lexists(self._archived_path):
                raise ThreadExists(self._thread_id)
            log = self._read() if os.path.lexists(self._path) else None
            if log is not None:
                if creation(log.created) != creation(wanted):
                    raise ThreadExists(self._thread_id)
                # whoever made it may not have come to this
                self._sync_directories(self._layout.threads)
                return log.fold.metadata
            data = encode_header(self._thread_id) + encode_batch(1, [encode_creation(encoded)])
            self._place(data)
        self._state = _State(MetadataFold(wanted), set(), 1, len(data), synced=True)
        self.news = self._row(self._state)
        return wanted

    def _place(self, data: bytes) -> None:
        """Make the whole file appear in one step."""
        new = self._path.with_name(self._path.name + NEW)
        try:
            self._disk.write_new(new, data)
            self._disk.rename(new, self._path)
        except OSError:
            self._disk.remove(new)
            raise
        self._sync_directories(self._layout.threads)

    def append(self, batches: Sequence[Sequence[StoredRecord]]) -> list[StorageError | None]:
        """Store batches with one sync for all; for each, the error that it met. Raises StorageError for all of them."""
        with self._errors():
            state = self._current()
            with self._opened() as descriptor:
                outcomes = [self._append_one(descriptor, state, batch) for batch in batches]
                self._sync_batches(descriptor, state, outcomes)
            if self._state is not None:
                self.news = self._row(state)
        return [outcome if isinstance(outcome, StorageError) else None for outcome in outcomes]

    def _append_one(self, descriptor: int, state: _State, batch: Sequence[StoredRecord]) -> StorageError | int:
        """Write one batch; its error, or how many bytes it took."""
        if self._state is None:
            return StorageError(f"The append to thread {self._thread_id!r} was not tried, since the one before failed.")
        new = fresh(state.ids, batch)
        try:
            encoded = [codec.encode_record(record) for record in new]
        except InvalidRecord as error:
            return error
        if sum(map(len, encoded)) > MAX_APPEND_BYTES:
            return InvalidRecord(f"One append takes at most {MAX_APPEND_BYTES} bytes of encoded records.")
        if not new:
            return 0
        line = encode_batch(state.batches + 1, encoded)
        failure = self._write_line(descriptor, line, state.size)
        if failure is not None:
            return failure
        state.size += len(line)
        state.batches += 1
        for record in new:
            state.ids.add(record_id(record))
            state.fold.absorb(record)
        return len(line)

    def _write_line(self, descriptor: int, line: bytes, size: int) -> StorageError | None:
        try:
            self._disk.write(descriptor, line, size)
        except OSError as error:
            try:
                self._disk.truncate(descriptor, size)
            except OSError:
                return self._unknown(error)
            return self._failure(error)
        return None

    def _sync_batches(self, descriptor: int, state: _State, outcomes: list[StorageError | int]) -> None:
        """Sync what was written, now or by one who did not come to it: a repeat must not return before that."""
        waiting = [isinstance(outcome, int) and (outcome > 0 or not state.synced) for outcome in outcomes]
        if not any(waiting):
            return
        try:
            self._disk.sync(descriptor)
        except OSError as error:
            unknown = self._unknown(error)
            outcomes[:] = [unknown if waits else outcome for waits, outcome in zip(waiting, outcomes, strict=True)]
        else:
            state.synced = True

    def _unknown(self, error: OSError) -> AppendOutcomeUnknown:
        self.forget()
        self.news = Standing.DOUBTFUL
        unknown = AppendOutcomeUnknown(f"Whether thread {self._thread_id!r} holds the append is unknown: {error}.")
        unknown.__cause__ = error
        return unknown

    def _failure(self, error: OSError) -> StorageError:
        failure = StorageError(f"Thread {self._thread_id!r} could not be read or written in its store: {error}.")
        failure.__cause__ = error
        return failure

    def _current(self) -> _State:
        """What is known of the file, read again if that may be wrong. Raises ThreadNotFound."""
        found = self._disk.stat(self._path)
        if self._state is None or found is None or found.st_size != self._state.size:
            self._read()
        if self._state is None:
            raise ThreadNotFound(self._thread_id)
        return self._state

    def _row(self, state: _State) -> Row:
        try:
            found = self._disk.stat(self._path)
        except OSError:
            found = None
        return Row(state.fold.metadata, state.size, 0 if found is None else found.st_mtime_ns)

    # -- moving and removing -------------------------------------------------------------------------------------------

    def archive(self) -> bool:
        """Move the file to the archive; False if the thread isn't active. Raises StorageError."""
        return self._move(self._path, self._archived_path, Standing.ARCHIVED)

    def unarchive(self) -> bool:
        """Move the file back; False if the thread isn't archived. Raises StorageError."""
        return self._move(self._archived_path, self._path, Standing.ACTIVE)

    def _move(self, source: Path, target: Path, standing: Standing) -> bool:
        with self._errors():
            if self._disk.stat(source) is None:
                return False
            self.forget()
            self._disk.rename(source, target)
            self.news = standing
            self._sync_directories(target.parent, source.parent)
            return True

    def delete(self) -> bool:
        """Remove every byte, the journal last, so that a crash leaves a thread to delete. Raises StorageError."""
        torn = re.compile(re.escape(self._name) + r"\.[0-9]+")
        with self._errors():
            self.release()
            for path in self._layout.torn.iterdir():
                if torn.fullmatch(path.name):
                    self._disk.remove(path)
            self._disk.remove(self._path.with_name(self._path.name + NEW))
            removed = [self._disk.remove(path) for path in (self._path, self._archived_path)]
            self.news = Standing.GONE
            self._sync_directories(self._layout.torn, self._layout.threads, self._layout.archived)
            return any(removed)

    def forget(self) -> None:
        """Drop what is known of the file."""
        self._state = None

    def release(self) -> None:
        """Drop all that is held in memory."""
        self.forget()
        self._events.forget()
        self._repairs.clear()

    def _sync_directories(self, *folders: Path) -> None:
        try:
            for folder in folders:
                self._disk.sync_directory(folder)
        except OSError as error:
            self.forget()
            self.news = Standing.DOUBTFUL
            raise AppendOutcomeUnknown(
                f"Whether the change of thread {self._thread_id!r} would survive a loss of power is unknown: {error}."
            ) from error

    @contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = self._disk.open(self._path)
        try:
            yield descriptor
        finally:
            # what counts was told by write and sync
            with suppress(OSError):
                os.close(descriptor)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the system's errors into those of stores, and damage into news."""
        try:
            yield
        except CorruptRecord:
            self.news = Standing.DAMAGED
            raise
        except OSError as error:
            self.forget()
            raise self._failure(error) from error


def read_row(layout: Layout, disk: Disk, name: str, *, archived: bool) -> Row | None:
    """The row of the journal that has this file name; None if it is gone. Raises StorageError."""
    thread_id = thread_id_of(name)
    if thread_id is None:
        # the name is only a hash of the id, or none of ours: the header tells
        try:
            thread_id = read_thread_id(disk.read(layout.journal(name, archived=archived)) or b"")
        except (Damage, OSError) as error:
            raise CorruptRecord(name, "line 1", str(error)) from error
        if file_name(thread_id) != name:
            raise CorruptRecord(thread_id, "line 1", f"the file is named {name!r}")
    return ThreadJournal(layout, disk, thread_id, owner=False).describe(archived=archived)
