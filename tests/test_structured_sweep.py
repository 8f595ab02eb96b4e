"""A structured turn with every kind of round, interrupted, steered or bereft of its store at every one of its steps."""

from itertools import count
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import stores, testing, transcript
from tests.answer_support import (
    BY_TOOL,
    FORCED,
    FREE,
    VALID,
    WRONG,
    Count,
    Look,
    answer,
    asking,
    choices,
    repairs,
    results,
)
from tests.answer_support import text_step as said
from tests.injection import Injector, is_job, is_runtime
from tests.log_laws import check_log
from tests.turn_support import DONE, Scene, call, used

pytestmark = pytest.mark.unmeasured

BOTH = [used(10, 1), *call("c1", "look"), *call("f2", "final_answer", VALID), DONE]
ROUNDS = [said("Well."), answer("f1", WRONG), BOTH]
"""Text alone, so a forced round; a wrong answer in it, so a repair; a right one beside another call."""


async def check(scene: Scene, outcome: rt.TurnOutcome) -> None:
    """All that must hold of a structured turn, however it ended."""
    snapshot = await scene.snapshot()
    check_log(snapshot)
    history = await scene.history()
    assert len(scene.ends) == 1
    told = results(history)
    accepted = [id for id, result in told.items() if result == ("accepted", False)]
    if outcome.status == "completed":
        assert outcome.output == Count(1)
        assert accepted == [list(told)[-1]]
        assert isinstance(history[-1], transcript.ToolResult)
    else:
        assert (outcome.output, accepted) == (None, [])
    assert len(repairs(history)) <= 1
    assert choices(scene) == [FREE, FORCED, FREE][: len(scene.engine.requests)]
    assert await scene.wait(outcome.turn_id) == outcome


@pytest.mark.parametrize("watches", [is_job, is_runtime])
async def test_an_interrupt_at_any_step_leaves_no_answer_that_was_accepted(
    autojump_clock: trio.testing.MockClock, watches: Any
) -> None:
    statuses: set[str] = set()
    for number in count(1):
        async with asking(*ROUNDS, capabilities=BY_TOOL, tools=[Look()]) as scene:

            def cut(scene: Scene = scene) -> None:
                job = scene.resident.job
                if job is not None:
                    job.cancel("user")

            with Injector(number, cut, watches).watching() as injector:
                outcome = await scene.run(output_type=Count)
            await check(scene, outcome)
            statuses.add(outcome.status)
        if not injector.fired:
            break
    assert statuses == {"completed", "interrupted"}


async def test_a_steer_at_any_step_is_answered_or_refused_and_never_costs_a_repair(
    autojump_clock: trio.testing.MockClock,
) -> None:
    delivered = 0
    for number in count(1):
        # as many answers as any order of the rounds may need
        rounds = [said("Well."), answer("f1"), answer("f2"), answer("f3"), answer("f4")]
        go = trio.Event()
        async with asking(*rounds, capabilities=BY_TOOL, output_retries=0) as scene, trio.open_nursery() as nursery:
            refused: list[str] = []

            async def steer(scene: Scene = scene, refused: list[str] = refused, go: trio.Event = go) -> None:
                await go.wait()
                [started] = [envelope for envelope in scene.seen if envelope.kind == "turn.started"]
                try:
                    await scene.steer(started.turn_id)
                except rt.NoActiveTurn:
                    refused.append(started.turn_id)

            nursery.start_soon(steer)
            with Injector(number, go.set, is_job).watching() as injector:
                outcome = await scene.run(output_type=Count)
            go.set()
            assert (outcome.status, outcome.output) == ("completed", Count(1))
            last = scene.engine.requests[-1].transcript
            taken = transcript.UserMessage("and this") in last
            await trio.testing.wait_all_tasks_blocked()
            assert taken != bool(refused)
            delivered += taken
            assert repairs(await scene.history()) == []
            check_log(await scene.snapshot())
        if not injector.fired:
            break
    assert delivered > 5


async def test_an_append_that_fails_anywhere_ends_the_turn_without_an_output(
    autojump_clock: trio.testing.MockClock,
) -> None:
    seen: list[str] = []
    for number in count(1):
        store = testing.FaultyStore(stores.MemoryThreadStore(), fail={number: rt.StorageError("the disk was full")})
        async with asking(*ROUNDS, capabilities=BY_TOOL, tools=[Look()], store=store) as scene:
            try:
                outcome = await scene.run(output_type=Count)
            except rt.StorageError:
                assert (number, scene.ends) == (1, [])
                continue
            await check(scene, outcome)
            seen.append(outcome.error_kind or outcome.status)
        if store.appends < number:
            break
    assert {*seen} == {"completed", "storage"}
