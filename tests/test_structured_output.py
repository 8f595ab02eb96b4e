"""A turn whose answer must fit a type: what may be asked for, how it is repaired, and what is kept of it."""

from typing import Any

import attrs
import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, providers, stores, transcript
from roder_trio.schema.inference import ModelDescriptor, OutputRequest
from tests.answer_support import (
    BY_FORMAT,
    BY_TOOL,
    FREE,
    KINDS,
    SCHEMA,
    TEXT_ONLY,
    VALID,
    WRONG,
    Count,
    Look,
    Watches,
    answer,
    asking,
    choices,
    offered,
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
    well_paired,
)

# -- what may be asked for ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value"), KINDS)
async def test_an_engine_with_structured_output_gets_the_schema_and_answers_with_its_text(
    kind: Any, value: Any
) -> None:
    async with asking(text_step(), tools=[Look()]) as scene:
        outcome = await scene.run(output_type=kind)
        assert (outcome.status, outcome.output, outcome.text) == ("completed", value, VALID)
        assert type(outcome.output) is type(value)
        [request] = scene.engine.requests
        assert request.output == OutputRequest(response_format=SCHEMA)
        assert (offered(scene), choices(scene)) == ([["look"]], [FREE])
        assert await scene.history() == [transcript.UserMessage("go"), transcript.AssistantMessage(VALID)]


@pytest.mark.parametrize(("kind", "value"), KINDS)
async def test_an_engine_with_tools_only_is_offered_one_more_that_takes_the_answer(kind: Any, value: Any) -> None:
    async with asking(answer(), tools=[Look()], capabilities=BY_TOOL) as scene:
        outcome = await scene.run(output_type=kind)
        assert (outcome.status, outcome.output, outcome.text) == ("completed", value, VALID)
        assert type(outcome.output) is type(value)
        [request] = scene.engine.requests
        assert request.output == OutputRequest()
        assert (offered(scene), choices(scene)) == ([["look", "final_answer"]], [FREE])
        assert request.tools[1].parameters == SCHEMA
        assert await scene.history() == [
            transcript.UserMessage("go"),
            transcript.ToolCall("f1", "final_answer", VALID),
            transcript.ToolResult("f1", "final_answer", "accepted"),
        ]


@pytest.mark.parametrize("kind", [int, "Count", Count(1), {"type": "array"}, {}, {"type": "object", "required": 3}])
async def test_a_type_without_a_schema_is_refused_before_anything_happens(kind: Any) -> None:
    async with asking(text_step()) as scene:
        before = await scene.snapshot()
        with pytest.raises(TypeError):
            await scene.run(output_type=kind)
        assert (await scene.snapshot(), scene.seen) == (before, [])
        assert (await scene.run(output_type=Count)).output == Count(1)


class Named(Look):
    spec = attrs.evolve(Look.spec, name="final_answer")


@pytest.mark.parametrize(("capabilities", "tools"), [(TEXT_ONLY, []), (BY_TOOL, [Named()])])
async def test_an_engine_that_can_give_no_structured_answer_refuses_the_turn(
    capabilities: rt.InferenceCapabilities, tools: list[rt.Tool]
) -> None:
    async with asking(text_step(), capabilities=capabilities, tools=tools) as scene:
        before = await scene.snapshot()
        with pytest.raises(rt.UnsupportedOption) as refused:
            await scene.run(output_type=Count)
        assert refused.value.name == "output_type"
        assert (await scene.snapshot(), scene.seen) == (before, [])
        assert (await scene.run()).status == "completed"


async def test_an_engine_that_takes_a_format_needs_no_tools_and_leaves_a_hosts_tool_its_name() -> None:
    structured_text = attrs.evolve(TEXT_ONLY, structured_output=True)
    async with asking(text_step(), capabilities=structured_text) as scene:
        assert (await scene.run(output_type=Count)).output == Count(1)
    async with asking(answer("c1", "{}"), text_step(), tools=[Named()]) as scene:
        assert (await scene.run(output_type=Count)).output == Count(1)
        assert results(await scene.history()) == {"c1": ("seen", False)}


