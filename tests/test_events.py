"""The envelope, what is durable before it is visible, the order of events, ids and numbers, what hosts record."""

from datetime import UTC, timedelta

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import codec, events, inference, items, stores, transcript
from roder_trio.logic.item import merge
from tests.event_support import (
    AT_ONCE,
    DONE,
    NOW,
    call,
    counted,
    durable,
    item_events,
    kinds,
    lost,
    message,
    metadata,
    opened,
    raw_records,
    records_of,
    say,
    seed,
    stored_event,
    stored_item,
    taken,
    think,
    view_of,
)

USAGE = inference.Usage(rt.TokenUsage(3, 1, 4))


async def follow_one_turn(runtime, thread_id, text="hello"):
    async with runtime.subscribe_events(thread_id=thread_id) as subscription:
        outcome = await runtime.run_turn(thread_id, text)
        return outcome, taken(subscription)


# -- envelopes, and the order of a turn's events -----------------------------------------------------------------------


async def test_the_events_of_a_turn_come_in_the_order_of_what_happens(autojump_clock):
    async with opened([say("a"), say("b"), USAGE, DONE]) as (runtime, _, thread_id):
        outcome, seen = await follow_one_turn(runtime, thread_id)
    assert kinds(seen) == [
        "turn.started",
        "turn.item_appended",
        "item.started",
        "item.completed",
        "inference.started",
        "item.started",
        "item.delta",
        "item.delta",
        "inference.completed",
        "turn.item_appended",
        "item.completed",
        "turn.completed",
    ]
    assert {envelope.turn_id for envelope in seen} == {outcome.turn_id}
    assert seen[-1].event.usage == rt.TokenUsage(3, 1, 4)


async def test_only_what_the_actor_stored_has_a_number_and_every_envelope_has_an_identity_and_a_time(autojump_clock):
    async with opened([say("a"), USAGE, DONE], [say("b"), DONE]) as (runtime, _, thread_id):
        seen = [envelope for _ in range(2) for envelope in (await follow_one_turn(runtime, thread_id))[1]]
    numbered = [envelope for envelope in seen if envelope.seq]
    assert [envelope.seq for envelope in numbered] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert {envelope.kind for envelope in numbered} == {"turn.started", "turn.item_appended", "turn.completed"}
    assert len({envelope.event_id for envelope in seen}) == len(seen)
    assert {envelope.timestamp.tzinfo for envelope in seen} == {UTC}
    assert {envelope.thread_id for envelope in seen} == {thread_id}
    assert {envelope.source for envelope in seen} == {"thread", "turn", "engine", "accounting"}


async def test_an_item_event_travels_in_an_envelope_of_the_same_ids_and_time(autojump_clock):
    async with opened([say("a"), DONE]) as (runtime, _, thread_id):
        _, seen = await follow_one_turn(runtime, thread_id)
    shown = [envelope for envelope in seen if envelope.kind.startswith("item.")]
    assert len(shown) == 5
    for envelope in shown:
        inner = envelope.event
        assert (envelope.event_id, envelope.timestamp) == (inner.event_id, inner.timestamp)
        assert (envelope.thread_id, envelope.turn_id) == (inner.thread_id, inner.turn_id)
        assert envelope.kind == inner.kind == inner.event.kind
        assert envelope.seq == 0
    assert [envelope.event.seq for envelope in shown] == [1, 2, 0, 0, 3]


async def test_numbers_go_on_behind_the_highest_of_the_log_after_a_restart(autojump_clock):
    store = stores.MemoryThreadStore()
    async with opened([say("a"), DONE], store=store) as (runtime, _, thread_id):
        await runtime.run_turn(thread_id, "one")
    async with opened([say("b"), DONE], store=store, thread=False) as (runtime, _, _):
        _, seen = await follow_one_turn(runtime, thread_id, "two")
        assert [envelope.seq for envelope in seen if envelope.seq] == [5, 6, 7, 8]
        assert [event.seq for event in durable(seen)] == [4, 5, 6]


