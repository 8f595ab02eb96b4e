"""The attempts that one compaction makes at its provider: each a stream of its own, settled before anything follows."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import attrs
import trio

from roder_trio.actors._services import Services, new_id
from roder_trio.actors._stream import StreamBlock, StreamReader, Take
from roder_trio.actors._supervisor import cancel_alone
from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic import compaction as rules
from roder_trio.logic.retry import RetrySeries
from roder_trio.schema.command import TurnPlan
from roder_trio.schema.event import Event, RetryScheduled
from roder_trio.schema.inference import TurnContext
from roder_trio.schema.usage import ZERO_USAGE, Attempt, Purpose, TokenUsage

T = TypeVar("T")


@attrs.define(eq=False, kw_only=True)
class Attempts:
    """Makes attempts for one compaction, and keeps what they used."""

    services: Services
    thread_id: str
    plan: TurnPlan
    cut: Callable[[], bool]
    """Whether a recorded cause wants the compaction to end."""
    attached_goal: Callable[[], str | None]
    deadline: float
    """In trio's time; infinite if there is none."""
    usage: TokenUsage = ZERO_USAGE
    _failed_at: float = 0.0
    """When the newest failure was read, on trio's clock."""

    async def retried(self, once: Callable[[RetrySeries], Awaitable[T | rules.Fail]]) -> T | rules.Fail:
        """Make attempts until one brings something, its failure stands, or the budget is spent.

        Where a recorded cause wants the compaction to end, that counts before any failure.
        """
        series = RetrySeries(self.services.config.reliability)
        while True:
            verdict = await once(series)
            if not isinstance(verdict, rules.Fail):
                return verdict
            if self.cut():
                await trio.lowlevel.checkpoint()
            failed, now = series.attempts, trio.current_time()
            remaining, read_at = self.deadline - now, self._failed_at
            wait = series.next(verdict.failure, self.services.jitter(), now, remaining, read_at=read_at)
            if wait is None:
                return verdict
            self.publish(RetryScheduled(failed, series.max_attempts, wait, verdict.failure.kind.value))
            await trio.sleep(wait)

    async def stream(
        self, purpose: Purpose, open_stream: Callable[[TurnContext], StreamBlock | None], take: Take
    ) -> ProviderFailure | rules.Ending | None:
        """Read one stream and settle it; None if `take` wanted no more, else how it ended.

        One that is cut before it began opens nothing. A cancel passes once its usage is settled. Raises what an engine
        raised that is no ProviderFailure, and StorageError.
        """
        if self.cut():
            await trio.lowlevel.checkpoint()
        attempt = Attempt(
            attempt_id=new_id(),
            thread_id=self.thread_id,
            turn_id=self.plan.turn_id,
            purpose=purpose,
            provider=self.plan.provider,
            model=self.plan.model,
            goal_id=self.attached_goal(),
        )
        accounting = self.services.accounting
        accounting.open(attempt)
        try:
            return await self._read(attempt, open_stream, take)
        finally:
            self.usage += await accounting.settle(attempt.attempt_id)

    async def _read(
        self, attempt: Attempt, open_stream: Callable[[TurnContext], StreamBlock | None], take: Take
    ) -> ProviderFailure | rules.Ending | None:
        enough = False

        async def taken(event: Any) -> bool:
            nonlocal enough
            enough = await take(event)
            return enough

        context = TurnContext(
            thread_id=self.thread_id,
            turn_id=self.plan.turn_id,
            attempt_id=attempt.attempt_id,
            purpose=attempt.purpose,
            deadline=None if self.deadline == float("inf") else self.deadline,
        )
        config = self.services.config
        reader = StreamReader(
            lambda usage: self.services.accounting.observe(attempt.attempt_id, usage),
            self.cut,
            config.reliability.stream_idle_timeout,
            config.deadlines.stream_close_grace,
        )
        raised: Exception | None = None
        try:
            block = open_stream(context)
            if block is None:
                return rules.Ending.DECLINED
            with cancel_alone(), trio.CancelScope() as waiting:
                await reader.read(block, taken, waiting)
        except Exception as error:
            raised = error
        self._failed_at = trio.current_time()
        if enough:
            return None
        if self.cut():
            await trio.lowlevel.checkpoint()
        if reader.failure is not None:
            return reader.failure
        if raised is not None:
            return typed_failure(raised)
        return idle_failure() if reader.idle else rules.Ending.EXHAUSTED

    def publish(self, event: Event) -> None:
        """Publish a live event of the compaction's turn."""
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
