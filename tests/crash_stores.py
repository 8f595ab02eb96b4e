"""Stores for the checks of the crash kit, made in this process and in those that are killed."""

import os
import signal
from pathlib import Path

import trio

from roder_trio import stores


def jsonl(base: Path, name: str) -> stores.JsonlThreadStore:
    return stores.JsonlThreadStore(base / name, durability="process")


class Halves(stores.JsonlThreadStore):
    """Appends a batch in two, so a crash in between leaves a half."""

    async def append(self, thread_id, records):
        await super().append(thread_id, records[:1])
        await trio.lowlevel.checkpoint()
        await super().append(thread_id, records[1:])


class Late(stores.JsonlThreadStore):
    """Acknowledges the first append of each process before it is stored."""

    kept = None

    async def append(self, thread_id, records):
        if self.kept is None:
            self.kept = records
            await trio.lowlevel.checkpoint()
            return
        await super().append(thread_id, [*self.kept, *records])
        self.kept = ()


def halves(base: Path, name: str) -> Halves:
    return Halves(base / name, durability="process")


def late(base: Path, name: str) -> Late:
    return Late(base / name, durability="process")


def count_down(crash, path: str, steps: int) -> None:
    """A victim with points of its own."""
    crash.last_words = lambda: Path(path).write_text("the end")
    for _ in range(steps):
        crash.reach("step")
        crash.reach("other")


def fail(crash) -> None:
    os._exit(3)


def hang(crash) -> None:
    while True:
        signal.pause()


def explode() -> None:
    raise ValueError("it can't be read back")


class Unreadable:
    """An argument that can be pickled and not read back."""

    def __reduce__(self):
        return explode, ()
