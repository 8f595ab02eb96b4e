"""The tools by which a model reads and moves its goal, over scripted calls."""

import json
from typing import Any

import attrs
import pytest
import trio

import roder_trio as rt
from roder_trio import events, goals, stores, transcript
from roder_trio.actors.goal import goal_tools
from roder_trio.testing import FaultyStore
from tests.goal_support import Cause, Gate, Status, causes, changes_goal, going, spoken
from tests.ledger_support import AGAIN, as_if_killed, cold, goal_of, patch, used_and_status
from tests.tool_support import Teller, Worker, batch, finished, results_of, told
from tests.turn_support import DONE, STILL, Scene, one_thread, say, settings, used

ALONE = rt.GoalConfig(auto_continue=False)
NAMES = ["create_goal", "get_goal", "update_goal"]
NO_GOAL = {"goal": None, "has_active_goal": False, "remaining_tokens": None, "completion_budget_report": None}


def alone(*steps: Any, **more: Any) -> Any:
    """A thread with a goal that doesn't go on by itself, but has its tools."""
    return going(*steps, goals_config=ALONE, **more)


def without_goal(*steps: Any, **config: Any) -> Any:
    store = config.pop("store", None)
    return one_thread(*steps, store=store, config=settings(goals=ALONE, **config))


def get(id: str = "c1") -> tuple[str, str]:
    return (id, "get_goal")


def create(id: str = "c1", **arguments: Any) -> tuple[str, str, str]:
    return (id, "create_goal", json.dumps(arguments))


def update(status: Any, id: str = "c1") -> tuple[str, str, str]:
    return (id, "update_goal", json.dumps({"status": status}))


def read(result: transcript.ToolResult) -> tuple[str, dict[str, Any]]:
    """The plain line and the JSON of a result."""
    assert result.is_error is False
    line, _, text = result.result.partition("\n")
    assert "\n" not in text
    return line, json.loads(text)


async def answers(scene: Scene) -> list[tuple[str, dict[str, Any]]]:
    return [read(result) for result in await results_of(scene)]


async def stored_goal(scene: Scene) -> goals.Goal | None:
    return await scene.runtime.thread_goal_get(scene.id)


# -- which are offered -------------------------------------------------------------------------------------------------


def offered(scene: Scene) -> list[str]:
    return [tool.name for tool in scene.engine.requests[-1].tools]


async def test_the_three_are_offered_unless_the_host_wants_none(autojump_clock):
    for config, names in ((ALONE, NAMES), (STILL, []), (rt.GoalConfig(), NAMES)):
        async with one_thread(spoken("a"), config=settings(goals=config)) as scene:
            await scene.run()
            assert offered(scene) == names


async def test_allowlists_admit_them_like_any_other(autojump_clock):
    step = batch(create(objective="x"))
    async with without_goal(step, spoken("a"), tool_allowlist=("get_goal",)) as scene:
        await scene.run()
        assert offered(scene) == ["get_goal"]
        [(text, is_error)] = await told(scene)
        assert is_error
        assert "not permitted" in text
        assert await stored_goal(scene) is None


async def test_an_engine_without_calls_is_offered_none(autojump_clock):
    async with one_thread(
        spoken("a"), config=settings(goals=ALONE), capabilities=rt.InferenceCapabilities.text_only()
    ) as scene:
        await scene.run()
        assert offered(scene) == []


async def test_their_schemas_take_nothing_else(autojump_clock):
    async with without_goal(spoken("a")) as scene:
        await scene.run()
        for tool in scene.engine.requests[-1].tools:
            assert tool.parameters["additionalProperties"] is False


async def test_a_tool_of_the_host_may_not_have_one_of_their_names(autojump_clock):
    mine = Worker("get_goal")
    with pytest.raises(rt.DuplicateTool, match="get_goal"):
        async with rt.open_runtime(tools=[mine], config=settings(goals=ALONE)):
            pass
    async with rt.open_runtime(tools=[mine], config=settings(goals=STILL)):
        pass


