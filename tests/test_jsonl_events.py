"""Pages of events of a journal: each reads what it holds, and is what the snapshot says, whatever was done between."""

import random

import pytest

from roder_trio.errors import CorruptRecord
from roder_trio.stores.jsonl import events
from roder_trio.testing._sample import Sample
from tests.jsonl_support import fill, journal, opened


@pytest.fixture
def base(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def parsed(monkeypatch):
    """The numbers of the batches that were parsed."""
    found = []
    real = events.read_batch

    def counted(data, start, end):
        batch = real(data, start, end)
        found.append(batch[0])
        return batch

    monkeypatch.setattr(events, "read_batch", counted)
    return found


async def test_a_page_parses_the_batches_that_it_holds(base, parsed):
    sample = Sample("t")
    async with opened(base) as store:
        await store.create_thread(sample.metadata())
        for _ in range(20):
            await store.append("t", [sample.user("a"), sample.delta("x"), sample.user("b")])
        seqs = []
        while page := await store.load_events("t", len(seqs), limit=3):
            seqs += [event.seq for event in page]
            assert len(parsed) <= 3
            parsed.clear()
        assert seqs == list(range(1, 41))
        parsed.clear()
        await store.append("t", [sample.user("later")])
        assert [event.seq for event in await store.load_events("t", 40)] == [41]
        assert parsed == [21, 22]


@pytest.mark.parametrize("seed", range(6))
async def test_any_page_of_any_journal_is_what_its_snapshot_holds(base, monkeypatch, seed):
    monkeypatch.setattr(events, "MAX_MARKS", 3)
    monkeypatch.setattr(events, "PIECE", 700)
    chance, sample, known = random.Random(seed), Sample("t"), []
    async with opened(base) as store:
        await store.create_thread(sample.metadata())
        for _ in range(12):
            batch = sample.any_batch(chance, known)
            if seed % 2:
                chance.shuffle(batch)
            await store.append("t", batch)
            stored = (await store.load_thread("t")).events
            for _ in range(12):
                after, limit = chance.randrange(sample.seq + 2), chance.choice((1, 3, 500))
                found = await store.load_events("t", after, limit)
                assert found == [event for event in stored if event.seq > after][:limit]


async def test_a_page_of_another_journal_under_the_id_begins_anew(base):
    first, second = Sample("t"), Sample("t")
    second.made = 100
    async with opened(base) as store, opened(base, read_only=True) as reader:
        await store.create_thread(first.metadata())
        await store.append("t", first.texts("a", "b", "c"))
        assert len(await reader.load_events("t", limit=3)) == 3
        await store.delete_thread("t")
        assert await reader.load_events("t", 3) == []
        await store.create_thread(first.metadata())
        await store.append("t", second.texts("d", "e", "f", "g", "h")[::-1])
        assert [event.seq for event in await reader.load_events("t", 3)] == [5, 4]


async def test_damage_behind_the_last_page_is_told_by_the_next_and_a_torn_tail_ends_it(base):
    sample = await fill(base, ["one"], ["two"])
    async with opened(base, read_only=True) as store:
        assert len(await store.load_events("t", limit=2)) == 2
        async with opened(base) as owner:
            await owner.append("t", sample.texts("three"))
            await owner.append("t", sample.texts("four"))
        whole = journal(base).read_bytes()
        journal(base).write_bytes(whole[:-2])
        assert [event.seq for event in await store.load_events("t", 2)] == [3]
        journal(base).write_bytes(whole.replace(b"three", b"throe"))
        with pytest.raises(CorruptRecord, match=r"line 5, offset \d+: bytes that are no batch"):
            await store.load_events("t", 2)
        lines = whole.splitlines(keepends=True)
        journal(base).write_bytes(b"".join([*lines[:4], *lines[5:]]))
        with pytest.raises(CorruptRecord, match=r"line 5, offset \d+: batch 5 stands where batch 4 belongs"):
            await store.load_events("t", 2)