async def test_what_was_published_is_what_the_store_holds_number_by_number(autojump_clock):
    """Events that are marked durable are stored; item events are derived, never stored; deltas are neither."""
    store = stores.MemoryThreadStore()
    async with opened([say("a"), say("b"), USAGE, DONE], store=store) as (runtime, _, thread_id):
        _, seen = await follow_one_turn(runtime, thread_id)
        snapshot = await runtime.load_thread(thread_id)
    log = raw_records(store, thread_id)
    assert kinds(log, without=()) == [
        "turn.started",
        "turn.item_appended",
        "usage.recorded",
        "turn.item_appended",
        "turn.completed",
    ]
    assert log == [e for e in seen if not isinstance(e.event, items.ThreadItemEvent) and e.event.durable]
    assert [record.event.item_seq for record in log if record.kind == "turn.item_appended"] == [2, 3]
    assert list(snapshot.item_events) == durable(seen)
    assert [event.kind for event in snapshot.item_events] == ["item.started", "item.completed", "item.completed"]
    assert [event.event_id.rpartition(":")[2] for event in snapshot.item_events] == ["started"] + ["completed"] * 2


async def test_the_life_of_a_thread_is_told_after_the_store_knows_it(autojump_clock):
    async with opened(thread=False) as (runtime, _, _), runtime.subscribe_events(kinds=["thread"]) as subscription:
        created = await runtime.create_thread(title="t")
        await runtime.update_thread(created.thread_id, title="u")
        await runtime.update_thread(created.thread_id)
        assert await runtime.archive_thread(created.thread_id)
        assert await runtime.unarchive_thread(created.thread_id)
        assert not await runtime.unarchive_thread(created.thread_id)
        assert await runtime.delete_thread(created.thread_id)
        assert not await runtime.delete_thread(created.thread_id)
        seen = taken(subscription)
    assert kinds(seen) == [
        "thread.created",
        "thread.metadata_changed",
        "thread.archived",
        "thread.unarchived",
        "thread.archived",
        "thread.deleted",
    ]
    assert seen[0].event == events.ThreadCreated(created)
    assert [envelope.seq for envelope in seen] == [0, 1, 0, 0, 0, 0]
    assert {envelope.thread_id for envelope in seen} == {created.thread_id}


async def test_nothing_of_a_turn_comes_after_its_terminal_event_and_a_host_may_still_record_under_it(autojump_clock):
    async with opened([say("a"), DONE]) as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        outcome = await runtime.run_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        assert kinds(taken(subscription))[-1] == "turn.completed"
        await runtime.persist_turn_item(thread_id, outcome.turn_id, transcript.UserMessage("later"))
        assert kinds(taken(subscription)) == ["turn.item_appended", "item.started", "item.completed"]
        assert (await runtime.wait_turn(thread_id, outcome.turn_id)).status == "completed"


# -- durable before visible --------------------------------------------------------------------------------------------


async def test_no_durable_event_is_seen_before_its_append_returned_and_then_all_are_seen_at_once(
    nursery, autojump_clock
):
    entered, release = trio.Event(), trio.Event()

    async def hold(number, thread_id, records):
        entered.set()
        await release.wait()

    store = counted()
    async with opened([say("a"), DONE], store=store) as (runtime, _, thread_id), runtime.subscribe_events() as seen:
        store.after = hold
        nursery.start_soon(runtime.start_turn, thread_id, "hello")
        await entered.wait()
        await wait_all_tasks_blocked()
        assert len(raw_records(store, thread_id)) == 2
        assert seen.buffered == 0
        store.after = None
        release.set()
        assert (await anext(seen)).kind == "turn.started"
        assert kinds(taken(seen))[:3] == ["turn.item_appended", "item.started", "item.completed"]


