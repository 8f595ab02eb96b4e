"""The job that runs a turn: rounds of steers, compaction and one sampling step, until a step ends it.

The job keeps no history of its own: what it stores it reports, and each answer is the thread's window after that
commit. It ends by returning an outcome; the thread makes the single terminal event of it.
"""

import logging
from collections.abc import Callable
from typing import Any

import attrs
import trio

from roder_trio.actors._job import Job, JobPort
from roder_trio.actors._services import Services, new_id
from roder_trio.actors._stream import StreamReader
from roder_trio.actors._supervisor import flatten
from roder_trio.actors.compaction import NativeCompaction, find_failure, idle_failure
from roder_trio.errors import ActorCrashed, AppendOutcomeUnknown, ProviderFailure, ProviderFailureKind, StorageError
from roder_trio.logic import compaction as rules
from roder_trio.logic.estimate import Sums
from roder_trio.logic.retry import RetrySeries
from roder_trio.logic.thread.facts import View
from roder_trio.logic.turn import Step, next_request
from roder_trio.ports import InferenceEngine
from roder_trio.schema.command import (
    Failed,
    FinalStep,
    Finished,
    Interrupted,
    ItemsDone,
    JobOutcome,
    StepEnded,
    TakeSteers,
    ToolResultsDone,
    TurnPlan,
)
from roder_trio.schema.compaction import Compacted, NativeCompactionOutcome, Preempted, Unsupported
from roder_trio.schema.event import (
    ContextCompactionSkipped,
    Event,
    InferenceCompleted,
    InferenceStarted,
    LimitReached,
    RetryScheduled,
)
from roder_trio.schema.inference import InferenceEvent, InferenceRequest, ModelDescriptor, TurnContext
from roder_trio.schema.transcript import ToolResult, TranscriptItem
from roder_trio.schema.usage import Attempt, Purpose

log = logging.getLogger(__name__)


class TurnFailure(Exception):
    """Ends the turn as failed."""

    def __init__(self, error: str, kind: str, items: tuple[TranscriptItem, ...] = ()) -> None:
        super().__init__(error)
        self.kind = kind
        self.items = items


@attrs.frozen
class _Sampled:
    """How one step ended: well, by a steer, or by a failure."""

    step: Step
    failure: ProviderFailure | None = None
    preempted: bool = False
    overran: bool = False


