"""The handle of one turn, while its block is open."""

from collections.abc import AsyncIterator

from roder_trio.actors.broadcast import Subscription, is_terminal
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.turn import TurnOutcome


class Turn:
    """A running turn: `thread_id`, `turn_id`, and `outcome`, which is set when its block is left.

    Iterate over it for its events, the terminal one included.
    """

    def __init__(self, thread_id: str, turn_id: str, events: Subscription) -> None:
        self.thread_id = thread_id
        self.turn_id = turn_id
        self._outcome: TurnOutcome | None = None
        self._events = events
        self._ended = False

    def __aiter__(self) -> AsyncIterator[EventEnvelope]:
        return self

    async def __anext__(self) -> EventEnvelope:
        """Return the turn's next event; a slow reader gets `Lagged` first. A cancelled read loses nothing."""
        if self._ended:
            raise StopAsyncIteration
        envelope = await anext(self._events)
        self._ended = is_terminal(envelope)
        return envelope

    @property
    def outcome(self) -> TurnOutcome:
        """How the turn ended, once its block was left. Raises RuntimeError before, and if its end isn't known."""
        if self._outcome is None:
            raise RuntimeError("the turn's outcome is known once its block was left")
        return self._outcome

    def end(self, outcome: TurnOutcome | None) -> None:
        """Set the outcome; called by the block."""
        self._outcome = outcome
