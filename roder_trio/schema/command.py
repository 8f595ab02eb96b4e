"""What is asked of a thread, what a job tells it, and what its owner must do.

Commands may be refused, before anything happened. Reports come from a job and are facts, never refused. Effects are
what the actor performs, without awaiting, once a decision's events are stored.
"""

from datetime import datetime
from typing import Any, TypeAlias

import attrs

from roder_trio.schema.event import Event, ThreadMetadataChanged
from roder_trio.schema.goal import GoalPatch
from roder_trio.schema.ids import is_text, is_text_or_none
from roder_trio.schema.item import ItemEventKind
from roder_trio.schema.policy import ApprovalOutcome, ExternalOutcome, PolicyMode, Verdict
from roder_trio.schema.tool import ToolOutput, ToolSpec
from roder_trio.schema.transcript import ProviderMetadata, TranscriptItem, UserMessage
from roder_trio.schema.turn import OutputOptions

# -- commands ----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class TurnOptions:
    """What one turn was asked for; None takes the thread's or the runtime's."""

    provider: str | None = attrs.field(default=None, validator=is_text_or_none)
    model: str | None = attrs.field(default=None, validator=is_text_or_none)
    reasoning: str | None = attrs.field(default=None, validator=is_text_or_none)
    workspace: str | None = attrs.field(default=None, validator=is_text_or_none)
    instructions: str | None = attrs.field(default=None, validator=is_text_or_none)
    developer_context: str | None = attrs.field(default=None, validator=is_text_or_none)
    service_tier: str | None = attrs.field(default=None, validator=is_text_or_none)
    output: OutputOptions = OutputOptions()


@attrs.frozen(kw_only=True)
class StartTurn:
    """Begin a turn; answered with its id once its opening is stored."""

    turn_id: str
    message: UserMessage
    options: TurnOptions = TurnOptions()
    output_form: Any = None
    """What the answer must be; None: text."""
    existing_directory: str | None = None
    """A workspace that was found to exist."""


@attrs.frozen
class Steer:
    """Give the running turn more input, and preempt its step if the phase allows."""

    turn_id: str = attrs.field(validator=is_text)
    steer_id: str
    message: UserMessage


@attrs.frozen
class Interrupt:
    """Stop the running turn."""

    turn_id: str = attrs.field(validator=is_text)
    reason: str


@attrs.frozen
class WaitTurn:
    """Answered with the turn's outcome, once it has one."""

    turn_id: str = attrs.field(validator=is_text)


@attrs.frozen
class Compact:
    """Begin a manual compaction; answered once it is on its way."""

    compaction_id: str
    hint: str | None


@attrs.frozen
class WaitCompaction:
    """Answered with the result of a manual compaction, once it has one."""

    compaction_id: str


@attrs.frozen
class Archive:
    """Archive the thread, or delete it; a running turn is interrupted first."""

    delete: bool = False


@attrs.frozen
class OpenView:
    """Answered by the actor with the thread's items and a registration, in one step."""

    register: Any


@attrs.frozen
class Touch:
    """Answered with True once the thread is resident; with None if there is none."""


@attrs.frozen
class ItemExists:
    """Whether an item event of that item was stored, derived, or is live."""

    turn_id: str = attrs.field(validator=is_text)
    item_id: str = attrs.field(validator=is_text)


@attrs.frozen
class LatestIndex:
    """The highest transcript index of a turn, or None."""

    turn_id: str = attrs.field(validator=is_text)


@attrs.frozen
class PersistItem:
    """Append a host's transcript item; answered with its index."""

    turn_id: str = attrs.field(validator=is_text)
    item: TranscriptItem


@attrs.frozen
class RecordItemEvent:
    """Store a host's item event; answered with the numbered event."""

    turn_id: str = attrs.field(validator=is_text)
    timestamp: datetime
    event: ItemEventKind


@attrs.frozen
class GetGoal:
    """The goal as it reads now, or None."""


