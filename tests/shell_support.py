"""What the tests of the shell share: commands that run, and the processes and descriptors that are there."""

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from roder_trio.schema.tool import ToolOutput
from roder_trio.tools.shell import shell_tool
from tests.workspace_support import context

PATIENCE = 30.0
"""Seconds; far less than what these commands would run, far more than a busy machine needs to end them."""


async def shell(root: Path, command: str, **arguments: Any) -> ToolOutput:
    return await shell_tool().run(context(root), {"command": command, **arguments})


def living(mark: str) -> list[str]:
    """The processes, zombies apart, whose command line holds a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            state = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark in line and state not in "ZX":
            found.append(line)
    return found


def own_children() -> set[str]:
    """What this process has started as shells, and what came to it, zombies included."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = file.read_text("utf-8", "replace").partition("(")[2].rpartition(")")
            if int(rest.split()[1]) == os.getpid() and name in {"sh", "sleep"}:
                found.add(f"{name} {file.parent.name}")
    return found


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


async def until_living(mark: str, count: int) -> None:
    with trio.fail_after(PATIENCE):
        while len(living(mark)) < count:  # noqa: ASYNC110 - a process tells nobody that it began
            await trio.sleep(0.005)


def _wait_for_file(path: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < until, f"no command made {path.name}"
        time.sleep(0.005)


async def shell_once_ready(
    clock: MockClock, root: Path, command: str, deadline: float | None = None, jump: float = 1.0, **arguments: Any
) -> ToolOutput:
    """Run a command for which time stands still until it makes the file `ready`; then time jumps, and goes on."""
    outputs = []

    async def run() -> None:
        outputs.append(await shell_tool().run(context(root, deadline), {"command": command, **arguments}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            await trio.to_thread.run_sync(_wait_for_file, root / "ready")
        finally:
            clock.jump(jump)
            clock.rate = 1.0
    return outputs[0]
