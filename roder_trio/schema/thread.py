"""What a store keeps of a thread, and what it gives back."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs

from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.ids import as_tuple, is_text, is_text_or_none
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.transcript import TranscriptItem
from roder_trio.schema.turn import TurnStatus
from roder_trio.schema.usage import TokenUsage

MAX_LABELS = 64
MAX_LABEL_KEY = 128
MAX_LABEL_TEXT = 512


def frozen_labels(value: Mapping[str, str]) -> Mapping[str, str]:
    """A frozen copy of a host's labels. Raises ValueError for what no store would take."""
    labels = dict(value)
    if len(labels) > MAX_LABELS:
        raise ValueError(f"labels must be at most {MAX_LABELS}")
    for key, text in labels.items():
        if not isinstance(key, str) or not 1 <= len(key) <= MAX_LABEL_KEY:
            raise ValueError(f"a label's key must be text of 1 to {MAX_LABEL_KEY} characters, not {key!r}")
        if not isinstance(text, str) or len(text) > MAX_LABEL_TEXT:
            raise ValueError(f"the label {key!r} must be text of at most {MAX_LABEL_TEXT} characters")
    return MappingProxyType(labels)


def _workspace(value: str | None) -> str | None:
    if value is None:
        return None
    trimmed = value.strip()
    if not PurePath(trimmed).is_absolute():
        raise ValueError(f"workspace must be an absolute path or None, not {value!r}")
    return trimmed


@attrs.frozen(kw_only=True)
class ThreadMetadata:
    """A thread in one row. `usage` is None until the first non-empty report."""

    thread_id: str = attrs.field(validator=is_text)
    title: str | None = attrs.field(default=None, validator=is_text_or_none)
    workspace: str | None = attrs.field(default=None, converter=_workspace)
    provider: str | None = attrs.field(default=None, validator=is_text_or_none)
    model: str | None = attrs.field(default=None, validator=is_text_or_none)
    reasoning: str | None = attrs.field(default=None, validator=is_text_or_none)
    tool_allowlist: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    developer_instructions: str | None = attrs.field(default=None, validator=is_text_or_none)
    parent_thread_id: str | None = attrs.field(default=None, validator=is_text_or_none)
    forked_from_turn_id: str | None = attrs.field(default=None, validator=is_text_or_none)
    agent_path: str | None = attrs.field(default=None, validator=is_text_or_none)
    labels: Mapping[str, str] = attrs.field(default=MappingProxyType({}), converter=frozen_labels)
    created_at: datetime
    updated_at: datetime
    message_count: int = 0
    usage: TokenUsage | None = None


@attrs.frozen(kw_only=True)
class TurnRecord:
    """A turn as its records tell it."""

    thread_id: str
    turn_id: str
    created_at: datetime
    items: tuple[TranscriptItem, ...] = attrs.field(default=(), converter=as_tuple)
    completed_at: datetime | None = None
    usage: TokenUsage | None = None
    finish_reason: str | None = None
    status: TurnStatus = TurnStatus.OPEN


@attrs.frozen
class GlobalScope:
    """State of an extension for everything."""


@attrs.frozen
class WorkspaceScope:
    """State of an extension for one workspace."""

    workspace: str


@attrs.frozen
class ThreadScope:
    """State of an extension for one thread."""

    thread_id: str


@attrs.frozen
class TurnScope:
    """State of an extension for one turn."""

    thread_id: str
    turn_id: str


Scope: TypeAlias = GlobalScope | WorkspaceScope | ThreadScope | TurnScope


@attrs.frozen(kw_only=True)
class ExtensionStateRecord:
    """A host's own value beside a thread; the last record per extension, key and scope is the value."""

    record_id: str
    extension_id: str
    key: str
    scope: Scope
    schema_version: int
    value: Any


@attrs.frozen
class OpaqueRecord:
    """A record of a newer version, kept as it was read."""

    type: str
    value: Mapping[str, Any]


@attrs.frozen
class StoreRepair:
    """What a store set aside to read a thread: `bytes` of a torn tail, kept at `path`."""

    path: str
    bytes: int


Record: TypeAlias = EventEnvelope | ThreadItemEvent | ExtensionStateRecord
StoredRecord: TypeAlias = Record | OpaqueRecord


@attrs.frozen(kw_only=True)
class ThreadSnapshot:
    """All that a store holds of a thread, as of one moment, lists in log order."""

    metadata: ThreadMetadata | None
    turns: tuple[TurnRecord, ...] = attrs.field(default=(), converter=as_tuple)
    events: tuple[EventEnvelope, ...] = attrs.field(default=(), converter=as_tuple)
    item_events: tuple[ThreadItemEvent, ...] = attrs.field(default=(), converter=as_tuple)
    """The stored ones merged with those that follow from `events`, by seq."""
    extension_states: tuple[ExtensionStateRecord, ...] = attrs.field(default=(), converter=as_tuple)
    repairs: tuple[StoreRepair, ...] = attrs.field(default=(), converter=as_tuple)


@attrs.frozen(kw_only=True)
class LogPage:
    """A piece of a thread's log as it is stored, in log order."""

    created: bytes
    """JSON text of `{"type":"thread","metadata":...}`, what the thread was created with."""
    batches: tuple[bytes, ...] = attrs.field(default=(), converter=as_tuple)
    """Arrays of records as JSON text; where one ends says nothing."""
    archived: bool = False
    next_cursor: str | None = None
    """Where the next piece begins; None at the end of the log."""


@attrs.frozen(kw_only=True)
class ThreadPage:
    """A page of a listing, newest first."""

    threads: tuple[ThreadMetadata, ...] = attrs.field(default=(), converter=as_tuple)
    next_cursor: str | None = None
    damaged: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    """Ids that exist and can't be described."""
