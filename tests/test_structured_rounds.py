"""Structured answers among all else that a turn does: limits, retries, ends, steers, further rounds and compaction."""

import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, stores, testing
from roder_trio.logic.output import NOT_THE_END
from roder_trio.providers.scripted import NEVER_ENDS
from roder_trio.schema.inference import OutputRequest
from tests.answer_support import (
    AGAIN,
    BY_FORMAT,
    BY_TOOL,
    FORCED,
    FREE,
    SCHEMA,
    VALID,
    WRONG,
    Count,
    Holds,
    Look,
    answer,
    asking,
    choices,
    repairs,
    results,
    running,
    text_step,
)
from tests.log_laws import check_log
from tests.turn_support import (
    DONE,
    call,
    failure,
    say,
    texts,
    used,
    well_paired,
)

# -- limits, failures and ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "steps"),
    [(BY_FORMAT, [text_step("no")] * 3), (BY_TOOL, [text_step("no"), answer("f1", "no"), answer("f2", "no")])],
)
async def test_rounds_for_the_answer_are_model_calls_like_any_other(
    capabilities: rt.InferenceCapabilities, steps: list[Any]
) -> None:
    async with asking(*steps, capabilities=capabilities, max_model_calls_per_turn=2) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.error_kind, outcome.output) == ("reliability_limit", None)
        assert len(scene.engine.requests) == 2
        assert scene.of(events.LimitReached) == [events.LimitReached("max_model_calls_per_turn", 2)]
        check_log(await scene.snapshot())


@pytest.mark.parametrize("capabilities", [BY_FORMAT, BY_TOOL])
async def test_a_retry_asks_the_same_again(autojump_clock: Any, capabilities: rt.InferenceCapabilities) -> None:
    final = text_step() if capabilities is BY_FORMAT else answer()
    steps = [text_step("no"), [used(10, 1), say("{"), failure()], final]
    async with asking(*steps, capabilities=capabilities) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.output, outcome.usage) == (Count(1), rt.TokenUsage(30, 3, 33))
        _, second, third = scene.engine.requests
        assert attrs.evolve(third, transcript=second.transcript) == second
        assert list(third.transcript) == list(second.transcript)


async def test_each_sampling_request_of_the_turn_has_the_format_and_those_of_other_turns_have_none() -> None:
    steps = [[*call("c1", "look"), DONE], [say("{"), failure()], text_step("no"), text_step(), text_step("plain")]
    async with asking(*steps, tools=[Look()]) as scene:
        assert (await scene.run(output_type=Count)).output == Count(1)
        assert (await scene.run()).output is None
        formats = [request.output.response_format for request in scene.engine.requests]
        assert formats == [SCHEMA, SCHEMA, SCHEMA, SCHEMA, None]


async def test_the_options_of_the_output_go_beside_the_format() -> None:
    async with asking(text_step()) as scene:
        await scene.run(output_type=Count, output=rt.OutputOptions(max_tokens=9, temperature=0.5, top_p=0.1))
        assert scene.engine.requests[0].output == OutputRequest(9, 0.5, 0.1, SCHEMA)


@pytest.mark.parametrize("capabilities", [BY_FORMAT, BY_TOOL])
async def test_a_turn_that_runs_out_of_time_has_no_output(
    autojump_clock: Any, capabilities: rt.InferenceCapabilities
) -> None:
    async with asking([say(VALID), NEVER_ENDS], capabilities=capabilities, turn_deadline=5.0) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.error_kind, outcome.output, outcome.text) == ("deadline_timeout", None, VALID)


async def test_an_answer_whose_step_is_interrupted_before_it_counts_is_not_stored() -> None:
    look = Look(waits=True)
    step = [*call("f1", "final_answer", VALID), *call("c1", "look"), DONE]
    async with asking(step, capabilities=BY_TOOL, tools=[look]) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: scene.run(output_type=Count))
        await look.started.wait()
        [envelope] = [envelope for envelope in scene.seen if envelope.kind == "turn.started"]
        await scene.interrupt(envelope.turn_id)
        outcome = await scene.wait(envelope.turn_id)
        assert (outcome.status, outcome.output) == ("interrupted", None)
        assert results(await scene.history()) == {"c1": ("interrupted", True)}


