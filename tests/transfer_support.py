"""What the tests of transfers share: threads with every kind of record, a plain store, and what stores hold."""

import random
from contextlib import asynccontextmanager

import attrs

from roder_trio import codec, stores
from roder_trio.errors import StoreUnsupported
from roder_trio.schema.event import GoalUpdated, TranscriptItemAppended, UsageRecorded
from roder_trio.schema.goal import Goal, GoalCause, GoalStatus
from roder_trio.schema.thread import OpaqueRecord
from roder_trio.schema.transcript import UserMessage
from roder_trio.schema.usage import Ancestor, Purpose, TokenUsage
from roder_trio.testing._sample import START, Sample

OPAQUE = OpaqueRecord("newer", {"type": "newer", "record_id": "newer-1", "thread_id": "t", "z": [1], "a": {"b": None}})


class Plain(stores.MemoryThreadStore):
    """A store of somebody else's: nothing beyond what the contract asks of all."""

    async def read_log(self, *_, **__):
        raise StoreUnsupported("no")

    unarchive_thread = list_archived = delete_thread = read_log


@asynccontextmanager
async def jsonl(folder, **options):
    store = stores.JsonlThreadStore(folder, durability="process", **options)
    async with store.open():
        yield store


def goal(thread_id="t"):
    return Goal(
        goal_id="g",
        thread_id=thread_id,
        objective="finish",
        status=GoalStatus.ACTIVE,
        created_at=START,
        updated_at=START,
    )


def all_kinds(thread_id="t"):
    """One record of each kind, ids of threads and turns wherever there can be some."""
    sample = Sample(thread_id)
    usage = UsageRecorded(
        attempt_id="attempt",
        report=1,
        turn_id="turn",
        goal_id="g",
        usage=TokenUsage(3, 1, 4),
        purpose=Purpose.SAMPLING,
        ancestors=(Ancestor("parent", "p"), Ancestor(thread_id, "g")),
    )
    return [
        sample.user("hello"),
        sample.envelope(TranscriptItemAppended(1, UserMessage("pinned"), "turn-user", 2)),
        sample.envelope(GoalUpdated(goal(thread_id), GoalCause.HOST, 5, 1.5), None),
        sample.envelope(usage),
        attrs.evolve(sample.delta("x"), seq=3),
        sample.state("key", {"thread_id": thread_id}),
        attrs.evolve(OPAQUE, value={**OPAQUE.value, "thread_id": thread_id}),
    ]


async def fill(store, thread_id="t", batches=(), **fields):
    """Create a thread and append these batches, by default one of each kind of record."""
    await store.create_thread(Sample(thread_id).metadata(**fields))
    for batch in batches or [[record] for record in all_kinds(thread_id)]:
        await store.append(thread_id, batch)


def random_batches(thread_id, seed, count=12):
    sample, rng, known = Sample(thread_id), random.Random(seed), []
    return [sample.any_batch(rng, known) for _ in range(count)]


async def log_of(store, thread_id="t"):
    """The metadata of the creation and all records, as JSON values."""
    created, records, cursor = None, [], None
    while True:
        page = await store.read_log(thread_id, cursor)
        created = codec.parse_json(page.created)
        records += [value for array in page.batches for value in codec.parse_json(array)]
        cursor = page.next_cursor
        if cursor is None:
            return created, records


async def same_threads(one, other, *thread_ids):
    """Assert that two stores hold the same of these threads."""
    for thread_id in thread_ids:
        found, wanted = await other.load_thread(thread_id), await one.load_thread(thread_id)
        assert found is not None
        for field in ("metadata", "turns", "events", "item_events", "extension_states"):
            assert getattr(found, field) == getattr(wanted, field)


async def exported(tmp_path, batches=None):
    async with jsonl(tmp_path / "origin") as store:
        await fill(store, batches=batches or ())
        await stores.export_thread(store, "t", tmp_path / "export")
    return tmp_path / "export"
