"""What the person types, line by line.

A read blocks in a worker thread of its own, so that nothing else waits for it. One task reads at a time. A cancelled
read leaves its thread behind, which may still take one line: after it nothing more is read.
"""

import os
import sys

import trio

if sys.platform != "win32":
    import termios

SIZE = 64 * 1024


class Keyboard:
    """Reads lines from the file descriptor `fd`."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._held = b""

    async def line(self) -> str | None:
        """Return the next line without its end; None at the end of the input. Raises OSError."""
        while b"\n" not in self._held:
            chunk = await trio.to_thread.run_sync(os.read, self._fd, SIZE, abandon_on_cancel=True)
            if not chunk:
                rest, self._held = self._held, b""
                return _text(rest) if rest else None
            self._held += chunk
        await trio.lowlevel.checkpoint()
        line, _, self._held = self._held.partition(b"\n")
        return _text(line)

    def forget(self) -> None:
        """Drop what was typed before now, if this is a terminal: it is no answer to a question that comes now."""
        if sys.platform != "win32" and os.isatty(self._fd):
            self._held = b""
            termios.tcflush(self._fd, termios.TCIFLUSH)


def is_attended() -> bool:
    """Tell whether somebody can read a question and answer it: stdin and stderr are a terminal."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
