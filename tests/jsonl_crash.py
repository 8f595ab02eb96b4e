"""What the processes do that the crash tests of the journal store kill."""

import os

import trio

from roder_trio.stores import JsonlThreadStore
from roder_trio.testing._sample import Sample
from tests.jsonl_support import KillingDisk

FLOW = (
    "create",
    "append one",
    "append two",
    "archive",
    "unarchive",
    "append three",
    "delete",
    "create",
    "append four",
)


async def perform(store, sample, step):
    """One step of the flow; a step that was done before is done again without harm."""
    action, _, text = step.partition(" ")
    if action == "create":
        await store.create_thread(sample.metadata())
    elif action == "append":
        await store.append(sample.thread_id, [record_of(text)])
    else:
        await getattr(store, f"{action}_thread")(sample.thread_id)


def record_of(text):
    """The record of a text, the same in each process."""
    sample = Sample("t")
    sample.made = ("one", "two", "three", "four").index(text)
    sample.seq = sample.made
    return sample.user(text)


def run_flow(crash, base, told):
    """Run the flow, with points at the steps of the disk; each finished step is a byte in the file `told`."""

    async def main():
        store = JsonlThreadStore(base)
        store._disk = disk = KillingDisk(crash)
        async with store.open():
            # the index is a cache written beside the flow; its steps would make the count depend on the clock
            store._index_lane = None
            store._save_index = lambda rows: None
            store._flush_index = trio.lowlevel.checkpoint
            disk.armed = True
            for step in FLOW:
                await perform(store, Sample("t"), step)
                os.write(descriptor, b".")
            disk.armed = False

    descriptor = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    trio.run(main)


def run_repair(crash, base):
    """Load a thread that has a torn tail, with points at the steps of the disk."""

    async def main():
        store = JsonlThreadStore(base)
        store._disk = disk = KillingDisk(crash)
        async with store.open():
            disk.armed = True
            await store.load_thread("t")
            disk.armed = False

    trio.run(main)


def run_holder(base, told):
    """Hold the store, with a thread whose appends are told as they return, until killed."""

    async def main():
        store = JsonlThreadStore(base)
        async with store.open():
            sample = Sample("t")
            await store.create_thread(sample.metadata())
            while True:
                record = sample.user("x")
                await store.append("t", [record])
                os.write(descriptor, f"{record.event_id}\n".encode())

    descriptor = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    trio.run(main)
