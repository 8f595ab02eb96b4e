"""Effects: what the owner does, without awaiting, once the events of a decision are stored."""

from typing import Any, TypeAlias

import attrs

from roder_trio.schema.command.request import TurnOptions
from roder_trio.schema.event import Event
from roder_trio.schema.ids import is_text
from roder_trio.schema.policy import PolicyMode
from roder_trio.schema.transcript import UserMessage


@attrs.frozen(kw_only=True)
class TurnPlan:
    """What a turn runs with, chosen at its admission."""

    turn_id: str = attrs.field(validator=is_text)
    provider: str = attrs.field(validator=is_text)
    model: str = attrs.field(validator=is_text)
    reasoning: str | None = None
    options: TurnOptions = attrs.field(factory=TurnOptions)
    developer_instructions: str | None = None
    workspace: str | None = None
    tool_allowlist: tuple[str, ...] = ()
    message: UserMessage | None = None
    """What the turn began with; None for a compaction."""
    output_form: Any = None
    """What the answer must be; None: text."""
    continues: str | None = None
    """The turn whose goal work this one goes on with, unasked."""


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
class ContinueLater:
    """The goal goes on after this turn, behind all that was asked of the thread before."""

    after: str


@attrs.frozen
class Publish:
    """Publish a live-only event."""

    event: Event
    turn_id: str | None = None


Effect: TypeAlias = (
    StartJob
    | StartCompaction
    | CancelJob
    | PreemptStep
    | FreeSlot
    | EndTurn
    | ContinueLater
    | Publish
    | Answer
    | Remember
    | SetMode
)
