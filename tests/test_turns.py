"""What a turn does when nothing disturbs it: its order, its appends, and what each step leaves in the history."""

from decimal import Decimal
from typing import Any, Self

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, items, providers, transcript
from tests.turn_support import DONE, CountingStore, call, one_thread, say, settings, texts, used, well_paired

AGAIN = inference.ProviderMetadata({"end_turn": False})


def metadata(**payload: Any) -> inference.ProviderMetadata:
    return inference.ProviderMetadata(payload)


# -- the order of a turn -----------------------------------------------------------------------------------------------


async def test_a_turn_of_one_answer_has_three_appends(autojump_clock: trio.testing.MockClock) -> None:
    store = CountingStore()
    async with one_thread([say("hi "), say("there"), used(10, 2), DONE], store=store) as scene:
        outcome = await scene.run("hello")
        assert outcome == rt.TurnOutcome(
            outcome.turn_id, "completed", "hi there", rt.TokenUsage(10, 2, 12), "stop", cost=None
        )
        assert store.appended == [
            ["turn.started", "turn.item_appended"],
            ["usage.recorded"],
            ["turn.item_appended", "turn.completed"],
        ]
        assert await scene.history() == [transcript.UserMessage("hello"), transcript.AssistantMessage("hi there")]


async def test_a_turn_tells_its_events_in_order(autojump_clock: trio.testing.MockClock) -> None:
    step = [say("hi "), say("there"), used(10, 2), inference.Completed("end_turn", "r1")]
    async with one_thread(step) as scene:
        turn_id = await scene.start("hello")
        await scene.wait(turn_id)
        assert scene.kinds == [
            "turn.started",
            "turn.item_appended",
            "item.started",
            "item.completed",
            "inference.started",
            "item.started",
            "item.delta",
            "item.delta",
            "usage.recorded",
            "inference.completed",
            "turn.item_appended",
            "item.completed",
            "turn.completed",
        ]
        assert {envelope.turn_id for envelope in scene.seen} == {turn_id}
        durable = [envelope.seq for envelope in scene.seen if envelope.seq]
        assert durable == [1, 2, 3, 4]
        (begun,) = scene.of(events.InferenceStarted)
        (ended,) = scene.of(events.InferenceCompleted)
        assert (begun.provider, begun.model) == ("scripted", "scripted")
        assert ended == events.InferenceCompleted(begun.attempt_id, "stop", "r1")
        assert scene.engine.calls[0].context.attempt_id == begun.attempt_id
        assert scene.ends == [events.TurnCompleted(rt.TokenUsage(10, 2, 12), "stop")]


async def test_a_turn_without_a_report_has_no_usage_and_costs_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("hi"), DONE]) as scene:
        outcome = await scene.run()
        assert outcome.usage is None
        assert (outcome.cost, outcome.known_cost) == (Decimal(0), Decimal(0))


async def test_a_step_without_text_and_calls_ends_the_turn_with_no_text(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([DONE]) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.text) == ("completed", "")
        assert texts(await scene.history()) == ["go"]


async def test_whoever_sees_the_end_may_start_the_next_turn_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("one"), used(3), DONE], [say("two"), DONE]) as scene:
        async with scene.runtime.turn(scene.id, "go") as turn:
            async for envelope in turn:
                if envelope.kind == "turn.completed":
                    metadata = await scene.runtime.load_metadata(scene.id)
                    assert metadata is not None
                    assert metadata.usage == rt.TokenUsage(3, 0, 3)
                    second = await scene.start("more")
        assert turn.outcome.text == "one"
        assert (await scene.wait(second)).text == "two"


async def test_nothing_after_completed_is_read(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), DONE, say("b"), used(7)]) as scene:
        outcome = await scene.run()
        assert (outcome.text, outcome.usage) == ("a", None)
        assert scene.engine.calls[0].delivered == 2
        assert scene.engine.calls[0].closed == "exhausted"


async def test_a_busy_stream_lets_other_tasks_run(autojump_clock: trio.testing.MockClock) -> None:
    class Burst(providers.ScriptedEngine):
        """Delivers without a checkpoint."""

        def stream_turn(self, context: Any, request: Any) -> Any:
            return _Block([*[say("x")] * 1000, DONE])

    ran = 0

    async def count() -> None:
        nonlocal ran
        while True:
            await trio.lowlevel.checkpoint()
            ran += 1

    async with one_thread(engine=Burst()) as scene, trio.open_nursery() as nursery:
        turn_id = await scene.start()
        nursery.start_soon(count)
        assert len((await scene.wait(turn_id)).text) == 1000
        nursery.cancel_scope.cancel()
    assert ran >= 1000 // 64


class _Block:
    def __init__(self, listed: list[Any]) -> None:
        self._listed = iter(listed)

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> "_Block":
        return self

    async def __anext__(self) -> Any:
        for event in self._listed:
            return event
        raise StopAsyncIteration


