"""Every error of the runtime, in one tree.

    RoderTrioError
    |- CommandRefused            refused before anything happened
    |  |- RuntimeDraining  ThreadFailed  ThreadBusy  EmptyMessage  BadWorkspace
    |  |- UnknownProvider  UnsupportedOption  NoActiveTurn  SteerQueueFull
    |  |- UnknownTurn  StaleWindow
    |  `- ThreadNotFound         (a StorageError as well)
    |- StorageError              not stored, unless the class says otherwise
    |  |- AppendOutcomeUnknown   may or may not be stored
    |  |- CorruptRecord  ThreadExists  InvalidRecord  InvalidCursor
    |  |- StoreInUse  StoreReadOnly  StoreClosed  StoreUnsupported
    |  |- LeaseLost  ThreadOwnedElsewhere
    |  `- SchemaTooNew  NotAStore
    |- ProviderFailure           an engine failed
    |- ToolError                 raised by a tool: an error result with that text
    |- ToolDefinitionError  DuplicateTool
    |- RuntimeClosed  ActorCrashed  CompactionPreempted  SubscriptionOverrun

A message is one sentence or two: what was attempted, what to do. It never holds a secret.
"""

import enum


class RoderTrioError(Exception):
    """The root of all errors of this package."""


class CommandRefused(RoderTrioError):
    """A request was refused before anything happened: nothing was stored, published or started."""


class RuntimeDraining(CommandRefused):
    """The runtime drains or shuts down and takes no new turn."""

    def __init__(self) -> None:
        super().__init__("The runtime drains and takes no new turn; call resume_accepting_turns() first.")


class RuntimeClosed(RoderTrioError):
    """The runtime was left; its methods can't be called any more."""

    def __init__(self, message: str = "The runtime is closed; use it inside `async with open_runtime()`.") -> None:
        super().__init__(message)


class StorageError(RoderTrioError):
    """The store failed; unless the class says otherwise, nothing was stored."""


class ThreadNotFound(CommandRefused, StorageError):
    """The thread is unknown or archived."""

    def __init__(self, thread_id: str) -> None:
        if isinstance(thread_id, str):
            super().__init__(f"There is no active thread {thread_id!r}; it is unknown or archived.")
        else:
            found = type(thread_id).__name__
            super().__init__(f"A thread is named by its id, a text such as `thread.thread_id`, not by {found}.")
        self.thread_id = thread_id


class ThreadFailed(CommandRefused):
    """The thread was parked after too many crashes; the first request 60 s or more later tries again."""

    def __init__(self, thread_id: str, cause: str) -> None:
        super().__init__(f"Thread {thread_id!r} is parked after repeated crashes ({cause}); try again in a minute.")
        self.thread_id = thread_id
        self.cause = cause


class ThreadBusy(CommandRefused):
    """A turn runs or finishes on the thread."""

    def __init__(self, turn_id: str, automatic: bool = False) -> None:
        super().__init__(f"Turn {turn_id!r} runs on this thread; wait for it, steer it or interrupt it.")
        self.turn_id = turn_id
        self.automatic = automatic


class EmptyMessage(CommandRefused):
    """The message has neither text nor images."""

    def __init__(self) -> None:
        super().__init__("A turn needs a message with text or at least one image.")


class BadWorkspace(CommandRefused):
    """The workspace is no absolute existing directory."""

    def __init__(self, workspace: str) -> None:
        super().__init__(f"The workspace {workspace!r} is not an absolute path of an existing directory.")
        self.workspace = workspace


class UnknownProvider(CommandRefused):
    """No engine of that id was given to the runtime."""

    def __init__(self, provider: str, known: tuple[str, ...] = ()) -> None:
        names = ", ".join(known) or "none"
        super().__init__(f"There is no engine {provider!r} in this runtime; it has: {names}.")
        self.provider = provider


class UnsupportedOption(CommandRefused):
    """The engine can't do what an option asks for, or an option lacks."""

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(f"The option {name!r} can't be used here{': ' + detail if detail else ''}.")
        self.name = name


class NoActiveTurn(CommandRefused):
    """There is no turn that can take this steer."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"Turn {turn_id!r} takes no steer: it is unknown, or has decided to end.")
        self.turn_id = turn_id


class SteerQueueFull(CommandRefused):
    """As many steers as `max_pending_steers` allows wait already."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} steers wait for this turn already; let it take them first.")
        self.limit = limit


class UnknownTurn(CommandRefused):
    """The turn never started on this thread."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"No turn {turn_id!r} ever started on this thread.")
        self.turn_id = turn_id


class StaleWindow(CommandRefused):
    """A compaction was to be committed on a log that grew meanwhile, or while a call is open."""

    def __init__(self) -> None:
        super().__init__("The thread's log changed while it was compacted; the candidate was dropped.")


class ActorCrashed(RoderTrioError):
    """The thread's actor failed with this request in hand, so its outcome is unknown."""

    def __init__(self, message: str = "The thread's actor failed while it had this request in hand.") -> None:
        super().__init__(message)


