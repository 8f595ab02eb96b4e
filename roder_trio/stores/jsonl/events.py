"""Pages of a journal's events, each read from the batch where one before it ended.

Rules of the room: blocks, in a worker thread; a page reads the lines that it shows and one more piece at most. A mark
is a hint: its batch is read again and must be the one that was there. A torn tail ends the log and is left where it
is; what no crash explains is `CorruptRecord`.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from roder_trio.errors import CorruptRecord
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import ThreadId
from roder_trio.stores._batch import stored_record
from roder_trio.stores._disk import Disk
from roder_trio.stores._frame import Damage, read_batch, whole_batches
from roder_trio.stores.jsonl.pages import FIRST, PIECE, whole_lines
from roder_trio.stores.jsonl.replay import creation_end

MAX_MARKS = 16
"""Marks that are kept of a journal, the newest."""


@attrs.frozen
class Batch:
    """A batch of a journal: where its line begins, its number, the position of its first record, its records."""

    offset: int
    number: int
    position: int
    records: list[dict[str, Any]] = attrs.field(eq=False)
    ids: tuple[object, ...] = ()
    """What tells it from another one in its place."""

    @property
    def end(self) -> int:
        """The position of the record that follows."""
        return self.position + len(self.records)


class EventPages:
    """Reads pages of the journal of one thread, and remembers where they ended."""

    def __init__(self, disk: Disk, thread_id: ThreadId) -> None:
        self._disk = disk
        self._thread_id = thread_id
        self._marks: dict[int, Batch] = {}

    def forget(self) -> None:
        """Look for the next page from the beginning."""
        self._marks.clear()

    def read(self, path: Path, after: int, limit: int) -> list[EventEnvelope]:
        """At most `limit` envelopes with a seq above `after`, decoding no others. Raises CorruptRecord, OSError."""
        try:
            return self._page(path, after, limit)
        except Damage as damage:
            position = f"{path.name} line {damage.line}, offset {damage.offset}"
            raise CorruptRecord(self._thread_id, position, str(damage)) from damage

    def _page(self, path: Path, after: int, limit: int) -> list[EventEnvelope]:
        found: list[EventEnvelope] = []
        last: Batch | None = None
        for batch in self._from_mark(path, after):
            for position, value in enumerate(batch.records, start=batch.position):
                if _seq(value) <= after:
                    continue
                if len(found) == limit:
                    break
                record = stored_record(self._thread_id, value, position)
                assert isinstance(record, EventEnvelope)
                found.append(record)
                last = batch
            if len(found) == limit:
                break
        self._note(found, last)
        return found

    def _note(self, found: list[EventEnvelope], last: Batch | None) -> None:
        """Remember the batch of a page's last envelope, if none before that has a higher seq."""
        if last is None or not all(one.seq < two.seq for one, two in pairwise(found)):
            return
        seq = found[-1].seq
        self._marks.pop(seq, None)
        self._marks[seq] = attrs.evolve(last, records=[])
        if len(self._marks) > MAX_MARKS:
            del self._marks[next(iter(self._marks))]

    def _from_mark(self, path: Path, after: int) -> Iterator[Batch]:
        """The batches from the nearest one on that may hold an envelope with a seq above `after`."""
        fitting = [seq for seq in self._marks if seq <= after]
        mark = self._marks[max(fitting)] if fitting else None
        if mark is not None:
            batches = read_batches(self._disk, path, mark.offset, mark.number, mark.position)
            first = _next(batches)
            if first == mark:
                yield first
                yield from batches
                return
            self.forget()
        head = whole_lines(self._disk, path, 0, 2)
        if head is not None:
            begin = creation_end(self._thread_id, head, path.name)
            yield from read_batches(self._disk, path, begin, FIRST, 1)


def _next(batches: Iterator[Batch]) -> Batch | None:
    """The batch at a mark; None if the journal isn't what it was."""
    try:
        return next(batches, None)
    except Damage:
        return None


def _seq(value: dict[str, Any]) -> int:
    seq = value.get("seq", 0) if value.get("type") == "event" else 0
    return seq if type(seq) is int else 0


def read_batches(disk: Disk, path: Path, offset: int, number: int, position: int) -> Iterator[Batch]:
    """The batches of a journal from `offset` on, as they are asked for; that one has this number and first position.

    Raises Damage, OSError.
    """
    data, start = b"", 0
    while True:
        end = data.find(b"\n", start) + 1
        if not end:
            more = disk.read_from(path, offset + len(data) - start, max(PIECE, len(data)))
            if not more:
                break
            data, start = data[start:] + more, 0
            continue
        found = read_batch(data, start, end)
        if found is None:
            break
        if found[0] != number:
            raise Damage(number + 1, offset, f"batch {found[0]} stands where batch {number} belongs")
        batch = Batch(offset, number, position, found[1], _ids(found[1]))
        yield batch
        offset, number, position, start = offset + end - start, number + 1, batch.end, end
    if next(whole_batches(disk.read_from(path, offset, -1) or b""), None) is not None:
        raise Damage(number + 1, offset, "bytes that are no batch stand before a whole one")


def _ids(records: list[dict[str, Any]]) -> tuple[object, ...]:
    return tuple([record.get("event_id", record.get("record_id")) for record in records[-1:]])
