"""What the tests of the workspace tools and of the shell share: a call of a tool, as the runtime makes it."""

import math
from pathlib import Path
from typing import Any

import attrs
import pytest

from roder_trio.ports import Tool
from roder_trio.schema.tool import ToolContext, ToolOutput
from roder_trio.tools.workspace import matcher, search, workspace_tools
from roder_trio.tools.workspace.tool import WorkspaceTool


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
    """The tools; no call of `grep` is given up by its caller."""
    tools = {tool.spec.name: tool for tool in workspace_tools(extra)}
    grep = tools["grep"]
    assert isinstance(grep, WorkspaceTool)
    return Desk(root, {**tools, "grep": attrs.evolve(grep, seconds=math.inf)})


def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search have all the time that a busy machine takes for it."""
    for module in (matcher, search):
        monkeypatch.setattr(module, "SECONDS", 600.0)


def fill(at: Desk, *paths: str, content: str = "text\n") -> None:
    """Make files with their directories."""
    for path in paths:
        target = at.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)


def names(directory: Path) -> list[str]:
    """The names in a directory, sorted."""
    return sorted(path.name for path in directory.iterdir())
