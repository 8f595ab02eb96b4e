"""The tool calls of one turn: which ids it has used, what ran, and how many failed.

A step's calls are sorted by their ids before any of them runs, then run as one batch. An engine that runs tools inside
its stream gets `run_inside`, the same pipeline for one call; what goes wrong there is noted at the step, never left to
the engine.
"""

import logging
from collections.abc import Iterable

import attrs
import trio

from roder_trio.actors._services import new_id
from roder_trio.actors._supervisor import flatten
from roder_trio.actors._turn import TurnFailure, TurnScope
from roder_trio.actors.step import SamplingStep
from roder_trio.actors.tool import ToolBatch
from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.tool.failure import Failures, LimitHit, limit_hit
from roder_trio.logic.tool.ids import SortedCalls, sort_calls
from roder_trio.schema.command import ItemsDone
from roder_trio.schema.event import LimitReached
from roder_trio.schema.transcript import ToolCall, ToolResult, TranscriptItem

log = logging.getLogger(__name__)


@attrs.define(eq=False)
class TurnCalls:
    """What a turn knows of its calls."""

    scope: TurnScope
    _answered: dict[str, ToolCall] = attrs.field(init=False, factory=dict)
    """The turn's calls that have results."""
    _results: dict[str, ToolResult] = attrs.field(init=False, factory=dict)
    _unstored: tuple[ToolResult, ...] = attrs.field(init=False, default=())
    """Results that a cut kept from being stored, in call order."""
    _inside: list[str] = attrs.field(init=False, factory=list)
    """The calls that run inside a stream at this moment."""
    _failures: Failures = attrs.field(init=False, default=Failures())

    def sort(self, calls: Iterable[ToolCall]) -> SortedCalls:
        """Give calls the ids under which they are stored. Raises ProviderFailure, and then none of them may run."""
        found = sort_calls(calls, self._answered, self.scope.port.earlier_calls(), new_id)
        if found.duplicates:
            log.warning("the engine sent call ids twice in one step: %s", ", ".join(found.duplicates))
        return found

    async def run(self, calls: tuple[ToolCall, ...], finish_reason: str | None) -> tuple[TranscriptItem, ...]:
        """Run a step's calls, results stored in call order; returns the nudge that a row of failures is met with.

        Raises TurnFailure at a limit that ends the turn, StorageError. What a cut keeps from being stored is left.
        """
        await self._run_batch(calls, finish_reason)
        hit = self._limit_hit()
        if hit is None:
            return ()
        self.scope.publish(LimitReached(hit.name, hit.value))
        if hit.nudge is None:
            raise TurnFailure(hit.error, "reliability_limit")
        self._failures = self._failures.reset()
        return (hit.nudge,)

    async def run_inside(self, sampled: SamplingStep, call: ToolCall) -> ToolResult:
        """Run a call inside a stream: the same pipeline, and call and result are stored before it returns.

        The text so far is stored before the call. A call of this turn that came again gets the result it had. Raises
        ProviderFailure for an id that may not be used, StorageError; the step then ends with that, whatever the engine
        makes of it. A cancel leaves the call with an error result.
        """
        try:
            stored = self._admit(call)
            if stored is None:
                await trio.lowlevel.checkpoint()
                return self._results[call.id]
            self._inside.append(call.id)
            try:
                await self.scope.port.report(ItemsDone(self.scope.turn_id, (*sampled.end_run(), stored)))
                await self._run_batch((stored,), None)
            finally:
                self._inside.remove(call.id)
        except Exception as error:
            sampled.note(flatten(error))
            raise
        hit = self._limit_hit()
        if hit is not None and hit.nudge is None:
            self.scope.publish(LimitReached(hit.name, hit.value))
            sampled.note(TurnFailure(hit.error, "reliability_limit"))
        return attrs.evolve(self._results[stored.id], id=call.id)

    def note_answered(self, calls: Iterable[ToolCall]) -> None:
        """Take note of calls that get their results without being run."""
        self._answered.update((call.id, call) for call in calls)

    def take_unstored(self) -> tuple[ToolResult, ...]:
        """Return the results that aren't stored; they are the caller's to store then."""
        unstored, self._unstored = self._unstored, ()
        return unstored

    def _admit(self, call: ToolCall) -> ToolCall | None:
        """Return a call as it is stored; None if it has its result already."""
        if call.id in self._inside:
            kind = ProviderFailureKind.PROTOCOL
            raise ProviderFailure(kind, f"The engine runs two calls of the id {call.id!r} at once.")
        return next(iter(self.sort((call,)).calls), None)

    async def _run_batch(self, calls: tuple[ToolCall, ...], finish_reason: str | None) -> None:
        scope = self.scope
        batch = ToolBatch(
            services=scope.services,
            thread_id=scope.thread_id,
            plan=scope.plan,
            port=scope.port,
            calls=calls,
            finish_reason=finish_reason,
            deadline=scope.deadline,
            parallel=scope.calls_in_parallel,
            cut_at=scope.cut_at,
        )
        try:
            results = await batch.run()
        finally:
            self._unstored += batch.leftover()
        self.note_answered(calls)
        self._results.update((result.id, result) for result in results)
        self._failures = self._failures.add(results)

    def _limit_hit(self) -> LimitHit | None:
        config = self.scope.services.config.reliability
        return limit_hit(
            self._failures,
            per_turn=config.max_tool_failures_per_turn,
            consecutive=config.max_consecutive_tool_failures,
            goes_on=config.continue_on_failure_limit,
        )
