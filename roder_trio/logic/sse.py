"""Server-sent events: bytes in, frames out.

Pure. Lines are split as bytes and decoded one by one, so that no cut of the stream changes a frame. Cost is linear in
the bytes, however small the pieces are.
"""

import attrs

from roder_trio.errors import ProviderFailure, ProviderFailureKind

MAX_BYTES = 8 * 2**20
"""Of one line, and of the data of one event."""

_BOM = b"\xef\xbb\xbf"


@attrs.frozen
class Frame:
    """One event. `tail` says that the stream ended before the blank line that should end it."""

    event: str | None
    data: str
    tail: bool = False


class SseDecoder:
    """Turns the bytes of one stream into frames.

    `comments` counts comment lines, which say that the server is alive; `bad_bytes` the places that were no UTF-8.
    `failure` is set when a line or an event is too large; nothing is read after that.
    """

    def __init__(self) -> None:
        self.failure: ProviderFailure | None = None
        self.comments = 0
        self.bad_bytes = 0
        self._line = bytearray()
        self._held_cr = False
        self._first_line = True
        self._event: str | None = None
        self._data: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Take more bytes; return the frames that they complete."""
        frames: list[Frame] = []
        if self.failure is not None:
            return frames
        if self._held_cr and data:
            self._held_cr = False
            self._end_line(frames)
            data = data.removeprefix(b"\n")
        pieces = data.splitlines(keepends=True)
        for position, piece in enumerate(pieces):
            self._grow(piece.rstrip(b"\r\n"))
            if self.failure is not None:
                return frames
            if piece.endswith(b"\r") and position == len(pieces) - 1:
                self._held_cr = True
            elif piece.endswith((b"\n", b"\r")):
                self._end_line(frames)
        return frames

    def eof(self) -> list[Frame]:
        """Take the stream's end; return the event that was still open, if it holds anything."""
        frames: list[Frame] = []
        if self.failure is not None:
            return frames
        if self._held_cr or self._line:
            self._held_cr = False
            self._end_line(frames)
        if "".join(self._data).strip():
            self._dispatch(frames, tail=True)
        return frames

    def _grow(self, body: bytes) -> None:
        self._line += body
        if len(self._line) > MAX_BYTES:
            self.failure = _too_large("A line")

    def _end_line(self, frames: list[Frame]) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch(frames)
        elif line.startswith(b":"):
            self.comments += 1
        else:
            self._field(line)

    def _field(self, line: bytes) -> None:
        name, _, value = self._decode(line).partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._size += len(line)
            if self._size > MAX_BYTES:
                self.failure = _too_large("An event")
            self._data.append(value)

    def _decode(self, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            text = line.decode(errors="replace")
            self.bad_bytes += text.count("\ufffd") - line.count("\ufffd".encode())
            return text

    def _dispatch(self, frames: list[Frame], *, tail: bool = False) -> None:
        if self._data:
            frames.append(Frame(self._event or None, "\n".join(self._data), tail))
        self._event = None
        self._data = []
        self._size = 0


def _too_large(what: str) -> ProviderFailure:
    return ProviderFailure(
        ProviderFailureKind.PROTOCOL, f"{what} of the stream is longer than {MAX_BYTES} bytes.", cause="too_large"
    )
