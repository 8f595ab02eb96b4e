"""Restarting what crashed, a bounded number of times; and what is meant by a group of exceptions."""

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

import trio

log = logging.getLogger(__name__)

MAX_RESTARTS = 3
RESTART_WINDOW = 60.0
"""Seconds within which at most `MAX_RESTARTS` crashes are forgiven."""


class RestartsExhausted(Exception):
    """What was supervised crashed once too often; `__cause__` is the last crash."""


def flatten(error: BaseException) -> BaseException:
    """Return the first error in a group that isn't a group itself; a lone error is itself."""
    while isinstance(error, BaseExceptionGroup):
        meant = [inner for inner in error.exceptions if not isinstance(inner, trio.Cancelled)]
        error = (meant or list(error.exceptions))[0]
    return error


class cancel_alone:  # noqa: N801 - read as a verb where it is used
    """Let a cancel from outside pass without the errors that a nursery of foreign code collected beside it."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, BaseExceptionGroup):
            return
        errors, rest = error.split(Exception)
        if errors is not None and rest is not None:
            log.warning("errors of what was cancelled are dropped", exc_info=errors)
            raise rest from None


async def supervise(name: object, run: Callable[[], Awaitable[None]]) -> None:
    """Run until `run` returns, starting it anew when it crashes.

    Raises RestartsExhausted at the crash after `MAX_RESTARTS` within `RESTART_WINDOW` seconds. Cancelling cancels
    what runs.
    """
    crashes: list[float] = []  # an empty deque weighs more than half a KiB, in each thread
    while True:
        try:
            await run()
        except Exception as error:
            cause = flatten(error)
            log.exception("%s crashed", name, exc_info=cause)
            now = trio.current_time()
            crashes.append(now)
            while crashes[0] <= now - RESTART_WINDOW:
                crashes.pop(0)
            if len(crashes) > MAX_RESTARTS:
                raise RestartsExhausted(f"{name} crashed {len(crashes)} times in {RESTART_WINDOW:g} s") from cause
        else:
            return
