"""Files of stores that are damaged in every place: what is read then is a prefix of what was stored, or an error.

Rules of the room: a damage is a new content of one file. What may come of it is the same for all: the first batches of
the log, unchanged, or a `StorageError`; what a journal had to set aside is told.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import trio

import roder_trio as rt
from roder_trio import StorageError, ThreadStore, stores
from roder_trio.testing._sample import Sample

BATCHES = (("one", "two"), ("three",), ("four", "five", "six"), ("seven",))
THREAD = "damaged"
FLIPS = (0x01, 0x04, 0x80)

Damages: TypeAlias = Iterator[bytes]


# -- files -------------------------------------------------------------------------------------------------------------


def make_journal(folder: Path) -> Path:
    """Make a journal; the path of its file."""
    trio.run(_fill, stores.JsonlThreadStore(folder, durability="process"))
    return folder / "threads" / f"{THREAD}.jsonl"


def make_log(folder: Path) -> Path:
    """Make a database as a killed process leaves it, all that was appended being in its log; the path of the log."""
    made, left = folder / "made.db", folder / "agent.db"

    def leave() -> None:
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{made}{suffix}", f"{left}{suffix}")

    trio.run(_fill, stores.SqliteThreadStore(made, durability="process"), leave)
    return folder / "agent.db-wal"


async def _fill(store: ThreadStore, leave: Callable[[], None] = lambda: None) -> None:
    sample = Sample(THREAD)
    async with store.open():
        await store.create_thread(sample.metadata())
        for batch in BATCHES:
            await store.append(THREAD, sample.texts(*batch))
        leave()


# -- damages -----------------------------------------------------------------------------------------------------------


def cuts(whole: bytes, start: int = 0, step: int = 1) -> Damages:
    """The file cut at each byte from `start` on."""
    for size in range(start, len(whole), step):
        yield whole[:size]


def flips(whole: bytes, start: int = 0, step: int = 1) -> Damages:
    """Some bits of each byte turned."""
    for at in range(start, len(whole), step):
        for bits in FLIPS:
            yield whole[:at] + bytes([whole[at] ^ bits]) + whole[at + 1 :]


def tails(whole: bytes) -> Damages:
    """Zero bytes behind the file, as many as a lost write may leave."""
    for size in (1, 2, 511, 512, 4096, 8216):
        yield whole + bytes(size)


def without_lines(whole: bytes) -> Damages:
    """The file without each of its lines that others follow, the first one aside."""
    lines = whole.splitlines(keepends=True)
    for at in range(1, len(lines) - 1):
        yield b"".join(lines[:at] + lines[at + 1 :])


def sweep(store: str) -> Counter[str]:
    """All damages of a kind of store's files, each byte of a journal and every 31st of a log; how often what came."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name) / "store"
        folder.mkdir()
        if store == "jsonl":
            path, opened = make_journal(folder), partial(stores.JsonlThreadStore, folder, durability="process")
        else:
            path = make_log(folder)
            opened = partial(stores.SqliteThreadStore, folder / "agent.db", durability="process")
        whole = path.read_bytes()
        step = 1 if store == "jsonl" else 31
        damages = chain(cuts(whole, step=step), flips(whole, step=step), tails(whole))
        return check_damages(path, opened, chain(damages, without_lines(whole) if store == "jsonl" else ()))


# -- what may come of them ---------------------------------------------------------------------------------------------


def check_damages(path: Path, open_store: Callable[[], ThreadStore], damages: Iterable[bytes]) -> Counter[str]:
    """Put each damage in the file's place and read the thread. Returns how often what came of it.

    Raises AssertionError at a damage that changed a record, or that took some away unnoticed.
    """
    folder = path.parent.parent if path.suffix == ".jsonl" else path.parent
    kept = folder.with_name(f"{folder.name}-kept")
    shutil.copytree(folder, kept)
    whole = trio.run(_read, open_store())
    assert isinstance(whole, rt.ThreadSnapshot)
    found: Counter[str] = Counter()
    for number, damaged in enumerate(damages):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        path.write_bytes(damaged)
        found[_judge(trio.run(_read, open_store()), whole, f"damage {number} of {path.name}")] += 1
    return found


async def _read(store: ThreadStore) -> rt.ThreadSnapshot | StorageError | None:
    try:
        async with store.open():
            return await store.load_thread(THREAD)
    except StorageError as error:
        return error


def _judge(read: rt.ThreadSnapshot | StorageError | None, whole: rt.ThreadSnapshot, name: str) -> str:
    match read:
        case StorageError():
            return type(read).__name__
        case None:
            return "gone"
    assert list(read.events) == list(whole.events)[: len(read.events)], f"{name} changed a record"
    assert len(read.events) in _whole_batches(BATCHES), f"{name} split a batch"
    assert read.metadata is not None
    assert read.metadata.message_count == len(read.events)
    if read.repairs:
        return "prefix, told"
    return "whole" if read.events == whole.events else "prefix"


def _whole_batches(batches: Sequence[Sequence[str]]) -> list[int]:
    return [sum(map(len, batches[:count])) for count in range(len(batches) + 1)]
