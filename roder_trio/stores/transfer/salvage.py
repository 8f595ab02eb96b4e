"""What can be read of a damaged journal or export, and what can't.

Rules of the room: the damaged file is only read. Whole batches are looked for everywhere in it; the text of those whose
records can all be read is kept as it is. Everything else is told as a gap.
"""

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from roder_trio import codec
from roder_trio.codec.text import dump
from roder_trio.errors import CorruptRecord
from roder_trio.ports import ThreadStore
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import ThreadId, is_valid_id
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import ThreadMetadata
from roder_trio.stores._batch import grouped, stored_record
from roder_trio.stores._filling import filling
from roder_trio.stores._frame import Damage, Header, batch_array, encode_creation, read_header, whole_batches
from roder_trio.stores.transfer.file import ExportWriter
from roder_trio.stores.transfer.source import read_creation, records_of
from roder_trio.stores.transfer.thread import Worker, writing


@attrs.frozen
class Gap:
    """What was left out: `bytes` at `offset` of the damaged file, and why."""

    offset: int
    bytes: int
    reason: str


@attrs.frozen
class SalvageReport:
    """What was saved: the thread, the number of its records, and the gaps between them."""

    thread_id: ThreadId
    records: int
    gaps: tuple[Gap, ...] = ()


async def salvage_thread(path: str | os.PathLike[str], target: ThreadStore | str | os.PathLike[str]) -> SalvageReport:
    """Write what can be read of a damaged journal to a new export, or into an open store, and report the gaps.

    The damaged file stays as it is. Cancelled, a new file isn't there, and a store holds a part of the thread. Raises
    CorruptRecord if nothing in the file says whose thread it is, SchemaTooNew, ThreadExists, StorageError if a file
    can't be read or written, or there is one at `target`.
    """
    worker = Worker(Path(path), "read")
    saved = await worker.run(_salvage, worker.path)
    if isinstance(target, ThreadStore):
        await _fill(target, saved, worker)
    else:
        async with writing(Path(target), overwrite=False) as (writer, other):
            await other.run(_write, writer, saved)
    return SalvageReport(saved.thread_id, saved.records, tuple(saved.gaps))


async def _fill(store: ThreadStore, saved: "_Saved", worker: Worker) -> None:
    await store.create_thread(read_creation(saved.thread_id, saved.created))
    async with filling(store, saved.thread_id):
        for batches in grouped(saved.batches, len):
            records = await worker.run(records_of, saved.thread_id, batches)
            await store.append(saved.thread_id, records)  # type: ignore[arg-type]  # opaque ones are records too


def _write(writer: ExportWriter, saved: "_Saved") -> None:
    writer.begin(saved.thread_id, saved.created)
    for array in saved.batches:
        writer.add(array)
    writer.finish()


@attrs.define
class _Saved:
    thread_id: ThreadId
    created: bytes = b""
    batches: list[bytes] = attrs.field(factory=list)
    records: int = 0
    gaps: list[Gap] = attrs.field(factory=list)


@attrs.frozen
class _Batch:
    start: int
    end: int
    number: int
    array: bytes
    values: list[dict[str, Any]]


def _salvage(path: Path) -> _Saved:
    """Read what is readable. Raises CorruptRecord, SchemaTooNew, OSError."""
    data = path.read_bytes()
    batches = [_read(data, start, end) for start, end in whole_batches(data)]
    thread_id = _thread_id(data, batches)
    if thread_id is None:
        raise CorruptRecord(path.name, "its beginning", "nothing in the file says whose thread it is")
    saved = _Saved(thread_id)
    saved.gaps.extend(_missing(data, batches))
    dated: list[datetime] = []
    for batch in _once(batches):
        _keep(saved, batch, dated)
    if not saved.created:
        if not dated:
            raise CorruptRecord(thread_id, path.name, "neither its creation nor any record can be read")
        metadata = ThreadMetadata(thread_id=thread_id, created_at=min(dated), updated_at=min(dated))
        saved.created = encode_creation(codec.encode_metadata(metadata))
    saved.gaps.sort(key=lambda gap: gap.offset)
    return saved


def _read(data: bytes, start: int, end: int) -> _Batch:
    found = batch_array(data, start, end)
    assert found is not None, "it was whole a moment ago"
    return _Batch(start, end, *found, codec.parse_json(found[1]))


def _thread_id(data: bytes, batches: list[_Batch]) -> ThreadId | None:
    """Whose thread it is: what the header says, else the creation, else the first record that names one."""
    header = _header(data)
    if header is not None:
        return header.thread_id
    values = [value for batch in batches for value in batch.values]
    created = [value["metadata"] for value in values if isinstance(value.get("metadata"), dict)]
    named = [value.get("thread_id") for value in (*created, *values)]
    return next((thread_id for thread_id in named if isinstance(thread_id, str) and is_valid_id(thread_id)), None)


def _missing(data: bytes, batches: list[_Batch]) -> Iterator[Gap]:
    """The bytes that belong to no batch, and the numbers that none has."""
    header = _header(data)
    position, number = 0 if header is None else data.find(b"\n") + 1, 0
    for batch in batches:
        if batch.start > position:
            yield Gap(position, batch.start - position, "bytes that are no whole batch")
        if batch.number > number + 1:
            yield Gap(batch.start, 0, f"batches {number + 1} to {batch.number - 1} are missing before this place")
        if batch.number <= number:
            yield Gap(batch.start, batch.end - batch.start, f"batch {batch.number} stands here again")
        position, number = batch.end, max(number, batch.number)
    if position < len(data):
        yield Gap(position, len(data) - position, "bytes that are no whole batch")
    elif header is not None and header.closed and not (batches and not batches[-1].values):
        yield Gap(position, 0, "the export was cut here: the batch that closes it is missing")


def _header(data: bytes) -> Header | None:
    """What the first line says, if it can be read. Raises SchemaTooNew."""
    try:
        return read_header(data)
    except Damage:
        return None


def _once(batches: list[_Batch]) -> Iterator[_Batch]:
    """The batches in the order of the file, without those that stand in it again."""
    number = 0
    for batch in batches:
        if batch.number > number:
            number = batch.number
            yield batch


def _keep(saved: _Saved, batch: _Batch, dated: list[datetime]) -> None:
    """Keep the creation, or the records of a batch that can be read."""
    kept: list[dict[str, Any]] = []
    for index, value in enumerate(batch.values, start=1):
        try:
            if value.get("type") == "thread":
                _keep_creation(saved, value)
                continue
            record = stored_record(saved.thread_id, value, saved.records + 1)
        except CorruptRecord as error:
            saved.gaps.append(Gap(batch.start, batch.end - batch.start, f"record {index} of the batch: {error}"))
            continue
        kept.append(value)
        saved.records += 1
        if isinstance(record, EventEnvelope | ThreadItemEvent):
            dated.append(record.timestamp)
    if kept:
        saved.batches.append(batch.array if len(kept) == len(batch.values) else dump(kept))


def _keep_creation(saved: _Saved, value: dict[str, Any]) -> None:
    text = dump(value)
    read_creation(saved.thread_id, text)
    saved.created = text
