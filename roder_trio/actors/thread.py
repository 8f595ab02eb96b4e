"""The owner of one thread: it alone writes the thread's log, its counters and its state.

One loop takes one request at a time: decide (pure), commit (append, fold, publish), perform (without awaiting), answer.
A handler awaits the store only. An incarnation begins without state and reads the log at the first request that needs
it; what it can't survive it raises, and its supervisor starts the next one.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, assert_never

import attrs
import trio

from roder_trio.actors._cell import Mailbox, Request
from roder_trio.actors._job import Job, JobPort
from roder_trio.actors._services import Services, new_id, utc_now
from roder_trio.actors.manual import ManualCompaction
from roder_trio.actors.turn import TurnJob
from roder_trio.errors import ActorCrashed, AppendOutcomeUnknown, RoderTrioError, StorageError
from roder_trio.logic.live import LiveItems
from roder_trio.logic.thread.decide import answer_of_no_thread, decide
from roder_trio.logic.thread.draft import Draft, Stamped, fold_stamped, stamp
from roder_trio.logic.thread.facts import DEFERRED, VIEW, Decision, Facts, Phase, Slot, View
from roder_trio.logic.thread.recovery import close_open_work
from roder_trio.logic.thread.state import ThreadState, fold_snapshot
from roder_trio.schema import command as c
from roder_trio.schema.event import (
    Event,
    EventEnvelope,
    StorageRepaired,
    ThreadArchived,
    ThreadDeleted,
    ThreadRecovered,
)
from roder_trio.schema.inference import EngineTarget, InferenceEvent
from roder_trio.schema.item import ItemDiscarded, ThreadItem, ThreadItemEvent
from roder_trio.schema.transcript import ErrorNote

log = logging.getLogger(__name__)


class Home(Protocol):
    """What an incarnation needs of the cell that outlives it."""

    thread_id: str
    mailbox: Mailbox
    job: Job | None
    waiting: deque[Request]

    def depart(self) -> None:
        """Take no more requests: the thread stops being resident."""


class TerminalLost(Exception):
    """A turn's terminal event could not be stored; only the log can tell how the turn ended."""


