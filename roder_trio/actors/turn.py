"""The job that runs a turn: rounds of steers, compaction and one sampling step, until a step ends it.

The job keeps no history of its own: what it stores it reports, and each answer is the thread's window after that
commit. It ends by returning an outcome; the thread makes the single terminal event of it.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from roder_trio.actors._answer import Again, StructuredAnswer
from roder_trio.actors._auto import AutoCompaction
from roder_trio.actors._calls import TurnCalls
from roder_trio.actors._route import Route
from roder_trio.actors._supervisor import flatten
from roder_trio.actors._turn import TurnFailure, TurnScope
from roder_trio.actors.step import SamplingStep, sampling_attempt
from roder_trio.errors import ActorCrashed, AppendOutcomeUnknown, ProviderFailure, StorageError
from roder_trio.logic.compaction import OVERFLOWS
from roder_trio.logic.output import NOT_THE_END, not_taken, takes_format
from roder_trio.logic.retry import RetrySeries
from roder_trio.logic.tool.ids import SortedCalls
from roder_trio.logic.turn import Extras, Step, next_request
from roder_trio.logic.window import without_images
from roder_trio.schema.command import (
    Failed,
    FinalStep,
    Finished,
    Interrupted,
    JobOutcome,
    StepEnded,
    TakeSteers,
    ToolResultsDone,
)
from roder_trio.schema.event import ContextLimitRecovered, LimitReached, RetryScheduled
from roder_trio.schema.inference import InferenceRequest, TurnContext
from roder_trio.schema.transcript import ProviderMetadata, ToolCall, ToolResult, TranscriptItem

log = logging.getLogger(__name__)

MAX_RECOVERIES = 2
"""How often in a turn a request may turn out to be too large for its model."""


@attrs.define(eq=False)
class TurnJob:
    """One turn, from its opening to its outcome."""

    scope: TurnScope
    _compaction: AutoCompaction = attrs.field(init=False)
    _leftover: tuple[TranscriptItem, ...] = attrs.field(init=False, default=())
    """What a cut step leaves for the turn's last commit."""
    _settle_error: StorageError | None = attrs.field(init=False, default=None)
    """A step's usage could not be settled."""
    _model_calls: int = attrs.field(init=False, default=0)
    _recoveries: int = attrs.field(init=False, default=0)
    """How often the window was made smaller because a request was too large."""
    _known_calls: TurnCalls | None = attrs.field(init=False, default=None)
    """Made at the first call, or the end of the first step."""
    _answer: StructuredAnswer | None = attrs.field(init=False, default=None)
    _steers_seen: int = attrs.field(init=False, default=0)
    """How many steers the newest request holds."""

    def __attrs_post_init__(self) -> None:
        self._compaction = AutoCompaction(self.scope)
        scope, form = self.scope, self.scope.plan.output_form
        if form is not None:
            by_format = takes_format(scope.engine.capabilities, scope.model)
            self._answer = StructuredAnswer(form, by_format, scope.services.config.output_retries)

    async def run(self) -> JobOutcome:
        """Run the turn and return how it ended. Nothing but a Cancelled from outside is raised."""
        error: BaseException | None = None
        limit = self.scope.services.config.reliability.turn_deadline
        try:
            if limit is not None:
                self.scope.job.scope.deadline = trio.current_time() + limit
            with self.scope.job.scope:
                await self._ask_hooks()
                await self._rounds()
                return Finished()
        except Exception as raised:
            error = flatten(raised)
        if isinstance(error, TurnFailure) and error.items is not None:
            self._leftover = error.items
        if isinstance(self._settle_error or error, StorageError):
            return self._failed(str(self._settle_error or error), "storage")
        if self.scope.job.cause is not None:
            return Interrupted(self.scope.job.cause, self._leftover)
        if limit is not None and self.scope.job.is_cut:
            message = f"The turn did not end within its deadline of {limit:g} s."
            return Failed(message, "deadline_timeout", self._leftover, "timed out")
        return self._failed_by(error)

    async def _ask_hooks(self) -> None:
        """Let the hooks add to the developer context of this turn's requests."""
        scope, message = self.scope, self.scope.plan.message
        assert message is not None
        hooks = scope.services.hooks
        scope.context = await hooks.turn_starting(scope.thread_id, scope.turn_id, message, scope.publish)

    # -- rounds ------------------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        scope = self.scope
        series = self._begin_step()
        while True:
            if scope.cut_for_good():
                await trio.lowlevel.checkpoint()
            if scope.job.signal.pending:
                scope.view = await scope.port.report(TakeSteers(scope.turn_id))
                series = self._begin_step()
            if not await self._compaction.compact_if_due():
                continue
            self._count_model_call()
            sampled = await self._sample()
            if sampled.preempted:
                await self._next_round(sampled, StepEnded(scope.turn_id, self._leftover))
                series = self._begin_step()
            elif sampled.failure is not None and sampled.failure.kind in OVERFLOWS:
                series = await self._recover(sampled.failure, sampled)
            elif sampled.failure is not None:
                series = await self._retry(sampled.failure, sampled, series)
            elif await self._complete(sampled):
                return
            else:
                series = self._begin_step()

    async def _sample(self) -> SamplingStep:
        """Run one step; what it leaves is the turn's to store, whatever ended it."""
        attempt, asked = sampling_attempt(self.scope), self.scope.view
        sampled = SamplingStep(self.scope, attempt)
        if self._answer is not None and self._is_steered():
            self._answer.ask_freely()
        self._steers_seen = self.scope.job.signal.seen
        try:
            await sampled.run(*self._request(sampled))
        finally:
            self._leftover = (*self._calls.take_unstored(), *sampled.leftover)
            self._settle_error = sampled.storage_error
        if sampled.step.completed is not None:
            on_first = self.scope.routes.current is self.scope.routes.first
            tokens = sampled.step.context_tokens(sampled.usage.prompt_tokens) if on_first else None
            self._compaction.count(tokens, asked)
        return sampled

    def _request(self, sampled: SamplingStep) -> tuple[TurnContext, InferenceRequest]:
        scope, services, route = self.scope, self.scope.services, self.scope.routes.current
        tools = services.toolbox.offered(scope.plan, services.config, route.engine, route.row)
        extras = Extras(context=scope.context, goal_note=scope.port.goal_note(), tools=tools)
        if self._answer is not None:
            extras = attrs.evolve(
                extras,
                tools=(*tools, *self._answer.tools),
                tool_choice=self._answer.tool_choice,
                response_format=self._answer.response_format,
            )
        context = TurnContext(
            thread_id=scope.thread_id,
            turn_id=scope.turn_id,
            attempt_id=sampled.attempt.attempt_id,
            deadline=scope.deadline if scope.is_limited else None,
            run_tool=partial(self._run_inside, sampled),
        )
        request = next_request(
            route.plan(scope.plan),
            self._transcript(route),
            services.config,
            extras,
            thread_id=scope.thread_id,
            compact_limit=self._compaction.limits(route).provider,
            deadline_remaining=scope.deadline - trio.current_time() if scope.is_limited else None,
        )
        return context, request

    def _transcript(self, route: Route) -> Sequence[TranscriptItem]:
        """The items of a request: the window, shared; notes stand for images that the engine doesn't take."""
        scope, view = self.scope, self.scope.view
        request = view.request if route is scope.routes.first else scope.port.request_for(route.engine.target)
        if view.has_images and not route.engine.capabilities.image_input:
            return without_images(request)
        return request

    def _begin_step(self) -> RetrySeries:
        """Forget what the step before was up to; returns its budget of attempts."""
        self.scope.routes.begin_step()
        return self._new_series()

    def _new_series(self) -> RetrySeries:
        return RetrySeries(self.scope.services.config.reliability)

    def _count_model_call(self) -> None:
        limit = self.scope.services.config.reliability.max_model_calls_per_turn
        if self._model_calls >= limit:
            self.scope.publish(LimitReached("max_model_calls_per_turn", limit))
            raise TurnFailure(f"The turn reached its limit of {limit} model calls.", "reliability_limit")
        self._model_calls += 1

    # -- after a step ------------------------------------------------------------------------------------------------

    async def _next_round(self, sampled: SamplingStep, report: StepEnded) -> None:
        self._check_closed(sampled)
        self.scope.view = await self._report_step(report)

    async def _report_step(self, report: StepEnded | FinalStep) -> Any:
        """Report what a step leaves; only what surely isn't stored is left for the turn's last commit."""
        items, self._leftover = self._leftover, ()
        try:
            return await self.scope.port.report(report)
        except AppendOutcomeUnknown:
            raise
        except StorageError:
            self._leftover = items
            raise

    def _check_closed(self, sampled: SamplingStep) -> None:
        """Raise if another round would follow a stream that was not closed in time."""
        if sampled.overran:
            raise TurnFailure("The engine did not close its stream in time.", "cleanup_timeout")

    async def _complete(self, sampled: SamplingStep) -> bool:
        """Store a step that ended well, and run its calls; True if it ended the turn."""
        step, turn_id = sampled.step, self.scope.turn_id
        sorted_calls = self._sort_calls(step)
        given = () if self._answer is None else self._answer.calls_in(sorted_calls.calls)
        calls = tuple(call for call in sorted_calls.calls if call not in given)
        self._leftover = tuple(item for item in self._leftover if item not in given)
        self._calls.note_answered(given)
        if calls:
            await self._next_round(sampled, StepEnded(turn_id, self._leftover))
            await self._run_calls(calls, step.finish_reason)
            if not given:
                return False
        steered = self._answer is not None and self._is_steered()
        if steered or step.forces_round or sorted_calls.replayed:
            self._leftover = (*self._leftover, *given, *not_taken(given, NOT_THE_END))
            await self._next_round(sampled, StepEnded(turn_id, self._leftover))
            return False
        return await self._finish(sampled, given)

    async def _finish(self, sampled: SamplingStep, given: tuple[ToolCall, ...]) -> bool:
        """End the turn with its answer; False if it goes on: for a steer, or for an answer that must be given again."""
        scope, step, items, output = self.scope, sampled.step, self._leftover, None
        if self._answer is not None:
            verdict = self._answer.judge(step, given, self._leftover)
            if isinstance(verdict, Again):
                self._leftover = verdict.items
                await self._next_round(sampled, StepEnded(scope.turn_id, self._leftover))
                return False
            items, self._leftover, output = verdict.items, verdict.otherwise, verdict
        report = FinalStep(scope.turn_id, items, step.finish_reason, output, otherwise=self._leftover)
        answer = await self._report_step(report)
        if answer is None:
            return True
        scope.view = answer
        self._check_closed(sampled)
        return False

    def _is_steered(self) -> bool:
        """Whether there is a steer that the newest request doesn't hold."""
        signal = self.scope.job.signal
        return signal.pending or signal.seen != self._steers_seen

    # -- tools -------------------------------------------------------------------------------------------------------

    @property
    def _calls(self) -> TurnCalls:
        if self._known_calls is None:
            self._known_calls = TurnCalls(self.scope)
        return self._known_calls

    async def _run_inside(self, sampled: SamplingStep, call: ToolCall) -> ToolResult:
        return await self._calls.run_inside(sampled, call)

    def _sort_calls(self, step: Step) -> SortedCalls:
        """Give the step's calls the ids under which they are stored; what the step leaves is changed to match."""
        try:
            sorted_calls = self._calls.sort((*step.calls.values(), *step.repeated))
        except ProviderFailure as failure:
            said = tuple(item for item in self._leftover if not isinstance(item, ToolCall | ProviderMetadata))
            raise TurnFailure(str(failure), failure.kind.value, said) from failure
        former = {new: old for old, new in sorted_calls.renamed.items()}
        stored = {former.get(call.id, call.id): call for call in sorted_calls.calls}
        self._leftover = tuple(
            changed for item in self._leftover if (changed := _stored_form(item, sorted_calls, stored)) is not None
        )
        return sorted_calls

    async def _run_calls(self, calls: tuple[ToolCall, ...], finish_reason: str | None) -> None:
        """Run a step's calls; results are stored, in call order, before the next round begins."""
        scope = self.scope
        if scope.cut_for_good():
            await trio.lowlevel.checkpoint()
        try:
            nudge = await self._calls.run(calls, finish_reason)
        finally:
            self._leftover = self._calls.take_unstored()
        scope.view = await scope.port.report(ToolResultsDone(scope.turn_id, nudge))

    async def _retry(self, failure: ProviderFailure, sampled: SamplingStep, series: RetrySeries) -> RetrySeries:
        """Wait for the next attempt at a failed step, its open text discarded, or go to the next engine at once.

        Raises the failure if it stands.
        """
        scope, signal = self.scope, self.scope.job.signal
        series.spend(sampled.step.retries_inside)
        scope.routes.note(shown=sampled.step.shown)
        failed, now, seen = series.attempts, trio.current_time(), signal.seen
        remaining = scope.deadline - now
        wait = series.next(failure, scope.services.jitter(), now, remaining, read_at=sampled.read_until)
        if wait is None and not await scope.routes.take_over(failure):
            raise TurnFailure(str(failure), failure.kind.value) from failure
        self._leftover = tuple(item for item in self._leftover if isinstance(item, ToolResult))
        await self._next_round(sampled, StepEnded(scope.turn_id, self._leftover))
        if signal.seen != seen:
            return self._begin_step()
        if wait is None:
            return self._new_series()
        scope.publish(RetryScheduled(failed, series.max_attempts, wait, failure.kind.value))
        with signal.watch():
            await trio.sleep(wait)
        return series

    async def _recover(self, overflow: ProviderFailure, sampled: SamplingStep) -> RetrySeries:
        """Make the window smaller after a request that was too large. Raises the failure if that can't be done."""
        scope, failed = self.scope, TurnFailure(str(overflow), overflow.kind.value)
        if self._recoveries >= MAX_RECOVERIES:
            raise failed from overflow
        self._leftover = tuple(item for item in self._leftover if isinstance(item, ToolResult))
        await self._next_round(sampled, StepEnded(scope.turn_id, self._leftover))
        self._recoveries += 1
        try:
            recovery = await self._compaction.recover(self._recoveries)
        except (StorageError, ActorCrashed):
            raise
        except Exception as error:
            raise failed from flatten(error)
        if recovery is not None:
            if recovery.after >= recovery.before:
                raise failed from overflow
            scope.publish(ContextLimitRecovered(self._recoveries, recovery.before, recovery.after))
        return self._begin_step()

    # -- how it ended ------------------------------------------------------------------------------------------------

    def _failed(self, error: str, kind: str) -> Failed:
        return Failed(error, kind, self._leftover, f"not run: {kind}")

    def _failed_by(self, error: BaseException | None) -> Failed:
        match error:
            case TurnFailure():
                return self._failed(str(error), error.kind)
            case ActorCrashed():
                return self._failed(str(error), "internal")
        log.error("a turn failed by a bug of the runtime", exc_info=error)
        return self._failed(f"The runtime failed: {type(error).__name__}: {error}", "internal")


def _stored_form(
    item: TranscriptItem, sorted_calls: SortedCalls, stored: Mapping[str, ToolCall]
) -> TranscriptItem | None:
    """Return an item of a step as it is stored, by what its calls became; None if it is dropped."""
    if isinstance(item, ToolCall):
        return stored.get(item.id)
    return sorted_calls.rewritten(item) if isinstance(item, ProviderMetadata) else item
