"""What the tests of the journal store share: stores that open, and disks that count, fail, block or kill."""

import errno
import os
import threading
from contextlib import asynccontextmanager

import trio

from roder_trio.stores import JsonlThreadStore
from roder_trio.stores._disk import Disk
from roder_trio.testing._sample import Sample

STEPS = ("write", "truncate", "sync", "sync_directory", "write_new", "rename", "remove")


@asynccontextmanager
async def opened(base, disk=None, **options):
    """An open store; by default one that doesn't wait for the medium."""
    store = JsonlThreadStore(base, **{"durability": "process", **options})
    if disk is not None:
        store._disk = disk
    async with store.open():
        yield store


async def fill(base, *batches, thread_id="t"):
    """Make a thread that holds these texts, one batch for each argument; returns what makes its records."""
    sample = Sample(thread_id)
    async with opened(base) as store:
        await store.create_thread(sample.metadata())
        for batch in batches:
            await store.append(thread_id, sample.texts(*batch))
    return sample


async def index_at_rest(store):
    """Wait until no worker writes the index."""
    while store._index_lane.busy:  # noqa: ASYNC110 - a lane tells only who asked
        await trio.lowlevel.checkpoint()


def journal(base, name="t"):
    return base / "threads" / f"{name}.jsonl"


def texts(snapshot):
    return [envelope.event.item.text for envelope in snapshot.events]


class FlakyDisk(Disk):
    """Counts its steps; the next calls of the steps in `fail` raise, those in `block` wait for `release`."""

    def __init__(self, *, power=False):
        super().__init__(power=power)
        self.calls = dict.fromkeys((*STEPS, "read"), 0)
        self.fail = {}
        self.block = set()
        self.blocked = threading.Event()
        self.release = threading.Event()
        self.renamed = threading.Event()
        self.written = []

    async def hold(self, step, nursery, call, *arguments):
        """Start a call, and have it stop at a step of its worker until `let_go`."""
        self.block.add(step)
        nursery.start_soon(call, *arguments)
        await trio.to_thread.run_sync(self.blocked.wait)

    def let_go(self):
        """Let what is held go on, and hold nothing from now on."""
        self.block.clear()
        self.release.set()

    def _step(self, name):
        self.calls[name] += 1
        if name in self.block:
            self.blocked.set()
            self.release.wait()
        error = self.fail.pop(name, None)
        if error is not None:
            raise error if isinstance(error, Exception) else OSError(error, os.strerror(error))

    def read(self, path):
        self._step("read")
        return super().read(path)

    def write(self, descriptor, data, offset):
        self.written.append(data)
        if self.fail.get("write") == errno.ENOSPC:
            # a full disk takes what fits
            super().write(descriptor, data[: len(data) // 2], offset)
        self._step("write")
        super().write(descriptor, data, offset)

    def truncate(self, descriptor, size):
        self._step("truncate")
        super().truncate(descriptor, size)

    def sync(self, descriptor):
        self._step("sync")
        super().sync(descriptor)

    def sync_directory(self, path):
        self._step("sync_directory")
        super().sync_directory(path)

    def rename(self, source, target):
        self._step("rename")
        super().rename(source, target)
        self.renamed.set()

    def remove(self, path):
        self._step("remove")
        return super().remove(path)


class KillingDisk(Disk):
    """Reaches points of a crash at each of its steps: "before" it, "in" the middle of a write, "after" it."""

    def __init__(self, crash):
        super().__init__(power=False)
        self.crash = crash
        self.armed = False

    def _around(self, step, *arguments):
        if not self.armed:
            return step(*arguments)
        self.crash.reach("before")
        if step.__name__ == "write":
            descriptor, data, offset = arguments
            step(descriptor, data[: len(data) // 2], offset)
            self.crash.reach("in")
        result = step(*arguments)
        self.crash.reach("after")
        return result


def _killing(name):
    def step(self, *arguments, **options):
        if options:
            return getattr(Disk, name)(self, *arguments, **options)
        return self._around(getattr(super(KillingDisk, self), name), *arguments)

    return step


for _name in STEPS:
    if _name != "write_new":
        setattr(KillingDisk, _name, _killing(_name))
