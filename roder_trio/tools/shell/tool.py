"""The tool `shell`: one command, its output and how it ended.

Rules of the room: whatever ends a call (the command, its time, a cancel), the command's process group is over before
the call returns. This is consent, not a sandbox: a command may do what its user may.
"""

import contextlib
import math
import os
import signal
import stat
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from roder_trio.errors import ToolError
from roder_trio.ports import Tool
from roder_trio.schema.tool import ToolContext, ToolOutput, ToolSpec
from roder_trio.tools.shell.group import end_group, environment
from roder_trio.tools.shell.output import MAX_BYTES, Output
from roder_trio.tools.workspace.paths import open_workspace, status, telling
from roder_trio.tools.workspace.tool import NO_WORKSPACE, threads

SHELL: Final = "/bin/sh"
SECONDS: Final = 120.0
MAX_SECONDS: Final = 600.0
PIPE_SECONDS: Final = 0.5
CHUNK: Final = 64 * 1024

SPEC = ToolSpec(
    name="shell",
    description=(
        "Run a command with sh in the workspace and return its exit code and output. It has no input and no "
        "terminal, and what it leaves running in the background is ended with it."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "What sh is to run."},
            "timeout": {
                "type": "number",
                "minimum": 1,
                "maximum": MAX_SECONDS,
                "description": "Seconds after which the command is ended; 120 if left out.",
            },
            "workdir": {
                "type": "string",
                "minLength": 0,
                "description": "The directory to run in, from the workspace's root; the root if left out.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    effects={"process"},
    concurrency="exclusive",
)


@attrs.frozen(eq=False)
class ShellTool(Tool):
    """Runs commands with the environment's few variables that it passes on and those in `env_keep`."""

    env_keep: frozenset[str]
    spec: ToolSpec = SPEC

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolOutput:
        """Run a command to its end. Cancelled, it ends the command's process group first, within 1.25 s."""
        if context.workspace is None:
            await trio.lowlevel.checkpoint()
            return ToolOutput(NO_WORKSPACE, is_error=True)
        seconds = _cut(arguments.get("timeout", SECONDS), context.deadline)
        output = Output()
        try:
            directory = await trio.to_thread.run_sync(
                _directory, context.workspace, arguments.get("workdir", "."), abandon_on_cancel=True, limiter=threads()
            )
            async with _started(arguments["command"], directory, self.env_keep, output) as (process, pipe):
                ended = await _watch(process, pipe, output, seconds)
        except ToolError as error:  # from a worker thread
            return ToolOutput(  # noqa: ASYNC910
                str(error).encode("utf-8", "replace").decode(), is_error=True
            )
        lines = [_status(process.returncode), *([] if ended else [f"timed out after {seconds:g} s"]), output.text()]
        return ToolOutput("\n".join(line for line in lines if line), is_error=not ended)


def _cut(seconds: float, deadline: float | None) -> float:
    rest = math.inf if deadline is None else max(0.0, deadline - trio.current_time())
    return min(max(1.0, seconds), MAX_SECONDS, rest)


def _directory(workspace: Path, given: str) -> str:
    """Return where a command runs; it lies in the workspace. Blocks. Raises ToolError."""
    with open_workspace(workspace) as opened:
        spot = opened.locate(given, for_writing=True)
        with telling(given):
            if not stat.S_ISDIR(status(spot).st_mode):
                raise ToolError(f"not a directory: {given}")
        return str(spot.root.path.joinpath(*spot.parts))


@contextlib.asynccontextmanager
async def _started(
    command: str, directory: str, keep: frozenset[str], output: Output
) -> AsyncIterator[tuple[trio.Process, int]]:
    """Run a command while the block runs; leaving it ends the group and takes what the pipe still holds."""
    pipe, their_end = os.pipe()
    try:
        os.set_blocking(pipe, False)
        try:
            process = await _open(command, directory, keep, their_end)
        finally:
            os.close(their_end)
        try:
            yield process, pipe
        finally:
            await end_group(process)  # noqa: ASYNC102 - it shields itself, and has an end
            _drain(pipe, output)
    finally:
        os.close(pipe)


async def _open(command: str, directory: str, keep: frozenset[str], their_end: int) -> trio.Process:
    try:
        return await trio.lowlevel.open_process(
            [SHELL, "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=their_end,
            stderr=their_end,
            start_new_session=True,
            cwd=directory,
            env=environment(os.environ, keep),
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ToolError(f"could not start: {reason}") from None


async def _watch(process: trio.Process, pipe: int, output: Output, seconds: float) -> bool:
    """Read the output until the command ends; False if its time is over. What keeps the pipe then has 0.5 s."""
    ended = False
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read, pipe, output)
            await process.wait()
            ended = True
            nursery.cancel_scope.deadline = trio.current_time() + PIPE_SECONDS
    return ended


async def _read(pipe: int, output: Output) -> None:
    while True:
        await trio.lowlevel.wait_readable(pipe)
        data = os.read(pipe, CHUNK)
        if not data:
            return
        output.add(data)


def _drain(pipe: int, output: Output) -> None:
    """Take what a pipe holds now; one that is written to all the time is left after as much as is ever held."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(MAX_BYTES // CHUNK):
            data = os.read(pipe, CHUNK)
            if not data:
                return
            output.add(data)


def _status(code: int | None) -> str:
    if code is None:
        return "killed by signal: SIGKILL"  # sent, and not yet taken
    if code >= 0:
        return f"exit code: {code}"
    try:
        return f"killed by signal: {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal: {-code}"  # a real-time signal, which has no name


def shell_tool(env_keep: Iterable[str] = ()) -> Tool:
    """Return `shell`. Of the environment, commands get a few common variables and those named in `env_keep`."""
    if isinstance(env_keep, str):
        raise ValueError("env_keep must be names of variables, not one text")
    return ShellTool(frozenset(env_keep))
