"""What the tests of turns share: short scripts, settings without waits, and readings of what a turn left."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

import roder_trio as rt
from roder_trio import events, inference, items, providers, stores, transcript
from roder_trio.schema.thread import ThreadSnapshot

DONE = inference.Completed("stop")
USAGE = rt.TokenUsage(10, 2, 12)
STILL = rt.GoalConfig(auto_continue=False, model_tools=False)
"""Goals that do nothing by themselves."""


def say(text: str, phase: str | None = None) -> inference.MessageDelta:
    return inference.MessageDelta(text, phase)


def used(prompt: int, completion: int = 0) -> inference.Usage:
    return inference.Usage(rt.TokenUsage(prompt, completion, prompt + completion))


def call(id: str, name: str = "look", arguments: str = "{}") -> list[Any]:
    return [inference.ToolCallStarted(id, name), inference.ToolCallCompleted(id, name, arguments)]


def failure(kind: str = "STREAM_INTERRUPTED", **fields: Any) -> rt.ProviderFailure:
    return rt.ProviderFailure(rt.ProviderFailureKind[kind], f"the engine fails with {kind.lower()}", **fields)


def settings(**values: Any) -> rt.RuntimeConfig:
    """A config: fields of `ReliabilityConfig` and `Deadlines` go where they belong; goals do nothing by themselves."""
    values.setdefault("goals", STILL)
    parts = {}
    for name, kind in (("reliability", rt.ReliabilityConfig), ("deadlines", rt.Deadlines)):
        names = {field.name for field in attrs.fields(kind)}
        parts[name] = kind(**{key: values.pop(key) for key in list(values) if key in names})
    return rt.RuntimeConfig(**parts, **values)


@asynccontextmanager
async def one_thread(
    *steps: Any,
    engine: rt.InferenceEngine | None = None,
    engines: Iterable[rt.InferenceEngine] = (),
    store: rt.ThreadStore | None = None,
    config: rt.RuntimeConfig | None = None,
    **script: Any,
) -> AsyncIterator["Scene"]:
    """A runtime with one thread, and everything that happens on it."""
    engine = engine or providers.ScriptedEngine(steps, **script)
    async with rt.open_runtime(engines=[engine, *engines], store=store, config=config or settings()) as runtime:
        thread = await runtime.create_thread()
        async with runtime.subscribe_events(thread_id=thread.thread_id) as subscription:
            yield Scene(runtime, engine, thread.thread_id, subscription)


class Scene:
    """One thread of an open runtime, seen from outside."""

    def __init__(self, runtime: rt.Runtime, engine: Any, thread_id: str, subscription: Any) -> None:
        self.runtime = runtime
        self.engine = engine
        self.id = thread_id
        self._subscription = subscription
        self._seen: list[rt.EventEnvelope] = []

    @property
    def seen(self) -> list[rt.EventEnvelope]:
        """All that was published so far."""
        while self._subscription.buffered:
            self._seen.append(self._subscription.take())
        return self._seen

    @property
    def happened(self) -> list[Any]:
        """The events of all that was published so far."""
        return [envelope.event for envelope in self.seen]

    @property
    def kinds(self) -> list[str]:
        return [envelope.kind for envelope in self.seen]

    def of(self, *kinds: type) -> list[Any]:
        """The published events of these classes."""
        return [event for event in self.happened if isinstance(event, kinds)]

    @property
    def ends(self) -> list[Any]:
        """All terminal events."""
        return self.of(events.TurnCompleted, events.TurnFailed, events.TurnInterrupted)

    @property
    def resident(self) -> Any:
        """The thread as the directory holds it."""
        return self.runtime._core.directory.get(self.id)

    async def run(self, message: str = "go", **options: Any) -> rt.TurnOutcome:
        return await self.runtime.run_turn(self.id, message, **options)

    async def start(self, message: str = "go", **options: Any) -> str:
        return await self.runtime.start_turn(self.id, message, **options)

    async def steer(self, turn_id: str, text: str = "and this", **options: Any) -> None:
        await self.runtime.steer_turn(self.id, turn_id, text, **options)

    async def interrupt(self, turn_id: str) -> None:
        await self.runtime.interrupt_turn(self.id, turn_id)

    async def wait(self, turn_id: str) -> rt.TurnOutcome:
        return await self.runtime.wait_turn(self.id, turn_id)

    async def snapshot(self) -> ThreadSnapshot:
        snapshot = await self.runtime.load_thread(self.id)
        assert snapshot is not None
        return snapshot

    async def history(self) -> list[Any]:
        """The transcript items of the thread's log, in order."""
        return history_of(await self.snapshot())

    async def wait_for(self, condition: Callable[["Scene"], bool]) -> None:
        """Wait until the published events satisfy `condition`."""
        while not condition(self):
            self._seen.append(await anext(self._subscription))

    async def wait_text(self, text: str) -> None:
        """Wait until `text` was shown."""
        await self.wait_for(lambda scene: text in scene.shown())

    def shown(self) -> str:
        """All message text that was shown, in order."""
        return "".join(shown_texts(self.happened).values())


def history_of(snapshot: ThreadSnapshot) -> list[Any]:
    return [e.event.item for e in snapshot.events if isinstance(e.event, events.TranscriptItemAppended)]


def shown_texts(happened: Iterable[Any]) -> dict[str, str]:
    """The message text that deltas showed, by item id; what was discarded later is left out."""
    shown: dict[str, str] = {}
    for event in happened:
        change = getattr(event, "event", None)
        if isinstance(change, items.ItemDelta) and isinstance(change.delta, items.AgentMessageText):
            shown[change.item_id] = shown.get(change.item_id, "") + change.delta.delta
        elif isinstance(change, items.ItemDiscarded):
            shown.pop(change.item_id, None)
    return shown


def texts(history: Iterable[Any]) -> list[str]:
    """What is said in each item, in short."""
    return [getattr(item, "text", type(item).__name__) for item in history]


def well_paired(history: Iterable[Any]) -> bool:
    """Whether each call has exactly one result, behind it, and each result its call."""
    open_calls: set[str] = set()
    for item in history:
        if isinstance(item, transcript.ToolCall):
            if item.id in open_calls:
                return False
            open_calls.add(item.id)
        elif isinstance(item, transcript.ToolResult):
            if item.id not in open_calls:
                return False
            open_calls.discard(item.id)
    return not open_calls


def folded_usage(snapshot: ThreadSnapshot, turn_id: str | None = None) -> rt.TokenUsage | None:
    """The sum over attempts of each one's last record; None if nothing was recorded."""
    last: dict[str, Any] = {}
    for envelope in snapshot.events:
        event = envelope.event
        if isinstance(event, events.UsageRecorded) and turn_id in (None, event.turn_id):
            known = last.get(event.attempt_id)
            if known is None or known.report < event.report:
                last[event.attempt_id] = event
    total = None
    for event in last.values():
        total = event.usage if total is None else total + event.usage
    return total


class CountingStore(stores.MemoryThreadStore):
    """A memory store that remembers the kinds of each append."""

    def __init__(self) -> None:
        super().__init__()
        self.appended: list[list[str]] = []

    async def append(self, thread_id: str, records: Any) -> None:
        self.appended.append([record.kind for record in records])
        await super().append(thread_id, records)


async def started(nursery: trio.Nursery, function: Callable[[], Any]) -> None:
    """Start `function` and wait until it, and all others, are blocked."""
    nursery.start_soon(function)
    await trio.testing.wait_all_tasks_blocked()
