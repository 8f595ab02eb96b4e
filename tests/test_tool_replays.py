"""The ids of calls: what came twice, what came again in this turn or a later one, and that nothing runs twice."""

from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, stores, transcript
from tests.log_laws import check_log
from tests.tool_support import ENDING, Worker, batch, equipped, results_of, told
from tests.turn_support import DONE, say, well_paired

Clock = trio.testing.MockClock


def calls_of(history: Any) -> list[transcript.ToolCall]:
    return [item for item in history if isinstance(item, transcript.ToolCall)]


def kinds(history: Any) -> list[str]:
    return [type(item).__name__ for item in history]


async def test_a_call_without_an_id_fails_the_turn(autojump_clock: Clock) -> None:
    look = Worker()
    step = [inference.ToolCallCompleted("", "look", "{}"), DONE]
    async with equipped([say("so", "commentary"), *step], tools=[look]) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "protocol")
        assert "without an id" in str(outcome.error)
        assert look.runs == 0
        assert calls_of(await scene.history()) == []


async def test_of_two_calls_with_one_id_the_first_counts(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    look = Worker()
    step = batch(("c1", "look", '{"a": 1}'), ("c1", "look", '{"a": 2}'), ("c2", "look", "{}"))
    async with equipped(step, ENDING, tools=[look]) as scene:
        outcome = await scene.run()
        assert outcome.status == "completed"
        assert [call.arguments for call in calls_of(await scene.history())] == ['{"a": 1}', "{}"]
        assert look.arguments == [{"a": 1}, {}]
        assert "c1" in caplog.text


@pytest.mark.parametrize("again", ['{"a": 1, "b": [2]}', '{ "b":[2],"a":1 }'])
async def test_a_call_that_comes_again_in_its_turn_is_dropped_and_forces_a_round(
    again: str, autojump_clock: Clock
) -> None:
    look = Worker()
    steps = [batch(("c1", "look", '{"a": 1, "b": [2]}')), [say("again"), *batch(("c1", "look", again))], ENDING]
    async with equipped(*steps, tools=[look]) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.text) == ("completed", "done")
        assert look.runs == 1
        assert len(scene.engine.requests) == 3
        assert kinds(await scene.history()) == [
            "UserMessage",
            "ToolCall",
            "ToolResult",
            "AssistantMessage",
            "AssistantMessage",
        ]
        check_log(await scene.snapshot())


async def test_a_replay_beside_a_new_call_drops_only_the_replay(autojump_clock: Clock) -> None:
    look = Worker()
    async with equipped(batch("c1"), batch("c1", "c2"), ENDING, tools=[look]) as scene:
        await scene.run()
        assert [context.call_id for context in look.contexts] == ["c1", "c2"]
        assert [call.id for call in calls_of(await scene.history())] == ["c1", "c2"]


async def test_a_replay_in_a_later_step_of_the_turn_is_one_still(autojump_clock: Clock) -> None:
    look = Worker()
    async with equipped(batch("c1"), batch("c2"), batch("c1"), ENDING, tools=[look]) as scene:
        await scene.run()
        assert look.runs == 2


async def test_a_refused_call_that_comes_again_is_a_replay_too(autojump_clock: Clock) -> None:
    async with equipped(batch(("c1", "absent")), batch(("c1", "absent")), ENDING, tools=[Worker()]) as scene:
        assert (await scene.run()).status == "completed"
        assert len(await told(scene)) == 1


@pytest.mark.parametrize(("name", "arguments"), [("look", '{"a": 2}'), ("see", '{"a": 1}'), ("look", '{"a": true}')])
async def test_another_call_under_an_id_of_this_turn_fails_it_before_any_call_of_the_step_runs(
    name: str, arguments: str, autojump_clock: Clock
) -> None:
    look, see = Worker("look"), Worker("see")
    steps = [
        batch(("c1", "look", '{"a": 1}')),
        [inference.ReasoningDelta("hm"), say("more"), *batch("c2", ("c1", name, arguments), "c3")],
    ]
    async with equipped(*steps, tools=[look, see]) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "protocol")
        assert "'c1'" in str(outcome.error)
        assert (look.runs, see.runs) == (1, 0)
        history = await scene.history()
        assert kinds(history)[3:] == ["ReasoningSummary", "AssistantMessage", "ErrorNote"]
        assert outcome.text == "more"
        assert [call.id for call in calls_of(history)] == ["c1"]
        check_log(await scene.snapshot())


