"""Hooks: what each point is told, what its answers do, and that only `tool_calling` can stop anything."""

from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, providers, stores, transcript
from roder_trio.actors.cost import EndedTurn
from roder_trio.actors.hook import TURN_ENDED_BACKLOG, Hooks
from roder_trio.schema.cost import NO_COST, Cost
from roder_trio.schema.turn import TurnOutcome
from roder_trio.testing import FaultyStore
from tests.tool_support import (
    BAD_HOOKS,
    ENDING,
    Teller,
    Worker,
    batch,
    check_hook_failed,
    equipped,
    hang,
    object_of,
    run_one,
)
from tests.turn_support import DONE, failure, used

Clock = trio.testing.MockClock
NUMBER = object_of("n", n="integer")
ONE = batch(("c1", "look", '{"n": 1}'))


# -- at the start of a turn --------------------------------------------------------------------------------------------


async def test_hooks_add_context_to_every_request_of_the_turn_and_to_no_log(autojump_clock: Clock) -> None:
    hooks = [Teller(turn_starting="it is Monday"), Teller(), Teller(turn_starting=""), Teller(turn_starting="be brief")]
    async with equipped(batch("c1"), ENDING, ENDING, tools=[Worker()], hooks=hooks) as scene:
        turn_id = await scene.start("hello", developer_context="you are at home")
        await scene.wait(turn_id)
        contexts = [request.instructions.developer_context for request in scene.engine.requests]
        assert contexts == ["you are at home\n\nit is Monday\n\nbe brief"] * 2
        assert hooks[1].at("turn_starting") == [(scene.id, turn_id, "hello")]
        assert "Monday" not in str(await scene.snapshot())
        hooks[0].answers.clear()
        hooks[3].answers.clear()
        await scene.run()
        assert scene.engine.requests[2].instructions.developer_context is None


async def test_a_turn_begins_once_all_its_hooks_have_answered(autojump_clock: Clock) -> None:
    order: list[str] = []

    async def slow(message: transcript.UserMessage) -> str:
        await trio.sleep(3)
        order.append(message.text)
        return "context"

    def asked(request: inference.InferenceRequest) -> None:
        order.append("request")

    async with equipped([asked, *ENDING], hooks=[Teller(turn_starting=slow)] * 2) as scene:
        await scene.run("hi")
        assert order == ["hi", "hi", "request"]


@pytest.mark.parametrize(
    ("answer", "message"), [*BAD_HOOKS, (7, "it answered with int"), ({"a": 1}, "it answered with dict")]
)
async def test_a_turn_goes_on_without_a_hook_that_fails_at_its_start(
    answer: Any, message: str, autojump_clock: Clock
) -> None:
    async with equipped(ENDING, hooks=[Teller(turn_starting=answer)]) as scene:
        outcome = await scene.run()
        assert outcome.status == "completed"
        assert scene.engine.requests[0].instructions.developer_context is None
        check_hook_failed(scene, "turn_starting", message)


async def test_a_hook_that_is_no_coroutine_has_failed(autojump_clock: Clock) -> None:
    class Plain(rt.Hook):
        def turn_starting(self, *given: Any) -> Any:  # type: ignore[override]
            return None

    async with equipped(ENDING, hooks=[Plain()]) as scene:
        assert (await scene.run()).status == "completed"
        check_hook_failed(scene, "turn_starting", "TypeError", hook="Plain")


async def test_an_interrupt_ends_a_turn_whose_hooks_still_run(autojump_clock: Clock) -> None:
    async with equipped(ENDING, hooks=[Teller(turn_starting=hang)]) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.usage) == ("interrupted", None)
        assert scene.engine.requests == []
        assert scene.of(events.HookFailed) == []


async def test_the_deadline_covers_hooks(autojump_clock: Clock) -> None:
    async with equipped(ENDING, hooks=[Teller(turn_starting=hang)], turn_deadline=1.0) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "deadline_timeout")


# -- compactions -------------------------------------------------------------------------------------------------------

BOUNDARY = inference.ProviderMetadata({"output": [{"type": "compaction", "id": "b1", "encrypted_content": "x"}]})


@pytest.mark.parametrize(
    ("compaction", "end"),
    [
        ([BOUNDARY, used(5), DONE], "compaction.recorded"),
        (failure("REQUEST_TOO_LARGE"), "compaction.failed"),
    ],
)
@pytest.mark.parametrize("answer", [None, ValueError("no"), hang])
async def test_hooks_are_told_of_a_compaction_and_change_nothing(
    compaction: Any, end: str, answer: Any, autojump_clock: Clock
) -> None:
    hook = Teller(compaction_starting=answer, compaction_finished=answer)
    script = {"compact": [compaction], "requires_native_compaction": True}
    async with equipped(ENDING, hooks=[hook], script=script) as scene:
        await scene.run()
        try:
            await scene.runtime.compact_thread(scene.id)
        except rt.ProviderFailure:
            assert end == "compaction.failed"
        await trio.testing.wait_all_tasks_blocked()
        (started,), (ended,) = hook.at("compaction_starting"), hook.at("compaction_finished")
        assert (started.kind, ended.kind) == ("compaction.started", end)
        assert started.compaction_id == ended.compaction_id
        failed = [event.point for event in scene.of(events.HookFailed)]
        assert failed == ([] if answer is None else ["compaction_starting", "compaction_finished"])


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        (("compaction.started",), []),
        (("compaction.recorded",), ["compaction.started", "compaction.failed"]),
        (("compaction.recorded", "compaction.failed"), ["compaction.started", "compaction.failed"]),
    ],
)
async def test_hooks_are_told_the_end_of_what_began_though_it_can_not_be_stored(
    lost: tuple[str, ...], told: list[str], autojump_clock: Clock
) -> None:
    async def before(number: int, thread_id: str, records: Any) -> None:
        await trio.lowlevel.checkpoint()
        if any(record.kind in lost for record in records):
            raise rt.StorageError("full")

    hook, store = Teller(), FaultyStore(stores.MemoryThreadStore(), before=before)
    async with equipped(hooks=[hook], script={"compact": [[BOUNDARY, used(5), DONE]]}, store=store) as scene:
        await scene.runtime.persist_turn_item(scene.id, "bare", transcript.UserMessage("hello"))
        with pytest.raises(rt.StorageError, match="full"):
            await scene.runtime.compact_thread(scene.id)
    assert [event.kind for point, event in hook.told if point.startswith("compaction")] == told


