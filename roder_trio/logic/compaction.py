"""When a thread is compacted, and whether what a provider answers is a boundary that may be committed.

Pure. `decide` answers once per sampling round; a boundary never blocks by its mere presence. `step` is the table of a
native compaction: its staging starts empty on every attempt, holds at most one candidate, and nothing of the candidate
is in the log before the commit. Failures of a provider are values here; who runs the compaction raises them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, TypeAlias

import attrs

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.logic.boundary import compaction_items, same_boundary
from roder_trio.schema import inference
from roder_trio.schema.inference import ModelDescriptor
from roder_trio.schema.transcript import ContextCompaction, ProviderMetadata

RETRY_MARKER = "reliability_retry_attempt"
UNSUPPORTED = "compaction_unsupported"
NOTHING_TO_COMPACT = "nothing_to_compact"
CANNOT_SHRINK = "cannot_shrink"
OVERFLOWS = (ProviderFailureKind.CONTEXT_WINDOW_EXCEEDED, ProviderFailureKind.REQUEST_TOO_LARGE)
"""Failures of a request that was too large for its model."""
MAX_PREEMPTED_IN_A_ROW = 3
_MAX_SLACK = 5_000

# -- when --------------------------------------------------------------------------------------------------------------

Trigger: TypeAlias = Literal["auto", "overflow", "manual", "direct"]


@attrs.frozen
class Limits:
    """Who compacts from how many tokens on; 0: the runtime never does, None: the provider isn't asked to."""

    runtime: int
    provider: int | None


@attrs.frozen
class Nothing:
    """No compaction is due; nobody is told."""


@attrs.frozen
class Skip:
    """A compaction is due and not begun: `failed_before` or `hysteresis`."""

    reason: str


@attrs.frozen
class Prune:
    """Old results of tools are shown as notices from now on; that will do."""


@attrs.frozen
class Compact:
    """Compact now."""


Decision: TypeAlias = Nothing | Skip | Prune | Compact


def threshold(config_limit: int | None, descriptor: ModelDescriptor | None) -> int:
    """Return the tokens from which a window is compacted: the config's, else the catalog's, else 0 for never."""
    if config_limit is not None:
        return config_limit
    if descriptor is None:
        return 0
    if descriptor.auto_compact_token_limit is not None:
        return descriptor.auto_compact_token_limit
    return (descriptor.context_window or 0) * 9 // 10


def limits(config_limit: int | None, descriptor: ModelDescriptor | None, requires_native: bool) -> Limits:
    """Divide the work: a model that compacts in its stream gets the threshold, the runtime guards the whole window."""
    plain = threshold(config_limit, descriptor)
    if not plain or descriptor is None or requires_native or "compaction" not in descriptor.supports:
        return Limits(plain, None)
    return Limits(descriptor.context_window or plain, plain)


