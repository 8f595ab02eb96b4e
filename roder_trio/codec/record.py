"""Records, metadata and output as JSON: what stores and the command line call.

Rules of the room: what can't be encoded without loss is `InvalidRecord`, what can't be read is `DecodeError`.
"""

import enum
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import attrs
import cattrs

from roder_trio.codec.converter import TAGGED, UnknownTagError, converter, encode_opaque, quick, tagging, upcast
from roder_trio.codec.text import REFUSALS, DecodeError, JsonObject, decode_object, dump, parse_json, plain
from roder_trio.errors import InvalidRecord
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import ExtensionStateRecord, OpaqueRecord, StoredRecord, ThreadMetadata
from roder_trio.schema.usage import TokenUsage

_encode_item_record = tagging("item_event", converter.get_unstructure_hook(ThreadItemEvent))
_RECORDS: dict[type, Callable[[Any], JsonObject]] = {
    EventEnvelope: TAGGED[EventEnvelope],
    ThreadItemEvent: _encode_item_record,
    ExtensionStateRecord: TAGGED[ExtensionStateRecord],
    OpaqueRecord: encode_opaque,
}
_read_record = quick.get_structure_hook(StoredRecord)
_METADATA_KEYS = frozenset(field.name for field in attrs.fields(ThreadMetadata))


def encode_record(record: StoredRecord) -> bytes:
    """One record as one line of JSON, without the newline. Raises InvalidRecord."""
    encode = _RECORDS.get(type(record))
    if encode is None:
        raise InvalidRecord(f"A record is an envelope, an item event or extension state, not {type(record).__name__}.")
    try:
        return dump(encode(record))
    except REFUSALS as error:
        raise InvalidRecord(f"A record of type {type(record).__name__} can't be encoded: {error}.") from error


def decode_record(data: bytes | str | JsonObject) -> StoredRecord:
    """Read a record; one of an unknown type is kept opaque. Raises DecodeError."""
    value = parse_json(data) if isinstance(data, (bytes, str)) else data
    try:
        record: StoredRecord = _read_record(value, StoredRecord)
    except (cattrs.BaseValidationError, *REFUSALS):
        return _read_again(value)
    return record


def _read_again(value: Any) -> StoredRecord:
    """Read what could not be read quickly: it is opaque as a whole, or the error tells where it is wrong."""
    try:
        record: StoredRecord = converter.structure(value, StoredRecord)  # type: ignore[arg-type]
    except (cattrs.BaseValidationError, *REFUSALS) as error:
        if _is_only_unknown(error):
            return OpaqueRecord(value["type"], value)
        raise _decode_error(error) from error
    return record


def encode_metadata(metadata: ThreadMetadata, previous: JsonObject | None = None) -> bytes:
    """Metadata as one line of JSON; keys of `previous` that this version doesn't know stay. Raises InvalidRecord."""
    kept = {key: value for key, value in (previous or {}).items() if key not in _METADATA_KEYS}
    try:
        return dump({**converter.unstructure(metadata, ThreadMetadata), **kept})
    except REFUSALS as error:
        raise InvalidRecord(f"The metadata of a thread can't be encoded: {error}.") from error


def decode_metadata(data: bytes | str | JsonObject) -> ThreadMetadata:
    """Read the metadata of a thread. Raises DecodeError."""
    value = parse_json(data) if isinstance(data, bytes | str) else data
    try:
        return converter.structure(upcast("thread_metadata", decode_object(value)), ThreadMetadata)
    except (cattrs.BaseValidationError, *REFUSALS) as error:
        raise _decode_error(error) from error


def encode_usage(usage: TokenUsage) -> bytes:
    """Counts of tokens as one line of JSON. Raises InvalidRecord."""
    try:
        return dump(converter.unstructure(usage, TokenUsage))
    except REFUSALS as error:
        raise InvalidRecord(f"Counts of tokens can't be encoded: {error}.") from error


def decode_usage(data: bytes | str) -> TokenUsage:
    """Read counts of tokens. Raises DecodeError."""
    try:
        return converter.structure(decode_object(parse_json(data)), TokenUsage)
    except (cattrs.BaseValidationError, *REFUSALS) as error:
        raise _decode_error(error) from error


def to_json(value: Any) -> Any:
    """Anything of `schema` as plain dicts, lists and scalars, for people and other programs. Raises InvalidRecord."""
    try:
        return _to_json(value)
    except REFUSALS as error:
        raise InvalidRecord(f"{type(value).__name__} can't be shown as JSON: {error}.") from error


def event_json(envelope: EventEnvelope) -> bytes:
    """One line for any envelope, those of live-only events included. Raises InvalidRecord."""
    return encode_record(envelope)


def _to_json(value: Any) -> Any:
    if type(value) in TAGGED:
        return TAGGED[type(value)](value)
    if isinstance(value, list | tuple):
        return [_to_json(part) for part in value]
    if attrs.has(type(value)) or isinstance(value, enum.Enum | datetime | Decimal):
        return converter.unstructure(value)
    return plain(value)


def _is_only_unknown(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_only_unknown(part) for part in error.exceptions)
    return isinstance(error, UnknownTagError)


def _decode_error(error: BaseException) -> DecodeError:
    return DecodeError("; ".join(cattrs.transform_error(error, format_exception=_explain)))


def _explain(error: BaseException, cls: Any) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
