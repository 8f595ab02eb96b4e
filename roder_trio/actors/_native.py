"""The native strategy: the provider compacts the window itself, and brings one boundary.

Every attempt starts from the window that the compaction was given, and stages at most one boundary in memory.
"""

from collections.abc import Callable

import attrs
import trio

from roder_trio.actors._attempts import Attempts
from roder_trio.logic import compaction as rules
from roder_trio.logic.retry import RetrySeries
from roder_trio.ports import InferenceEngine
from roder_trio.schema.inference import InferenceEvent, InferenceRequest
from roder_trio.schema.usage import Purpose


@attrs.define(eq=False)
class NativeStrategy:
    """Asks an engine for its own compaction."""

    attempts: Attempts
    engine: InferenceEngine
    request: Callable[[], InferenceRequest]
    """Builds the request of this moment."""

    async def run(self) -> rules.Commit | rules.Fail | rules.Declined:
        """Make attempts until one says how the compaction ends, or the budget is spent."""
        return await self.attempts.retried(self._once)

    async def _once(self, series: RetrySeries) -> rules.Commit | rules.Fail | rules.Declined:
        staging = rules.Staging(bool(self.engine.requires_native_compaction))
        verdict: rules.Verdict = rules.Proceed()

        async def take(event: InferenceEvent) -> bool:
            nonlocal staging, verdict
            staging, verdict = rules.step(staging, event)
            if isinstance(verdict, rules.Retried):
                series.spend()
            return isinstance(verdict, rules.Commit | rules.Fail)

        ending = await self.attempts.stream(
            Purpose.NATIVE_COMPACTION, lambda context: self.engine.compact_turn(context, self.request()), take
        )
        if ending is not None:
            _, verdict = rules.step(staging, ending)
        elif isinstance(verdict, rules.Fail) and self.attempts.cut():
            await trio.lowlevel.checkpoint()
        if isinstance(verdict, rules.Commit | rules.Fail | rules.Declined):
            return verdict
        raise AssertionError(f"a stream's end can't be {verdict!r}")
