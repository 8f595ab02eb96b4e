"""The lock by which one runtime owns a folder or a database file.

Rules of the room: the operating system's lock decides, never the text in the file; the text is for the message of the
one who comes second. The lock ends with its process, however that ends. Child processes don't inherit it; a copy that
one has between its fork and its program, or for good without one, does not outlive the release.
"""

import contextlib
import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

from roder_trio.errors import StoreInUse

_HELD = (BlockingIOError, PermissionError)
"""What the systems raise for a lock that another has; all else tells of no holder."""

if sys.platform == "win32":
    import msvcrt

    # a locked byte can't be read by others, so the byte lies far behind the text
    _LOCKED_BYTE = 2**30

    def _try_lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def take_lock(path: Path) -> int:
    """Lock `path` and return the descriptor that holds the lock. Raises StoreInUse, OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            _try_lock(descriptor)
        except _HELD as error:
            raise StoreInUse(_holder(descriptor)) from error
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, _description())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def release_lock(descriptor: int) -> None:
    """Give back what `take_lock` returned. Raises OSError."""
    try:
        _unlock(descriptor)
    finally:
        os.close(descriptor)


def _description() -> bytes:
    holder = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "program": Path(sys.argv[0] if sys.argv else "").name,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return json.dumps(holder).encode() + b"\n"


def _holder(descriptor: int) -> str:
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        os.lseek(descriptor, 0, os.SEEK_SET)
        told = json.loads(os.read(descriptor, 4096))
        return f"process {told['pid']} ({told['program']}) on {told['host']} since {told['since']}"
    return "another process"
