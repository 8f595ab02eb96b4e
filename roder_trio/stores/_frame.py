"""The form of a journal and of an export: a header line, then one line for each batch, with number and checksum.

Rules of the room: pure, bytes in and values out. A batch counts only if its line ends, parses, and its checksum and
number fit. Bytes after the last good batch are a torn tail if no whole batch stands among them: a crash can leave
those. Anything else is damage, which no crash explains. An export says in its header that it ends with a batch without
records, so that one that was cut between two batches is known as well.
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from roder_trio import codec
from roder_trio.codec.text import dump
from roder_trio.errors import SchemaTooNew
from roder_trio.schema.ids import ThreadId

FORMAT = "roder_trio.thread"
VERSION = 1

_BATCH = re.compile(rb'\{"batch":([1-9][0-9]{0,18}),"crc":"([0-9a-f]{8})","records":(?=\[)')


class Damage(ValueError):
    """A journal that no crash explains, with the line (from 1) and byte offset of the trouble."""

    def __init__(self, line: int, offset: int, detail: str) -> None:
        super().__init__(detail)
        self.line = line
        self.offset = offset


@attrs.frozen
class Header:
    """The first line; `closed` if the last one is to be a batch without records."""

    thread_id: ThreadId
    closed: bool


@attrs.frozen
class Journal:
    """A journal as read: `batches` of records as JSON values, the first of them the creation.

    `end` is the offset after the last good batch, `tail` the number of torn bytes behind it.
    """

    thread_id: ThreadId
    batches: list[list[dict[str, Any]]]
    end: int
    tail: int


def encode_creation(metadata: bytes) -> bytes:
    """The record of the first batch, for a thread that is created with this encoded metadata."""
    return dump({"type": "thread"})[:-1] + b',"metadata":' + metadata + b"}"


def encode_header(thread_id: ThreadId, *, closed: bool = False) -> bytes:
    """The first line of a journal, or of an export, which is `closed` by a batch without records."""
    header = {"format": FORMAT, "version": VERSION, "thread_id": thread_id}
    return dump(header | {"closed": True} if closed else header) + b"\n"


def encode_batch(number: int, records: Sequence[bytes]) -> bytes:
    """One line for a batch of encoded records."""
    return encode_array(number, b"[" + b",".join(records) + b"]")


def encode_array(number: int, array: bytes) -> bytes:
    """One line for a batch whose records are the elements of a JSON array."""
    return b'{"batch":%d,"crc":"%08x","records":%b}\n' % (number, zlib.crc32(array), array)


def read_journal(data: bytes) -> Journal:
    """Read a whole journal. Raises Damage, SchemaTooNew."""
    thread_id = read_thread_id(data)
    position = data.find(b"\n") + 1
    batches: list[list[dict[str, Any]]] = []
    while position < len(data):
        following = data.find(b"\n", position) + 1
        found = read_batch(data, position, following) if following else None
        line = len(batches) + 2
        if found is None:
            refuse_whole_batch(data, position, line)
            break
        number, records = found
        if number != len(batches) + 1:
            raise Damage(line, position, f"batch {number} stands where batch {len(batches) + 1} belongs")
        batches.append(records)
        position = following
    if not batches:
        raise Damage(2, position, "the batch that created the thread is missing")
    return Journal(thread_id, batches, position, len(data) - position)


def read_thread_id(data: bytes) -> ThreadId:
    """The id of the thread whose journal this is, from its header. Raises Damage, SchemaTooNew."""
    return read_header(data).thread_id


def read_header(data: bytes) -> Header:
    """What the first line says. Raises Damage, SchemaTooNew."""
    try:
        header = codec.parse_json(data[: data.find(b"\n") + 1])
    except codec.DecodeError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT or type(header.get("version")) is not int:
        raise Damage(1, 0, "the header is no header of a thread")
    if header["version"] > VERSION:
        raise SchemaTooNew(
            f"A journal has version {header['version']}, this program reads up to {VERSION}; upgrade it."
        )
    thread_id = header.get("thread_id")
    if not isinstance(thread_id, str):
        raise Damage(1, 0, "the header names no thread")
    return Header(thread_id, closed=header.get("closed") is True)


def batch_array(data: bytes, start: int, end: int) -> tuple[int, bytes] | None:
    """The number of the batch whose line is `data[start:end]`, and the text of its records; None if it isn't whole."""
    head = _BATCH.match(data, start, end)
    if head is None or data[end - 2 : end] != b"}\n":
        return None
    array = data[head.end() : end - 2]
    return (int(head[1]), array) if zlib.crc32(array) == int(head[2], 16) else None


def read_batch(data: bytes, start: int, end: int) -> tuple[int, list[dict[str, Any]]] | None:
    """The number and records of the batch whose line is `data[start:end]`; None if it isn't whole."""
    found = batch_array(data, start, end)
    if found is None:
        return None
    try:
        records = codec.parse_json(found[1])
    except codec.DecodeError:
        return None
    whole = isinstance(records, list) and all(isinstance(record, dict) for record in records)
    return (found[0], records) if whole else None


def whole_batches(data: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """Where (start, end) whole batches stand from `start` on, whatever lies between them."""
    for head in _BATCH.finditer(data, start):
        end = data.find(b"\n", head.end()) + 1
        if end and read_batch(data, head.start(), end) is not None:
            yield head.start(), end


def refuse_whole_batch(data: bytes, start: int, line: int) -> None:
    """Raise Damage if a whole batch stands anywhere in what should be a torn tail."""
    if next(whole_batches(data, start), None) is not None:
        raise Damage(line, start, "bytes that are no batch stand before a whole one")