class CompactionPreempted(RoderTrioError):
    """New input preempted the body of `SteeringSignal.preemptible()`."""

    def __init__(self) -> None:
        super().__init__("New input preempted the compaction; its usage is counted, its candidate dropped.")


class SubscriptionOverrun(RoderTrioError):
    """A subscription's buffer was full of terminal events, so it ended."""

    def __init__(self) -> None:
        super().__init__("The subscription ended: its buffer was full of terminal events; use a larger buffer.")


class ToolError(RoderTrioError):
    """Raised by a tool: the model gets an error result with this text."""


class ToolDefinitionError(RoderTrioError):
    """A tool can't be declared, or its schema compiled."""


class DuplicateTool(RoderTrioError):
    """Two tools of one runtime have the same name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Two tools are named {name!r}; give each a name of its own.")
        self.name = name


class AppendOutcomeUnknown(StorageError):
    """The append may or may not be stored; appending the same records again is safe."""


class CorruptRecord(StorageError):
    """Stored data is damaged inside, where no crash could have torn it."""

    def __init__(self, thread_id: str, position: object, detail: str = "") -> None:
        super().__init__(f"Thread {thread_id!r} is damaged at {position}{': ' + detail if detail else ''}.")
        self.thread_id = thread_id
        self.position = position


class ThreadExists(StorageError):
    """The id is taken by another or an archived thread."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(f"The thread id {thread_id!r} is taken; create the thread under another id.")
        self.thread_id = thread_id


class InvalidRecord(StorageError):
    """A record names another thread, or can't be encoded."""


class InvalidCursor(StorageError):
    """The cursor was not made by this kind of store, or under another label."""


class StoreInUse(StorageError):
    """Another runtime owns the store."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"The store is in use by {holder}; close that first, or open this one with read_only=True.")
        self.holder = holder


class StoreReadOnly(StorageError):
    """The store was opened with `read_only=True`."""


class StoreClosed(StorageError):
    """A call before the store was opened, or after it was closed."""


class StoreUnsupported(StorageError):
    """The store can't do this."""


class SchemaTooNew(StorageError):
    """The store was written by a newer version."""


class NotAStore(StorageError):
    """The path holds something else."""


class LeaseLost(StorageError):
    """The thread is no longer this store's own; nothing was stored."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(
            f"The lease of thread {thread_id!r} is lost, so nothing was stored; the next request claims it anew."
        )
        self.thread_id = thread_id


class ThreadOwnedElsewhere(StorageError):
    """Another owner works on the thread, for `expires_in` seconds from now unless it renews its lease."""

    def __init__(self, owner: str, expires_in: float) -> None:
        super().__init__(
            f"The thread is owned by {owner}, whose lease ends in {expires_in:.1f} s; ask there, or try again then."
        )
        self.owner = owner
        self.expires_in = expires_in


class ProviderFailureKind(enum.Enum):
    """Why an engine failed; the value is the `error_kind` of a failed turn."""

    TRANSPORT = "transport"
    STREAM_INTERRUPTED = "stream_interrupted"
    RATE_LIMITED = "rate_limited"
    SERVER_OVERLOADED = "server_overloaded"
    TIMEOUT = "timeout"
    CONTEXT_WINDOW_EXCEEDED = "context_window_exceeded"
    REQUEST_TOO_LARGE = "request_too_large"
    INVALID_REQUEST = "invalid_request"
    AUTHENTICATION = "authentication"
    QUOTA_EXCEEDED = "quota_exceeded"
    USAGE_LIMIT = "usage_limit"
    CONTENT_FILTER = "content_filter"
    CANCELLED = "cancelled"
    PROTOCOL = "protocol"


_RETRYABLE = frozenset(
    {
        ProviderFailureKind.TRANSPORT,
        ProviderFailureKind.STREAM_INTERRUPTED,
        ProviderFailureKind.RATE_LIMITED,
        ProviderFailureKind.SERVER_OVERLOADED,
        ProviderFailureKind.TIMEOUT,
    }
)


class ProviderFailure(RoderTrioError):
    """An engine failed. `message` and `body_excerpt` are redacted before they come here.

    `retry_after` is the server's advice in seconds. `visible` says that a message, reasoning, tool, hosted
    or compaction event was emitted before.
    """

    def __init__(
        self,
        kind: ProviderFailureKind,
        message: str,
        *,
        cause: str | None = None,
        status: int | None = None,
        provider_code: str | None = None,
        request_id: str | None = None,
        response_id: str | None = None,
        retry_after: float | None = None,
        should_retry: bool | None = None,
        visible: bool = False,
        body_excerpt: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.cause = cause
        self.status = status
        self.provider_code = provider_code
        self.request_id = request_id
        self.response_id = response_id
        self.retry_after = retry_after
        self.should_retry = should_retry
        self.visible = visible
        self.body_excerpt = body_excerpt

    @property
    def retryable(self) -> bool:
        """True if the same request may succeed later: the server's word if it gave one, else by kind."""
        return self.should_retry if self.should_retry is not None else self.kind in _RETRYABLE