async def test_after_a_failed_append_no_number_has_moved_and_nothing_was_published(autojump_clock):
    store = counted()
    async with opened(store=store) as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        await runtime.persist_turn_item(thread_id, "turn", transcript.UserMessage("one"))
        taken(subscription)
        store.fail = {2: rt.StorageError("full"), 3: rt.StorageError("full")}
        with pytest.raises(rt.StorageError, match="full"):
            await runtime.persist_turn_item(thread_id, "turn", transcript.UserMessage("two"))
        with pytest.raises(rt.StorageError, match="full"):
            await runtime.record_thread_item_event_kind(thread_id, "turn", NOW, items.ItemStarted(message("x", "")))
        assert taken(subscription) == []
        assert await runtime.latest_transcript_item_index(thread_id, "turn") == 0
        assert not await runtime.thread_item_exists(thread_id, "turn", "x")
        assert await runtime.persist_turn_item(thread_id, "turn", transcript.UserMessage("three")) == 1
        appended, started, completed = taken(subscription)
        assert (appended.seq, started.event.seq, completed.event.seq) == (2, 3, 4)
        # the id that the failed decision had reserved stays unused
        assert appended.event.item_id == "turn-user-3"


async def test_recorders_at_once_get_different_numbers_in_the_order_of_the_log(autojump_clock):
    store = stores.MemoryThreadStore()
    got = []
    async with opened(store=store) as (runtime, _, thread_id):

        async def record(number):
            kind = items.ItemStarted(message(f"item-{number}", ""))
            got.append(await runtime.record_thread_item_event_kind(thread_id, "turn", NOW, kind))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(record, number)
        snapshot = await runtime.load_thread(thread_id)
    assert sorted(event.seq for event in got) == list(range(1, 21))
    assert list(snapshot.item_events) == sorted(got, key=lambda event: event.seq)


async def test_the_same_record_twice_is_once_in_the_log_and_once_in_the_fold(autojump_clock):
    """A retry after an unknown outcome appends the same records again."""
    store = stores.MemoryThreadStore()
    await seed(store, "t")
    delta = items.ItemDelta("m", items.AgentMessageText("word"))
    record = stored_item("t", 8, delta)
    await store.append("t", [record])
    await store.append("t", [record])
    async with opened(store=store, thread=False) as (runtime, _, _):
        assert len((await runtime.load_thread("t")).item_events) == 2
        assert message("m", "word", items.ItemStatus.IN_PROGRESS) in await view_of(runtime, "t")


# -- ids and numbers of items ------------------------------------------------------------------------------------------


def ids_of(seen):
    return list(dict.fromkeys(event.event.item_id for event in item_events(seen)))


async def test_a_turn_numbers_the_later_items_of_each_kind(autojump_clock):
    steps = [[say("one"), *call("c1"), DONE], [say("two"), trio.Event()], [say("three"), DONE]]
    async with opened(*steps) as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        await runtime.steer_turn(thread_id, turn_id, "more")
        await runtime.wait_turn(thread_id, turn_id)
        seen = taken(subscription)
    wanted = ["user", "message", "tool-c1", "message-2", "user-2", "message-3"]
    assert ids_of(seen) == [f"{turn_id}-{base}" for base in wanted]


async def test_reasoning_after_text_and_text_of_another_phase_are_items_of_their_own(autojump_clock):
    step = [think("r"), say("a", "commentary"), think("s"), say("b"), say("c", "final_answer"), DONE]
    async with opened(step) as (runtime, _, thread_id):
        outcome, seen = await follow_one_turn(runtime, thread_id)
        snapshot = await runtime.load_thread(thread_id)
    wanted = ["user", "reasoning", "message-commentary", "reasoning-2", "message"]
    assert ids_of(seen) == [f"{outcome.turn_id}-{base}" for base in wanted]
    assert ids_of(stored_event("t", 0, e) for e in snapshot.item_events) == ids_of(seen)
    assert outcome.text == "bc"


