"""The summary strategy: the thread's own model writes down what the head of the window holds, chunk by chunk.

Where no model's text can be had and the window must become smaller, a text made without one stands in.
"""

from collections import deque

import attrs
import trio

from roder_trio.actors._attempts import Attempts
from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic import compaction as rules
from roder_trio.logic import summary
from roder_trio.logic.estimate import estimate
from roder_trio.logic.retry import RetrySeries
from roder_trio.logic.turn import summary_request
from roder_trio.logic.window import Window
from roder_trio.ports import InferenceEngine
from roder_trio.schema import inference
from roder_trio.schema.transcript import UserMessage, is_final_phase
from roder_trio.schema.usage import Purpose

_NO_TEXT_EITHER = (
    ProviderFailureKind.AUTHENTICATION,
    ProviderFailureKind.USAGE_LIMIT,
    ProviderFailureKind.QUOTA_EXCEEDED,
)


@attrs.define(eq=False, kw_only=True)
class SummaryStrategy:
    """Summarises one window."""

    attempts: Attempts
    engine: InferenceEngine
    model: inference.ModelChoice
    window: Window
    said: UserMessage | None
    """The newest user message of the log."""
    threshold: int
    context_window: int | None
    must_shrink: bool
    """The window is too large to go on with: a text without a model will do."""
    hint: str | None

    async def run(self) -> rules.Boundary | rules.Fail | rules.Kept:
        """Return a boundary that makes the window smaller, or why there is none.

        A cancel passes once what was used is settled. Raises what an engine raised that is no ProviderFailure, and
        StorageError.
        """
        images = self.engine.capabilities.image_input
        before = estimate(self.window, images)
        keep = summary.kept_tokens(self.threshold, before)
        split = summary.split(self.window, keep, images, self.said)
        lines = summary.render(split.head)
        if not lines:
            await trio.lowlevel.checkpoint()
            return rules.Kept(rules.NOTHING_TO_COMPACT)
        text, strategy = await self._draft(lines), "llm"
        if isinstance(text, rules.Fail) or not summary.shrinks(text, split.head, images):
            if not self._may_do_without(text):
                return text if isinstance(text, rules.Fail) else rules.Kept(rules.CANNOT_SHRINK)
            text, strategy = summary.deterministic(split.head), "deterministic"
        boundary = split.boundary(text, strategy)
        after = estimate([boundary, *split.tail], images)
        if not summary.shrinks(text, split.head, images) or after >= before:
            return rules.Kept(rules.CANNOT_SHRINK)
        return rules.Boundary(boundary, strategy, 1 + len(split.tail), after)

    def _may_do_without(self, drafted: str | rules.Fail) -> bool:
        """Whether a text without a model may stand in for a draft that is of no use."""
        refused = isinstance(drafted, rules.Fail) and drafted.failure.kind in _NO_TEXT_EITHER
        return self.must_shrink and not refused

    async def _draft(self, lines: list[str]) -> str | rules.Fail:
        """Ask for the chunks in order; one that is too large is halved, a line that is too large is left out."""
        waiting = deque(summary.chunks(lines, self.context_window))
        so_far: str | None = None
        failed: rules.Fail | None = None
        while waiting:
            chunk = waiting.popleft()
            answer = await self.attempts.retried(_Question(self, chunk, so_far).ask)
            if isinstance(answer, str):
                so_far = answer
            elif answer.failure.kind in rules.OVERFLOWS:
                failed = answer
                waiting.extendleft(reversed(summary.halves(chunk)))
            else:
                return answer
        if so_far is None:
            assert failed is not None
            return failed
        return so_far


@attrs.define(eq=False)
class _Question:
    """One chunk that a model is asked about."""

    strategy: SummaryStrategy
    chunk: tuple[str, ...]
    so_far: str | None
    _text: list[str] = attrs.field(factory=list)
    _wrong: str | None = None
    """What the answer did that none may."""

    async def ask(self, series: RetrySeries) -> str | rules.Fail:
        """Ask once; an answer is text that isn't blank."""
        strategy = self.strategy
        request = summary_request(
            strategy.model,
            summary.question(self.chunk, self.so_far, strategy.hint),
            strategy.attempts.services.config,
            thread_id=strategy.attempts.thread_id,
        )
        self._text, self._wrong = [], None
        ending = await strategy.attempts.stream(
            Purpose.SUMMARY,
            lambda context: strategy.engine.stream_turn(context, request),
            lambda event: self._take(event, series),
        )
        if isinstance(ending, ProviderFailure):
            return rules.Fail(ending)
        if ending is not None:
            message = "The provider's summary stream ended before it was completed."
            return rules.Fail(ProviderFailure(ProviderFailureKind.STREAM_INTERRUPTED, message, cause="truncated"))
        text = "".join(self._text).strip()
        wrong = self._wrong or (None if text else "The model answered a request for a summary with nothing.")
        return text if wrong is None else rules.Fail(ProviderFailure(ProviderFailureKind.PROTOCOL, wrong))

    async def _take(self, event: inference.InferenceEvent, series: RetrySeries) -> bool:
        match event:
            case inference.MessageDelta(text, phase) if is_final_phase(phase):
                self._text.append(text)
            case inference.Completed():
                return True
            case inference.Failed(message):
                self._wrong = message
            case (
                inference.ToolCallStarted()
                | inference.ToolCallDelta()
                | inference.ToolCallCompleted()
                | inference.HostedToolCallStarted()
                | inference.HostedToolCallCompleted()
            ):
                self._wrong = "The model called a tool while it wrote a summary."
            case inference.ProviderMetadata({"kind": rules.RETRY_MARKER}):
                series.spend()
                self._text.clear()
        return self._wrong is not None
