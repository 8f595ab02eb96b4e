"""What the runtime needs from outside: a store, engines, tools, policies, hooks, sinks. Subclass these for your own.

A class here holds the contract in its docstrings; `roder_trio.testing` has checks for it.
"""

import abc
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import trio

from roder_trio.errors import StoreUnsupported, ToolError
from roder_trio.logic.thread.hydration import Hydration, fold_snapshot
from roder_trio.schema.event import Event, EventEnvelope
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.inference import (
    EngineTarget,
    InferenceCapabilities,
    InferenceEvent,
    InferenceRequest,
    ModelDescriptor,
    TurnContext,
)
from roder_trio.schema.policy import Deny, Rewrite, Verdict
from roder_trio.schema.thread import LogPage, Record, StoredRecord, ThreadMetadata, ThreadPage, ThreadSnapshot
from roder_trio.schema.tool import ToolContext, ToolOutput, ToolSpec
from roder_trio.schema.transcript import UserMessage
from roder_trio.schema.turn import TurnOutcome
from roder_trio.schema.usage import TokenUsage


class ThreadStore(abc.ABC):
    """Keeps threads. `append` is atomic, durable when it returns, ordered, and idempotent by record id.

    Every method raises `StorageError` or a class below it, never a library's own exception. A `StorageError` other
    than `AppendOutcomeUnknown` means "not stored". Cancellation raised out of a method means that nothing was
    written. An id that can't be one (it has 1 to 512 characters, no NUL) is a ValueError where a thread is created,
    and unknown elsewhere. `testing.check_thread_store` checks all of this.
    """

    id: str

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Hold what the store needs while it is used. Leaving finishes accepted appends, then closes.

        Entered once, unless only memory holds the threads; make another store to open a storage again. Raises
        StorageError, StoreInUse.
        """
        yield

    @abc.abstractmethod
    async def create_thread(self, metadata: ThreadMetadata) -> ThreadMetadata:
        """Store a new thread; the same creation again returns what is stored.

        Raises ThreadExists for an id with another creation, of an archived thread too, ValueError for one that can't
        be.
        """

    @abc.abstractmethod
    async def load_thread(self, thread_id: ThreadId) -> ThreadSnapshot | None:
        """Return all that is held of an active thread as of one moment; None for unknown and archived."""

    @abc.abstractmethod
    async def list_threads(
        self, *, limit: int = 50, cursor: str | None = None, label: tuple[str, str] | None = None
    ) -> ThreadPage:
        """Return a page of active threads by (updated_at, thread_id), newest first; `label` is a key and its value.

        `cursor` is the `next_cursor` of the page before. Raises ValueError for a limit that is no integer from 1 to 500
        or a label that is no pair of texts, InvalidCursor for a cursor that this store didn't make for that label.
        """

    @abc.abstractmethod
    async def archive_thread(self, thread_id: ThreadId) -> bool:
        """Make an active thread invisible, keeping every byte; False for unknown and archived."""

    @abc.abstractmethod
    async def append(self, thread_id: ThreadId, records: Sequence[Record]) -> None:
        """Store records and the metadata that follows from them, all or none; those that are there are left out.

        A cancel before the write leaves nothing; from there on it is shielded. Raises ThreadNotFound for an unknown or
        archived thread, InvalidRecord for a record of another thread or one that `codec.encode_record` refuses.
        """

    async def load_metadata(self, thread_id: ThreadId) -> ThreadMetadata | None:
        """Return the metadata of an active thread."""
        snapshot = await self.load_thread(thread_id)
        return None if snapshot is None else snapshot.metadata

    async def load_state(self, thread_id: ThreadId) -> Hydration | None:
        """Return the state that the log of an active thread folds to, for its owner; None for unknown and archived.

        By default from one `load_thread`. A store that keeps states (`roder_trio.codec.state`) continues one with the
        records after it, by `fold_tail`; whatever it does, the state decides as the default's does.
        """
        snapshot = await self.load_thread(thread_id)
        if snapshot is None or snapshot.metadata is None:
            return None
        return fold_snapshot(snapshot, snapshot.metadata)

    async def load_events(self, thread_id: ThreadId, after: int = 0, limit: int = 500) -> Sequence[EventEnvelope]:
        """Return at most `limit` envelopes with a seq above `after`, in order."""
        snapshot = await self.load_thread(thread_id)
        events = () if snapshot is None else snapshot.events
        return [envelope for envelope in events if envelope.seq > after][:limit]

    async def read_log(self, thread_id: ThreadId, cursor: str | None = None) -> LogPage | None:
        """Return a piece of a thread's log, from where the one before ended, as it is stored; for copies of threads.

        Active and archived threads alike; None for unknown. Raises StoreUnsupported; copies then are made of
        `load_thread`.
        """
        raise StoreUnsupported(f"The store {self.id!r} can't show its logs as they are stored.")

    async def claim_thread(self, thread_id: ThreadId) -> None:
        """Called before a thread is read to be worked on; shared stores take its lease here."""

    async def release_thread(self, thread_id: ThreadId) -> None:
        """Called when a thread is no longer worked on; stores drop what they hold for it here."""

    def watch_ownership(self, lost: Callable[[ThreadId], None]) -> None:
        """Called once, before any thread is claimed; shared stores call `lost` when a claimed thread is theirs no more.

        They call it on the event loop, once per loss; from then on `append` raises LeaseLost until the next claim.
        """

    async def unarchive_thread(self, thread_id: ThreadId) -> bool:
        """Bring an archived thread back; False if it isn't archived. Raises StoreUnsupported."""
        raise StoreUnsupported(f"The store {self.id!r} can't unarchive threads.")

    async def list_archived(self, *, limit: int = 50, cursor: str | None = None) -> ThreadPage:
        """As `list_threads`, of archived threads. Raises StoreUnsupported."""
        raise StoreUnsupported(f"The store {self.id!r} can't list archived threads.")

    async def delete_thread(self, thread_id: ThreadId) -> bool:
        """Remove an active or archived thread with every byte; False if nothing is there. Raises StoreUnsupported."""
        raise StoreUnsupported(f"The store {self.id!r} can't delete threads.")

    def follow(
        self, thread_id: ThreadId, after: int = 0
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[int, StoredRecord]]]:
        """Iterate over (position, record) as other processes append. Raises StoreUnsupported."""
        raise StoreUnsupported(f"The store {self.id!r} can't be followed.")


