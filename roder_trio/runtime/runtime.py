"""The open runtime: all its methods under one name."""

from roder_trio.runtime.consent import ConsentMethods
from roder_trio.runtime.records import RecordMethods
from roder_trio.runtime.threads import ThreadMethods
from roder_trio.runtime.turns import TurnMethods
from roder_trio.schema.turn import ShutdownReport


class Runtime(ThreadMethods, TurnMethods, RecordMethods, ConsentMethods):
    """What `open_runtime` gives. Every method may be called from any task, as long as the runtime is open."""

    @property
    def shutdown_report(self) -> ShutdownReport | None:
        """How the runtime's exit went; None before it."""
        return self._core.report
