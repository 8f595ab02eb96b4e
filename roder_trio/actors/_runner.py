"""Making what runs a job, from its admission: a turn or a manual compaction, with its port to the thread."""

from collections.abc import Callable
from typing import assert_never

from roder_trio.actors._cell import Port
from roder_trio.actors._job import Job, JobPort
from roder_trio.actors._log import ThreadLog
from roder_trio.actors._route import Route, Routes
from roder_trio.actors._services import Services
from roder_trio.actors._turn import TurnScope
from roder_trio.actors.manual import ManualCompaction
from roder_trio.actors.turn import TurnJob
from roder_trio.logic.thread.facts import View
from roder_trio.schema.command import StartCompaction, StartJob

Runner = TurnJob | ManualCompaction


def make_runner(
    admitted: StartJob | StartCompaction,
    job: Job,
    log: ThreadLog,
    port: Port,
    view: View,
    services: Services,
    goal_note: Callable[[], str | None],
) -> Runner:
    """Return the runner of an admitted job; it speaks to the thread through `port` alone."""
    plan, thread_id = admitted.plan, log.thread_id
    job_port = JobPort(plan.turn_id, goal_note, port, log, services)
    match admitted:
        case StartJob():
            row = services.engine_facts[plan.provider].models.get(plan.model)
            first = Route(services.engines[plan.provider], plan.provider, plan.model, row)
            scope = TurnScope(
                services=services,
                thread_id=thread_id,
                plan=plan,
                routes=Routes(first, services.substitutes[plan.provider]),
                job=job,
                port=job_port,
                view=view,
            )
            return TurnJob(scope)
        case StartCompaction(compaction_id=compaction_id, hint=hint):
            return ManualCompaction(
                services=services,
                thread_id=thread_id,
                plan=plan,
                row=services.engine_facts[plan.provider].models.get(plan.model),
                engine=services.engines[plan.provider],
                job=job,
                port=job_port,
                view=view,
                compaction_id=compaction_id,
                hint=hint,
            )
    assert_never(admitted)
