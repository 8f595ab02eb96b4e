"""States kept beside the logs of a SQLite store: when they are made, what hydration reads, when they don't count."""

import random
import sqlite3
import zlib
from functools import partial

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from roder_trio.codec.state import FOLD_VERSION, encode_state
from roder_trio.errors import CorruptRecord, InvalidCursor
from roder_trio.logic.thread.hydration import fold_snapshot
from roder_trio.schema import transcript
from roder_trio.schema.event import TurnCompleted, TurnStarted
from roder_trio.schema.usage import TokenUsage
from roder_trio.stores import _sql_record, export_thread
from roder_trio.stores.sqlite import kept
from roder_trio.testing._sample import Sample
from tests.kept_states import fingerprint
from tests.sqlite_support import Flaw, error_of, fill, opened, raw, settled

KEPT = "SELECT position, fold_version FROM checkpoint"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.db"


def turn(sample, name, fillers=0):
    """The records of a turn."""
    return [
        sample.envelope(TurnStarted("p", "m"), name),
        sample.user(f"question {name}", name),
        *[sample.item(transcript.ReasoningSummary(f"{n}"), name) for n in range(fillers)],
        sample.usage(f"attempt-{name}", 1, 5, 2, 7, turn=name),
        sample.item(transcript.AssistantMessage(f"answer {name}"), name),
        sample.envelope(TurnCompleted(TokenUsage(5, 2, 7), "stop"), name),
    ]


async def check_state(store, thread_id="t"):
    snapshot = await store.load_thread(thread_id)
    state = await store.load_state(thread_id)
    assert fingerprint(state) == fingerprint(fold_snapshot(snapshot, snapshot.metadata))


@pytest.fixture
def decoded(monkeypatch):
    """The positions of the records that were decoded."""
    found = []
    real = _sql_record.stored_record

    def counted(thread_id, data, position):
        found.append(position)
        return real(thread_id, data, position)

    monkeypatch.setattr(_sql_record, "stored_record", counted)
    return found


async def test_the_end_of_a_turn_renews_the_state_once_500_records_follow_the_last(path):
    sample = Sample("t")
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
        for fillers, there in ((494, []), (0, [(504, FOLD_VERSION)]), (489, [(504, FOLD_VERSION)])):
            await store.append("t", turn(sample, f"u{fillers}", fillers))
            await settled(store)
            assert raw(path, KEPT) == there
        await store.append("t", [sample.user(f"{n}", "u0") for n in range(9)])
        assert store._renewals._running == {}
        await store.append("t", turn(sample, "last"))
        await settled(store)
        assert raw(path, KEPT) == [(1012, FOLD_VERSION)]
        await check_state(store)


async def test_hydration_reads_the_records_after_the_kept_state_and_no_others(path, decoded):
    sample = Sample("t")
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
        for number in range(6):
            await store.append("t", turn(sample, f"{number}", 495))
        await settled(store)
        await store.append("t", turn(sample, "after", 195))
        decoded.clear()
        state = await store.load_state("t")
        assert 200 <= len(decoded) <= 700
        assert min(decoded) > 2500
        snapshot = await store.load_thread("t")
        assert fingerprint(state) == fingerprint(fold_snapshot(snapshot, snapshot.metadata))


async def test_the_state_of_a_random_log_is_the_fold_of_all_of_it(path, monkeypatch):
    monkeypatch.setattr("roder_trio.stores.sqlite.kept.RENEWED_AFTER", 7)
    async with opened(path) as store:
        for seed in range(5):
            chance, sample = random.Random(seed), Sample(f"t{seed}")
            await store.create_thread(sample.metadata())
            known = []
            for number in range(12):
                await store.append(sample.thread_id, turn(sample, f"u{number}", chance.randrange(3)))
                await store.append(
                    sample.thread_id, [sample.delta("x", f"u{number}"), sample.state("k", chance.random())]
                )
                known += [sample.usage(f"attempt-u{chance.randrange(number + 1)}", 2 + number, 9, 9, 18)]
                await store.append(sample.thread_id, [chance.choice(known)])
                if chance.random() < 0.5:
                    await settled(store)
                await check_state(store, sample.thread_id)
            await settled(store)
    assert len(raw(path, KEPT)) == 5


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE checkpoint SET fold_version = 0",
        "UPDATE checkpoint SET body = 'text'",
        "UPDATE checkpoint SET body = x'00'",
        "UPDATE checkpoint SET position = 100000",
        "UPDATE checkpoint SET position = position - 1",
        "UPDATE checkpoint SET crc = crc + 1",
        "UPDATE checkpoint SET body = x'00', crc = crc_of(thread_id, position, fold_version, crc32_of(x'00'))",
        "DELETE FROM checkpoint",
    ],
)
async def test_a_kept_state_that_is_of_no_use_is_passed_over_and_replaced(path, spoil):
    sample = Sample("t")
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
        await store.append("t", turn(sample, "one", 500))
        await settled(store)
        assert raw(path, KEPT) == [(505, FOLD_VERSION)]
        raw(path, spoil)
        await check_state(store)
    async with opened(path) as store:
        await check_state(store)
        await store.append("t", turn(sample, "two", 500))
        await settled(store)
        assert raw(path, KEPT) == [(1010, FOLD_VERSION)]
        await check_state(store)


async def test_a_record_that_a_kept_state_holds_as_a_sum_is_counted_once(path):
    sample = Sample("t")
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
        for number in range(120):
            await store.append("t", turn(sample, f"u{number}"))
        await settled(store)
        await store.append("t", [sample.usage("attempt-u0", 2, 50, 20, 70, turn="u0")])
        await check_state(store)


