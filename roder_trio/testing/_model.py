"""Random calls on a store and, the same, on one in memory: both must answer alike."""

import random
from collections.abc import Awaitable, Callable
from typing import Any

from roder_trio.errors import RoderTrioError, StoreUnsupported
from roder_trio.ports import ThreadStore
from roder_trio.schema.thread import Record
from roder_trio.stores.memory import MemoryThreadStore
from roder_trio.testing._check import Check, Verify, expect
from roder_trio.testing._sample import Sample

THREADS = 3
STEPS = 60
SEEDS = 3

Call = Callable[[ThreadStore], Awaitable[Any]]


async def _answer(store: ThreadStore, call: Call) -> Any:
    """What a call returns, or the class of what it raises."""
    try:
        return await call(store)
    except StoreUnsupported:
        raise
    except RoderTrioError as error:
        return type(error)


class _Walk:
    """One random walk."""

    def __init__(self, prefix: str, seed: int) -> None:
        self.random = random.Random(f"{seed}")  # noqa: S311  # repeatable on purpose
        self.samples = [Sample(f"{prefix}-{seed}-{number}") for number in range(THREADS)]
        self.known: dict[str, list[Record]] = {sample.thread_id: [] for sample in self.samples}
        self.model = MemoryThreadStore()

    def step(self) -> tuple[str, Call]:
        """The next call, with its name."""
        sample = self.random.choice(self.samples)
        thread_id = sample.thread_id
        name = self.random.choices(
            ("append", "create_thread", "archive_thread", "unarchive_thread", "delete_thread", "release_thread"),
            (20, 4, 1, 2, 1, 1),
        )[0]
        if name == "append":
            batch = sample.any_batch(self.random, self.known[thread_id])
            return name, lambda store: store.append(thread_id, batch)
        if name == "create_thread":
            metadata = sample.metadata(title=self.random.choice([None, None, "Title"]))
            return name, lambda store: store.create_thread(metadata)
        return name, lambda store: getattr(store, name)(thread_id)

    async def compare(self, store: ThreadStore) -> None:
        """Expect equal snapshots of all threads."""
        for sample in self.samples:
            found, wanted = [await each.load_thread(sample.thread_id) for each in (store, self.model)]
            expect(found is None, wanted is None, f"whether thread {sample.thread_id} is there")
            for field in ("metadata", "turns", "events", "item_events", "extension_states"):
                expect(getattr(found, field, None), getattr(wanted, field, None), f"{field} of {sample.thread_id}")


async def model(store: ThreadStore, prefix: str) -> Verify:
    """The store answers random calls as one in memory does."""
    walks = [_Walk(prefix, seed) for seed in range(SEEDS)]
    for walk in walks:
        for number in range(STEPS):
            name, call = walk.step()
            try:
                found = await _answer(store, call)
            except StoreUnsupported:
                continue
            expect(found, await _answer(walk.model, call), f"call {number} of a random walk, {name}")
            await walk.compare(store)

    async def verify(store: ThreadStore) -> None:
        for walk in walks:
            await walk.compare(store)

    return verify


CHECKS: dict[str, Check] = {"model": model}