# -- the reason and the text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "means"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("max_output_tokens", "length"),
        ("content_filter", "content_filter"),
        ("something new", "something new"),
        (None, None),
    ],
)
async def test_the_finish_reason_is_the_normalised_one_of_the_last_step(
    autojump_clock: trio.testing.MockClock, told: str | None, means: str | None
) -> None:
    steps = ([*call("c1"), inference.Completed("tool_calls")], [say("hi"), inference.Completed(told)])
    async with one_thread(*steps) as scene:
        assert (await scene.run()).finish_reason == means
        assert [event.stop_reason for event in scene.of(events.InferenceCompleted)] == ["tool_use", means]


async def test_the_text_is_the_last_message_of_a_final_phase(autojump_clock: trio.testing.MockClock) -> None:
    step = [say("the answer", "final_answer"), say("by the way", "commentary"), DONE]
    async with one_thread(step, [say("only thinking aloud", "commentary"), DONE]) as scene:
        assert (await scene.run()).text == "the answer"
        assert (await scene.run()).text == ""


# -- another round -----------------------------------------------------------------------------------------------------


async def test_end_turn_false_asks_for_another_round_without_input(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), used(4), AGAIN, DONE], [say("b"), used(5), DONE]) as scene:
        outcome = await scene.run()
        assert (outcome.text, outcome.usage) == ("b", rt.TokenUsage(9, 0, 9))
        assert await scene.history() == [
            transcript.UserMessage("go"),
            transcript.AssistantMessage("a"),
            transcript.AssistantMessage("b"),
        ]
        assert texts(scene.engine.requests[1].transcript) == ["go", "a"]


async def test_end_turn_true_asks_for_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), metadata(end_turn=True), DONE]) as scene:
        assert (await scene.run()).text == "a"
        assert texts(await scene.history()) == ["go", "a"]


async def test_end_turn_false_for_ever_ends_at_the_limit_of_model_calls(autojump_clock: trio.testing.MockClock) -> None:
    steps = [[used(1), AGAIN, DONE]] * 9
    async with one_thread(*steps, config=settings(max_model_calls_per_turn=4)) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "reliability_limit")
        assert outcome.usage == rt.TokenUsage(4, 0, 4)
        assert len(scene.engine.requests) == 4
        assert scene.of(events.LimitReached) == [events.LimitReached("max_model_calls_per_turn", 4)]
        assert len(scene.ends) == 1
        assert (await scene.history())[-1] == transcript.ErrorNote(outcome.error)


async def test_a_call_of_an_unknown_tool_gets_an_error_result_and_another_round(
    autojump_clock: trio.testing.MockClock,
) -> None:
    step = [inference.ReasoningDelta("hm"), *call("c1", "look", '{"a":1}'), *call("c2", "see"), used(3), DONE]
    store = CountingStore()
    async with one_thread(step, [say("fine"), DONE], store=store) as scene:
        assert (await scene.run()).text == "fine"
        history = await scene.history()
        assert history[1:-1] == [
            transcript.ReasoningSummary("hm"),
            transcript.ToolCall("c1", "look", '{"a":1}'),
            transcript.ToolCall("c2", "see", "{}"),
            transcript.ToolResult("c1", "look", "unknown_tool: there is no tool 'look'", is_error=True),
            transcript.ToolResult("c2", "see", "unknown_tool: there is no tool 'see'", is_error=True),
        ]
        assert list(scene.engine.requests[1].transcript) == history[:-1]
        assert well_paired(history)
        assert store.appended[1:] == [
            ["turn.item_appended"],
            ["usage.recorded"],
            ["turn.item_appended"] * 2,
            ["turn.item_appended"],
            ["turn.item_appended"],
            ["turn.item_appended", "turn.completed"],
        ]


async def test_a_call_without_an_id_is_a_protocol_failure(autojump_clock: trio.testing.MockClock) -> None:
    for event in (inference.ToolCallStarted("", "look"), inference.ToolCallCompleted("", "look", "{}")):
        async with one_thread([say("a"), event, DONE]) as scene:
            assert (await scene.run()).error_kind == "protocol"
            assert (await scene.history())[1] == transcript.AssistantMessage("a", interrupted=True)


# -- what a step leaves ------------------------------------------------------------------------------------------------


async def test_each_run_of_text_is_one_item_in_order(autojump_clock: trio.testing.MockClock) -> None:
    step = [
        inference.ReasoningDelta("think"),
        used(1),
        inference.ReasoningDelta("ing"),
        say("", None),
        say("now", "commentary"),
        metadata(a=1),
        say(" this", "commentary"),
        say("the ", None),
        used(2),
        say("ans", ""),
        say("wer", "final_answer"),
        inference.ReasoningDelta("more"),
        *call("c1"),
        say("last"),
        DONE,
    ]
    store = CountingStore()
    async with one_thread(step, [DONE], store=store) as scene:
        await scene.run()
        assert (await scene.history())[1:] == [
            transcript.ReasoningSummary("thinking"),
            transcript.AssistantMessage("now this", "commentary"),
            transcript.AssistantMessage("the answer"),
            transcript.ReasoningSummary("more"),
            transcript.AssistantMessage("last"),
            transcript.ProviderMetadata({"a": 1}),
            transcript.ToolCall("c1", "look", "{}"),
            transcript.ToolResult("c1", "look", "unknown_tool: there is no tool 'look'", is_error=True),
        ]
        at_once = [kinds for kinds in store.appended if kinds == ["turn.item_appended"]]
        assert len(at_once) == 4 + 1  # four runs that the stream moved on from, and the result


