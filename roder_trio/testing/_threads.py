"""Checks of what a store promises of threads as a whole: `C1` to `C5`, `A0` and `A1`."""

from roder_trio.errors import InvalidCursor, ThreadExists
from roder_trio.ports import ThreadStore
from roder_trio.schema import transcript
from roder_trio.schema.thread import ThreadMetadata
from roder_trio.testing._check import Check, Verify, append_each, expect, ids, loaded, new_thread, refused
from roder_trio.testing._sample import Sample


async def create(store: ThreadStore, prefix: str) -> Verify:
    """C1: creating again returns what is stored; another payload, or an archived id, is refused."""
    sample = Sample(prefix)
    metadata = sample.metadata(title="Title", workspace="/tmp", labels={"a": "b"}, tool_allowlist=("x",))  # noqa: S108
    expect(await store.create_thread(metadata), metadata, "create_thread")
    archived = await new_thread(store, prefix + "-archived")
    await store.archive_thread(archived.thread_id)
    for bad in ("", "a\0b", "x" * 513):
        await refused(ValueError, store.create_thread(Sample(bad).metadata()), f"the id {bad[:5]!r}")

    async def verify(store: ThreadStore) -> None:
        expect((await loaded(store, prefix)).metadata, metadata, "the stored metadata")
        expect(await store.create_thread(metadata), metadata, "the same creation again")
        await refused(ThreadExists, store.create_thread(sample.metadata(title="Other")), "another payload")
        other = archived.metadata(title="Other")
        await refused(ThreadExists, store.create_thread(other), "an archived id")

    return verify


async def load(store: ThreadStore, prefix: str) -> Verify:
    """C2: a snapshot holds all that was appended; None for what is unknown."""
    sample = await new_thread(store, prefix)
    events = [sample.user("hello"), sample.item(transcript.AssistantMessage("world"))]
    deltas = [sample.delta("a"), sample.completed("ab")]
    states = [sample.state("k", {"v": [1, None, "ü"]}), sample.state("k", 2.5)]
    await append_each(store, sample, [*events, *deltas, *states])

    async def verify(store: ThreadStore) -> None:
        snapshot = await loaded(store, prefix)
        expect(list(snapshot.events), events, "events")
        expect(list(snapshot.item_events), deltas, "item_events")
        expect(list(snapshot.extension_states), states, "extension_states")
        for unknown in (prefix + "-unknown", "", "a\0b", "x" * 513):
            expect(await store.load_thread(unknown), None, "an unknown thread")

    return verify


async def load_metadata(store: ThreadStore, prefix: str) -> Verify:
    """C3: metadata is that of the snapshot."""
    sample = await new_thread(store, prefix)
    await append_each(store, sample, [sample.user("hello"), sample.usage("a", 1, 3, 1, 4)])

    async def verify(store: ThreadStore) -> None:
        expect(await store.load_metadata(prefix), (await loaded(store, prefix)).metadata, "load_metadata")
        expect(await store.load_metadata(prefix + "-unknown"), None, "the metadata of an unknown thread")

    return verify


async def walk(store: ThreadStore, label: tuple[str, str], limit: int, stop: int = 100) -> list[ThreadMetadata]:
    """The threads with a label, page by page."""
    found: list[ThreadMetadata] = []
    cursor = None
    for _ in range(stop):
        page = await store.list_threads(limit=limit, cursor=cursor, label=label)
        if len(page.threads) > limit:
            raise AssertionError(f"a page of {limit} holds {len(page.threads)} threads")
        found.extend(page.threads)
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise AssertionError("a walk through the pages doesn't end")


