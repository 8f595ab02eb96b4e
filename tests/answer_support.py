"""What the tests of structured answers share: engines of both kinds, steps that answer, and readings of the rounds."""

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypedDict

import attrs
import trio
import trio.testing

import roder_trio as rt
from roder_trio import inference, providers, stores, testing, transcript
from roder_trio.schema.inference import ModelDescriptor, ToolChoice
from tests.turn_support import (
    DONE,
    Scene,
    call,
    say,
    settings,
    started,
    used,
)

AGAIN = inference.ProviderMetadata({"end_turn": False})
FORCED = ToolChoice("specific", "final_answer")
FREE = ToolChoice()
TEXT_ONLY = rt.InferenceCapabilities.text_only()
BY_FORMAT = rt.InferenceCapabilities.agent()
BY_TOOL = attrs.evolve(BY_FORMAT, structured_output=False)
VALID, WRONG = '{"n": 1}', '{"n": "x", "m": 2}'


@attrs.frozen
class Count:
    n: int


@dataclasses.dataclass
class CountData:
    n: int


class CountDict(TypedDict):
    n: int


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
KINDS: list[tuple[Any, Any]] = [
    (Count, Count(1)),
    (CountData, CountData(1)),
    (CountDict, {"n": 1}),
    (SCHEMA, {"n": 1}),
]


def text_step(text: str = VALID, *more: Any) -> list[Any]:
    """A step that says `text`."""
    return [used(10, 1), say(text), *more, DONE]


def answer(id: str = "f1", arguments: str = VALID, *more: Any) -> list[Any]:
    """A step that gives the answer by a call."""
    return [used(10, 1), *call(id, "final_answer", arguments), *more, DONE]


@asynccontextmanager
async def asking(
    *steps: Any,
    capabilities: rt.InferenceCapabilities = BY_FORMAT,
    tools: Sequence[rt.Tool] = (),
    policies: Sequence[rt.Policy] = (),
    hooks: Sequence[rt.Hook] = (),
    store: rt.ThreadStore | None = None,
    compact: Sequence[Any] = (),
    models: Sequence[ModelDescriptor] = (),
    **config: Any,
) -> AsyncIterator[Scene]:
    """One thread of a runtime whose engine has these capabilities, without waits before a retry."""
    config.setdefault("provider_retry_initial_backoff", 0.0)
    engine = providers.ScriptedEngine(steps, capabilities=capabilities, compact=compact, models=models)
    options = {"tools": tools, "policies": policies, "hooks": hooks, "store": store}
    async with rt.open_runtime(engines=[engine], config=settings(**config), **options) as runtime:
        thread = await runtime.create_thread()
        async with runtime.subscribe_events(thread_id=thread.thread_id) as subscription:
            yield Scene(runtime, engine, thread.thread_id, subscription)


def choices(scene: Scene) -> list[ToolChoice]:
    return [request.tool_choice for request in scene.engine.requests]


def offered(scene: Scene) -> list[list[str]]:
    return [[tool.name for tool in request.tools] for request in scene.engine.requests]


def results(history: Sequence[Any]) -> dict[str, tuple[str, bool]]:
    return {item.id: (item.result, item.is_error) for item in history if isinstance(item, transcript.ToolResult)}


def repairs(history: Sequence[Any]) -> list[str]:
    """The messages that began repair rounds."""
    said = [item.text for item in history if isinstance(item, transcript.UserMessage)]
    return [text for text in said if text.startswith("The answer does not fit")]


class Look(rt.Tool):
    """A tool that says when it started and waits until it may end."""

    spec = rt.ToolSpec(name="look", description="Looks.", parameters={"type": "object"}, effects={"read"})

    def __init__(self, *, waits: bool = False, fails: bool = False) -> None:
        self.started = trio.Event()
        self.go = trio.Event()
        self.fails = fails
        if not waits:
            self.go.set()

    async def run(self, context: rt.ToolContext, arguments: Mapping[str, Any]) -> rt.ToolOutput:
        self.started.set()
        await self.go.wait()
        return rt.ToolOutput("seen", is_error=self.fails)


class Watches(rt.Hook):
    """Denies every call, and remembers what it was told."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.outcomes: list[rt.TurnOutcome] = []

    async def tool_calling(self, context: rt.ToolContext, name: str, arguments: Mapping[str, Any]) -> rt.Deny:
        self.called.append(name)
        return rt.Deny("never")

    async def turn_ended(self, outcome: rt.TurnOutcome) -> None:
        self.outcomes.append(outcome)


async def turn_of(scene: Scene) -> str:
    """The id of the turn that just started."""
    await scene.wait_for(lambda scene: "turn.started" in scene.kinds)
    return next(envelope.turn_id for envelope in scene.seen if envelope.kind == "turn.started")


@asynccontextmanager
async def running(scene: Scene, outcomes: list[rt.TurnOutcome]) -> AsyncIterator[str]:
    """A structured turn that runs beside the block; its id. The outcome is there once the block was left."""

    async def run() -> None:
        outcomes.append(await scene.run(output_type=Count))

    async with trio.open_nursery() as nursery:
        await started(nursery, run)
        yield await turn_of(scene)


class Holds(testing.FaultyStore):
    """A memory store that holds the appends with a record of one kind until it is let go."""

    def __init__(self, kind: str) -> None:
        super().__init__(stores.MemoryThreadStore(), before=self._hold)
        self.kind = kind
        self.held = trio.Event()
        self.go = trio.Event()

    async def _hold(self, number: int, thread_id: str, records: Sequence[Any]) -> None:
        if self.kind in [record.kind for record in records]:
            self.held.set()
            await self.go.wait()
