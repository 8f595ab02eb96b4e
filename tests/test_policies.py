"""Policies make the decision about a call stricter, never looser; one that fails denies that call and no other."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events
from tests.tool_support import ENDING, Worker, batch, equipped, fail_while_cancelled, hang, run_one, told

Clock = trio.testing.MockClock


class Saying(rt.Policy):
    """A policy that says, or does, what it was given for the call, else for all calls."""

    def __init__(self, answer: Any = None, **by_call: Any) -> None:
        self.answer = answer
        self.by_call = by_call
        self.asked: list[tuple[str, str, Any]] = []

    async def decide(self, context: rt.ToolContext, spec: rt.ToolSpec, arguments: Mapping[str, Any]) -> Any:
        await trio.lowlevel.checkpoint()
        self.asked.append((context.call_id, spec.name, arguments))
        answer = self.by_call.get(context.call_id, self.answer)
        if isinstance(answer, Exception):
            raise answer
        return await answer() if callable(answer) else answer


def decided(scene: Any) -> list[tuple[str, str]]:
    return [(event.decision.value, event.rule) for event in scene.of(events.PolicyDecided)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ValueError("no"), "the policy Saying failed: ValueError"),
        (fail_while_cancelled, "the policy Saying failed: ExceptionGroup"),
        (hang, "the policy Saying took longer than 10 s"),
        ("denied", "the policy Saying answered nonsense"),
        (True, "the policy Saying answered nonsense"),
        (rt.Deny("no"), "the policy Saying answered nonsense"),
    ],
)
async def test_a_policy_that_fails_denies_its_call_and_no_other(
    answer: Any, reason: str, autojump_clock: Clock
) -> None:
    look = Worker()
    async with equipped(batch("c1", "c2", "c3"), ENDING, tools=[look], policies=[Saying(c2=answer)]) as scene:
        await scene.run()
        assert await told(scene) == [
            ("c1 of look", False),
            (f"policy denied: {reason}", True),
            ("c3 of look", False),
        ]
        (denied,) = [event for event in scene.of(events.PolicyDecided) if event.call_id == "c2"]
        assert (denied.decision.value, denied.reason, denied.rule) == ("denied", reason, "policy")
        assert sorted(event.call_id for event in scene.of(events.ToolStarted)) == ["c1", "c3"]


async def test_all_policies_are_asked_once_in_order_and_the_strictest_counts(autojump_clock: Clock) -> None:
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)

    policies = [
        Saying(lambda: note(1)),
        Saying(rt.Verdict("denied", "first")),
        Saying(rt.Verdict("denied", "second")),
        Saying(rt.Verdict("allowed", "fine")),
        Saying(lambda: note(2)),
    ]
    async with equipped(batch(("c1", "look", '{"a": 1}')), ENDING, tools=[Worker()], policies=policies) as scene:
        assert await run_one(scene) == ("policy denied: first", True)
        assert order == [1, 2]
        assert [policy.asked for policy in policies] == [[("c1", "look", {"a": 1})]] * 5


@pytest.mark.parametrize(
    ("mode", "effects", "verdict", "expected"),
    [
        ("accept_all", ("write",), "allowed", ("auto", "table")),
        ("accept_all", ("write",), "auto", ("auto", "table")),
        ("accept_all", ("read",), "auto", ("auto", "policy")),
        ("accept_all", ("read",), "denied", ("denied", "policy")),
        ("plan", ("write",), "allowed", ("denied", "table")),
        ("bypass", ("write",), "ask", ("auto", "table")),
        ("bypass", ("read",), "ask", ("auto", "policy")),
        ("bypass", ("read",), "denied", ("denied", "policy")),
        ("accept_all", None, "allowed", ("auto", "table")),
        ("plan", None, "allowed", ("denied", "table")),
        ("default", ("read",), "allowed", ("allowed", "table")),
    ],
)
async def test_a_verdict_only_makes_the_decision_stricter(
    mode: str, effects: Any, verdict: str, expected: tuple[str, str], autojump_clock: Clock
) -> None:
    look = Worker(effects=effects)
    policies = [Saying(rt.Verdict(verdict))]
    async with equipped(batch("c1"), ENDING, tools=[look], policies=policies, policy_mode=mode) as scene:
        _, is_error = await run_one(scene)
        assert decided(scene) == [expected]
        assert is_error == (expected[0] == "denied")
        assert look.runs == (expected[0] != "denied")


@pytest.mark.parametrize("mode", ["default", "accept_all", "plan", "bypass"])
async def test_a_denied_tool_is_denied_in_every_mode_whatever_a_policy_says(mode: str, autojump_clock: Clock) -> None:
    policies = [Saying(rt.Verdict("allowed"))]
    async with equipped(
        batch("c1"), ENDING, tools=[Worker()], policies=policies, policy_mode=mode, denied_tools=("look",)
    ) as scene:
        assert await run_one(scene) == ("policy denied: 'look' is among the denied tools", True)
        assert decided(scene) == [("denied", "denied_tools")]


async def test_a_policy_sees_the_arguments_that_are_run(autojump_clock: Clock) -> None:
    class Rewriting(rt.Hook):
        async def tool_calling(self, *given: Any) -> rt.Rewrite:
            return rt.Rewrite({"a": 2})

    policy = Saying()
    step = batch(("c1", "look", '{"a": 1}'))
    async with equipped(step, ENDING, tools=[Worker()], policies=[policy], hooks=[Rewriting()]) as scene:
        await scene.run()
        assert policy.asked == [("c1", "look", {"a": 2})]


@pytest.mark.parametrize("mode", ["default", "plan"])
async def test_what_would_ask_is_refused_where_nobody_can_answer(mode: str, autojump_clock: Clock) -> None:
    look = Worker(effects=("network",))
    async with equipped(batch("c1"), ENDING, tools=[look], policy_mode=mode, interactive=False) as scene:
        assert await run_one(scene) == ("needs approval, and nobody can give it", True)
        assert decided(scene) == [("ask", "table")]
        assert scene.of(events.ApprovalRequested) == []


async def test_the_mode_of_now_is_what_policies_and_tools_are_told(autojump_clock: Clock) -> None:
    modes: list[str] = []

    class Noting(rt.Policy):
        async def decide(self, context: rt.ToolContext, spec: rt.ToolSpec, arguments: Any) -> None:
            modes.append(context.policy_mode.value)
            await scene.runtime.set_policy_mode("bypass")

    look = Worker()
    async with equipped(batch("c1"), ENDING, tools=[look], policies=[Noting()]) as scene:
        await scene.run()
        assert modes == ["accept_all"]
        assert look.contexts[0].policy_mode.value == "bypass"


async def test_an_interrupt_ends_a_turn_whose_policies_still_think(autojump_clock: Clock) -> None:
    look = Worker()
    async with equipped(batch("c1"), ENDING, tools=[look], policies=[Saying(hang)]) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        assert (await scene.wait(turn_id)).status == "interrupted"
        assert await told(scene) == [("interrupted", True)]
        assert (look.runs, decided(scene)) == (0, [])
