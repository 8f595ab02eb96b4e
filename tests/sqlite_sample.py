"""Writes the stored sample of a schema: the statements that make a store's file as a version leaves it.

Run as `python -m tests.sqlite_sample > tests/samples/sqlite_v<N>.sql` when a version is released, and never again for
that version: the samples are what users have.
"""

import contextlib
import sqlite3
import sys
import tempfile
from pathlib import Path

import trio

from roder_trio.schema import transcript
from roder_trio.schema.event import ThreadMetadataChanged, TurnCompleted, TurnStarted
from roder_trio.schema.usage import TokenUsage
from roder_trio.stores import SqliteThreadStore
from roder_trio.testing._sample import Sample

SAMPLES = Path(__file__).parent / "samples"


async def fill(path):
    """Make a store with an active and an archived thread, and a kept state."""
    store = SqliteThreadStore(path, durability="process")
    async with store.open():
        for name in ("active", "archived"):
            sample = Sample(name)
            await store.create_thread(sample.metadata(labels={"team": "blue"}))
            await store.append(name, [sample.envelope(TurnStarted("p", "m"), "u"), sample.user("Grüße\0", "u")])
            await store.append(name, [sample.usage("a", 1, 3, 1, 4, turn="u", goal_id="g"), sample.state("k", [None])])
            await store.append(
                name,
                [
                    sample.item(transcript.AssistantMessage("answer"), "u"),
                    sample.delta("x", "u"),
                    sample.envelope(ThreadMetadataChanged(labels={"team": "red"}), None),
                    sample.envelope(TurnCompleted(TokenUsage(3, 1, 4), "stop"), "u"),
                ],
            )
        await store.archive_thread("archived")


def dump(path):
    """The statements that make the file again."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (mark,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        yield f"PRAGMA application_id = {mark};"
        yield f"PRAGMA user_version = {version};"
        yield from connection.iterdump()


def restore(sample, path):
    """Make the file that a sample describes."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(sample.read_text("utf-8"))


if __name__ == "__main__":
    from roder_trio.stores.sqlite import kept

    kept.RENEWED_AFTER = 1
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent.db"
        trio.run(fill, file)
        sys.stdout.write("\n".join(dump(file)) + "\n")
