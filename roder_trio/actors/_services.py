"""What every actor of one runtime shares, handed down at its making."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import attrs
import trio

from roder_trio.actors._route import Substitute
from roder_trio.actors.accounting import AccountingActor
from roder_trio.actors.broadcast import EventBroadcast
from roder_trio.actors.checkpoint import CheckpointTimer
from roder_trio.actors.cost import CostOf
from roder_trio.actors.hook import Hooks, Policies
from roder_trio.logic.json_schema import Validate, compiled
from roder_trio.logic.thread.facts import EngineFacts
from roder_trio.logic.tool.offer import check_names, is_permitted, offered, takes_tools
from roder_trio.ports import InferenceEngine, ThreadStore, Tool
from roder_trio.schema.command import TurnPlan
from roder_trio.schema.config import RuntimeConfig
from roder_trio.schema.event import Event, EventEnvelope
from roder_trio.schema.inference import ModelDescriptor, ToolDefinition
from roder_trio.schema.policy import PolicyMode


def utc_now() -> datetime:
    """The wall clock, for what people read."""
    return datetime.now(UTC)


_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""What makes a random digit one that may stand in the place of a UUID's variant."""


def new_id() -> str:
    """Mint an identifier that is unique in the world: a UUID of version 4, without the cost of its object."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"


@attrs.define(eq=False)
class Lifecycle:
    """Whether the runtime takes new turns, and what could not be stored while it stopped taking them."""

    drain_reason: str | None = None
    closed: bool = False
    unstored: set[str] = attrs.field(factory=set)
    """Turns whose terminal event could not be stored."""
    interrupted: set[str] = attrs.field(factory=set)
    """Turns that were interrupted as they started."""
    unreleased: set[str] = attrs.field(factory=set)
    """Threads that their store could not release."""
    changed: trio.Event = attrs.field(factory=trio.Event)
    """Set, and made anew, when a job ended or a request was answered while someone drains."""
    drains: int = 0
    """How many wait for the runtime to become quiet."""

    @property
    def draining(self) -> bool:
        """Whether new turns are refused."""
        return self.drain_reason is not None

    def resume(self) -> None:
        """Take turns again, unless the runtime shuts down."""
        if self.drain_reason == "drain":
            self.drain_reason = None
            self.notify()

    def notify(self) -> None:
        """Wake those who wait for the runtime to become quiet."""
        if self.drains:
            self.changed.set()
            self.changed = trio.Event()


@attrs.define(eq=False)
class PolicyModes:
    """The policy modes of now: the runtime's, and those that threads have of their own."""

    runtime: PolicyMode
    threads: dict[str, PolicyMode] = attrs.field(factory=dict)

    def of(self, thread_id: str) -> PolicyMode:
        """Return the thread's own mode, else the runtime's."""
        return self.threads.get(thread_id, self.runtime)


class Toolbox:
    """All tools of a runtime, by name, with their schemas compiled."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        given = list(tools)
        check_names(tool.spec for tool in given)
        self.tools: dict[str, Tool] = {tool.spec.name: tool for tool in given}
        self._definitions = offered(tool.spec for tool in given)
        self._validators = {name: compiled(tool.spec.parameters, name) for name, tool in self.tools.items()}

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name."""
        return self.tools.get(name)

    def validator(self, name: str) -> Validate:
        """Return the compiled schema of a tool's parameters."""
        return self._validators[name]

    def offered(
        self, plan: TurnPlan, config: RuntimeConfig, engine: InferenceEngine, row: ModelDescriptor | None
    ) -> tuple[ToolDefinition, ...]:
        """Return what a turn's requests offer: what both allowlists permit, if the engine and the model take tools."""
        if not takes_tools(engine.capabilities, row):
            return ()
        lists = config.tool_allowlist, plan.tool_allowlist
        return tuple(tool for tool in self._definitions if is_permitted(tool.name, *lists))


@attrs.frozen(eq=False)
class Services:
    """The shared parts of one runtime."""

    store: ThreadStore
    accounting: AccountingActor
    broadcast: EventBroadcast
    config: RuntimeConfig
    engines: Mapping[str, InferenceEngine]
    engine_facts: Mapping[str, EngineFacts]
    substitutes: Mapping[str, Sequence[Substitute]]
    """The engines that take over from another, by its id."""
    lifecycle: Lifecycle
    checkpoints: CheckpointTimer
    toolbox: Toolbox
    hooks: Hooks
    policies: Policies
    policy_modes: PolicyModes
    cost_of: CostOf
    """Prices what turns are charged by."""
    jitter: Callable[[], float]
    """Draws a share of 0 to 0.25 for a retry's delay."""
    on_settled: Callable[[], None] = attrs.field(
        init=False, default=attrs.Factory(lambda self: self.lifecycle.notify, takes_self=True)
    )
    """Called whenever a request was answered: one method for the mailboxes of all threads."""

    def publish_live(self, event: Event, thread_id: str | None, turn_id: str | None, source: str) -> None:
        """Publish an event that is not stored."""
        if self.broadcast.has_readers:
            self.broadcast.publish(envelope(event, thread_id, turn_id, source))


def envelope(
    event: Event, thread_id: str | None = None, turn_id: str | None = None, source: str = "runtime"
) -> EventEnvelope:
    """Wrap a live event, as of now."""
    return EventEnvelope(
        event_id=new_id(), timestamp=utc_now(), source=source, thread_id=thread_id, turn_id=turn_id, event=event
    )
