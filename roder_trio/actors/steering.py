"""New input that may preempt what is going on.

Single-threaded like all of trio: a counter of notifications, and the scopes that one of them cancels.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from roder_trio.errors import CompactionPreempted


class SteeringSignal:
    """Tells a body of work that new input has come. A signal nobody notifies never cancels anything."""

    __slots__ = ("_count", "_scopes", "_seen")

    def __init__(self) -> None:
        self._count = 0
        self._seen = 0
        self._scopes: set[trio.CancelScope] = set()

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

    @contextmanager
    def watch(self) -> Iterator[trio.CancelScope]:
        """Open a scope that a notification cancels; an unseen one cancels it on entry."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                if self.pending:
                    scope.cancel()
                yield scope
            finally:
                self._scopes.discard(scope)

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
