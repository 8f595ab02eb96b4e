"""What must hold of a storage after each death, and of the threads in it once they are opened again."""

import json
from collections.abc import Mapping, Sequence

import attrs
import trio

import roder_trio as rt
from roder_trio import ThreadStore, events, items, transcript
from roder_trio.logic.thread.hydration import fold_snapshot
from tests.crash_laws import SETTLES_FIRST, check_closing, check_goal, check_waiters, loaded
from tests.kept_states import fingerprint
from tests.log_laws import check_log, open_turns, total, transcript_of
from tests.soak.diary import Account, Append, Said, fold_used
from tests.soak.flows import INTERVAL, SAID, STEP

PATIENCE = 60.0
"""Seconds after which a check hangs."""


@attrs.frozen
class Left:
    """A thread as a store holds it: read, and as the text of its records."""

    snapshot: rt.ThreadSnapshot
    records: tuple[bytes, ...]
    ids: tuple[str, ...]


# -- reading -----------------------------------------------------------------------------------------------------------


async def read_all(store: ThreadStore) -> dict[str, Left]:
    """All threads of a store; what it says of each in its several ways must agree."""
    with trio.fail_after(PATIENCE):
        async with store.open():
            page = await store.list_threads(limit=500)
            assert not page.damaged, f"threads that can't be described: {page.damaged}"
            return {found.thread_id: await _read(store, found) for found in page.threads}


async def _read(store: ThreadStore, listed: rt.ThreadMetadata) -> Left:
    thread_id = listed.thread_id
    snapshot = await store.load_thread(thread_id)
    assert snapshot is not None
    assert snapshot.metadata == listed == await store.load_metadata(thread_id)
    state = await store.load_state(thread_id)
    assert state is not None
    assert fingerprint(state) == fingerprint(fold_snapshot(snapshot, listed)), "a kept state is the fold of the log"
    texts: list[bytes] = []
    cursor: str | None = None
    while not texts or cursor is not None:
        page = await store.read_log(thread_id, cursor)
        assert page is not None
        texts += [page.created] * (not texts)
        texts += page.batches
        cursor = page.next_cursor
    records = [record for text in texts[1:] for record in json.loads(text)]
    return Left(snapshot, tuple(texts), tuple(record.get("event_id") or record["record_id"] for record in records))


# -- after a death -----------------------------------------------------------------------------------------------------


def check_left(before: Mapping[str, Left], account: Account, known: set[str], left: Mapping[str, Left]) -> None:
    """Check what a life left, given what was there before it and what its diary says."""
    missing = known - left.keys()
    assert not missing, f"threads that were made are gone: {missing}"
    for thread_id, found in left.items():
        earlier = before[thread_id].ids if thread_id in before else ()
        appends = [append for append in account.appends if append.thread_id == thread_id]
        assert found.ids[: len(earlier)] == earlier, "what was stored stays"
        stored = check_batches(appends, found.ids[len(earlier) :])
        base = total(before[thread_id].snapshot.events).total_tokens if earlier else 0
        check_usage(found.snapshot, base + fold_used(stored), appends)
        for said in account.said:
            if said.thread_id == thread_id and said.at + INTERVAL + STEP <= account.clock:
                check_text(found.snapshot, said)


def check_batches(appends: Sequence[Append], found: Sequence[str]) -> list[Append]:
    """What is new is the batches of the diary, whole and in order, and none that was confirmed lacks."""
    there = set(found)
    stored = []
    for append in appends:
        held = [record_id in there for record_id in append.ids]
        assert all(held) or not any(held), f"append {append.number} is stored in part"
        assert all(held) or not append.is_stored, f"append {append.number} was confirmed and is lost"
        stored += [append] * all(held)
    assert list(found) == [record_id for append in stored for record_id in append.ids], "each record once, in order"
    return stored


def check_usage(snapshot: rt.ThreadSnapshot, expected: int, appends: Sequence[Append]) -> None:
    """Totals are those of the records that were appended; whatever ends something is stored behind all usage."""
    counted = total(snapshot.events)
    assert counted.total_tokens == expected
    assert snapshot.metadata is not None
    assert (snapshot.metadata.usage or rt.TokenUsage(0, 0, 0)) == counted
    for append in appends:
        if any(kind in SETTLES_FIRST for kind in append.kinds):
            assert append.counted == append.billed, f"append {append.number} ends something before its usage is settled"


def check_text(snapshot: rt.ThreadSnapshot, said: Said) -> None:
    """A text that was shown one interval before the death, or earlier, is stored."""
    held = text_of(snapshot, said.turn_id)
    assert len(held) >= said.length, f"turn {said.turn_id} holds {held!r}, {said.length} characters were shown"
    assert SAID.startswith(held)


def text_of(snapshot: rt.ThreadSnapshot, turn_id: str) -> str:
    """The text of a turn: its messages, or what checkpoints hold of one that is open."""
    for turn in snapshot.turns:
        said = [item.text for item in turn.items if isinstance(item, transcript.AssistantMessage)]
        if turn.turn_id == turn_id and said:
            return "".join(said)
    parts = [recorded for recorded in snapshot.item_events if recorded.checkpoint and recorded.turn_id == turn_id]
    return "".join(
        recorded.event.delta.delta
        for recorded in parts
        if isinstance(recorded.event, items.ItemDelta) and isinstance(recorded.event.delta, items.AgentMessageText)
    )


# -- after the last one ------------------------------------------------------------------------------------------------


async def check_end(owner: ThreadStore, left: Mapping[str, Left], cut_off: set[str]) -> int:
    """Open all threads again: what was open is closed, once. Returns how many turns ended by a restart.

    `cut_off` names the turns that were open at any of the deaths.
    """
    with trio.fail_after(PATIENCE):
        ended: list[str] = []
        async with rt.open_runtime(store=owner) as runtime:
            for thread_id, found in left.items():
                healed = await loaded(runtime, thread_id)
                goal = await runtime.thread_goal_get(thread_id)
                await check_waiters(runtime, healed)
                check_log(healed)
                check_closing(found.snapshot, healed)
                check_goal(found.snapshot, goal)
                ended += restarts(healed)
    assert sorted(ended) == sorted(cut_off), "each turn that a death cut off ends by a restart, and no other does"
    return len(ended)


def restarts(snapshot: rt.ThreadSnapshot) -> list[str]:
    """The turns that a restart ended, once for each such end."""
    return [
        str(envelope.turn_id)
        for envelope in snapshot.events
        if isinstance(envelope.event, events.TurnInterrupted) and envelope.event.reason == "runtime_restart"
    ]


async def check_unchanged(owner: ThreadStore, healed: Mapping[str, Left]) -> None:
    """A second start reads the same; that it writes nothing is seen by who reads the storage again."""
    with trio.fail_after(PATIENCE):
        async with rt.open_runtime(store=owner) as runtime:
            for thread_id, found in healed.items():
                assert await loaded(runtime, thread_id) == found.snapshot


def check_runs(accounts: Sequence[Account], left: Mapping[str, Left]) -> None:
    """No call ran twice, and none that no log tells of."""
    runs = [call for account in accounts for call in account.runs]
    assert len(set(runs)) == len(runs), "a tool ran again after a restart"
    calls = sum(
        isinstance(item, transcript.ToolCall) for found in left.values() for item in transcript_of(found.snapshot)
    )
    assert len(runs) <= calls


def open_in(left: Mapping[str, Left]) -> set[str]:
    """The turns that are open in the logs."""
    return {turn_id for found in left.values() for turn_id in open_turns(found.snapshot.events)}
