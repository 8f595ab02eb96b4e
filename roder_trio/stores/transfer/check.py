"""Proof that what a store says of its threads follows from their logs.

Rules of the room: only reads. For each thread metadata, turns, goal and events as the store gives them, and the state
that it keeps for its owner, are compared with the fold of the log as it is stored. A thread that grows meanwhile is
looked at again.
"""

from collections.abc import Mapping, Sequence

import attrs

from roder_trio.errors import StorageError
from roder_trio.logic.thread.hydration import Hydration, fold_snapshot
from roder_trio.logic.thread.metadata import fold_metadata
from roder_trio.ports import ThreadStore
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import StoredRecord, ThreadMetadata, ThreadSnapshot
from roder_trio.stores._batch import refuse_repeated
from roder_trio.stores._snapshot import snapshot_of
from roder_trio.stores.transfer.copy import StoreWalk
from roder_trio.stores.transfer.source import LogReader, created_metadata, records_of

ATTEMPTS = 3
"""How often a thread is looked at before a difference is one, since its owner may append in between."""


@attrs.define
class StoreCheck:
    """What a check of a store counted, and what is wrong, by thread."""

    threads: int = 0
    archived: int = 0
    turns: int = 0
    records: int = 0
    failures: dict[ThreadId, str] = attrs.field(factory=dict)


@attrs.frozen
class _Log:
    """What a log holds, and what must follow from it."""

    records: Sequence[StoredRecord]
    metadata: ThreadMetadata
    snapshot: ThreadSnapshot


async def check_store(store: ThreadStore) -> StoreCheck:
    """Check every thread of an open store. Raises StorageError if it can't be listed."""
    report = StoreCheck()
    async for page, archived in StoreWalk(store):
        report.failures.update(dict.fromkeys(page.damaged, "it is damaged and can't be described"))
        for listed in page.threads:
            report.threads += not archived
            report.archived += archived
            try:
                differences = await _check_thread(store, listed, report, archived=archived)
            except StorageError as error:
                report.failures[listed.thread_id] = str(error)
            else:
                if differences:
                    report.failures[listed.thread_id] = f"{', '.join(differences)}: not as the log says"
    return report


async def _check_thread(
    store: ThreadStore, listed: ThreadMetadata, report: StoreCheck, *, archived: bool
) -> Sequence[str]:
    looks = 0
    while True:
        looks += 1
        log = await _read(store, listed.thread_id)
        if log is None:
            return ()  # it was removed since it was listed
        if archived:
            differences = ["metadata"] if log.metadata != listed else []
        else:
            differences = await _differences(store, log)
        if not differences or looks == ATTEMPTS:
            report.records += len(log.records)
            report.turns += len(log.snapshot.turns)
            return differences


async def _read(store: ThreadStore, thread_id: ThreadId) -> _Log | None:
    """The log as it is stored, and what its metadata must be; None if there is no such thread. Raises StorageError."""
    created: ThreadMetadata | None = None
    records: list[StoredRecord] = []
    async for page in LogReader(store, thread_id):
        created = created or created_metadata(thread_id, page)
        records += records_of(thread_id, page.batches, len(records))
    refuse_repeated(thread_id, records)
    if created is None:
        return None
    metadata = fold_metadata(created, records)
    return _Log(records, metadata, snapshot_of(metadata, records))


async def _differences(store: ThreadStore, log: _Log) -> list[str]:
    """What the store says otherwise than the log. Raises StorageError."""
    thread_id = log.metadata.thread_id
    metadata = await store.load_metadata(thread_id)
    hydration = await store.load_state(thread_id)
    snapshot = await store.load_thread(thread_id)
    if snapshot is None or hydration is None:
        return ["presence"]
    found = {**_facts(snapshot), **_state(hydration), "listed metadata": metadata}
    wanted = {
        **_facts(log.snapshot),
        **_state(fold_snapshot(log.snapshot, log.metadata)),
        "listed metadata": log.metadata,
    }
    return [name for name, value in wanted.items() if found[name] != value]


def _facts(snapshot: ThreadSnapshot) -> Mapping[str, object]:
    return {
        "metadata": snapshot.metadata,
        "turns": snapshot.turns,
        "events": snapshot.events,
        "item events": snapshot.item_events,
        "extension states": snapshot.extension_states,
    }


def _state(hydration: Hydration) -> Mapping[str, object]:
    """The goal as it reads, and the next numbers, which a store may keep beside the log."""
    state, goal = hydration.state, hydration.state.goal
    read: tuple[object, ...] = ()
    if goal is not None:
        tokens = state.opening_tokens + hydration.ledger.goal(goal.goal_id)
        read = (goal, tokens, state.opening_time + state.goal_time)
    return {
        "goal": read,
        "next numbers": (state.next_seq, state.next_item_seq, len(state.history)),
    }
