"""How a command fails: one line that says what was attempted and what to do, an exit code, and never a traceback."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

import roder_trio as rt
from roder_trio.cli.terminal import Terminal

DONE, FAILED, MISUSED = 0, 1, 2


class UsageError(Exception):
    """The command was called in a way that can't work."""


@attrs.define
class Result:
    """The exit code of a command, `FAILED` until it says otherwise."""

    code: int = FAILED


@contextmanager
def explained(terminal: Terminal, what: str) -> Iterator[Result]:
    """Catch what fails in the block and say in one line why `what` can't be done. Only a cancel comes out."""
    result = Result()
    try:
        yield result
    except UsageError as error:
        terminal.error(str(error))
        result.code = MISUSED
    except Exception as error:
        result.code = FAILED
        if _reader_has_gone(error):
            # Nothing more can be said on stdout, and Python's own flush at exit must not complain of it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            terminal.error(f"can't {what}: {failure_words(error)}")


def _reader_has_gone(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_reader_has_gone, error.exceptions))
    return isinstance(error, BrokenPipeError)


def failure_words(error: BaseException) -> str:
    """Say in one line what went wrong."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(failure_words, error.exceptions)))
    if isinstance(error, rt.RoderTrioError):
        return str(error)
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}"
    return f"unexpected {type(error).__name__}: {error}"
