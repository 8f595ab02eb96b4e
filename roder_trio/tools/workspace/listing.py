"""The tool `list_files`, and how entries are shown page by page.

Rules of the room: blocking, in worker threads. A link that leads to a directory in the workspace is shown as one; what
lies outside is not looked at.
"""

import stat
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from roder_trio.errors import ToolError
from roder_trio.schema.tool import ToolSpec
from roder_trio.tools.workspace.page import MAX_LINES, call, page
from roder_trio.tools.workspace.paths import Spot, Workspace, status, telling
from roder_trio.tools.workspace.walk import Entry, Progress, children

LIST_FILES = ToolSpec(
    name="list_files",
    description="List what lies directly in a directory of the workspace, sorted; directories end with a slash.",
    parameters={
        "type": "object",
        "properties": {
            "path": {
                "type": "string",
                "minLength": 0,
                "description": "The directory, from the workspace's root; the root if left out.",
            },
            "offset": {"type": "integer", "minimum": 0, "description": "How many entries to pass over; 0 if left out."},
        },
        "additionalProperties": False,
    },
    effects={"read"},
)


@attrs.frozen
class Listing:
    """Entries below a spot, not empty, shown by name or by path; `tool` and `arguments` are the call that asked."""

    workspace: Workspace
    spot: Spot
    entries: Sequence[Entry]
    by_path: bool
    tool: str
    arguments: Mapping[str, Any]

    def page(self, offset: int) -> str:
        """Return a page from `offset` on, with the call for the next one. Raises ToolError if nothing is left."""
        total = len(self.entries)
        if offset >= total:
            raise ToolError(f"there are {total} entries, so none is left after {offset}: {self.spot.given}")
        shown = page([self._line(entry) for entry in self.entries[offset : offset + MAX_LINES]])
        last = offset + len(shown)
        if last == total:
            return "\n".join(shown)
        more = call(self.tool, **{**self.arguments, "offset": last})
        return "\n".join([*shown, f"[entries {offset + 1} to {last} of {total}; more: {more}]"])

    def _line(self, entry: Entry) -> str:
        place = self.spot.below(entry.parts)
        text = place.shown if self.by_path else place.shown.rpartition("/")[2]
        return text + "/" if entry.kind == "directory" or self._leads_to_directory(place, entry) else text

    def _leads_to_directory(self, place: Spot, entry: Entry) -> bool:
        if entry.kind != "link":
            return False
        try:
            target = self.workspace.locate(str(place.root.path.joinpath(*place.parts)))
            return stat.S_ISDIR(status(target).st_mode)
        except (ToolError, OSError):
            return False


def list_files(workspace: Workspace, arguments: Mapping[str, Any]) -> str:
    """Return a page of a directory's entries."""
    spot = workspace.locate(arguments.get("path", "."))
    with telling(spot.given):
        entries = children(spot, Progress())
    if not entries:
        return "[the directory is empty]"
    listing = Listing(workspace, spot, entries, by_path=False, tool=LIST_FILES.name, arguments=arguments)
    return listing.page(arguments.get("offset", 0))