async def test_text_of_an_attempt_that_is_tried_again_is_discarded_and_comes_under_a_new_id(autojump_clock):
    async with opened([say("ha"), lost()], [say("hallo"), DONE], config=AT_ONCE) as (runtime, _, thread_id):
        outcome, seen = await follow_one_turn(runtime, thread_id)
        assert [item.text for item in await view_of(runtime, thread_id)] == ["hello", "hallo"]
    first, second = f"{outcome.turn_id}-message", f"{outcome.turn_id}-message-2"
    told = [(event.kind, event.event.item_id, event.seq) for event in item_events(seen)][2:]
    assert told == [
        ("item.started", first, 0),
        ("item.delta", first, 0),
        ("item.discarded", first, 0),
        ("item.started", second, 0),
        ("item.delta", second, 0),
        ("item.completed", second, 3),
    ]
    order = kinds(seen)
    assert order.index("item.discarded") < order.index("retry.scheduled")


@pytest.mark.parametrize(
    ("records", "numbers"),
    [
        ([stored_item("t", seq, items.ItemStarted(message(f"m{seq}", ""))) for seq in (3, 7, 5)], (8, 9)),
        (
            [
                stored_item("t", 7, items.ItemStarted(message("m", ""))),
                stored_event("t", 1, events.TranscriptItemAppended(0, transcript.UserMessage("u"), "u", 12)),
            ],
            (13, 14),
        ),
        ([], (1, 2)),
    ],
)
async def test_item_numbers_go_on_behind_the_highest_that_is_stored_or_pinned(records, numbers, autojump_clock):
    store = stores.MemoryThreadStore()
    await seed(store, "t", records)
    async with opened(store=store, thread=False) as (runtime, _, _):
        for number in numbers:
            delta = items.ItemDelta("m", items.AgentMessageText("x"))
            assert (await runtime.record_thread_item_event_kind("t", "turn", NOW, delta)).seq == number


async def test_items_of_records_that_pin_nothing_are_shown_and_nothing_is_written_for_that(autojump_clock):
    store = counted()
    appended = [
        stored_event("t", 1, events.TranscriptItemAppended(0, transcript.UserMessage("q"))),
        stored_event("t", 2, events.TranscriptItemAppended(1, transcript.AssistantMessage("a"))),
    ]
    await seed(store, "t", appended)
    appends = store.appends
    async with opened(store=store, thread=False) as (runtime, _, _):
        assert [(item.id, item.text) for item in await view_of(runtime, "t")] == [
            ("turn-user", "q"),
            ("turn-message", "a"),
        ]
        assert (await runtime.load_thread("t")).item_events == ()
        assert not await runtime.thread_item_exists("t", "turn", "turn-user")
    assert store.appends == appends


async def test_a_restart_without_activity_changes_no_byte_and_shows_the_same_items(mock_clock, tmp_path):
    async with opened(
        [think("r"), say("a"), *call(), DONE], [say("b"), DONE], store=stores.JsonlThreadStore(tmp_path)
    ) as (
        runtime,
        _,
        thread_id,
    ):
        await runtime.run_turn(thread_id, "hello")
        before = await view_of(runtime, thread_id)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    assert files
    for _ in range(2):
        async with opened(store=stores.JsonlThreadStore(tmp_path), thread=False) as (runtime, _, _):
            assert await view_of(runtime, thread_id) == before
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")} == files


# -- logs of other versions and of crashes -----------------------------------------------------------------------------


async def test_an_event_of_a_newer_version_is_kept_unchanged_and_disturbs_nothing(autojump_clock):
    store = stores.MemoryThreadStore()
    unknown = stored_event("t", 2, events.Unknown("turn.danced", {"b": 1, "a": [2]}))
    started = stored_item("t", 1, items.ItemStarted(message("m", "")))
    await seed(store, "t", [started, unknown])
    async with opened(store=store, thread=False) as (runtime, _, _):
        snapshot = await runtime.load_thread("t")
        assert list(snapshot.events) == [unknown]
        assert await view_of(runtime, "t") == (message("m", ""),)
        assert await runtime.persist_turn_item("t", "turn", transcript.UserMessage("u")) == 0
        assert (await runtime.load_thread("t")).events[-1].seq == 3
    encoded = codec.encode_record(unknown)
    assert codec.encode_record(codec.decode_record(encoded)) == encoded


