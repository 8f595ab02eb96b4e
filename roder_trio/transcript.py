"""The items of a thread's log."""

from roder_trio.schema.transcript import (
    AssistantMessage,
    ContextCompaction,
    ErrorNote,
    Image,
    OpaqueItem,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    TranscriptItem,
    UserMessage,
)

__all__ = [
    "AssistantMessage",
    "ContextCompaction",
    "ErrorNote",
    "Image",
    "OpaqueItem",
    "ProviderMetadata",
    "ReasoningSummary",
    "ToolCall",
    "ToolResult",
    "TranscriptItem",
    "UserMessage",
]
