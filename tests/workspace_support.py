"""What the tests of the workspace tools and of the shell share: a call of a tool, as the runtime makes it."""

from pathlib import Path
from typing import Any

import attrs

from roder_trio.ports import Tool
from roder_trio.schema.tool import ToolContext, ToolOutput
from roder_trio.tools.workspace import workspace_tools


def context(workspace: Path | None, deadline: float | None = None) -> ToolContext:
    return ToolContext(thread_id="t", turn_id="u", call_id="c", workspace=workspace, deadline=deadline)


@attrs.frozen
class Desk:
    """The workspace tools at a workspace."""

    root: Path
    tools: dict[str, Tool]

    async def run(self, name: str, **arguments: Any) -> ToolOutput:
        return await self.tools[name].run(context(self.root), arguments)

    async def text(self, name: str, **arguments: Any) -> str:
        """The text of a call that must succeed."""
        output = await self.run(name, **arguments)
        assert not output.is_error, output.text
        return output.text

    async def error(self, name: str, **arguments: Any) -> str:
        """The text of a call that must fail."""
        output = await self.run(name, **arguments)
        assert output.is_error, output.text
        return output.text


def desk(root: Path, extra: tuple[Path, ...] = ()) -> Desk:
    return Desk(root, {tool.spec.name: tool for tool in workspace_tools(extra)})


def fill(at: Desk, *paths: str, content: str = "text\n") -> None:
    """Make files with their directories."""
    for path in paths:
        target = at.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)


def names(directory: Path) -> list[str]:
    """The names in a directory, sorted."""
    return sorted(path.name for path in directory.iterdir())
