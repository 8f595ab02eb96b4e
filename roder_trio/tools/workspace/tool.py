"""The workspace tools as tools: blocking work in a worker thread, its failures as error results.

Rules of the room: reading is abandoned by a cancelled call, and its thread ends at its next look; writing is waited
for, so that a call that ended has done all or nothing. The threads have a limit of their own.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import trio

from roder_trio.errors import ToolError
from roder_trio.ports import Tool
from roder_trio.schema.tool import ToolContext, ToolOutput, ToolSpec
from roder_trio.tools.workspace.listing import LIST_FILES, list_files
from roder_trio.tools.workspace.matcher import OVERRUN, SECONDS
from roder_trio.tools.workspace.paths import Workspace, open_workspace
from roder_trio.tools.workspace.read import READ_FILE, read_file
from roder_trio.tools.workspace.search import GLOB, GREP, glob, grep
from roder_trio.tools.workspace.write import EDIT, WRITE_FILE, edit, write_file

THREADS = 16
READ_ONLY = frozenset({"read"})
NO_WORKSPACE = "no workspace"
Work = Callable[[Workspace, Mapping[str, Any]], str]

_limiter = trio.lowlevel.RunVar[trio.CapacityLimiter]("roder_trio_workspace_threads")


def threads() -> trio.CapacityLimiter:
    """Return the limit of file work in this run of trio."""
    try:
        return _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(THREADS)
        _limiter.set(limiter)
        return limiter


@attrs.frozen(eq=False)
class WorkspaceTool(Tool):
    """A tool whose `work` gets the open workspace; `seconds` is what one call may take."""

    spec: ToolSpec
    work: Work
    extra: tuple[Path, ...]
    seconds: float = math.inf

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolOutput:
        """Run in a worker thread. Cancelled, a write is finished or undone first; a read leaves its thread behind."""
        if context.workspace is None:
            await trio.lowlevel.checkpoint()
            return ToolOutput(NO_WORKSPACE, is_error=True)
        with trio.move_on_after(self.seconds):
            return await trio.to_thread.run_sync(
                self._perform,
                context.workspace,
                arguments,
                abandon_on_cancel=self.spec.effects == READ_ONLY,
                limiter=threads(),
            )
        return ToolOutput(OVERRUN, is_error=True)

    def _perform(self, path: Path, arguments: Mapping[str, Any]) -> ToolOutput:
        try:
            with open_workspace(path, self.extra) as workspace:
                return ToolOutput(_storable(self.work(workspace, arguments)))
        except ToolError as error:
            return ToolOutput(_storable(str(error)), is_error=True)


def _storable(text: str) -> str:
    """Return a text without the half surrogates that names of files and arguments may hold."""
    return text.encode("utf-8", "replace").decode()


def workspace_tools(extra_read_roots: Iterable[str | os.PathLike[str]] = ()) -> tuple[Tool, ...]:
    """Return `read_file`, `list_files`, `glob`, `grep`, `write_file` and `edit`, for the workspace of each turn.

    The directories of `extra_read_roots` may be read as well, by absolute paths; one that isn't there at the time of
    a call doesn't count. Raises ValueError for one that is no absolute path.
    """
    if isinstance(extra_read_roots, str | os.PathLike):
        raise ValueError("extra_read_roots must be paths, not one; the workspace itself is named by the thread")
    extra = tuple(Path(root) for root in extra_read_roots)
    for root in extra:
        if not root.is_absolute():
            raise ValueError(f"extra_read_roots must be absolute paths, not {str(root)!r}")
    return (
        WorkspaceTool(READ_FILE, read_file, extra),
        WorkspaceTool(LIST_FILES, list_files, extra),
        WorkspaceTool(GLOB, glob, extra),
        WorkspaceTool(GREP, grep, extra, SECONDS),
        WorkspaceTool(WRITE_FILE, write_file, extra),
        WorkspaceTool(EDIT, edit, extra),
    )
