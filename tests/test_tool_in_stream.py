"""Engines that run tools inside their stream: the same pipeline, and a step that ends well paired whatever cut it."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, items, transcript
from tests.consent_support import HeldStore
from tests.injection import Injector, is_any
from tests.inside import Inside, run
from tests.log_laws import check_log
from tests.tool_support import ENDING, Teller, Worker, batch, equipped, hang, object_of, swallow, told, tool_events
from tests.turn_support import DONE, Scene, failure, say, texts, used, well_paired

Clock = trio.testing.MockClock


def kinds(history: Any) -> list[str]:
    return [type(item).__name__ for item in history]


def inside(*steps: Any, tools: Any = (), stubborn: bool = False, **rest: Any) -> Any:
    return equipped(engine=Inside(*steps, stubborn=stubborn), tools=tools or [Worker()], **rest)


# -- the pipeline ------------------------------------------------------------------------------------------------------


async def test_a_call_inside_a_stream_is_stored_with_its_result_where_it_happened(autojump_clock: Clock) -> None:
    step = [inference.ReasoningDelta("hm"), say("Let me look. "), run(), say("Found "), say("it."), used(5), DONE]
    async with inside(step) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.text) == ("completed", "Found it.")
        history = await scene.history()
        assert history[1:] == [
            transcript.ReasoningSummary("hm"),
            transcript.AssistantMessage("Let me look. "),
            transcript.ToolCall("c1", "look", "{}"),
            transcript.ToolResult("c1", "look", "c1 of look"),
            transcript.AssistantMessage("Found it."),
        ]
        assert scene.engine.results == [history[4]]
        assert len(scene.engine.requests) == 1
        assert scene.shown() == "Let me look. Found it."
        assert scene.of(items.ItemDiscarded) == []
        async with scene.runtime.thread_view(scene.id) as view:
            assert items.ItemStatus.IN_PROGRESS not in [item.status for item in view.items]
        check_log(await scene.snapshot())


async def test_a_call_inside_a_stream_passes_every_stage(autojump_clock: Clock) -> None:
    hook, look = Teller(tool_calling=rt.Rewrite({"n": 2})), Worker(parameters=object_of("n", n="integer"))
    async with inside([run(arguments='"{\\"n\\": 1}"'), *ENDING], tools=[look], hooks=[hook]) as scene:
        await scene.run()
        assert look.arguments == [{"n": 2}]
        assert [type(event) for event in tool_events(scene)] == [
            events.ToolCallRepaired,
            events.ToolArgumentsRewritten,
            events.PolicyDecided,
            events.ToolStarted,
            events.ToolFinished,
        ]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (run(name="absent"), "unknown_tool: "),
        (run(arguments="["), "invalid arguments: invalid_json: "),
        (run(name="hide"), "policy denied: "),
    ],
)
async def test_a_refusal_is_the_result_that_the_engine_gets(
    call: transcript.ToolCall, text: str, autojump_clock: Clock
) -> None:
    async with inside([call, *ENDING], tools=[Worker(), Worker("hide")], denied_tools=("hide",)) as scene:
        assert (await scene.run()).status == "completed"
        (result,) = scene.engine.results
        assert result.is_error
        assert result.result.startswith(text)


async def test_calls_inside_a_stream_may_run_side_by_side(autojump_clock: Clock) -> None:
    async def nap(*given: Any) -> None:
        await trio.sleep(1)

    async with inside([(run("c1"), run("c2"), run("c3")), *ENDING], tools=[Worker(behave=nap)]) as scene:
        begun = trio.current_time()
        assert (await scene.run()).status == "completed"
        assert trio.current_time() - begun == pytest.approx(1)
        assert well_paired(await scene.history())
        assert {result.id for result in scene.engine.results} == {"c1", "c2", "c3"}


async def test_a_call_in_the_background_tears_no_text_that_is_just_being_taken(autojump_clock: Clock) -> None:
    store = HeldStore()

    def hold() -> None:
        store.hold("turn.item_appended")

    step = [say("one", "commentary"), hold, {1.0: run()}, say("two"), 2.0, say(" more"), DONE]
    async with inside(step, store=store) as scene:
        turn_id = await scene.start()
        await trio.sleep(2)
        store.let_go()
        assert (await scene.wait(turn_id)).text == "two more"
        history = await scene.history()
        assert kinds(history)[1:] == ["AssistantMessage", "ToolCall", "ToolResult", "AssistantMessage"]
        assert scene.shown() == "onetwo more"
        assert scene.of(items.ItemDiscarded) == []


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stubborn", [True, False])
@pytest.mark.parametrize("last", [[say(" and more"), DONE], [], [ValueError("the engine gives up")]])
async def test_a_limit_of_failures_ends_the_stream_and_the_turn(
    last: Any, stubborn: bool, autojump_clock: Clock
) -> None:
    step = [say("so far"), run("c1", "absent"), say("well"), run("c2", "absent"), *last]
    async with inside(step, stubborn=stubborn, max_tool_failures_per_turn=2) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "reliability_limit")
        assert scene.of(events.LimitReached) == [events.LimitReached("max_tool_failures_per_turn", 2)]
        assert kinds(await scene.history()) == [
            "UserMessage",
            "AssistantMessage",
            "ToolCall",
            "ToolResult",
            "AssistantMessage",
            "ToolCall",
            "ToolResult",
            "ErrorNote",
        ]
        check_log(await scene.snapshot())


async def test_a_row_of_failures_inside_streams_is_nudged_after_the_next_batch(autojump_clock: Clock) -> None:
    steps = [[run("c1", "absent"), run("c2", "absent"), *batch(("c3", "absent"))], ENDING]
    async with inside(*steps, max_consecutive_tool_failures=3) as scene:
        outcome = await scene.run()
        assert outcome.status == "completed"
        assert scene.of(events.LimitReached) == [events.LimitReached("max_consecutive_tool_failures", 3)]
        (nudge,) = [text for text in texts(await scene.history()) if text.startswith("The last 3")]
        assert nudge.count("absent") >= 3


async def test_an_answer_ends_a_turn_whatever_row_of_failures_is_before_it(autojump_clock: Clock) -> None:
    async with inside([run("c1", "absent"), *ENDING], max_consecutive_tool_failures=1) as scene:
        assert (await scene.run()).text == "done"


# -- ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stubborn", [True, False])
@pytest.mark.parametrize(
    "step",
    [
        [run(""), *ENDING],
        [run("c1"), run("c1", "see"), *ENDING],
        [run("c1"), run("c1", "look", '{"a": 1}'), *ENDING],
        [(run("c1"), run("c1")), *ENDING],
    ],
)
async def test_an_id_that_may_not_be_used_fails_the_turn(step: Any, stubborn: bool, autojump_clock: Clock) -> None:
    look = Worker()
    async with inside(step, tools=[look, Worker("see")], stubborn=stubborn) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "protocol")
        assert all(isinstance(error, rt.ProviderFailure) for error in scene.engine.errors)
        assert look.runs <= 1
        assert len(scene.engine.requests) == 1
        check_log(await scene.snapshot())


async def test_a_call_that_comes_again_gets_the_result_it_had(autojump_clock: Clock) -> None:
    look = Worker()
    async with inside([run("c1"), run("c1", arguments=" { } "), *batch("c1")], ENDING, tools=[look]) as scene:
        assert (await scene.run()).text == "done"
        first, second = scene.engine.results
        assert (first, look.runs) == (second, 1)
        assert len(await told(scene)) == 1
        assert len(scene.engine.requests) == 2  # the replay at the step's end forces a round


async def test_an_id_of_an_earlier_turn_is_stored_fresh_and_answered_as_the_engine_knows_it(
    autojump_clock: Clock,
) -> None:
    look = Worker()
    async with inside([run("c1"), *ENDING], [run("c1"), *ENDING], tools=[look]) as scene:
        await scene.run()
        await scene.run()
        assert [result.id for result in scene.engine.results] == ["c1", "c1"]
        stored = [item.id for item in await scene.history() if isinstance(item, transcript.ToolCall)]
        assert len(set(stored)) == 2
        assert look.contexts[1].call_id == stored[1]
        check_log(await scene.snapshot())


# -- what cuts it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behave", [hang, swallow])
async def test_an_interrupt_ends_the_tool_and_its_call_has_a_result(behave: Any, autojump_clock: Clock) -> None:
    async with inside([say("wait"), run(), *ENDING], tools=[Worker(behave=behave)]) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        assert (await scene.wait(turn_id)).status == "interrupted"
        assert await told(scene) == [("interrupted", True)]
        assert scene.engine.results == []
        check_log(await scene.snapshot())


@pytest.mark.parametrize("behave", [hang, swallow])
async def test_a_steer_ends_the_tool_and_follows_its_result(behave: Any, autojump_clock: Clock) -> None:
    async with inside([say("wait"), run(), *ENDING], ENDING, tools=[Worker(behave=behave)]) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        await scene.steer(turn_id, "stop that")
        assert (await scene.wait(turn_id)).status == "completed"
        assert await told(scene) == [("interrupted", True)]
        history = await scene.history()
        assert kinds(history)[1:4] == ["AssistantMessage", "ToolCall", "ToolResult"]
        assert texts(history)[4:] == ["stop that", "done"]
        assert list(scene.engine.requests[1].transcript) == history[:-1]
        check_log(await scene.snapshot())


async def test_the_deadline_ends_the_tool(autojump_clock: Clock) -> None:
    async with inside([run(), *ENDING], tools=[Worker(behave=hang)], turn_deadline=5.0) as scene:
        outcome = await scene.run()
        assert outcome.error_kind == "deadline_timeout"
        assert await told(scene) == [("timed out", True)]


async def test_a_retry_keeps_the_calls_that_ran(autojump_clock: Clock) -> None:
    look = Worker()
    async with inside([run(), say("fou"), failure()], [say("found"), DONE], tools=[look]) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.text) == ("completed", "found")
        assert look.runs == 1
        assert kinds(scene.engine.requests[1].transcript) == ["UserMessage", "ToolCall", "ToolResult"]


async def test_a_failed_stream_leaves_a_result_for_the_call_it_left_open(autojump_clock: Clock) -> None:
    step = [[run()], failure()]
    async with inside(step, ENDING, tools=[Worker(behave=hang)]) as scene:
        assert (await scene.run()).status == "completed"
        assert await told(scene) == [("interrupted", True)]
        assert well_paired(scene.engine.requests[1].transcript)
        check_log(await scene.snapshot())


async def test_a_step_that_ends_leaves_a_result_for_the_call_it_left_open(autojump_clock: Clock) -> None:
    async with inside([[run()], *ENDING], tools=[Worker(behave=hang)]) as scene:
        assert (await scene.run()).text == "done"
        assert kinds(await scene.history()) == ["UserMessage", "ToolCall", "ToolResult", "AssistantMessage"]
        check_log(await scene.snapshot())


@pytest.mark.parametrize("stubborn", [True, False])
@pytest.mark.parametrize(("number", "text"), [(2, None), (3, "not run: storage")])
async def test_what_can_not_be_stored_fails_the_turn_as_storage(
    number: int, text: str | None, stubborn: bool, autojump_clock: Clock
) -> None:
    store = rt.testing.FaultyStore(rt.stores.MemoryThreadStore(), fail={number: rt.StorageError("the disk is full")})
    look = Worker()
    async with inside([run(), *ENDING], tools=[look], store=store, stubborn=stubborn) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "storage")
        assert outcome.error == "the disk is full"
        assert look.runs == (number == 3)
        assert await told(scene) == ([] if text is None else [("c1 of look", False)])
        check_log(await scene.snapshot())


async def sweep(disturb: Callable[[Scene, str], Any], check: Callable[[Scene, Any], None]) -> int:
    """Disturb the flow at its n-th step, for every n; return how many steps there are."""
    number = 0
    while True:
        number += 1
        now = trio.Event()
        look = Worker()
        step = [say("so", "commentary"), run("c1"), say("well"), (run("c2"), run("c3")), say("then"), used(3), DONE]
        async with inside(step, ENDING, tools=[look]) as scene:
            turn_id = await scene.start()

            async def wait(scene: Scene = scene, turn_id: str = turn_id, now: trio.Event = now) -> None:
                await now.wait()
                await disturb(scene, turn_id)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                with Injector(number, now.set, is_any).watching() as injector:
                    outcome = await scene.wait(turn_id)
                nursery.cancel_scope.cancel()
            snapshot = await scene.snapshot()
            check_log(snapshot)
            history = await scene.history()
            assert well_paired(history)
            ran = [context.call_id for context in look.contexts]
            assert len(set(ran)) == len(ran)
            for request in scene.engine.requests:
                assert well_paired(request.transcript)
            check(scene, outcome)
        if not injector.fired:
            return number


async def test_an_interrupt_at_any_step_leaves_every_call_with_its_result(autojump_clock: Clock) -> None:
    def check(scene: Scene, outcome: rt.TurnOutcome) -> None:
        assert outcome.status in ("interrupted", "completed")

    async def disturb(scene: Scene, turn_id: str) -> None:
        await scene.interrupt(turn_id)

    assert await sweep(disturb, check) > 30


async def test_a_steer_at_any_step_leaves_every_call_with_its_result(autojump_clock: Clock) -> None:
    def check(scene: Scene, outcome: rt.TurnOutcome) -> None:
        assert outcome.status == "completed"
        assert len(scene.engine.requests) <= 2

    async def disturb(scene: Scene, turn_id: str) -> None:
        try:
            await scene.steer(turn_id)
        except rt.NoActiveTurn:
            assert len(scene.engine.requests) == 1

    assert await sweep(disturb, check) > 30