InferenceStream = AsyncIterator[InferenceEvent]


class SettlingStream(Protocol):
    """An event iterator that can tell, after a cancel, what the bytes already received say of usage."""

    def settle(self) -> TokenUsage | None:
        """Return the running total decodable now, without awaiting; None if nothing is known."""


class InferenceEngine(abc.ABC):
    """Talks to one provider. Leaving a stream's block closes the stream, whatever the cause.

    Failures are raised as `ProviderFailure`, on entering the block or from the iterator. `Usage` events are running
    totals. A stream ends with `Completed` or a raised failure; one that just stops counts as interrupted. An engine
    makes no retries of its own.

    A turn that names no model asks an attribute `default_model`, if there is one, else the first of `list_models`.
    """

    id: str
    capabilities: InferenceCapabilities = InferenceCapabilities.text_only()
    requires_native_compaction: bool = False
    target: EngineTarget | None = None
    """Where requests go, for opaque boundaries; None: every boundary counts."""
    known_models: Sequence[ModelDescriptor] = ()
    """Rows that this engine goes by; for its models they come before those of the catalog."""

    @abc.abstractmethod
    def stream_turn(
        self, context: TurnContext, request: InferenceRequest
    ) -> AbstractAsyncContextManager[InferenceStream]:
        """Open a stream of events for `request`: mostly a method under `@asynccontextmanager` that yields an iterator.

        The iterator may have `settle`, as `SettlingStream` has. A cancel comes out of the block and closes the stream.
        Raises ProviderFailure.
        """

    def compact_turn(
        self, context: TurnContext, request: InferenceRequest
    ) -> AbstractAsyncContextManager[InferenceStream] | None:
        """Open a stream that brings one compaction boundary; None if the provider has no such thing."""
        return None

    async def list_models(self) -> Sequence[ModelDescriptor]:
        """Return the models that can be asked for, the default first; `known_models` by default.

        Raises ProviderFailure.
        """
        await trio.lowlevel.checkpoint()
        return self.known_models

    def use_client(self, client: Any) -> None:
        """Take the runtime's shared `httpx.AsyncClient`; an engine with one of its own keeps that."""

    def use_models(self, rows: Sequence[ModelDescriptor]) -> None:
        """Take the rows of the runtime's catalog for this engine's id; an engine that was given rows keeps those."""


