"""What is held of a command's output: the first and the last half of 1 MiB.

Rules of the room: no input or output. Nothing is cut inside a code point.
"""

from typing import Final

import attrs

MAX_BYTES: Final = 1024 * 1024
HALF: Final = MAX_BYTES // 2


def _is_inner(byte: int) -> bool:
    return byte & 0b1100_0000 == 0b1000_0000


def _begun(data: bytes) -> int:
    """How many bytes at the end are the beginning of a code point whose rest lacks."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if not _is_inner(byte):
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return back if length > back else 0
    return 0


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
        head = self._head[: len(self._head) - _begun(bytes(self._head[-4:]))]
        start = next((at for at in range(4) if not _is_inner(self._tail[at])), 0)
        left_out = self.dropped + len(self._head) - len(head) + start
        first, last = head.decode("utf-8", "replace"), self._tail[start:].decode("utf-8", "replace")
        return f"{first}\n[... {left_out} bytes left out ...]\n{last}"
