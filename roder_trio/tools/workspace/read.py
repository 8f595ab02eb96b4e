"""The tool `read_file`, and what counts as a text file.

Rules of the room: blocking, in worker threads. Text is UTF-8, other bytes are replaced; a file of more than
10 MiB, or with a NUL near its beginning, is no text.
"""

import os
from collections.abc import Mapping
from typing import Any

from roder_trio.errors import ToolError
from roder_trio.schema.tool import ToolSpec
from roder_trio.tools.workspace.page import MAX_LINES, call, page
from roder_trio.tools.workspace.paths import Spot, Workspace, open_file, telling

MAX_BYTES = 10 * 1024 * 1024
NUL_WITHIN = 8 * 1024

READ_FILE = ToolSpec(
    name="read_file",
    description="Read a text file of the workspace. Lines come numbered; a longer file names the call that goes on.",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, from the workspace's root."},
            "start_line": {"type": "integer", "minimum": 1, "description": "The first line to show; 1 if left out."},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_LINES,
                "description": "How many lines to show at most; 200 if left out.",
            },
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    effects={"read"},
)


def read_bytes(spot: Spot) -> bytes:
    """Return the bytes of a regular file that can be text. Raises ToolError, OSError."""
    with open_file(spot) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ToolError(f"larger than 10 MiB: {spot.given}")
    if b"\0" in data[:NUL_WITHIN]:
        raise ToolError(f"a binary file: {spot.given}")
    return data


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without their ends."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def read_file(workspace: Workspace, arguments: Mapping[str, Any]) -> str:
    """Return a page of numbered lines."""
    spot = workspace.locate(arguments["path"])
    first = max(1, arguments.get("start_line", 1))
    limit = min(max(1, arguments.get("limit", MAX_LINES)), MAX_LINES)
    with telling(spot.given):
        lines = lines_of(read_bytes(spot).decode("utf-8", "replace"))
    if not lines:
        return "[the file is empty]"
    if first > len(lines):
        raise ToolError(f"the file has {len(lines)} lines, so there is no line {first}: {spot.given}")
    numbered = [f"{number}\t{line}" for number, line in enumerate(lines[first - 1 : first - 1 + limit], first)]
    shown = page(numbered)
    last = first - 1 + len(shown)
    if last == len(lines):
        return "\n".join(shown)
    keep = {} if limit == MAX_LINES else {"limit": limit}
    more = call("read_file", path=spot.given, start_line=last + 1, **keep)
    return "\n".join([*shown, f"[lines {first} to {last} of {len(lines)}; more: {more}]"])