async def test_the_item_events_of_a_snapshot_are_the_stored_and_the_derived_ones_each_once(autojump_clock):
    class StoredAlone(stores.MemoryThreadStore):
        """A custom store that gives the stored ones alone."""

        async def load_thread(self, thread_id):
            snapshot = await super().load_thread(thread_id)
            records = self._active[thread_id].records
            stored = [record for record in records if isinstance(record, items.ThreadItemEvent)]
            return snapshot and rt.ThreadSnapshot(
                metadata=snapshot.metadata, turns=snapshot.turns, events=snapshot.events, item_events=stored
            )

    async with opened([say("a"), DONE], store=StoredAlone()) as (runtime, _, thread_id):
        await runtime.run_turn(thread_id, "hello")
        kind = items.ItemStarted(message("m", ""))
        await runtime.record_thread_item_event_kind(thread_id, "turn", NOW, kind)
        snapshot = await runtime.load_thread(thread_id)
    assert [event.seq for event in snapshot.item_events] == [1, 2, 3, 4]
    assert snapshot.item_events == merge(snapshot.item_events, snapshot.events)


async def test_a_crash_in_mid_turn_closes_it_once_and_subscribers_stay(autojump_clock):
    """An append of unknown outcome ends the incarnation; the next one tells what it closed, then goes on."""
    store = counted()
    steps = [[say("ha"), trio.Event()], [say("again"), DONE]]
    async with opened(*steps, store=store) as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        store.fail = {store.appends + 1: rt.AppendOutcomeUnknown("who knows")}
        with pytest.raises(rt.AppendOutcomeUnknown):
            await runtime.persist_turn_item(thread_id, "other", transcript.UserMessage("x"))
        outcome = await runtime.wait_turn(thread_id, turn_id)
        assert (outcome.status, outcome.reason) == ("interrupted", "runtime_restart")
        await runtime.run_turn(thread_id, "and now")
        seen = [envelope for envelope in taken(subscription) if not envelope.kind.startswith("item.")]
    at = kinds(seen).index("turn.interrupted")
    assert kinds(seen)[at : at + 3] == ["turn.interrupted", "thread.recovered", "turn.started"]
    assert seen[at + 1].event.closed_turn_ids == (turn_id,)
    assert kinds(seen)[-1] == "turn.completed"


async def test_the_exit_of_the_runtime_ends_a_running_turn_then_its_subscriptions(autojump_clock):
    seen = []

    async def read(runtime, thread_id):
        async with runtime.subscribe_events(thread_id=thread_id) as subscription:
            async for envelope in subscription:
                seen.append(envelope)

    async with trio.open_nursery() as nursery, opened([say("ha"), trio.Event()]) as (runtime, _, thread_id):
        nursery.start_soon(read, runtime, thread_id)
        await wait_all_tasks_blocked()
        await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
    assert seen[-1].event.reason == "shutdown"
    assert seen[-1].kind == "turn.interrupted"


async def test_a_clock_that_runs_backwards_changes_no_order(autojump_clock):
    """Timestamps are for people; an import keeps its own."""
    store = stores.MemoryThreadStore()
    await store.create_thread(metadata("t"))
    late = [
        stored_item("t", 1, items.ItemStarted(message("a", ""))),
        stored_item("t", 2, items.ItemStarted(message("b", ""))),
    ]
    await store.append("t", late)
    async with opened(store=store, thread=False) as (runtime, _, _):
        early = NOW - timedelta(days=1)
        kind = items.ItemStarted(message("c", ""))
        assert (await runtime.record_thread_item_event_kind("t", "turn", early, kind)).timestamp == early
        assert [item.id for item in await view_of(runtime, "t")] == ["a", "b", "c"]
    assert [event.seq for event in (await records_of(store, "t")).item_events] == [1, 2, 3]
