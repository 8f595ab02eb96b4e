"""What is held of a command's output: the first and the last half of 1 MiB.

Rules of the room: no input or output. Nothing is cut inside a code point.
"""

import codecs
from typing import Final

import attrs

MAX_BYTES: Final = 1024 * 1024
HALF: Final = MAX_BYTES // 2
_INNER: Final = bytes(range(0x80, 0xC0))
_MAX_INNER: Final = 3


@attrs.define
class Output:
    """Bytes as they come; what lies between the two halves is counted and dropped."""

    _head: bytearray = attrs.field(factory=bytearray, init=False)
    _tail: bytearray = attrs.field(factory=bytearray, init=False)
    dropped: int = attrs.field(default=0, init=False)

    @property
    def held(self) -> int:
        """How many bytes are held."""
        return len(self._head) + len(self._tail)

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        room = HALF - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        surplus = len(self._tail) - HALF
        if surplus > 0:
            del self._tail[:surplus]
            self.dropped += surplus

    def text(self) -> str:
        """Return what is held as text; bytes that are no UTF-8 are replaced."""
        if not self.dropped:
            return (self._head + self._tail).decode("utf-8", "replace")
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        first = decoder.decode(bytes(self._head))  # keeps back the beginning of a code point
        edge = bytes(self._tail[:_MAX_INNER])
        cut = len(edge) - len(edge.lstrip(_INNER))
        left_out = self.dropped + len(decoder.getstate()[0]) + cut
        return f"{first}\n[... {left_out} bytes left out ...]\n{self._tail[cut:].decode('utf-8', 'replace')}"
