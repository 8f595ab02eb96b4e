"""A turn that has a summary written between its rounds, disturbed at every one of its steps."""

from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, transcript
from roder_trio.schema.usage import Purpose
from tests.injection import ProbeEngine, SettlingEngine, is_job
from tests.ledger_support import ends_of
from tests.test_cancel_sweep import FIRST, SECOND, Run, opened, sweep
from tests.turn_support import DONE, failure, say, used

pytestmark = pytest.mark.unmeasured

CUT = [used(7), say("go"), failure("STREAM_INTERRUPTED")]
DRAFT = [used(4), say("goal: "), used(10, 2), say("to end"), DONE]


class Writes:
    """An engine without a compaction of its own: its first draft is cut, the next are whole."""

    drafts = 0

    def compact_turn(self, context: Any, request: Any) -> None:
        return None

    def stream_turn(self, context: Any, request: Any) -> Any:
        if context.purpose is not Purpose.SUMMARY:
            return super().stream_turn(context, request)  # type: ignore[misc]
        self.drafts += 1
        return self.block(context, CUT if self.drafts == 1 else DRAFT)  # type: ignore[attr-defined]


class Probe(Writes, ProbeEngine):
    pass


class Settling(Writes, SettlingEngine):
    pass


def summarising(make: type[ProbeEngine]) -> ProbeEngine:
    return make([FIRST, SECOND])


WAYS = pytest.mark.parametrize(
    ("make", "at"), [(Probe, "before"), (Probe, "after"), (Settling, "after")], ids=["woken", "blocked", "settle"]
)


async def check_summaries(run: Run, seen: set[str]) -> None:
    """Each compaction has one end, which is noted; a summary stands in the log if and only if it was recorded."""
    ends = ends_of(run.scene)
    assert all(len(found) == 1 for found in ends.values()), ends
    seen.update(*ends.values())
    seen.update(event.reason for event in run.scene.of(events.ContextCompactionCancelled))
    history = await run.scene.history()
    made = [entry for entry in history if isinstance(entry, transcript.ContextCompaction)]
    assert len(made) == list(ends.values()).count(["Recorded"])
    assert all(entry.summary == "goal: to end" for entry in made)


@WAYS
async def test_an_interrupt_at_any_step_of_a_summary_leaves_the_log_unchanged_or_a_boundary(
    autojump_clock: trio.testing.MockClock, make: type[ProbeEngine], at: Any
) -> None:
    seen: set[str] = set()

    async def flow(number: int) -> bool:
        def interrupt(run: Run) -> None:
            job = run.scene.resident.job
            run.reached = job is not None and job.cancel("user")
            run.asked = len(run.engine.requests)

        async with opened(make, number, interrupt, is_job, at, summarising) as run:
            with run.injector.watching():
                outcome = await run.scene.run()
            if run.reached:
                assert len(run.engine.requests) == run.asked
            ended = (outcome.status, outcome.reason)
            assert ended == ("interrupted", "user") or (not run.reached and ended == ("completed", None))
            await check_summaries(run, seen)
        return run.injector.fired

    await sweep(flow, 40)
    assert seen == {"Recorded", "Cancelled", "interrupted"}


@WAYS
async def test_a_steer_at_any_step_of_a_summary_is_delivered_behind_it_or_refused(
    autojump_clock: trio.testing.MockClock, make: type[ProbeEngine], at: Any
) -> None:
    steered, seen = transcript.UserMessage("steered"), set[str]()

    async def flow(number: int) -> bool:
        told = trio.Event()
        async with opened(make, number, lambda run: told.set(), is_job, at, summarising) as run:
            accepted = False
            async with trio.open_nursery() as nursery:

                async def steer() -> None:
                    nonlocal accepted
                    await told.wait()
                    job = run.scene.resident.job
                    if job is not None:
                        with suppress(rt.NoActiveTurn):
                            await run.scene.steer(job.turn_id, "steered")
                            accepted = True

                nursery.start_soon(steer)
                with run.injector.watching():
                    assert (await run.scene.run()).status == "completed"
                told.set()
            assert (await run.scene.history()).count(steered) == accepted
            if accepted:
                assert steered in list(run.engine.requests[-1].transcript)
            await check_summaries(run, seen)
        return run.injector.fired

    await sweep(flow, 40)
    assert seen == {"Recorded", "Cancelled", "new_input"}
