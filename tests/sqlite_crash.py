"""What the processes do that the crash tests of the SQLite store kill."""

import os

import trio

from roder_trio.stores.sqlite.schema import TABLES, Migration, Schema
from roder_trio.testing._sample import Sample
from tests.sqlite_support import killing, made, sign

FLOW = ("create", "append one", "append two", "archive", "unarchive", "delete", "create", "append four")


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
    sample.made = ("one", "two", "four").index(text)
    sample.seq = sample.made
    return sample.user(text)


def run_flow(path, at, told):
    """Run the flow, killed before one statement; each finished step of the flow is a byte in the file `told`."""

    async def main():
        connection = killing(at)
        store = made(path, connection=connection)
        async with store.open():
            connection.armed = True
            for step in FLOW:
                await perform(store, Sample("t"), step)
                os.write(descriptor, b".")
            connection.armed = False

    descriptor = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    trio.run(main)


def run_open(path, at):
    """Open the store, with a migration if there is an older one, killed before one statement."""

    async def main():
        connection = killing(at)
        connection.armed = True
        async with made(path, connection=connection, schema=NEXT).open():
            connection.armed = False

    trio.run(main)


def two_steps(connection):
    connection.execute("ALTER TABLE thread ADD COLUMN note TEXT")
    connection.execute("UPDATE entry SET body = replace(body, 'answer', 'reply')")
    sign(connection)


NEXT = Schema(2, TABLES, {1: Migration(two_steps, rewrites_bodies=True)})


def run_holder(path, told):
    """Hold the store, with a thread whose appends are told as they return, each in a line, until killed."""

    async def main():
        store = made(path)
        async with store.open():
            sample = Sample("t")
            await store.create_thread(sample.metadata())
            while True:
                batch = sample.texts("x", "y")
                await store.append("t", batch)
                os.write(descriptor, " ".join(record.event_id for record in batch).encode() + b"\n")

    descriptor = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    trio.run(main)
