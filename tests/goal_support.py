"""What the tests of goals that go on share: threads whose goal continues, stores that wait, and readings of turns."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import trio

import roder_trio as rt
from roder_trio import events, goals, stores, transcript
from roder_trio.schema.event import TERMINAL_EVENTS
from roder_trio.testing import FaultyStore
from tests.ledger_support import with_goal
from tests.turn_support import DONE, Scene, say, settings, used

Status = goals.GoalStatus
Cause = goals.GoalCause
BUSY = rt.GoalConfig()
"""Goals that go on by themselves and have their tools: the default."""
SILENT = [DONE]
"""A step that does nothing."""


def going(*steps: Any, goals_config: rt.GoalConfig = BUSY, **more: Any) -> AbstractAsyncContextManager[Scene]:
    """One thread with an active goal that goes on by itself; what `settings` knows goes into its config."""
    goal, store, rest = more.pop("goal", None), more.pop("store", None), {}
    for name in ("engine", "engines", "compact", "capabilities"):
        if name in more:
            rest[name] = more.pop(name)
    config = settings(goals=goals_config, **more)
    return with_goal(*steps, goal=goal, config=config, store=store or stores.MemoryThreadStore(), **rest)


def spoken(text: str, tokens: int = 1) -> list[Any]:
    """A step that says `text` and calls nothing."""
    return [used(tokens), say(text), DONE]


def automatic_turns(scene: Scene) -> list[str]:
    """The ids of the turns that began by themselves, in order."""
    found = [envelope for envelope in scene.seen if isinstance(envelope.event, events.TurnStarted)]
    return [str(envelope.turn_id) for envelope in found if envelope.event.automatic]


def turns_of(scene: Scene) -> list[str]:
    """All turns that began, in order."""
    return [str(envelope.turn_id) for envelope in scene.seen if isinstance(envelope.event, events.TurnStarted)]


async def ended(scene: Scene, count: int) -> list[Any]:
    """Wait until so many turns have ended, and return their ends."""
    await scene.wait_for(lambda scene: len(scene.ends) >= count)
    return scene.ends


def causes(scene: Scene) -> list[goals.GoalCause]:
    """Why the goal was stored each time."""
    return [event.cause for event in scene.of(events.GoalUpdated)]


def notes(scene: Scene) -> list[str]:
    """The developer text of each request, "" for none."""
    return [request.instructions.developer or "" for request in scene.engine.requests]


def asked(scene: Scene) -> list[str]:
    """The last user message of each request."""
    found = []
    for request in scene.engine.requests:
        found.append([item.text for item in request.transcript if isinstance(item, transcript.UserMessage)][-1])
    return found


Wanted = Callable[[Sequence[Any]], bool]


def ends_turn(records: Sequence[Any]) -> bool:
    return any(isinstance(getattr(record, "event", None), TERMINAL_EVENTS) for record in records)


def begins_automatic(records: Sequence[Any]) -> bool:
    started = [record.event for record in records if isinstance(getattr(record, "event", None), events.TurnStarted)]
    return any(event.automatic for event in started)


def changes_goal(records: Sequence[Any]) -> bool:
    return any(
        isinstance(getattr(record, "event", None), events.GoalUpdated | events.GoalCleared) for record in records
    )


@attrs.define
class Gate:
    """Holds the first append that `wanted` picks, until it is opened; it may fail then."""

    wanted: Wanted
    error: Exception | None = None
    reached: trio.Event = attrs.field(factory=trio.Event)
    opened: trio.Event = attrs.field(factory=trio.Event)
    passed: int = 0
    """The appends that `wanted` would have picked too."""

    async def __call__(self, number: int, thread_id: str, records: Sequence[Any]) -> None:
        if not self.wanted(records):
            return
        self.passed += 1
        if self.passed > 1:
            return
        self.reached.set()
        await self.opened.wait()
        if self.error is not None:
            raise self.error

    @property
    def store(self) -> FaultyStore:
        return FaultyStore(stores.MemoryThreadStore(), before=self)


@asynccontextmanager
async def meanwhile(gate: Gate, *acts: Callable[[], Any]) -> AsyncIterator[None]:
    """Let `acts` ask what they ask, in order, while `gate` holds an append; then open it and wait for the answers."""
    await gate.reached.wait()
    async with trio.open_nursery() as nursery:
        for act in acts:
            nursery.start_soon(act)
            await trio.testing.wait_all_tasks_blocked()
        gate.opened.set()
        yield
