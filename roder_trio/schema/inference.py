"""What the runtime asks of an engine, and what an engine's stream brings."""

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from roder_trio.schema.config import ReliabilityConfig, WebSearch
from roder_trio.schema.cost import Price
from roder_trio.schema.transcript import ToolCall, ToolResult, TranscriptItem
from roder_trio.schema.usage import Purpose, TokenUsage

# -- the request -------------------------------------------------------------------------------------------------------


@attrs.frozen
class ModelChoice:
    """Which model of which engine."""

    provider: str
    model: str


@attrs.frozen
class Instructions:
    """The texts before the transcript; `developer_context` is rendered behind the stable prefix and never stored."""

    system: str | None = None
    developer: str | None = None
    developer_context: str | None = None


@attrs.frozen
class ToolDefinition:
    """A tool as it is offered to the model; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    freeform_field: str | None = None


@attrs.frozen
class ToolChoice:
    """Whether the model may, must or must not call; `name` goes with `specific`."""

    mode: Literal["auto", "any", "none", "specific"] = "auto"
    name: str | None = None


@attrs.frozen
class ReasoningOptions:
    """Whether and how hard the model should reason; level None is the model's own."""

    enabled: bool = False
    level: str | None = None


@attrs.frozen
class OutputRequest:
    """Limits and form of the answer; `response_format` is a JSON schema."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    response_format: Mapping[str, Any] | None = None


@attrs.frozen
class RequestRuntime:
    """What the runtime adds to a request; `deadline_remaining` in seconds."""

    prompt_cache_key: str | None = None
    auto_compact_token_limit: int | None = None
    parallel_tool_calls: bool = True
    hosted_web_search: WebSearch = "disabled"
    deadline_remaining: float | None = None
    service_tier: str | None = None
    reliability: ReliabilityConfig = ReliabilityConfig()


@attrs.frozen(kw_only=True)
class InferenceRequest:
    """One request to an engine. `transcript` is a frozen view of the thread's window, shared and not copied."""

    model: ModelChoice
    instructions: Instructions = Instructions()
    transcript: Sequence[TranscriptItem] = ()
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    reasoning: ReasoningOptions = ReasoningOptions()
    output: OutputRequest = OutputRequest()
    runtime: RequestRuntime = RequestRuntime()
    metadata: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class TurnContext:
    """For whom a stream is opened; `deadline` is in trio's time."""

    thread_id: str
    turn_id: str
    attempt_id: str
    purpose: Purpose = Purpose.SAMPLING
    deadline: float | None = None
    run_tool: Callable[[ToolCall], Awaitable[ToolResult]] | None = None
    """The executor for engines that run tools inside their stream; None where there is none.

    It stores the call and its result, and returns the result. A call that it ran is not told as an event too. What it
    raises ends the step, so let it pass.
    """


# -- what engines say of themselves ------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class InferenceCapabilities:
    """What an engine can do."""

    streaming: bool = False
    tool_calls: bool = False
    parallel_tool_calls: bool = False
    reasoning_summaries: bool = False
    structured_output: bool = False
    image_input: bool = False
    prompt_cache: bool = False
    provider_metadata: bool = False

    @classmethod
    def text_only(cls) -> "InferenceCapabilities":
        """Text that streams, and metadata; nothing else."""
        return cls(streaming=True, provider_metadata=True)

    @classmethod
    def agent(cls) -> "InferenceCapabilities":
        """Everything."""
        return cls(**{field.name: True for field in attrs.fields(cls)})


@attrs.frozen
class EngineTarget:
    """Where a request goes; an opaque boundary that names other values than these doesn't count for it."""

    dialect: str
    provider: str
    base_url: str


@attrs.frozen(kw_only=True)
class ModelDescriptor:
    """A row of the model catalog. Windows and limits are in tokens; None is "not known"."""

    provider: str
    id: str
    display_name: str | None = None
    description: str | None = None
    default_reasoning: str | None = None
    supported_reasoning: tuple[str, ...] = ()
    context_window: int | None = None
    max_context_window: int | None = None
    max_output_tokens: int | None = None
    auto_compact_token_limit: int | None = None
    """None: 90 % of the context window; 0: never."""
    supports: frozenset[str] = frozenset()
    reasoning_style: str = "none"
    hidden: bool = False
    price: Price | None = attrs.field(default=None, hash=False)


# -- the stream --------------------------------------------------------------------------------------------------------


@attrs.frozen
class MessageDelta:
    """More text of the answer, or of commentary if `phase` says so."""

    text: str
    phase: str | None = None


@attrs.frozen
class ReasoningDelta:
    """More reasoning."""

    text: str


@attrs.frozen
class ToolCallStarted:
    """The model began a call."""

    id: str
    name: str


@attrs.frozen
class ToolCallDelta:
    """More of a call's arguments."""

    id: str
    arguments_delta: str


@attrs.frozen
class ToolCallCompleted:
    """A call is complete; `arguments` is the string that the model wrote."""

    id: str
    name: str
    arguments: str


@attrs.frozen
class HostedToolCallStarted:
    """The provider runs a tool of its own."""

    id: str
    name: str


@attrs.frozen
class HostedToolCallCompleted:
    """The provider's own tool ended."""

    id: str
    name: str
    arguments: str


class CompactionStatus(enum.Enum):
    """How far an in-band compaction has come."""

    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"


@attrs.frozen
class Compaction:
    """The provider compacts inside a stream; `item` is the finished boundary."""

    status: CompactionStatus = attrs.field(converter=CompactionStatus)
    item_id: str | None = None
    item: Mapping[str, Any] | None = None


@attrs.frozen
class Usage:
    """The running total of this attempt so far, complete in every field."""

    usage: TokenUsage


@attrs.frozen
class ProviderMetadata:
    """What the provider wants back, or a signal such as `{"end_turn": false}`."""

    payload: Mapping[str, Any]


@attrs.frozen
class Completed:
    """The stream ended well; nothing after this is read."""

    stop_reason: str | None = None
    provider_response_id: str | None = None


@attrs.frozen
class Failed:
    """The engine gives up; the runtime treats it as a protocol failure."""

    message: str


InferenceEvent: TypeAlias = (
    MessageDelta
    | ReasoningDelta
    | ToolCallStarted
    | ToolCallDelta
    | ToolCallCompleted
    | HostedToolCallStarted
    | HostedToolCallCompleted
    | Compaction
    | Usage
    | ProviderMetadata
    | Completed
    | Failed
)
