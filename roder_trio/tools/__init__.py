"""Tools that a host gives to the runtime; each is imported when it is first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roder_trio.tools.external import ExternalTool
    from roder_trio.tools.shell import shell_tool
    from roder_trio.tools.workspace import workspace_tools

_HOMES = {
    "ExternalTool": "external",
    "shell_tool": "shell",
    "workspace_tools": "workspace",
}

__all__ = ["ExternalTool", "shell_tool", "workspace_tools"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
