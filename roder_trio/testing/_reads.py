"""Checks of the reads that a store may do in its own way: pages of events, kept states, logs as they are stored.

Rules of the room: as in `_check`; a store that leaves them to the defaults passes as well.
"""

from roder_trio import codec
from roder_trio.logic.thread.metadata import fold_metadata
from roder_trio.ports import ThreadStore
from roder_trio.schema.event import EventEnvelope, TurnCompleted, TurnStarted
from roder_trio.schema.thread import Record
from roder_trio.testing._check import Check, Verify, append_each, expect, new_thread
from roder_trio.testing._sample import Sample

TURNS = 4
MANY = 1000
"""Pages after which reading doesn't end."""


def _turns(sample: Sample) -> list[Record]:
    """Some whole turns and an open one, with records of every kind in them."""
    records: list[Record] = []
    for number in range(TURNS):
        turn = f"turn-{number}"
        records += [sample.envelope(TurnStarted("p", "m"), turn), sample.user("hello", turn), sample.delta("x", turn)]
        records += [sample.usage(f"a{number}", 1, 1, 1, 2, turn=turn), sample.state("key", number)]
        records += [sample.goal(f"goal {number}"), sample.envelope(TurnCompleted(None, "stop"), turn)]
    return [*records, sample.envelope(TurnStarted("p", "m"), "open")]


async def events(store: ThreadStore, prefix: str) -> Verify:
    """Numbered events come in pages, each once and in order, from any of them on."""
    sample = await new_thread(store, prefix)
    records = _turns(sample)
    await append_each(store, sample, records)
    wanted = [record for record in records if isinstance(record, EventEnvelope) and record.seq]

    async def verify(store: ThreadStore) -> None:
        for limit in (1, 3, len(wanted), 500):
            expect(await _all_events(store, prefix, limit), wanted, f"events, {limit} at a time")
        for after in (len(wanted) - 1, len(wanted), len(wanted) + 5):
            expect(list(await store.load_events(prefix, after)), wanted[after:], f"events after {after}")
        expect(list(await store.load_events(prefix + "-unknown")), [], "events of an unknown thread")

    return verify


async def _all_events(store: ThreadStore, thread_id: str, limit: int) -> list[EventEnvelope]:
    found: list[EventEnvelope] = []
    for _ in range(MANY):
        page = await store.load_events(thread_id, found[-1].seq if found else 0, limit)
        if not page:
            return found
        if len(page) > limit:
            raise AssertionError(f"a page of {limit} holds {len(page)} events")
        found += page
    raise AssertionError("reading pages of events doesn't end")


async def state(store: ThreadStore, prefix: str) -> Verify:
    """The state that a thread's owner is given follows from all of the log."""
    sample = await new_thread(store, prefix)
    await append_each(store, sample, _turns(sample))

    async def verify(store: ThreadStore) -> None:
        hydration = await store.load_state(prefix)
        if hydration is None:
            raise AssertionError(f"thread {prefix!r} has no state")
        found = hydration.state
        goal = None if found.goal is None else found.goal.objective
        open_turn = None if found.open_turn is None else found.open_turn.turn_id
        expect((found.next_seq, found.next_item_seq), (sample.seq + 1, sample.item_seq + 1), "the next numbers")
        expect((goal, open_turn), (f"goal {TURNS - 1}", "open"), "the goal and the open turn")
        expect(hydration.ledger.thread.total_tokens, 2 * TURNS, "the tokens of the thread")
        expect(await store.load_state(prefix + "-unknown"), None, "the state of an unknown thread")

    return verify


async def log(store: ThreadStore, prefix: str) -> Verify:
    """Active or archived, a log is shown as it is stored, with what the thread was created with."""
    sample = await new_thread(store, prefix)
    hidden = await new_thread(store, prefix + "-hidden")
    logs = {each.thread_id: _turns(each) for each in (sample, hidden)}
    for each in (sample, hidden):
        await append_each(store, each, logs[each.thread_id])
    await store.archive_thread(hidden.thread_id)

    async def verify(store: ThreadStore) -> None:
        for thread_id, records in logs.items():
            archived = thread_id == hidden.thread_id
            created, found = await _read(store, thread_id, archived=archived)
            expect(found, records, f"the records of {thread_id}")
            metadata = fold_metadata(codec.decode_metadata(codec.parse_json(created)["metadata"]), records)
            expect((metadata.title, metadata.message_count), ("hello", TURNS), "what the creation and the log make")
        expect(await store.read_log(prefix + "-unknown"), None, "the log of an unknown thread")

    return verify


async def _read(store: ThreadStore, thread_id: str, *, archived: bool) -> tuple[bytes, list[object]]:
    """The creation and the records of a thread."""
    records: list[object] = []
    cursor = None
    for _ in range(MANY):
        page = await store.read_log(thread_id, cursor)
        if page is None:
            raise AssertionError(f"thread {thread_id!r} has no log")
        expect(page.archived, archived, f"whether {thread_id} is archived")
        records += [codec.decode_record(value) for array in page.batches for value in codec.parse_json(array)]
        cursor = page.next_cursor
        if cursor is None:
            return page.created, records
    raise AssertionError("reading a log doesn't end")


CHECKS: dict[str, Check] = {
    "load_events pages": events,
    "load_state": state,
    "read_log": log,
}