@pytest.mark.parametrize(
    ("supports", "by_format"), [({"tools"}, False), ({"tools", "structured"}, True), (frozenset(), True)]
)
async def test_the_row_of_a_model_may_say_that_it_takes_no_format(supports: set[str], by_format: bool) -> None:
    row = ModelDescriptor(provider="scripted", id="m", supports=frozenset(supports))
    async with asking(text_step() if by_format else answer(), models=[row]) as scene:
        assert (await scene.run(output_type=Count)).output == Count(1)
        [request] = scene.engine.requests
        assert (request.output.response_format is not None) == by_format
    engine_of_text = attrs.evolve(TEXT_ONLY, structured_output=True)
    async with asking(text_step(), models=[row], capabilities=engine_of_text) as scene:
        if by_format:
            assert (await scene.run(output_type=Count)).output == Count(1)
        else:
            with pytest.raises(rt.UnsupportedOption):
                await scene.run(output_type=Count)


async def test_an_ordinary_turn_gets_neither_a_format_nor_the_tool() -> None:
    async with asking(text_step(VALID), capabilities=BY_TOOL) as scene:
        outcome = await scene.run()
        assert (outcome.text, outcome.output) == (VALID, None)
        assert offered(scene) == [[]]


# -- the table ---------------------------------------------------------------------------------------------------------


Case = tuple[rt.InferenceCapabilities, list[Any], str, Any, int]
CASES: list[Case] = [
    (BY_FORMAT, [text_step()], "completed", Count(1), 0),
    (BY_FORMAT, [text_step(WRONG), text_step()], "completed", Count(1), 1),
    (BY_TOOL, [text_step("Well."), answer()], "completed", Count(1), 0),
    (BY_TOOL, [answer("f1", WRONG), answer("f2")], "completed", Count(1), 1),
    (BY_FORMAT, [text_step(WRONG), text_step("1"), text_step("{}")], "output_invalid", None, 2),
    (BY_TOOL, [answer("f1", WRONG), answer("f2", "1"), answer("f3", "{}")], "output_invalid", None, 2),
]


@pytest.mark.parametrize(("capabilities", "steps", "status", "value", "repaired"), CASES)
async def test_answers_are_repaired_until_one_fits_or_the_last_one_does_not(
    capabilities: rt.InferenceCapabilities, steps: list[Any], status: str, value: Any, repaired: int
) -> None:
    async with asking(*steps, capabilities=capabilities) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.error_kind or outcome.status, outcome.output) == (status, value)
        assert len(scene.engine.requests) == len(steps)
        assert outcome.usage == rt.TokenUsage(10 * len(steps), len(steps), 11 * len(steps))
        history = await scene.history()
        assert well_paired(history)
        assert len(repairs(history)) == repaired
        assert len(scene.ends) == 1
        check_log(await scene.snapshot())


async def test_a_repair_names_every_violation_and_the_failure_those_that_are_left() -> None:
    async with asking(text_step(WRONG), text_step("{}"), output_retries=1) as scene:
        outcome = await scene.run(output_type=Count)
        history = await scene.history()
        assert outcome.error == 'The answer does not fit the output type: $: required: "n" is a required property'
        assert (outcome.status, outcome.text, outcome.finish_reason) == ("failed", "{}", None)
        [repair] = repairs(history)
        assert "$.n: type" in repair
        assert "'m'" in repair
        assert history == [
            transcript.UserMessage("go"),
            transcript.AssistantMessage(WRONG),
            transcript.UserMessage(repair),
            transcript.AssistantMessage("{}"),
            transcript.ErrorNote(outcome.error),
        ]
        assert list(scene.engine.requests[1].transcript) == history[:3]
        assert scene.ends == [events.TurnFailed(outcome.error, "output_invalid", outcome.usage)]


async def test_an_invalid_call_gets_an_error_result_before_the_message_that_asks_again() -> None:
    store = CountingStore()
    async with asking(answer("f1", WRONG), answer("f2"), capabilities=BY_TOOL, store=store) as scene:
        await scene.run(output_type=Count)
        history = await scene.history()
        [repair] = repairs(history)
        assert history[1:4] == [
            transcript.ToolCall("f1", "final_answer", WRONG),
            transcript.ToolResult("f1", "final_answer", "invalid output", is_error=True),
            transcript.UserMessage(repair),
        ]
        assert choices(scene) == [FREE, FREE]
        [step] = [kinds for kinds in store.appended if kinds.count("turn.item_appended") == 3]
        assert "turn.completed" not in step


