"""Functions as tools in whole turns: what the model is offered, what the function gets, what goes back."""

import enum
import logging
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, transcript
from roder_trio.schema.policy import PolicyMode
from tests.answer_support import asking, results
from tests.turn_support import DONE, Scene, call, say

DONE_STEP = [say("done"), DONE]


class Unit(enum.Enum):
    CELSIUS = "C"
    KELVIN = "K"


@attrs.frozen
class Place:
    """Where it is."""

    city: str
    height: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))


@rt.tool(effects={"read"})
async def weather(context: rt.ToolContext, place: Place, unit: Unit = Unit.CELSIUS) -> dict[str, Any]:
    """Tell the weather.

    Args:
        place: the place
    """
    context.report_progress(f"looking at {place.city}")
    await trio.lowlevel.checkpoint()
    return {"city": place.city, "height": place.height, "unit": unit.name}


def calling(*calls: tuple[str, str, str]) -> list[Any]:
    """A step that calls these tools, each given as id, name and arguments."""
    return [*[part for entry in calls for part in call(*entry)], DONE]


def result(history: list[Any], id: str = "c1") -> transcript.ToolResult:
    [found] = [item for item in history if isinstance(item, transcript.ToolResult) and item.id == id]
    return found


async def test_an_async_function_gets_its_arguments_as_values_and_its_result_goes_back() -> None:
    arguments = '{"place": {"city": "Ulm", "height": 478}, "unit": "K"}'
    async with asking(calling(("c1", "weather", arguments)), DONE_STEP, tools=[weather]) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.text) == ("completed", "done")
        history = await scene.history()
        payload = {"city": "Ulm", "height": 478.0, "unit": "KELVIN"}
        text = '{"city":"Ulm","height":478.0,"unit":"KELVIN"}'
        assert history[1:3] == [
            transcript.ToolCall("c1", "weather", arguments),
            transcript.ToolResult("c1", "weather", text, display_payload=payload),
        ]
        first, second = scene.engine.requests
        assert list(second.transcript) == history[:-1]
        [offered] = first.tools
        assert (offered.name, offered.description) == ("weather", "Tell the weather.")
        assert offered.parameters["properties"]["place"]["description"] == "the place"
        assert offered.parameters["required"] == ["place"]
        assert scene.of(events.ToolProgress) == [events.ToolProgress("c1", "looking at Ulm")]


async def test_the_context_tells_whose_call_it_is(tmp_path: Path) -> None:
    seen: list[rt.ToolContext] = []

    @rt.tool
    def note(context: rt.ToolContext) -> None:
        """Note it."""
        seen.append(context)

    steps = [calling(("c1", "note", "")), DONE_STEP]
    async with asking(*steps, tools=[note], turn_deadline=60.0, policy_mode="bypass") as scene:
        outcome = await scene.run(workspace=str(tmp_path))
        assert result(await scene.history()).result == ""
        [context] = seen
        assert (context.thread_id, context.turn_id, context.call_id) == (scene.id, outcome.turn_id, "c1")
        assert (context.workspace, context.policy_mode) == (tmp_path, PolicyMode.BYPASS)
        assert context.deadline is not None
        assert 0 < context.deadline - trio.current_time() <= 60


async def test_a_plain_function_runs_in_a_worker_thread_and_the_loop_goes_on() -> None:
    here, go, where = threading.get_ident(), threading.Event(), list[int]()

    @rt.tool
    def block(context: rt.ToolContext, number: int) -> str:
        """Block."""
        where.append(threading.get_ident())
        context.report_progress("waiting")
        go.wait(60)
        return str(number + 1)

    async with asking(calling(("c1", "block", '{"number": 41}')), DONE_STEP, tools=[block]) as scene:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.run)
            await scene.wait_for(lambda scene: "tool.progress" in scene.kinds)
            go.set()
        assert results(await scene.history()) == {"c1": ("42", False)}
        assert here not in where


def failing(error: Exception, *, plain: bool) -> rt.Tool:
    """A function that raises `error`."""

    async def fail() -> None:
        """Fail."""
        raise error

    def fail_in_thread() -> None:
        """Fail."""
        raise error

    return rt.tool(name="fail")(fail_in_thread if plain else fail)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (rt.ToolError("The place is unknown."), "The place is unknown."),
        (ValueError("no"), "ValueError: no"),
        (ExceptionGroup("two", [ValueError("no")]), "ExceptionGroup: two (1 sub-exception): ValueError: no"),
    ],
)
async def test_what_a_function_raises_is_told_to_the_model_and_the_turn_goes_on(
    error: Exception, text: str, plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with asking(calling(("c1", "fail", "{}")), DONE_STEP, tools=[failing(error, plain=plain)]) as scene:
        assert (await scene.run()).text == "done"
        assert results(await scene.history()) == {"c1": (text, True)}
        assert scene.engine.requests[1].transcript[-1] == transcript.ToolResult("c1", "fail", text, is_error=True)
        assert scene.of(events.ToolFinished) == [events.ToolFinished("c1", is_error=True)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"place": {"city": "Ulm", "hight": 1}}', "hight"),
        ('{"place": {"city": 1}}', "$.place.city"),
        ("{}", "place"),
        ('{"place": {"city": "Ulm", "height": -1}}', "must be >= 0"),
    ],
)
async def test_arguments_that_do_not_fit_never_reach_the_function(arguments: str, told: str) -> None:
    async with asking(calling(("c1", "weather", arguments)), DONE_STEP, tools=[weather]) as scene:
        await scene.run()
        refused = result(await scene.history())
        assert refused.is_error
        assert refused.result.startswith("invalid arguments: ")
        assert told in refused.result
        assert scene.of(events.ToolProgress) == []


