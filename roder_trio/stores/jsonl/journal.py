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
from typing import Any

import attrs

from roder_trio import codec
from roder_trio.codec.text import dump
from roder_trio.errors import (
    AppendOutcomeUnknown,
    CorruptRecord,
    InvalidRecord,
    StorageError,
    ThreadExists,
    ThreadNotFound,
)
from roder_trio.logic.item import merge
from roder_trio.logic.thread.metadata import MetadataFold
from roder_trio.logic.thread.record import turns_of
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import (
    ExtensionStateRecord,
    OpaqueRecord,
    StoredRecord,
    StoreRepair,
    ThreadMetadata,
    ThreadSnapshot,
)
from roder_trio.stores._batch import MAX_APPEND_BYTES, creation, fault_of, fresh, record_id
from roder_trio.stores.jsonl.disk import Disk
from roder_trio.stores.jsonl.frame import Damage, Journal, encode_batch, encode_header, read_journal, read_thread_id
from roder_trio.stores.jsonl.index import News, Row, Standing
from roder_trio.stores.jsonl.layout import NEW, Layout
from roder_trio.stores.jsonl.names import file_name, thread_id_of


@attrs.define(eq=False)
class _State:
    """What is known of the file as it stands."""

    fold: MetadataFold
    ids: set[str]
    batches: int
    size: int


