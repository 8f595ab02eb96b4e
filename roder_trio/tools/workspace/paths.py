"""Where a path of the model leads, and how it is opened without leaving the workspace.

Rules of the room: all of it blocks and runs in worker threads. A path is judged first, links resolved, by its
components; then it is opened by walking from its root's descriptor, name by name, and no link is followed. So what is
swapped for a link after the judgement is refused. A refusal names the path as it was given, never where it led.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from roder_trio.errors import ToolError

MAX_PATH = 4096
_CLOSED = os.O_CLOEXEC | os.O_NOFOLLOW
_PASS = _CLOSED | os.O_DIRECTORY | getattr(os, "O_PATH", getattr(os, "O_SEARCH", os.O_RDONLY))
_SCAN = _CLOSED | os.O_DIRECTORY | os.O_RDONLY
_READ = _CLOSED | os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_KNOWN = {
    errno.ENOENT: "no such file or directory",
    errno.ENOTDIR: "not a directory",
    errno.EISDIR: "is a directory",
    errno.EACCES: "permission denied",
    errno.ELOOP: "outside the workspace",
}


@attrs.frozen
class Root:
    """A directory below which paths may lie: its path without links, and an open descriptor of it."""

    path: Path
    descriptor: int
    is_extra: bool = False


@attrs.frozen
class Spot:
    """A place below a root: the path as it was given, and the names that lead there from the root."""

    given: str
    root: Root
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        """The last name; "" for the root itself."""
        return self.parts[-1] if self.parts else ""

    @property
    def shown(self) -> str:
        """The path as results show it: from the workspace's root, or absolute in an extra root."""
        start = [] if not self.root.is_extra else [str(self.root.path).rstrip("/")]
        return "/".join([*start, *self.parts]).translate({10: "\\n", 13: "\\r"}) or "."

    def below(self, parts: Sequence[str]) -> "Spot":
        """The place that `parts` lead to from here."""
        spot = attrs.evolve(self, parts=(*self.parts, *parts))
        return attrs.evolve(spot, given=spot.shown)


@attrs.frozen
class Workspace:
    """The open roots of one call; the first one is the workspace, the others may be read only."""

    roots: tuple[Root, ...]

    def locate(self, given: str, *, for_writing: bool = False) -> Spot:
        """Judge a path. Raises ToolError if it leads outside the roots that count."""
        if len(given) > MAX_PATH:
            raise ToolError(f"the path is longer than {MAX_PATH} characters: {given[:80]}...")
        absolute = "/" + given.lstrip("/") if given.startswith("/") else given
        try:
            with telling(given):  # what vanishes meanwhile
                resolved = Path(os.path.realpath(self.roots[0].path / absolute))
        except ValueError:
            raise ToolError(f"not a path: {given!r}") from None
        for root in self.roots[:1] if for_writing else self.roots:
            if resolved.is_relative_to(root.path):
                return Spot(given, root, resolved.relative_to(root.path).parts)
        raise ToolError(f"outside the workspace: {given}")


@contextlib.contextmanager
def open_workspace(path: Path, extra: Sequence[Path] = ()) -> Iterator[Workspace]:
    """Resolve and open the roots of one call; an extra root that isn't there is left out. Raises ToolError."""
    with contextlib.ExitStack() as stack:
        try:
            roots = [stack.enter_context(_open_root(path, is_extra=False))]
        except OSError:
            raise ToolError("the workspace is no directory that can be opened") from None
        for other in extra:
            with contextlib.suppress(OSError):
                roots.append(stack.enter_context(_open_root(other, is_extra=True)))
        yield Workspace(tuple(roots))


@contextlib.contextmanager
def _open_root(path: Path, *, is_extra: bool) -> Iterator[Root]:
    resolved = Path(os.path.realpath(path, strict=True))
    top = os.open("/", _PASS)
    try:
        descriptor = _descend(top, resolved.parts[1:])
    finally:
        os.close(top)
    try:
        yield Root(resolved, descriptor, is_extra)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def telling(given: str) -> Iterator[None]:
    """Tell a failure of the operating system to the model, with the path as it was given."""
    try:
        yield
    except OSError as error:
        reason = _KNOWN.get(error.errno or 0) or (error.strerror or "input/output error").lower()
        raise ToolError(f"{reason}: {given}") from None


@contextlib.contextmanager
def open_directory(spot: Spot, *, create: bool = False) -> Iterator[int]:
    """Hold a descriptor of a directory for opening what lies in it, made with its parents if asked. Raises OSError."""
    descriptor = _descend(spot.root.descriptor, spot.parts, create=create)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_listing(spot: Spot) -> Iterator[int]:
    """Hold a descriptor of a directory for reading its names. Raises OSError."""
    with open_directory(spot) as directory:
        descriptor = os.open(".", _SCAN, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_parent(spot: Spot, *, create: bool = False) -> Iterator[int]:
    """Hold a descriptor of the directory in which a spot lies; the root lies in itself. Raises OSError."""
    with open_directory(attrs.evolve(spot, parts=spot.parts[:-1]), create=create) as descriptor:
        yield descriptor


def status(spot: Spot) -> os.stat_result:
    """What is known of a spot; a link that took its place is not followed. Raises OSError."""
    with open_parent(spot) as parent:
        return os.stat(spot.name or ".", dir_fd=parent, follow_symlinks=False)


@contextlib.contextmanager
def open_file(spot: Spot) -> Iterator[int]:
    """Hold a descriptor of a regular file for reading; nothing else is ever opened. Raises OSError, ToolError."""
    with open_parent(spot) as parent:
        require_regular(spot, os.stat(spot.name or ".", dir_fd=parent, follow_symlinks=False))
        descriptor = os.open(spot.name, _READ, dir_fd=parent)
    try:
        require_regular(spot, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def require_regular(spot: Spot, found: os.stat_result) -> None:
    """Raise for anything that is no regular file: OSError for what the system has a word for, else ToolError."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "")
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "")
    if not stat.S_ISREG(found.st_mode):
        raise ToolError(f"not a regular file: {spot.given}")


def _descend(start: int, parts: Sequence[str], *, create: bool = False) -> int:
    """Return a new descriptor of the directory that `parts` lead to from `start`."""
    current = os.dup(start)
    for name in parts:
        try:
            below = _step(current, name, create=create)
        finally:
            os.close(current)
        current = below
    return current


def _step(parent: int, name: str, *, create: bool) -> int:
    try:
        return os.open(name, _PASS, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, "") from None  # a link, which the check before had resolved
        raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    return os.open(name, _PASS, dir_fd=parent)
