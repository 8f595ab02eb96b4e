"""A compaction: one transaction, in a job or in a caller's task, by whatever strategy works.

The provider's own compaction comes first; where it has none, or the window is too large for it, the thread's model
writes a summary. Everything is settled before anything else happens. Only the commit changes the log; it runs shielded
once its boundary is whole.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, assert_never

import attrs
import trio

from roder_trio.actors._attempts import Attempts
from roder_trio.actors._native import NativeStrategy
from roder_trio.actors._services import Services, new_id
from roder_trio.actors._summary import SummaryStrategy
from roder_trio.actors._supervisor import flatten
from roder_trio.actors.hook import Point
from roder_trio.errors import StaleWindow, StorageError
from roder_trio.logic import compaction as rules
from roder_trio.logic.thread.facts import View
from roder_trio.logic.turn import Extras, compaction_request
from roder_trio.logic.window import without_images
from roder_trio.ports import InferenceEngine
from roder_trio.schema.command import CommitCompaction, RecordCompaction, TurnPlan
from roder_trio.schema.compaction import Compacted, Preempted
from roder_trio.schema.event import (
    ContextCompactionCancelled,
    ContextCompactionFailed,
    ContextCompactionRecorded,
    ContextCompactionStarted,
    Event,
)
from roder_trio.schema.inference import InferenceRequest, ModelChoice, ModelDescriptor
from roder_trio.schema.usage import TokenUsage

Report = Callable[[Any], Awaitable[Any]]
Outcome: TypeAlias = Compacted | Preempted | rules.Kept
_Verdict: TypeAlias = rules.Boundary | rules.Fail | rules.Kept
_WHY_KEPT = {
    rules.NOTHING_TO_COMPACT: "There is nothing in the context that a summary could stand for.",
    rules.CANNOT_SHRINK: "No summary made the context smaller.",
    rules.UNSUPPORTED: "The provider has no compaction of its own.",
}


@attrs.define(eq=False, kw_only=True)
class Compaction:
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
    threshold: int = 0
    """Tokens from which the runtime compacts; 0 if never."""
    row: ModelDescriptor | None = None
    """What the catalog knows of the model."""
    too_large: bool = False
    """The window can't be sent as it is."""
    strategy: str | None = attrs.field(init=False, default=None)
    """How the boundary was made that this committed."""
    latest: View = attrs.field(init=False)
    """The thread's window after the newest report; `view` stays what the compaction was given."""
    _attempts: Attempts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.latest = self.view
        self._attempts = Attempts(
            services=self.services,
            thread_id=self.thread_id,
            plan=self.plan,
            cut=self.cut,
            attached_goal=self.attached_goal,
            deadline=self.deadline,
        )

    @property
    def usage(self) -> TokenUsage:
        """What was billed so far."""
        return self._attempts.usage

    async def run(self) -> Outcome:
        """Compact. Every return, by outcome or exception, comes after all usage is settled.

        Cancelling drops the candidate; the log is as before unless the commit had begun. Raises ProviderFailure,
        StorageError.
        """
        tokens = self.view.sums.tokens(self.engine.capabilities.image_input)
        await self._record(ContextCompactionStarted(self.compaction_id, self.trigger, len(self.view.window), tokens))
        began = trio.current_time()
        verdict: _Verdict | None = None
        try:
            verdict = await self._by_strategies()
        except Exception as error:
            kind = "storage" if isinstance(error, StorageError) else "engine_error"
            verdict = rules.Kept("failed")
            await self._record(ContextCompactionFailed(self.compaction_id, str(flatten(error)), kind))
            raise
        finally:
            reason = self.cancel_reason() if verdict is None else None
            if reason is not None:
                await self._record(ContextCompactionCancelled(self.compaction_id, reason))
            elif verdict is None:
                await self._tell_hooks(ContextCompactionCancelled(self.compaction_id, "interrupted"))
        match verdict:
            case rules.Boundary():
                return await self._commit(verdict, trio.current_time() - began)
            case rules.Kept(why):
                await self._record(ContextCompactionFailed(self.compaction_id, _WHY_KEPT[why], why))
                return verdict
            case rules.Fail(failure):
                await self._record(ContextCompactionFailed(self.compaction_id, str(failure), failure.kind.value))
                raise failure
        assert_never(verdict)

    async def _by_strategies(self) -> _Verdict:
        """Let the provider compact; where it can't and needn't, have a summary written."""
        found = await NativeStrategy(self._attempts, self.engine, self._request).run()
        verdict = rules.Kept(rules.UNSUPPORTED) if isinstance(found, rules.Declined) else found
        if self.trigger == "direct" or self.engine.requires_native_compaction or isinstance(verdict, rules.Boundary):
            return verdict
        if isinstance(verdict, rules.Fail) and verdict.failure.kind not in rules.OVERFLOWS:
            return verdict
        strategy = SummaryStrategy(
            attempts=self._attempts,
            engine=self.engine,
            model=ModelChoice(self.plan.provider, self.plan.model),
            window=self.view.window,
            said=self.view.said,
            threshold=self.threshold,
            context_window=None if self.row is None else self.row.context_window,
            must_shrink=self.too_large,
            hint=self.hint,
        )
        return await strategy.run()

    def _request(self, attempts_left: int) -> InferenceRequest:
        services, window = self.services, self.view.window
        row = services.engine_facts[self.plan.provider].models.get(self.plan.model)
        tools = services.toolbox.offered(self.plan, services.config, self.engine, row)
        extras = Extras(context=self.context, goal_note=self.goal_note(), tools=tools)
        takes_all = self.engine.capabilities.image_input or not self.view.has_images
        return compaction_request(
            self.plan,
            window if takes_all else without_images(window),
            services.config,
            extras,
            thread_id=self.thread_id,
            hint=self.hint,
            attempts_left=attempts_left,
            deadline_remaining=None if self.deadline == float("inf") else self.deadline - trio.current_time(),
        )

    async def _commit(self, verdict: rules.Boundary, duration: float) -> Outcome:
        commit = CommitCompaction(
            turn_id=self.plan.turn_id,
            compaction_id=self.compaction_id,
            base=self.view.base,
            item=verdict.item,
            strategy=verdict.strategy,
            duration=duration,
            item_count=verdict.item_count,
            tokens=verdict.tokens,
        )
        try:
            self.latest = await self.report(commit)
        except StaleWindow:
            await self._record(ContextCompactionCancelled(self.compaction_id, "stale_window"))
            return Preempted(self.view.window)
        except StorageError as error:
            await self._record(ContextCompactionFailed(self.compaction_id, str(error), "storage"))
            raise
        self.strategy = verdict.strategy
        recorded = ContextCompactionRecorded(
            self.compaction_id, verdict.strategy, verdict.item_count, verdict.tokens, duration
        )
        await self._tell_hooks(recorded)
        return Compacted([verdict.item])

    async def _record(self, event: Event) -> None:
        """Have an event stored and told to the hooks; an end is told to them even if it can't be stored."""
        try:
            self.latest = await self.report(RecordCompaction(self.plan.turn_id, event))
        except Exception:
            if not isinstance(event, ContextCompactionStarted):
                await self._tell_hooks(event)
            raise
        await self._tell_hooks(event)

    async def _tell_hooks(self, event: Event) -> None:
        """Tell the hooks that the compaction begins or has ended; shielded, each hook within its time."""
        started = isinstance(event, ContextCompactionStarted)
        with trio.CancelScope(shield=True):
            point: Point = "compaction_starting" if started else "compaction_finished"
            await self.services.hooks.compaction(point, event, self._attempts.publish)
