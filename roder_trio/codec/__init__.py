"""The only converter between the data of `schema` and JSON."""

from roder_trio.codec.converter import UPCASTERS, Upcaster
from roder_trio.codec.record import (
    decode_metadata,
    decode_record,
    decode_usage,
    encode_metadata,
    encode_record,
    encode_usage,
    event_json,
    to_json,
)
from roder_trio.codec.text import DecodeError, check_json, parse_json

__all__ = [
    "UPCASTERS",
    "DecodeError",
    "Upcaster",
    "check_json",
    "decode_metadata",
    "decode_record",
    "decode_usage",
    "encode_metadata",
    "encode_record",
    "encode_usage",
    "event_json",
    "parse_json",
    "to_json",
]
