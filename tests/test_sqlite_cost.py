"""What the calls of a SQLite store cost: statements and plans, which don't depend on how long a log is."""

from functools import partial

import pytest
import trio

import roder_trio as rt
from roder_trio import inference, providers
from roder_trio.testing._sample import Sample
from tests.sqlite_support import fill, made, opened, raw, texts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.db"


@pytest.mark.parametrize(("durability", "level"), [("power", 2), ("process", 1)])
async def test_durability_is_how_far_a_commit_waits(path, durability, level):
    async with opened(path, durability=durability) as store:
        connection = store._writer.connection
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA secure_delete").fetchone() == (1,)
        assert connection.execute("PRAGMA fullfsync").fetchone() == (int(level == 2),)


async def statements_of(store, call):
    """The statements that the writer runs for a call, with the numbers of rows that it may visit by scanning."""
    seen = []
    connection = store._writer.connection
    connection.set_trace_callback(seen.append)
    await call()
    connection.set_trace_callback(None)
    return seen


async def test_an_append_costs_the_same_statements_however_long_the_log_is(path):
    sample = await fill(path)
    async with opened(path) as store:
        found = []
        for length in (0, 1, 2000):
            await store.append("t", [sample.usage(f"a{n}-{length}", 1, 1, 1, 2) for n in range(length)])
            batch = [sample.user("x"), sample.usage(f"one-{length}", 1, 1, 1, 2)]
            found.append(await statements_of(store, partial(store.append, "t", batch)))
        shapes = [[statement.partition(" ")[0] for statement in one] for one in found]
        assert shapes[0] == shapes[1] == shapes[2]
        assert len(shapes[0]) <= 12
        plans = [
            step
            for statement in found[2]
            if statement.partition(" ")[0] in ("SELECT", "UPDATE", "INSERT")
            for (_, _, _, step) in raw(path, f"EXPLAIN QUERY PLAN {statement}")
        ]
        assert not [step for step in plans if step.startswith("SCAN") and "json_each" not in step]


async def test_a_page_of_a_listing_and_a_thread_are_found_by_index(path):
    sample = await fill(path, ["one"])
    async with opened(path) as store:
        seen = []
        reader = store._database.connect_reader()
        reader.set_trace_callback(seen.append)
        store._readers._idle.append(reader)
        cursor = (await store.list_threads(limit=1)).next_cursor
        assert cursor is None
        await store.create_thread(Sample("u").metadata(9, labels={"a": "b"}))
        cursor = (await store.list_threads(limit=1)).next_cursor
        await store.list_threads(limit=1, cursor=cursor)
        await store.list_threads(limit=1, label=("a", "b"))
        await store.load_metadata("t")
        await store.load_events("t")
        await store.load_state("t")
        assert texts(await store.load_thread("t")) == ["one"]
    plans = [
        step
        for statement in seen
        if statement.lstrip().startswith("SELECT")
        for (_, _, _, step) in raw(path, f"EXPLAIN QUERY PLAN {statement}")
    ]
    assert len(plans) > 20
    # `listed` is the page itself, found by index and cut
    assert not [step for step in plans if step.startswith("SCAN") and step not in ("SCAN listed", "SCAN CONSTANT ROW")]
    assert sample.made == 1


async def test_a_turn_runs_on_it_and_goes_on_after_it_was_opened_again(path):
    script = [inference.Usage(rt.TokenUsage(20, 4, 24)), inference.MessageDelta("Yes."), inference.Completed("stop")]
    thread = None
    for number in (1, 2):
        engine = providers.ScriptedEngine([script])
        config = rt.RuntimeConfig(default_model="m")
        async with rt.open_runtime(engines=[engine], store=made(path), config=config) as runtime:
            thread = thread or (await runtime.create_thread(labels={"k": "v"})).thread_id
            with trio.fail_after(30):
                outcome = await runtime.run_turn(thread, "Is it there?")
            assert outcome.text == "Yes."
            metadata = await runtime.load_metadata(thread)
            assert metadata.message_count == 2 * number
            assert metadata.usage == rt.TokenUsage(20 * number, 4 * number, 24 * number)
            assert len((await runtime.list_threads(label=("k", "v"))).threads) == 1
    assert raw(path, "SELECT count(*) FROM record WHERE kind = 'turn.completed'") == [(2,)]
