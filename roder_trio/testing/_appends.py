"""Checks of what a store promises of `append`: `C6` to `C12`."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import trio

from roder_trio.errors import AppendOutcomeUnknown, InvalidRecord, StorageError, ThreadNotFound
from roder_trio.ports import ThreadStore
from roder_trio.schema import transcript
from roder_trio.schema.thread import Record
from roder_trio.testing._check import (
    Check,
    Verify,
    append_each,
    expect,
    holds,
    ids,
    loaded,
    new_thread,
    refused,
    short,
)
from roder_trio.testing._sample import Sample
from roder_trio.testing._steps import StepWatch

Fault: TypeAlias = Callable[[ThreadStore, str], None]

TASKS = 8
REPEATS = 3


async def atomic(store: ThreadStore, prefix: str) -> Verify:
    """C6: a batch with one bad record stores nothing of it."""
    sample = await new_thread(store, prefix)
    before = (await loaded(store, prefix)).metadata
    bad = sample.item(transcript.ProviderMetadata({"value": {1, 2}}))
    for batch in ([sample.user("a"), sample.user("b"), bad], [bad, sample.user("c")], [sample.user("d"), bad]):
        await refused(StorageError, store.append(prefix, batch), "a batch with a bad record")

    async def verify(store: ThreadStore) -> None:
        expect(await ids(store, prefix), [], "the log")
        expect((await loaded(store, prefix)).metadata, before, "the metadata")

    return verify


async def durable(store: ThreadStore, prefix: str) -> Verify:
    """C7: what was appended is there, many and large records too."""
    sample = await new_thread(store, prefix)
    many: list[Record] = [sample.user(f"{number}") for number in range(300)]
    for record in many:
        await store.append(prefix, [record])
    large = sample.user("x" * (16 * 1024 * 1024))
    await store.append(prefix, [large])

    async def verify(store: ThreadStore) -> None:
        snapshot = await loaded(store, prefix)
        expect({envelope.event_id for envelope in snapshot.events}, {r.record_id for r in (*many, large)}, "the log")
        expect(snapshot.events[-1] == large, True, "a record of 16 MiB is as it was")

    return verify


async def order(store: ThreadStore, prefix: str) -> Verify:
    """C8: records and calls keep their order, batches stay together, whoever else appends."""
    sample = await new_thread(store, prefix)
    calls = [[sample.texts("a", "b", "c") for _ in range(4)] for _ in range(TASKS)]
    others = [await new_thread(store, f"{prefix}-{number}") for number in range(TASKS)]
    logs = [other.texts("a", "b", "c") for other in others]

    async def append_all(thread_id: str, batches: list[list[Record]]) -> None:
        for batch in batches:
            await store.append(thread_id, batch)

    async with trio.open_nursery() as nursery:
        for batches, other, log in zip(calls, others, logs, strict=True):
            nursery.start_soon(append_all, prefix, batches)
            nursery.start_soon(append_all, other.thread_id, [log])

    async def verify(store: ThreadStore) -> None:
        found = await ids(store, prefix)
        for batches in calls:
            wanted = [[record.record_id for record in batch] for batch in batches]
            places = [found.index(batch[0]) for batch in wanted if batch[0] in found]
            expect(places, sorted(places), "the places of one task's calls")
            expect([found[place : place + 3] for place in places], wanted, "one task's batches")
        expect(len(found), len(set(found)), "records, each once")
        for other, log in zip(others, logs, strict=True):
            expect(await ids(store, other.thread_id), [record.record_id for record in log], "another thread's log")

    return verify


async def idempotent(store: ThreadStore, prefix: str) -> Verify:
    """C9: a known id is skipped, the first payload stays, no counter moves."""
    sample = await new_thread(store, prefix)
    other = await new_thread(store, prefix + "-other")
    first, second, third = sample.user("first"), sample.user("second"), sample.user("third")
    await append_each(store, sample, [first, second])
    before = (await loaded(store, prefix)).metadata
    changed = attrs.evolve(sample.user("changed"), event_id=first.event_id)
    for batch in ([first], [changed], [second, first]):
        await store.append(prefix, batch)
    expect((await loaded(store, prefix)).metadata, before, "the metadata after repeats")
    await store.append(prefix, [first, third, third])
    twin = attrs.evolve(other.user("twin"), event_id=first.event_id)
    await store.append(other.thread_id, [twin])

    async def verify(store: ThreadStore) -> None:
        await store.append(prefix, [second])
        expect(list((await loaded(store, prefix)).events), [first, second, third], "the log")
        expect(await ids(store, other.thread_id), [first.event_id], "the same id on another thread")

    return verify


def bad_records(sample: Sample) -> list[Any]:
    """Records that no log takes."""
    endless: dict[str, Any] = {}
    endless["self"] = endless
    values = (math.nan, math.inf, b"bytes", {1}, {1: "a"}, endless, object())
    return [
        *[sample.item(transcript.ProviderMetadata({"value": value})) for value in values],
        sample.state("k", math.nan),
        attrs.evolve(sample.user("x"), thread_id="another"),
        Sample("another").delta("x"),
        Sample("another").state("k", 1),
        "text",
        None,
    ]


async def refusals(store: ThreadStore, prefix: str) -> Verify:
    """C10: unknown and archived threads, bad records and what is no batch are refused; an empty batch does nothing."""
    sample = await new_thread(store, prefix)
    archived = await new_thread(store, prefix + "-archived")
    await store.archive_thread(archived.thread_id)
    for record in bad_records(sample):
        await refused(InvalidRecord, store.append(prefix, [record]), f"the record {short(record)}")
    nothing: Any
    for nothing in ("text", None, 3):
        await refused(InvalidRecord, store.append(prefix, nothing), f"append of {nothing!r}")
    broken: Any = (1 // 0 for _ in range(1))
    await refused(ZeroDivisionError, store.append(prefix, broken), "a generator that raises")
    await store.append(prefix, [])

    async def verify(store: ThreadStore) -> None:
        for gone in (Sample(prefix + "-unknown"), archived):
            await refused(ThreadNotFound, store.append(gone.thread_id, [gone.user("x")]), "append")
        expect(await ids(store, prefix), [], "the log")

    return verify


async def cancelled(store: ThreadStore, prefix: str) -> Verify:
    """C11: cancelled at any of its checkpoints append raises that with nothing stored, or returns with all."""
    sample = await new_thread(store, prefix)
    wanted: list[str] = []
    for repeat in range(REPEATS):
        # others that run meanwhile may do so before or after the cancel, so each step is tried some times
        step, fired = 0, True
        while fired:
            batch = sample.texts("a", "b")
            returned, fired = await _append_cancelled(store, sample, batch, step)
            if returned:
                wanted += [record.record_id for record in batch]
            found = sorted(await ids(store, prefix))
            expect(found, sorted(wanted), f"the log after a cancel at checkpoint {step}, try {repeat + 1}")
            step += 1

    async def verify(store: ThreadStore) -> None:
        expect(sorted(await ids(store, prefix)), sorted(wanted), "the log")

    return verify


async def _append_cancelled(store: ThreadStore, sample: Sample, batch: list[Record], step: int) -> tuple[bool, bool]:
    """Append and cancel at that checkpoint, 0: before the call; whether append returned, and whether it got there."""
    scope = trio.CancelScope()
    watch = StepWatch(lambda done: scope.cancel() if done == step else None)

    async def append() -> None:
        watch.task = trio.lowlevel.current_task()
        with scope:
            await store.append(sample.thread_id, batch)

    if not step:
        scope.cancel()
    trio.lowlevel.add_instrument(watch)
    try:
        async with trio.open_nursery() as nursery:  # noqa: ASYNC112 - steps are counted of a task of its own
            nursery.start_soon(append)
    finally:
        trio.lowlevel.remove_instrument(watch)
    return not scope.cancelled_caught, watch.steps >= step


async def usable(store: ThreadStore, prefix: str) -> Verify:
    """C12: after a refusal the store goes on."""
    sample = await new_thread(store, prefix)
    good = sample.user("good")
    await refused(StorageError, store.append(prefix, [sample.state("k", object())]), "a bad record")
    await store.append(prefix, [good])
    return holds(prefix, [good.event_id])


def failed_append(fault: Fault) -> Check:
    """C12 with failures injected: not stored unless the outcome is unknown, and a repeat stores it once."""

    async def check(store: ThreadStore, prefix: str) -> Verify:
        sample = await new_thread(store, prefix)
        whole = sample.texts("whole")
        await store.append(prefix, whole)
        wanted = [record.record_id for record in whole]
        for point in ("before", "in", "after"):
            batch = sample.texts(point, point)
            fault(store, point)
            unknown = await _fails(store, sample, batch, point)
            found = await ids(store, prefix)
            new = [record.record_id for record in batch]
            if found != wanted and not (unknown and found == wanted + new):
                raise AssertionError(f"after a failure {point} the write the log holds {found}, not {wanted}")
            await store.append(prefix, batch)
            wanted += new
            expect(await ids(store, prefix), wanted, f"the log after the repeat of a failure {point} the write")
        return holds(prefix, wanted)

    return check


async def _fails(store: ThreadStore, sample: Sample, batch: list[Record], point: str) -> bool:
    """Append what must fail; whether its outcome is unknown."""
    try:
        await store.append(sample.thread_id, batch)
    except AppendOutcomeUnknown:
        return True
    except StorageError:
        return False
    if point != "after":
        raise AssertionError(f"an append that fails {point} the write returned")
    return True


CHECKS: dict[str, Check] = {
    "C6 atomic append": atomic,
    "C7 durable append": durable,
    "C8 order": order,
    "C9 idempotent append": idempotent,
    "C10 refusals": refusals,
    "C11 cancelled append": cancelled,
    "C12 usable after a refusal": usable,
}
