"""A native compaction: one transaction, in a job or in a caller's task.

Every attempt starts from the window the call was given, stages at most one boundary in memory, and is settled before
anything else happens. Only the commit changes the log; it runs shielded once the provider has said that it is done.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from roder_trio.actors._services import Services, new_id
from roder_trio.actors._stream import StreamReader
from roder_trio.actors._supervisor import cancel_alone, flatten
from roder_trio.actors.hook import Point
from roder_trio.errors import ProviderFailure, ProviderFailureKind, StaleWindow, StorageError
from roder_trio.logic import compaction as rules
from roder_trio.logic.cost import with_attempt
from roder_trio.logic.retry import RetrySeries
from roder_trio.logic.thread.facts import View
from roder_trio.logic.turn import Extras, compaction_request
from roder_trio.ports import InferenceEngine
from roder_trio.schema.command import CommitCompaction, RecordCompaction, TurnPlan
from roder_trio.schema.compaction import Compacted, NativeCompactionOutcome, Preempted, Unsupported
from roder_trio.schema.event import (
    ContextCompactionCancelled,
    ContextCompactionFailed,
    ContextCompactionRecorded,
    ContextCompactionStarted,
    Event,
    RetryScheduled,
)
from roder_trio.schema.inference import InferenceEvent, InferenceRequest, TurnContext
from roder_trio.schema.transcript import ProviderMetadata
from roder_trio.schema.usage import ZERO_USAGE, Attempt, Purpose, TokenUsage

Report = Callable[[Any], Awaitable[Any]]


@attrs.define(eq=False, kw_only=True)
class NativeCompaction:
    """One compaction of one window."""

    services: Services
    thread_id: str
    plan: TurnPlan
    engine: InferenceEngine
    view: View
    trigger: rules.Trigger
    report: Report
    """Has the thread store something, waiting under a shield for its fate."""
    cut: Callable[[], bool]
    """Whether a recorded cause wants the compaction to end."""
    cancel_reason: Callable[[], str | None]
    """Why a cancelled compaction ended; None leaves it to the turn's end to say so."""
    attached_goal: Callable[[], str | None]
    deadline: float = float("inf")
    hint: str | None = None
    context: str | None = None
    """What hooks added to the turn's developer context."""
    goal_note: Callable[[], str | None] = lambda: None
    """What a request of this moment says of the thread's goal."""
    compaction_id: str = attrs.field(factory=new_id)
    usage: TokenUsage = ZERO_USAGE
    """What was billed so far."""
    latest: View = attrs.field(init=False)
    """The thread's window after the newest report; `view` stays what the compaction was given."""
    _staging: rules.Staging = attrs.field(init=False, factory=rules.Staging)
    _failed_at: float = attrs.field(init=False, default=0.0)
    """When the newest failure was read, on trio's clock."""

    def __attrs_post_init__(self) -> None:
        self.latest = self.view

    async def run(self) -> NativeCompactionOutcome:
        """Compact. Every return, by outcome or exception, comes after all usage is settled.

        Cancelling drops the candidate; the log is as before unless the commit had begun. Raises ProviderFailure,
        StorageError.
        """
        tokens = self.view.sums.tokens(self.engine.capabilities.image_input)
        await self._record(ContextCompactionStarted(self.compaction_id, self.trigger, len(self.view.window), tokens))
        began = trio.current_time()
        verdict: rules.Commit | rules.Fail | rules.Declined | None = None
        try:
            verdict = await self._attempts()
        except Exception as error:
            kind = "storage" if isinstance(error, StorageError) else "engine_error"
            verdict = rules.Declined()
            await self._record(ContextCompactionFailed(self.compaction_id, str(flatten(error)), kind))
            raise
        finally:
            reason = self.cancel_reason() if verdict is None else None
            if reason is not None:
                await self._record(ContextCompactionCancelled(self.compaction_id, reason))
            elif verdict is None:
                await self._tell_hooks(ContextCompactionCancelled(self.compaction_id, "interrupted"))
        match verdict:
            case rules.Commit(item):
                return await self._commit(item, trio.current_time() - began)
            case rules.Fail(failure):
                await self._record(ContextCompactionFailed(self.compaction_id, str(failure), failure.kind.value))
                raise failure
            case _:
                message = "The provider has no compaction of its own."
                await self._record(ContextCompactionFailed(self.compaction_id, message, rules.UNSUPPORTED))
                return Unsupported()

    async def _attempts(self) -> rules.Commit | rules.Fail | rules.Declined:
        """Make attempts until one says how the compaction ends, or the budget is spent."""
        series = RetrySeries(self.services.config.reliability)
        while True:
            verdict = await self._attempt(series)
            if not isinstance(verdict, rules.Fail):
                return verdict
            failed, now = series.attempts, trio.current_time()
            remaining, read_at = self.deadline - now, self._failed_at
            wait = series.next(verdict.failure, self.services.jitter(), now, remaining, read_at=read_at)
            if wait is None:
                return verdict
            kind = verdict.failure.kind.value
            self._publish(RetryScheduled(failed, series.max_attempts, wait, kind))
            await trio.sleep(wait)

    async def _attempt(self, series: RetrySeries) -> rules.Commit | rules.Fail | rules.Declined:
        """Make one attempt, from an empty staging, and settle it. One that is cut before it began opens nothing."""
        if self.cut():
            await trio.lowlevel.checkpoint()
        attempt = Attempt(
            attempt_id=new_id(),
            thread_id=self.thread_id,
            turn_id=self.plan.turn_id,
            purpose=Purpose.NATIVE_COMPACTION,
            provider=self.plan.provider,
            model=self.plan.model,
            goal_id=self.attached_goal(),
        )
        self._staging = rules.Staging(bool(self.engine.requires_native_compaction))
        accounting = self.services.accounting
        accounting.open(attempt)
        try:
            verdict = await self._exchange(attempt, series)
        finally:
            self.usage += await accounting.settle(attempt.attempt_id)
        if isinstance(verdict, rules.Commit):
            payload = with_attempt(verdict.item.payload, attempt.attempt_id, attempt.model)
            return rules.Commit(ProviderMetadata(payload))
        return verdict

    async def _exchange(self, attempt: Attempt, series: RetrySeries) -> rules.Commit | rules.Fail | rules.Declined:
        context = TurnContext(
            thread_id=self.thread_id,
            turn_id=self.plan.turn_id,
            attempt_id=attempt.attempt_id,
            purpose=Purpose.NATIVE_COMPACTION,
            deadline=None if self.deadline == float("inf") else self.deadline,
        )
        ending: rules.Verdict = rules.Proceed()

        async def take(event: InferenceEvent) -> bool:
            nonlocal ending
            self._staging, ending = rules.step(self._staging, event)
            if isinstance(ending, rules.Retried):
                series.spend()
            return isinstance(ending, rules.Commit | rules.Fail)

        config = self.services.config
        reader = StreamReader(
            lambda usage: self.services.accounting.observe(attempt.attempt_id, usage),
            self.cut,
            config.reliability.stream_idle_timeout,
            config.deadlines.stream_close_grace,
        )
        raised: Exception | None = None
        try:
            block = self.engine.compact_turn(context, self._request())
            if block is None:
                return self._end(rules.Ending.DECLINED)
            with cancel_alone():
                await reader.read(block, take)
        except Exception as error:
            raised = error
        self._failed_at = trio.current_time()
        if isinstance(ending, rules.Commit):
            return ending
        if self.cut():
            await trio.lowlevel.checkpoint()
        if isinstance(ending, rules.Fail):
            return ending
        if raised is not None:
            return self._end(typed_failure(raised))
        if reader.idle:
            return self._end(idle_failure())
        return self._end(reader.failure or rules.Ending.EXHAUSTED)

    def _end(self, ending: ProviderFailure | rules.Ending) -> rules.Fail | rules.Declined:
        _, verdict = rules.step(self._staging, ending)
        if isinstance(verdict, rules.Fail | rules.Declined):
            return verdict
        raise AssertionError(f"a stream's end can't be {verdict!r}")

    def _request(self) -> InferenceRequest:
        services = self.services
        row = services.engine_facts[self.plan.provider].models.get(self.plan.model)
        tools = services.toolbox.offered(self.plan, services.config, self.engine, row)
        extras = Extras(context=self.context, goal_note=self.goal_note(), tools=tools)
        return compaction_request(
            self.plan, self.view, services.config, extras, thread_id=self.thread_id, hint=self.hint
        )

    async def _commit(self, item: ProviderMetadata, duration: float) -> NativeCompactionOutcome:
        commit = CommitCompaction(
            turn_id=self.plan.turn_id,
            compaction_id=self.compaction_id,
            base=self.view.base,
            item=item,
            strategy="native",
            duration=duration,
        )
        try:
            self.latest = await self.report(commit)
        except StaleWindow:
            await self._record(ContextCompactionCancelled(self.compaction_id, "stale_window"))
            return Preempted(self.view.window)
        except StorageError as error:
            await self._record(ContextCompactionFailed(self.compaction_id, str(error), "storage"))
            raise
        recorded = ContextCompactionRecorded(self.compaction_id, "native", 1, rules.estimate([item]), duration)
        await self._tell_hooks(recorded)
        return Compacted([item])

    async def _record(self, event: Event) -> None:
        self.latest = await self.report(RecordCompaction(self.plan.turn_id, event))
        await self._tell_hooks(event)

    async def _tell_hooks(self, event: Event) -> None:
        """Tell the hooks that the compaction begins or has ended; shielded, each hook within its time."""
        started = isinstance(event, ContextCompactionStarted)
        with trio.CancelScope(shield=True):
            point: Point = "compaction_starting" if started else "compaction_finished"
            await self.services.hooks.compaction(point, event, self._publish)

    def _publish(self, event: Event) -> None:
        self.services.publish_live(event, self.thread_id, self.plan.turn_id, "turn")


def typed_failure(error: BaseException) -> ProviderFailure:
    """Return the ProviderFailure in what an engine raised; anything else is raised as it is."""
    found = find_failure(error)
    if found is None:
        raise error
    return found


def find_failure(error: BaseException) -> ProviderFailure | None:
    """Return the first ProviderFailure in an error or a group."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := find_failure(inner)) is not None), None)
    return error if isinstance(error, ProviderFailure) else None


def idle_failure() -> ProviderFailure:
    """Return the failure of a stream that brought nothing for too long."""
    return ProviderFailure(
        ProviderFailureKind.TIMEOUT, "The provider's stream brought no event for too long.", cause="idle"
    )
