"""Where a store's files lie, and whether a folder may be one.

Rules of the room: paths alone, but for `prepare`, which blocks and runs in a worker thread.
"""

import os
from pathlib import Path

import attrs

from roder_trio.errors import NotAStore, StorageError
from roder_trio.stores._disk import Disk
from roder_trio.stores.jsonl.names import SUFFIX

NEW = ".new"
"""The suffix of a file that isn't whole yet; leftovers of a crash are removed when the store is opened."""

_RODER_FILES = ("events.jsonl", "metadata.json", "item_events.jsonl")


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
        for folder in (self.base, self.threads):
            if not folder.is_dir():
                continue
            if any(_is_roder_thread(child) for child in _folders_in(folder)):
                raise NotAStore(
                    f"The folder {str(self.base)!r} holds thread directories of Roder; "
                    "bring them into a store with stores.import_roder()."
                )

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


def _folders_in(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def _is_roder_thread(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _RODER_FILES)
