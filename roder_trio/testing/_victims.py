"""The warm process that forks victims, one for each line of its input.

A line is a pickled job in base64. Unpickling it imports what the job needs, here and once, so a fork costs little. How
the victim ended goes to the output, as the exit code or the negative number of the signal. The first line is the path
on which modules are found.
"""

import base64
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import attrs

FAILED = 1


@attrs.frozen
class Job:
    """What a victim does, and the seconds after which it hangs; a signal ends it then."""

    target: Callable[..., None]
    arguments: tuple[Any, ...]
    seconds: float


def encode(value: object) -> bytes:
    """A line of the input."""
    return base64.b64encode(pickle.dumps(value)) + b"\n"


def decode(line: bytes) -> Any:
    """What a line of the input holds. Only lines of the parent process are ever read."""
    return pickle.loads(base64.b64decode(line))  # noqa: S301 - the parent wrote it


def main() -> None:
    """Fork until the input ends."""
    jobs = sys.stdin.buffer
    sys.path[:] = decode(jobs.readline())
    for line in jobs:
        sys.stdout.write(f"{_run(line)}\n")
        sys.stdout.flush()


def _run(line: bytes) -> int:
    try:
        job: Job = decode(line)
    except Exception:
        traceback.print_exc()
        return FAILED
    pid = os.fork()
    if pid == 0:
        _live(job)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _live(job: Job) -> NoReturn:
    """Be the victim."""
    code = FAILED
    try:
        # the parent waits for a line of ours, so nothing else may go there
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        signal.setitimer(signal.ITIMER_REAL, job.seconds)
        job.target(*job.arguments)
        code = 0
    except BaseException:  # no task is left that could be cancelled
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
