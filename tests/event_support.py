"""What the tests of events, views and residency share: short scripts, seeded logs, and the items that readers see."""

from collections.abc import Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import roder_trio as rt
from roder_trio import events, inference, items, providers, stores, testing, transcript
from roder_trio.logic.item import fold_items
from tests.turn_support import settings

NOW = datetime(2020, 10, 3, tzinfo=UTC)
"""Before any moment at which tests run."""
DONE = inference.Completed("stop")
AT_ONCE = rt.RuntimeConfig(reliability=rt.ReliabilityConfig(provider_retry_initial_backoff=0.0))
"""Settings under which a retry waits for nothing."""


def say(text, phase=None):
    return inference.MessageDelta(text, phase)


def think(text):
    return inference.ReasoningDelta(text)


def call(id="c1", name="look", arguments="{}"):
    halves = [arguments[:1], arguments[1:]]
    deltas = [inference.ToolCallDelta(id, half) for half in halves]
    return [inference.ToolCallStarted(id, name), *deltas, inference.ToolCallCompleted(id, name, arguments)]


def lost():
    return rt.ProviderFailure(rt.ProviderFailureKind.STREAM_INTERRUPTED, "lost")


def message(id, text, status=items.ItemStatus.COMPLETED, phase=None):
    return items.AgentMessage(id, text, phase, status)


@asynccontextmanager
async def opened(*steps, store=None, config=None, sinks=(), thread=True, **script):
    """A runtime with a scripted engine; gives (runtime, engine, thread id)."""
    engine = providers.ScriptedEngine(steps, **script)
    async with rt.open_runtime(engines=[engine], store=store, config=config or settings(), sinks=sinks) as runtime:
        thread_id = (await runtime.create_thread()).thread_id if thread else None
        yield runtime, engine, thread_id


def taken(subscription) -> list[rt.EventEnvelope]:
    """All that waits in a subscription's buffer."""
    return [subscription.take() for _ in range(subscription.buffered)]


def kinds(envelopes: Iterable[rt.EventEnvelope], without: Sequence[str] = ("usage.recorded",)) -> list[str]:
    return [envelope.kind for envelope in envelopes if envelope.kind not in without]


def item_events(envelopes: Iterable[rt.EventEnvelope]) -> list[items.ThreadItemEvent]:
    return [envelope.event for envelope in envelopes if isinstance(envelope.event, items.ThreadItemEvent)]


def durable(envelopes: Iterable[rt.EventEnvelope]) -> list[items.ThreadItemEvent]:
    """The item events that were stored or derived."""
    return [event for event in item_events(envelopes) if event.seq]


def shown(start: Iterable[items.ThreadItem], envelopes: Iterable[rt.EventEnvelope]) -> tuple[items.ThreadItem, ...]:
    """What a reader shows that began with `start` and took these events of a view."""
    current = tuple(start)
    for envelope in envelopes:
        if isinstance(envelope.event, events.ItemsReset):
            current = envelope.event.items
        elif isinstance(envelope.event, items.ThreadItemEvent):
            current = fold_items(current, [envelope.event])
    return current


def by_id(shown: Iterable[items.ThreadItem]) -> dict[str, items.ThreadItem]:
    return {item.id: item for item in shown}


async def view_of(runtime, thread_id) -> tuple[items.ThreadItem, ...]:
    async with runtime.thread_view(thread_id) as view:
        return view.items


def counted(store=None) -> testing.FaultyStore:
    """A memory store that counts loads and appends."""
    return testing.FaultyStore(store or stores.MemoryThreadStore())


def metadata(thread_id: str) -> rt.ThreadMetadata:
    return rt.ThreadMetadata(thread_id=thread_id, created_at=NOW, updated_at=NOW)


def stored_item(thread_id: str, seq: int, kind: Any, turn_id: str = "turn", **fields: Any) -> items.ThreadItemEvent:
    return items.ThreadItemEvent(
        event_id=f"{thread_id}-item-{seq}",
        seq=seq,
        timestamp=NOW,
        thread_id=thread_id,
        turn_id=turn_id,
        event=kind,
        **fields,
    )


def stored_event(thread_id: str, seq: int, event: Any, turn_id: str | None = "turn") -> rt.EventEnvelope:
    return rt.EventEnvelope(
        event_id=f"{thread_id}-event-{seq}",
        seq=seq,
        timestamp=NOW,
        source="thread",
        thread_id=thread_id,
        turn_id=turn_id,
        event=event,
    )


async def seed(store: rt.ThreadStore, thread_id: str, records: Iterable[Any] | None = None) -> str:
    """A thread whose log another program wrote: two transcript items, and an item event with seq 7."""
    if records is None:
        records = [
            stored_event(thread_id, 1, events.TranscriptItemAppended(0, transcript.UserMessage("old question"))),
            stored_event(thread_id, 2, events.TranscriptItemAppended(1, transcript.AssistantMessage("old answer"))),
            stored_item(thread_id, 7, items.ItemCompleted(message("existing-item", "old answer"))),
        ]
    await store.create_thread(metadata(thread_id))
    await store.append(thread_id, list(records))
    return thread_id


async def records_of(store: rt.ThreadStore, thread_id: str) -> rt.ThreadSnapshot:
    snapshot = await store.load_thread(thread_id)
    assert snapshot is not None
    return snapshot


def raw_records(store: Any, thread_id: str) -> list[Any]:
    """What a memory store's log of a thread holds, record by record."""
    return list(getattr(store, "inner", store)._active[thread_id].records)
