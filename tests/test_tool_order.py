"""The schedule of a step's calls, and that their results are stored and sent in call order, whichever ended first."""

import itertools
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import roder_trio as rt
from roder_trio import inference, transcript
from tests.tool_support import ENDING, Teller, Worker, batch, equipped, finished, most_at_once, results_of
from tests.turn_support import CountingStore

Clock = trio.testing.MockClock


def naps(**seconds: float) -> Any:
    """A behaviour: each call takes its time, by its id, else a second; one of a negative time fails after it."""

    async def nap(context: rt.ToolContext, arguments: Any) -> None:
        length = seconds.get(context.call_id, 1.0)
        await trio.sleep(abs(length))
        if length < 0:
            raise ValueError("no")

    return nap


def ids(results: Any) -> list[str]:
    return [result.id for result in results]


async def test_results_are_stored_and_sent_in_call_order_whichever_ended_first(autojump_clock: Clock) -> None:
    store = CountingStore()
    look = Worker(behave=naps(c1=3, c2=-1, c3=2))
    async with equipped(batch("c1", "c2", "c3"), ENDING, tools=[look], store=store) as scene:
        begun = trio.current_time()
        await scene.run()
        assert trio.current_time() - begun == pytest.approx(3.0)
        assert finished(scene) == [("c2", True), ("c3", False), ("c1", False)]
        results = await results_of(scene)
        assert [(result.id, result.is_error) for result in results] == [("c1", False), ("c2", True), ("c3", False)]
        assert list(scene.engine.requests[1].transcript)[-3:] == results
        assert store.appended[-4:-1] == [["turn.item_appended"]] * 3  # one commit each


