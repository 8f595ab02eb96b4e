"""What a store finds in its place that another program left there."""

import os
from pathlib import Path

from roder_trio.errors import NotAStore

_RODER_FILES = ("events.jsonl", "metadata.json", "item_events.jsonl")


def refuse_roder_threads(base: Path, *folders: Path) -> None:
    """Refuse `base` if it, or one of `folders` in it, holds thread directories of Roder. Raises NotAStore, OSError."""
    for folder in (base, *folders):
        if folder.is_dir() and any(_is_roder_thread(child) for child in _folders_in(folder)):
            raise NotAStore(
                f"The folder {str(base)!r} holds thread directories of Roder; "
                "bring them into a store with stores.import_roder()."
            )


def _folders_in(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def _is_roder_thread(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _RODER_FILES)
