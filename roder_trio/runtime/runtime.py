"""The open runtime: all its methods under one name."""

from roder_trio.runtime.consent import ConsentMethods
from roder_trio.runtime.records import RecordMethods
from roder_trio.runtime.threads import ThreadMethods
from roder_trio.runtime.turns import TurnMethods
from roder_trio.schema.turn import ShutdownReport


class Runtime(ThreadMethods, TurnMethods, RecordMethods, ConsentMethods):
    """What `open_runtime` gives. Every method may be called from any task, as long as the runtime is open.

    What is asked of a thread waits in that thread's queue. Cancelling the call withdraws it from there; once it was
    taken it is carried out and only the answer is abandoned, unless the method says more.

    Beside what a method names it raises RuntimeClosed after the runtime was left and, if it asks a thread,
    ThreadFailed while the thread is parked and ActorCrashed if the thread's actor failed with the request in hand.
    """

    @property
    def shutdown_report(self) -> ShutdownReport | None:
        """How the runtime's exit went; None before it."""
        return self._core.report
