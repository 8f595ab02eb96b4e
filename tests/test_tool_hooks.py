"""Hooks of calls: they may deny or rewrite, each after the other, and nothing else that they do stops a call."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, transcript
from tests.tool_support import (
    BAD_HOOKS,
    ENDING,
    Teller,
    Worker,
    batch,
    check_hook_failed,
    equipped,
    object_of,
    results_of,
    run_one,
    swallow,
    told,
)

Clock = trio.testing.MockClock
NUMBER = object_of("n", n="integer")
ONE = batch(("c1", "look", '{"n": 1}'))

# -- before a call -----------------------------------------------------------------------------------------------------


async def test_a_denial_ends_the_chain(autojump_clock: Clock) -> None:
    look, first, last = Worker(parameters=NUMBER), Teller(tool_calling=rt.Deny("not now")), Teller()
    async with equipped(ONE, ENDING, tools=[look], hooks=[first, last]) as scene:
        assert await run_one(scene) == ("denied by hook: not now", True)
        assert (look.runs, last.at("tool_calling")) == (0, [])
        assert scene.of(events.HookFailed, events.PolicyDecided, events.ToolStarted) == []


async def test_a_denial_after_a_rewrite_leaves_no_trace_of_the_rewrite(autojump_clock: Clock) -> None:
    hooks = [Teller(tool_calling=rt.Rewrite({"n": 2})), Teller(tool_calling=rt.Deny())]
    async with equipped(ONE, ENDING, tools=[Worker(parameters=NUMBER)], hooks=hooks) as scene:
        assert await run_one(scene) == ("denied by hook", True)
        assert scene.of(events.ToolArgumentsRewritten) == []


async def test_each_hook_sees_the_rewrite_of_the_one_before(autojump_clock: Clock) -> None:
    async def more(context: rt.ToolContext, arguments: Mapping[str, Any]) -> rt.Rewrite:
        return rt.Rewrite({"n": arguments["n"] * 2})

    class Other(Teller):
        """Another hook's name."""

    hooks = [Teller(tool_calling=more), Teller(), Other(tool_calling=more)]
    look = Worker(parameters=NUMBER)
    async with equipped(ONE, ENDING, tools=[look], hooks=hooks) as scene:
        assert await run_one(scene) == ("c1 of look", False)
        assert look.arguments == [{"n": 4}]
        assert [hook.at("tool_calling")[0][2]["n"] for hook in hooks] == [1, 2, 2]
        assert scene.of(events.ToolArgumentsRewritten) == [
            events.ToolArgumentsRewritten("c1", '{"n":2}', "Teller"),
            events.ToolArgumentsRewritten("c1", '{"n":4}', "Other"),
        ]
        stored = [envelope.event for envelope in (await scene.snapshot()).events]
        assert events.ToolArgumentsRewritten("c1", '{"n":4}', "Other") in stored
        assert (await scene.history())[1] == transcript.ToolCall("c1", "look", '{"n": 1}')


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"n": "two"}, "invalid arguments: wrong_type: "),
        ({}, "invalid arguments: missing_required: "),
        ({"n": 1, "m": 2}, "invalid arguments: unexpected_property: "),
        ({"n": object()}, "invalid arguments: Teller rewrote them to what isn't JSON: "),
        ({"n": float("nan")}, "invalid arguments: Teller rewrote them to what isn't JSON: "),
        ({1: 1}, "invalid arguments: Teller rewrote them to what isn't JSON: "),
    ],
)
async def test_a_rewrite_to_invalid_arguments_is_an_error_result(
    arguments: Any, text: str, autojump_clock: Clock
) -> None:
    look, last = Worker(parameters=NUMBER), Teller()
    async with equipped(ONE, ENDING, tools=[look], hooks=[Teller(tool_calling=rt.Rewrite(arguments)), last]) as scene:
        found, is_error = await run_one(scene)
        assert is_error
        assert found.startswith(text)
        assert look.runs == 0
        assert scene.of(events.HookFailed, events.PolicyDecided) == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        *BAD_HOOKS,
        (True, "it answered with bool"),
        ("deny", "it answered with str"),
        ({"n": 2}, "it answered with dict"),
        (rt.Rewrite([1]), "it answered with Rewrite"),  # type: ignore[arg-type]
        (rt.Rewrite(None), "it answered with Rewrite"),  # type: ignore[arg-type]
        (rt.Deny, "TypeError"),
    ],
)
async def test_a_call_goes_on_without_a_hook_that_fails(answer: Any, message: str, autojump_clock: Clock) -> None:
    look, last = Worker(parameters=NUMBER), Teller()
    async with equipped(ONE, ENDING, tools=[look], hooks=[Teller(tool_calling=answer), last]) as scene:
        assert await run_one(scene) == ("c1 of look", False)
        assert look.arguments == [{"n": 1}]
        assert len(last.at("tool_calling")) == 1
        check_hook_failed(scene, "tool_calling", message)


