"""Automatic compaction within a turn: once at the top of each round, if the window is too large."""

from contextlib import nullcontext

import attrs
import trio

from roder_trio.actors._attempts import find_failure
from roder_trio.actors._route import Route
from roder_trio.actors._supervisor import flatten
from roder_trio.actors._turn import TurnFailure, TurnScope
from roder_trio.actors.compaction import Compaction, Outcome
from roder_trio.errors import ActorCrashed, StorageError
from roder_trio.logic import compaction as rules
from roder_trio.logic import pruning
from roder_trio.logic.boundary import has_open_call
from roder_trio.logic.thread.facts import View
from roder_trio.schema.command import PruneContext
from roder_trio.schema.compaction import Compacted, Preempted
from roder_trio.schema.event import ContextCompactionSkipped
from roder_trio.schema.transcript import TranscriptItem

KEEP_AT_OVERFLOW = "keep the active goal and the latest tool outcomes"


@attrs.frozen
class Recovery:
    """What became of a window that was too large, in tokens."""

    before: int
    after: int


@attrs.define(eq=False)
class AutoCompaction:
    """When a turn's window is compacted, and what came of it so far in this turn."""

    scope: TurnScope
    _spent: bool = False
    """One failed, or didn't help."""
    _preempted_in_a_row: int = 0
    _skipped: tuple[str, ...] = ()
    _anchor: tuple[int, View] | None = None
    """The provider's count of the newest request, and the window as it was then."""

    def limits(self, route: Route) -> rules.Limits:
        """From how many tokens on who compacts."""
        limit = self.scope.services.config.auto_compact_token_limit
        return rules.limits(limit, route.row, bool(route.engine.requires_native_compaction))

    def count(self, tokens: int | None, asked: View) -> None:
        """Take the provider's count of a request whose window was that of `asked`; None: it can't be told."""
        self._anchor = None if tokens is None else (tokens, asked)

    async def compact_if_due(self) -> bool:
        """Prune or compact if the window is too large; False if new input preempted that: the round begins again.

        Raises TurnFailure if the engine can't do without a compaction that failed.
        """
        scope = self.scope
        threshold, size = self.limits(scope.routes.first).runtime, self._size()
        decision = rules.decide(
            "auto",
            threshold=threshold,
            size=size,
            estimate=self._estimate(),
            baseline=scope.view.baseline,
            failed_before=self._spent,
            prunes=lambda: self._prunes(size, threshold),
        )
        match decision:
            case rules.Skip(reason) if reason not in self._skipped:
                self._skipped += (reason,)
                scope.publish(ContextCompactionSkipped(reason))
            case rules.Prune():
                await self._prune(PruneContext(turn_id=scope.turn_id, size=size, threshold=threshold))
            case rules.Compact() if not has_open_call(scope.view.window):
                return await self._compact(threshold, size)
        return True

    async def _compact(self, threshold: int, size: int) -> bool:
        scope = self.scope
        window = None if scope.model is None else scope.model.context_window
        try:
            outcome = await self._run("auto", too_large=window is not None and size >= window)
        except (StorageError, ActorCrashed):
            raise
        except Exception as error:
            self._give_up(flatten(error))
            outcome = rules.Kept("failed")
        if outcome is None or isinstance(outcome, Preempted):
            self._spent = outcome is not None and self._preempted_in_a_row >= rules.MAX_PREEMPTED_IN_A_ROW
            return False
        self._spent = not isinstance(outcome, Compacted) or self._size() >= threshold
        return not scope.cut()

    async def recover(self, attempt: int) -> Recovery | None:
        """Make the window smaller after a request that was too large for the model; None if new input preempted that.

        While a call is open the window stays as it is. Raises what made it fail.
        """
        scope, before = self.scope, self._estimate()
        if has_open_call(scope.view.window):
            await trio.lowlevel.checkpoint()
            return Recovery(before, before)
        if attempt > 1 and not scope.engine.requires_native_compaction:
            await self._prune(PruneContext(turn_id=scope.turn_id, all_old=True))
        outcome = await self._run("overflow", too_large=True, hint=KEEP_AT_OVERFLOW)
        return None if outcome is None or isinstance(outcome, Preempted) else Recovery(before, self._estimate())

    async def _run(self, trigger: rules.Trigger, *, too_large: bool, hint: str | None = None) -> Outcome | None:
        """Run a compaction; None if new input preempted it, or kept it from beginning."""
        scope, signal = self.scope, self.scope.job.signal
        threshold = self.limits(scope.routes.first).runtime
        preemptible = rules.may_preempt(self._preempted_in_a_row, threshold=threshold, size=self._size())
        if preemptible and signal.pending:
            scope.publish(ContextCompactionSkipped("new_input"))
            return None
        compaction = self._compaction(trigger, threshold, preemptible=preemptible, too_large=too_large, hint=hint)
        outcome: Outcome | None = None
        try:
            with signal.watch() if preemptible else nullcontext():
                outcome = await compaction.run()
        finally:
            scope.view = compaction.latest
        if isinstance(outcome, Compacted):
            self._preempted_in_a_row, self._anchor = 0, None
        elif outcome is None or isinstance(outcome, Preempted):
            self._preempted_in_a_row += 1
        return outcome

    def _prunes(self, size: int, threshold: int) -> bool:
        scope, images = self.scope, self.scope.takes_images
        if scope.engine.requires_native_compaction:
            return False
        old = pruning.old_results(scope.view.window, images)
        return pruning.saving(scope.view.window, old, scope.view.sums, images).suffices(size, threshold)

    async def _prune(self, report: PruneContext) -> None:
        self.scope.view = await self.scope.port.report(report)
        self._anchor = None

    def _give_up(self, error: BaseException) -> None:
        """Go on without a compaction that failed. Raises if the engine can't do without."""
        if not self.scope.engine.requires_native_compaction:
            return
        found = find_failure(error)
        if found is None:
            raise TurnFailure(f"The engine failed: {error}", "engine_error") from error
        raise TurnFailure(str(found), found.kind.value) from found

    def _compaction(
        self, trigger: rules.Trigger, threshold: int, *, preemptible: bool, too_large: bool, hint: str | None
    ) -> Compaction:
        scope = self.scope
        return Compaction(
            services=scope.services,
            thread_id=scope.thread_id,
            plan=scope.plan,
            engine=scope.engine,
            row=scope.model,
            view=scope.view,
            trigger=trigger,
            threshold=threshold,
            too_large=too_large,
            report=scope.port.report,
            cut=scope.cut if preemptible else scope.cut_for_good,
            cancel_reason=lambda: None if scope.cut_for_good() else "new_input",
            attached_goal=scope.port.attached_goal,
            deadline=scope.deadline,
            hint=hint,
            context=scope.context,
            goal_note=scope.port.goal_note,
        )

    def _estimate(self) -> int:
        return self.scope.view.sums.tokens(self.scope.takes_images)

    def _size(self) -> int:
        """What counts against the threshold: the estimate, or what the provider counted and what came since.

        A count from before a boundary, whoever committed that, is none.
        """
        view, estimate = self.scope.view, self._estimate()
        if self._anchor is None or _boundary_of(self._anchor[1]) is not _boundary_of(view):
            return estimate
        counted, then = self._anchor
        return max(estimate, counted + (view.sums - then.sums).tokens(self.scope.takes_images))


def _boundary_of(view: View) -> TranscriptItem | None:
    return None if view.baseline is None else view.window[0]
