"""Events of compactions."""

from typing import ClassVar

import attrs


@attrs.frozen
class ContextCompactionStarted:
    """A compaction began on a window of `item_count` items and `estimated_tokens`."""

    kind: ClassVar[str] = "compaction.started"
    durable: ClassVar[bool] = True
    compaction_id: str
    trigger: str
    item_count: int
    estimated_tokens: int


@attrs.frozen
class ContextPruned:
    """From here on windows show notices instead of these results, each named by its turn and its index there."""

    kind: ClassVar[str] = "context.pruned"
    durable: ClassVar[bool] = True
    items: tuple[tuple[str, int], ...]
    tokens_before: int
    tokens_after: int


@attrs.frozen
class ContextLimitRecovered:
    """A request was too large for its model, and the window is smaller now; `attempt` counts those of the turn."""

    kind: ClassVar[str] = "context.recovered"
    durable: ClassVar[bool] = False
    attempt: int
    tokens_before: int
    tokens_after: int


@attrs.frozen
class ContextCompactionRecorded:
    """A boundary was committed; counts are those of the new window, `duration` in seconds."""

    kind: ClassVar[str] = "compaction.recorded"
    durable: ClassVar[bool] = True
    compaction_id: str
    strategy: str
    item_count: int
    estimated_tokens: int
    duration: float = 0.0


@attrs.frozen
class ContextCompactionFailed:
    """A compaction failed; the window is as before."""

    kind: ClassVar[str] = "compaction.failed"
    durable: ClassVar[bool] = True
    compaction_id: str
    error: str
    error_kind: str


@attrs.frozen
class ContextCompactionCancelled:
    """A compaction was cancelled: `new_input`, `interrupted`, `stale_window` or `runtime_restart`."""

    kind: ClassVar[str] = "compaction.cancelled"
    durable: ClassVar[bool] = True
    compaction_id: str
    reason: str


@attrs.frozen
class ContextCompactionSkipped:
    """A due compaction was not begun: `failed_before`, `hysteresis` or `new_input`."""

    kind: ClassVar[str] = "compaction.skipped"
    durable: ClassVar[bool] = False
    reason: str
