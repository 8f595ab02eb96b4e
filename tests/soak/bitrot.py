"""A SQLite store of several threads with one bit of its file turned: what is read then is what was stored, or an error.

Rules of the room: every way to read is looked at, each thread by itself. After half of the damages an owner appends
first; what it was told is stored is expected, with the totals that follow, and what it was refused isn't. It appends
new records alone, since nothing but their index knows the ids of old ones. A listing may lack a thread only if it names
it as damaged.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any, TypeAlias

import trio

import roder_trio as rt
from roder_trio import StorageError, stores
from roder_trio.schema import transcript
from roder_trio.schema.event import ThreadMetadataChanged, TurnCompleted, TurnStarted
from roder_trio.schema.thread import Record
from roder_trio.schema.usage import TokenUsage
from roder_trio.stores._sql_thread import PageQuery, page_query
from roder_trio.stores.sqlite import kept, listing, query
from roder_trio.stores.sqlite.database import Database
from roder_trio.stores.sqlite.fault import storage_error
from roder_trio.testing._sample import Sample
from tests.kept_states import fingerprint
from tests.sqlite_support import settled

ACTIVE = ("one", "two", "three", "four")
ARCHIVED = "five"
LABEL = ("team", "blue")
DAMAGED = "damaged"
MAX_PAGES = 99

Seen: TypeAlias = Mapping[str, Any]
"""What each read gave, by its name; the error if it raised one."""


# -- a file ------------------------------------------------------------------------------------------------------------


def make_database(path: Path) -> None:
    """Make a store with threads that have turns, usage, goals, labels, a summary, kept states, one of them archived."""
    with _often_renewed():
        trio.run(_fill, stores.SqliteThreadStore(path, durability="process"))


@contextmanager
def _often_renewed() -> Iterator[None]:
    usual, kept.RENEWED_AFTER = kept.RENEWED_AFTER, 8
    try:
        yield
    finally:
        kept.RENEWED_AFTER = usual


async def _fill(store: stores.SqliteThreadStore) -> None:
    """Fill a store; each kept state is there before the next append, so that the file is the same each time."""
    async with store.open():
        for number, name in enumerate((*ACTIVE, ARCHIVED)):
            sample = Sample(name)
            await store.create_thread(sample.metadata(number, labels=dict([LABEL]) if number % 2 == 0 else {}))
            for turn in ("first", "second"):
                await store.append(name, _turn(sample, turn))
                await settled(store)
            await store.append(name, [sample.delta("x" * 3000), sample.state("k", [None]), sample.user("more")])
        await store.archive_thread(ARCHIVED)


def _turn(sample: Sample, turn: str) -> list[Record]:
    return [
        sample.envelope(TurnStarted("p", "m"), turn),
        sample.user(f"question {turn}", turn),
        sample.goal("to be done"),
        sample.usage(f"{sample.thread_id} {turn}", 1, 20, 3, 23, turn=turn, goal_id="goal"),
        sample.item(transcript.AssistantMessage("an answer"), turn),
        sample.item(transcript.ContextCompaction("what was said"), turn),
        sample.envelope(TurnCompleted(TokenUsage(20, 3, 23), "stop"), turn),
    ]


def _later(name: str) -> list[Record]:
    """What an owner appends: a later report of an attempt, a new attempt, another title."""
    sample = Sample(name)
    sample.made = sample.seq = sample.item_seq = 100
    return [
        sample.usage(f"{name} first", 2, 50, 5, 55, turn="first"),
        sample.usage(f"{name} third", 1, 7, 1, 8, turn="third"),
        sample.envelope(ThreadMetadataChanged(title="Renamed"), None),
    ]


# -- what is read of it ------------------------------------------------------------------------------------------------


async def _append(path: Path) -> set[str]:
    """Append to each thread; the names of those that hold it."""
    told: set[str] = set()
    store = stores.SqliteThreadStore(path, durability="process")
    with suppress(StorageError):
        async with store.open():
            for name in ACTIVE:
                with suppress(StorageError):
                    await store.append(name, _later(name))
                    told.add(name)
    return told


def _look(path: Path) -> Seen:
    database = Database(path, power=False)
    try:
        database.check_readable()
    except StorageError as error:
        return {"open": error}
    with closing(database.connect_reader()) as connection:
        seen = {
            f"{name}: {how}": _told(partial(read, connection, name))
            for name in (*ACTIVE, ARCHIVED, "nobody")
            for how, read in _READS.items()
        }
        for how, ask in _WALKS.items():
            seen[how] = _told(partial(_walk, connection, ask))
    return seen


def _told(read: Callable[[], Any]) -> Any:
    """What a read gives, or the error that the store makes of what it raises."""
    try:
        return read()
    except Exception as error:  # as the readers of a store do
        return storage_error("t", error)


def _state(connection: Connection, name: str) -> Any:
    state = kept.load_state(connection, name)
    return None if state is None else fingerprint(state)


def _events(connection: Connection, name: str) -> Any:
    found: list[rt.EventEnvelope] = []
    while page := query.load_events(connection, name, found[-1].seq if found else 0, 9, None).events:
        found += page
    return found


def _log(connection: Connection, name: str) -> Any:
    found: list[Any] = []
    cursor = None
    while (page := query.read_log_page(connection, name, cursor)) is not None:
        found += [page.created, page.archived, *page.batches]
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


_READS: Mapping[str, Callable[[Connection, str], Any]] = {
    "thread": query.load_thread,
    "metadata": query.load_metadata,
    "state": _state,
    "events": _events,
    "log": _log,
}

_WALKS: Mapping[str, Callable[..., PageQuery]] = {
    "active": page_query,
    "archived": partial(page_query, archived=True),
    "labelled": partial(page_query, label=LABEL),
}


def _walk(connection: Connection, ask: Callable[..., PageQuery]) -> rt.ThreadPage:
    """All of a listing, in pages of two."""
    found, damaged, cursor, pages = [], [], None, 0
    while cursor is not None or not pages:
        page = listing.list_threads(connection, ask("sqlite", limit=2, cursor=cursor))
        found += page.threads
        damaged += page.damaged
        cursor, pages = page.next_cursor, pages + 1
        assert pages < MAX_PAGES, "a listing never ends"
    return rt.ThreadPage(threads=found, damaged=damaged)


# -- damages -----------------------------------------------------------------------------------------------------------


def sweep(count: int, seed: int = 0, *, appends: bool = True) -> Counter[str]:
    """Turn `count` random bits, each in a file of its own; how often what came of it. Without `appends`, only read.

    Raises AssertionError at one that changed what is read, untold.
    """
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, _often_renewed():
        made, path = Path(folder) / "made.db", Path(folder) / "agent.db"
        make_database(made)
        return trio.run(_sweep, made.read_bytes(), path, random.Random(seed), count, appends)


async def _sweep(whole: bytes, path: Path, chance: random.Random, count: int, appends: bool) -> Counter[str]:
    path.write_bytes(whole)
    before = _look(path)
    assert await _append(path) == set(ACTIVE)
    after = _look(path)
    assert not [seen for seen in (*before.values(), *after.values()) if isinstance(seen, StorageError)]
    found: Counter[str] = Counter()
    for number in range(count):
        bit = chance.randrange(len(whole) * 8)
        _place(path, _flipped(whole, bit))
        told = await _append(path) if appends and number % 2 else set()
        found[_judge(_look(path), before, after, told, f"bit {bit} turned, {len(told)} threads appended to,")] += 1
    return found


def _flipped(whole: bytes, bit: int) -> bytes:
    at = bit // 8
    return whole[:at] + bytes([whole[at] ^ 1 << bit % 8]) + whole[at + 1 :]


def _place(path: Path, data: bytes) -> None:
    for suffix in ("-wal", "-shm", ".lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    new = path.with_name("new.db")
    new.write_bytes(data)
    new.replace(path)


def _judge(seen: Seen, before: Seen, after: Seen, told: set[str], name: str) -> str:
    """What came of a damage: "unseen", or how often the best of its errors. Raises AssertionError."""
    errors = {type(one).__name__ for one in seen.values() if isinstance(one, StorageError)}
    for how, one in seen.items():
        if isinstance(one, StorageError):
            continue
        if isinstance(one, rt.ThreadPage):
            _judge_listing(one, how, before, after, told, name)
            errors |= {DAMAGED} if one.damaged else set()
        else:
            wanted = after if how.partition(":")[0] in told else before
            assert one == wanted[how], f"{name} changed {how}"
    return ", ".join(sorted(errors)) or "unseen"


def _judge_listing(page: rt.ThreadPage, how: str, before: Seen, after: Seen, told: set[str], name: str) -> None:
    """A listing holds what is wanted, in order, apart from as many threads as it names as damaged."""
    newer = {row.thread_id: row for row in after[how].threads if row.thread_id in told}
    wanted = [newer.get(row.thread_id, row) for row in before[how].threads]
    wanted.sort(key=lambda row: (row.updated_at, row.thread_id), reverse=True)
    there = [row for row in wanted if row in page.threads]
    assert list(page.threads) == there, f"{name} changed {how}"
    assert len(wanted) - len(there) <= len(set(page.damaged)), f"{name} hid a thread of {how}"
