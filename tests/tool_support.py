"""What the tests of tools share: tools that note what they do, hooks that answer as told, a thread that has them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

import roder_trio as rt
from roder_trio import events, inference, providers, transcript
from tests.turn_support import DONE, Scene, call, say, settings

OBJECT = {"type": "object", "properties": {}}
ENDING = [say("done"), DONE]
"""The step after a batch."""

Behave = Callable[[rt.ToolContext, dict[str, Any]], Awaitable[Any]]


def object_of(*required: str, **properties: Any) -> dict[str, Any]:
    """A closed schema; a property is given as its schema, or as the name of its type."""
    schemas = {name: {"type": kind} if isinstance(kind, str) else kind for name, kind in properties.items()}
    return {"type": "object", "properties": schemas, "required": list(required), "additionalProperties": False}


class Worker(rt.Tool):
    """A tool that does what it is given to do, notes its runs, and how many of them overlap with others.

    `log` may be shared by several: it gets ("start", id) and ("end", id).
    """

    def __init__(
        self,
        name: str = "look",
        behave: Behave | None = None,
        *,
        parameters: Mapping[str, Any] = OBJECT,
        effects: Iterable[str] | None = ("read",),
        log: list[tuple[str, str]] | None = None,
        **spec: Any,
    ) -> None:
        self.spec = rt.ToolSpec(name=name, description=f"Does {name}.", parameters=parameters, effects=effects, **spec)
        self.behave = behave
        self.log = [] if log is None else log
        self.arguments: list[Any] = []
        self.contexts: list[rt.ToolContext] = []

    @property
    def runs(self) -> int:
        return len(self.contexts)

    async def run(self, context: rt.ToolContext, arguments: Mapping[str, Any]) -> Any:
        self.contexts.append(context)
        self.arguments.append(arguments)
        self.log.append(("start", context.call_id))
        try:
            await trio.lowlevel.checkpoint()
            given = None if self.behave is None else await self.behave(context, dict(arguments))
            return given if given is not None else rt.ToolOutput(f"{context.call_id} of {self.spec.name}")
        finally:
            self.log.append(("end", context.call_id))


def most_at_once(log: Iterable[tuple[str, str]]) -> int:
    """How many runs overlapped at most, by the log of the workers."""
    now = most = 0
    for what, _ in log:
        now += 1 if what == "start" else -1
        most = max(most, now)
    return most


class Teller(rt.Hook):
    """A hook that notes what it is asked, as (point, what); what it answers or does, by point, is given to it."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.told: list[tuple[str, Any]] = []

    def at(self, point: str) -> list[Any]:
        return [what for told, what in self.told if told == point]

    async def _answer(self, point: str, what: Any, *given: Any) -> Any:
        await trio.lowlevel.checkpoint()
        self.told.append((point, what))
        answer = self.answers.get(point)
        if isinstance(answer, Exception):
            raise answer
        return await answer(*given) if callable(answer) else answer

    async def turn_starting(self, thread_id: str, turn_id: str, message: transcript.UserMessage) -> Any:
        return await self._answer("turn_starting", (thread_id, turn_id, message.text), message)

    async def tool_calling(self, context: rt.ToolContext, name: str, arguments: Mapping[str, Any]) -> Any:
        return await self._answer("tool_calling", (context.call_id, name, arguments), context, arguments)

    async def tool_called(
        self, context: rt.ToolContext, name: str, arguments: Mapping[str, Any], output: rt.ToolOutput
    ) -> None:
        await self._answer("tool_called", (context.call_id, name, arguments, output), arguments, output)

    async def compaction_starting(self, event: Any) -> None:
        await self._answer("compaction_starting", event)

    async def compaction_finished(self, event: Any) -> None:
        await self._answer("compaction_finished", event)

    async def turn_ended(self, outcome: rt.TurnOutcome) -> None:
        await self._answer("turn_ended", (outcome.turn_id, outcome.status))


# -- what a guest may do wrong -----------------------------------------------------------------------------------------


async def hang(*given: Any) -> None:
    await trio.sleep_forever()


async def swallow(*given: Any) -> Any:
    """Hang, and take a cancel for nothing."""
    try:
        await trio.sleep_forever()
    except BaseException:
        return rt.ToolOutput("as if nothing had happened")  # noqa: ASYNC104


async def fail_while_cancelled(*given: Any) -> None:
    """Hang, and fail in one task while another is being cancelled: the group holds both."""

    async def stubborn() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("no")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stubborn)
        nursery.start_soon(trio.sleep_forever)


BAD_HOOKS = [
    (ValueError("no"), "ValueError: no"),
    (hang, "it took longer than 10 s"),
    (fail_while_cancelled, "ExceptionGroup"),
    (ValueError("x" * 500), None),
]
"""What a hook may do wrong, and what is told of it."""


def check_hook_failed(scene: Scene, point: str, message: str | None, hook: str = "Teller") -> None:
    (failed,) = scene.of(events.HookFailed)
    assert (failed.hook, failed.point) == (hook, point)
    assert len(failed.message) <= 300
    assert message is None or failed.message.startswith(message)


# -- threads with tools ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def equipped(
    *steps: Any,
    tools: Sequence[rt.Tool] = (),
    hooks: Sequence[rt.Hook] = (),
    policies: Sequence[rt.Policy] = (),
    store: rt.ThreadStore | None = None,
    engine: rt.InferenceEngine | None = None,
    script: Mapping[str, Any] | None = None,
    thread: Mapping[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[Scene]:
    """A runtime with these tools and one thread; `script` goes to the engine, `thread` to `create_thread`."""
    engine = engine or providers.ScriptedEngine(steps, **(script or {}))
    async with rt.open_runtime(
        engines=[engine], tools=tools, hooks=hooks, policies=policies, store=store, config=settings(**config)
    ) as runtime:
        made = await runtime.create_thread(**(thread or {}))
        async with runtime.subscribe_events(thread_id=made.thread_id) as subscription:
            yield Scene(runtime, engine, made.thread_id, subscription)


def batch(*calls: Any, reason: str = "tool_calls") -> list[Any]:
    """A step of calls, each given as an id, or as id, name and arguments."""
    parts = [call(*((one,) if isinstance(one, str) else one)) for one in calls]
    return [*[part for parts_of_one in parts for part in parts_of_one], inference.Completed(reason)]


async def results_of(scene: Scene) -> list[transcript.ToolResult]:
    """The stored results of the thread, in order."""
    return [item for item in await scene.history() if isinstance(item, transcript.ToolResult)]


async def told(scene: Scene) -> list[tuple[str, bool]]:
    """Text and error flag of each stored result, in order."""
    return [(result.result, result.is_error) for result in await results_of(scene)]


async def run_one(scene: Scene, *, status: str = "completed") -> tuple[str, bool]:
    """Run a turn that has one call; return text and error flag of its result."""
    outcome = await scene.run()
    assert outcome.status == status, outcome
    (found,) = await told(scene)
    return found


def tool_events(scene: Scene) -> list[Any]:
    """The published events of calls, hooks and policy, in order."""
    return [envelope.event for envelope in scene.seen if envelope.kind.startswith(("tool.", "policy.", "hook."))]


def finished(scene: Scene) -> list[tuple[str, bool]]:
    """The calls that were told to have ended, in order, and whether as failures."""
    return [attrs.astuple(event) for event in scene.of(events.ToolFinished)]
