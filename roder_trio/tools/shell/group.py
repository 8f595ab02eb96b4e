"""A process with all that it starts: what it sees of the environment, and how its group is ended.

Rules of the room: a process leads a session and a process group of its own, so that one signal reaches all. Ending is
shielded and bounded. The leader is waited for before the group is asked for: its number is nobody else's as long as
the group has a member.
"""

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import trio

PASSED: Final = frozenset({"PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "SHELL"})
TERM_SECONDS: Final = 0.25
REAP_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.005
LOOKS_PER_SCAN: Final = 10


def environment(variables: Mapping[str, str], keep: Iterable[str] = ()) -> dict[str, str]:
    """Return what of `variables` a child process gets: a fixed few, the locale's, and those in `keep`."""
    passed = PASSED.union(keep)
    return {name: value for name, value in variables.items() if name in passed or name.startswith("LC_")}


async def end_group(process: trio.Process) -> None:
    """End the group that `process` leads and reap it: at once if it is over, else by TERM, and KILL 0.25 s later.

    Returns after 1.25 s at the latest, a cancelled caller included, though the system may take longer.
    """
    with trio.CancelScope(shield=True):
        if process.returncode is not None and not _is_alive(process.pid):
            await trio.lowlevel.checkpoint()
            return
        _signal(process.pid, signal.SIGTERM)
        if not await _is_over(process, TERM_SECONDS):
            _signal(process.pid, signal.SIGKILL)
            await _is_over(process, REAP_SECONDS)


async def _is_over(process: trio.Process, seconds: float) -> bool:
    """Whether the leader and then its group end within `seconds`."""
    with trio.move_on_after(seconds):
        await process.wait()
        looks = 0
        while _is_alive(process.pid):
            await trio.sleep(POLL_SECONDS)  # nothing tells that a group is empty
            looks += 1
            if looks % LOOKS_PER_SCAN == 0 and await trio.to_thread.run_sync(_is_only_zombies, process.pid):
                break
        return True
    return False


def _is_alive(group: int) -> bool:
    """Whether a group, whose leader was reaped, has a member; those that are our own children are reaped on the way.

    They are ours where this process adopts orphans, as the first process of a container does.
    """
    try:
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    return _signal(group, 0)


def _is_only_zombies(group: int) -> bool:
    """Whether all members of a group are over, and only wait to be reaped by another process. Blocks.

    A first process that is slow to do so would else cost each call its whole second.
    """
    states = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, its_group = file.read_bytes().rpartition(b")")[2].split()[:3]
            if int(its_group) == group:
                states.append(state)
    return bool(states) and all(state in b"ZX" for state in states)


def _signal(group: int, number: int) -> bool:
    """Send a signal to a group; False if it has no member that takes one."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
