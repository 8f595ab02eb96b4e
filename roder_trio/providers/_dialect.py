"""What a dialect is made of: a request as bytes, and a decoder of frames. The transport knows dialects by this only.

No I/O in here. A decoder returns events, and a failure as the last of them where the stream breaks, so that what one
frame says before it fails is never lost.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from roder_trio.codec.text import DecodeError, parse_json
from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.failure import FRAME_EXCERPT
from roder_trio.logic.redaction import Redactor
from roder_trio.logic.sse import Frame
from roder_trio.logic.strict_json import MAX_DEPTH, is_deep
from roder_trio.schema.inference import InferenceEvent
from roder_trio.schema.usage import TokenUsage

Output = InferenceEvent | ProviderFailure

_SURROGATES = re.compile("[\ud800-\udfff]")
_HEADER = re.compile(r"[\x20-\x7e\x80-\xff]*")


@attrs.frozen(kw_only=True)
class Timeouts:
    """How long the parts of an exchange may take, in seconds; a stalled body has no clock here."""

    connect: float = 10.0
    write: float = 60.0
    pool: float = 30.0
    headers: float = 60.0
    """Until the headers and the first byte of the body have come, counted from the last sign of progress before."""


@attrs.frozen(kw_only=True)
class HttpRequest:
    """One request, ready to send."""

    method: str
    url: str
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    body: bytes = attrs.field(default=b"", repr=False)
    quiet: bool = False
    """Whether the URL's query is nothing for a log."""
    limit_headers: Mapping[str, str] = attrs.field(factory=dict)
    """Headers of an answer that mean the same as usual ones, by their names."""


class Decoder(Protocol):
    """Reads one answer. After a `Completed` or a failure it returns nothing more."""

    @property
    def patience(self) -> float | None:
        """Seconds to wait for a further frame before `eof`; None as long as it takes."""

    def feed(self, frame: Frame) -> list[Output]:
        """Take one frame."""

    def whole(self, value: Mapping[str, Any]) -> list[Output]:
        """Take an answer that came as one JSON object."""

    def eof(self) -> list[Output]:
        """Take the end of the stream; the last output is `Completed` or a failure."""

    def settle(self) -> TokenUsage | None:
        """Return the newest running total that was decoded; None if nothing is known."""


def encode_json(value: object) -> bytes:
    """Return compact JSON in the given key order. Raises ProviderFailure for numbers that JSON hasn't."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
    except (ValueError, TypeError) as error:
        message = f"The request can't be written as JSON: {error}."
        raise ProviderFailure(ProviderFailureKind.INVALID_REQUEST, message, cause="bad_request") from None
    return _SURROGATES.sub("\ufffd", text).encode()


def decode_json(text: str | bytes) -> Any:
    """Return parsed JSON, integers of any size included; numbers that JSON hasn't become None.

    Raises ValueError, also for what nests too deep to be stored.
    """
    try:
        try:
            value = parse_json(text)
        except DecodeError:
            # a lone half of a surrogate pair is legal in an escape, and can't be stored
            value = _storable(json.loads(text, parse_constant=lambda _: None))
    except RecursionError:
        raise ValueError("the JSON nests too deep") from None
    if is_deep(text, value):
        raise ValueError(f"the JSON nests deeper than {MAX_DEPTH} levels")
    return value


def parse_frame(frame: Frame, redactor: Redactor) -> Any:
    """Return the JSON of a frame, or the failure that it is none."""
    try:
        return decode_json(frame.data)
    except (ValueError, RecursionError):
        excerpt = redactor.excerpt(frame.data, FRAME_EXCERPT)
    if frame.tail:
        return ProviderFailure(
            ProviderFailureKind.STREAM_INTERRUPTED,
            "The stream ended inside an event.",
            cause="truncated",
            body_excerpt=excerpt,
        )
    message = "The stream holds an event that is no JSON."
    return ProviderFailure(ProviderFailureKind.PROTOCOL, message, cause="bad_json", body_excerpt=excerpt)


def is_told(frame: Frame, value: Any) -> bool:
    """Whether a frame is an error by its name; one that is cut off says nothing. `value` is that of `parse_frame`."""
    return frame.event == "error" and not (frame.tail and isinstance(value, ProviderFailure))


def join_url(base_url: str, path: str) -> str:
    """Return `path` below `base_url`; a query of the base stays, behind that of the path."""
    base, _, query = base_url.partition("?")
    joined = f"{base.rstrip('/')}/{path.lstrip('/')}"
    return f"{joined}{'&' if '?' in path else '?'}{query}" if query else joined


def inner(value: Any, name: str | int) -> Any:
    """Return what a JSON value holds under a name, or at a place; None if it has no such thing."""
    if isinstance(name, int):
        return value[name] if isinstance(value, list) and len(value) > name else None
    return value.get(name) if isinstance(value, Mapping) else None


def text_of(value: Any) -> str:
    """Return a JSON value that is a text; "" for all else."""
    return value if isinstance(value, str) else ""


def sorted_schema(value: Any) -> Any:
    """Return a schema with its keys in one order, so that equal schemas give equal bytes."""
    if isinstance(value, Mapping):
        return {name: sorted_schema(value[name]) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [sorted_schema(part) for part in value]
    return value


def is_strict(schema: Any) -> bool:
    """Whether every object in `schema` is closed and requires all its properties."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if schema.get("type") == "object" or isinstance(properties, Mapping):
            names = set(properties) if isinstance(properties, Mapping) else set()
            if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != names:
                return False
        return all(is_strict(part) for part in schema.values())
    return all(is_strict(part) for part in schema) if isinstance(schema, list | tuple) else True


def unsupported(dialect: str, what: str) -> ProviderFailure:
    """Return the failure of a request that a dialect can't express."""
    message = f"The {dialect} dialect has no {what} here; leave it out or use another engine."
    return ProviderFailure(ProviderFailureKind.INVALID_REQUEST, message, cause="unsupported")


def header_value(value: str) -> str | None:
    """Return a value that can be sent as a header, without white space around it; None if it can't."""
    value = value.strip()
    return value if value and value.isascii() and _HEADER.fullmatch(value) else None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, list):
        return [_storable(part) for part in value]
    if isinstance(value, dict):
        return {_storable(name): _storable(part) for name, part in value.items()}
    return value