@pytest.mark.parametrize(("capabilities", "step"), [(BY_FORMAT, text_step()), (BY_TOOL, answer())])
async def test_an_answer_that_can_not_be_stored_is_no_output(
    capabilities: rt.InferenceCapabilities, step: list[Any]
) -> None:
    async def refuse(number: int, thread_id: str, records: Sequence[Any]) -> None:
        if "turn.completed" in [record.kind for record in records]:
            raise rt.StorageError("the disk is full")

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=refuse)
    async with asking(step, capabilities=capabilities, store=store) as scene:
        outcome = await scene.run(output_type=Count)
        assert (outcome.error_kind, outcome.output) == ("storage", None)
        check_log(await scene.snapshot())


# -- steers and further rounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("capabilities", [BY_FORMAT, BY_TOOL])
async def test_a_steer_in_mid_answer_makes_another_step_the_one_that_is_judged(
    capabilities: rt.InferenceCapabilities,
) -> None:
    final = text_step() if capabilities is BY_FORMAT else answer()
    outcomes: list[rt.TurnOutcome] = []
    async with asking([say("no"), NEVER_ENDS], final, capabilities=capabilities, output_retries=0) as scene:
        async with running(scene, outcomes) as turn_id:
            await scene.steer(turn_id)
        assert outcomes[0].output == Count(1)
        assert texts(await scene.history())[:3] == ["go", "no", "and this"]


async def test_a_steer_in_a_forced_round_frees_the_next_one() -> None:
    outcomes: list[rt.TurnOutcome] = []
    steps = [text_step("Well."), [NEVER_ENDS], [*call("c1", "look"), DONE], text_step("So."), answer()]
    async with asking(*steps, capabilities=BY_TOOL, tools=[Look()], output_retries=0) as scene:
        async with running(scene, outcomes) as turn_id:
            await scene.steer(turn_id)
        assert outcomes[0].output == Count(1)
        assert choices(scene) == [FREE, FORCED, FREE, FREE, FORCED]


@pytest.mark.parametrize(
    ("capabilities", "step"), [(BY_FORMAT, text_step("no")), (BY_TOOL, text_step("no")), (BY_TOOL, answer("f1", "no"))]
)
async def test_a_step_that_a_steer_follows_is_not_judged(
    capabilities: rt.InferenceCapabilities, step: list[Any]
) -> None:
    store, outcomes = Holds("usage.recorded"), list[rt.TurnOutcome]()
    final = text_step() if capabilities is BY_FORMAT else answer("f2")
    async with asking(step, final, capabilities=capabilities, store=store, output_retries=0) as scene:
        async with running(scene, outcomes) as turn_id:
            await store.held.wait()
            await scene.steer(turn_id)
            store.go.set()
        assert outcomes[0].output == Count(1)
        history = await scene.history()
        assert repairs(history) == []
        assert choices(scene) == [FREE, FREE]
        assert results(history).get("f1", (NOT_THE_END, True)) == (NOT_THE_END, True)
        assert texts(scene.engine.requests[1].transcript)[-1] == "and this"


@pytest.mark.parametrize(("capabilities", "step"), [(BY_FORMAT, text_step()), (BY_TOOL, answer("f1"))])
async def test_a_steer_that_was_accepted_first_is_answered_after_a_valid_answer(
    capabilities: rt.InferenceCapabilities, step: list[Any]
) -> None:
    store, outcomes, go = Holds("turn.steer_accepted"), list[rt.TurnOutcome](), trio.Event()
    final = text_step('{"n": 2}') if capabilities is BY_FORMAT else answer("f2", '{"n": 2}')
    async with asking([go, *step], final, capabilities=capabilities, store=store) as scene:
        async with running(scene, outcomes) as turn_id, trio.open_nursery() as nursery:
            nursery.start_soon(scene.steer, turn_id)
            await store.held.wait()
            go.set()
            await trio.testing.wait_all_tasks_blocked()
            store.go.set()
        assert (outcomes[0].output, outcomes[0].text) == (Count(2), '{"n": 2}')
        history = await scene.history()
        assert texts(scene.engine.requests[1].transcript)[-1] == "and this"
        assert well_paired(history)


