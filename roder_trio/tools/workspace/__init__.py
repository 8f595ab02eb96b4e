"""Tools that read, search and write the files of a turn's workspace, and nothing outside it."""

from roder_trio.tools.workspace.tool import workspace_tools

__all__ = ["workspace_tools"]
