"""The victim: one life of a store, which runs its sessions and keeps a diary until it dies or all is done.

Rules of the room: everything runs in a process of its own, whose clock stands still but where a talk turns it.
"""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio
from trio.testing import MockClock

import roder_trio as rt
from roder_trio import ThreadStore, events, items, transcript
from roder_trio.logic.thread.hydration import Hydration
from roder_trio.providers.catalog import Catalog
from roder_trio.stores.postgres import kept as postgres_kept
from roder_trio.stores.sqlite import kept as sqlite_kept
from roder_trio.testing import Crash, FaultyStore
from tests.soak.diary import Diary
from tests.soak.flows import FAMILIES, FLOWS, Relay, Stage
from tests.soak.schedule import TICK, Life, Session
from tests.soak.storage import Points, Storage
from tests.tool_support import OBJECT

Catalog.load()  # once, in the process that victims are forked from

KEPT_AFTER = 7
"""Records after which a store keeps the state of a thread; so few that these short logs have some."""


class Witness(FaultyStore):
    """The store of a life: its appends are announced and confirmed in the diary, and are places of death."""

    def __init__(self, inner: ThreadStore, crash: Crash, diary: Diary, cast: "Cast") -> None:
        super().__init__(inner)
        self._crash = crash
        self._diary = diary
        self._cast = cast

    async def append(self, thread_id: str, records: Sequence[Any]) -> None:
        number = self._diary.announce(thread_id, records, self._cast.billed(thread_id))
        self._crash.reach("before")
        await self.inner.append(thread_id, records)
        self._crash.reach("after")
        self._diary.write("stored", number)
        self._cast.stage.store(thread_id, sum(map(_length, records)))
        if any(map(_is_message, records)):
            self._cast.stage.end(thread_id)

    async def load_state(self, thread_id: str) -> Hydration | None:
        return await self.inner.load_state(thread_id)


def _length(record: Any) -> int:
    match record:
        case items.ThreadItemEvent(checkpoint=True, event=items.ItemDelta(delta=items.AgentMessageText(text))):
            return len(text)
    return 0


def _is_message(record: Any) -> bool:
    match record:
        case rt.EventEnvelope(event=events.TranscriptItemAppended(item=transcript.AssistantMessage())):
            return True
    return False


class Ticks(trio.abc.Instrument):
    """Makes each step of any task a place of death."""

    def __init__(self, crash: Crash) -> None:
        self._crash = crash

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._crash.reach(TICK)


class Look(rt.Tool):
    """A tool that says so when it runs."""

    spec = rt.ToolSpec(name="look", description="Looks.", parameters=OBJECT, effects=("read",))

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    async def run(self, context: rt.ToolContext, arguments: Mapping[str, Any]) -> Any:
        self._diary.write("ran", f"{context.turn_id} {context.call_id}")
        await trio.lowlevel.checkpoint()
        return rt.ToolOutput("nothing there")


class Cast:
    """The engines of a life, by thread."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._engines: dict[str, list[Any]] = {}

    def enter(self, thread_id: str, engine: Any) -> None:
        engine.stage = self.stage
        self._engines.setdefault(thread_id, []).append(engine)

    def billed(self, thread_id: str) -> int:
        """What the engines of a thread have reported in this life."""
        return sum(engine.billed.total_tokens for engine in self._engines.get(thread_id, ()))


@attrs.frozen
class Victim:
    """One life under way: what it may touch, and the threads that are known by their slots."""

    crash: Crash
    life: Life
    storage: Storage
    threads: dict[str, str]
    diary: Diary
    cast: Cast

    async def live(self) -> None:
        """Run all sessions."""
        points = Points(self.crash, self.life.kill)
        for session in self.life.sessions:
            store = Witness(self.storage.dying(points), self.crash, self.diary, self.cast)
            await self._perform(session, store)

    async def _perform(self, session: Session, store: ThreadStore) -> None:
        family = FAMILIES[session.family]
        relays = {engine.id: Relay(engine) for engine in (FLOWS[name].engine() for name in family.flows)}
        tools = [Look(self.diary)]
        opened = rt.open_runtime(engines=list(relays.values()), store=store, tools=tools, config=family.config)
        async with opened as runtime, trio.open_nursery() as nursery:
            for slot, name in session.work:
                nursery.start_soon(self._run_flow, runtime, relays, f"{session.family}/{slot}", name)

    async def _run_flow(self, runtime: rt.Runtime, relays: Mapping[str, Relay], slot: str, name: str) -> None:
        """Run a flow on the thread of a slot, which is made if there is none."""
        engine = FLOWS[name].engine()
        if slot not in self.threads:
            self.diary.write("creating")
            self.threads[slot] = (await runtime.create_thread()).thread_id
            self.diary.write("thread", slot, self.threads[slot])
        thread_id = self.threads[slot]
        self.cast.enter(thread_id, engine)
        relays[engine.id].speakers[thread_id] = engine
        await runtime.update_thread(thread_id, provider=engine.id)
        await FLOWS[name].run(runtime, engine, thread_id)


def run(crash: Crash, storage: Storage, life: Life, threads: dict[str, str], diary: Path) -> None:
    """Live, on the threads that lives before this one made in some slots."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    sqlite_kept.RENEWED_AFTER = postgres_kept.RENEWED_AFTER = KEPT_AFTER
    clock, book = MockClock(), Diary(diary)
    victim = Victim(crash, life, storage, threads, book, Cast(Stage(clock, book)))
    trio.run(victim.live, clock=clock, instruments=[Ticks(crash)])
