"""The native strategy: the provider compacts the window itself, and brings one boundary.

Every attempt starts from the window that the compaction was given, and stages at most one boundary in memory.
"""

from collections.abc import Callable

import attrs

from roder_trio.actors._attempts import Attempts
from roder_trio.actors._stream import StreamBlock
from roder_trio.logic import compaction as rules
from roder_trio.logic.cost import with_attempt
from roder_trio.logic.estimate import estimate
from roder_trio.logic.retry import RetrySeries
from roder_trio.ports import InferenceEngine
from roder_trio.schema.inference import InferenceEvent, InferenceRequest, TurnContext
from roder_trio.schema.transcript import ProviderMetadata
from roder_trio.schema.usage import Purpose


@attrs.define(eq=False)
class NativeStrategy:
    """Asks an engine for its own compaction."""

    attempts: Attempts
    engine: InferenceEngine
    request: Callable[[int], InferenceRequest]
    """Builds the request of this moment, for so many attempts left."""

    async def run(self) -> rules.Boundary | rules.Fail | rules.Declined:
        """Make attempts until one says how the compaction ends, or the budget is spent.

        A cancel passes once what was used is settled. Raises what an engine raised that is no ProviderFailure, and
        StorageError.
        """
        return await self.attempts.retried(self._once)

    async def _once(self, series: RetrySeries) -> rules.Boundary | rules.Fail | rules.Declined:
        staging = rules.Staging(bool(self.engine.requires_native_compaction))
        verdict: rules.Verdict = rules.Proceed()
        attempt_id = ""

        def opened(context: TurnContext) -> StreamBlock | None:
            nonlocal attempt_id
            attempt_id = context.attempt_id
            return self.engine.compact_turn(context, self.request(series.left))

        async def take(event: InferenceEvent) -> bool:
            nonlocal staging, verdict
            staging, verdict = rules.step(staging, event)
            if isinstance(verdict, rules.Retried):
                series.spend()
            return isinstance(verdict, rules.Commit | rules.Fail)

        ending = await self.attempts.stream(Purpose.NATIVE_COMPACTION, opened, take)
        if ending is not None:
            _, verdict = rules.step(staging, ending)
        match verdict:
            case rules.Commit(item):
                payload = with_attempt(item.payload, attempt_id, self.attempts.plan.model)
                return rules.Boundary(ProviderMetadata(payload), "native", 1, estimate([item]))
            case rules.Fail() | rules.Declined():
                return verdict
        raise AssertionError(f"a stream's end can't be {verdict!r}")
