"""The tools `write_file` and `edit`.

Rules of the room: blocking, in worker threads that finish what they began; until the new file takes the old one's
place a cancelled call changes nothing. The new file is written beside the old one, then renamed, so a reader sees one
or the other.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from typing import Any

import trio

from roder_trio.errors import ToolError
from roder_trio.schema.tool import ToolSpec
from roder_trio.tools.workspace.paths import Spot, Workspace, open_parent, require_regular, telling
from roder_trio.tools.workspace.read import read_bytes
from roder_trio.tools.workspace.replace import replaced

WRITE_FILE = ToolSpec(
    name="write_file",
    description="Write a whole text file of the workspace, new or in place of the old one; directories are made.",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, from the workspace's root."},
            "content": {"type": "string", "minLength": 0, "description": "All that the file will hold."},
        },
        "required": ["path", "content"],
        "additionalProperties": False,
    },
    effects={"write"},
    concurrency="exclusive",
)

EDIT = ToolSpec(
    name="edit",
    description="Replace pieces of a text file of the workspace, in order; all of them or, if one doesn't fit, none.",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, from the workspace's root."},
            "edits": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "old": {"type": "string", "minLength": 0, "description": "Text that the file holds once."},
                        "new": {"type": "string", "minLength": 0, "description": "What takes its place."},
                    },
                    "required": ["old", "new"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["path", "edits"],
        "additionalProperties": False,
    },
    effects={"write"},
    concurrency="exclusive",
)


def write_file(workspace: Workspace, arguments: Mapping[str, Any]) -> str:
    """Write a file and say how much."""
    spot = workspace.locate(arguments["path"], for_writing=True)
    data = _encoded(arguments["content"])
    with telling(spot.given):
        is_new = write_at(spot, data)
    return f"{'created' if is_new else 'replaced'} {spot.shown} ({len(data)} bytes)"


def edit(workspace: Workspace, arguments: Mapping[str, Any]) -> str:
    """Change a file and say so. Bytes that are no UTF-8 stay as they are."""
    spot = workspace.locate(arguments["path"], for_writing=True)
    edits = arguments["edits"]
    with telling(spot.given):
        text = read_bytes(spot).decode("utf-8", "surrogateescape")
        for number, change in enumerate(edits, 1):
            _encoded(change["new"])
            try:
                text = replaced(text, change["old"], change["new"])
            except ToolError as error:
                raise ToolError(f"edit {number} of {len(edits)}: {error}; nothing was changed: {spot.given}") from None
        write_at(spot, text.encode("utf-8", "surrogateescape"))
    return f"changed {spot.shown} ({len(edits)} {'edit' if len(edits) == 1 else 'edits'})"


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolError("the text holds half of a surrogate pair, which no file can hold") from None


def write_at(spot: Spot, data: bytes) -> bool:
    """Give a spot its content; True if there was no file. Raises OSError, ToolError, Cancelled."""
    if not spot.parts:
        raise ToolError(f"is a directory: {spot.given}")
    with open_parent(spot, create=True) as parent:
        mode = _mode(spot, parent)
        temporary = f".roder-{secrets.token_hex(8)}.tmp"
        try:
            _write(temporary, parent, data, mode)
            trio.from_thread.check_cancelled()
            os.rename(temporary, spot.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise
    return mode is None


def _mode(spot: Spot, parent: int) -> int | None:
    try:
        found = os.stat(spot.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    require_regular(spot, found)
    return stat.S_IMODE(found.st_mode)


def _write(name: str, parent: int, data: bytes, mode: int | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o666, dir_fd=parent), "wb") as file:
        file.write(data)
        if mode is not None:
            os.fchmod(file.fileno(), mode)
