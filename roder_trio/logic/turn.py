"""One sampling step: what its stream leaves in the history, and the request that opens it.

A run is a stretch of text of one phase, or of reasoning; it is complete when the stream moves on. Feed a `Step` every
event in order; it says which items are complete before the event is shown. A step that is cut keeps what it completed;
its unfinished text is told by `unfinished`, the rest of what it held is dropped.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import attrs

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.boundary import compaction_items, in_band_boundary, same_boundary, without_stored
from roder_trio.logic.compaction import RETRY_MARKER
from roder_trio.logic.cost import with_attempt
from roder_trio.logic.stop import finish_reason
from roder_trio.logic.summary import INSTRUCTIONS
from roder_trio.schema import inference
from roder_trio.schema.command import TurnPlan
from roder_trio.schema.config import RuntimeConfig
from roder_trio.schema.transcript import (
    AssistantMessage,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    TranscriptItem,
    UserMessage,
    is_final_phase,
)

_UNSEEN = (inference.Usage, inference.ProviderMetadata, inference.Completed, inference.Failed)
_EVENTS = get_args(inference.InferenceEvent)
_NOTICES = (RETRY_MARKER, "request_repair")


@attrs.define(eq=False)
class Step:
    """What one stream has brought so far."""

    provider: str
    model: str = ""
    attempt_id: str | None = None
    """Added to what is stored of the step where that tells its cost."""
    completed: inference.Completed | None = None
    forces_round: bool = False
    """True if the provider asked to be sampled again, with `end_turn` False."""
    retries_inside: int = 0
    """Attempts that the engine told to have made inside its stream."""
    ran_hosted_calls: bool = False
    shown: bool = False
    """True once it brought what people may have seen."""
    held: tuple[ProviderMetadata, ...] = ()
    calls: dict[str, ToolCall] = attrs.field(factory=dict)
    repeated: tuple[ToolCall, ...] = ()
    """Calls under an id that an earlier one of the step has."""
    _boundaries: tuple[Mapping[str, Any], ...] = ()
    _parts: list[str] = attrs.field(factory=list)
    answer: str = ""
    """The last complete text of the step that is no commentary."""
    _reasons: bool = False
    _phase: str | None = None

    def absorb(self, event: inference.InferenceEvent) -> tuple[TranscriptItem, ...]:
        """Take an event; return the items that are complete now, to be stored before it is shown.

        Raises ProviderFailure for what no engine may send.
        """
        self.shown = self.shown or not isinstance(event, _UNSEEN)
        match event:
            case inference.MessageDelta(text, phase):
                return self._grow(text, reasons=False, phase=phase)
            case inference.ReasoningDelta(text):
                return self._grow(text, reasons=True, phase=None)
            case inference.ToolCallStarted(id, _):
                self._check_call(id)
                return self.end_run()
            case inference.ToolCallCompleted(id, name, arguments):
                self._check_call(id)
                call = ToolCall(id, name, arguments)
                if self.calls.setdefault(id, call) is not call:
                    self.repeated += (call,)
                return self.end_run()
            case inference.HostedToolCallStarted():
                self.ran_hosted_calls = True
            case inference.Compaction(inference.CompactionStatus.COMPLETED, _, item) if item is not None:
                return self._boundary(item)
            case inference.ProviderMetadata(payload):
                return self._metadata(payload)
            case inference.Completed():
                self.completed = event
            case inference.Failed(message):
                raise ProviderFailure(ProviderFailureKind.PROTOCOL, message)
            case _ if not isinstance(event, _EVENTS):
                message = f"The engine sent {type(event).__name__}, which is no stream event."
                raise ProviderFailure(ProviderFailureKind.PROTOCOL, message)
        return ()

    def final_items(self) -> tuple[TranscriptItem, ...]:
        """Return what a completed step stores at its end: the last run, held metadata, calls in call order."""
        return (*self.end_run(), *self.held, *self.calls.values())

    def unfinished(self) -> tuple[TranscriptItem, ...]:
        """Return the message that was still growing when the step was cut, marked as interrupted."""
        text = "".join(self._parts)
        if self._reasons or not text.strip():
            return ()
        return (AssistantMessage(text, self._phase, interrupted=True),)

    @property
    def finish_reason(self) -> str | None:
        """The normalised reason why the stream ended; None if the engine gave none."""
        reason = None if self.completed is None else self.completed.stop_reason
        return finish_reason(reason, has_calls=bool(self.calls))

    def context_tokens(self, prompt_tokens: int) -> int | None:
        """Return how many tokens the request had, by the provider's count; None if that can't be told."""
        if self._boundaries or self.completed is None:
            return None
        told = [item.payload.get("context_tokens") for item in self.held]
        counted = next((count for count in told if type(count) is int), None)
        return counted if counted is not None or self.ran_hosted_calls else prompt_tokens

    def _grow(self, text: str, *, reasons: bool, phase: str | None) -> tuple[TranscriptItem, ...]:
        if not text:
            return ()
        same_phase = phase == self._phase or (is_final_phase(phase) and is_final_phase(self._phase))
        done = () if reasons == self._reasons and same_phase else self.end_run()
        if not self._parts:
            self._reasons, self._phase = reasons, phase
        self._parts.append(text)
        return done

    def end_run(self) -> tuple[TranscriptItem, ...]:
        """End the text so far; returns it as an item, unless it is white space only."""
        text = "".join(self._parts)
        self._parts.clear()
        if not text.strip():
            return ()
        if self._reasons:
            return (ReasoningSummary(text),)
        if is_final_phase(self._phase):
            self.answer = text
        return (AssistantMessage(text, self._phase),)

    def _boundary(self, item: Mapping[str, Any]) -> tuple[TranscriptItem, ...]:
        if any(same_boundary(item, known) for known in self._boundaries):
            return ()
        done = self.end_run()
        self._boundaries += (item,)
        return (*done, in_band_boundary(item, self.provider))

    def _metadata(self, payload: Any) -> tuple[TranscriptItem, ...]:
        if not isinstance(payload, Mapping):
            raise ProviderFailure(ProviderFailureKind.PROTOCOL, "The engine sent metadata that is no JSON object.")
        if payload.get("end_turn") is False:
            self.forces_round = True
        if payload.get("kind") == RETRY_MARKER:
            self.retries_inside += 1
        if payload.get("kind") in _NOTICES or set(payload) == {"end_turn"}:
            return ()
        rest = without_stored(with_attempt(payload, self.attempt_id, self.model), self._boundaries)
        found = compaction_items(rest)
        if not found:
            self.held += (ProviderMetadata(rest),)
            return ()
        done = tuple(entry for item in found for entry in self._boundary(item))
        remaining = without_stored(rest, self._boundaries)
        if remaining.get("output") or "attempt_id" in remaining:
            self.held += (ProviderMetadata(remaining),)
        return done

    def _check_call(self, id: str) -> None:
        if not id:
            raise ProviderFailure(ProviderFailureKind.PROTOCOL, "The engine sent a tool call without an id.")


@attrs.frozen(kw_only=True)
class Extras:
    """What a turn's requests hold beside its plan and the transcript."""

    context: str | None = None
    """What hooks add to the developer context."""
    goal_note: str | None = None
    """What is said of the thread's goal, behind the developer instructions."""
    tools: tuple[inference.ToolDefinition, ...] = ()
    tool_choice: inference.ToolChoice = attrs.field(factory=inference.ToolChoice)
    response_format: Mapping[str, Any] | None = None


