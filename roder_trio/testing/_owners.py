"""Checks of a store whose threads have one owner at a time among many processes: `9.2` to `9.5`.

Rules of the room: each check opens a second store on the same storage, which is another owner. What is refused may be
told as `LeaseLost` or as `ThreadOwnedElsewhere`; nothing of it may be written.
"""

from collections.abc import Awaitable, Callable

import trio

from roder_trio.errors import LeaseLost, StorageError, ThreadOwnedElsewhere
from roder_trio.ports import ThreadStore
from roder_trio.schema.ids import ThreadId
from roder_trio.testing._check import Check, Verify, expect, holds, ids, new_thread, refused

GRACE = 0.5
"""Seconds after a lease's end at which it must have been renewed."""


async def claim(store: ThreadStore, rival: ThreadStore, prefix: str) -> Verify:
    """9.2: who creates or claims a thread owns it; another claim is refused and says for how long."""
    await new_thread(store, prefix)
    sample = await new_thread(rival, prefix + "-rival")
    await store.claim_thread(prefix)
    await store.claim_thread(prefix)
    for owner, other, thread_id in ((store, rival, prefix), (rival, store, sample.thread_id)):
        left = await _elsewhere(other, thread_id)
        expect(left > 0, True, "the lease of another lasts")
        await owner.claim_thread(thread_id)
    return holds(prefix, [])


async def fence(store: ThreadStore, rival: ThreadStore, prefix: str) -> Verify:
    """9.3: only the owner changes a thread; reading needs no ownership."""
    sample = await new_thread(store, prefix)
    first, second, third = (sample.user(text) for text in ("first", "second", "third"))
    await store.claim_thread(prefix)
    await store.append(prefix, [first])
    for call in (
        lambda: rival.append(prefix, [second]),
        lambda: rival.archive_thread(prefix),
        lambda: rival.delete_thread(prefix),
    ):
        await refused(StorageError, call(), "a change by another")
    expect(await ids(rival, prefix), [first.event_id], "the log as another reads it")
    await store.release_thread(prefix)
    await rival.claim_thread(prefix)
    await rival.append(prefix, [second])
    await _refused_as_stale(store, prefix, lambda: store.append(prefix, [third]))
    await _refused_as_stale(store, prefix, lambda: store.archive_thread(prefix))
    await rival.release_thread(prefix)
    return holds(prefix, [first.event_id, second.event_id])


async def renewal(store: ThreadStore, rival: ThreadStore, prefix: str) -> Verify:
    """9.4: an owner that lives keeps its thread, however long it does nothing."""
    sample = await new_thread(store, prefix)
    await store.claim_thread(prefix)
    await trio.sleep(await _elsewhere(rival, prefix) + GRACE)
    await _elsewhere(rival, prefix)
    record = sample.user("still mine")
    await store.append(prefix, [record])
    return holds(prefix, [record.event_id])


async def handing_over(store: ThreadStore, rival: ThreadStore, prefix: str) -> Verify:
    """9.5: what is released can be claimed at once, and goes on where it stood."""
    sample = await new_thread(store, prefix)
    wanted: list[str] = []
    for owner in (store, rival, store):
        await owner.claim_thread(prefix)
        record = sample.user("mine")
        await owner.append(prefix, [record])
        wanted.append(record.event_id)
        expect(await ids(owner, prefix), wanted, "the log as the owner reads it")
        await owner.release_thread(prefix)
    return holds(prefix, wanted)


async def closing(factory: Callable[[], ThreadStore], store: ThreadStore, prefix: str) -> Verify:
    """9.5: a store that closes releases all that it owned."""
    leaving = factory()
    async with leaving.open():
        await new_thread(leaving, prefix)
        await leaving.claim_thread(prefix)
        await _elsewhere(store, prefix)
    await store.claim_thread(prefix)
    return holds(prefix, [])


async def _elsewhere(store: ThreadStore, thread_id: ThreadId) -> float:
    """How many seconds the lease lasts that keeps a claim out; there must be one."""
    try:
        await store.claim_thread(thread_id)
    except ThreadOwnedElsewhere as error:
        return error.expires_in
    raise AssertionError("a thread that another owns was claimed")


async def _refused_as_stale(store: ThreadStore, thread_id: ThreadId, call: Callable[[], Awaitable[object]]) -> None:
    try:
        await call()
    except (LeaseLost, ThreadOwnedElsewhere):
        return
    raise AssertionError(f"one who no longer owns {thread_id!r} changed it")


def checks(factory: Callable[[], ThreadStore]) -> dict[str, Check]:
    """The checks, with stores of `factory` as the other owners."""

    def with_rival(body: Callable[[ThreadStore, ThreadStore, str], Awaitable[Verify]]) -> Check:
        async def check(store: ThreadStore, prefix: str) -> Verify:
            rival = factory()
            async with rival.open():
                return await body(store, rival, prefix)

        return check

    async def closed(store: ThreadStore, prefix: str) -> Verify:
        return await closing(factory, store, prefix)

    return {
        "9.2 claim_thread": with_rival(claim),
        "9.3 fence": with_rival(fence),
        "9.4 renewal": with_rival(renewal),
        "9.5 hand-over": with_rival(handing_over),
        "9.5 close": closed,
    }
