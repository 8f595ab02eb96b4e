"""Reports: what a job tells its thread, and how it ends. They are facts, never refused."""

from typing import Any, TypeAlias

import attrs

from roder_trio.schema.event import Event
from roder_trio.schema.goal import GoalPatch
from roder_trio.schema.policy import Verdict
from roder_trio.schema.tool import ToolSpec
from roder_trio.schema.transcript import ContextCompaction, ProviderMetadata, TranscriptItem


@attrs.frozen
class RecordCompaction:
    """A compaction began or ended without a boundary."""

    turn_id: str
    event: Event


@attrs.frozen(kw_only=True)
class CommitCompaction:
    """Store a boundary, if the log still has `base` items and no call is open."""

    turn_id: str
    compaction_id: str
    base: int
    item: ProviderMetadata | ContextCompaction
    strategy: str
    duration: float
    item_count: int = 1
    """Of the new window."""
    tokens: int
    """The estimate of the new window."""


@attrs.frozen(kw_only=True)
class PruneContext:
    """Show notices instead of old results, if that brings a window of `size` below `threshold`.

    `all_old` prunes whatever lies outside the newest step, and asks for nothing in return.
    """

    turn_id: str
    size: int = 0
    threshold: int = 0
    all_old: bool = False


@attrs.frozen
class TakeSteers:
    """A round begins and steers wait."""

    turn_id: str


@attrs.frozen
class ItemsDone:
    """Items that the stream has completed, to be stored before it is read on."""

    turn_id: str
    items: tuple[TranscriptItem, ...]


@attrs.frozen
class StepEnded:
    """A step is closed: its last items; what it left open is discarded, and steers that wait are taken."""

    turn_id: str
    items: tuple[TranscriptItem, ...] = ()


@attrs.frozen
class FinalStep:
    """A step that ends the turn, unless steers wait."""

    turn_id: str
    items: tuple[TranscriptItem, ...]
    finish_reason: str | None
    output: Any = None
    """The structured answer that was accepted."""
    otherwise: tuple[TranscriptItem, ...] | None = None
    """What is stored if it doesn't end the turn; None: `items`."""


@attrs.frozen
class ToolResultsDone:
    """Results of the step's calls, in call order."""

    turn_id: str
    items: tuple[TranscriptItem, ...]


@attrs.frozen
class RecordToolEvents:
    """Store what happened to a call before it ran."""

    turn_id: str
    events: tuple[Event, ...]


@attrs.frozen(kw_only=True)
class RequestApproval:
    """A call needs consent; decided once more by the mode of that moment, so that no needless question is shown."""

    turn_id: str
    approval_id: str
    call_id: str
    arguments: str
    spec: ToolSpec
    verdicts: tuple[Verdict, ...] = ()


@attrs.frozen(kw_only=True)
class RequestExternal:
    """The host is to run a call."""

    turn_id: str
    request_id: str
    call_id: str
    name: str
    arguments: str


@attrs.frozen(kw_only=True)
class AskGoal:
    """The model reads or changes the goal; answered with what came of it. A patch of None only reads."""

    turn_id: str
    goal_id: str
    """For a new goal."""
    patch: GoalPatch | None = None
    creates: bool = False


@attrs.frozen
class AwaitAnswer:
    """Answered with what resolved a request of this turn, once something did."""

    turn_id: str
    request_id: str


@attrs.frozen
class Checkpoint:
    """Store the open text that isn't stored yet."""


@attrs.frozen
class Finished:
    """The turn's terminal event is stored already."""


@attrs.frozen
class Failed:
    """The turn failed."""

    error: str
    kind: str
    items: tuple[TranscriptItem, ...] = ()
    call_error: str = "not run: the turn failed"


@attrs.frozen
class Interrupted:
    """The turn was interrupted."""

    reason: str
    items: tuple[TranscriptItem, ...] = ()


@attrs.frozen
class CompactionEnded:
    """A manual compaction ended with a result or an exception."""

    compaction_id: str
    result: Any = None
    error: BaseException | None = None


JobOutcome: TypeAlias = Finished | Failed | Interrupted | CompactionEnded


@attrs.frozen
class JobEnded:
    """The last word of a job."""

    turn_id: str
    outcome: JobOutcome