async def test_a_deletion_ends_a_renewal_and_leaves_nothing_of_it(path, monkeypatch):
    # the reader of the renewal holds what is removed until it was let go and has come to its end
    monkeypatch.setattr("roder_trio.stores.sqlite.writer.SCRUB_SECONDS", 60.0)
    sample = Sample("t")
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store, trio.open_nursery() as nursery:
        await store.create_thread(sample.metadata())
        flaw.block.add("SELECT position, body, crc FROM checkpoint")
        await store.append("t", turn(sample, "one", 500))
        await trio.to_thread.run_sync(flaw.blocked.wait)
        store._renewals.begin("t")
        nursery.start_soon(store.delete_thread, "t")
        await wait_all_tasks_blocked()
        flaw.block.clear()
        flaw.release.set()
    assert raw(path, "SELECT count(*) FROM checkpoint UNION SELECT count(*) FROM thread") == [(0,)]


async def test_a_kept_state_of_a_thread_that_is_gone_is_not_stored(path, monkeypatch):
    sample = await fill(path, ["one"])
    async with opened(path) as store:
        assert await store._readers.ask("t", partial(kept.renewed, thread_id="t")) is None
        monkeypatch.setattr(kept, "RENEWED_AFTER", 1)
        stand, body = await store._readers.ask("t", partial(kept.renewed, thread_id="t"))
        await store.archive_thread("t")
        assert await store._readers.ask("t", partial(kept.renewed, thread_id="t")) is None
        assert await store.load_state("t") is None
        assert await store.load_state("\ud800") is None
        await store.delete_thread("t")
        await store.create_thread(sample.metadata())
        await store._writer.call("t", partial(kept.keep, thread_id="t", stand=stand, body=body))
    assert raw(path, KEPT) == []


async def test_a_renewal_that_fails_is_told_to_the_log_and_harms_nobody(path, caplog):
    sample = Sample("t")
    flaw = Flaw()
    async with opened(path, connection=flaw.connection) as store:
        await store.create_thread(sample.metadata())
        flaw.fail["INSERT OR REPLACE INTO checkpoint"] = error_of(sqlite3.SQLITE_FULL, "the disk is full")
        await store.append("t", turn(sample, "one", 500))
        await settled(store)
        assert "could not be kept" in caplog.text
        await store.append("t", turn(sample, "two"))
        await settled(store)
    assert raw(path, KEPT) == [(510, FOLD_VERSION)]


@pytest.mark.parametrize(("seconds", "there"), [(60.0, [(505, FOLD_VERSION)]), (0.0, [])])
async def test_leaving_the_store_waits_a_little_for_renewals(path, seconds, there, monkeypatch):
    monkeypatch.setattr("roder_trio.stores.sqlite.store.RENEWAL_SECONDS", seconds)
    sample = Sample("t")
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
        await store.append("t", turn(sample, "one", 500))
    assert raw(path, KEPT) == there
    async with opened(path) as store:
        await check_state(store)


async def test_what_is_kept_is_the_packed_text_of_the_state(path):
    sample = Sample("t")
    async with opened(path) as store:
        await store.create_thread(sample.metadata())
        await store.append("t", turn(sample, "one", 500))
        await settled(store)
        state = await store.load_state("t")
    ((body,),) = raw(path, "SELECT body FROM checkpoint")
    assert zlib.decompress(body).decode() == encode_state(state)


# -- logs as they are stored


async def test_a_log_is_shown_piece_by_piece_as_it_is_stored(path, monkeypatch):
    monkeypatch.setattr("roder_trio.stores.sqlite.query.CHUNK_RECORDS", 3)
    sample = await fill(path, ["one", "two"], ["three", "four"], ["five"])
    async with opened(path) as store:
        await store.archive_thread("t")
        bodies, cursor, pages = [], None, 0
        while True:
            page = await store.read_log("t", cursor)
            pages += 1
            bodies += page.batches
            assert page.archived
            cursor = page.next_cursor
            if cursor is None:
                break
        assert pages == 2
        stored = [body for (body,) in raw(path, "SELECT body FROM record ORDER BY position")]
        assert b",".join(body[1:-1] for body in bodies).decode() == ",".join(stored)
        await store.create_thread(Sample("empty").metadata())
        assert (await store.read_log("empty")).batches == ()
        assert await store.read_log("unknown") is None
        assert await store.read_log("\ud800") is None
        for bad in ("", "x", "-1", "1" * 19, "²", 3):
            with pytest.raises(InvalidCursor):
                await store.read_log("t", bad)
        monkeypatch.setattr("roder_trio.stores.sqlite.query.CHUNK_BYTES", 1)
        assert (await store.read_log("t")).next_cursor == "1"
    assert sample.made == 5


async def test_an_export_copies_the_stored_text(path, tmp_path):
    await fill(path, ["one"], ["two"])
    async with opened(path) as store:
        await export_thread(store, "t", tmp_path / "t.jsonl")
    exported = (tmp_path / "t.jsonl").read_text()
    for (body,) in raw(path, "SELECT body FROM record"):
        assert body in exported
    raw(path, "DELETE FROM entry WHERE position = 0")
    async with opened(path) as store:
        with pytest.raises(CorruptRecord):
            await store.read_log("t")
        assert attrs.evolve(await store.load_metadata("t"), title=None).thread_id == "t"