async def test_white_space_is_dropped_wherever_a_run_ends(autojump_clock: trio.testing.MockClock) -> None:
    step = [
        say(" \n"),
        inference.ReasoningDelta("\t"),
        say("  ", "commentary"),
        say(" hi "),
        *call("c1"),
        say("\n"),
        DONE,
    ]
    async with one_thread(step, [say(" "), DONE]) as scene:
        outcome = await scene.run()
        assert outcome.text == " hi "
        assert [text for text in texts(await scene.history()) if text.strip() != text] == [" hi "]
        async with scene.runtime.thread_view(scene.id) as view:
            assert items.ItemStatus.IN_PROGRESS not in [item.status for item in view.items]


async def test_metadata_is_held_until_the_step_is_completed(autojump_clock: trio.testing.MockClock) -> None:
    step = [metadata(output=[{"type": "reasoning"}]), say("a"), metadata(end_turn=True, x=1), DONE]
    cut = [metadata(lost=1), say("b"), inference.Failed("no")]
    async with one_thread(step, cut) as scene:
        await scene.run()
        assert (await scene.history())[1:] == [
            transcript.AssistantMessage("a"),
            transcript.ProviderMetadata({"output": [{"type": "reasoning"}]}),
            transcript.ProviderMetadata({"end_turn": True, "x": 1}),
        ]
        await scene.run()
        assert (await scene.history())[5:] == [
            transcript.AssistantMessage("b", interrupted=True),
            transcript.ErrorNote("no"),
        ]


async def test_signals_are_not_stored(autojump_clock: trio.testing.MockClock) -> None:
    notices = [metadata(kind="reliability_retry_attempt", attempt=1), metadata(kind="request_repair")]
    async with one_thread([*notices, metadata(end_turn=True), say("a"), DONE]) as scene:
        await scene.run()
        assert texts(await scene.history()) == ["go", "a"]


async def test_another_model_than_before_leaves_a_note(autojump_clock: trio.testing.MockClock) -> None:
    other = providers.ScriptedEngine([[say("b"), DONE]] * 3, id="other")
    async with one_thread([say("a"), DONE], [say("c"), DONE], engines=[other]) as scene:
        await scene.run()
        await scene.run(provider="other", model="big")
        await scene.run(provider="other", model="big")
        await scene.run()
        notes = [item.payload for item in await scene.history() if isinstance(item, transcript.ProviderMetadata)]
        assert notes == [
            {
                "kind": "model_switch",
                "provider": "other",
                "model": "big",
                "previous_provider": "scripted",
                "previous_model": "scripted",
            },
            {
                "kind": "model_switch",
                "provider": "scripted",
                "model": "scripted",
                "previous_provider": "other",
                "previous_model": "big",
            },
        ]


# -- the request -------------------------------------------------------------------------------------------------------


async def test_what_a_turn_was_asked_for_is_in_each_of_its_requests_and_never_stored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    engine = providers.ScriptedEngine([[AGAIN, DONE], [DONE], [DONE]])
    config = settings(instructions="system", default_service_tier="flex", default_reasoning="low")
    async with rt.open_runtime(engines=[engine], config=config) as runtime:
        thread = await runtime.create_thread(developer_instructions="developer")
        output = rt.OutputOptions(max_tokens=5, temperature=0.5, top_p=0.9)
        asked = {"instructions": "mine", "developer_context": "context", "service_tier": "priority", "output": output}
        await runtime.run_turn(thread.thread_id, "go", reasoning="high", **asked)  # type: ignore[arg-type]
        for request in engine.requests:
            assert request.instructions == inference.Instructions("mine", "developer", "context")
            assert request.reasoning == inference.ReasoningOptions(True, "high")
            assert request.output == inference.OutputRequest(5, 0.5, 0.9)
            assert request.runtime.service_tier == "priority"
            assert request.runtime.prompt_cache_key == thread.thread_id
            assert request.runtime.deadline_remaining is None
        await runtime.run_turn(thread.thread_id, "go")
        assert engine.requests[2].instructions == inference.Instructions("system", "developer", None)
        assert engine.requests[2].reasoning == inference.ReasoningOptions(True, "low")
        assert engine.requests[2].runtime.service_tier == "flex"
        assert engine.requests[2].output == inference.OutputRequest()
        snapshot = await runtime.load_thread(thread.thread_id)
        assert "mine" not in repr(snapshot)
        assert "context" not in repr(snapshot)


async def test_images_go_into_the_history_and_the_request(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([DONE]) as scene:
        outcome = await scene.run("", images=["data:image/png;base64,AA", transcript.Image("https://x/y.png")])
        assert outcome.status == "completed"
        message = transcript.UserMessage(
            "", (transcript.Image("data:image/png;base64,AA"), transcript.Image("https://x/y.png"))
        )
        assert await scene.history() == [message]
        assert list(scene.engine.requests[0].transcript) == [message]