async def test_what_hooks_change_in_their_arguments_changes_no_call(autojump_clock: Clock) -> None:
    async def meddle(*given: Any) -> None:
        given[-1]["list"].append("meddled")
        given[-1]["n"] = "meddled"

    async def meddle_later(arguments: Any, output: rt.ToolOutput) -> None:
        arguments["list"].append("meddled")
        output.display_payload.append("meddled")

    class Meddler(rt.Policy):
        async def decide(self, *given: Any) -> None:
            await meddle(*given)

    async def work(context: rt.ToolContext, arguments: dict[str, Any]) -> rt.ToolOutput:
        output = rt.ToolOutput(json.dumps(arguments), display_payload=[])
        await meddle(arguments)
        return output

    look = Worker(behave=work, parameters=object_of("list", list={"type": "array"}, n="integer"))
    hooks = [Teller(tool_calling=meddle, tool_called=meddle_later), Teller()]
    step = batch(("c1", "look", '{"list": [], "n": 1}'))
    async with equipped(step, ENDING, tools=[look], hooks=hooks, policies=[Meddler()]) as scene:
        assert await run_one(scene) == ('{"list": [], "n": 1}', False)
        ((_, _, arguments, output),) = hooks[1].at("tool_called")
        assert (arguments, output.display_payload) == ({"list": [], "n": 1}, [])
        assert (await results_of(scene))[0].display_payload == []
        assert scene.of(events.HookFailed) == []


async def test_rewritten_arguments_are_stored_before_the_tool_starts(autojump_clock: Clock) -> None:
    stored: list[str] = []

    async def work(*given: Any) -> None:
        stored.extend(envelope.kind for envelope in (await scene.snapshot()).events)

    look = Worker(behave=work, parameters=NUMBER)
    async with equipped(ONE, ENDING, tools=[look], hooks=[Teller(tool_calling=rt.Rewrite({"n": 2}))]) as scene:
        await scene.run()
        assert stored[-1] == "tool.arguments_rewritten"


async def test_hooks_of_calls_that_may_run_together_are_asked_side_by_side(autojump_clock: Clock) -> None:
    async def slow(*given: Any) -> None:
        await trio.sleep(3)

    async with equipped(batch("c1", "c2", "c3"), ENDING, tools=[Worker()], hooks=[Teller(tool_calling=slow)]) as scene:
        begun = trio.current_time()
        await scene.run()
        assert trio.current_time() - begun == pytest.approx(3.0)


# -- after a call ------------------------------------------------------------------------------------------------------


async def test_hooks_are_told_how_a_call_ended(autojump_clock: Clock) -> None:
    async def work(context: rt.ToolContext, arguments: Any) -> None:
        if context.call_id == "c2":
            raise ValueError("no")

    hook = Teller()
    async with equipped(
        batch("c1", "c2", ("c3", "absent")), ENDING, tools=[Worker(behave=work)], hooks=[hook]
    ) as scene:
        await scene.run()
        assert sorted(hook.at("tool_called")) == [
            ("c1", "look", {}, rt.ToolOutput("c1 of look")),
            ("c2", "look", {}, rt.ToolOutput("ValueError: no", is_error=True)),
        ]


@pytest.mark.parametrize(("answer", "message"), BAD_HOOKS)
async def test_a_hook_that_fails_after_a_call_changes_nothing(answer: Any, message: str, autojump_clock: Clock) -> None:
    async with equipped(batch("c1"), ENDING, tools=[Worker()], hooks=[Teller(tool_called=answer)]) as scene:
        assert await run_one(scene) == ("c1 of look", False)
        check_hook_failed(scene, "tool_called", message)


async def test_what_a_hook_says_after_a_call_is_ignored(autojump_clock: Clock) -> None:
    async with equipped(
        batch("c1"), ENDING, tools=[Worker()], hooks=[Teller(tool_called=rt.Deny("too late"))]
    ) as scene:
        assert await run_one(scene) == ("c1 of look", False)


async def test_a_hook_that_swallows_its_cancel_does_not_keep_a_turn(autojump_clock: Clock) -> None:
    for point in ("turn_starting", "tool_calling", "tool_called"):
        hook, look = Teller(**{point: swallow}), Worker()
        async with equipped(batch("c1"), ENDING, tools=[look], hooks=[hook]) as scene:
            turn_id = await scene.start()
            await trio.testing.wait_all_tasks_blocked()
            await scene.interrupt(turn_id)
            assert (await scene.wait(turn_id)).status == "interrupted"
            assert len(scene.engine.requests) <= 1
            assert look.runs == (point == "tool_called")
            assert len(await told(scene)) == (point != "turn_starting")