def baseline_slack(threshold: int) -> int:
    """Return by how many tokens a window must have grown past its last boundary before the next compaction."""
    return min(_MAX_SLACK, threshold // 10)


def decide(
    trigger: Trigger,
    *,
    threshold: int,
    size: int,
    estimate: int,
    baseline: int | None = None,
    failed_before: bool = False,
    prunes: Callable[[], bool] = lambda: False,
) -> Decision:
    """Decide whether to compact; the first rule that matches wins.

    `baseline` is the estimate of the window right after the boundary that heads it, None without one.
    `failed_before`: earlier in this turn an automatic compaction failed, or left the size at or over the threshold.
    `prunes`: whether pruning suffices; it is asked only if all else says that something must be done.
    """
    if trigger != "auto":
        return Compact()
    if not threshold or size < threshold:
        return Nothing()
    if failed_before:
        return Skip("failed_before")
    if baseline is not None and estimate < baseline + baseline_slack(threshold):
        return Skip("hysteresis")
    return Prune() if prunes() else Compact()


def may_preempt(preempted_in_a_row: int, *, threshold: int, size: int) -> bool:
    """Say if steers may preempt the next compaction: not for ever, while the window is still too large."""
    return preempted_in_a_row < MAX_PREEMPTED_IN_A_ROW or not threshold or size < threshold


# -- what comes of it --------------------------------------------------------------------------------------------------


@attrs.frozen
class Boundary:
    """A boundary that is to be committed, how it was made, and how many items and tokens its window has."""

    item: ProviderMetadata | ContextCompaction
    strategy: str
    item_count: int
    tokens: int


@attrs.frozen
class Kept:
    """The window stays as it is: `nothing_to_compact`, `cannot_shrink` or `compaction_unsupported`."""

    reason: str


# -- native compaction: one transaction --------------------------------------------------------------------------------


@attrs.frozen
class Staging:
    """What one attempt of a native compaction has brought: at most one candidate, in memory only."""

    requires_native: bool = False
    candidate: ProviderMetadata | None = None


class Ending(Enum):
    """How an attempt ends without an event or an exception."""

    DECLINED = "declined"
    """`compact_turn` returned None."""
    EXHAUSTED = "exhausted"
    """The iterator ended without `Completed`."""


@attrs.frozen
class Proceed:
    """Read on."""


@attrs.frozen
class Retried:
    """The engine retried by itself: one attempt fewer is left."""


@attrs.frozen
class Declined:
    """The provider has no compaction, and none is required."""


@attrs.frozen
class Fail:
    """The attempt failed; the candidate is dropped."""

    failure: ProviderFailure


@attrs.frozen
class Commit:
    """Commit this boundary; the stream is not read further."""

    item: ProviderMetadata


Verdict: TypeAlias = Proceed | Retried | Declined | Fail | Commit
Input: TypeAlias = inference.InferenceEvent | ProviderFailure | Ending


def step(staging: Staging, event: Input) -> tuple[Staging, Verdict]:
    """Take one event of a native compaction, or the way its stream ended."""
    match event:
        case inference.ProviderMetadata():
            return _stage(staging, event.payload)
        case (
            inference.ToolCallStarted()
            | inference.ToolCallDelta()
            | inference.ToolCallCompleted()
            | inference.HostedToolCallStarted()
            | inference.HostedToolCallCompleted()
        ):
            return _fail(staging, _protocol("The provider called a tool while it compacted the context."))
        case inference.Failed():
            return _fail(staging, _protocol(event.message))
        case inference.Completed() if staging.candidate is not None:
            return staging, Commit(staging.candidate)
        case inference.Completed():
            return _fail(staging, _protocol("The provider's compaction completed without a boundary."))
        case ProviderFailure() | Ending():
            return _end(staging, event)
        case _:
            return staging, Proceed()


def _end(staging: Staging, ending: ProviderFailure | Ending) -> tuple[Staging, Verdict]:
    if ending is Ending.EXHAUSTED:
        message = "The provider's compaction stream ended before it was completed."
        return _fail(staging, ProviderFailure(ProviderFailureKind.STREAM_INTERRUPTED, message, cause="truncated"))
    if isinstance(ending, Ending):
        message = "The provider has no compaction of its own, and this engine requires it."
        ending = ProviderFailure(ProviderFailureKind.INVALID_REQUEST, message, cause=UNSUPPORTED)
    unsupported = ending.kind is ProviderFailureKind.INVALID_REQUEST and ending.cause == UNSUPPORTED
    if unsupported and not staging.requires_native:
        return _emptied(staging), Declined()
    return _fail(staging, ending)


def _stage(staging: Staging, payload: Any) -> tuple[Staging, Verdict]:
    if not isinstance(payload, Mapping):
        return _fail(staging, _protocol("The engine sent metadata that is no JSON object."))
    if payload.get("kind") == RETRY_MARKER:
        return _emptied(staging), Retried()
    found = compaction_items(payload)
    if not found:
        return staging, Proceed()
    complaint = _complaint(payload, found)
    if complaint:
        return _fail(staging, _protocol(complaint))
    if staging.candidate is None:
        return attrs.evolve(staging, candidate=ProviderMetadata(payload)), Proceed()
    if same_boundary(compaction_items(staging.candidate.payload)[0], found[0]):
        return staging, Proceed()
    return _fail(staging, _protocol("The provider sent two different compaction boundaries."))


def _complaint(payload: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> str | None:
    item = found[0]
    if not all(same_boundary(item, other) for other in found):
        return "The provider's compaction output holds more than one boundary."
    content = item.get("encrypted_content")
    if not isinstance(content, str) or not content:
        return "The provider's compaction boundary has no encrypted content."
    if "compacted_input" not in payload:
        return None
    if any(same_boundary(item, part) for part in _mappings(payload["compacted_input"])):
        return None
    return "The provider's compacted input does not hold its boundary."


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    return (part for part in (value if isinstance(value, list | tuple) else ()) if isinstance(part, Mapping))


def _protocol(message: str) -> ProviderFailure:
    return ProviderFailure(ProviderFailureKind.PROTOCOL, message)


def _fail(staging: Staging, failure: ProviderFailure) -> tuple[Staging, Verdict]:
    return _emptied(staging), Fail(failure)


def _emptied(staging: Staging) -> Staging:
    return Staging(staging.requires_native)
