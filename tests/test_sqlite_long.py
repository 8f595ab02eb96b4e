"""A thread of 100,000 records in a SQLite store: what hydrating it reads, and what one more append costs."""

import shutil
from pathlib import Path

import pytest
import trio

from roder_trio.logic.thread.hydration import fold_snapshot
from roder_trio.schema import transcript
from roder_trio.schema.event import TurnCompleted, TurnStarted
from roder_trio.schema.usage import TokenUsage
from roder_trio.stores import _sql_record
from roder_trio.testing._sample import Sample
from tests.kept_states import fingerprint
from tests.sqlite_support import opened, raw, settled

pytestmark = pytest.mark.unmeasured

LENGTH = 100_000
AFTER = 200
"""Records behind the state that is kept."""
BATCH = 10_000


def turn(sample, name, length):
    """The records of a turn, so many in all."""
    opening = [sample.envelope(TurnStarted("p", "m"), name), sample.user(f"question {name}", name)]
    thoughts = [sample.item(transcript.ReasoningSummary(f"{number}"), name) for number in range(length - 5)]
    return [
        *opening,
        *thoughts,
        sample.usage(f"attempt-{name}", 1, 5, 2, 7, turn=name),
        sample.item(transcript.AssistantMessage(f"answer {name}"), name),
        sample.envelope(TurnCompleted(TokenUsage(5, 2, 7), "stop"), name),
    ]


async def make(path):
    sample = Sample("t")
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
        for number in range(LENGTH // BATCH - 1):
            await store.append("t", turn(sample, f"{number}", BATCH))
            await settled(store)
        await store.append("t", turn(sample, "kept", BATCH - AFTER))
        await settled(store)
        await store.append("t", turn(sample, "last", AFTER))


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "agent.db"
    trio.run(make, path)
    return path


@pytest.fixture
def path(made_once, tmp_path) -> Path:
    return shutil.copyfile(made_once, tmp_path / "agent.db")


async def test_a_thread_of_100_000_records_is_hydrated_from_the_last_few_hundred(path, monkeypatch):
    decoded = []
    real = _sql_record.stored_record

    def counted(thread_id, data, position):
        decoded.append(position)
        return real(thread_id, data, position)

    async with opened(path) as store:
        assert raw(path, "SELECT count(*) FROM entry WHERE position > 0") == [(LENGTH,)]
        with monkeypatch.context() as patch:
            patch.setattr(_sql_record, "stored_record", counted)
            state = await store.load_state("t")
        assert AFTER <= len(decoded) <= 700
        snapshot = await store.load_thread("t")
        assert fingerprint(state) == fingerprint(fold_snapshot(snapshot, snapshot.metadata))


async def steps_of(store, records):
    """How many instructions SQLite runs for an append of these records."""
    steps = 0

    def step():
        nonlocal steps
        steps += 1

    store._writer.connection.set_progress_handler(step, 1)
    await store.append("t", records)
    store._writer.connection.set_progress_handler(None, 1)
    return steps


async def test_an_append_costs_the_same_behind_100_000_records_as_behind_100(path, tmp_path):
    found = []
    for place, length in ((tmp_path / "short.db", 100), (path, LENGTH)):
        sample = Sample("t")
        async with opened(place) as store:
            if length == 100:
                await store.create_thread(sample.metadata())
                await store.append("t", turn(sample, "first", 100))
            sample.made = sample.seq = LENGTH + 1
            for name in ("one", "two"):
                batch = [sample.user("x", name), sample.usage(f"attempt-{name}", 1, 1, 1, 2, turn=name)]
                found.append(await steps_of(store, batch))
    assert min(found) > 50
    assert max(found) - min(found) <= 10