async def test_outside_a_turn_they_do_nothing():
    for tool in goal_tools():
        with pytest.raises(rt.ToolError, match="inside a turn"):
            await tool.run(None, {})


async def test_arguments_that_no_schema_refuses_are_looked_at_again():
    [create] = [tool for tool in goal_tools() if tool.spec.name == "create_goal"]
    output = await create.ask(None, "u", {"objective": "   "})
    assert (output.is_error, output.text.startswith("invalid arguments: objective")) == (True, True)


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_without_a_goal_reading_it_is_no_error(autojump_clock):
    async with without_goal(batch(get()), spoken("a")) as scene:
        await scene.run()
        assert await answers(scene) == [("This thread has no goal.", NO_GOAL)]


async def test_reading_a_goal_tells_its_counters_of_the_moment(autojump_clock):
    goal = goals.GoalPatch(objective="prove \ud800 it", token_budget=42)
    async with alone([used(24), 2.0, *batch(get())], spoken("a"), goal=goal) as scene:
        await scene.run()
        [(line, value)] = await answers(scene)
        held = await goal_of(scene)
        assert line == "The goal is active."
        assert value == {
            "goal": {
                "goal_id": held.goal_id,
                "objective": "prove ? it",
                "status": "active",
                "token_budget": 42,
                "tokens_used": 24,
                "time_used": 2.0,
            },
            "has_active_goal": True,
            "remaining_tokens": 18,
            "completion_budget_report": None,
        }


async def test_reading_an_exhausted_goal_tells_that_it_is_limited_though_that_is_not_stored_yet(autojump_clock):
    goal = goals.GoalPatch(objective="x", token_budget=42)
    async with alone([used(50), *batch(get())], spoken("a"), goal=goal) as scene:
        await scene.run()
        [(line, value)] = await answers(scene)
        assert (line, value["has_active_goal"], value["remaining_tokens"]) == ("The goal is budget_limited.", False, 0)


async def test_a_budget_of_any_size_is_told(autojump_clock):
    create = batch(("c1", "create_goal", f'{{"objective": "x", "token_budget": {10**30}}}'))
    async with without_goal(create, batch(get("c2")), spoken("a")) as scene:
        assert (await scene.run()).status == "completed"
        assert [value["remaining_tokens"] for _, value in await answers(scene)] == [10**30] * 2


# -- creating ----------------------------------------------------------------------------------------------------------


async def test_a_model_creates_a_goal_that_its_turn_pays_from_the_next_request_on(autojump_clock):
    step = [used(25), *batch(create(objective=" prove it ", token_budget=42))]
    async with without_goal(step, [used(9), say("a"), DONE], store=stores.MemoryThreadStore()) as scene:
        await scene.run()
        goal = await goal_of(scene)
        assert (goal.objective, goal.token_budget, goal.tokens_used) == ("prove it", 42, 9)
        assert causes(scene) == [Cause.MODEL]
        [(line, value)] = await answers(scene)
        assert (line, value["goal"]["tokens_used"], value["remaining_tokens"]) == ("The goal is active.", 0, 42)


async def test_a_goal_that_a_model_created_goes_on_by_itself(autojump_clock):
    steps = [batch(create(objective="x")), spoken("a"), batch(update("complete")), spoken("b")]
    async with one_thread(*steps, config=settings(goals=rt.GoalConfig())) as scene:
        await scene.run()
        await scene.wait_for(lambda scene: len(scene.ends) == 2)
        assert (await goal_of(scene)).status is Status.COMPLETE


@pytest.mark.parametrize("status", ["active", "paused", "blocked", "usage_limited"])
async def test_an_unfinished_goal_is_not_replaced(autojump_clock, status):
    async with alone(batch(create(objective="y", token_budget=5)), spoken("a")) as scene:
        await patch(scene, status=status)
        before, count = await goal_of(scene), len(causes(scene))
        await scene.run()
        [(text, is_error)] = await told(scene)
        assert is_error
        assert "unfinished goal" in text
        after = await goal_of(scene)
        assert attrs.evolve(after, tokens_used=0, time_used=0.0) == before
        assert len(causes(scene)) == count


