"""What a decision may know besides the state: the moment, the slot of the job, the board, the engines."""

import enum
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

import attrs

from roder_trio.logic.estimate import Sums
from roder_trio.logic.thread.draft import Draft
from roder_trio.logic.usage import ThreadTotals
from roder_trio.logic.window import Window
from roder_trio.schema.command import Effect, TurnPlan
from roder_trio.schema.config import RuntimeConfig
from roder_trio.schema.inference import EngineTarget, InferenceCapabilities, ModelDescriptor
from roder_trio.schema.policy import PolicyMode, Verdict
from roder_trio.schema.tool import ToolSpec
from roder_trio.schema.transcript import UserMessage


class Phase(enum.Enum):
    """Where the one foreground job of a thread stands."""

    IDLE = "idle"
    RUNNING = "running"
    FINISHING = "finishing"
    CLOSING = "closing"
    COMPACTING = "compacting"


@attrs.frozen
class Slot:
    """The foreground job as its thread sees it; all of it is volatile."""

    phase: Phase = Phase.IDLE
    turn_id: str | None = None
    target: EngineTarget | None = None
    """Where the job's requests go."""
    images: bool = False
    """Whether its engine takes images."""
    attached_at: float | None = None
    """Since when, on trio's clock, the turn works on its goal without that being stored."""
    continues: str | None = None
    """The turn whose goal work the running one goes on with, unasked."""


@attrs.frozen(kw_only=True)
class EngineFacts:
    """What admission needs to know of an engine."""

    capabilities: InferenceCapabilities
    default_model: str | None
    models: Mapping[str, ModelDescriptor]
    target: EngineTarget | None


@attrs.frozen
class ApprovalTerms:
    """By what a pending request for consent is decided again when the mode changes."""

    spec: ToolSpec
    verdicts: tuple[Verdict, ...] = ()


@attrs.frozen(kw_only=True)
class Facts:
    """One moment, as a decision sees it."""

    now: datetime
    time: float
    """On trio's clock, in seconds."""
    slot: Slot
    cause: str | None
    """Why the running job was told to stop."""
    draining: bool
    config: RuntimeConfig
    engines: Mapping[str, EngineFacts]
    totals: ThreadTotals
    tool_names: Collection[str] = ()
    """The names of the runtime's tools."""
    policy_mode: PolicyMode = PolicyMode.ACCEPT_ALL
    """The thread's own, else the runtime's."""
    last_plan: TurnPlan | None = None
    """What the last turn of this process ran with."""
    continues_after: str | None = None
    """The turn after which a continuation of the goal waits to be decided."""
    terms: Mapping[str, ApprovalTerms] = attrs.field(factory=dict)
    """Those of pending requests for consent, by approval id."""


@attrs.frozen
class Decision:
    """What is stored, what is done then, what is answered."""

    drafts: tuple[Draft, ...] = ()
    effects: tuple[Effect, ...] = ()
    reply: Any = None
    finishing: bool = False
    """True if the turn's job is out of reach of interrupts and steers from before the append on."""


class Deferred(enum.Enum):
    """The answer that isn't there yet: the request waits for the slot or for its turn's end."""

    DEFERRED = "deferred"


DEFERRED: Final = Deferred.DEFERRED


class ReplyView(enum.Enum):
    """The reply that is the thread's `View` after the commit."""

    VIEW = "view"


VIEW: Final = ReplyView.VIEW


class ReplyFromLog(enum.Enum):
    """The reply that the state doesn't hold any more; the whole log tells."""

    FROM_LOG = "from_log"


FROM_LOG: Final = ReplyFromLog.FROM_LOG


@attrs.frozen
class View:
    """A thread's window after a commit, shared and not copied."""

    window: Window
    request: Window
    """The transcript of a sampling request; it is the window unless boundaries say otherwise."""
    sums: Sums
    """What the window's estimate is made of; the difference of two readings measures what came between them."""
    baseline: int | None
    """The window's estimate as it was right after the boundary at its head; None without one."""
    base: int
    """The number of items in the log."""
    goal_id: str | None
    """The goal that the running turn is attached to."""
    has_images: bool = False
    """Whether any item of the log has images."""
    said: UserMessage | None = None
    """The newest user message of the log."""