@attrs.define(eq=False)
class _Reading:
    """One reading of the whole file."""

    created: ThreadMetadata
    records: list[StoredRecord]
    state: _State
    row: Row


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
        self._repairs: list[StoreRepair] = []
        self.news: News | None = None
        """What the last call found out for the index."""

    # -- reading -------------------------------------------------------------------------------------------------------

    def load(self) -> ThreadSnapshot | None:
        """All that the file holds; None if the thread isn't active. Raises StorageError."""
        reading = self._read()
        if reading is None:
            return None
        envelopes = [record for record in reading.records if isinstance(record, EventEnvelope)]
        stored = [record for record in reading.records if isinstance(record, ThreadItemEvent)]
        return ThreadSnapshot(
            metadata=reading.row.metadata,
            turns=turns_of(self._thread_id, envelopes),
            events=envelopes,
            item_events=merge(stored, envelopes),
            extension_states=[record for record in reading.records if isinstance(record, ExtensionStateRecord)],
            repairs=self._repairs,
        )

    def load_metadata(self) -> ThreadMetadata | None:
        """The metadata as the file tells it; None if the thread isn't active. Raises StorageError."""
        reading = self._read()
        return None if reading is None else reading.row.metadata

    def load_events(self, after: int, limit: int) -> list[EventEnvelope]:
        """At most `limit` envelopes with a seq above `after`. Raises StorageError."""
        found: list[EventEnvelope] = []
        with self._errors():
            data = self._disk.read(self._path)
            if data is None:
                return []
            batches = self._parse(data, self._path).batches
            self._created(batches[0], self._path)
            values = enumerate((value for batch in batches[1:] for value in batch), start=1)
            for position, value in values:
                seq = value.get("seq", 0) if value.get("type") == "event" else 0
                if type(seq) is not int or seq <= after:
                    continue
                record = self._decode(value, position)
                assert isinstance(record, EventEnvelope)
                found.append(record)
                if len(found) >= limit:
                    break
        return found

    def describe(self, *, archived: bool) -> Row | None:
        """The row of the file for the index, changing nothing. Raises StorageError."""
        with self._errors():
            path = self._archived_path if archived else self._path
            reading = self._decode_file(path)
        return None if reading is None else attrs.evolve(reading.row, archived=archived)

    def _read(self) -> _Reading | None:
        """Read the active file, set a torn tail aside and keep what appends need."""
        self._state = None
        with self._errors():
            reading = self._decode_file(self._path)
            if reading is None:
                self.news = Standing.GONE if self._disk.stat(self._archived_path) is None else Standing.ARCHIVED
                return None
            torn = reading.row.size - reading.state.size
            if torn and self._owner:
                self._set_tail_aside(reading.state.size, torn)
                reading.row = self._row(reading.state)
        if self._owner:
            self._state = reading.state
        self.news = reading.row
        return reading

    def _decode_file(self, path: Path) -> _Reading | None:
        before = self._disk.stat(path)
        data = self._disk.read(path)
        if data is None:
            return None
        journal = self._parse(data, path)
        created = self._created(journal.batches[0], path)
        records: list[StoredRecord] = []
        fold = MetadataFold(created)
        ids: set[str] = set()
        for value in (value for batch in journal.batches[1:] for value in batch):
            record = self._decode(value, len(records) + 1)
            records.append(record)
            fold.absorb(record)
            ids.add(record_id(record))
        state = _State(fold, ids, len(journal.batches), journal.end)
        modified = 0 if before is None else before.st_mtime_ns
        return _Reading(created, records, state, Row(fold.metadata, len(data), modified))

    def _parse(self, data: bytes, path: Path) -> Journal:
        try:
            journal = read_journal(data)
        except Damage as damage:
            position = f"{path.name} line {damage.line}, offset {damage.offset}"
            raise CorruptRecord(self._thread_id, position, str(damage)) from damage
        if journal.thread_id != self._thread_id:
            raise CorruptRecord(self._thread_id, f"{path.name} line 1", f"it is of thread {journal.thread_id!r}")
        return journal

    def _created(self, batch: list[dict[str, Any]], path: Path) -> ThreadMetadata:
        position = f"{path.name} line 2"
        if len(batch) != 1 or batch[0].get("type") != "thread":
            raise CorruptRecord(self._thread_id, position, "the first batch is not the creation of a thread")
        try:
            created = codec.decode_metadata(batch[0].get("metadata", {}))
        except codec.DecodeError as error:
            raise CorruptRecord(self._thread_id, position, str(error)) from error
        if created.thread_id != self._thread_id:
            raise CorruptRecord(self._thread_id, position, f"it creates {created.thread_id!r}")
        return created

    def _decode(self, value: dict[str, Any], position: int) -> StoredRecord:
        try:
            record = codec.decode_record(value)
        except codec.DecodeError as error:
            raise CorruptRecord(self._thread_id, position, str(error)) from error
        fault = None if isinstance(record, OpaqueRecord) else fault_of(self._thread_id, record)
        if fault is not None:
            raise CorruptRecord(self._thread_id, position, fault)
        return record

    def _set_tail_aside(self, end: int, torn: int) -> None:
        """Copy the torn tail to a file of its own, then cut it off; a crash between leaves both."""
        data = self._disk.read(self._path)
        assert data is not None
        number = 1
        while (self._layout.torn / f"{self._name}.{number}").exists():
            number += 1
        path = self._layout.torn / f"{self._name}.{number}"
        self._disk.write_new(path, data[end:])
        self._disk.sync_directory(self._layout.torn)
        with self._opened() as descriptor:
            self._disk.truncate(descriptor, end)
            self._disk.sync(descriptor)
        self._repairs.append(StoreRepair(str(path), torn))

    # -- writing -------------------------------------------------------------------------------------------------------

    def create(self, metadata: ThreadMetadata) -> ThreadMetadata:
        """Store a new thread, or return what is stored. Raises StorageError, ThreadExists, InvalidRecord."""
        encoded = codec.encode_metadata(metadata)
        wanted = codec.decode_metadata(encoded)
        with self._errors():
            if os.path.lexists(self._archived_path):
                raise ThreadExists(self._thread_id)
            reading = self._read() if os.path.lexists(self._path) else None
            if reading is not None:
                if creation(reading.created) != creation(wanted):
                    raise ThreadExists(self._thread_id)
                return reading.row.metadata
            record = dump({"type": "thread"})[:-1] + b',"metadata":' + encoded + b"}"
            data = encode_header(self._thread_id) + encode_batch(1, [record])
            self._place(data)
        self._state = _State(MetadataFold(wanted), set(), 1, len(data))
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
                self._sync_batches(descriptor, outcomes)
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

    def _sync_batches(self, descriptor: int, outcomes: list[StorageError | int]) -> None:
        if not any(isinstance(outcome, int) and outcome for outcome in outcomes):
            return
        try:
            self._disk.sync(descriptor)
        except OSError as error:
            unknown = self._unknown(error)
            outcomes[:] = [unknown if isinstance(outcome, int) and outcome else outcome for outcome in outcomes]

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
