"""The converters between `schema` and JSON values: tagged unions, opaque values, upcasters.

Rules of the room: a member of a union has a tag under `type`; an unknown tag makes an opaque value where the union has
one; every encoder and decoder is generated once, here. Two converters read the same values: `quick` only says that one
is wrong, `converter` says where.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import attrs
from cattrs import Converter

from roder_trio.codec.hook import register_hooks
from roder_trio.codec.text import JsonObject, decode_object, encode_str, plain_object
from roder_trio.schema import event as events
from roder_trio.schema import item as items
from roder_trio.schema import transcript
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import (
    ExtensionStateRecord,
    GlobalScope,
    OpaqueRecord,
    Scope,
    StoredRecord,
    ThreadScope,
    TurnScope,
    WorkspaceScope,
)

converter = Converter(omit_if_default=True, detailed_validation=True)
quick = Converter(omit_if_default=True, detailed_validation=False)


class UnknownTagError(ValueError):
    """A tag of a newer version, in a place that has no opaque value of its own."""


@attrs.frozen
class Upcaster:
    """Turns the JSON of an older form into the present one, for values that `applies` accepts."""

    applies: Callable[[JsonObject], bool]
    rewrite: Callable[[JsonObject], JsonObject]


UPCASTERS: dict[str, tuple[Upcaster, ...]] = {}
"""By the tag that the old form carries (`thread_metadata` for metadata); tried in order, each at most once."""


# -- tagged unions -----------------------------------------------------------------------------------------------------

_Opaque = events.Unknown | transcript.OpaqueItem | OpaqueRecord
_OPAQUE_TYPES = get_args(_Opaque)
TAGGED: dict[type, Callable[[Any], JsonObject]] = {}


def snake_case(name: str) -> str:
    """`ToolCall` -> `tool_call`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def upcast(tag: str, value: JsonObject) -> JsonObject:
    """The present form of a value that was written under `tag`."""
    for upcaster in UPCASTERS.get(tag, ()):
        if upcaster.applies(value):
            value = upcaster.rewrite(value)
    return value


def tagging(tag: str, encode: Callable[[Any], JsonObject]) -> Callable[[Any], JsonObject]:
    """An encoder that puts `tag` before what `encode` makes."""
    return lambda value: {"type": tag, **encode(value)}


def encode_opaque(value: _Opaque) -> JsonObject:
    """The JSON of an opaque value, as it was read."""
    tag = value.kind if isinstance(value, events.Unknown) else value.type
    payload = plain_object(value.payload if isinstance(value, events.Unknown) else value.value)
    if "type" not in payload:
        return {"type": encode_str(tag), **payload}
    if payload["type"] != tag:
        raise ValueError(f"an opaque {tag!r} holds another type, {payload['type']!r}")
    return payload


def _register_union(union: Any, tags: Mapping[str, Any], opaque: type[_Opaque] | None) -> None:
    """Make `union` a tagged one; `opaque` is the class of the value that stands for an unknown tag."""
    for tag, cls in tags.items():
        TAGGED.setdefault(cls, tagging(tag, converter.get_unstructure_hook(cls)))
    encoders = {cls: TAGGED[cls] for cls in (*tags.values(), opaque) if cls is not None}

    def encode(value: object) -> JsonObject:
        member = encoders.get(type(value))
        if member is None:
            raise TypeError(f"{type(value).__name__} has no place here")
        return member(value)

    converter.register_unstructure_hook(union, encode)
    for either in (converter, quick):
        either.register_structure_hook(union, _union_decoder(either, tags, opaque))


def _union_decoder(
    reader: Converter, tags: Mapping[str, Any], opaque: type[_Opaque] | None
) -> Callable[[Any, Any], Any]:
    decoders = {tag: (cls, reader.get_structure_hook(cls)) for tag, cls in tags.items()}

    def decode(value: object, _: object) -> Any:
        found = decode_object(value)
        tag = found.get("type")
        if not isinstance(tag, str):
            raise TypeError("expected a `type`")
        if tag in UPCASTERS:
            found = upcast(tag, found)
            tag = found["type"]
        known = decoders.get(tag)
        if known is not None:
            return known[1](found, known[0])
        if opaque is None:
            raise UnknownTagError(f"unknown type {tag!r}")
        return opaque(tag, found)

    return decode


def _by_name(union: Any, *left_out: type) -> dict[str, Any]:
    return {snake_case(cls.__name__): cls for cls in get_args(union) if cls not in left_out}


def _register_unions() -> None:
    """From the innermost to the outermost, since an encoder is generated when it is first asked for."""
    TAGGED.update(dict.fromkeys(_OPAQUE_TYPES, encode_opaque))
    TAGGED[ThreadItemEvent] = lambda value: {"type": value.kind, **converter.unstructure(value, ThreadItemEvent)}
    transcript_tags = _by_name(transcript.TranscriptItem, transcript.OpaqueItem)
    _register_union(transcript.TranscriptItem, transcript_tags, transcript.OpaqueItem)
    for union in (items.ThreadItem, items.ItemDeltaValue, items.ItemEventKind):
        _register_union(union, _by_name(union), None)
    scopes = {"global": GlobalScope, "workspace": WorkspaceScope, "thread": ThreadScope, "turn": TurnScope}
    _register_union(Scope, scopes, None)
    kinds = {cls.kind: cls for cls in get_args(events.Event) if cls not in (ThreadItemEvent, events.Unknown)}
    kinds |= {cls.kind: ThreadItemEvent for cls in get_args(items.ItemEventKind)}
    _register_union(events.Event, kinds, events.Unknown)
    records = {"event": EventEnvelope, "item_event": ThreadItemEvent, "extension_state": ExtensionStateRecord}
    _register_union(StoredRecord, records, OpaqueRecord)


for _each in (converter, quick):
    register_hooks(_each)
_register_unions()
