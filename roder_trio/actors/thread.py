"""The owner of one thread: it alone writes the thread's log, its counters and its state.

One loop takes one request at a time: decide (pure), commit (append, fold, publish), perform (without awaiting), answer.
A handler awaits the store only. An incarnation begins without state and reads the log at the first request that needs
it; what it can't survive it raises, and its supervisor starts the next one.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, assert_never

import attrs
import trio

from roder_trio.actors._cell import Request
from roder_trio.actors._desk import Desk
from roder_trio.actors._foreground import Foreground
from roder_trio.actors._home import Home
from roder_trio.actors._log import ThreadLog
from roder_trio.actors._services import Services, utc_now
from roder_trio.actors._stored import load_items, load_outcome, load_state
from roder_trio.actors.follow import read_rest, tell_last_seq
from roder_trio.errors import AppendOutcomeUnknown, LeaseLost, RoderTrioError, StorageError
from roder_trio.logic.thread.decide import answer_of_no_thread, decide
from roder_trio.logic.thread.draft import Draft, Stamped
from roder_trio.logic.thread.facts import FROM_LOG, VIEW, Decision, Deferred, Facts
from roder_trio.logic.thread.goals import goal_note
from roder_trio.logic.thread.recovery import close_open_work
from roder_trio.logic.thread.turns import outcome_of
from roder_trio.schema import command as c
from roder_trio.schema.event import (
    Event,
    GoalContinuationFailed,
    StorageRepaired,
    ThreadArchived,
    ThreadDeleted,
    ThreadRecovered,
)

log = logging.getLogger(__name__)


class TerminalLost(Exception):
    """A turn's terminal event could not be stored; only the log can tell how the turn ended."""


