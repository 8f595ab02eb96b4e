"""The foreground of a thread: its one job, from its admission until its last word was taken.

All of it is volatile and belongs to one incarnation. Nothing here awaits but the tasks that it starts.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import attrs
import trio

from roder_trio.actors._cell import Port
from roder_trio.actors._home import Home
from roder_trio.actors._job import Job
from roder_trio.actors._log import ThreadLog
from roder_trio.actors._runner import Runner, make_runner
from roder_trio.actors._services import Services, new_id
from roder_trio.actors._supervisor import cancel_alone
from roder_trio.errors import ActorCrashed
from roder_trio.logic.thread.facts import Phase, Slot, View
from roder_trio.schema import command as c


class Foreground:
    """The slot for a thread's one job, and what follows from it by itself."""

    __slots__ = ("_home", "_port", "_services", "continues_after", "slot")

    def __init__(self, home: Home, services: Services, port: Port) -> None:
        self.slot = Slot()
        self.continues_after: str | None = None
        """The turn after which a continuation of the goal waits to be decided."""
        self._home = home
        self._services = services
        self._port = port

    @property
    def job(self) -> Job:
        """The job in the slot."""
        assert self._home.job is not None
        return self._home.job

    def view(self, log: ThreadLog) -> View:
        """Return the window as the job's engine sees it."""
        return log.view(self.slot.target, images=self.slot.images)

    def start(
        self,
        admitted: c.StartJob | c.StartCompaction,
        log: ThreadLog,
        nursery: trio.Nursery,
        goal_note: Callable[[], str | None],
    ) -> None:
        """Put a job into the slot and run it."""
        plan, services, home = admitted.plan, self._services, self._home
        is_turn = isinstance(admitted, c.StartJob)
        if is_turn:
            services.accounting.totals(home.thread_id).begin_turn(plan.turn_id)
            home.last_plan = plan
        job = home.job = Job(plan.turn_id, is_turn=is_turn)
        engine = services.engine_facts[plan.provider]
        attached = trio.current_time() if log.attached_goal is not None else None
        phase = Phase.RUNNING if is_turn else Phase.COMPACTING
        self.slot = Slot(phase, plan.turn_id, engine.target, engine.capabilities.image_input, attached, plan.continues)
        if services.lifecycle.drain_reason is not None:
            job.cancel(services.lifecycle.drain_reason)
            services.lifecycle.interrupted.add(plan.turn_id)
        runner = make_runner(admitted, job, log, self._port, self.view(log), services, goal_note)
        nursery.start_soon(self._run, job, runner, name="roder_trio.job")

    async def _run(self, job: Job, runner: Runner) -> None:
        """Run a job and give its last word to this incarnation; if it can't be taken, hydration closes the turn."""
        with cancel_alone():
            outcome = await runner.run()
        with suppress(ActorCrashed):
            await self._port.deliver(c.JobEnded(job.turn_id, outcome))

    def seal(self, *, sealed: bool) -> None:
        """Put the job out of reach while its turn's end is stored, or take that back."""
        self.job.sealed = sealed
        self.slot = attrs.evolve(self.slot, phase=Phase.FINISHING if sealed else Phase.RUNNING)

    def close(self) -> None:
        """The job ends, or is told to; only its last word is waited for."""
        self.slot = attrs.evolve(self.slot, phase=Phase.CLOSING)

    def attach(self, goal_id: str | None) -> None:
        """The turn works on this goal from now on; None: on none."""
        self.slot = attrs.evolve(self.slot, attached_at=None if goal_id is None else trio.current_time())

    def free(self, payload: c.JobEnded) -> None:
        """The job has left."""
        outcome = payload.outcome
        self._home.desk.free(outcome if isinstance(outcome, c.CompactionEnded) else None)
        self._home.job = None
        self.slot = Slot()

    def continue_later(self, after: str, nursery: trio.Nursery) -> None:
        """Have the goal go on after a turn, behind all that was asked of the thread before."""
        self.continues_after = after
        nursery.start_soon(self._ask_to_continue, after)

    async def _ask_to_continue(self, after: str) -> None:
        plan = self._home.last_plan
        folder = None if plan is None else plan.workspace
        look = None if folder is None else partial(_with_folder, folder)
        with suppress(ActorCrashed):
            await self._port.deliver(c.ContinueGoal(turn_id=new_id(), after=after), look)


async def _with_folder(folder: str, command: c.ContinueGoal) -> c.ContinueGoal:
    """Return the command, knowing the folder if that is still there. Cancelling leaves the look behind."""
    found = await trio.to_thread.run_sync(os.path.isdir, folder, abandon_on_cancel=True)
    return attrs.evolve(command, existing_directory=folder) if found else command
