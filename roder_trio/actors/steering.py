"""New input that may preempt what is going on.

Single-threaded like all of trio: a counter of notifications, and the scopes that one of them cancels.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import trio

from roder_trio.errors import CompactionPreempted


class SteeringSignal:
    """Tells a body of work that new input has come. A signal nobody notifies never cancels anything."""

    __slots__ = ("_count", "_scopes", "_seen")

    def __init__(self) -> None:
        self._count = 0
        self._seen = 0
        self._scopes: tuple[trio.CancelScope, ...] = ()

    @property
    def pending(self) -> bool:
        """Whether a notification hasn't been seen."""
        return self._count != self._seen

    @property
    def seen(self) -> int:
        """How many notifications have been seen."""
        return self._seen

    def notify(self) -> None:
        """Raise the counter and cancel what may be preempted now."""
        self._count += 1
        for scope in self._scopes:
            scope.cancel()

    def clear(self) -> None:
        """Mark all notifications as seen."""
        self._seen = self._count

    def watch(self) -> "Watch":
        """Open a scope that a notification cancels; an unseen one cancels it on entry."""
        return Watch(self)

    def add(self, scope: trio.CancelScope) -> None:
        """Have notifications cancel a scope; one that is unseen does so at once."""
        self._scopes = (*self._scopes, scope)
        if self.pending:
            scope.cancel()

    def discard(self, scope: trio.CancelScope) -> None:
        """Leave a scope alone from now on."""
        self._scopes = tuple(entry for entry in self._scopes if entry is not scope)

    @contextmanager
    def preemptible(self) -> Iterator[None]:
        """Run a body that a notification preempts.

        Raises CompactionPreempted on entry, before the body runs, if a notification is unseen; and on exit if one
        cancelled the body. Those are marked as seen. A body that finished uncancelled keeps its result.
        """
        if self.pending:
            self.clear()
            raise CompactionPreempted
        with self.watch() as scope:
            yield
        if scope.cancelled_caught:
            self.clear()
            raise CompactionPreempted


class Watch:
    """The scope of one body of work that notifications cancel; a class, since generators weigh more, in each turn."""

    __slots__ = ("_scope", "_signal")

    def __init__(self, signal: SteeringSignal) -> None:
        self._signal = signal
        self._scope = trio.CancelScope()

    def __enter__(self) -> trio.CancelScope:
        scope = self._scope.__enter__()
        self._signal.add(scope)
        return scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._signal.discard(self._scope)
        return self._scope.__exit__(kind, error, traceback)
