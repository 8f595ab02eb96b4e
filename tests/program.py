"""The command line as a child process, with pipes or at a pseudo-terminal."""

import codecs
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import IO

import attrs
import trio

PROGRAM = (sys.executable, "-W", "error", "-m", "roder_trio.cli")
PATIENCE = 60


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """Almost nothing: no key, no provider, and a terminal without styles."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "TERM": "dumb",
        **({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}),
        **more,
    }


async def piped(tmp_path: Path, *tokens: str, stdin: bytes = b"", **more: str) -> tuple[int, str, str]:
    """Run a command to its end: its exit code, stdout and stderr."""
    with trio.fail_after(PATIENCE):
        finished = await trio.run_process(
            [*PROGRAM, *tokens],
            env=environment(tmp_path, **more),
            cwd=tmp_path,
            stdin=stdin,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    return finished.returncode, finished.stdout.decode(), finished.stderr.decode()


@attrs.define
class AtTerminal:
    """A child whose stdin, stdout and stderr are a terminal; `seen` is all that was shown there."""

    process: trio.Process
    terminal: IO[bytes]
    seen: str = ""
    _decoder: codecs.IncrementalDecoder = attrs.field(factory=codecs.getincrementaldecoder("utf-8"))
    _held: str = ""
    """The first half of a line's end whose other half is still to be read."""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.terminal.fileno(), text.encode())

    async def sees(self, words: str) -> None:
        """Wait until `words` are shown, and forget what was shown up to them."""
        while words not in self.seen:
            assert await self._more(), f"the output ended without {words!r}: {self.seen!r}"
        self.seen = self.seen.partition(words)[2]

    async def end(self) -> int:
        """Read the rest, and return the exit code."""
        while await self._more():
            pass
        return await self.process.wait()

    async def _more(self) -> bool:
        await trio.lowlevel.wait_readable(self.terminal)
        try:
            chunk = os.read(self.terminal.fileno(), 4096)
        except OSError:  # Linux's end of a terminal
            chunk = b""
        text = self._held + self._decoder.decode(chunk)
        self._held = "\r" if chunk and text.endswith("\r") else ""
        self.seen += text.removesuffix(self._held).replace("\r\n", "\n")
        return bool(chunk)


@asynccontextmanager
async def at_terminal(tmp_path: Path, *tokens: str, **more: str) -> AsyncIterator[AtTerminal]:
    """Start a command at a terminal; the block must end within a minute, and kills what still runs."""
    import pty

    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb+", buffering=0) as terminal:  # noqa: ASYNC231 - opens nothing
        start = partial(
            trio.run_process,
            [*PROGRAM, *tokens],
            env=environment(tmp_path, **more),
            cwd=tmp_path,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            check=False,
        )
        async with trio.open_nursery() as nursery:
            try:
                process: trio.Process = await nursery.start(start)
            finally:
                os.close(theirs)
            with trio.fail_after(PATIENCE):  # noqa: ASYNC100 - the block awaits
                yield AtTerminal(process, terminal)
            nursery.cancel_scope.cancel()


def journal(tmp_path: Path, store: str = "here") -> Path:
    """The one thread of a store."""
    [found] = (tmp_path / store / "threads").glob("*.jsonl")
    return found