async def test_a_budget_limited_goal_is_unfinished_too(autojump_clock):
    goal = goals.GoalPatch(objective="x", token_budget=5)
    async with alone([used(9), *batch(create(objective="y"))], spoken("a"), goal=goal) as scene:
        await scene.run()
        assert [is_error for _, is_error in await told(scene)] == [True]
        assert (await goal_of(scene)).objective == "x"


async def test_a_complete_goal_is_replaced_by_a_new_one(autojump_clock):
    async with alone([used(30), *batch(create(objective="y"))], [used(7), say("a"), DONE]) as scene:
        old = await patch(scene, status="complete")
        await scene.run()
        new = await goal_of(scene)
        assert new.goal_id != old.goal_id
        assert (new.objective, new.tokens_used, new.token_budget) == ("y", 7, None)


async def test_of_two_goals_created_in_one_batch_exactly_one_comes_to_be(autojump_clock):
    both = batch(create("c1", objective="x"), create("c2", objective="y"))
    async with without_goal(both, spoken("a"), store=stores.MemoryThreadStore()) as scene:
        await scene.run()
        assert [is_error for _, is_error in await told(scene)] == [False, True]
        assert ((await goal_of(scene)).objective, causes(scene)) == ("x", [Cause.MODEL])


BAD: list[dict[str, Any]] = [
    {},
    {"objective": ""},
    {"objective": "   "},
    {"objective": "x" * 4001},
    {"objective": 5},
    {"objective": "x", "token_budget": 0},
    {"objective": "x", "token_budget": -3},
    {"objective": "x", "token_budget": True},
    {"objective": "x", "token_budget": 1.5},
    {"objective": "x", "token_budget": 5.0},
    {"objective": "x", "token_budget": "5"},
    {"objective": "x", "token_budget": None},
    {"objective": "x", "status": "paused"},
    {"objective": "x", "goal_id": "mine"},
]


@pytest.mark.parametrize("arguments", BAD, ids=lambda value: str(value)[:40])
async def test_bad_arguments_are_an_error_result_and_no_goal(autojump_clock, arguments):
    async with without_goal(batch(create(**arguments)), spoken("a")) as scene:
        outcome = await scene.run()
        assert outcome.status == "completed"
        [(text, is_error)] = await told(scene)
        assert is_error
        assert text.startswith("invalid arguments")
        assert (await stored_goal(scene), causes(scene)) == (None, [])


# -- moving ------------------------------------------------------------------------------------------------------------


async def test_the_goal_shows_the_tokens_of_the_request_that_completed_it_and_pays_no_other(autojump_clock):
    step = [used(30), 4.0, *batch(update("complete"))]
    goal = goals.GoalPatch(objective="x", token_budget=100)
    async with alone(step, [used(12), say("a"), DONE], goal=goal) as scene:
        await scene.run()
        assert await used_and_status(scene) == (30, "complete")
        [(line, value)] = await answers(scene)
        assert (line, value["goal"]["tokens_used"]) == ("The goal is complete.", 30)
        assert value["has_active_goal"] is False
        report = value["completion_budget_report"]
        assert "30 tokens of a budget of 100" in report
        assert "4 seconds" in report
        assert (await cold(scene.store, scene.id)).goal == await goal_of(scene)


async def test_without_a_budget_and_without_time_there_is_nothing_to_report(autojump_clock):
    async with alone([used(3), *batch(update("complete"))], spoken("a")) as scene:
        await scene.run()
        [(_, value)] = await answers(scene)
        assert value["completion_budget_report"] is None


async def test_with_time_alone_the_report_tells_tokens_and_time(autojump_clock):
    async with alone([used(3), 7.0, *batch(update("complete"))], spoken("a")) as scene:
        await scene.run()
        [(_, value)] = await answers(scene)
        assert "3 tokens, and that it took 7 seconds" in value["completion_budget_report"]