@pytest.mark.parametrize("step", [answer("f1", WRONG, say("I tried.")), [say("I tried."), *answer("f1", WRONG)]])
async def test_what_a_step_said_beside_its_last_invalid_answer_is_kept(step: list[Any]) -> None:
    async with asking(step, capabilities=BY_TOOL, output_retries=0) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.error_kind, outcome.text) == ("output_invalid", "I tried.")
        assert results(await scene.history()) == {"f1": ("invalid output", True)}
        check_log(await scene.snapshot())


@pytest.mark.parametrize("reason", ["length", "max_tokens", "content_filter", "refusal"])
@pytest.mark.parametrize("capabilities", [BY_FORMAT, BY_TOOL])
async def test_an_answer_that_was_cut_short_is_invalid_even_if_it_fits(
    reason: str, capabilities: rt.InferenceCapabilities
) -> None:
    given = [say(VALID)] if capabilities is BY_FORMAT else call("f1", "final_answer", VALID)
    again = text_step() if capabilities is BY_FORMAT else answer("f2")
    async with asking([*given, inference.Completed(reason)], again, capabilities=capabilities) as scene:
        outcome = await scene.run(output_type=Count)
        assert outcome.output == Count(1)
        [repair] = repairs(await scene.history())
        assert f"not finished: {'length' if reason == 'max_tokens' else reason}" in repair


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_there_are_as_many_repairs_as_the_config_says(retries: int) -> None:
    async with asking(*[text_step("no")] * 5, output_retries=retries) as scene:
        assert (await scene.run(output_type=Count)).error_kind == "output_invalid"
        assert len(scene.engine.requests) == retries + 1


async def test_a_class_of_the_hosts_has_the_last_word() -> None:
    @attrs.frozen
    class Positive:
        n: int = attrs.field(validator=attrs.validators.gt(0))

    async with asking(text_step('{"n": 0}'), text_step('{"n": 2}')) as scene:
        assert (await scene.run(output_type=Positive)).output == Positive(2)
        [repair] = repairs(await scene.history())
        assert "must be > 0" in repair


async def test_only_the_text_that_is_no_commentary_is_the_answer() -> None:
    async with asking([say("I count.", "commentary"), say(VALID, "final_answer"), DONE]) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.output, outcome.text) == (Count(1), VALID)
    async with asking([say(VALID, "commentary"), DONE], text_step()) as scene:
        assert (await scene.run(output_type=Count)).output == Count(1)
        assert len(repairs(await scene.history())) == 1


# -- afterwards --------------------------------------------------------------------------------------------------------


async def test_who_waits_later_gets_the_output_of_every_turn_of_this_process() -> None:
    hook = Watches()
    async with asking(text_step(), text_step("plain"), text_step('{"n": 2}'), hooks=[hook]) as scene:
        first = await scene.run(output_type=Count)
        second = await scene.run()
        third = await scene.run(output_type=SCHEMA)
        assert [first.output, second.output, third.output] == [Count(1), None, {"n": 2}]
        for outcome in (first, second, third):
            assert await scene.wait(outcome.turn_id) == outcome
        await trio.testing.wait_all_tasks_blocked()
    assert hook.outcomes == [first, second, third]


async def test_only_the_transcript_is_stored_so_another_process_has_no_output() -> None:
    store = stores.MemoryThreadStore()
    async with asking([say("Here."), *answer()], capabilities=BY_TOOL, store=store) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.output, outcome.text) == (Count(1), VALID)
    async with rt.open_runtime(engines=[providers.ScriptedEngine()], store=store) as runtime:
        later = await runtime.wait_turn(scene.id, outcome.turn_id)
    assert (later.status, later.output, later.text) == ("completed", None, "Here.")
    assert later.usage == outcome.usage


async def test_a_turn_that_was_started_otherwise_has_no_output() -> None:
    async with asking(text_step(), text_step()) as scene:
        assert (await scene.wait(await scene.start())).output is None
        async with scene.runtime.turn(scene.id, "go") as turn:
            pass
        assert turn.outcome.output is None


async def test_of_many_turns_the_answers_of_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roder_trio.actors._desk.MAX_ENDED", 2)
    async with asking(text_step(), text_step(), text_step()) as scene:
        turns = [(await scene.run(output_type=dict(SCHEMA))).turn_id for _ in range(3)]
        found = [await scene.wait(turn_id) for turn_id in turns]
        assert [outcome.output is not None for outcome in found] == [False, True, True]
        assert [outcome.text for outcome in found] == [VALID] * 3
