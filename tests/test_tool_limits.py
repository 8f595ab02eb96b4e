"""How many calls of a turn may fail, and what a row of failures is met with."""

from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, transcript
from tests.log_laws import check_log
from tests.tool_support import ENDING, Worker, batch, equipped
from tests.turn_support import Scene

Clock = trio.testing.MockClock


async def work(context: rt.ToolContext, arguments: Any) -> None:
    """Fails, if the call's id says so."""
    if context.call_id.startswith("bad"):
        raise ValueError(f"{context.call_id} is bad\nwith details")


def calls(outcomes: str, start: int = 0) -> list[Any]:
    """A step with one call for each letter; those of an "x" fail."""
    return batch(*[f"{'bad' if letter == 'x' else 'good'}{start + at}" for at, letter in enumerate(outcomes)])


def nudges(history: Any) -> list[str]:
    return [item.text for item in history[1:] if isinstance(item, transcript.UserMessage)]


async def test_a_row_of_failures_is_met_with_a_nudge_and_counts_from_0_again(autojump_clock: Clock) -> None:
    steps = [calls("xxxxx"), calls("xxxx", 5), calls("x", 9), ENDING]
    async with equipped(*steps, tools=[Worker(behave=work)]) as scene:
        outcome = await scene.run()
        assert outcome.status == "completed"
        first, second = nudges(await scene.history())
        assert first.startswith("The last 5 tool calls failed:\n- look: ValueError: bad0 is bad\n- look: ")
        assert "details" not in first
        assert "- look: ValueError: bad9 is bad\n" in second
        assert scene.of(events.LimitReached) == [events.LimitReached("max_consecutive_tool_failures", 5)] * 2
        requests = scene.engine.requests
        assert requests[1].transcript[-1] == transcript.UserMessage(first)
        assert nudges(requests[2].transcript) == [first]
        assert requests[3].transcript[-1] == transcript.UserMessage(second)
        check_log(await scene.snapshot())


async def test_the_nudge_stands_behind_all_results_of_its_batch(autojump_clock: Clock) -> None:
    steps = [calls("xxxxxxx"), ENDING]
    async with equipped(*steps, tools=[Worker(behave=work)]) as scene:
        await scene.run()
        kinds = [type(item).__name__ for item in await scene.history()]
        assert kinds == ["UserMessage", *["ToolCall"] * 7, *["ToolResult"] * 7, "UserMessage", "AssistantMessage"]
        assert nudges(await scene.history())[0].startswith("The last 7 tool calls failed:")


@pytest.mark.parametrize("steps", [["xxxx.xxxx"], ["xx.", "xxxx", "."], ["xxxx", ".", "xxxx"], ["xxxxx."]])
async def test_a_success_ends_a_row(steps: list[str], autojump_clock: Clock) -> None:
    numbered = [calls(step, 10 * number) for number, step in enumerate(steps)]
    async with equipped(*numbered, ENDING, tools=[Worker(behave=work)]) as scene:
        assert (await scene.run()).status == "completed"
        assert scene.of(events.LimitReached) == []


async def test_failures_count_in_call_order_whichever_ended_first(autojump_clock: Clock) -> None:
    async def slow(context: rt.ToolContext, arguments: Any) -> None:
        await trio.sleep(3 if context.call_id.startswith("good") else 1)
        await work(context, arguments)

    async with equipped(calls("xx.xx"), ENDING, tools=[Worker(behave=slow)], max_consecutive_tool_failures=3) as scene:
        await scene.run()
        assert scene.of(events.LimitReached) == []


async def test_a_row_of_failures_fails_the_turn_if_it_may_not_go_on(autojump_clock: Clock) -> None:
    config = {"continue_on_failure_limit": False, "max_consecutive_tool_failures": 3}
    async with equipped(calls("x"), calls("xx", 1), tools=[Worker(behave=work)], **config) as scene:
        outcome = await scene.run()
        check_failed(scene, outcome, "max_consecutive_tool_failures", 3)
        assert [type(item).__name__ for item in await scene.history()][-3:] == ["ToolResult", "ToolResult", "ErrorNote"]


async def test_too_many_failures_of_a_turn_fail_it(autojump_clock: Clock) -> None:
    steps = [calls("x.x"), calls("x.", 3), calls("xx", 5)]
    async with equipped(*steps, tools=[Worker(behave=work)], max_tool_failures_per_turn=4) as scene:
        check_failed(scene, await scene.run(), "max_tool_failures_per_turn", 4)
        assert len(scene.engine.requests) == 3
        check_log(await scene.snapshot())


async def test_the_limit_of_the_turn_is_tested_first(autojump_clock: Clock) -> None:
    config = {"max_consecutive_tool_failures": 2, "max_tool_failures_per_turn": 3}
    async with equipped(calls("xx"), calls("xx", 2), tools=[Worker(behave=work)], **config) as scene:
        outcome = await scene.run()
        names = [event.name for event in scene.of(events.LimitReached)]
        assert names == ["max_consecutive_tool_failures", "max_tool_failures_per_turn"]
        assert outcome.error_kind == "reliability_limit"


async def test_128_failures_of_a_turn_are_too_many(autojump_clock: Clock) -> None:
    async with equipped(calls("x" * 128), tools=[Worker(behave=work)], max_parallel_tools=128) as scene:
        check_failed(scene, await scene.run(), "max_tool_failures_per_turn", 128)


async def test_a_failure_counts_whatever_its_stage(autojump_clock: Clock) -> None:
    class Denying(rt.Hook):
        async def tool_calling(self, context: rt.ToolContext, name: str, arguments: Any) -> rt.Deny | None:
            return rt.Deny() if context.call_id == "denied" else None

    step = batch(("c1", "absent"), ("c2", "look", "["), ("denied", "look"), ("c4", "hide"), ("bad", "look"))
    tools = [Worker(behave=work), Worker("hide")]
    async with equipped(step, ENDING, tools=tools, hooks=[Denying()], denied_tools=("hide",)) as scene:
        assert (await scene.run()).status == "completed"
        (nudge,) = nudges(await scene.history())
        assert [line.split(":")[1].strip() for line in nudge.splitlines()[1:-1]] == [
            "unknown_tool",
            "invalid arguments",
            "denied by hook",
            "policy denied",
            "ValueError",
        ]


async def test_each_turn_counts_anew(autojump_clock: Clock) -> None:
    steps = [calls("xxx"), ENDING, calls("xxx", 3), ENDING]
    config = {"max_tool_failures_per_turn": 5, "max_consecutive_tool_failures": 4}
    async with equipped(*steps, tools=[Worker(behave=work)], **config) as scene:
        assert [(await scene.run()).status for _ in range(2)] == ["completed", "completed"]
        assert scene.of(events.LimitReached) == []


def check_failed(scene: Scene, outcome: rt.TurnOutcome, name: str, value: int) -> None:
    assert (outcome.status, outcome.error_kind) == ("failed", "reliability_limit")
    assert outcome.error == f"The turn reached the limit {name} of {value}."
    assert scene.of(events.LimitReached) == [events.LimitReached(name, value)]