async def test_completing_twice_succeeds_and_stores_nothing_more(autojump_clock):
    both = batch(update("complete", "c1"), update("complete", "c2"))
    goal = goals.GoalPatch(objective="x", token_budget=5)
    async with alone(both, spoken("a"), goal=goal) as scene:
        await scene.run()
        [(_, first), (_, second)] = await answers(scene)
        assert (first["completion_budget_report"] is None, second["completion_budget_report"]) == (False, None)
        assert causes(scene) == [Cause.HOST, Cause.MODEL]


@pytest.mark.parametrize("status", ["blocked", "paused"])
async def test_a_model_stops_its_goal(autojump_clock, status):
    async with alone([used(3), *batch(update(status))], [used(9), say("a"), DONE]) as scene:
        await scene.run()
        assert await used_and_status(scene) == (3, status)
        [(line, value)] = await answers(scene)
        assert (line, value["completion_budget_report"]) == (f"The goal is {status}.", None)


@pytest.mark.parametrize(
    ("status", "holds"), [("paused", "budget_limited"), ("blocked", "budget_limited"), ("complete", "complete")]
)
async def test_the_status_that_holds_is_returned(autojump_clock, status, holds):
    goal = goals.GoalPatch(objective="x", token_budget=5)
    async with alone([used(9), *batch(update(status))], spoken("a"), goal=goal) as scene:
        await scene.run()
        [(line, value)] = await answers(scene)
        assert (line, value["goal"]["status"]) == (f"The goal is {holds}.", holds)
        assert (await goal_of(scene)).status.value == holds


@pytest.mark.parametrize("status", ["active", "usage_limited", "budget_limited", "done", None, 1])
async def test_a_model_can_neither_resume_nor_limit_a_goal(autojump_clock, status):
    async with alone(batch(update(status)), spoken("a")) as scene:
        await patch(scene, status="paused")
        await scene.run()
        [(text, is_error)] = await told(scene)
        assert (is_error, text.startswith("invalid arguments")) == (True, True)
        assert (await goal_of(scene)).status is Status.PAUSED


@pytest.mark.parametrize("more", [{"objective": "y"}, {"token_budget": 5}, {"clear": True}])
async def test_a_model_can_neither_edit_nor_clear_a_goal(autojump_clock, more):
    call = ("c1", "update_goal", json.dumps({"status": "paused", **more}))
    async with alone(batch(call), spoken("a")) as scene:
        before = await goal_of(scene)
        await scene.run()
        assert [is_error for _, is_error in await told(scene)] == [True]
        after = await goal_of(scene)
        assert (after.objective, after.token_budget, after.status) == (before.objective, None, Status.ACTIVE)


async def test_without_a_goal_there_is_nothing_to_move(autojump_clock):
    async with without_goal(batch(update("complete")), spoken("a")) as scene:
        await scene.run()
        assert await told(scene) == [("update_goal: there is no goal", True)]


# -- consent -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["default", "accept_all", "bypass"])
async def test_they_need_no_consent(autojump_clock, mode):
    calls = batch(get("c1"), create("c2", objective="x"), update("paused", "c3"))
    async with without_goal(calls, spoken("a"), policy_mode=mode) as scene:
        await scene.run()
        assert scene.of(events.ApprovalRequested) == []
        assert [is_error for _, is_error in await told(scene)] == [False] * 3


async def test_in_plan_mode_a_goal_is_read_and_nothing_more(autojump_clock):
    calls = batch(get("c1"), create("c2", objective="x"), update("paused", "c3"))
    async with without_goal(calls, spoken("a"), policy_mode="plan") as scene:
        await scene.run()
        outcomes = await told(scene)
        assert [is_error for _, is_error in outcomes] == [False, True, True]
        assert all(text.startswith("policy denied") for text, is_error in outcomes if is_error)
        assert await stored_goal(scene) is None