async def test_a_result_is_stored_as_soon_as_all_before_it_are(autojump_clock: Clock) -> None:
    stored: list[tuple[float, str]] = []
    look = Worker(behave=naps(c1=2, c2=1, c3=3))
    async with equipped(batch("c1", "c2", "c3"), ENDING, tools=[look]) as scene:
        begun = trio.current_time()

        async def watch() -> None:
            async with scene.runtime.subscribe_events(kinds=["turn.item_appended"]) as changes:
                async for envelope in changes:
                    if isinstance(envelope.event.item, transcript.ToolResult):
                        stored.append((trio.current_time() - begun, envelope.event.item.id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.testing.wait_all_tasks_blocked()
            await scene.run()
            nursery.cancel_scope.cancel()
        assert [(pytest.approx(at), id) for at, id in stored] == [(2, "c1"), (2, "c2"), (3, "c3")]


async def test_one_failing_call_cancels_no_other(autojump_clock: Clock) -> None:
    look = Worker(behave=naps(c1=-1, c2=5, c3=-2))
    async with equipped(batch("c1", "c2", "c3"), ENDING, tools=[look]) as scene:
        await scene.run()
        assert [result.is_error for result in await results_of(scene)] == [True, False, True]


async def test_an_exclusive_call_overlaps_no_other(autojump_clock: Clock) -> None:
    log: list[tuple[str, str]] = []
    look = Worker("look", naps(a=2, b=1), log=log)
    change = Worker("change", naps(), log=log, concurrency="exclusive")
    step = batch("a", "b", ("x", "change"), ("y", "change"), "c", "d")
    async with equipped(step, ENDING, tools=[look, change]) as scene:
        await scene.run()
        assert log == [
            ("start", "a"),
            ("start", "b"),
            ("end", "b"),
            ("end", "a"),
            ("start", "x"),
            ("end", "x"),
            ("start", "y"),
            ("end", "y"),
            ("start", "c"),
            ("start", "d"),
            ("end", "c"),
            ("end", "d"),
        ] or log[-2:] == [("end", "d"), ("end", "c")]
        assert ids(await results_of(scene)) == ["a", "b", "x", "y", "c", "d"]


@pytest.mark.parametrize(("limit", "most", "seconds"), [(1, 1, 10), (3, 3, 4), (8, 8, 2), (50, 10, 1)])
async def test_no_more_calls_run_at_once_than_may(limit: int, most: int, seconds: int, autojump_clock: Clock) -> None:
    look = Worker(behave=naps())
    step = batch(*[f"c{number}" for number in range(10)])
    async with equipped(step, ENDING, tools=[look], max_parallel_tools=limit) as scene:
        begun = trio.current_time()
        await scene.run()
        assert most_at_once(look.log) == most
        assert trio.current_time() - begun == pytest.approx(seconds)
        assert [id for what, id in look.log if what == "start"] == [f"c{number}" for number in range(10)]


@pytest.mark.parametrize("by", ["config", "model"])
async def test_without_parallel_calls_every_call_is_exclusive(by: str, autojump_clock: Clock) -> None:
    look = Worker(behave=naps())
    models = [inference.ModelDescriptor(provider="scripted", id="m", supports=frozenset({"tools"}))]
    script = {"models": models} if by == "model" else {}
    config = {"parallel_tool_calls": False} if by == "config" else {}
    async with equipped(batch("c1", "c2", "c3"), ENDING, tools=[look], script=script, **config) as scene:
        await scene.run()
        assert most_at_once(look.log) == 1
        assert scene.engine.requests[0].runtime.parallel_tool_calls == (by == "model")


async def test_a_model_that_supports_parallel_calls_has_them(autojump_clock: Clock) -> None:
    look = Worker(behave=naps())
    models = [inference.ModelDescriptor(provider="scripted", id="m", supports=frozenset({"tools", "parallel"}))]
    async with equipped(batch("c1", "c2"), ENDING, tools=[look], script={"models": models}) as scene:
        await scene.run()
        assert most_at_once(look.log) == 2


async def test_a_refused_call_keeps_its_place(autojump_clock: Clock) -> None:
    look = Worker(behave=naps(c1=2, c3=1))
    async with equipped(batch("c1", ("c2", "absent"), "c3"), ENDING, tools=[look]) as scene:
        await scene.run()
        assert [id for id, _ in finished(scene)] == ["c2", "c3", "c1"]
        assert ids(await results_of(scene)) == ["c1", "c2", "c3"]


async def test_a_call_that_is_still_being_decided_keeps_no_other_from_running(autojump_clock: Clock) -> None:
    async def slow(context: rt.ToolContext, arguments: Any) -> None:
        await trio.sleep(5 if context.call_id == "c1" else 0)

    look = Worker()
    hook = Teller(tool_calling=slow)
    step = batch("c1", "c2")
    async with equipped(step, ENDING, tools=[look], hooks=[hook], max_parallel_tools=1) as scene:
        await scene.run()
        assert [id for what, id in look.log if what == "start"] == ["c2", "c1"]
        assert ids(await results_of(scene)) == ["c1", "c2"]


CALLS = st.lists(st.tuples(st.sampled_from(["look", "change", "absent"]), st.integers(-5, 5)), min_size=1, max_size=7)


@given(CALLS, st.integers(1, 4), st.booleans())
@settings(max_examples=25)
def test_whatever_the_calls_take_every_one_has_its_result_in_order(
    calls: list[tuple[str, int]], limit: int, parallel: bool
) -> None:
    async def check() -> None:
        log: list[tuple[str, str]] = []
        seconds = {f"c{number}": length for number, (_, length) in enumerate(calls)}
        look = Worker("look", naps(**seconds), log=log)
        change = Worker("change", naps(**seconds), log=log, concurrency="exclusive")
        step = batch(*[(f"c{number}", name) for number, (name, _) in enumerate(calls)])
        config: dict[str, Any] = {"max_parallel_tools": limit, "parallel_tool_calls": parallel}
        async with equipped(step, ENDING, tools=[look, change], **config) as scene:
            outcome = await scene.run()
            assert outcome.status == "completed"
            results = await results_of(scene)
        assert ids(results) == list(seconds)
        failed = [name == "absent" or length < 0 for name, length in calls]
        assert [result.is_error for result in results] == failed
        assert most_at_once(log) <= (limit if parallel else 1)
        exclusive = {f"c{number}" for number, (name, _) in enumerate(calls) if name == "change" or not parallel}
        for (what, id), (_, following) in itertools.pairwise(log):
            assert what != "start" or id not in exclusive or following == id

    trio.run(check, clock=trio.testing.MockClock(autojump_threshold=0))
