"""The call by which an engine without response formats answers: when it is forced, and what it passes by."""

from collections.abc import Mapping
from typing import Any

import roder_trio as rt
from roder_trio import transcript
from roder_trio.logic.output import REPLACED
from tests.answer_support import (
    BY_TOOL,
    FORCED,
    FREE,
    VALID,
    WRONG,
    Count,
    Look,
    Watches,
    answer,
    asking,
    choices,
    repairs,
    results,
    text_step,
)
from tests.log_laws import check_log
from tests.turn_support import (
    DONE,
    CountingStore,
    call,
    say,
    texts,
)


async def test_a_step_that_would_finish_without_the_call_is_followed_by_a_forced_round() -> None:
    async with asking(text_step("Well."), answer(), capabilities=BY_TOOL) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.output, outcome.text) == (Count(1), VALID)
        assert choices(scene) == [FREE, FORCED]
        history = await scene.history()
        assert texts(history[:2]) == ["go", "Well."]
        assert list(scene.engine.requests[1].transcript) == history[:2]


async def test_a_forced_round_that_still_lacks_the_call_is_an_invalid_answer() -> None:
    steps = [text_step(f"Text {number}.") for number in range(4)]
    async with asking(*steps, capabilities=BY_TOOL) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.error_kind, outcome.text) == ("output_invalid", "Text 3.")
        assert choices(scene) == [FREE, FORCED, FORCED, FORCED]
        history = await scene.history()
        assert ["final_answer" in repair for repair in repairs(history)] == [True, True]
        assert "final_answer" in outcome.error
        kinds = [type(item).__name__ for item in history]
        assert kinds == [
            "UserMessage",
            *["AssistantMessage"] * 2,
            *["UserMessage", "AssistantMessage"] * 2,
            "ErrorNote",
        ]


async def test_a_forced_answer_that_does_not_fit_is_asked_for_freely_again() -> None:
    steps = [text_step("Well."), answer("f1", "{}"), text_step("Hm."), answer("f2")]
    async with asking(*steps, capabilities=BY_TOOL) as scene:
        assert (await scene.run(output_type=Count)).output == Count(1)
        assert choices(scene) == [FREE, FORCED, FREE, FORCED]


async def test_call_and_result_of_a_valid_answer_are_in_the_final_append() -> None:
    store = CountingStore()
    async with asking(answer(), capabilities=BY_TOOL, store=store) as scene:
        await scene.run(output_type=Count)
        assert len(store.appended) == 3
        last = [kind for kind in store.appended[-1] if not kind.startswith("item.")]
        assert last == ["turn.item_appended", "turn.item_appended", "turn.completed"]


class Denies(rt.Policy):
    async def decide(self, context: rt.ToolContext, spec: rt.ToolSpec, arguments: Mapping[str, Any]) -> rt.Verdict:
        return rt.Verdict("denied", "never")


async def test_the_call_passes_no_policy_hook_allowlist_or_limit() -> None:
    hook = Watches()
    limits = {"max_tool_failures_per_turn": 1, "max_consecutive_tool_failures": 1, "continue_on_failure_limit": False}
    lists = {"tool_allowlist": ("look",), "denied_tools": ("final_answer",), "policy_mode": "plan"}
    options = {"policies": [Denies()], "hooks": [hook], "tools": [Look()], **limits, **lists}
    steps = [answer("f1", "no"), answer("f2", WRONG), answer("f3")]
    async with asking(*steps, capabilities=BY_TOOL, **options) as scene:
        assert (await scene.run(output_type=Count)).output == Count(1)
        seen = {"policy.decided", "approval.requested", "tool.started", "tool.finished", "limit.reached"}
        assert seen.isdisjoint(scene.kinds)
        assert hook.called == []


async def test_other_calls_of_the_step_run_first() -> None:
    store = CountingStore()
    step = [say("Both."), *call("f1", "final_answer", VALID), *call("c1", "look"), DONE]
    async with asking(step, capabilities=BY_TOOL, tools=[Look()], store=store) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.output, len(scene.engine.requests)) == (Count(1), 1)
        assert (await scene.history())[1:] == [
            transcript.AssistantMessage("Both."),
            transcript.ToolCall("c1", "look", "{}"),
            transcript.ToolResult("c1", "look", "seen"),
            transcript.ToolCall("f1", "final_answer", VALID),
            transcript.ToolResult("f1", "final_answer", "accepted"),
        ]
        assert store.appended[-1].count("turn.item_appended") == 2


async def test_an_answer_beside_other_calls_is_repaired_like_any() -> None:
    step = [*call("f1", "final_answer", WRONG), *call("c1", "look"), DONE]
    async with asking(step, answer("f2"), capabilities=BY_TOOL, tools=[Look(fails=True)]) as scene:
        assert (await scene.run(output_type=Count)).output == Count(1)
        history = await scene.history()
        assert results(history) == {
            "c1": ("seen", True),
            "f1": ("invalid output", True),
            "f2": ("accepted", False),
        }
        assert list(scene.engine.requests[1].transcript) == history[:-2]
        assert isinstance(history[-3], transcript.UserMessage)


async def test_other_calls_go_before_a_forced_round() -> None:
    steps = [[*call("c1", "look"), DONE], text_step("Seen."), answer()]
    async with asking(*steps, capabilities=BY_TOOL, tools=[Look()]) as scene:
        assert (await scene.run(output_type=Count)).output == Count(1)
        assert choices(scene) == [FREE, FREE, FORCED]


async def test_of_several_answers_in_one_step_the_last_counts() -> None:
    step = [*call("f1", "final_answer", VALID), *call("f2", "final_answer", '{"n": 2}'), DONE]
    async with asking(step, capabilities=BY_TOOL, max_tool_failures_per_turn=1) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.output, outcome.text) == (Count(2), '{"n": 2}')
        assert results(await scene.history()) == {"f1": (REPLACED, True), "f2": ("accepted", False)}
        check_log(await scene.snapshot())


async def test_the_id_of_an_answer_is_that_of_any_call() -> None:
    async with asking(answer("f1", WRONG), answer("f1", VALID), capabilities=BY_TOOL) as scene:
        assert (await scene.run(output_type=Count)).error_kind == "protocol"
    async with asking(answer("f1", WRONG), answer("f1", WRONG), answer("f2"), capabilities=BY_TOOL) as scene:
        assert (await scene.run(output_type=Count)).output == Count(1)
        assert results(await scene.history()) == {"f1": ("invalid output", True), "f2": ("accepted", False)}
    async with asking(answer("f1"), answer("f1"), capabilities=BY_TOOL) as scene:
        assert (await scene.run(output_type=Count)).output == (await scene.run(output_type=Count)).output
        assert len(results(await scene.history())) == 2