async def list_threads(store: ThreadStore, prefix: str) -> Verify:
    """C4: newest first, each thread once, by label; bad limits and cursors are refused."""
    label = ("check", prefix)
    samples = [Sample(f"{prefix}-{number}") for number in range(7)]
    wanted = [sample.metadata(number // 2, labels=dict([label])) for number, sample in enumerate(samples)]
    for metadata in (*wanted[::2], *wanted[1::2]):
        await store.create_thread(metadata)
    await store.create_thread(Sample(prefix + "-other").metadata(labels={"check": "other"}))
    wanted.sort(key=lambda metadata: (metadata.updated_at, metadata.thread_id), reverse=True)

    async def verify(store: ThreadStore) -> None:
        for limit in (1, 3, 7, 500):
            expect(await walk(store, label, limit), wanted, f"a walk by {limit}")
        for bad in (0, 501, True):
            await refused(ValueError, store.list_threads(limit=bad), f"limit {bad}")
        cursor = (await store.list_threads(limit=2, label=label)).next_cursor
        await refused(InvalidCursor, store.list_threads(cursor=cursor, label=("check", "other")), "another label's")
        await refused(InvalidCursor, store.list_threads(cursor="garbage"), "a cursor of nobody")

    return verify


async def archive(store: ThreadStore, prefix: str) -> Verify:
    """C5: True once; then the thread can't be seen."""
    label = ("check", prefix)
    await new_thread(store, prefix, labels=dict([label]))
    await new_thread(store, prefix + "-kept", labels=dict([label]))
    expect(await store.archive_thread(prefix), True, "archive_thread")

    async def verify(store: ThreadStore) -> None:
        expect(await store.archive_thread(prefix), False, "archive_thread again")
        expect(await store.archive_thread(prefix + "-unknown"), False, "archive_thread of an unknown one")
        expect(await store.load_thread(prefix), None, "load_thread")
        expect(await store.load_metadata(prefix), None, "load_metadata")
        listed = (await store.list_threads(limit=500, label=label)).threads
        expect([metadata.thread_id for metadata in listed], [prefix + "-kept"], "the listing")

    return verify


async def delete(store: ThreadStore, prefix: str) -> Verify:
    """A0: a deleted thread is gone, active or archived, and its id is free."""
    sample = await new_thread(store, prefix)
    archived = await new_thread(store, prefix + "-archived")
    again = Sample(prefix + "-again")
    for each in (sample, archived, again):
        if each is again:
            await store.create_thread(again.metadata())
        await store.append(each.thread_id, [each.user("hello")])
    await store.archive_thread(archived.thread_id)
    for each in (sample, archived, again):
        expect(await store.delete_thread(each.thread_id), True, "delete_thread")
    created = again.metadata(title="Again")
    expect(await store.create_thread(created), created, "create_thread under the id of a deleted one")

    async def verify(store: ThreadStore) -> None:
        for gone in (prefix, archived.thread_id, prefix + "-unknown"):
            expect(await store.delete_thread(gone), False, "delete_thread of what isn't there")
            expect(await store.load_thread(gone), None, "load_thread")
            expect(await store.load_metadata(gone), None, "load_metadata")
        expect((await loaded(store, again.thread_id)).metadata, created, "the metadata of the new thread")
        expect(await ids(store, again.thread_id), [], "the log of the new thread")

    return verify


async def unarchive(store: ThreadStore, prefix: str) -> Verify:
    """A1: an archived thread comes back as it was."""
    sample = await new_thread(store, prefix)
    hidden = await new_thread(store, prefix + "-hidden")
    await append_each(store, sample, [sample.user("hello"), sample.delta("x"), sample.state("k", 1)])
    before = await loaded(store, prefix)
    for each in (sample, hidden):
        await store.archive_thread(each.thread_id)
    expect(await store.unarchive_thread(prefix), True, "unarchive_thread")

    async def verify(store: ThreadStore) -> None:
        expect(await store.unarchive_thread(prefix), False, "unarchive_thread of an active thread")
        expect(await loaded(store, prefix), before, "the snapshot")
        archived = await _archived(store)
        expect((prefix in archived, hidden.thread_id in archived), (False, True), "the listing of the archive")

    return verify


async def _archived(store: ThreadStore) -> set[str]:
    found: set[str] = set()
    cursor = None
    while True:
        page = await store.list_archived(limit=500, cursor=cursor)
        found.update(metadata.thread_id for metadata in page.threads)
        cursor = page.next_cursor
        if cursor is None:
            return found


CHECKS: dict[str, Check] = {
    "C1 create_thread": create,
    "C2 load_thread": load,
    "C3 load_metadata": load_metadata,
    "C4 list_threads": list_threads,
    "C5 archive_thread": archive,
    "A0 delete_thread": delete,
    "A1 unarchive_thread": unarchive,
}
