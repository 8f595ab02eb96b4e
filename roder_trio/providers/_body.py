"""The body of a 200 answer as frames, or as one JSON object, whatever its content type claims.

No I/O. An event stream may come without its content type, so an unclear one is looked at before it is read.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.failure import FRAME_EXCERPT
from roder_trio.logic.redaction import Redactor
from roder_trio.logic.sse import Frame, SseDecoder
from roder_trio.providers._dialect import decode_json

MAX_JSON = 16 * 2**20

Kind = ProviderFailureKind

_LONGEST_MARK = len(b"\xef\xbb\xbfevent:")
_SSE_MARKS = (b"data", b"event", b":", b"id:", b"retry:")


@attrs.frozen
class Whole:
    """An answer that is one JSON object."""

    value: Mapping[str, Any]


Part = Frame | Whole | ProviderFailure
"""A failure is the last part."""


class Body:
    """Reads one body. `frames` counts what came out of it."""

    def __init__(self, content_type: str | None, redactor: Redactor) -> None:
        self.frames = 0
        self._redactor = redactor
        self._sse = SseDecoder()
        self._buffer = bytearray()
        kind = (content_type or "").partition(";")[0].strip().lower()
        self._mode = {"text/event-stream": "sse", "text/html": "html"}.get(kind, "unclear")

    def feed(self, data: bytes) -> list[Part]:
        """Take more bytes; return what they complete."""
        if self._mode == "unclear":
            self._buffer += data
            self._look(bytes(self._buffer), at_end=False)
            if self._mode == "sse":
                data = bytes(self._buffer)
        elif self._mode == "json":
            self._buffer += data
        if self._mode == "html":
            return [self._complaint("The answer is a page of HTML.", "html_answer", data.decode(errors="replace"))]
        if self._mode == "json" and len(self._buffer) > MAX_JSON:
            return [self._complaint(f"The answer is longer than {MAX_JSON} bytes.", "too_large", None)]
        return self._counted(self._sse.feed(data)) if self._mode == "sse" else []

    def eof(self, *, broken: bool = False) -> list[Part]:
        """Take the end; a body that broke off as JSON says nothing."""
        if self._mode == "unclear":
            self._look(bytes(self._buffer), at_end=True)
        if self._mode == "sse":
            return self._counted(self._sse.eof())
        text = self._buffer.decode(errors="replace").strip()
        if not text or broken:
            return []
        try:
            value = decode_json(text)
        except (ValueError, RecursionError):
            return [self._complaint("The answer is no JSON.", "bad_json", text)]
        self.frames += 1
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        return [Whole(value if isinstance(value, Mapping) else {"error": value})]

    def _look(self, head: bytes, *, at_end: bool) -> None:
        start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not start:
            # a server may say that it is alive by white space, for as long as it likes
            self._buffer.clear()
        if start.startswith(_SSE_MARKS):
            self._mode = "sse"
        elif start.lower().startswith((b"<!doctype", b"<html")):
            self._mode = "html"
        elif at_end or len(start) > _LONGEST_MARK or start.startswith((b"{", b"[")):
            self._mode = "json"

    def _counted(self, frames: list[Frame]) -> list[Part]:
        kept: list[Part] = [frame for frame in frames if frame.data.strip() or frame.event == "error"]
        self.frames += len(kept)
        return kept if self._sse.failure is None else [*kept, self._sse.failure]

    def _complaint(self, message: str, cause: str, text: str | None) -> ProviderFailure:
        excerpt = None if text is None else self._redactor.excerpt(text, FRAME_EXCERPT)
        return ProviderFailure(Kind.PROTOCOL, message, cause=cause, body_excerpt=excerpt)
