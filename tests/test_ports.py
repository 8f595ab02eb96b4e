"""What a store or an engine of a host's own may leave out."""

import inspect
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import pytest

import roder_trio as rt
from roder_trio import events, inference, providers, stores, testing
from roder_trio.schema.thread import Record

NOW = datetime(2026, 1, 2, tzinfo=UTC)
METADATA = rt.ThreadMetadata(thread_id="t", created_at=NOW, updated_at=NOW)
EVENTS = [
    rt.EventEnvelope(event_id=str(seq), seq=seq, timestamp=NOW, source="thread", event=events.TurnStarted("p", "m"))
    for seq in range(1, 6)
]


class SmallStore(rt.ThreadStore):
    """A store with one thread and no method more than it must have."""

    id = "small"

    async def create_thread(self, metadata: rt.ThreadMetadata) -> rt.ThreadMetadata:
        return metadata

    async def load_thread(self, thread_id: str) -> rt.ThreadSnapshot | None:
        return rt.ThreadSnapshot(metadata=METADATA, events=EVENTS) if thread_id == "t" else None

    async def list_threads(
        self, *, limit: int = 50, cursor: str | None = None, label: tuple[str, str] | None = None
    ) -> rt.ThreadPage:
        return rt.ThreadPage(threads=(METADATA,))

    async def archive_thread(self, thread_id: str) -> bool:
        return False

    async def append(self, thread_id: str, records: Sequence[Record]) -> None:
        return


class SmallEngine(rt.InferenceEngine):
    """An engine with no method more than it must have."""

    id = "small"

    def stream_turn(
        self, context: inference.TurnContext, request: inference.InferenceRequest
    ) -> AbstractAsyncContextManager[object]:
        raise AssertionError


async def test_metadata_and_events_come_from_the_snapshot() -> None:
    store = SmallStore()
    async with store.open():
        assert await store.load_metadata("t") == METADATA
        assert await store.load_metadata("unknown") is None
        assert await store.load_events("t", after=2, limit=2) == EVENTS[2:4]
        assert await store.load_events("unknown") == []
        await store.claim_thread("t")
        await store.release_thread("t")


async def test_what_a_store_can_not_do_is_refused_by_name() -> None:
    store = SmallStore()
    for call in (store.unarchive_thread("t"), store.list_archived(), store.delete_thread("t")):
        with pytest.raises(rt.StoreUnsupported, match="small"):
            await call
    with pytest.raises(rt.StoreUnsupported, match="small"):
        store.follow("t")


async def test_an_engine_has_no_compaction_no_models_and_no_need_of_a_client() -> None:
    engine = SmallEngine()
    context = inference.TurnContext(thread_id="t", turn_id="u", attempt_id="a")
    request = inference.InferenceRequest(model=inference.ModelChoice("small", "m"))
    assert engine.compact_turn(context, request) is None
    assert await engine.list_models() == ()
    engine.use_client(object())
    assert engine.capabilities == rt.InferenceCapabilities.text_only()


SHIPPED = (
    *(stores.JsonlThreadStore, stores.MemoryThreadStore, stores.PostgresThreadStore, stores.SqliteThreadStore),
    *(providers.Anthropic, providers.ChatCompletions, providers.Gemini, providers.Offline, providers.OpenAIResponses),
    *(providers.ScriptedEngine, testing.FaultyStore),
)


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.__name__)
def test_what_a_port_calls_its_arguments_every_shipped_one_calls_so_too(shipped: type) -> None:
    port = next(base for base in (rt.ThreadStore, rt.InferenceEngine) if issubclass(shipped, base))
    for name, method in inspect.getmembers(port, inspect.isfunction):
        if not name.startswith("_"):
            assert [*inspect.signature(getattr(shipped, name)).parameters] == [*inspect.signature(method).parameters], (
                name
            )
