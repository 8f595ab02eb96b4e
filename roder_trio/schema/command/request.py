"""Commands: what is asked of a thread. They may be refused, before anything happened."""

from datetime import datetime
from typing import Any

import attrs

from roder_trio.schema.event import ThreadMetadataChanged
from roder_trio.schema.goal import GoalPatch
from roder_trio.schema.ids import is_text, is_text_or_none
from roder_trio.schema.item import ItemEventKind
from roder_trio.schema.policy import ApprovalOutcome, ExternalOutcome, PolicyMode
from roder_trio.schema.tool import ToolOutput
from roder_trio.schema.transcript import TranscriptItem, UserMessage
from roder_trio.schema.turn import OutputOptions


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
class OpenFollow:
    """Answered by the actor with the last seq of the thread and a registration, in one step."""

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


@attrs.frozen(kw_only=True)
class ContinueGoal:
    """Begin a turn of the goal, if it is active and the thread idle; answered with its id, or None.

    `after` is the turn that it follows by itself, and that must still be the last one; None: a host asked for it.
    """

    turn_id: str
    after: str | None = None
    existing_directory: str | None = None
    """A workspace that was found to exist."""


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
    """The thread's window and metadata, for a caller's own compaction; None if `transcript` isn't the window."""

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