async def test_functions_of_one_step_run_side_by_side_and_answer_in_call_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    arrived: list[int] = []
    all_here = trio.Event()

    @rt.tool
    async def meet(number: int) -> int:
        """Wait for the others."""
        arrived.append(number)
        if len(arrived) == 3:
            all_here.set()
        await all_here.wait()
        await trio.sleep(3 - number)
        return number

    step = calling(*[(f"c{number}", "meet", f'{{"number": {number}}}') for number in range(3)])
    async with asking(step, DONE_STEP, tools=[meet]) as scene:
        await scene.run()
        assert list(results(await scene.history()).items()) == [(f"c{n}", (str(n), False)) for n in range(3)]
        assert trio.current_time() == 3


async def turn_with_tool(scene: Scene, nursery: trio.Nursery) -> str:
    """Start a turn and wait until its tool has started; return the turn's id."""
    nursery.start_soon(scene.run)
    await scene.wait_for(lambda scene: "tool.progress" in scene.kinds)
    return next(envelope.turn_id for envelope in scene.seen if envelope.kind == "turn.started")


async def test_a_blocked_plain_function_does_not_hold_an_interrupt_up() -> None:
    go, ended = threading.Event(), threading.Event()

    @rt.tool
    def block(context: rt.ToolContext) -> str:
        """Block."""
        context.report_progress("waiting")
        go.wait(60)
        ended.set()
        return "too late"

    async with asking(calling(("c1", "block", "{}")), DONE_STEP, tools=[block]) as scene:
        async with trio.open_nursery() as nursery:
            turn_id = await turn_with_tool(scene, nursery)
            await scene.interrupt(turn_id)
            assert (await scene.wait(turn_id)).status == "interrupted"
            assert not ended.is_set()
        assert results(await scene.history()) == {"c1": ("interrupted", True)}
        go.set()
        assert (await scene.run()).text == "done"
    assert await trio.to_thread.run_sync(ended.wait, 60)
    assert results(scene.engine.requests[-1].transcript) == {"c1": ("interrupted", True)}


async def test_a_function_that_swallows_its_cancel_has_its_result_dropped() -> None:
    @rt.tool
    async def stubborn(context: rt.ToolContext) -> str:
        """Never give in."""
        context.report_progress("waiting")
        try:
            await trio.sleep_forever()
        except BaseException:
            return "kept going"  # noqa: ASYNC104 - what a tool must not do

    async with asking(calling(("c1", "stubborn", "{}")), DONE_STEP, tools=[stubborn]) as scene:
        async with trio.open_nursery() as nursery:
            turn_id = await turn_with_tool(scene, nursery)
            await scene.interrupt(turn_id)
        assert results(await scene.history()) == {"c1": ("interrupted", True)}


async def test_a_function_may_have_a_time_limit_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    @rt.tool(timeout=1.5)
    async def sleepy() -> None:
        """Sleep."""
        await trio.sleep(60)

    async with asking(calling(("c1", "sleepy", "{}")), DONE_STEP, tools=[sleepy]) as scene:
        assert (await scene.run()).text == "done"
        assert results(await scene.history()) == {"c1": ("timed out after 1.5 s", True)}
        assert trio.current_time() == 1.5


async def test_an_exclusive_function_runs_alone(autojump_clock: trio.testing.MockClock) -> None:
    running: set[str] = set()
    together: list[set[str]] = []

    async def work(name: str) -> None:
        running.add(name)
        together.append(set(running))
        await trio.sleep(1)
        running.remove(name)

    @rt.tool
    async def beside(name: str) -> None:
        """Run beside others."""
        await work(name)

    @rt.tool(concurrency="exclusive")
    async def alone(name: str) -> None:
        """Run alone."""
        await work(name)

    order = ["beside", "beside", "alone", "beside"]
    step = calling(*[(f"c{at}", name, f'{{"name": "c{at}"}}') for at, name in enumerate(order)])
    async with asking(step, DONE_STEP, tools=[beside, alone]) as scene:
        await scene.run()
    assert together[1:] == [{"c0", "c1"}, {"c2"}, {"c3"}]
