"""How long a tool may take, and what becomes of one that takes longer."""

import logging
import threading
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events
from tests.log_laws import check_log
from tests.tool_support import (
    ENDING,
    Teller,
    Worker,
    batch,
    equipped,
    fail_while_cancelled,
    hang,
    run_one,
    swallow,
    told,
)

Clock = trio.testing.MockClock


def tidying(seconds: float) -> Any:
    """A behaviour: hangs, and needs its time when it is cancelled."""

    async def tidy(*given: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)

    return tidy


@pytest.mark.parametrize(
    ("own", "config", "limit"), [(2.0, None, "2"), (None, 3.0, "3"), (0.5, 3.0, "0.5"), (4.0, 1.0, "4")]
)
@pytest.mark.parametrize("behave", [hang, swallow, fail_while_cancelled])
async def test_a_tool_that_takes_too_long_is_an_error_result(
    behave: Any, own: float | None, config: float | None, limit: str, autojump_clock: Clock
) -> None:
    hook = Teller()
    async with equipped(
        batch("c1"), ENDING, tools=[Worker(behave=behave, timeout=own)], hooks=[hook], tool_timeout=config
    ) as scene:
        begun = trio.current_time()
        assert await run_one(scene) == (f"timed out after {limit} s", True)
        assert trio.current_time() - begun == pytest.approx(float(limit))
        ((_, _, _, output),) = hook.at("tool_called")
        assert output == rt.ToolOutput(f"timed out after {limit} s", is_error=True)


async def test_the_time_of_a_tool_covers_its_running_only(autojump_clock: Clock) -> None:
    async def slow(*given: Any) -> None:
        await trio.sleep(3)

    class Thinking(rt.Policy):
        async def decide(self, *given: Any) -> None:
            await trio.sleep(3)

    hook = Teller(tool_calling=slow, tool_called=slow)
    look = Worker(timeout=1.0)
    async with equipped(batch("c1"), ENDING, tools=[look], hooks=[hook], policies=[Thinking()]) as scene:
        assert await run_one(scene) == ("c1 of look", False)


async def test_waiting_for_its_turn_costs_a_tool_no_time(autojump_clock: Clock) -> None:
    async def nap(*given: Any) -> None:
        await trio.sleep(2)

    look = Worker(behave=nap, timeout=3.0, concurrency="exclusive")
    async with equipped(batch("c1", "c2", "c3"), ENDING, tools=[look]) as scene:
        await scene.run()
        assert [is_error for _, is_error in await told(scene)] == [False] * 3


async def test_one_tool_that_takes_too_long_disturbs_no_other(autojump_clock: Clock) -> None:
    async def nap(*given: Any) -> None:
        await trio.sleep(5)

    tools = [Worker("look", hang, timeout=1.0), Worker("see", nap)]
    async with equipped(batch(("c1", "see"), ("c2", "look"), ("c3", "see")), ENDING, tools=tools) as scene:
        await scene.run()
        assert await told(scene) == [("c1 of see", False), ("timed out after 1 s", True), ("c3 of see", False)]


async def test_the_time_that_a_tool_sets_itself_is_its_own(autojump_clock: Clock) -> None:
    async def limited(*given: Any) -> None:
        with trio.fail_after(1):
            await trio.sleep_forever()

    async with equipped(batch("c1"), ENDING, tools=[Worker(behave=limited, timeout=5.0)]) as scene:
        assert await run_one(scene) == ("TooSlowError", True)


@pytest.mark.parametrize(("seconds", "told_by_name"), [(4.0, False), (6.0, True)])
async def test_a_tool_that_tidies_up_for_too_long_is_told_by_name(
    seconds: float, told_by_name: bool, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with equipped(batch("c1"), ENDING, tools=[Worker(behave=tidying(seconds), timeout=1.0)]) as scene:
        assert await run_one(scene) == ("timed out after 1 s", True)
    assert ("the tool look took" in caplog.text) == told_by_name


@pytest.mark.parametrize("cause", ["interrupt", "deadline"])
async def test_a_cut_tool_that_tidies_up_for_too_long_is_told_by_name(
    cause: str, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    deadline = 1.0 if cause == "deadline" else None
    async with equipped(batch("c1"), ENDING, tools=[Worker(behave=tidying(6.0))], turn_deadline=deadline) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        if cause == "interrupt":
            await scene.interrupt(turn_id)
        await scene.wait(turn_id)
        assert await told(scene) == [("interrupted" if cause == "interrupt" else "timed out", True)]
    assert "the tool look took 6.0 s to clean up after it was cancelled" in caplog.text


@pytest.mark.parametrize("behave", [hang, swallow, fail_while_cancelled])
@pytest.mark.parametrize("cause", ["interrupt", "deadline"])
async def test_a_cut_tool_gives_no_result_however_it_ends(behave: Any, cause: str, autojump_clock: Clock) -> None:
    deadline = 1.0 if cause == "deadline" else None
    async with equipped(batch("c1", "c2"), ENDING, tools=[Worker(behave=behave)], turn_deadline=deadline) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        if cause == "interrupt":
            await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        expected = ("interrupted", None) if cause == "interrupt" else ("failed", "deadline_timeout")
        assert (outcome.status, outcome.error_kind) == expected
        assert [is_error for _, is_error in await told(scene)] == [True, True]
        assert scene.of(events.ToolFinished) == []
        check_log(await scene.snapshot())


async def test_a_thread_that_is_blocked_is_left_behind_when_its_time_is_up() -> None:
    release = threading.Event()

    @rt.tool(effects={"read"}, timeout=0.05)
    def block() -> str:
        """Blocks."""
        release.wait(120)
        return "late"

    try:
        async with equipped(batch(("c1", "block")), ENDING, tools=[block]) as scene:
            assert await run_one(scene) == ("timed out after 0.05 s", True)
    finally:
        release.set()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_program_passes(kind: type[BaseException], autojump_clock: Clock) -> None:
    async def leave(*given: Any) -> None:
        raise kind

    with pytest.RaisesGroup(kind, allow_unwrapped=True, flatten_subgroups=True):
        async with equipped(batch("c1"), ENDING, tools=[Worker(behave=leave)]) as scene:
            await scene.run()
