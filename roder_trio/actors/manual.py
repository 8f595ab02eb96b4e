"""The job of a manual compaction: the thread's window, on request of its host."""

from typing import assert_never

import attrs
import trio

from roder_trio.actors._job import Job, JobPort
from roder_trio.actors._services import Services
from roder_trio.actors._supervisor import flatten
from roder_trio.actors.compaction import Compaction
from roder_trio.errors import CompactionPreempted
from roder_trio.logic.boundary import is_boundary
from roder_trio.logic.compaction import Kept, limits
from roder_trio.logic.thread.facts import View
from roder_trio.ports import InferenceEngine
from roder_trio.schema.command import CompactionEnded, TurnPlan
from roder_trio.schema.compaction import Compacted, CompactionResult, Preempted
from roder_trio.schema.inference import ModelDescriptor


@attrs.define(eq=False, kw_only=True)
class ManualCompaction:
    """One manual compaction, from its admission to its result."""

    services: Services
    thread_id: str
    plan: TurnPlan
    engine: InferenceEngine
    row: ModelDescriptor | None
    """What the catalog knows of the model."""
    job: Job
    port: JobPort
    view: View
    compaction_id: str
    hint: str | None

    async def run(self) -> CompactionEnded:
        """Compact and return the result, or the error that the caller is to see. Raises only Cancelled."""
        result: CompactionResult | None = None
        error: BaseException | None = None
        try:
            with self.job.scope:
                result = await self._compact()
        except Exception as raised:
            error = flatten(raised)
        if result is None and error is None:
            error = CompactionPreempted()
        return CompactionEnded(self.compaction_id, result, error)

    @property
    def threshold(self) -> int:
        """Tokens from which the runtime would compact by itself."""
        limit = self.services.config.auto_compact_token_limit
        return limits(limit, self.row, bool(self.engine.requires_native_compaction)).runtime

    async def _compact(self) -> CompactionResult:
        images = self.engine.capabilities.image_input
        before = self.view.sums.tokens(images)
        window = self.view.window
        if len(window) == 0 or all(is_boundary(item) for item in window):
            reason = "nothing_to_compact" if len(window) else "empty_transcript"
            await trio.lowlevel.checkpoint()
            return CompactionResult(False, reason, None, before, before, None)
        compaction = Compaction(
            services=self.services,
            thread_id=self.thread_id,
            plan=self.plan,
            engine=self.engine,
            view=self.view,
            trigger="manual",
            row=self.row,
            threshold=self.threshold,
            report=self.port.report,
            cut=lambda: self.job.cause is not None,
            cancel_reason=lambda: "interrupted",
            attached_goal=lambda: None,
            compaction_id=self.compaction_id,
            hint=self.hint,
        )
        outcome = await compaction.run()
        usage = None if compaction.usage.is_empty else compaction.usage
        match outcome:
            case Compacted():
                after = compaction.latest.sums.tokens(images)
                return CompactionResult(True, None, compaction.strategy, before, after, usage)
            case Kept(reason):
                return CompactionResult(False, reason, None, before, before, usage)
            case Preempted():
                raise CompactionPreempted
        assert_never(outcome)
