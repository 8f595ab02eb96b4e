"""What the tests of usage, goals and compaction share: boundaries, a thread with a goal, and what a restart reads."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

import roder_trio as rt
from roder_trio import compaction, events, goals, inference, providers, stores, transcript
from roder_trio.logic.estimate import estimate
from roder_trio.providers.scripted import NEVER_ENDS, ScriptedEngine
from roder_trio.schema.thread import ThreadSnapshot
from roder_trio.stores._batch import checked_batch
from tests.turn_support import DONE, Scene, failure, folded_usage, one_thread, settings, used

COMPACTION_EVENTS = (
    events.ContextCompactionStarted,
    events.ContextCompactionRecorded,
    events.ContextCompactionFailed,
    events.ContextCompactionCancelled,
    events.ContextCompactionSkipped,
)


def total(tokens: int) -> rt.TokenUsage:
    return rt.TokenUsage(tokens, 0, tokens)


def item(id: str = "a") -> dict[str, Any]:
    return {"type": "compaction", "id": id, "encrypted_content": f"sealed {id}"}


def boundary(*ids: str) -> inference.ProviderMetadata:
    """A compaction's answer with these items."""
    found = [item(id) for id in ids or ("a",)]
    return inference.ProviderMetadata({"output": found, "compacted_input": found})


def stored_boundary(id: str = "a") -> transcript.ProviderMetadata:
    """What the log holds of `boundary(id)`."""
    return transcript.ProviderMetadata(boundary(id).payload)


@asynccontextmanager
async def with_goal(*steps: Any, goal: goals.GoalPatch | None = None, **more: Any) -> AsyncIterator[Scene]:
    """One thread with an active goal, over a memory store unless another is given."""
    more.setdefault("store", stores.MemoryThreadStore())
    async with one_thread(*steps, **more) as scene:
        scene.store = more["store"]
        await scene.runtime.thread_goal_set(scene.id, goal or goals.GoalPatch(objective="prove it"))
        yield scene


async def goal_of(scene: Scene) -> goals.Goal:
    goal = await scene.runtime.thread_goal_get(scene.id)
    assert goal is not None
    return goal


async def used_and_status(scene: Scene) -> tuple[int, str]:
    goal = await goal_of(scene)
    return goal.tokens_used, goal.status.value


async def patch(scene: Scene, **values: Any) -> goals.Goal | None:
    return await scene.runtime.thread_goal_set(scene.id, goals.GoalPatch(**values))


async def meta(scene: Scene) -> rt.TokenUsage | None:
    metadata = await scene.runtime.load_metadata(scene.id)
    return metadata.usage


async def as_if_killed(store: stores.MemoryThreadStore, thread_id: str) -> stores.MemoryThreadStore:
    """A store that holds of the thread what `store` holds now."""
    held, copied = store._active[thread_id], stores.MemoryThreadStore()
    records = list(held.records)
    await copied.create_thread(held.created)
    await copied.append(thread_id, records)
    return copied


@attrs.frozen
class Cold:
    """What a new runtime reads of a thread."""

    snapshot: ThreadSnapshot
    goal: goals.Goal | None
    usage: rt.TokenUsage | None
    fold: rt.TokenUsage | None


async def cold(store: rt.ThreadStore, thread_id: str) -> Cold:
    """Open a fresh runtime on the store and read a thread."""
    async with rt.open_runtime(engines=[providers.ScriptedEngine()], store=store) as runtime:
        snapshot = await runtime.load_thread(thread_id)
        assert snapshot is not None
        goal = await runtime.thread_goal_get(thread_id)
        totals = runtime._core.accounting.totals(thread_id).thread
        assert snapshot.metadata is not None
        usage = snapshot.metadata.usage
        assert usage == (None if totals.is_empty else totals)
        return Cold(snapshot, goal, usage, folded_usage(snapshot))


def compactions(scene: Scene) -> list[Any]:
    """The published events of compactions, in order."""
    return scene.of(*COMPACTION_EVENTS)


