"""What the bytes of a journal say of its thread.

Rules of the room: pure; what can't be read is `CorruptRecord`, with the file, line and offset of bytes that are no
batch, or the position of a record (1, 2, 3 over the log, the creation not counted) that is none of this thread.
"""

from typing import Any

import attrs

from roder_trio import codec
from roder_trio.errors import CorruptRecord
from roder_trio.logic.thread.metadata import MetadataFold
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import StoredRecord, ThreadMetadata
from roder_trio.stores._batch import record_id, stored_record
from roder_trio.stores._frame import Damage, Journal, read_journal


@attrs.frozen(eq=False)
class Replay:
    """A whole journal: its creation, its log, the fold of its metadata, the ids that it holds.

    `end` is the offset after the last of `batches`, `tail` the number of torn bytes behind it.
    """

    created: ThreadMetadata
    records: list[StoredRecord]
    fold: MetadataFold
    ids: set[str]
    batches: int
    end: int
    tail: int


def replay(thread_id: ThreadId, data: bytes, file: str) -> Replay:
    """Read the journal of a thread; `file` is what messages call it. Raises CorruptRecord, SchemaTooNew."""
    journal = _parse(thread_id, data, file)
    created = _created(thread_id, journal, file)
    fold = MetadataFold(created)
    records: list[StoredRecord] = []
    ids: set[str] = set()
    for value in _values(journal):
        record = stored_record(thread_id, value, len(records) + 1)
        records.append(record)
        fold.absorb(record)
        ids.add(record_id(record))
    return Replay(created, records, fold, ids, len(journal.batches), journal.end, journal.tail)


def creation_end(thread_id: ThreadId, head: bytes, file: str) -> int:
    """Where the creation of a journal ends whose first lines are in `head`. Raises as `replay`."""
    end = head.find(b"\n", head.find(b"\n") + 1) + 1
    journal = _parse(thread_id, head[:end] or head, file)
    _created(thread_id, journal, file)
    return journal.end


def _values(journal: Journal) -> list[dict[str, Any]]:
    return [value for batch in journal.batches[1:] for value in batch]


def _parse(thread_id: ThreadId, data: bytes, file: str) -> Journal:
    try:
        journal = read_journal(data)
    except Damage as damage:
        position = f"{file} line {damage.line}, offset {damage.offset}"
        raise CorruptRecord(thread_id, position, str(damage)) from damage
    if journal.thread_id != thread_id:
        raise CorruptRecord(thread_id, f"{file} line 1", f"it is of thread {journal.thread_id!r}")
    return journal


def _created(thread_id: ThreadId, journal: Journal, file: str) -> ThreadMetadata:
    position = f"{file} line 2"
    batch = journal.batches[0]
    if len(batch) != 1 or batch[0].get("type") != "thread":
        raise CorruptRecord(thread_id, position, "the first batch is not the creation of a thread")
    try:
        created = codec.decode_metadata(batch[0].get("metadata", {}))
    except codec.DecodeError as error:
        raise CorruptRecord(thread_id, position, str(error)) from error
    if created.thread_id != thread_id:
        raise CorruptRecord(thread_id, position, f"it creates {created.thread_id!r}")
    return created