async def test_a_steer_during_the_other_calls_of_an_answers_step_is_answered() -> None:
    look, outcomes = Look(waits=True), list[rt.TurnOutcome]()
    step = [*call("f1", "final_answer", VALID), *call("c1", "look"), DONE]
    async with asking(step, answer("f2", '{"n": 2}'), capabilities=BY_TOOL, tools=[look]) as scene:
        async with running(scene, outcomes) as turn_id:
            await scene.steer(turn_id)
            look.go.set()
        assert (outcomes[0].output, outcomes[0].undelivered_steers) == (Count(2), ())
        history = await scene.history()
        assert results(history) == {"c1": ("seen", False), "f1": (NOT_THE_END, True), "f2": ("accepted", False)}
        assert "and this" in texts(scene.engine.requests[1].transcript)
        check_log(await scene.snapshot())


@pytest.mark.parametrize(
    ("capabilities", "step"),
    [
        (BY_FORMAT, text_step("no", AGAIN)),
        (BY_TOOL, text_step("no", AGAIN)),
        (BY_TOOL, answer("f1", VALID, AGAIN)),
        (BY_TOOL, [*call("c1", "look"), *answer("f1", VALID, AGAIN)]),
    ],
)
async def test_a_step_after_which_the_provider_wants_another_is_not_judged(
    capabilities: rt.InferenceCapabilities, step: list[Any]
) -> None:
    final = text_step('{"n": 2}') if capabilities is BY_FORMAT else answer("f2", '{"n": 2}')
    options = {"capabilities": capabilities, "tools": [Look()], "output_retries": 0}
    async with asking(step, final, **options) as scene:
        assert (await scene.run(output_type=Count)).output == Count(2)
        history = await scene.history()
        assert choices(scene) == [FREE, FREE]
        assert results(history).get("f1", (NOT_THE_END, True)) == (NOT_THE_END, True)
        check_log(await scene.snapshot())


COMPACTED = [
    inference.ProviderMetadata({"output": [{"type": "compaction", "id": "c", "encrypted_content": "e"}]}),
    DONE,
]


@pytest.mark.parametrize("capabilities", [BY_FORMAT, BY_TOOL])
async def test_a_native_compaction_meanwhile_gets_no_format_and_no_tool(
    capabilities: rt.InferenceCapabilities,
) -> None:
    long = [used(2_000, 1), say("x" * 8_000), DONE]
    final = text_step() if capabilities is BY_FORMAT else answer()
    options = {"compact": [COMPACTED], "auto_compact_token_limit": 1_000}
    async with asking(long, final, capabilities=capabilities, **options) as scene:
        outcome = await scene.run(output_type=Count)
        assert outcome.output == Count(1)
        [request] = scene.engine.compact_requests
        assert (request.output, request.tools, request.tool_choice) == (OutputRequest(), (), FREE)
        assert choices(scene)[1] == (FREE if capabilities is BY_FORMAT else FORCED)


def expected(script: Sequence[str], retries: int) -> tuple[int, str, list[bool]]:
    """What becomes of an engine with tools only whose steps are these: model calls, status, which were forced."""
    forced, repaired, seen = False, 0, []
    for number, step in enumerate(script, 1):
        seen.append(forced)
        if step == "valid":
            return number, "completed", seen
        if step == "none" and not forced:
            forced = True
            continue
        if repaired == retries:
            return number, "output_invalid", seen
        repaired, forced = repaired + 1, step == "none"
    return len(script) + 1, "reliability_limit", seen


async def test_every_row_of_answers_ends_as_the_rules_say() -> None:
    made = {"valid": VALID, "wrong": WRONG}
    for script in itertools.product(["valid", "wrong", "none"], repeat=3):
        steps = [
            text_step("no") if kind == "none" else answer(f"f{number}", made[kind])
            for number, kind in enumerate(script)
        ]
        limits = {"max_model_calls_per_turn": 3, "output_retries": 1}
        async with asking(*steps, capabilities=BY_TOOL, **limits) as scene:
            outcome = await scene.run(output_type=Count)
            rounds, status, forced = expected(script, retries=1)
            assert (outcome.error_kind or outcome.status) == status, script
            assert [choice == FORCED for choice in choices(scene)] == forced, script
            assert len(scene.engine.requests) == min(rounds, 3)
            check_log(await scene.snapshot())
