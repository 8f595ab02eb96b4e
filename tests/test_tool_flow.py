"""One call, from the model's bytes to its result: the stages in order, and what each leaves behind."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, transcript
from roder_trio.schema.policy import PolicyDecision
from tests.tool_support import (
    ENDING,
    Teller,
    Worker,
    batch,
    equipped,
    finished,
    object_of,
    run_one,
    told,
    tool_events,
)
from tests.turn_support import CountingStore, Scene

Clock = trio.testing.MockClock
NUMBER = object_of("n", n="integer")
PATH = object_of("path", path="string")


def of_the_call(scene: Scene) -> list[str]:
    """The kinds of what was published from the step commit on, up to the next request."""
    kinds = scene.kinds
    first = kinds.index("inference.completed") + 1
    return [kind for kind in kinds[first:] if not kind.startswith("usage")][: kinds[first:].index("inference.started")]


async def test_a_call_passes_its_stages_in_order(autojump_clock: Clock) -> None:
    seen: list[str] = []

    class Noting(rt.Policy):
        async def decide(self, context: rt.ToolContext, spec: rt.ToolSpec, arguments: Mapping[str, Any]) -> None:
            await trio.lowlevel.checkpoint()
            seen.append(f"policy {arguments}")

    async def rewrite(context: rt.ToolContext, arguments: Any) -> rt.Rewrite:
        seen.append(f"hook {arguments}")
        return rt.Rewrite({"n": arguments["n"] + 1})

    async def work(context: rt.ToolContext, arguments: dict[str, Any]) -> None:
        seen.append(f"run {arguments}")
        context.report_progress("half")

    async def after(arguments: Any, output: rt.ToolOutput) -> None:
        seen.append(f"called {arguments} {output.text}")

    hook = Teller(tool_calling=rewrite, tool_called=after)
    steps = [batch(("c1", "look", '"{\\"n\\": 1}"')), ENDING]
    tools = [Worker("look", work, parameters=NUMBER)]
    async with equipped(*steps, tools=tools, hooks=[hook, hook], policies=[Noting()]) as scene:
        outcome = await scene.run()
        assert outcome.text == "done"
        assert (
            seen
            == ["hook {'n': 1}", "hook {'n': 2}", "policy {'n': 3}", "run {'n': 3}"]
            + ["called {'n': 3} c1 of look"] * 2
        )
        assert tool_events(scene) == [
            events.ToolCallRepaired("c1"),
            events.ToolArgumentsRewritten("c1", '{"n":2}', "Teller"),
            events.ToolArgumentsRewritten("c1", '{"n":3}', "Teller"),
            events.PolicyDecided("c1", PolicyDecision.ALLOWED, "in mode 'accept_all', by its effects read", "table"),
            events.ToolStarted("c1", "look"),
            events.ToolProgress("c1", "half"),
            events.ToolFinished("c1", False),
        ]
        assert of_the_call(scene) == [
            "turn.item_appended",
            "item.started",
            "tool.repaired",
            "tool.arguments_rewritten",
            "tool.arguments_rewritten",
            "policy.decided",
            "tool.started",
            "tool.progress",
            "tool.finished",
            "turn.item_appended",
            "item.completed",
        ]
        assert (await scene.history())[1:3] == [
            transcript.ToolCall("c1", "look", '"{\\"n\\": 1}"'),
            transcript.ToolResult("c1", "look", "c1 of look"),
        ]


async def test_all_rewrites_of_a_call_are_one_append(autojump_clock: Clock) -> None:
    hook, store = Teller(tool_calling=rt.Rewrite({"n": 2})), CountingStore()
    steps = [batch(("c1", "look", '{"n": 1}')), ENDING]
    async with equipped(*steps, tools=[Worker(parameters=NUMBER)], hooks=[hook, hook], store=store) as scene:
        await scene.run()
        assert ["tool.arguments_rewritten"] * 2 in store.appended


async def test_a_call_is_stored_before_anything_else_happens_to_it(autojump_clock: Clock) -> None:
    seen: list[int] = []
    store = CountingStore()

    async def look_around(*given: Any) -> None:
        seen.append(sum(kinds.count("turn.item_appended") for kinds in store.appended))

    hook = Teller(tool_calling=look_around)
    async with equipped(batch("c1", "c2"), ENDING, tools=[Worker("look", look_around)], hooks=[hook], store=store) as s:
        await s.run()
        assert seen[:2] == [3, 3]  # the message and both calls
        assert min(seen) == 3


@pytest.mark.parametrize(
    ("call", "hook", "verdict", "text"),
    [
        (("c1", "absent"), None, None, "unknown_tool: there is no tool 'absent'; the tools are: look"),
        (("c1", "look", "{"), None, None, None),
        (("c1", "look", '{"n": "x"}'), None, None, None),
        (("c1", "look", '{"n": 1}'), rt.Deny("not now"), None, "denied by hook: not now"),
        (("c1", "look", '{"n": 1}'), rt.Deny(), None, "denied by hook"),
        (("c1", "look", '{"n": 1}'), rt.Rewrite({"n": "x"}), None, None),
        (("c1", "look", '{"n": 1}'), None, rt.Verdict("denied", "no"), "policy denied: no"),
        (("c1", "look", '{"n": 1}'), None, rt.Verdict("ask"), "needs approval, and nobody can give it"),
    ],
)
async def test_a_refused_call_has_its_result_and_its_end_but_no_start(
    call: tuple[str, ...], hook: Any, verdict: Any, text: str | None, autojump_clock: Clock
) -> None:
    class Saying(rt.Policy):
        async def decide(self, *given: Any) -> Any:
            await trio.lowlevel.checkpoint()
            return verdict

    look, teller = Worker("look", parameters=NUMBER), Teller(tool_calling=hook)
    async with equipped(
        batch(call), ENDING, tools=[look], hooks=[teller], policies=[Saying()], interactive=False
    ) as scene:
        found, is_error = await run_one(scene)
        assert is_error
        assert (text is None and found.startswith("invalid arguments: ")) or found == text
        assert look.runs == 0
        assert teller.at("tool_called") == []
        assert scene.of(events.ToolStarted) == []
        assert finished(scene) == [("c1", True)]
        assert len(scene.of(events.PolicyDecided)) == (verdict is not None)
        second = scene.engine.requests[1].transcript
        assert second[-1] == transcript.ToolResult("c1", call[1], found, is_error=True)


async def test_policy_says_what_it_decided_also_of_a_call_that_is_allowed(autojump_clock: Clock) -> None:
    tools = [Worker("look"), Worker("change", effects=("write",)), Worker("none", effects=()), Worker("hide")]
    step = batch(*[(f"c{number}", tool.spec.name) for number, tool in enumerate(tools)])
    async with equipped(step, ENDING, tools=tools, denied_tools=("hide",)) as scene:
        await scene.run()
        decided = {event.call_id: (event.decision.value, event.rule) for event in scene.of(events.PolicyDecided)}
        assert decided == {
            "c0": ("allowed", "table"),
            "c1": ("auto", "table"),
            "c2": ("allowed", "table"),
            "c3": ("denied", "denied_tools"),
        }
        assert [is_error for _, is_error in await told(scene)] == [False, False, False, True]


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "text", "klass", "named"),
    [
        (NUMBER, "{", "invalid_json", "character 1"),
        (NUMBER, '{"n": 1, "n": 2}', "invalid_json", "n"),
        (NUMBER, '{"n": NaN}', "invalid_json", "NaN"),
        (NUMBER, '{"n": true}', "wrong_type", "integer"),
        (NUMBER, '{"n": 3.0}', "wrong_type", "integer"),
        (NUMBER, "{}", "missing_required", "n"),
        (NUMBER, " ", "missing_required", "n"),
        (PATH, '{"path": " "}', "empty_required_string", "path"),
        (PATH, '{"paht": "a"}', "missing_required", "paht"),
        (NUMBER, '"[1]"', "schema_repair_rejected", "object"),
        (object_of(n={"enum": [1], "maximum": 3}), '{"n": 5}', "schema_violation", "enum"),
        (object_of(n={"enum": [1], "maximum": 3}), '{"n": 5}', "schema_violation", "maximum"),
    ],
)
async def test_arguments_that_do_not_fit_are_an_error_result(
    schema: dict[str, Any], text: str, klass: str, named: str, autojump_clock: Clock
) -> None:
    look = Worker("look", parameters=schema)
    async with equipped(batch(("c1", "look", text)), ENDING, tools=[look]) as scene:
        found, is_error = await run_one(scene)
        assert is_error
        assert found.startswith(f"invalid arguments: {klass}: ")
        assert named in found
        assert look.runs == 0
        assert (await scene.history())[1] == transcript.ToolCall("c1", "look", text)
        assert tool_events(scene) == [events.ToolFinished("c1", True)]


async def test_a_misspelt_name_is_told_with_the_name_that_was_meant(autojump_clock: Clock) -> None:
    look = Worker("look", parameters=PATH)
    async with equipped(batch(("c1", "look", '{"paht": "a"}')), ENDING, tools=[look]) as scene:
        text, _ = await run_one(scene)
        assert "'paht'" in text or "paht" in text
        assert "'path'" in text


@pytest.mark.parametrize(
    ("schema", "text", "arguments"),
    [
        (PATH, '{"path":"a"}', {"path": "a"}),
        (object_of(x="number"), '{"x": 3}', {"x": 3}),
        (object_of(x="number"), "", {}),
        (object_of(x="number"), "  \n", {}),
        (object_of(path={"type": "string", "minLength": 0}), '{"path": ""}', {"path": ""}),
    ],
)
async def test_arguments_that_fit_are_given_to_the_tool(
    schema: dict[str, Any], text: str, arguments: dict[str, Any], autojump_clock: Clock
) -> None:
    look = Worker("look", parameters=schema)
    async with equipped(batch(("c1", "look", text)), ENDING, tools=[look]) as scene:
        assert await run_one(scene) == ("c1 of look", False)
        assert look.arguments == [arguments]
        assert scene.of(events.ToolCallRepaired) == []


async def test_an_object_in_a_json_string_is_unwrapped_and_told(autojump_clock: Clock) -> None:
    look = Worker("look", parameters=PATH)
    async with equipped(batch(("c1", "look", '"{\\"path\\":\\"a\\"}"')), ENDING, tools=[look]) as scene:
        assert await run_one(scene) == ("c1 of look", False)
        assert look.arguments == [{"path": "a"}]
        assert scene.of(events.ToolCallRepaired) == [events.ToolCallRepaired("c1")]
        assert (await scene.history())[1] == transcript.ToolCall("c1", "look", '"{\\"path\\":\\"a\\"}"')


@pytest.mark.parametrize("reason", ["length", "max_tokens", "content_filter"])
async def test_empty_arguments_of_an_output_that_was_cut_are_no_arguments(reason: str, autojump_clock: Clock) -> None:
    look = Worker("look")
    async with equipped(batch(("c1", "look", "")), batch(("c2", "look", ""), reason=reason), ENDING, tools=[look]) as s:
        await s.run()
        first, second = await told(s)
        assert first == ("c1 of look", False)
        assert second[0].startswith("invalid arguments: invalid_json: the arguments are empty")
        assert look.runs == 1


async def test_what_the_model_wrote_before_its_calls_stands_before_them(autojump_clock: Clock) -> None:
    step = [inference.ReasoningDelta("why"), inference.MessageDelta("look at"), *batch("c1")]
    async with equipped(step, ENDING, tools=[Worker()]) as scene:
        await scene.run()
        assert [type(item).__name__ for item in await scene.history()] == [
            "UserMessage",
            "ReasoningSummary",
            "AssistantMessage",
            "ToolCall",
            "ToolResult",
            "AssistantMessage",
        ]
