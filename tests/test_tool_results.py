"""What a tool gives or raises, and what the model, the log and subscribers get of it."""

from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, transcript
from tests.tool_support import ENDING, Worker, batch, equipped, finished, results_of, run_one

Clock = trio.testing.MockClock

# -- what a tool gives -------------------------------------------------------------------------------------------------


class Odd(Exception):
    """An error without a message."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (Odd(), "Odd"),
        (rt.ToolError("ask for a smaller part"), "ask for a smaller part"),
        (ExceptionGroup("both", [ValueError("no"), KeyError("k")]), None),
        (rt.StorageError("its own disk is full"), "StorageError: its own disk is full"),
        (rt.ProviderFailure(rt.ProviderFailureKind.TIMEOUT, "its own model is slow"), None),
        (TimeoutError(), "TimeoutError"),
    ],
)
async def test_what_a_tool_raises_is_an_error_result_and_the_turn_goes_on(
    error: Exception, text: str | None, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*given: Any) -> None:
        raise error

    async with equipped(batch("c1"), ENDING, tools=[Worker("look", fail)]) as scene:
        found, is_error = await run_one(scene)
        assert is_error
        assert text in (None, found)
        assert "Traceback" not in found
        assert "the tool look failed" in caplog.text
        assert finished(scene) == [("c1", True)]


async def test_each_error_of_a_group_is_named(autojump_clock: Clock) -> None:
    async def fail(*given: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(boom, ValueError("no"))
            nursery.start_soon(boom, KeyError("k"))

    async def boom(error: Exception) -> None:
        raise error

    async with equipped(batch("c1"), ENDING, tools=[Worker("look", fail)]) as scene:
        text, is_error = await run_one(scene)
        assert is_error
        assert "ValueError: no" in text
        assert "KeyError" in text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("text", "TypeError: the tool gave str, not ToolOutput"),
        (7, "TypeError: the tool gave int, not ToolOutput"),
        ({}, "TypeError: the tool gave dict, not ToolOutput"),
        (rt.ToolOutput("x", display_payload=object()), None),
        (rt.ToolOutput("x", display_payload={1: 2}), None),
        (rt.ToolOutput("x", display_payload=float("nan")), None),
        (rt.ToolOutput("x", images=("http://x",)), "TypeError: the tool gave images that are not Image"),
    ],
)
async def test_what_is_no_output_is_an_error_result(given: Any, text: str | None, autojump_clock: Clock) -> None:
    async def work(*_: Any) -> Any:
        return given

    async with equipped(batch("c1"), ENDING, tools=[Worker("look", work)]) as scene:
        found, is_error = await run_one(scene)
        assert is_error
        assert found == text or (text is None and "display_payload that is not JSON" in found)


async def test_images_reach_the_model_and_the_payload_only_the_log(autojump_clock: Clock) -> None:
    image, payload = transcript.Image("data:image/png;base64,AA=="), {"rows": [1, 2]}

    async def work(*_: Any) -> rt.ToolOutput:
        return rt.ToolOutput("seen", display_payload=payload, images=(image,))

    async with equipped(batch("c1"), ENDING, tools=[Worker("look", work)]) as scene:
        await scene.run()
        (result,) = await results_of(scene)
        assert result == transcript.ToolResult("c1", "look", "seen", False, payload, (image,))
        assert scene.engine.requests[1].transcript[-1].images == (image,)


async def test_images_fail_no_turn_of_an_engine_that_takes_none(autojump_clock: Clock) -> None:
    image = transcript.Image("data:image/png;base64,AA==")

    async def work(*_: Any) -> rt.ToolOutput:
        return rt.ToolOutput("seen", images=(image,))

    blind = {"capabilities": rt.InferenceCapabilities(streaming=True, tool_calls=True)}
    async with equipped(batch("c1"), ENDING, tools=[Worker("look", work)], script=blind) as scene:
        outcome = await scene.run()
        assert outcome.status == "completed"
        assert (await results_of(scene))[0].images == (image,)


async def test_an_error_that_a_tool_returns_is_a_failure(autojump_clock: Clock) -> None:
    async def work(*_: Any) -> rt.ToolOutput:
        return rt.ToolOutput("nothing there", is_error=True)

    async with equipped(batch("c1"), ENDING, tools=[Worker("look", work)]) as scene:
        assert await run_one(scene) == ("nothing there", True)
        assert finished(scene) == [("c1", True)]


async def test_progress_is_live_only(autojump_clock: Clock) -> None:
    async def work(context: rt.ToolContext, arguments: Any) -> None:
        for part in (1, "two"):
            context.report_progress(part)  # type: ignore[arg-type]

    async with equipped(batch("c1"), ENDING, tools=[Worker("look", work)]) as scene:
        await scene.run()
        assert scene.of(events.ToolProgress) == [events.ToolProgress("c1", "1"), events.ToolProgress("c1", "two")]
        assert "tool.progress" not in [envelope.kind for envelope in (await scene.snapshot()).events]


# -- texts that are too long -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", None),
        ("x" * 20_000, None),
        ("line\n" * 200, None),
        ("line\n" * 201, (201, 1005)),
        ("\N{PARTY POPPER}" * 20_001, (0, 20_001)),
    ],
)
async def test_a_text_that_is_too_long_is_cut_and_its_size_told(
    text: str, size: tuple[int, int] | None, autojump_clock: Clock
) -> None:
    async def work(*_: Any) -> rt.ToolOutput:
        return rt.ToolOutput(text)

    async with equipped(batch("c1"), ENDING, tools=[Worker("look", work)]) as scene:
        found, is_error = await run_one(scene)
        assert not is_error
        assert len(found) <= 20_000
        assert found.count("\n") <= 201
        assert scene.engine.requests[1].transcript[-1].result == found
        told = [] if size is None else [events.ToolOutputTruncated("c1", *size)]
        assert scene.of(events.ToolOutputTruncated) == told
        assert (found == text) == (size is None)
        if size is not None:
            kinds = scene.kinds
            assert kinds.index("tool.output_truncated") == kinds.index("tool.finished") - 1
            assert "left out ...]" in found


async def test_the_text_of_an_error_is_cut_too(autojump_clock: Clock) -> None:
    async def work(*_: Any) -> None:
        raise rt.ToolError("x" * 30_000)

    async with equipped(batch("c1"), ENDING, tools=[Worker("look", work)]) as scene:
        text, is_error = await run_one(scene)
        assert is_error
        assert len(text) <= 20_000
        assert scene.of(events.ToolOutputTruncated) == [events.ToolOutputTruncated("c1", 0, 30_000)]
