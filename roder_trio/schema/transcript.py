"""What the model was told and what it said: the items of a thread's log."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
from attrs.validators import deep_iterable, instance_of

from roder_trio.schema.ids import as_tuple, is_text, is_text_or_none


@attrs.frozen
class Image:
    """An image by its URL; a data URL holds the bytes themselves."""

    url: str = attrs.field(validator=is_text)


@attrs.frozen
class UserMessage:
    """What a user said, or what stands in the user's place."""

    text: str = attrs.field(validator=is_text)
    images: tuple[Image, ...] = attrs.field(default=(), converter=as_tuple, validator=deep_iterable(instance_of(Image)))


@attrs.frozen
class AssistantMessage:
    """What the model said. A `phase` other than None, "" or "final_answer" is commentary."""

    text: str = attrs.field(validator=is_text)
    phase: str | None = attrs.field(default=None, validator=is_text_or_none)
    interrupted: bool = False
    """True if the message was cut off before it was finished."""


@attrs.frozen
class ReasoningSummary:
    """What the model let be seen of its reasoning."""

    text: str = attrs.field(validator=is_text)


@attrs.frozen
class ToolCall:
    """A call as the model wrote it; `arguments` is its string, never re-serialised."""

    id: str = attrs.field(validator=is_text)
    name: str = attrs.field(validator=is_text)
    arguments: str = attrs.field(validator=is_text)


@attrs.frozen
class ToolResult:
    """The one result of a call."""

    id: str = attrs.field(validator=is_text)
    name: str | None = attrs.field(validator=is_text_or_none)
    result: str = attrs.field(validator=is_text)
    is_error: bool = False
    display_payload: Any = None
    """JSON for user interfaces; the model never sees it."""
    images: tuple[Image, ...] = attrs.field(default=(), converter=as_tuple, validator=deep_iterable(instance_of(Image)))


@attrs.frozen
class ContextCompaction:
    """A summary that stands for everything before it, but the `retained_count` nearest items."""

    summary: str = attrs.field(validator=is_text)
    strategy: str = "llm"
    retained_count: int = 0
    active_request: UserMessage | None = None
    """The last user message, if it isn't among the retained items."""


@attrs.frozen
class ProviderMetadata:
    """What a provider wants back with the next request, or a note of the runtime; opaque JSON."""

    payload: Mapping[str, Any]


@attrs.frozen
class ErrorNote:
    """Why a turn failed. It is shown, and never sent to a model."""

    message: str = attrs.field(validator=is_text)


@attrs.frozen
class OpaqueItem:
    """An item of a newer version, kept as it was read."""

    type: str
    value: Mapping[str, Any]


TranscriptItem: TypeAlias = (
    UserMessage
    | AssistantMessage
    | ReasoningSummary
    | ToolCall
    | ToolResult
    | ContextCompaction
    | ProviderMetadata
    | ErrorNote
    | OpaqueItem
)


def is_final_phase(phase: str | None) -> bool:
    """Whether text of this phase is the answer, not commentary."""
    return phase in (None, "", "final_answer")
