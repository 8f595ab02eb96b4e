"""Where a store's files lie, and whether a folder may be one.

Rules of the room: paths alone, but for `prepare`, which blocks and runs in a worker thread.
"""

from pathlib import Path

import attrs

from roder_trio.errors import StorageError
from roder_trio.stores._disk import Disk
from roder_trio.stores._foreign import refuse_roder_threads
from roder_trio.stores.jsonl.names import SUFFIX

NEW = ".new"
"""The suffix of a file that isn't whole yet; leftovers of a crash are removed when the store is opened."""


@attrs.frozen
class Layout:
    """The paths of a store in the folder `base`."""

    base: Path

    @property
    def threads(self) -> Path:
        """The folder of active threads."""
        return self.base / "threads"

    @property
    def archived(self) -> Path:
        """The folder of archived threads."""
        return self.base / "archived"

    @property
    def torn(self) -> Path:
        """The folder of torn tails."""
        return self.base / "torn"

    @property
    def lock(self) -> Path:
        """The file that the owner locks."""
        return self.base / "lock"

    @property
    def index(self) -> Path:
        """The cache of metadata."""
        return self.base / "index.json"

    def journal(self, name: str, *, archived: bool = False) -> Path:
        """The journal of the thread whose file name is `name`."""
        return (self.archived if archived else self.threads) / (name + SUFFIX)

    def check(self) -> None:
        """Check that the folder, if it exists, holds nothing else. Raises StorageError, NotAStore."""
        if self.base.exists() and not self.base.is_dir():
            raise StorageError(f"The store's folder {str(self.base)!r} is a file; give the path of a folder.")
        refuse_roder_threads(self.base, self.threads)

    def prepare(self, disk: Disk) -> None:
        """Make the folders."""
        for folder in (self.base, self.threads, self.archived, self.torn):
            disk.make_directory(folder)
        disk.sync_directory(self.base)

    def clean(self, disk: Disk) -> None:
        """Remove what a crash left half made; the store must be locked."""
        for folder in (self.base, self.threads):
            for leftover in folder.glob("*" + NEW):
                disk.remove(leftover)
