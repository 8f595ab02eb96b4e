"""One sampling step: its stream is opened, read and closed, and its usage settled, whatever ends it."""

from contextlib import AbstractAsyncContextManager

import attrs
import trio

from roder_trio.actors._attempts import find_failure, idle_failure
from roder_trio.actors._job import JobPort
from roder_trio.actors._services import new_id
from roder_trio.actors._stream import StreamReader
from roder_trio.actors._supervisor import cancel_alone, flatten
from roder_trio.actors._turn import TurnFailure, TurnScope
from roder_trio.errors import ProviderFailure, ProviderFailureKind, StorageError
from roder_trio.logic.turn import Step
from roder_trio.ports import InferenceStream
from roder_trio.schema.command import ItemsDone
from roder_trio.schema.event import InferenceCompleted, InferenceStarted
from roder_trio.schema.inference import InferenceEvent, InferenceRequest, TurnContext
from roder_trio.schema.transcript import TranscriptItem
from roder_trio.schema.usage import ZERO_USAGE, Attempt, Purpose, TokenUsage


@attrs.define(eq=False)
class SamplingStep:
    """One attempt at one step of a turn."""

    scope: TurnScope
    attempt: Attempt
    step: Step = attrs.field(init=False)
    failure: ProviderFailure | None = attrs.field(init=False, default=None)
    """Why the step failed; None if it ended well or was preempted."""
    preempted: bool = attrs.field(init=False, default=False)
    """New input cut the step."""
    leftover: tuple[TranscriptItem, ...] = attrs.field(init=False, default=())
    """What the step leaves to be stored: all of its end, or what was unfinished when it was cut."""
    usage: TokenUsage = attrs.field(init=False, default=ZERO_USAGE)
    """The last reading of the attempt."""
    read_until: float = attrs.field(init=False, default=0.0)
    """When the stream was read for the last time; a server's advice counts from then."""
    storage_error: StorageError | None = attrs.field(init=False, default=None)
    """The usage could not be settled."""
    _reader: StreamReader = attrs.field(init=False)
    _taker: "_Taker" = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        attempt = self.attempt
        self.step = Step(attempt.provider, attempt.model, attempt.attempt_id)
        self._taker = _Taker(self.step, self.scope.port, self.scope.turn_id)

    @property
    def overran(self) -> bool:
        """Whether the engine took longer to leave its stream than it may."""
        return self._reader.overran

    def end_run(self) -> tuple[TranscriptItem, ...]:
        """End the text so far, as the engine runs a call; returns it to be stored before the call."""
        return () if self._taker.busy else self.step.end_run()

    def note(self, error: BaseException) -> None:
        """Have the step end with a failure of ours that came up inside the engine's block."""
        self._taker.failure = self._taker.failure or error

    async def run(self, context: TurnContext, request: InferenceRequest) -> None:
        """Run the stream; how it ended stands in the fields then.

        A cancel of the turn passes, after the stream was left and its usage settled. Raises TurnFailure for what an
        engine raised that is no ProviderFailure, and what storing an item raised.
        """
        scope, attempt, config = self.scope, self.attempt, self.scope.services.config
        self._reader = StreamReader(
            self._observe,
            scope.cut,
            config.reliability.stream_idle_timeout,
            min(config.deadlines.stream_close_grace, config.deadlines.close_step_grace),
        )
        scope.services.accounting.open(attempt)
        scope.publish(InferenceStarted(attempt.attempt_id, attempt.provider, attempt.model))
        raised: Exception | None = None
        try:
            with cancel_alone(), scope.job.signal.watch() as waiting:
                try:
                    block = self._open(context, request)
                    del context, request  # they are the engine's now; a parked turn holds no more than it needs
                    await self._reader.read(block, self._taker.take, waiting)
                finally:
                    await self._close()
        except Exception as error:
            raised = error
        if self.storage_error is not None:
            raise self.storage_error
        if scope.cut_for_good():
            await trio.lowlevel.checkpoint()
        steered = scope.job.signal.pending or (waiting.cancel_called and not self._reader.idle)
        self._judge(raised, steered=steered)

    def _observe(self, usage: TokenUsage) -> None:
        self.scope.services.accounting.observe(self.attempt.attempt_id, usage)

    def _open(self, context: TurnContext, request: InferenceRequest) -> AbstractAsyncContextManager[InferenceStream]:
        return self.scope.routes.current.engine.stream_turn(context, request)

    def _judge(self, raised: Exception | None, *, steered: bool) -> None:
        """Say how the step ended, by the recorded causes before the exceptions."""
        completed, noted = self.step.completed, self._taker.failure
        if completed is not None:
            attempt_id = self.attempt.attempt_id
            ended = InferenceCompleted(attempt_id, self.step.finish_reason, completed.provider_response_id)
            self.scope.publish(ended)
        elif noted is not None and not isinstance(noted, ProviderFailure):
            raise noted
        elif steered:
            self.preempted = True
        else:
            self.failure = self._typed(raised)

    def _typed(self, raised: Exception | None) -> ProviderFailure:
        noted = self._taker.failure or self._reader.failure
        if isinstance(noted, ProviderFailure):
            return noted
        if raised is not None:
            found = find_failure(raised)
            if found is None:
                raise TurnFailure(f"The engine failed: {flatten(raised)}", "engine_error") from raised
            return found
        if self._reader.idle:
            return idle_failure()
        message = "The provider's stream ended before it was completed."
        return ProviderFailure(ProviderFailureKind.STREAM_INTERRUPTED, message, cause="truncated")

    async def _close(self) -> None:
        """End the step, within `close_step_grace` of its last event: what it leaves is known, what it used is stored.

        Never raises but Cancelled.
        """
        ended_at = self._reader.ended_at
        self.read_until = trio.current_time() if ended_at is None else ended_at
        self.leftover = self.step.final_items() if self.step.completed is not None else self.step.unfinished()
        services = self.scope.services
        left = self.read_until + services.config.deadlines.close_step_grace - trio.current_time()
        try:
            self.usage = await services.accounting.settle(self.attempt.attempt_id, max(0.0, left))
        except StorageError as error:
            self.storage_error = error


def sampling_attempt(scope: TurnScope) -> Attempt:
    """Name the next sampling attempt of a turn; the goal it is charged to is fixed here."""
    return Attempt(
        attempt_id=new_id(),
        thread_id=scope.thread_id,
        turn_id=scope.turn_id,
        purpose=Purpose.SAMPLING,
        provider=scope.routes.current.provider,
        model=scope.routes.current.model,
        goal_id=scope.port.attached_goal(),
    )


@attrs.define(eq=False)
class _Taker:
    """Takes a sampling stream's events: complete items are stored before what follows is shown."""

    step: Step
    port: JobPort
    turn_id: str
    failure: BaseException | None = None
    busy: bool = False
    """An event is being taken: its text isn't shown yet."""

    async def take(self, event: InferenceEvent) -> bool:
        """Take one event; True at the end of the step, or after a failure of ours, which is noted."""
        if self.failure is not None:
            return True
        self.busy = True
        try:
            done = self.step.absorb(event)
            if done:
                await self.port.report(ItemsDone(self.turn_id, done))
            self.port.show(event)
        except Exception as error:
            self.failure = error
            return True
        finally:
            self.busy = False
        return self.step.completed is not None
