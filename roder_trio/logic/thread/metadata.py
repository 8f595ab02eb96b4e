"""Metadata as a fold of a thread's log.

Rules of the room: stores apply it to newly stored records, in the commit that stores them; nothing else writes
metadata. Only the title, the dates, the count of messages and the usage follow from the log; `ThreadMetadataChanged`
sets what a host chose. One record costs the same however long the log is.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

import attrs

from roder_trio.schema.event import (
    EventEnvelope,
    GoalUpdated,
    ThreadMetadataChanged,
    TranscriptItemAppended,
    UsageRecorded,
)
from roder_trio.schema.ids import UNSET
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import StoredRecord, ThreadMetadata, frozen_labels
from roder_trio.schema.transcript import AssistantMessage, TranscriptItem, UserMessage
from roder_trio.schema.usage import MAX_TOKENS, TokenUsage

MAX_TITLE = 72
"""Code points of a derived title, its ellipsis included."""

_COUNTERS = 6
_NO_ATTEMPTS: Mapping[str, tuple[int, TokenUsage]] = MappingProxyType({})


def derived_title(text: str) -> str | None:
    """The title that `text` gives a thread without one: one line of at most 72 code points; None if it is blank."""
    line = " ".join(text.split(maxsplit=MAX_TITLE)[:MAX_TITLE])
    return line[: MAX_TITLE - 1] + "…" if len(line) > MAX_TITLE else line or None


def fold_metadata(metadata: ThreadMetadata, records: Iterable[StoredRecord]) -> ThreadMetadata:
    """Return the metadata of a thread that began as `metadata` and whose log is `records`."""
    fold = MetadataFold(metadata)
    for record in records:
        fold.absorb(record)
    return fold.metadata


class MetadataFold:
    """Metadata that follows a growing log, with the last total of each attempt.

    `metadata` is the metadata as of now, `attempts` what it counts already: (report, usage) by attempt id. A store
    that keeps those elsewhere may hand in just the attempts that the next records name, with `tiers`: how many of all
    counted attempts have each tier. Without it, a tier that a mixture hides can't come back.
    """

    __slots__ = ("_attempts", "_base", "_built", "_counters", "_message_count", "_tiers", "_title", "_updated_at")

    def __init__(
        self,
        metadata: ThreadMetadata,
        attempts: Mapping[str, tuple[int, TokenUsage]] = _NO_ATTEMPTS,
        tiers: Mapping[str | None, int] | None = None,
    ) -> None:
        self._base = metadata
        self._built: ThreadMetadata | None = metadata
        self._title = metadata.title
        self._updated_at = metadata.updated_at
        self._message_count = metadata.message_count
        self._attempts = dict(attempts) if attempts else None
        self._counters: tuple[int, ...] | None = None
        self._tiers: dict[str | None, int] | None = None
        if metadata.usage is not None and not metadata.usage.is_empty:
            if tiers is None:
                self._open_usage(metadata.usage)
            else:
                self._counters, self._tiers = _counters_of(metadata.usage), dict(tiers)

    @property
    def metadata(self) -> ThreadMetadata:
        """The metadata as of the last absorbed record."""
        if self._built is None:
            self._built = attrs.evolve(
                self._base,
                title=self._title,
                updated_at=self._updated_at,
                message_count=self._message_count,
                usage=self._usage(),
            )
        return self._built

    @property
    def updated_at(self) -> datetime:
        """The date of the last change, without building the rest."""
        return self._updated_at

    @property
    def attempts(self) -> Mapping[str, tuple[int, TokenUsage]]:
        """The counted (report, usage) of each attempt."""
        return MappingProxyType(self._attempts or {})

    @property
    def tiers(self) -> Mapping[str | None, int]:
        """How many of the counted attempts have each tier."""
        return MappingProxyType(self._tiers or {})

    def absorb(self, record: StoredRecord) -> None:
        """Take one newly stored record. Raises ValueError for labels that no thread may have, changing nothing."""
        if isinstance(record, EventEnvelope):
            event = record.event
            if isinstance(event, ThreadMetadataChanged):
                self._change(event)
            elif isinstance(event, TranscriptItemAppended):
                self._count(event.item)
            elif isinstance(event, UsageRecorded):
                self._charge(event)
            elif isinstance(event, GoalUpdated):
                self._entitle(event.goal.objective)
        elif not isinstance(record, ThreadItemEvent):
            return
        self._updated_at = max(self._updated_at, record.timestamp)
        self._built = None

    def _change(self, event: ThreadMetadataChanged) -> None:
        fields: dict[str, Any] = {
            name: value for name, value in attrs.asdict(event, recurse=False).items() if value is not UNSET
        }
        if "labels" in fields:
            fields["labels"] = frozen_labels(fields["labels"])
        if "title" in fields:
            self._title = fields["title"]
        self._base = attrs.evolve(self._base, **fields)

    def _count(self, item: TranscriptItem) -> None:
        if isinstance(item, UserMessage):
            self._message_count += 1
            self._entitle(item.text)
        elif isinstance(item, AssistantMessage):
            self._message_count += 1

    def _entitle(self, text: str) -> None:
        if self._title is None or not self._title.strip():
            self._title = derived_title(text) or self._title

    # -- usage: exact sums, so that a later report can take the place of an earlier one --------------------------------

    def _charge(self, event: UsageRecorded) -> None:
        if event.origin_thread_id is not None or event.usage.is_empty:
            return
        if self._attempts is None:
            self._attempts = {}
        known = self._attempts.get(event.attempt_id)
        if known is not None:
            if event.report <= known[0]:
                return
            self._add(known[1], -1)
        self._attempts[event.attempt_id] = (event.report, event.usage)
        self._add(event.usage, 1)

    def _add(self, usage: TokenUsage, sign: int) -> None:
        counters = self._counters or (0,) * _COUNTERS
        tiers = self._tiers = {} if self._tiers is None else self._tiers
        self._counters = tuple([old + sign * new for old, new in zip(counters, _counters_of(usage), strict=True)])
        tiers[usage.service_tier] = tiers.get(usage.service_tier, 0) + sign
        if not tiers[usage.service_tier]:
            del tiers[usage.service_tier]

    def _open_usage(self, usage: TokenUsage) -> None:
        """Start from a given sum: what the known attempts don't explain stays as an attempt of its own."""
        for _, part in (self._attempts or {}).values():
            if not part.is_empty:
                self._add(part, 1)
        explained = self._counters or (0,) * _COUNTERS
        self._counters = tuple([max(a, b) for a, b in zip(explained, _counters_of(usage), strict=True)])
        if self._counters != explained:
            tiers = self._tiers = {} if self._tiers is None else self._tiers
            tiers[usage.service_tier] = tiers.get(usage.service_tier, 0) + 1

    def _usage(self) -> TokenUsage | None:
        if self._counters is None or self._tiers is None:
            return self._base.usage
        tier = next(iter(self._tiers)) if len(self._tiers) == 1 else None
        prompt, completion, total, cached, created, reasoning = [min(number, MAX_TOKENS) for number in self._counters]
        return TokenUsage(prompt, completion, total, cached, created, reasoning, tier)


def _counters_of(usage: TokenUsage) -> tuple[int, ...]:
    return (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.total_tokens,
        usage.cached_prompt_tokens,
        usage.cache_creation_prompt_tokens,
        usage.reasoning_tokens,
    )