async def test_denied_tools_are_denied_in_every_mode(autojump_clock):
    calls = batch(get("c1"), create("c2", objective="x"))
    async with without_goal(
        calls, spoken("a"), policy_mode="bypass", denied_tools=("get_goal", "create_goal")
    ) as scene:
        await scene.run()
        assert [text.startswith("policy denied") for text, _ in await told(scene)] == [True, True]
        assert await stored_goal(scene) is None


async def test_hooks_see_them_and_may_rewrite_or_deny(autojump_clock):
    teller = Teller(tool_calling=rt.Rewrite({"objective": "from the hook"}))
    engine = rt.providers.ScriptedEngine([batch(create(objective="x")), spoken("a")])
    async with rt.open_runtime(engines=[engine], hooks=[teller], config=settings(goals=ALONE)) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        await runtime.run_turn(thread_id, "go")
        assert (await runtime.thread_goal_get(thread_id)).objective == "from the hook"
    [(_, name, arguments, output)] = teller.at("tool_called")
    assert (name, arguments["objective"], output.is_error) == ("create_goal", "from the hook", False)


# -- what is stored, and when ------------------------------------------------------------------------------------------


async def test_a_change_is_durable_before_its_result_is_told(autojump_clock):
    gate = Gate(changes_goal)
    async with without_goal(batch(create(objective="x")), spoken("a"), store=gate.store) as scene:
        turn_id = await scene.start()
        await gate.reached.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert (finished(scene), causes(scene)) == ([], [])
        gate.opened.set()
        await scene.wait(turn_id)
        kinds = scene.kinds
        assert kinds.index("goal.updated") < kinds.index("tool.finished")
        assert finished(scene) == [("c1", False)]


@pytest.mark.parametrize("call", [create(objective="x"), update("complete")], ids=["create", "update"])
async def test_a_change_that_can_not_be_stored_is_an_error_result_and_no_change(autojump_clock, call):
    full = rt.StorageError("the disk is full")
    gate = Gate(changes_goal if call[1] == "create_goal" else _completes, error=full)
    gate.opened.set()
    scene_of = without_goal if call[1] == "create_goal" else alone
    async with scene_of(batch(call), spoken("a"), store=gate.store) as scene:
        before = await stored_goal(scene)
        outcome = await scene.run()
        assert outcome.status == "completed"
        [(text, is_error)] = await told(scene)
        assert is_error
        assert "the disk is full" in text
        after = await stored_goal(scene)
        assert (after and after.status, len(causes(scene))) == (before and before.status, 0 if before is None else 1)
        killed = await as_if_killed(gate_store(scene), scene.id)
        assert (await cold(killed, scene.id)).goal == after


def _completes(records: Any) -> bool:
    return any(getattr(record, "event", None).goal.status is Status.COMPLETE for record in records if _updates(record))


def _updates(record: Any) -> bool:
    return isinstance(getattr(record, "event", None), events.GoalUpdated)


def gate_store(scene: Scene) -> Any:
    return scene.runtime._core.services.store.inner


async def test_a_change_of_unknown_outcome_ends_the_turn_and_the_log_says_what_holds(autojump_clock):
    async def lose(number: int, thread_id: str, records: Any) -> None:
        if changes_goal(records):
            raise rt.AppendOutcomeUnknown("the disk went away")

    store = FaultyStore(stores.MemoryThreadStore())
    async with without_goal(batch(create(objective="x")), spoken("a"), store=store) as scene:
        store.after = lose
        outcome = await scene.run()
        store.after = None
        assert (outcome.status, outcome.reason) == ("interrupted", "runtime_restart")
        assert (await goal_of(scene)).objective == "x"
        assert [result.is_error for result in await results_of(scene)] == [True]


async def test_a_goal_that_is_complete_leaves_the_turn_going_for_other_work(autojump_clock):
    steps = [batch(update("complete")), [say("a"), AGAIN, DONE], spoken("b")]
    async with going(*steps) as scene:
        outcome = await scene.run()
        await trio.testing.wait_all_tasks_blocked()
        assert (outcome.text, len(scene.engine.requests)) == ("b", 3)