def ends_of(scene: Scene) -> dict[str, list[str]]:
    """The class names of the ends of each compaction that started, by its id."""
    found: dict[str, list[str]] = {}
    for event in compactions(scene):
        if isinstance(event, events.ContextCompactionStarted):
            assert event.compaction_id not in found
            found[event.compaction_id] = []
        elif not isinstance(event, events.ContextCompactionSkipped):
            found[event.compaction_id].append(type(event).__name__.removeprefix("ContextCompaction"))
    return found


def compact_calls(scene: Scene) -> int:
    return len(scene.engine.compact_requests)


HISTORY: tuple[Any, ...] = (
    transcript.UserMessage("preserve original goal"),
    transcript.ToolCall("read-proof", "read_file", '{"path":"proof.txt"}'),
    transcript.ToolResult("read-proof", "read_file", "original tool evidence"),
)
"""What threads that are compacted hold under the bare turn id `bare`; 19 tokens."""
COMPACT_ALWAYS = settings(auto_compact_token_limit=1, provider_retry_max_attempts=2, provider_retry_initial_backoff=0.0)
"""A turn compacts as soon as there is anything; a compaction has two attempts, at once."""


async def persist(scene: Scene, history: tuple[Any, ...] = HISTORY) -> None:
    for entry in history:
        await scene.runtime.persist_turn_item(scene.id, "bare", entry)


async def compact_directly(scene: Scene) -> str | None:
    """Compact the whole log in this task; None if it was, else why it failed."""
    history = await scene.history()
    try:
        outcome = await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", history)
    except rt.ProviderFailure as error:
        return error.kind.value
    except ValueError:
        return "engine_error"
    assert isinstance(outcome, compaction.Compacted)
    assert list(outcome.window) == [(await scene.history())[-1]]
    return None


GO = transcript.UserMessage("go")
AGAIN = inference.ProviderMetadata({"end_turn": False})
COMMIT = [used(30, 10), boundary(), DONE]
"""A compaction that commits a boundary, for 40 tokens."""


def limit(tokens: int, **values: Any) -> rt.RuntimeConfig:
    return settings(auto_compact_token_limit=tokens, **values)


def sealed(tokens: int) -> transcript.ProviderMetadata:
    """A boundary that is estimated at this many tokens."""
    found = item() | {"encrypted_content": "s"}
    missing = tokens - estimate([transcript.ProviderMetadata({"output": [found], "compacted_input": [found]})])
    found |= {"encrypted_content": "s" * (4 * missing + 4)}
    sealed = transcript.ProviderMetadata({"output": [found], "compacted_input": [found]})
    assert estimate([sealed]) == tokens
    return sealed


def skips(scene: Scene) -> list[str]:
    return [event.reason for event in scene.of(events.ContextCompactionSkipped)]


class StuckAtTheDoor(ScriptedEngine):
    """Its first compaction never opens."""

    def compact_turn(self, context: Any, request: Any) -> Any:
        block = super().compact_turn(context, request)
        return self._never(block) if len(self.compact_requests) == 1 else block

    @asynccontextmanager
    async def _never(self, block: Any) -> AsyncIterator[Any]:
        await trio.sleep_forever()
        yield block


PHASES: dict[str, tuple[Any, int]] = {
    "opening": ("stuck", 0),
    "reading": ([used(30, 10), boundary(), NEVER_ENDS], 40),
    "back-off": ([used(30, 10), failure(retry_after=60.0)], 40),
}


def engine_in(phase: str, *steps: Any, **more: Any) -> ScriptedEngine:
    first = PHASES[phase][0]
    kind = StuckAtTheDoor if first == "stuck" else ScriptedEngine
    return kind(steps, compact=[[DONE] if first == "stuck" else first, COMMIT], **more)


class InstantStore(stores.MemoryThreadStore):
    """Stores without ever yielding."""

    async def append(self, thread_id: str, records: Any) -> None:
        self._active[thread_id].add(checked_batch(thread_id, records))


class Noted:
    """Notes what fails inside its block, where an error would only be one of the engine."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            self.errors.append(f"{type(error).__name__}: {error}")
        return isinstance(error, Exception)