class ThreadActor:
    """One incarnation of a thread's owner."""

    __slots__ = ("_front", "_home", "_log", "_nursery", "_port", "_recovers", "_retake", "_services")

    def __init__(self, home: Home, services: Services, *, recovers: bool = False) -> None:
        self._home = home
        self._services = services
        self._recovers = recovers
        """True after a crash, until the log was read again: open work is closed then, and views start anew."""
        self._log: ThreadLog | None = None
        self._port = home.mailbox.open_port()
        self._front = Foreground(home, services, self._port)
        self._retake = False
        self._nursery: trio.Nursery

    async def run(self, request: Request | None = None) -> None:
        """Serve until the thread stops being resident; then return. `request` is one that was taken already.

        Raises what this incarnation can't survive.
        """
        mailbox = self._home.mailbox
        try:
            async with trio.open_nursery() as self._nursery:
                self._home.scope = self._nursery.cancel_scope
                try:
                    if self._recovers and request is None:
                        await self._recover()
                    request = request or mailbox.take_nowait()
                    while request is not None or self._log is not None or mailbox.unanswered:
                        await self._serve(request or await mailbox.take())
                        request = mailbox.take_nowait()
                    self._home.depart()
                finally:
                    self._close()
        finally:
            while self._home.waiting:
                self._home.waiting.pop(0).reject(self._home.parting())

    def _close(self) -> None:
        """Leave without awaiting: no report is taken any more, the job is told, all tasks are cancelled."""
        self._port.close()
        if self._log is not None:
            self._log.close()
        if self._home.job is not None:
            self._home.job.cancel("runtime_restart")
            self._home.job = None
        self._home.desk = Desk()
        self._nursery.cancel_scope.cancel()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _serve(self, request: Request) -> None:
        await self._handle(request)
        while self._retake:
            self._retake = False
            self._let_waiters_hear_first()
            for _ in range(len(self._home.waiting)):
                waiting = self._home.waiting.pop(0)
                if not waiting.settled:
                    await self._handle(waiting)
        self._services.lifecycle.notify()

    def _let_waiters_hear_first(self) -> None:
        """Who waits for a turn's end learns it before an archive hides the thread."""
        self._home.waiting.sort(key=lambda request: not isinstance(request.payload, c.WaitTurn))

    async def _handle(self, request: Request) -> None:
        with request.held():
            try:
                if isinstance(request.payload, c.Archive):
                    await self._archive(request, request.payload)
                elif isinstance(request.payload, c.Checkpoint) and self._log is None:
                    request.resolve(None)
                elif await self._found():
                    await self._decide(request)
                else:
                    request.resolve(answer_of_no_thread(self._home.thread_id, request.payload))
            except AppendOutcomeUnknown as error:
                request.reject(error)
                if self._log is not None:
                    raise
            except LeaseLost as error:
                request.reject(error)
                self._home.lose()
            except RoderTrioError as error:
                request.reject(error)
            except trio.Cancelled:
                if self._home.lost:
                    request.reject(LeaseLost(self._home.thread_id))
                raise

    async def _found(self) -> bool:
        """Read the log if that wasn't done; False if there is no such thread. A failed load is told to all who wait."""
        if self._log is not None:
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
        payload, log = request.payload, self._resident
        match payload:
            case c.OpenView():
                held = log.state.items
                shown = await load_items(self._services, log.thread_id) if held is None else held.items()
                request.resolve(payload.register(log.with_live(shown)))
            case c.OpenFollow():
                request.resolve(payload.register(log.state.next_seq - 1))
            case c.BeginDirectCompaction():
                request.resolve(log.direct_view(payload, images=self._front.slot.images))
            case c.WaitCompaction(compaction_id):
                running = self._front.slot.turn_id == f"compact-{compaction_id}"
                if not self._home.desk.answer_compaction(request, compaction_id, running=running):
                    self._defer(request)
            case c.ItemExists(turn_id, item_id) if (turn_id, item_id) in log.live:
                request.resolve(True)
            case c.AwaitAnswer(_, request_id):
                if not self._home.desk.answer_call(request, request_id):
                    self._defer(request)
            case c.ContinueGoal(after=after) if after is not None:
                await self._continue(request, payload, after)
            case c.Checkpoint():
                stored = False
                try:
                    await self._carry_out(request, payload)
                    stored = True
                finally:
                    log.checkpoint_ended(stored=stored)
            case _:
                await self._carry_out(request, payload)

    async def _continue(self, request: Request, payload: c.ContinueGoal, after: str) -> None:
        """Decide a continuation of the goal; one that is deferred waits on."""
        if self._front.continues_after == after:  # an earlier one, late, says nothing of the one that waits
            self._front.continues_after = None
        await self._carry_out(request, payload)
        if not request.settled:
            self._front.continues_after = after

    async def _carry_out(self, request: Request, payload: Any) -> None:
        """Decide, commit, perform the effects, answer."""
        decision = decide(self._resident.state, payload, self._facts())
        if isinstance(decision, Deferred):
            self._defer(request)
            return
        if decision.reply is FROM_LOG:
            outcome = await load_outcome(self._services, self._home.thread_id, payload.turn_id)
            decision = attrs.evolve(decision, reply=outcome)
        if decision.finishing:
            self._front.seal(sealed=True)
        try:
            stamped = await self._commit(self._resident, decision.drafts)
        except StorageError as error:
            if decision.finishing:
                self._front.seal(sealed=False)
            if isinstance(payload, c.ContinueGoal):
                self._tell_continuation_failed(error)
            if isinstance(payload, c.JobEnded) and not isinstance(error, LeaseLost):
                self._services.lifecycle.unstored.add(payload.turn_id)
                raise TerminalLost(str(error)) from error
            raise
        reply = self._reply(payload, decision, stamped)
        self._perform(decision.effects, payload)
        request.resolve(self._front.view(self._resident) if reply is VIEW else reply)

    def _reply(self, payload: Any, decision: Decision, stamped: Sequence[Stamped]) -> Any:
        if isinstance(payload, c.RecordItemEvent):
            return stamped[-1].record
        return self._home.desk.ended(decision.reply) if isinstance(payload, c.WaitTurn) else decision.reply

    def _tell_continuation_failed(self, error: StorageError) -> None:
        goal = self._resident.state.goal
        assert goal is not None
        failed = GoalContinuationFailed(goal.goal_id, str(error))
        self._services.publish_live(failed, self._home.thread_id, None, "thread")

    async def _commit(self, log: ThreadLog, drafts: Iterable[Draft]) -> Sequence[Stamped]:
        """Commit to the log, and tell the job what changed under it. Raises StorageError, with nothing changed."""
        before = log.attached_goal
        stamped = await log.commit(drafts)
        self._home.desk.note(stamped)
        if log.attached_goal != before:
            self._front.attach(log.attached_goal)
        turn = log.state.open_turn
        if self._home.job is not None and stamped and (turn is None or not turn.steers):
            self._home.job.signal.clear()
        return stamped

    # -- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[c.Effect], payload: Any) -> None:
        for effect in effects:
            match effect:
                case c.StartJob() | c.StartCompaction():
                    self._front.start(effect, self._resident, self._nursery, self._goal_note)
                case c.Answer() | c.Remember():
                    self._home.desk.take(effect)
                    self._retake = True
                case c.SetMode(mode):
                    self._services.policy_modes.threads[self._home.thread_id] = mode
                case c.CancelJob(reason):
                    self._front.job.cancel(reason)
                    self._front.close()
                case c.PreemptStep():
                    self._front.job.signal.notify()
                case c.EndTurn(turn_id):
                    self._front.close()
                    self._end_turn(turn_id, payload)
                case c.FreeSlot():
                    self._front.free(payload)
                    self._retake = True
                case c.ContinueLater(after):
                    self._front.continue_later(after, self._nursery)
                case c.Publish(event, turn_id):
                    self._services.publish_live(event, self._home.thread_id, turn_id, "thread")
                case _:
                    assert_never(effect)

    def _end_turn(self, turn_id: str, payload: Any) -> None:
        """The turn's terminal event is stored: those who wait for it, and the hooks, are told."""
        totals = self._services.accounting.totals(self._home.thread_id)
        totals.forget_turn(turn_id)
        self._home.desk.charge(turn_id, totals.take_records())
        self._retake = True
        if isinstance(payload, c.FinalStep) and payload.output is not None:
            self._home.desk.accept(turn_id, payload.output)
        entry = self._resident.state.turns[turn_id]
        assert entry.terminal is not None
        ended = self._home.desk.ended(outcome_of(turn_id, entry, entry.terminal))
        tell = partial(self._services.publish_live, thread_id=self._home.thread_id, turn_id=None, source="hook")
        self._services.hooks.turn_ended(ended, tell)

    # -- residence ---------------------------------------------------------------------------------------------------

    async def _hydrate(self) -> bool:
        """Read the log and close what a crash left open; False if there is no such thread. Raises StorageError."""
        thread_id, services = self._home.thread_id, self._services
        hydration = await load_state(services, thread_id)
        if hydration is None:
            if self._recovers:
                services.broadcast.end_readers(thread_id)
            return False
        state = hydration.state
        closed = [turn.turn_id for turn in (*state.left_open, state.open_turn) if turn is not None]
        log = ThreadLog(state, services, self._ask_checkpoint)
        await self._commit(log, close_open_work(state, hydration.ledger, self._facts()))
        self._log = log
        tell_last_seq(services.broadcast, thread_id, state.next_seq - 1)
        services.accounting.totals(thread_id).forget_turns()
        if hydration.repairs:
            services.publish_live(StorageRepaired(hydration.repairs), thread_id, None, "runtime")
        if closed:
            services.publish_live(ThreadRecovered(tuple(closed)), thread_id, None, "runtime")
        if self._recovers:
            self._recovers = False
            if state.items is None:
                services.broadcast.outdate_views(thread_id, wake=True)
            else:
                services.broadcast.reset_views(thread_id, log.with_live(state.items.items()))
        return True

    def _ask_checkpoint(self) -> bool:
        return self._home.mailbox.post(c.Checkpoint())

    async def _recover(self) -> None:
        """Read the log at once after a crash, so that its turn is closed and views are in step again."""
        try:
            await self._hydrate()
        except StorageError:
            self._services.broadcast.outdate_views(self._home.thread_id)
            log.exception(
                "thread %s could not be read after a crash; its next request tries again", self._home.thread_id
            )

    async def _archive(self, request: Request, payload: c.Archive) -> None:
        """Archive the thread or delete it, once no job is left in it; nothing resurrects it."""
        job = self._home.job
        if job is not None:
            job.cancel("archive")
            if not job.sealed:
                self._front.close()
            self._defer(request)
            return
        thread_id, store = self._home.thread_id, self._services.store
        await read_rest(self._services.broadcast, thread_id)
        archived = await store.archive_thread(thread_id)
        self._log = None
        if archived:
            self._announce_end(ThreadArchived())
        done = archived
        if payload.delete:
            done = await store.delete_thread(thread_id)
            if done:
                self._services.policy_modes.threads.pop(thread_id, None)
                self._announce_end(ThreadDeleted())
        self._retake = True
        request.resolve(done)

    def _announce_end(self, event: Event) -> None:
        self._services.publish_live(event, self._home.thread_id, None, "thread")
        self._services.broadcast.end_readers(self._home.thread_id)

    # -- what a decision may know --------------------------------------------------------------------------------------

    def _facts(self) -> Facts:
        services, job = self._services, self._home.job
        return Facts(
            now=utc_now(),
            time=trio.current_time(),
            slot=self._front.slot,
            cause=None if job is None else job.told,
            draining=services.lifecycle.draining,
            config=services.config,
            engines=services.engine_facts,
            totals=services.accounting.totals(self._home.thread_id),
            tool_names=services.toolbox.tools,
            policy_mode=services.policy_modes.of(self._home.thread_id),
            last_plan=self._home.last_plan,
            continues_after=self._front.continues_after,
            terms=self._home.desk.terms,
        )

    def _goal_note(self) -> str | None:
        return goal_note(self._resident.state, self._facts())

    @property
    def _resident(self) -> ThreadLog:
        assert self._log is not None
        return self._log
