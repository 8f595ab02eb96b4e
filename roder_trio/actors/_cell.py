"""A mailbox that outlives the actor it feeds, and the requests that travel through it.

A request is answered exactly once: by the actor, by the crash of the actor that had it in hand, or by the closing of
the cell. Withdrawing one that is still queued means that nobody ever sees it. Answering is synchronous and idempotent,
so a caller who left is harmless.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import trio

from roder_trio.errors import ActorCrashed


class Request:
    """A payload and the place for its one answer."""

    __slots__ = ("_done", "_error", "_on_settled", "_value", "in_hand", "payload", "settled")

    def __init__(self, payload: Any, on_settled: Callable[[], None]) -> None:
        self.payload = payload
        self.settled = False
        self.in_hand = False
        self._done: trio.Event | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._on_settled = on_settled

    def resolve(self, value: Any) -> None:
        """Answer, unless that was done before."""
        self._settle(value, None)

    def reject(self, error: BaseException) -> None:
        """Answer with an error, unless the request was answered before."""
        self._settle(None, error)

    async def answer(self) -> Any:
        """Wait for the answer. A cancel while the request is queued withdraws it; later it abandons the answer only."""
        if not self.settled:
            self._done = trio.Event()
            try:
                await self._done.wait()
            except trio.Cancelled:
                if not self.in_hand:
                    self._settle(None, None)
                raise
        if self._error is not None:
            raise self._error
        return self._value

    def held(self) -> "Request":
        """Hold the request in hand while a block runs: leaving it by an exception answers it with ActorCrashed."""
        self.in_hand = True
        return self

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            crash = ActorCrashed()
            crash.__cause__ = error if isinstance(error, Exception) else None
            self.reject(crash)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self.settled:
            return
        self.settled = True
        self._value, self._error = value, error
        self._on_settled()
        if self._done is not None:
            self._done.set()


class Mailbox:
    """A bounded queue of requests, with a count of those that have no answer yet."""

    __slots__ = ("_on_settled", "_receive", "_send", "unanswered")

    def __init__(self, capacity: int = 1024, on_settled: Callable[[], None] | None = None) -> None:
        self._send, self._receive = trio.open_memory_channel[Request](capacity)
        self._on_settled = on_settled
        """Called whenever a request was answered or withdrawn."""
        self.unanswered = 0

    async def ask(self, payload: Any) -> Any:
        """Send a payload and wait for its answer.

        Cancelling withdraws a request that is still queued; one that was taken is carried out, only its answer is
        abandoned. Raises what the actor answers, and ActorCrashed.
        """
        return await self.send(self.request(payload))

    async def send(self, request: Request) -> Any:
        """Queue a request and wait for its answer, as `ask` does."""
        if not self.put_nowait(request):
            await self.put(request)
        return await request.answer()

    async def put(self, request: Request) -> None:
        """Queue a request. Cancelling withdraws it; raises ActorCrashed if the mailbox is closed."""
        try:
            await self._send.send(request)
        except trio.Cancelled:
            request.resolve(None)
            raise
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            request.resolve(None)
            raise ActorCrashed from None

    def put_nowait(self, request: Request) -> bool:
        """Queue a request if there is room. Raises ActorCrashed if the mailbox is closed."""
        try:
            self._send.send_nowait(request)
        except trio.WouldBlock:
            return False
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            request.resolve(None)
            raise ActorCrashed from None
        return True

    def post(self, payload: Any) -> bool:
        """Send a payload whose answer nobody waits for; False if the mailbox is full or closed."""
        request = self.request(payload)
        with suppress(ActorCrashed):
            if self.put_nowait(request):
                return True
        request.resolve(None)
        return False

    async def take(self) -> Request:
        """Wait for the next request that still wants an answer."""
        while True:
            request = await self._receive.receive()
            if not request.settled:
                return request

    def take_nowait(self) -> Request | None:
        """Return the next request if one is queued."""
        while True:
            try:
                request = self._receive.receive_nowait()
            except trio.WouldBlock:
                return None
            if not request.settled:
                return request

    def close(self, error: Callable[[], BaseException]) -> None:
        """Refuse what is sent from now on, and reject what is queued."""
        self._send.close()
        while True:
            try:
                request = self._receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                break
            request.reject(error())
        self._receive.close()

    def open_port(self) -> "Port":
        """Open a way in for one incarnation's job."""
        return Port(self)

    def request(self, payload: Any) -> Request:
        """Make a request that counts as unanswered from now on."""
        self.unanswered += 1
        return Request(payload, self._answered)

    def _answered(self) -> None:
        self.unanswered -= 1
        if self._on_settled is not None:
            self._on_settled()


class Port:
    """A job's way to its actor. Once closed, every report raises ActorCrashed at once."""

    __slots__ = ("_closed", "_mailbox", "_pending")

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._pending: list[Request] = []
        """Reports without an answer, and the newest."""
        self._closed = False

    async def report(self, payload: Any) -> Any:
        """Send a report and wait for its answer. Cancelling abandons the answer, not what is stored."""
        return await self._mailbox.send(self._request(payload))

    async def deliver(self, payload: Any, complete: Callable[[Any], Awaitable[Any]] | None = None) -> None:
        """Send a report whose answer nobody waits for; once queued it is handled, whoever is cancelled.

        `complete` gives what is sent in its place; meanwhile the report counts as unanswered already.
        """
        request = self._request(payload)
        if complete is not None:
            request.payload = await complete(payload)
        await self._mailbox.put(request)

    def deliver_nowait(self, payload: Any) -> bool:
        """As `deliver`, at once; False if the mailbox has no room."""
        request = self._request(payload)
        if self._mailbox.put_nowait(request):
            return True
        request.resolve(None)
        return False

    def close(self) -> None:
        """Answer all reports under way with ActorCrashed, without waiting."""
        self._closed = True
        for request in self._pending:
            request.reject(ActorCrashed())

    def _request(self, payload: Any) -> Request:
        if self._closed:
            raise ActorCrashed
        request = self._mailbox.request(payload)
        self._pending = [*(entry for entry in self._pending if not entry.settled), request]
        return request
