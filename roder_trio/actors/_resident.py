"""A resident thread: the cell that outlives its actor's incarnations, and the loop that supervises them.

A thread that crashes too often is parked: its requests are refused with the cause until, a minute later, one of them is
let through to a fresh incarnation. Archiving and deleting need no state and pass at any time. A thread whose lease is
lost leaves at once; the next request claims it and reads it anew.
"""

import logging
from collections.abc import Awaitable
from typing import Protocol

import trio

from roder_trio.actors._cell import Mailbox, Request
from roder_trio.actors._desk import Desk
from roder_trio.actors._job import Job
from roder_trio.actors._services import Services
from roder_trio.actors._supervisor import RESTART_WINDOW, RestartsExhausted, supervise
from roder_trio.actors.thread import ThreadActor
from roder_trio.errors import (
    ActorCrashed,
    LeaseLost,
    NoActiveTurn,
    RoderTrioError,
    RuntimeClosed,
    RuntimeDraining,
    ThreadFailed,
)
from roder_trio.schema.command import Archive, Compact, Interrupt, StartTurn, Steer, TurnPlan
from roder_trio.schema.event import ThreadFailedEvent

log = logging.getLogger(__name__)


class Register(Protocol):
    """Who is told that a thread leaves memory."""

    def depart(self, thread: "ResidentThread") -> None:
        """The thread takes no more requests."""

    def forget(self, thread: "ResidentThread") -> None:
        """The thread has left."""


class ResidentThread:
    """The mailbox, the job and the lifetime of one thread in memory."""

    __slots__ = (
        "_crashed",
        "_first",
        "_register",
        "_services",
        "desk",
        "gone",
        "job",
        "last_plan",
        "lost",
        "mailbox",
        "parked",
        "pins",
        "scope",
        "thread_id",
        "waiting",
    )

    def __init__(self, thread_id: str, services: Services, register: Register) -> None:
        self.thread_id = thread_id
        self.mailbox = Mailbox(on_settled=services.on_settled)
        self.job: Job | None = None
        self.waiting: list[Request] = []
        """Requests that an incarnation deferred, first in, first out."""
        self.desk = Desk()
        self.last_plan: TurnPlan | None = None
        """What the last turn that was admitted here runs with; a continuation of the goal takes its options."""
        self.pins = 0
        """Direct compactions that keep the thread in memory."""
        self.parked = False
        self.lost = False
        """Another owner may have taken the thread: nothing is written any more."""
        self.scope: trio.CancelScope | None = None
        """What the incarnation runs in, or what a parked thread waits in."""
        self.gone: trio.Event | None = None
        """From the moment the thread departs: set once it has left."""
        self._services = services
        self._register = register
        self._crashed = False
        self._first: Request | None = None
        """The request that a parked thread let through."""

    def __str__(self) -> str:
        return f"thread {self.thread_id}"

    @property
    def is_idle(self) -> bool:
        """Whether nothing keeps the thread in memory."""
        busy = self.job is not None or self.mailbox.unanswered or self.pins or self.parked
        return not busy and not self._services.accounting.has_open_attempts(self.thread_id)

    def refuse_waiting_turns(self) -> None:
        """The runtime drains: turns that wait for the slot won't begin."""
        for request in self.waiting:
            if isinstance(request.payload, StartTurn | Compact):
                request.reject(RuntimeDraining())

    def depart(self) -> None:
        """Take no more requests; who asks from now on waits until the thread has left."""
        if self.gone is None:
            self.gone = trio.Event()
            self._register.depart(self)

    async def wait_gone(self) -> None:
        """Wait until a departing thread has left."""
        assert self.gone is not None
        await self.gone.wait()

    def evict(self) -> None:
        """Leave memory. Call it only when idle."""
        self.depart()
        if self.scope is not None:
            self.scope.cancel()

    def lose(self) -> None:
        """Another owner may write the thread from now on: stop its job, write nothing, leave memory."""
        if self.gone is None:
            self.lost = True
            if self.job is not None:
                self.job.cancel("ownership_lost")
            self._services.broadcast.outdate_views(self.thread_id)
            self.evict()

    def parting(self) -> RoderTrioError:
        """What those are told whose requests the leaving thread takes no more."""
        if self.lost:
            return LeaseLost(self.thread_id)
        return RuntimeClosed() if self._services.lifecycle.closed else ActorCrashed()

    async def run(self) -> None:
        """Serve until the thread departs. Cancelling it makes it leave, with all requests answered."""
        try:
            while self.gone is None:
                try:
                    await supervise(self, self._incarnation)
                except RestartsExhausted as exhausted:
                    with trio.CancelScope() as self.scope:
                        self._first = await self._park(exhausted.__cause__ or exhausted)
        finally:
            self.depart()
            self.mailbox.close(self.parting)
            grace = self._services.config.deadlines.shutdown_stage_grace
            with trio.move_on_after(grace, shield=True) as releasing:
                await self._release()
            if releasing.cancelled_caught:
                self._services.lifecycle.unreleased.add(self.thread_id)
            self._services.accounting.forget(self.thread_id)
            assert self.gone is not None
            self.gone.set()
            self._register.forget(self)

    async def _release(self) -> None:
        try:
            await self._services.store.release_thread(self.thread_id)
        except Exception:
            log.exception("thread %s could not be released by its store", self.thread_id)
            self._services.lifecycle.unreleased.add(self.thread_id)

    def _incarnation(self) -> Awaitable[None]:
        """Begin the next incarnation; all but the first follow a crash, since after a clean end the thread leaves."""
        recovers, self._crashed = self._crashed, True
        first, self._first = self._first, None
        return ThreadActor(self, self._services, recovers=recovers).run(first)

    async def _park(self, cause: BaseException) -> Request:
        """Refuse requests until one may try again, and return that one."""
        text = f"{type(cause).__name__}: {cause}"
        self.parked = True
        self._services.publish_live(ThreadFailedEvent(text), self.thread_id, None, "runtime")
        parked_until = trio.current_time() + RESTART_WINDOW
        while True:
            request = await self.mailbox.take()
            if isinstance(request.payload, Archive) or trio.current_time() >= parked_until:
                self.parked = False
                return request
            self._refuse(request, text)

    def _refuse(self, request: Request, cause: str) -> None:
        match request.payload:
            case Interrupt():
                request.resolve(None)
            case Steer(turn_id):
                request.reject(NoActiveTurn(turn_id))
            case _:
                request.reject(ThreadFailed(self.thread_id, cause))