class Fallback:
    """Engines of which the next takes a step over from those before; its id and capabilities are those of the first.

    It is given to a runtime among the engines and is none itself: a turn unfolds it, step by step.
    """

    def __init__(self, engines: Sequence[InferenceEngine]) -> None:
        ids = [engine.id for engine in engines]
        if not ids:
            raise ValueError("a fallback needs at least one engine")
        for id in ids:
            if ids.count(id) > 1:
                raise ValueError(f"two engines of a fallback have the id {id!r}; give each an id of its own")
        self.engines = tuple(engines)

    @property
    def id(self) -> str:
        """The id of the first engine."""
        return self.engines[0].id

    @property
    def capabilities(self) -> InferenceCapabilities:
        """The capabilities of the first engine."""
        return self.engines[0].capabilities


class EventSink(abc.ABC):
    """Gets every event, in order, one at a time, from a task of the runtime."""

    id: str

    @abc.abstractmethod
    async def emit(self, envelope: EventEnvelope) -> None:
        """Take one event. An error or an overrun of `sink_timeout` is told as `SinkFailed`."""


class Tool(abc.ABC):
    """Something that a model may call. A tool's failure is data for the model, never a failed turn."""

    spec: ToolSpec

    @abc.abstractmethod
    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolOutput:
        """Run once, with arguments that fit the schema. Raises ToolError for what the model is to read.

        On cancel it has `tool_cancel_grace` seconds for shielded cleanup; what it returns after that is dropped.
        """


class HostRunTool(Tool):
    """A tool that the host runs: a call is announced, and waits `timeout` seconds (None: no limit) for the answer."""

    timeout: float | None

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolOutput:
        """Never called by the runtime. Raises ToolError."""
        await trio.lowlevel.checkpoint()
        raise ToolError(f"The tool {self.spec.name!r} is run by the host, not in this process.")


class Policy(abc.ABC):
    """May make the decision about a call stricter; asked once per call."""

    @abc.abstractmethod
    async def decide(self, context: ToolContext, spec: ToolSpec, arguments: Mapping[str, Any]) -> Verdict | None:
        """Return a verdict, or None for no opinion. An error, or more than `policy_timeout`, denies the call."""


class Hook:
    """Is told what turns and tools do. The base class does nothing; only `tool_calling` can stop anything.

    Each call has `hook_timeout` seconds. One that overruns, or raises, is told as `HookFailed`, and what it was asked
    about goes on as if there were no such hook. A turn that is interrupted cancels the hooks that it waits for, but for
    those of compactions; `turn_ended` is called from a task of the runtime, one ended turn after the other.
    """

    async def turn_starting(self, thread_id: str, turn_id: str, message: UserMessage) -> str | None:
        """Return context for this turn's requests, or None."""
        return None

    async def tool_calling(
        self, context: ToolContext, name: str, arguments: Mapping[str, Any]
    ) -> Deny | Rewrite | None:
        """Deny a call, rewrite its arguments, or let it be."""
        return None

    async def tool_called(
        self, context: ToolContext, name: str, arguments: Mapping[str, Any], output: ToolOutput
    ) -> None:
        """A call has ended."""

    async def compaction_starting(self, event: Event) -> None:
        """A compaction began."""

    async def compaction_finished(self, event: Event) -> None:
        """A compaction ended, whichever way."""

    async def turn_ended(self, outcome: TurnOutcome) -> None:
        """A turn's terminal event was published."""