class ThreadActor:
    """One incarnation of a thread's owner."""

    def __init__(self, home: Home, services: Services, *, recovers: bool = False) -> None:
        self._home = home
        self._services = services
        self._recovers = recovers
        """True after a crash, until the log was read again: open work is closed then, and views start anew."""
        self._state: ThreadState | None = None
        self._live: LiveItems | None = None
        self._slot = Slot()
        self._port = home.mailbox.open_port()
        self._retake = False
        self._results: dict[str, c.CompactionEnded] = {}
        self._checkpoint_noted = False
        """The timer will call back."""
        self._checkpoint_posted = False
        """A `Checkpoint` stands in the mailbox or is under way."""
        self._nursery: trio.Nursery

    async def run(self, first: Request | None = None) -> None:
        """Serve until the thread stops being resident; then return. Raises what this incarnation can't survive."""
        mailbox = self._home.mailbox
        try:
            async with trio.open_nursery() as self._nursery:
                try:
                    if self._recovers and first is None:
                        await self._recover()
                    while True:
                        request = first or mailbox.take_nowait()
                        first = None
                        if request is None:
                            if self._state is None and not mailbox.unanswered:
                                self._home.depart()
                                return
                            request = await mailbox.take()
                        await self._serve(request)
                finally:
                    self._close()
        finally:
            while self._home.waiting:
                self._home.waiting.popleft().reject(ActorCrashed())

    def _close(self) -> None:
        """Leave without awaiting: no report is taken any more, the job is told, all tasks are cancelled."""
        self._port.close()
        if self._home.job is not None:
            self._home.job.cancel("runtime_restart")
            self._home.job = None
        self._nursery.cancel_scope.cancel()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _serve(self, request: Request) -> None:
        await self._handle(request)
        while self._retake:
            self._retake = False
            self._let_waiters_hear_first()
            for _ in range(len(self._home.waiting)):
                waiting = self._home.waiting.popleft()
                if not waiting.settled:
                    await self._handle(waiting)
        self._services.lifecycle.notify()

    def _let_waiters_hear_first(self) -> None:
        """Who waits for a turn's end learns it before an archive hides the thread."""
        waiting = self._home.waiting
        ordered = sorted(waiting, key=lambda request: not isinstance(request.payload, c.WaitTurn))
        waiting.clear()
        waiting.extend(ordered)

    async def _handle(self, request: Request) -> None:
        with request.held():
            try:
                if isinstance(request.payload, c.Archive):
                    await self._archive(request, request.payload)
                elif isinstance(request.payload, c.Checkpoint) and self._state is None:
                    request.resolve(None)
                elif await self._found():
                    await self._decide(request)
                else:
                    request.resolve(answer_of_no_thread(self._home.thread_id, request.payload))
            except AppendOutcomeUnknown as error:
                request.reject(error)
                if self._state is not None:
                    raise
            except RoderTrioError as error:
                request.reject(error)

    async def _found(self) -> bool:
        """Read the log if that wasn't done; False if there is no such thread. A failed load is told to all who wait."""
        if self._state is not None:
            return True
        try:
            return await self._hydrate()
        except StorageError as error:
            while (waiting := self._home.mailbox.take_nowait()) is not None:
                if isinstance(waiting.payload, c.Archive):
                    self._defer(waiting)
                    self._retake = True
                else:
                    waiting.reject(error)
            raise

    def _defer(self, request: Request) -> None:
        request.in_hand = False
        self._home.waiting.append(request)

    async def _decide(self, request: Request) -> None:
        payload, state = request.payload, self._resident
        match payload:
            case c.OpenView():
                request.resolve(payload.register(self.items()))
            case c.BeginDirectCompaction():
                request.resolve(self._begin_direct(payload))
            case c.WaitCompaction():
                self._answer_compaction(request, payload)
            case c.ItemExists(turn_id, item_id) if (turn_id, item_id) in self._open_items:
                request.resolve(True)
            case c.Checkpoint():
                stored = False
                try:
                    await self._carry_out(request, payload, decide(state, payload, self._facts()))
                    stored = True
                finally:
                    self._checkpoint_posted = False
                    self._watch_open_text(at_once=stored)
            case _:
                await self._carry_out(request, payload, decide(state, payload, self._facts()))

    async def _carry_out(self, request: Request, payload: Any, decision: Any) -> None:
        """Commit a decision, perform its effects, answer."""
        if decision is DEFERRED:
            self._defer(request)
            return
        if decision.finishing:
            self._seal(sealed=True)
        try:
            stamped = await self._commit(decision.drafts)
        except StorageError as error:
            if decision.finishing:
                self._seal(sealed=False)
            if isinstance(payload, c.JobEnded):
                self._services.lifecycle.unstored.add(payload.turn_id)
                raise TerminalLost(str(error)) from error
            raise
        reply = self._reply(payload, decision, stamped)
        self._perform(decision.effects, payload)
        request.resolve(self._view(self._slot.target) if reply is VIEW else reply)

    def _reply(self, payload: Any, decision: Decision, stamped: Sequence[Stamped]) -> Any:
        return stamped[-1].record if isinstance(payload, c.RecordItemEvent) else decision.reply

    def _seal(self, *, sealed: bool) -> None:
        job = self._home.job
        if job is not None:
            job.sealed = sealed
            self._slot = attrs.evolve(self._slot, phase=Phase.FINISHING if sealed else Phase.RUNNING)

    # -- commit ------------------------------------------------------------------------------------------------------

    async def _commit(self, drafts: Iterable[Draft]) -> Sequence[Stamped]:
        """Append, fold, publish. If the append fails nothing has changed."""
        state, live = self._resident, self._open_items
        stamped = stamp(state, drafts, utc_now(), new_id, live)
        records = [entry.record for entry in stamped if entry.record is not None]
        if not stamped:
            return stamped
        try:
            if records:
                await self._services.store.append(self._home.thread_id, records)
        except BaseException:
            live.give_back()
            raise
        before = self._attached_goal()
        fold_stamped(state, stamped)
        live.confirm()
        if self._attached_goal() != before:
            attached = self._attached_goal() is not None
            self._slot = attrs.evolve(self._slot, attached_at=trio.current_time() if attached else None)
        if self._home.job is not None and (state.open_turn is None or not state.open_turn.steers):
            self._home.job.signal.clear()
        self._publish(stamped)
        return stamped

    def _publish(self, stamped: Sequence[Stamped]) -> None:
        broadcast = self._services.broadcast
        if not broadcast.wants(self._home.thread_id):
            return
        for entry in stamped:
            record = entry.record
            if isinstance(record, EventEnvelope):
                broadcast.publish(record)
            elif isinstance(record, ThreadItemEvent) and not record.checkpoint:
                broadcast.publish(_wrapped(record, "turn" if isinstance(record.event, ItemDiscarded) else "host"))
            source = record.source if isinstance(record, EventEnvelope) else "turn"
            for derived in entry.derived:
                broadcast.publish(_wrapped(derived, source))

    # -- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[c.Effect], payload: Any) -> None:
        job = self._home.job
        for effect in effects:
            match effect:
                case c.StartJob(plan):
                    self._start(plan, Phase.RUNNING, lambda job, plan=plan: self._turn_job(job, plan))
                case c.StartCompaction():
                    self._start(effect.plan, Phase.COMPACTING, lambda job, effect=effect: self._manual(job, effect))
                case c.CancelJob(reason):
                    if job is not None:
                        job.cancel(reason)
                        self._slot = attrs.evolve(self._slot, phase=Phase.CLOSING)
                case c.PreemptStep():
                    if job is not None:
                        job.signal.notify()
                case c.EndTurn(turn_id):
                    self._slot = attrs.evolve(self._slot, phase=Phase.CLOSING)
                    self._services.accounting.totals(self._home.thread_id).forget_turn(turn_id)
                    self._retake = True
                case c.FreeSlot():
                    self._free(payload)
                case c.Publish(event, turn_id):
                    self._services.publish_live(event, self._home.thread_id, turn_id, "thread")
                case _:
                    assert_never(effect)

    def _start(self, plan: c.TurnPlan, phase: Phase, make: Any) -> None:
        """Put a job into the slot and run it."""
        job = Job(plan.turn_id, is_turn=phase is Phase.RUNNING)
        self._home.job = job
        engine = self._services.engine_facts[plan.provider]
        attached = trio.current_time() if self._attached_goal() is not None else None
        self._slot = Slot(phase, plan.turn_id, engine.target, engine.capabilities.image_input, attached)
        if self._services.lifecycle.drain_reason is not None:
            job.cancel(self._services.lifecycle.drain_reason)
            self._services.lifecycle.interrupted.add(plan.turn_id)
        self._nursery.start_soon(self._run_job, job, make(job))

    async def _run_job(self, job: Job, runner: TurnJob | ManualCompaction) -> None:
        """Run a job and give its last word to this incarnation; if it can't be taken, hydration closes the turn."""
        outcome = await runner.run()
        with suppress(ActorCrashed):
            await self._port.deliver(c.JobEnded(job.turn_id, outcome))

    def _free(self, payload: Any) -> None:
        self._home.job = None
        self._slot = Slot()
        self._retake = True
        if isinstance(payload, c.JobEnded) and isinstance(payload.outcome, c.CompactionEnded):
            self._results = {payload.outcome.compaction_id: payload.outcome}

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _job_port(self, turn_id: str) -> JobPort:
        return JobPort(
            port=self._port,
            grace=self._services.config.deadlines.append_grace,
            show=lambda event: self._show(turn_id, event),
            publish=lambda event: self._services.publish_live(event, self._home.thread_id, turn_id, "turn"),
            attached_goal=self._attached_goal,
        )

    def _turn_job(self, job: Job, plan: c.TurnPlan) -> TurnJob:
        facts = self._services.engine_facts[plan.provider]
        return TurnJob(
            services=self._services,
            thread_id=self._home.thread_id,
            plan=plan,
            engine=self._services.engines[plan.provider],
            model=facts.models.get(plan.model),
            job=job,
            port=self._job_port(plan.turn_id),
            view=self._view(self._slot.target),
        )

    def _manual(self, job: Job, effect: c.StartCompaction) -> ManualCompaction:
        return ManualCompaction(
            services=self._services,
            thread_id=self._home.thread_id,
            plan=effect.plan,
            engine=self._services.engines[effect.plan.provider],
            job=job,
            port=self._job_port(effect.plan.turn_id),
            view=self._view(self._slot.target),
            compaction_id=effect.compaction_id,
            hint=effect.hint,
        )

    def _answer_compaction(self, request: Request, payload: c.WaitCompaction) -> None:
        ended = self._results.get(payload.compaction_id)
        if ended is None:
            running = self._slot.turn_id == f"compact-{payload.compaction_id}"
            if running:
                self._defer(request)
            else:
                request.reject(ActorCrashed("The compaction ended without a result: the thread's actor failed."))
        elif ended.error is not None:
            request.reject(ended.error)
        else:
            request.resolve(ended.result)

    def _begin_direct(self, payload: c.BeginDirectCompaction) -> tuple[View, str | None] | None:
        """Return the window as the engine sees it, and the thread's instructions; None if it isn't what was given."""
        view = self._view(payload.target)
        given = [item for item in payload.transcript if not isinstance(item, ErrorNote)]
        held = [item for item in view.window if not isinstance(item, ErrorNote)]
        return (view, self._resident.metadata.developer_instructions) if given == held else None

    # -- live items --------------------------------------------------------------------------------------------------

    def _show(self, turn_id: str, event: InferenceEvent) -> None:
        """Take a stream event into the live items and show it."""
        live = self._open_items
        kinds = live.absorb(turn_id, event)
        if not kinds:
            return
        if self._services.broadcast.wants(self._home.thread_id):
            for kind in kinds:
                self._services.broadcast.publish(self._live_item(turn_id, kind))
        self._watch_open_text()

    def _live_item(self, turn_id: str, kind: Any) -> EventEnvelope:
        event = ThreadItemEvent(
            event_id=new_id(), timestamp=utc_now(), thread_id=self._home.thread_id, turn_id=turn_id, event=kind
        )
        return _wrapped(event, "engine")

    def _watch_open_text(self, *, at_once: bool = True) -> None:
        """Have open text stored: at once if it is much (but not behind a failure), else when its time comes."""
        live = self._open_items
        if at_once and live.checkpoint_due:
            self._ask_checkpoint()
        if not self._checkpoint_noted and live.has_unsaved_text:
            self._checkpoint_noted = True
            self._services.checkpoints.note(self._checkpoint_fell_due)

    def _checkpoint_fell_due(self) -> None:
        self._checkpoint_noted = False
        has_left = self._live is None or self._nursery.cancel_scope.cancel_called
        if not has_left and self._open_items.has_unsaved_text:
            self._ask_checkpoint()

    def _ask_checkpoint(self) -> None:
        if not self._checkpoint_posted:
            self._checkpoint_posted = self._home.mailbox.post(c.Checkpoint())

    def items(self) -> tuple[ThreadItem, ...]:
        """The thread's items, open ones with their text so far."""
        shown = {item.id: item for item in self._resident.items.items()}
        shown.update((item.id, item) for item in self._open_items)
        return tuple(shown.values())

    # -- residence ---------------------------------------------------------------------------------------------------

    async def _hydrate(self) -> bool:
        """Read the log and close what a crash left open; False if there is no such thread. Raises StorageError."""
        thread_id, services = self._home.thread_id, self._services
        await services.store.claim_thread(thread_id)
        totals = services.accounting.totals(thread_id)
        totals.begin_load()
        snapshot = await services.store.load_thread(thread_id)
        if snapshot is None or snapshot.metadata is None:
            if self._recovers:
                services.broadcast.end_views(thread_id)
            return False
        state, ledger = fold_snapshot(snapshot, snapshot.metadata)
        totals.hand_over(ledger)
        self._state, self._live = state, LiveItems(state.numbers)
        open_turn = state.open_turn
        try:
            await self._commit(close_open_work(state, ledger, self._facts()))
        except BaseException:
            self._state = self._live = None
            raise
        totals.forget_turns()
        if snapshot.repairs:
            services.publish_live(StorageRepaired(tuple(snapshot.repairs)), thread_id, None, "runtime")
        if open_turn is not None:
            services.publish_live(ThreadRecovered((open_turn.turn_id,)), thread_id, None, "runtime")
        if self._recovers:
            self._recovers = False
            services.broadcast.reset_views(thread_id, self.items())
        return True

    async def _recover(self) -> None:
        """Read the log at once after a crash, so that its turn is closed and views are in step again."""
        try:
            await self._hydrate()
        except StorageError:
            log.exception(
                "thread %s could not be read after a crash; its next request tries again", self._home.thread_id
            )

    async def _archive(self, request: Request, payload: c.Archive) -> None:
        """Archive the thread or delete it, once no job is left in it; nothing resurrects it."""
        job = self._home.job
        if job is not None:
            job.cancel("archive")
            if not job.sealed:
                self._slot = attrs.evolve(self._slot, phase=Phase.CLOSING)
            self._defer(request)
            return
        thread_id, store = self._home.thread_id, self._services.store
        archived = await store.archive_thread(thread_id)
        self._state = self._live = None
        if archived:
            self._announce_end(ThreadArchived())
        done = archived
        if payload.delete:
            done = await store.delete_thread(thread_id)
            if done:
                self._announce_end(ThreadDeleted())
        self._retake = True
        request.resolve(done)

    def _announce_end(self, event: Event) -> None:
        self._services.publish_live(event, self._home.thread_id, None, "thread")
        self._services.broadcast.end_views(self._home.thread_id)

    # -- what a decision may know --------------------------------------------------------------------------------------

    def _facts(self) -> Facts:
        services, job = self._services, self._home.job
        return Facts(
            now=utc_now(),
            time=trio.current_time(),
            slot=self._slot,
            cause=None if job is None else job.cause,
            draining=services.lifecycle.draining,
            config=services.config,
            engines=services.engine_facts,
            totals=services.accounting.totals(self._home.thread_id),
        )

    def _view(self, target: EngineTarget | None) -> View:
        history, turn = self._resident.history, self._resident.open_turn
        return View(
            window=history.window(target),
            request=history.request(target),
            sums=history.sums(target),
            baseline=history.baseline(target, self._slot.images),
            base=len(history),
            goal_id=None if turn is None else turn.goal_id,
        )

    def _attached_goal(self) -> str | None:
        turn = None if self._state is None else self._state.open_turn
        return None if turn is None else turn.goal_id

    @property
    def _resident(self) -> ThreadState:
        assert self._state is not None
        return self._state

    @property
    def _open_items(self) -> LiveItems:
        assert self._live is not None
        return self._live


def _wrapped(event: ThreadItemEvent, source: str) -> EventEnvelope:
    """Return an item event in an envelope of the same ids and time."""
    return EventEnvelope(
        event_id=event.event_id,
        timestamp=event.timestamp,
        source=source,
        thread_id=event.thread_id,
        turn_id=event.turn_id,
        event=event,
    )