async def test_an_id_of_an_earlier_turn_is_a_new_call_under_a_fresh_id(autojump_clock: Clock) -> None:
    look = Worker()
    same = ("c1", "look", '{"a": 1}')
    async with equipped(batch(same), ENDING, batch(same, "c2"), ENDING, tools=[look]) as scene:
        await scene.run()
        await scene.run()
        first, fresh, third = calls_of(await scene.history())
        assert (first.id, third.id) == ("c1", "c2")
        assert fresh.id not in ("c1", "c2", "")
        assert (fresh.name, fresh.arguments) == ("look", '{"a": 1}')
        assert [context.call_id for context in look.contexts] == ["c1", fresh.id, "c2"]
        assert [result.id for result in await results_of(scene)] == ["c1", fresh.id, "c2"]
        sent = scene.engine.requests[3].transcript
        assert [call.id for call in calls_of(sent)] == ["c1", fresh.id, "c2"]
        assert well_paired(sent)
        assert {event.call_id for event in scene.of(events.ToolStarted)} == {"c1", fresh.id, "c2"}


async def test_the_replay_output_of_a_step_has_the_fresh_ids_too(autojump_clock: Clock) -> None:
    def step(*ids: str) -> list[Any]:
        output = [{"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"} for id in ids]
        parts = batch(*ids)
        return [*parts[:-1], inference.ProviderMetadata({"output": output}), parts[-1]]

    async with equipped(step("c1"), ENDING, step("c1", "c2", "c2"), ENDING, tools=[Worker()]) as scene:
        await scene.run()
        await scene.run()
        history = await scene.history()
        _, fresh, _ = calls_of(history)
        metadata = [item for item in history if isinstance(item, transcript.ProviderMetadata)]
        assert [part["call_id"] for part in metadata[1].payload["output"]] == [fresh.id, "c2"]


async def test_the_replay_output_loses_what_was_dropped(autojump_clock: Clock) -> None:
    parts = [{"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"} for id in ("c1", "c1")]
    step = batch("c1", "c1")
    step.insert(-1, inference.ProviderMetadata({"output": parts}))
    async with equipped(step, ENDING, tools=[Worker()]) as scene:
        await scene.run()
        (metadata,) = [item for item in await scene.history() if isinstance(item, transcript.ProviderMetadata)]
        assert metadata.payload["output"] == parts[:1]


async def test_an_id_that_only_a_call_behind_a_boundary_has_is_one_of_an_earlier_turn(autojump_clock: Clock) -> None:
    boundary = inference.ProviderMetadata({"output": [{"type": "compaction", "id": "b1", "encrypted_content": "x"}]})
    script = {"compact": [[boundary, DONE]], "requires_native_compaction": True}
    look = Worker()
    async with equipped(batch("c1"), ENDING, batch("c1"), ENDING, tools=[look], script=script) as scene:
        await scene.run()
        await scene.runtime.compact_thread(scene.id)
        await scene.run()
        first, second = calls_of(await scene.history())
        assert first.id == "c1" != second.id
        assert look.runs == 2


async def test_an_id_of_an_earlier_turn_is_known_after_a_restart(autojump_clock: Clock) -> None:
    store, look = stores.MemoryThreadStore(), Worker()
    async with equipped(batch("c1"), ENDING, tools=[look], store=store) as scene:
        await scene.run()
    engine = rt.providers.ScriptedEngine([batch("c1"), ENDING])
    async with rt.open_runtime(engines=[engine], tools=[look], store=store) as runtime:
        outcome = await runtime.run_turn(scene.id, "go")
        assert outcome.status == "completed"
        snapshot = await runtime.load_thread(scene.id)
    assert snapshot is not None
    ids = [call.id for turn in snapshot.turns for call in calls_of(turn.items)]
    assert len(set(ids)) == len(ids) == 2
    check_log(snapshot)


async def test_the_same_id_in_two_threads_is_two_calls(autojump_clock: Clock) -> None:
    look = Worker()
    async with equipped(batch("c1"), ENDING, batch("c1"), ENDING, tools=[look]) as scene:
        await scene.run()
        other = await scene.runtime.create_thread()
        await scene.runtime.run_turn(other.thread_id, "go")
        assert [(context.thread_id, context.call_id) for context in look.contexts] == [
            (scene.id, "c1"),
            (other.thread_id, "c1"),
        ]