NO_EXTRAS = Extras()


def next_request(
    plan: TurnPlan,
    transcript: Sequence[TranscriptItem],
    config: RuntimeConfig,
    extras: Extras = NO_EXTRAS,
    *,
    thread_id: str,
    compact_limit: int | None = None,
    deadline_remaining: float | None = None,
) -> inference.InferenceRequest:
    """Build the next sampling request of a turn; the transcript is shared, not copied."""
    options = plan.options
    return inference.InferenceRequest(
        model=inference.ModelChoice(plan.provider, plan.model),
        instructions=inference.Instructions(
            options.instructions or config.instructions,
            _joined(plan.developer_instructions, extras.goal_note),
            _joined(options.developer_context, extras.context),
        ),
        transcript=transcript,
        tools=extras.tools,
        tool_choice=extras.tool_choice,
        reasoning=inference.ReasoningOptions(plan.reasoning not in (None, "none"), plan.reasoning),
        output=inference.OutputRequest(
            options.output.max_tokens, options.output.temperature, options.output.top_p, extras.response_format
        ),
        runtime=inference.RequestRuntime(
            prompt_cache_key=thread_id,
            auto_compact_token_limit=compact_limit,
            parallel_tool_calls=config.parallel_tool_calls,
            hosted_web_search=config.hosted_web_search,
            deadline_remaining=deadline_remaining,
            service_tier=options.service_tier or config.default_service_tier,
            reliability=config.reliability,
        ),
    )


def compaction_request(
    plan: TurnPlan,
    window: Sequence[TranscriptItem],
    config: RuntimeConfig,
    extras: Extras = NO_EXTRAS,
    *,
    thread_id: str,
    attempts_left: int,
    deadline_remaining: float | None = None,
    hint: str | None = None,
) -> inference.InferenceRequest:
    """Build the request of a native compaction: the whole window, no structured output, the hint at the end.

    An engine that retries inside its stream is told how many attempts are left.
    """
    request = next_request(plan, window, config, extras, thread_id=thread_id, deadline_remaining=deadline_remaining)
    reliability = attrs.evolve(config.reliability, provider_retry_max_attempts=attempts_left)
    request = attrs.evolve(request, runtime=attrs.evolve(request.runtime, reliability=reliability))
    if hint is None or not hint.strip():
        return request
    text = _joined(request.instructions.developer, hint.strip())
    return attrs.evolve(request, instructions=attrs.evolve(request.instructions, developer=text))


def summary_request(
    model: inference.ModelChoice, text: str, config: RuntimeConfig, *, thread_id: str
) -> inference.InferenceRequest:
    """Build a request for a summary: the summariser's instructions, one message, no tools."""
    return inference.InferenceRequest(
        model=model,
        instructions=inference.Instructions(INSTRUCTIONS),
        transcript=(UserMessage(text),),
        tool_choice=inference.ToolChoice("none"),
        runtime=inference.RequestRuntime(prompt_cache_key=thread_id, reliability=config.reliability),
        metadata={"compaction_summary": True},
    )


def _joined(*texts: str | None) -> str | None:
    return "\n\n".join(filter(None, texts)) or None
