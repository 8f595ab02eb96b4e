"""The converter between `schema` and JSON values: tagged unions, opaque values, upcasters.

Rules of the room: a member of a union has a tag under `type`; a field equal to its default isn't written; an
unknown tag makes an opaque value where the union has one; every encoder is generated once, here.
"""

import enum
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, get_args, get_origin

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from roder_trio.codec.text import (
    JsonObject,
    decode_datetime,
    decode_object,
    encode_bool,
    encode_datetime,
    encode_float,
    encode_int,
    encode_str,
    plain,
    plain_object,
)
from roder_trio.schema import event as events
from roder_trio.schema import item as items
from roder_trio.schema import transcript
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import UnsetType
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import (
    ExtensionStateRecord,
    GlobalScope,
    OpaqueRecord,
    Scope,
    StoredRecord,
    StoreRepair,
    ThreadMetadata,
    ThreadScope,
    TurnScope,
    WorkspaceScope,
)


class UnknownTagError(ValueError):
    """A tag of a newer version, in a place that has no opaque value of its own."""


@attrs.frozen
class Upcaster:
    """Turns the JSON of an older form into the present one, for values that `applies` accepts."""

    applies: Callable[[JsonObject], bool]
    rewrite: Callable[[JsonObject], JsonObject]


UPCASTERS: dict[str, tuple[Upcaster, ...]] = {}
"""By the tag that the old form carries (`thread_metadata` for metadata); tried in order, each at most once."""


# -- the converter -----------------------------------------------------------------------------------------------------

_SCALARS: dict[type, Callable[[Any], Any]] = {
    str: encode_str,
    int: encode_int,
    bool: encode_bool,
    float: encode_float,
}
converter = cattrs.Converter(omit_if_default=True, detailed_validation=True)


def _overrides(cls: type) -> dict[str, Any]:
    """What the field types alone can't say: JSON of any shape, and two fields whose classes `event` can't import."""
    found: dict[str, Any] = {}
    for field in attrs.fields(cls):
        if field.type is Any:
            found[field.name] = override(unstruct_hook=plain)
        elif field.type == Mapping[str, Any]:
            found[field.name] = override(unstruct_hook=plain_object, struct_hook=decode_object)
    if cls is events.ThreadCreated:
        found["metadata"] = _stands_for(ThreadMetadata)
    if cls is events.StorageRepaired:
        found["repairs"] = _stands_for(tuple[StoreRepair, ...])
    return found


def _stands_for(true_type: Any) -> Any:
    return override(
        unstruct_hook=lambda value: converter.unstructure(value, true_type),
        struct_hook=lambda value, _: converter.structure(value, true_type),
    )


def _make_encoder(cls: type) -> Callable[[Any], JsonObject]:
    generated: Callable[[Any], JsonObject] = make_dict_unstructure_fn(
        cls, converter, _cattrs_omit_if_default=True, **_overrides(cls)
    )
    # a default is found by ==, so False would pass for 0: these fields are checked by type before that
    checked = {f.name: f.type for f in attrs.fields(cls) if f.type in _SCALARS and f.default is not attrs.NOTHING}
    checked = {name: kind for name, kind in checked.items() if kind is not str}
    if not checked:
        return generated
    read = attrgetter(*checked)
    encoders = [_SCALARS[kind] for kind in checked.values() if kind is not None]

    def encode(value: Any) -> JsonObject:
        found = read(value)
        for encoder, part in zip(encoders, found if len(encoders) > 1 else (found,), strict=True):
            encoder(part)
        return generated(value)

    return encode


def _make_decoder(cls: type) -> Callable[[Any, Any], Any]:
    return make_dict_structure_fn(cls, converter, _cattrs_detailed_validation=True, **_overrides(cls))


def _make_tuple_decoder(cls: Any) -> Callable[[Any, Any], Any]:
    parts = get_args(cls)
    decoders = [(converter.get_structure_hook(part), part) for part in parts if part is not Ellipsis]
    decode, part = decoders[0]

    def decode_tuple(value: object, _: object) -> tuple[Any, ...]:
        return tuple([decode(element, part) for element in _list(value)])

    def decode_fixed(value: object, _: object) -> tuple[Any, ...]:
        elements = _list(value)
        if len(elements) != len(decoders):
            raise ValueError(f"expected {len(decoders)} elements, not {len(elements)}")
        return tuple([decode(element, part) for element, (decode, part) in zip(elements, decoders, strict=True)])

    return decode_tuple if Ellipsis in parts else decode_fixed


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, not {type(value).__name__}")
    return value


def _is_tuple(cls: Any) -> bool:
    return get_origin(cls) is tuple


def _is_unset_union(cls: Any) -> bool:
    return UnsetType in get_args(cls)


def _without_unset(cls: Any) -> Any:
    kept = [part for part in get_args(cls) if part is not UnsetType and part is not type(None)]
    return kept[0] | None if type(None) in get_args(cls) else kept[0]


def _make_unset_encoder(cls: Any) -> Callable[[Any], Any]:
    return converter.get_unstructure_hook(_without_unset(cls))


def _make_unset_decoder(cls: Any) -> Callable[[Any, Any], Any]:
    kind = _without_unset(cls)
    decode = converter.get_structure_hook(kind)
    return lambda value, _: decode(value, kind)


def _is_enum(cls: Any) -> bool:
    return isinstance(cls, enum.EnumType)


def _make_enum_encoder(cls: Any) -> Callable[[Any], Any]:
    def encode(value: object) -> Any:
        if not isinstance(value, cls):
            raise TypeError(f"expected {cls.__name__}, not {type(value).__name__}")
        return value.value

    return encode


def _one_way(encode: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """JSON and Python agree on the scalars, so reading one is the same check as writing it."""
    return lambda value, _: encode(value)


def _register_basics() -> None:
    for cls, encode in _SCALARS.items():
        converter.register_unstructure_hook(cls, encode)
        converter.register_structure_hook(cls, _one_way(encode))
    converter.register_unstructure_hook(datetime, encode_datetime)
    converter.register_structure_hook(datetime, decode_datetime)
    converter.register_unstructure_hook(Decimal, str)
    converter.register_unstructure_hook_factory(_is_enum, _make_enum_encoder)
    converter.register_unstructure_hook_factory(attrs.has, _make_encoder)
    converter.register_structure_hook_factory(attrs.has, _make_decoder)
    converter.register_structure_hook_factory(_is_tuple, _make_tuple_decoder)
    converter.register_unstructure_hook_factory(_is_unset_union, _make_unset_encoder)
    converter.register_structure_hook_factory(_is_unset_union, _make_unset_decoder)


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
    decoders = {tag: (cls, converter.get_structure_hook(cls)) for tag, cls in tags.items()}

    def encode(value: object) -> JsonObject:
        member = encoders.get(type(value))
        if member is None:
            raise TypeError(f"{type(value).__name__} has no place here")
        return member(value)

    def decode(value: object, _: object = None) -> Any:
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

    converter.register_unstructure_hook(union, encode)
    converter.register_structure_hook(union, decode)


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


_register_basics()
_register_unions()
