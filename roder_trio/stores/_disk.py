"""What journals and exports ask of the operating system, each call one step that a crash may come before or after.

Rules of the room: every method blocks and runs in a worker thread; nothing is buffered in the process; symbolic links
are not followed. Tests put a faulty disk in its place.
"""

import os
import stat
import sys
from pathlib import Path

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class Disk:
    """The real one. With `power`, `sync` and `sync_directory` reach the medium; without, they do nothing."""

    def __init__(self, *, power: bool) -> None:
        self._power = power

    def read(self, path: Path) -> bytes | None:
        """The bytes of a file; None if there is none."""
        try:
            descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read()

    def read_from(self, path: Path, offset: int, size: int) -> bytes | None:
        """At most `size` bytes of a file from `offset` on; None if there is no file."""
        try:
            descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            file.seek(offset)
            return file.read(size)

    def stat(self, path: Path) -> os.stat_result | None:
        """What is known of a regular file; None if there is none."""
        try:
            found = path.lstat()
        except FileNotFoundError:
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def open(self, path: Path) -> int:
        """Open an existing file for writing. Raises FileNotFoundError."""
        return os.open(path, os.O_WRONLY | _NO_FOLLOW)

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`."""
        os.lseek(descriptor, offset, os.SEEK_SET)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut an open file."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Wait until an open file's data would survive a loss of power."""
        if not self._power:
            return
        if sys.platform == "darwin":
            import fcntl  # noqa: PLC0415  # not on every system

            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(descriptor)
        else:
            os.fsync(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Wait until the names in a directory would survive a loss of power."""
        if not self._power or sys.platform == "win32":
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def create(self, path: Path) -> int:
        """Open a file that only its owner reads, empty."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_FOLLOW, 0o600)

    def write_new(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        """Make the file `path` hold `data` and nothing else."""
        descriptor = self.create(path)
        try:
            self.write(descriptor, data, 0)
            if sync:
                self.sync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its other name, in one step."""
        source.replace(target)

    def remove(self, path: Path) -> bool:
        """Remove a file; False if there is none."""
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def make_directory(self, path: Path) -> None:
        """Make a directory that only its owner enters, with its parents."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