@attrs.define(eq=False)
class TurnJob:
    """One turn, from its opening to its outcome."""

    services: Services
    thread_id: str
    plan: TurnPlan
    engine: InferenceEngine
    model: ModelDescriptor | None
    job: Job
    port: JobPort
    view: View
    _deadline: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _leftover: tuple[TranscriptItem, ...] = ()
    """What a cut step leaves for the turn's last commit."""
    _read_until: float = 0.0
    """When the newest stream was read for the last time; a server's advice counts from then."""
    _storage_error: StorageError | None = None
    _model_calls: int = 0
    _preempted_in_a_row: int = 0
    _compaction_spent: bool = False
    """An automatic compaction of this turn failed, or didn't help."""
    _skipped: set[str] = attrs.field(factory=set)
    _anchor: tuple[int, Sums] | None = None
    """The provider's count of the newest request, and what the window's estimate was made of then."""

    async def run(self) -> JobOutcome:
        """Run the turn and return how it ended. Nothing but a Cancelled from outside is raised."""
        outcome: JobOutcome | None = None
        error: BaseException | None = None
        try:
            with self.job.scope:
                outcome = await self._within_deadline()
        except Exception as raised:
            error = flatten(raised)
        if isinstance(outcome, Finished):
            return outcome
        if isinstance(self._storage_error or error, StorageError):
            return self._failed(str(self._storage_error or error), "storage")
        if self.job.cause is not None:
            return Interrupted(self.job.cause, self._leftover)
        if error is not None:
            return self._failed_by(error)
        return outcome or self._failed("The turn's job was cancelled from outside.", "internal")

    async def _within_deadline(self) -> JobOutcome | None:
        limit = self.services.config.reliability.turn_deadline
        if limit is not None:
            self._deadline.deadline = trio.current_time() + limit
        with self._deadline:
            return await self._rounds()
        message = f"The turn did not end within its deadline of {limit:g} s."
        return Failed(message, "deadline_timeout", self._leftover, "timed out")

    # -- rounds ------------------------------------------------------------------------------------------------------

    async def _rounds(self) -> JobOutcome:
        series = self._new_series()
        while True:
            if self._cut_for_good():
                await trio.lowlevel.checkpoint()
            if self.job.signal.pending:
                self.view = await self.port.report(TakeSteers(self.plan.turn_id))
                series = self._new_series()
            if not await self._compact_if_due():
                continue
            self._count_model_call()
            sampled = await self._sample()
            if sampled.preempted:
                await self._next_round(sampled, StepEnded(self.plan.turn_id, self._leftover))
                series = self._new_series()
            elif sampled.failure is not None:
                series = await self._retry(sampled.failure, sampled, series)
            elif await self._complete(sampled):
                return Finished()
            else:
                series = self._new_series()

    def _new_series(self) -> RetrySeries:
        return RetrySeries(self.services.config.reliability)

    async def _next_round(self, sampled: _Sampled, report: StepEnded | ToolResultsDone) -> None:
        self._check_closed(sampled)
        self.view = await self._report_step(report)

    async def _report_step(self, report: StepEnded | ToolResultsDone | FinalStep) -> Any:
        """Report what a step leaves; only what surely isn't stored is left for the turn's last commit."""
        items, self._leftover = self._leftover, ()
        try:
            return await self.port.report(report)
        except AppendOutcomeUnknown:
            raise
        except StorageError:
            self._leftover = items
            raise

    def _check_closed(self, sampled: _Sampled) -> None:
        """Raise if another round would follow a stream that was not closed in time."""
        if sampled.overran:
            raise TurnFailure("The engine did not close its stream in time.", "cleanup_timeout", self._leftover)

    async def _complete(self, sampled: _Sampled) -> bool:
        """Store a step that ended well; True if it ended the turn."""
        step, turn_id, items = sampled.step, self.plan.turn_id, self._leftover
        if not step.calls and not step.forces_round:
            answer = await self._report_step(FinalStep(turn_id, items, step.finish_reason))
            if answer is None:
                return True
            self.view = answer
            self._check_closed(sampled)
            return False
        await self._next_round(sampled, StepEnded(turn_id, items))
        if step.calls:
            results = tuple(
                ToolResult(call.id, call.name, f"unknown tool: {call.name}", is_error=True)
                for call in step.calls.values()
            )
            self.view = await self.port.report(ToolResultsDone(turn_id, results))
        return False

    async def _retry(self, failure: ProviderFailure, sampled: _Sampled, series: RetrySeries) -> RetrySeries:
        """Wait for the next attempt at a failed step, its open text discarded. Raises the failure if it stands."""
        series.spend(sampled.step.retries_inside)
        failed, now, seen = series.attempts, trio.current_time(), self.job.signal.seen
        remaining, read_at = self._deadline.deadline - now, self._read_until
        wait = series.next(failure, self.services.jitter(), now, remaining, read_at=read_at)
        if wait is None:
            raise TurnFailure(str(failure), failure.kind.value, self._leftover) from failure
        self._leftover = ()
        await self._next_round(sampled, StepEnded(self.plan.turn_id))
        if self.job.signal.seen != seen:
            return self._new_series()
        self._publish(RetryScheduled(failed, series.max_attempts, wait, failure.kind.value))
        with self.job.signal.watch():
            await trio.sleep(wait)
        return series

    def _count_model_call(self) -> None:
        limit = self.services.config.reliability.max_model_calls_per_turn
        if self._model_calls >= limit:
            self._publish(LimitReached("max_model_calls_per_turn", limit))
            message = f"The turn reached its limit of {limit} model calls."
            raise TurnFailure(message, "reliability_limit")
        self._model_calls += 1

    # -- one sampling step -------------------------------------------------------------------------------------------

    async def _sample(self) -> _Sampled:
        """Run one stream and close it, whatever ends it. Its usage is settled on every way out."""
        attempt = self._attempt()
        context, request = self._request(attempt)
        step = Step(self.plan.provider)
        failure: Exception | None = None
        reader = StreamReader(
            lambda usage: self.services.accounting.observe(attempt.attempt_id, usage),
            self._cut,
            self.services.config.reliability.stream_idle_timeout,
            self.services.config.deadlines.stream_close_grace,
        )
        self.services.accounting.open(attempt)
        sums = self.view.sums
        self._publish(InferenceStarted(attempt.attempt_id, self.plan.provider, self.plan.model))
        taker = _Taker(step, self.port, self.plan.turn_id)
        try:
            with self.job.signal.watch() as steered:
                try:
                    await reader.read(self.engine.stream_turn(context, request), taker.take)
                finally:
                    await self._close_step(attempt, step, sums, reader.ended_at)
        except Exception as raised:
            failure = raised
        if self._storage_error is not None:
            raise self._storage_error
        if self._cut_for_good():
            await trio.lowlevel.checkpoint()
        if step.completed is not None:
            self._publish(
                InferenceCompleted(attempt.attempt_id, step.finish_reason, step.completed.provider_response_id)
            )
            return _Sampled(step, overran=reader.overran)
        if taker.failure is not None and not isinstance(taker.failure, ProviderFailure):
            raise taker.failure
        if steered.cancel_called:
            return _Sampled(step, preempted=True, overran=reader.overran)
        return _Sampled(step, self._typed(failure, taker, reader), overran=reader.overran)

    def _typed(self, raised: Exception | None, taker: "_Taker", reader: StreamReader) -> ProviderFailure:
        """Return why a step failed. Raises what an engine raised that is no ProviderFailure."""
        noted = taker.failure or reader.failure
        if isinstance(noted, ProviderFailure):
            return noted
        if raised is not None:
            found = find_failure(raised)
            if found is None:
                raise TurnFailure(f"The engine failed: {flatten(raised)}", "engine_error", self._leftover) from raised
            return found
        if reader.idle:
            return idle_failure()
        message = "The provider's stream ended before it was completed."
        return ProviderFailure(ProviderFailureKind.STREAM_INTERRUPTED, message, cause="truncated")

    async def _close_step(self, attempt: Attempt, step: Step, sums: Sums, ended_at: float | None) -> None:
        """End a step: what it leaves is known, what it used is stored. Never raises but Cancelled."""
        self._read_until = trio.current_time() if ended_at is None else ended_at
        self._leftover = step.final_items() if step.completed is not None else step.unfinished()
        try:
            usage = await self.services.accounting.settle(attempt.attempt_id)
        except StorageError as error:
            self._storage_error = error
            return
        if step.completed is not None:
            counted = step.context_tokens(usage.prompt_tokens)
            self._anchor = None if counted is None else (counted, sums)

    def _attempt(self) -> Attempt:
        return Attempt(
            attempt_id=new_id(),
            thread_id=self.thread_id,
            turn_id=self.plan.turn_id,
            purpose=Purpose.SAMPLING,
            provider=self.plan.provider,
            model=self.plan.model,
            goal_id=self.port.attached_goal(),
        )

    def _request(self, attempt: Attempt) -> tuple[TurnContext, InferenceRequest]:
        limited = self._deadline.deadline != float("inf")
        context = TurnContext(
            thread_id=self.thread_id,
            turn_id=self.plan.turn_id,
            attempt_id=attempt.attempt_id,
            deadline=self._deadline.deadline if limited else None,
        )
        request = next_request(
            self.plan,
            self.view.request,
            self.services.config,
            thread_id=self.thread_id,
            compact_limit=self._limits().provider,
            deadline_remaining=self._deadline.deadline - trio.current_time() if limited else None,
        )
        return context, request

    def _cut_for_good(self) -> bool:
        return self.job.cause is not None or self._deadline.cancel_called

    def _cut(self) -> bool:
        return self._cut_for_good() or self.job.signal.pending

    # -- compaction --------------------------------------------------------------------------------------------------

    async def _compact_if_due(self) -> bool:
        """Compact if the window is too large; False if new input preempted that, so that the round begins again."""
        threshold = self._limits().runtime
        decision = rules.decide(
            "auto",
            threshold=threshold,
            size=self._size(),
            estimate=self._estimate(),
            baseline=self.view.baseline,
            failed_before=self._compaction_spent,
        )
        if isinstance(decision, rules.Skip) and decision.reason not in self._skipped:
            self._skipped.add(decision.reason)
            self._publish(ContextCompactionSkipped(decision.reason))
        if not isinstance(decision, rules.Compact) or rules.has_open_call(self.view.window):
            return True
        preemptible = rules.may_preempt(self._preempted_in_a_row, threshold=threshold, size=self._size())
        if preemptible and self.job.signal.pending:
            self._publish(ContextCompactionSkipped("new_input"))
            return False
        compaction = self._compaction(self._cut if preemptible else self._cut_for_good)
        outcome = await self._run_compaction(compaction, preemptible=preemptible)
        self.view = compaction.latest
        if outcome is None or isinstance(outcome, Preempted):
            self._preempted_in_a_row += 1
            self._compaction_spent = outcome is not None and self._preempted_in_a_row >= rules.MAX_PREEMPTED_IN_A_ROW
            return False
        if isinstance(outcome, Compacted):
            self._preempted_in_a_row, self._anchor = 0, None
        self._compaction_spent = not isinstance(outcome, Compacted) or self._size() >= threshold
        return not self._cut()

    async def _run_compaction(
        self, compaction: NativeCompaction, *, preemptible: bool
    ) -> NativeCompactionOutcome | None:
        """Run a compaction; None if a steer preempted it. One that failed counts as unsupported if that will do."""
        if not preemptible:
            return await self._try_compaction(compaction)
        try:
            with self.job.signal.watch() as steered:
                return await self._try_compaction(compaction)
        except ExceptionGroup:
            if not steered.cancel_called:
                raise
        return None

    async def _try_compaction(self, compaction: NativeCompaction) -> NativeCompactionOutcome:
        try:
            return await compaction.run()
        except (StorageError, ActorCrashed):
            raise
        except Exception as error:
            self._give_up_compaction(flatten(error))
            return Unsupported()

    def _give_up_compaction(self, error: BaseException) -> None:
        """Go on without a compaction that failed. Raises if the engine can't do without."""
        if not self.engine.requires_native_compaction:
            return
        found = find_failure(error)
        if found is None:
            raise TurnFailure(f"The engine failed: {error}", "engine_error") from error
        raise TurnFailure(str(found), found.kind.value) from found

    def _compaction(self, cut: Callable[[], bool]) -> NativeCompaction:
        return NativeCompaction(
            services=self.services,
            thread_id=self.thread_id,
            plan=self.plan,
            engine=self.engine,
            view=self.view,
            trigger="auto",
            report=self.port.report,
            cut=cut,
            cancel_reason=lambda: None if self._cut_for_good() else "new_input",
            attached_goal=self.port.attached_goal,
            deadline=self._deadline.deadline,
        )

    def _limits(self) -> rules.Limits:
        limit = self.services.config.auto_compact_token_limit
        return rules.limits(limit, self.model, bool(self.engine.requires_native_compaction))

    @property
    def _images(self) -> bool:
        return self.engine.capabilities.image_input

    def _estimate(self) -> int:
        return self.view.sums.tokens(self._images)

    def _size(self) -> int:
        if self._anchor is None:
            return self._estimate()
        counted, then = self._anchor
        return rules.size(self._estimate(), counted + (self.view.sums - then).tokens(self._images))

    # -- how it ended ------------------------------------------------------------------------------------------------

    def _failed(self, error: str, kind: str) -> Failed:
        return Failed(error, kind, self._leftover, f"not run: {kind}")

    def _failed_by(self, error: BaseException) -> Failed:
        match error:
            case TurnFailure():
                self._leftover = error.items
                return self._failed(str(error), error.kind)
            case ActorCrashed():
                return self._failed(str(error), "internal")
        log.error("a turn failed by a bug of the runtime", exc_info=error)
        return self._failed(f"The runtime failed: {type(error).__name__}: {error}", "internal")

    def _publish(self, event: Event) -> None:
        self.port.publish(event)


@attrs.define(eq=False)
class _Taker:
    """Takes a sampling stream's events: complete items are stored before what follows is shown."""

    step: Step
    port: JobPort
    turn_id: str
    failure: Exception | None = None

    async def take(self, event: InferenceEvent) -> bool:
        """Take one event; True at the end of the step, or after a failure of ours, which is noted."""
        try:
            done = self.step.absorb(event)
            if done:
                await self.port.report(ItemsDone(self.turn_id, done))
            self.port.show(event)
        except Exception as error:
            self.failure = error
            return True
        return self.step.completed is not None