# -- after a turn ------------------------------------------------------------------------------------------------------


async def test_hooks_are_told_of_each_ended_turn_once_and_in_order(autojump_clock: Clock) -> None:
    hook = Teller()
    steps = [ENDING, failure("AUTHENTICATION"), providers.scripted.NEVER_ENDS]
    async with equipped(*steps, hooks=[hook]) as scene:
        first, second = (await scene.run()).turn_id, (await scene.run()).turn_id
        third = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(third)
        await scene.wait(third)
        await trio.testing.wait_all_tasks_blocked()
        expected = [(first, "completed"), (second, "failed"), (third, "interrupted")]
        assert hook.at("turn_ended") == expected


async def test_a_hook_is_told_of_the_end_after_the_terminal_event(autojump_clock: Clock) -> None:
    ends: list[int] = []

    async def note(*given: Any) -> None:
        ends.append(len(scene.ends))

    async with equipped(ENDING, hooks=[Teller(turn_ended=note)]) as scene:
        await scene.run()
        await trio.testing.wait_all_tasks_blocked()
        assert ends == [1]


async def test_a_turn_is_not_delayed_by_a_hook_that_hangs_at_the_end_of_the_one_before(autojump_clock: Clock) -> None:
    async with equipped(ENDING, ENDING, hooks=[Teller(turn_ended=hang)]) as scene:
        begun = trio.current_time()
        for _ in range(2):
            assert (await scene.run()).status == "completed"
        assert trio.current_time() == begun
        assert scene.of(events.HookFailed) == []
        await scene.wait_for(lambda scene: len(scene.of(events.HookFailed)) == 2)
        assert trio.current_time() == pytest.approx(begun + 20.0)
        assert {attempt.message for attempt in scene.of(events.HookFailed)} == {"it took longer than 10 s"}


@pytest.mark.parametrize(("answer", "message"), BAD_HOOKS)
async def test_a_hook_that_fails_at_the_end_of_a_turn_is_told(answer: Any, message: str, autojump_clock: Clock) -> None:
    async with equipped(ENDING, ENDING, hooks=[Teller(turn_ended=answer)]) as scene:
        await scene.run()
        await scene.wait_for(lambda scene: bool(scene.of(events.HookFailed)))
        check_hook_failed(scene, "turn_ended", message)
        assert (await scene.run()).status == "completed"


async def test_the_exit_waits_for_hooks_that_are_still_to_be_told(autojump_clock: Clock) -> None:
    async def slow(*given: Any) -> None:
        await trio.sleep(2)

    hook = Teller(turn_ended=slow)
    async with equipped(ENDING, ENDING, hooks=[hook]) as scene:
        await scene.run()
        await scene.run()
        begun = trio.current_time()
    assert len(hook.at("turn_ended")) == 2
    assert trio.current_time() - begun == pytest.approx(4.0)
    assert scene.runtime.shutdown_report.overruns == ()


async def test_the_exit_gives_up_on_hooks_that_hang(autojump_clock: Clock) -> None:
    async with equipped(ENDING, hooks=[Teller(turn_ended=hang)], sink_flush_grace=1.0) as scene:
        await scene.run()
        begun = trio.current_time()
    assert trio.current_time() - begun == pytest.approx(1.0)
    assert scene.runtime.shutdown_report.overruns == ("sinks",)


async def free(bills: object) -> Cost:
    return NO_COST


async def test_a_hook_that_missed_an_ended_turn_is_told_so() -> None:
    tell: list[Any] = []
    hooks = Hooks([Teller()], rt.Deadlines(), free)
    for number in range(TURN_ENDED_BACKLOG + 1):
        hooks.turn_ended(EndedTurn(TurnOutcome(f"t{number}", "completed", "", None), ()), tell.append)
    assert tell == [events.HookFailed("hooks", "turn_ended", "too many ended turns wait for their hooks")]


async def test_the_base_class_does_nothing(autojump_clock: Clock) -> None:
    async with equipped(batch("c1"), ENDING, tools=[Worker()], hooks=[rt.Hook()]) as scene:
        assert await run_one(scene) == ("c1 of look", False)
        await trio.testing.wait_all_tasks_blocked()
        assert scene.of(events.HookFailed) == []
