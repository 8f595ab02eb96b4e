"""Events of threads as wholes."""

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from roder_trio.schema.ids import UNSET, UnsetType


@attrs.frozen
class ThreadCreated:
    """A thread was created; `metadata` is its `ThreadMetadata`."""

    kind: ClassVar[str] = "thread.created"
    durable: ClassVar[bool] = False
    metadata: Any


@attrs.frozen
class ThreadArchived:
    """A thread was archived."""

    kind: ClassVar[str] = "thread.archived"
    durable: ClassVar[bool] = False


@attrs.frozen
class ThreadUnarchived:
    """A thread was brought back from the archive."""

    kind: ClassVar[str] = "thread.unarchived"
    durable: ClassVar[bool] = False


@attrs.frozen
class ThreadDeleted:
    """A thread was deleted, with every byte of it."""

    kind: ClassVar[str] = "thread.deleted"
    durable: ClassVar[bool] = False


@attrs.frozen(kw_only=True)
class ThreadMetadataChanged:
    """Fields of the metadata changed; `UNSET` keeps one, labels are replaced whole."""

    kind: ClassVar[str] = "thread.metadata_changed"
    durable: ClassVar[bool] = True
    title: str | UnsetType | None = UNSET
    provider: str | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_allowlist: tuple[str, ...] | UnsetType = UNSET
    developer_instructions: str | UnsetType | None = UNSET
    labels: Mapping[str, str] | UnsetType = UNSET


@attrs.frozen
class ThreadFailedEvent:
    """A thread was parked after too many crashes."""

    kind: ClassVar[str] = "thread.failed"
    durable: ClassVar[bool] = False
    cause: str


@attrs.frozen
class ThreadRecovered:
    """A thread was read again and turns that a crash had left open were closed."""

    kind: ClassVar[str] = "thread.recovered"
    durable: ClassVar[bool] = False
    closed_turn_ids: tuple[str, ...]
