"""The tool that runs a command of the model in the workspace."""

from roder_trio.tools.shell.tool import shell_tool

__all__ = ["shell_tool"]
