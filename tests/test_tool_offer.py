"""Which tools a request offers, and that what isn't offered isn't run."""

from typing import Any

import pytest
import trio.testing

import roder_trio as rt
from roder_trio import events
from tests.tool_support import ENDING, OBJECT, Worker, batch, equipped, finished, object_of, run_one, told

Clock = trio.testing.MockClock


def offered(scene: Any, request: int = 0) -> list[str]:
    return [tool.name for tool in scene.engine.requests[request].tools]


async def test_tools_are_offered_in_the_order_of_their_names_in_every_round(autojump_clock: Clock) -> None:
    schema = {"required": ["b"], "additionalProperties": False, "properties": {"b": {"type": "integer"}}}
    tools = [Worker("see"), Worker("look", parameters={**schema, "type": "object"}), Worker("hear")]
    async with equipped(batch(("c1", "see")), ENDING, tools=tools) as scene:
        await scene.run()
        first, second = (request.tools for request in scene.engine.requests)
        assert [tool.name for tool in first] == ["hear", "look", "see"]
        assert list(first[1].parameters) == ["type", "properties", "required", "additionalProperties"]
        assert (first[1].description, first[1].freeform_field) == ("Does look.", None)
        assert first == second


@pytest.mark.parametrize(
    ("config", "thread", "names"),
    [
        ((), (), ["hear", "look", "see"]),
        (("see", "look"), (), ["look", "see"]),
        ((), ("hear",), ["hear"]),
        (("see", "look"), ("look", "hear"), ["look"]),
        (("see",), ("hear",), []),
        (("absent",), (), []),
    ],
)
async def test_two_allowlists_intersect_and_an_empty_one_has_all(
    config: tuple[str, ...], thread: tuple[str, ...], names: list[str], autojump_clock: Clock
) -> None:
    tools = [Worker("see"), Worker("look"), Worker("hear")]
    async with equipped(ENDING, tools=tools, tool_allowlist=config, thread={"tool_allowlist": thread}) as scene:
        await scene.run()
        assert offered(scene) == names


async def test_an_engine_that_takes_no_tools_is_offered_none(autojump_clock: Clock) -> None:
    text_only = {"capabilities": rt.InferenceCapabilities.text_only()}
    async with equipped(ENDING, tools=[Worker()], script=text_only) as scene:
        await scene.run()
        assert offered(scene) == []


@pytest.mark.parametrize("where", ["config", "thread"])
async def test_a_call_outside_an_allowlist_is_refused_and_not_run(where: str, autojump_clock: Clock) -> None:
    look, see = Worker("look"), Worker("see")
    config = {"tool_allowlist": ("see",)} if where == "config" else {}
    thread = {"tool_allowlist": ("see",)} if where == "thread" else {}
    async with equipped(batch("c1"), ENDING, tools=[look, see], thread=thread, **config) as scene:
        text, is_error = await run_one(scene)
        assert (text, is_error) == ("unknown_tool: the tool 'look' is not permitted here; the tools are: see", True)
        assert look.runs == 0
        assert scene.of(events.ToolStarted, events.PolicyDecided) == []
        assert finished(scene) == [("c1", True)]


async def test_a_call_of_a_tool_that_does_not_exist_names_the_closest_permitted_one(autojump_clock: Clock) -> None:
    tools = [Worker("lock"), Worker("look"), Worker("see")]
    async with equipped(batch(("c1", "loook"), ("c2", "zzz")), ENDING, tools=tools, tool_allowlist=("lock",)) as scene:
        await scene.run()
        assert await told(scene) == [
            ("unknown_tool: there is no tool 'loook'; did you mean 'lock'?", True),
            ("unknown_tool: there is no tool 'zzz'; the tools are: lock", True),
        ]
        assert scene.of(events.ToolStarted) == []


async def test_an_allowlist_that_a_thread_gets_later_holds_from_its_next_turn_on(autojump_clock: Clock) -> None:
    look = Worker("look")
    async with equipped(batch("c1"), ENDING, batch("c2"), ENDING, tools=[look, Worker("see")]) as scene:
        await scene.run()
        await scene.runtime.update_thread(scene.id, tool_allowlist=("see",))
        await scene.run()
        assert [offered(scene, number) for number in range(4)] == [["look", "see"]] * 2 + [["see"]] * 2
        assert look.runs == 1
        assert [is_error for _, is_error in await told(scene)] == [False, True]


async def test_two_tools_of_one_name_open_no_runtime() -> None:
    with pytest.raises(rt.DuplicateTool, match="look"):
        async with rt.open_runtime(tools=[Worker("look"), Worker("see"), Worker("look")]):
            pass


async def test_a_schema_that_can_not_be_compiled_opens_no_runtime() -> None:
    broken = Worker("look", parameters={**OBJECT, "properties": {"a": {"type": "integer", "minimum": "low"}}})
    with pytest.raises(rt.ToolDefinitionError, match="look"):
        async with rt.open_runtime(tools=[broken]):
            pass


async def test_a_tool_is_told_for_whom_it_runs(tmp_path: Any) -> None:
    look = Worker("look", parameters=object_of(a="integer"))
    step = batch(("c1", "look", '{"a": 1}'))
    async with equipped(step, ENDING, step, ENDING, tools=[look]) as scene:
        first = (await scene.run()).turn_id
        async with scene.runtime.turn(scene.id, "go", workspace=str(tmp_path)) as turn:
            pass
        bare, placed = look.contexts
        assert (bare.thread_id, bare.turn_id, bare.call_id) == (scene.id, first, "c1")
        assert (bare.workspace, bare.deadline, bare.policy_mode.value) == (None, None, "accept_all")
        assert (placed.turn_id, placed.workspace) == (turn.turn_id, tmp_path)
        assert look.arguments == [{"a": 1}, {"a": 1}]


async def test_a_tool_is_told_the_deadline_of_its_turn(autojump_clock: Clock) -> None:
    look = Worker("look")
    async with equipped(batch("c1"), ENDING, tools=[look], turn_deadline=60.0) as scene:
        begun = trio.current_time()
        await scene.run()
        assert look.contexts[0].deadline == pytest.approx(begun + 60.0)
