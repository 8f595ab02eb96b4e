"""An engine that runs tools inside its stream, by the executor that the runtime gives it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

import roder_trio as rt
from roder_trio import inference, transcript
from roder_trio.ports import InferenceStream


def run(id: str = "c1", name: str = "look", arguments: str = "{}") -> transcript.ToolCall:
    return transcript.ToolCall(id, name, arguments)


class Inside(rt.InferenceEngine):
    """Plays steps of events; a `ToolCall` among them is run in place, a tuple of them side by side.

    A list of calls is begun in the background, a dict of them after so many seconds, and what has not ended is left
    behind by the stream. A `stubborn` engine takes the failures
    of the executor for nothing.
    """

    id = "inside"
    capabilities = rt.InferenceCapabilities.agent()

    def __init__(self, *steps: Any, stubborn: bool = False) -> None:
        self.steps = list(steps)
        self.stubborn = stubborn
        self.requests: list[inference.InferenceRequest] = []
        self.results: list[transcript.ToolResult] = []
        self.errors: list[Exception] = []

    async def list_models(self) -> Any:
        await trio.lowlevel.checkpoint()
        return (inference.ModelDescriptor(provider=self.id, id="m"),)

    @asynccontextmanager
    async def stream_turn(
        self, context: inference.TurnContext, request: inference.InferenceRequest
    ) -> AsyncIterator[InferenceStream]:
        self.requests.append(request)
        async with trio.open_nursery() as nursery:
            yield _Stream(self, context, self.steps.pop(0), nursery)
            nursery.cancel_scope.cancel()

    async def run(self, context: inference.TurnContext, call: transcript.ToolCall) -> None:
        assert context.run_tool is not None
        try:
            self.results.append(await context.run_tool(call))
        except Exception as error:
            self.errors.append(error)
            if not self.stubborn:
                raise


class _Stream:
    def __init__(self, engine: Inside, context: inference.TurnContext, parts: Any, nursery: trio.Nursery) -> None:
        self._engine = engine
        self._context = context
        self._parts = list(parts)
        self._nursery = nursery

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> Any:
        await trio.lowlevel.checkpoint()
        while self._parts:
            match self._parts.pop(0):
                case transcript.ToolCall() as call:
                    await self._engine.run(self._context, call)
                case tuple() as calls:
                    async with trio.open_nursery() as nursery:
                        for call in calls:
                            nursery.start_soon(self._engine.run, self._context, call)
                case list() as calls:
                    for call in calls:
                        self._nursery.start_soon(self._engine.run, self._context, call)
                    await trio.testing.wait_all_tasks_blocked()
                case Exception() as error:
                    raise error
                case dict() as calls:
                    for seconds, call in calls.items():
                        self._nursery.start_soon(self._later, seconds, call)
                case float() as seconds:
                    await trio.sleep(seconds)
                case part if callable(part):
                    part()
                case event:
                    return event
        raise StopAsyncIteration

    async def _later(self, seconds: float, call: transcript.ToolCall) -> None:
        await trio.sleep(seconds)
        await self._engine.run(self._context, call)
