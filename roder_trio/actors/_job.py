"""The handle of a thread's foreground job, and the port through which the job speaks."""

from collections.abc import Callable, Container
from typing import Any

import attrs
import trio

from roder_trio.actors._cell import Port
from roder_trio.actors._log import ThreadLog
from roder_trio.actors._services import Services
from roder_trio.actors.steering import SteeringSignal
from roder_trio.errors import AppendOutcomeUnknown
from roder_trio.logic.thread.turns import DEADLINE
from roder_trio.logic.window import Window
from roder_trio.schema.event import Event
from roder_trio.schema.inference import EngineTarget, InferenceEvent


@attrs.define(eq=False)
class Job:
    """A turn, or a manual compaction, as others see it: who it is and how to stop it."""

    turn_id: str
    is_turn: bool = True
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    signal: SteeringSignal = attrs.field(factory=SteeringSignal)
    cause: str | None = None
    """Why the job was told to stop; the first word wins."""
    cut_at: float | None = None
    """When it was told, in trio's time."""
    sealed: bool = False
    """True once the turn has decided to finish: nothing reaches it any more."""

    @property
    def ends_at(self) -> float:
        """The turn's deadline, in trio's time; infinite if there is none."""
        return self.scope.deadline

    @property
    def told(self) -> str | None:
        """Why the job is to end, its deadline included; None if it goes on, or is out of reach."""
        if self.cause is None and not self.sealed and trio.current_time() >= self.ends_at:
            return DEADLINE
        return self.cause

    @property
    def is_cut(self) -> bool:
        """Whether the job is to end: it was stopped, or its deadline has come."""
        return self.cause is not None or self.scope.cancel_called

    def cancel(self, reason: str) -> bool:
        """Stop the job at once; False if it is out of reach or was stopped before."""
        if self.sealed or self.cause is not None:
            return False
        self.cause = reason
        self.cut_at = trio.current_time()
        self.scope.cancel()
        return True


@attrs.frozen(eq=False)
class JobPort:
    """What a job may do to its thread. `show` and `publish` are synchronous and wait for nothing."""

    turn_id: str
    goal_note: Callable[[], str | None]
    """What a request of this moment says of the thread's goal."""
    _port: Port
    _log: ThreadLog
    _services: Services

    def show(self, event: InferenceEvent) -> None:
        """Take a stream event into the thread's live items."""
        self._log.show(self.turn_id, event)

    def publish(self, event: Event) -> None:
        """Publish a live event of the job's turn."""
        self._services.publish_live(event, self._log.thread_id, self.turn_id, "turn")

    def attached_goal(self) -> str | None:
        """Return the goal that the job's turn is attached to at this moment."""
        return self._log.attached_goal

    def earlier_calls(self) -> Container[str]:
        """Return the ids of all calls of earlier turns."""
        return self._log.state.call_ids

    def request_for(self, target: EngineTarget | None) -> Window:
        """Return the transcript of a request to another engine than the turn's own."""
        return self._log.state.history.request(target)

    async def wait(self, payload: Any) -> Any:
        """Wait for what another will give, however long that takes. Cancelling withdraws the question."""
        return await self._port.report(payload)

    async def report(self, payload: Any) -> Any:
        """Report what must be stored, and wait under a shield until its fate is known.

        Raises StorageError if it can't be stored, AppendOutcomeUnknown if `append_grace` ends first, ActorCrashed if
        the thread's actor fails, and CommandRefused where a report can be refused.
        """
        with trio.move_on_after(self._services.config.deadlines.append_grace, shield=True):
            return await self._port.report(payload)
        raise AppendOutcomeUnknown("The thread did not store a turn's report in time; its store may hang.")