@attrs.frozen
class SetGoal:
    """Create or change the goal."""

    goal_id: str
    patch: GoalPatch


@attrs.frozen
class ClearGoal:
    """Remove the goal."""


@attrs.frozen
class UpdateThread:
    """Change fields of the metadata."""

    change: ThreadMetadataChanged


@attrs.frozen
class GetState:
    """A host's own value beside the thread, or None."""

    extension_id: str = attrs.field(validator=is_text)
    key: str = attrs.field(validator=is_text)


@attrs.frozen
class SetState:
    """Store a host's own value beside the thread."""

    record_id: str
    extension_id: str = attrs.field(validator=is_text)
    key: str = attrs.field(validator=is_text)
    value: Any
    schema_version: int


@attrs.frozen
class BeginDirectCompaction:
    """The thread's window and instructions, for a caller's own compaction; None if `transcript` isn't the window."""

    transcript: Any
    target: Any


@attrs.frozen
class ResolveApproval:
    """Answer a request for consent; True for the first answer to a pending one."""

    approval_id: str = attrs.field(validator=is_text)
    outcome: ApprovalOutcome = ApprovalOutcome.APPROVED


@attrs.frozen
class ResolveExternal:
    """Answer a request to run a call; True for the first answer to a pending one."""

    request_id: str = attrs.field(validator=is_text)
    outcome: ExternalOutcome = ExternalOutcome.RESOLVED
    output: ToolOutput | None = None


@attrs.frozen
class ChangePolicy:
    """The policy mode changes: `mode` becomes the thread's own, which is stored; None: the runtime's changed."""

    mode: PolicyMode | None = None


# -- reports -----------------------------------------------------------------------------------------------------------


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
    item: ProviderMetadata
    strategy: str
    duration: float


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


@attrs.frozen
class AwaitAnswer:
    """Answered with what resolved a request of this turn, once something did."""

    turn_id: str
    request_id: str


@attrs.frozen
class Checkpoint:
    """Store the open text that isn't stored yet."""


# -- how a job ends ----------------------------------------------------------------------------------------------------


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


# -- effects -----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class TurnPlan:
    """What a turn runs with, chosen at its admission."""

    turn_id: str = attrs.field(validator=is_text)
    provider: str = attrs.field(validator=is_text)
    model: str = attrs.field(validator=is_text)
    reasoning: str | None = None
    options: TurnOptions = TurnOptions()
    developer_instructions: str | None = None
    workspace: str | None = None
    tool_allowlist: tuple[str, ...] = ()
    message: UserMessage | None = None
    """What the turn began with; None for a compaction."""
    output_form: Any = None
    """What the answer must be; None: text."""


@attrs.frozen
class StartJob:
    """Run the turn."""

    plan: TurnPlan


@attrs.frozen
class StartCompaction:
    """Run a manual compaction."""

    plan: TurnPlan
    compaction_id: str
    hint: str | None


@attrs.frozen
class CancelJob:
    """Cancel the running job, for this reason."""

    reason: str


@attrs.frozen
class PreemptStep:
    """Cancel what a steer may preempt."""


@attrs.frozen
class FreeSlot:
    """The job is gone; requests that wait for the slot are decided again."""


@attrs.frozen
class SetMode:
    """The thread has a policy mode of its own from now on."""

    mode: PolicyMode


@attrs.frozen
class Answer:
    """What the turn's call waits for has come."""

    request_id: str
    value: Any


@attrs.frozen
class Remember:
    """An approval is pending; these are its terms, should the mode change."""

    approval_id: str
    terms: Any


@attrs.frozen
class EndTurn:
    """The turn's terminal event is stored; those who wait for it are answered."""

    turn_id: str


@attrs.frozen
class Publish:
    """Publish a live-only event."""

    event: Event
    turn_id: str | None = None


Effect: TypeAlias = (
    StartJob | StartCompaction | CancelJob | PreemptStep | FreeSlot | EndTurn | Publish | Answer | Remember | SetMode
)
