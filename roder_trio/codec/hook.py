"""How values of each type are written as JSON and read from it: what `converter` is made of, unions apart.

Rules of the room: a field equal to its default isn't written; JSON and Python agree on the scalars, so reading one is
the same check as writing it. Every hook is made once per type, from the hooks of its parts.
"""

import enum
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, TypeAlias, get_args, get_origin

import attrs
from cattrs import Converter
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
from roder_trio.schema.event import StorageRepaired, ThreadCreated
from roder_trio.schema.ids import UnsetType
from roder_trio.schema.thread import StoreRepair, ThreadMetadata

Encoder: TypeAlias = Callable[[Any], Any]
Decoder: TypeAlias = Callable[[Any, Any], Any]
"""The second argument is the type, which a hook knows already."""

_SCALARS: dict[type, Callable[..., Any]] = {str: encode_str, int: encode_int, bool: encode_bool, float: encode_float}


def register_hooks(converter: Converter) -> None:
    """Teach `converter` all types but unions."""
    for cls, check in _SCALARS.items():
        converter.register_unstructure_hook(cls, check)
        converter.register_structure_hook(cls, check)
    converter.register_unstructure_hook(datetime, encode_datetime)
    converter.register_structure_hook(datetime, decode_datetime)
    converter.register_unstructure_hook(Decimal, str)
    converter.register_unstructure_hook_factory(_is_enum, _make_enum_encoder)
    converter.register_unstructure_hook_factory(attrs.has, _make_encoder)
    converter.register_structure_hook_factory(attrs.has, _make_decoder)
    converter.register_structure_hook_factory(_is_tuple, _make_tuple_decoder)
    converter.register_structure_hook_factory(_is_optional, _make_optional_decoder)
    converter.register_unstructure_hook_factory(_is_unset_union, _make_unset_encoder)
    converter.register_structure_hook_factory(_is_unset_union, _make_unset_decoder)


# -- classes -----------------------------------------------------------------------------------------------------------


def _overrides(cls: type, converter: Converter) -> dict[str, Any]:
    """What the field types alone can't say: JSON of any shape, and two fields whose classes `event` can't import."""
    found: dict[str, Any] = {}
    for field in attrs.fields(cls):
        if field.type is Any:
            found[field.name] = override(unstruct_hook=plain)
        elif field.type == Mapping[str, Any]:
            found[field.name] = override(unstruct_hook=plain_object, struct_hook=decode_object)
    if cls is ThreadCreated:
        found["metadata"] = _stands_for(ThreadMetadata, converter)
    if cls is StorageRepaired:
        found["repairs"] = _stands_for(tuple[StoreRepair, ...], converter)
    return found


def _stands_for(true_type: Any, converter: Converter) -> Any:
    return override(
        unstruct_hook=lambda value: converter.unstructure(value, true_type),
        struct_hook=lambda value, _: converter.structure(value, true_type),
    )


def _make_encoder(cls: type, converter: Converter) -> Encoder:
    generated: Callable[[Any], JsonObject] = make_dict_unstructure_fn(
        cls, converter, _cattrs_omit_if_default=True, **_overrides(cls, converter)
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


def _make_decoder(cls: type, converter: Converter) -> Decoder:
    return make_dict_structure_fn(cls, converter, **_overrides(cls, converter))


# -- the rest ----------------------------------------------------------------------------------------------------------


def _is_tuple(cls: Any) -> bool:
    return get_origin(cls) is tuple


def _make_tuple_decoder(cls: Any, converter: Converter) -> Decoder:
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


def _is_optional(cls: Any) -> bool:
    parts = get_args(cls)
    return len(parts) == 2 and type(None) in parts  # noqa: PLR2004 - a type, and None


def _make_optional_decoder(cls: Any, converter: Converter) -> Decoder:
    (kind,) = [part for part in get_args(cls) if part is not type(None)]
    decode = converter.get_structure_hook(kind)
    return lambda value, _: None if value is None else decode(value, kind)


def _is_unset_union(cls: Any) -> bool:
    return UnsetType in get_args(cls)


def _without_unset(cls: Any) -> Any:
    kept = [part for part in get_args(cls) if part is not UnsetType and part is not type(None)]
    return kept[0] | None if type(None) in get_args(cls) else kept[0]


def _make_unset_encoder(cls: Any, converter: Converter) -> Encoder:
    return converter.get_unstructure_hook(_without_unset(cls))


def _make_unset_decoder(cls: Any, converter: Converter) -> Decoder:
    kind = _without_unset(cls)
    decode = converter.get_structure_hook(kind)
    return lambda value, _: decode(value, kind)


def _is_enum(cls: Any) -> bool:
    return isinstance(cls, enum.EnumType)


def _make_enum_encoder(cls: Any) -> Encoder:
    def encode(value: object) -> Any:
        if not isinstance(value, cls):
            raise TypeError(f"expected {cls.__name__}, not {type(value).__name__}")
        return value.value

    return encode
