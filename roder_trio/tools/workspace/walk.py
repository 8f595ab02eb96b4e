"""The names in a directory and below it, in the order of their paths as text.

Rules of the room: blocking, in worker threads, which end when their call is cancelled: every 1,000 entries they look.
Links are named but not followed, `.git` is not entered, and what can't be read is passed over.
"""

import os
from collections.abc import Iterator
from typing import Literal

import attrs
import trio

from roder_trio.tools.workspace.paths import Spot, open_listing

LOOK_EVERY = 1_000

Kind = Literal["directory", "file", "link", "other"]


@attrs.frozen
class Entry:
    """A name in a directory, and what it names; `parts` lead to it from where the walk began."""

    parts: tuple[str, ...]
    kind: Kind

    @property
    def path(self) -> str:
        """The path from where the walk began; a directory's ends with a slash."""
        return "/".join(self.parts) + ("/" if self.kind == "directory" else "")


@attrs.define
class Progress:
    """Counts what a call has looked at, and ends its thread once the call was cancelled."""

    entries: int = 0

    def note(self) -> None:
        """Count one entry. Raises Cancelled."""
        self.entries += 1
        if self.entries % LOOK_EVERY == 0:
            trio.from_thread.check_cancelled()


def children(spot: Spot, progress: Progress, parts: tuple[str, ...] = ()) -> list[Entry]:
    """Return what lies directly in a directory, sorted by path. Raises OSError."""
    found = []
    with open_listing(spot) as listing, os.scandir(listing) as names:
        for name in names:
            progress.note()
            found.append(Entry((*parts, name.name), _kind(name)))
    return sorted(found, key=lambda entry: entry.path)


def walk(spot: Spot, progress: Progress, depth: int | None = None) -> Iterator[Entry]:
    """Yield what lies below a directory, sorted by path, at most `depth` names deep."""
    waiting = [Entry((), "directory")]
    while waiting:
        entry = waiting.pop()
        if entry.parts:
            yield entry
        if entry.kind == "directory" and (depth is None or len(entry.parts) < depth):
            waiting.extend(reversed(_entered(spot, entry, progress)))


def _entered(spot: Spot, entry: Entry, progress: Progress) -> list[Entry]:
    try:
        found = children(spot.below(entry.parts), progress, entry.parts)
    except OSError:
        if not entry.parts:
            raise
        return []
    return [child for child in found if child.parts[-1] != ".git"]


def _kind(name: "os.DirEntry[str]") -> Kind:
    if name.is_symlink():
        return "link"
    if name.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if name.is_file(follow_symlinks=False) else "other"
