"""What the tests of consent share: tools that count their runs, policies that say one thing, and who waits for what."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

import roder_trio as rt
from roder_trio import events, providers, stores, testing, transcript
from roder_trio.schema.policy import PolicyMode
from roder_trio.schema.thread import ThreadSnapshot
from roder_trio.tools import ExternalTool
from tests.turn_support import DONE, Scene, call, history_of, say, settings

OBJECT = {"type": "object", "properties": {}}
DONE_STEP = [say("done"), DONE]
"""The round after a batch."""


class Deed(rt.Tool):
    """A tool that notes its runs, and the policy mode it was told."""

    def __init__(
        self, name: str = "change", effects: Iterable[str] | None = ("write",), concurrency: Any = "parallel"
    ) -> None:
        self.spec = rt.ToolSpec(
            name=name, description=f"Does {name}.", parameters=OBJECT, effects=effects, concurrency=concurrency
        )
        self.runs: list[str] = []
        self.modes: list[PolicyMode] = []

    async def run(self, context: rt.ToolContext, arguments: Mapping[str, Any]) -> rt.ToolOutput:
        self.runs.append(context.call_id)
        self.modes.append(context.policy_mode)
        await trio.lowlevel.checkpoint()
        return rt.ToolOutput(f"{self.spec.name} done")


def external(name: str = "ask_host", effects: Iterable[str] | None = ("read",), **more: Any) -> ExternalTool:
    spec = rt.ToolSpec(name=name, description="The host does it.", parameters=OBJECT, effects=effects)
    return ExternalTool(spec, **more)


class Says(rt.Policy):
    """A policy that always says the same, and notes what it was asked."""

    def __init__(self, decision: str, reason: str = "") -> None:
        self.verdict = rt.Verdict(decision, reason)
        self.asked: list[tuple[str, PolicyMode]] = []

    async def decide(
        self, context: rt.ToolContext, spec: rt.ToolSpec, arguments: Mapping[str, Any]
    ) -> rt.Verdict | None:
        await trio.lowlevel.checkpoint()
        self.asked.append((context.call_id, context.policy_mode))
        return self.verdict


def calling(*calls: tuple[str, str]) -> list[Any]:
    """A step that calls these tools, each given as id and name."""
    return [*[part for id, name in calls for part in call(id, name)], DONE]


CHANGE = calling(("c1", "change"))
"""A step that calls the tool `change` once."""


@asynccontextmanager
async def consenting(
    *steps: Any,
    tools: Sequence[rt.Tool] = (),
    policies: Sequence[rt.Policy] = (),
    hooks: Sequence[rt.Hook] = (),
    store: rt.ThreadStore | None = None,
    **config: Any,
) -> AsyncIterator[Scene]:
    """A runtime in mode `default`, unless `policy_mode` says otherwise, with one thread."""
    config.setdefault("policy_mode", "default")
    engine = providers.ScriptedEngine(steps or [CHANGE, DONE_STEP])
    async with rt.open_runtime(
        engines=[engine], tools=tools, policies=policies, hooks=hooks, store=store, config=settings(**config)
    ) as runtime:
        thread = await runtime.create_thread()
        async with runtime.subscribe_events(thread_id=thread.thread_id) as subscription:
            yield Scene(runtime, engine, thread.thread_id, subscription)


@asynccontextmanager
async def beside(scene: Scene) -> AsyncIterator[Scene]:
    """A second thread of the same runtime."""
    thread = await scene.runtime.create_thread()
    async with scene.runtime.subscribe_events(thread_id=thread.thread_id) as subscription:
        yield Scene(scene.runtime, scene.engine, thread.thread_id, subscription)


# -- who waits for what ------------------------------------------------------------------------------------------------


async def asked(scene: Scene, count: int = 1) -> list[str]:
    """Wait until `count` approvals were requested, and until all is still; return their ids."""
    await scene.wait_for(lambda scene: len(scene.of(events.ApprovalRequested)) >= count)
    await trio.testing.wait_all_tasks_blocked()
    return [event.approval_id for event in scene.of(events.ApprovalRequested)]


async def sent(scene: Scene, count: int = 1) -> list[str]:
    """Wait until the host was asked to run `count` calls, and until all is still; return the ids of the requests."""
    await scene.wait_for(lambda scene: len(scene.of(events.ExternalToolRequested)) >= count)
    await trio.testing.wait_all_tasks_blocked()
    return [event.request_id for event in scene.of(events.ExternalToolRequested)]


async def pending_on(scene: Scene) -> tuple[str, str]:
    """Start a turn whose first call needs consent; return the turn's id and the approval's."""
    turn_id = await scene.start()
    (approval_id,) = await asked(scene)
    return turn_id, approval_id


def outcomes(happened: Iterable[Any]) -> list[str]:
    """How requests were resolved, in the order of their resolutions."""
    kinds = (events.ApprovalResolved, events.ExternalToolResolved)
    return [event.outcome.value for event in happened if isinstance(event, kinds)]


def results(history: Iterable[Any]) -> dict[str, tuple[str, bool]]:
    """Text and error flag of each result, by call id."""
    return {item.id: (item.result, item.is_error) for item in history if isinstance(item, transcript.ToolResult)}


async def results_of(scene: Scene) -> dict[str, tuple[str, bool]]:
    return results(await scene.history())


def check_requests(snapshot: ThreadSnapshot) -> None:
    """Each request has exactly one resolution, behind it and before the end of its turn; each call has its result."""
    waiting: dict[str, str | None] = {}
    for envelope in snapshot.events:
        match envelope.event:
            case events.ApprovalRequested(approval_id=id) | events.ExternalToolRequested(request_id=id):
                assert id not in waiting
                waiting[id] = envelope.turn_id
            case events.ApprovalResolved(approval_id=id) | events.ExternalToolResolved(request_id=id):
                assert waiting.pop(id) == envelope.turn_id
            case events.TurnCompleted() | events.TurnFailed() | events.TurnInterrupted():
                assert envelope.turn_id not in waiting.values()
    assert not waiting
    history = history_of(snapshot)
    assert [item.id for item in history if isinstance(item, transcript.ToolCall)] == list(results(history))


async def settled(scene: Scene) -> ThreadSnapshot:
    """The thread's log, in which nothing may pend."""
    snapshot = await scene.snapshot()
    check_requests(snapshot)
    assert scene.runtime.pending_approvals() == ()
    return snapshot


class HeldStore(testing.FaultyStore):
    """A memory store whose appends of the kind `holds` wait until they are let go; others pass."""

    def __init__(self, inner: rt.ThreadStore | None = None) -> None:
        super().__init__(inner or stores.MemoryThreadStore(), before=self._hold)
        self.holds: str | None = None
        self.held = trio.Event()
        self.go = trio.Event()
        self._fails: Exception | None = None
        """Raised, once, in place of the next append of the kind `_fails_at`."""
        self._fails_at: str | None = None

    async def _hold(self, number: int, thread_id: str, records: Sequence[Any]) -> None:
        await trio.lowlevel.checkpoint()
        kinds = [getattr(record, "kind", "state") for record in records]
        if self._fails_at in kinds and self._fails is not None:
            error, self._fails = self._fails, None
            raise error
        if self.holds in kinds:
            self.held.set()
            await self.go.wait()

    def hold(self, kind: str) -> None:
        self.holds, self.held, self.go = kind, trio.Event(), trio.Event()

    def let_go(self) -> None:
        self.holds = None
        self.go.set()

    def fail_at(self, kind: str) -> None:
        self._fails, self._fails_at = rt.StorageError("the disk is full"), kind
