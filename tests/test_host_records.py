"""What hosts record beside the turns, and which items exist."""

from datetime import datetime
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import inference, items, stores, transcript
from tests.event_support import (
    DONE,
    NOW,
    item_events,
    kinds,
    message,
    opened,
    raw_records,
    say,
    taken,
    view_of,
)

USAGE = inference.Usage(rt.TokenUsage(3, 1, 4))


# -- what hosts record -------------------------------------------------------------------------------------------------


async def test_a_host_appends_items_under_any_turn_id_and_learns_their_index():
    async with opened() as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        assert await runtime.latest_transcript_item_index(thread_id, "bare") is None
        for number, text in enumerate(["one", "two", "three"]):
            assert await runtime.persist_turn_item(thread_id, "bare", transcript.UserMessage(text)) == number
        assert await runtime.persist_turn_item(thread_id, "other", transcript.AssistantMessage("x")) == 0
        assert await runtime.latest_transcript_item_index(thread_id, "bare") == 2
        seen = taken(subscription)
        with pytest.raises(rt.UnknownTurn):
            await runtime.wait_turn(thread_id, "bare")
    assert kinds(seen[:3]) == ["turn.item_appended", "item.started", "item.completed"]
    assert {envelope.source for envelope in seen} == {"host"}
    assert seen[0].event.item_id == "bare-user"
    assert list(dict.fromkeys(envelope.turn_id for envelope in seen)) == ["bare", "other"]


async def test_metadata_that_a_host_appends_is_no_item():
    async with opened() as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        await runtime.persist_turn_item(thread_id, "turn", transcript.ProviderMetadata({"k": 1}))
        (appended,) = taken(subscription)
        assert (appended.event.item_id, appended.event.item_seq) == (None, 0)
        assert await view_of(runtime, thread_id) == ()


async def test_what_a_host_appends_in_mid_text_gets_the_next_id_and_completes_nothing_of_the_turn():
    steps = [say("ha"), gate := trio.Event(), say("llo"), DONE]
    async with opened(steps) as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        index = await runtime.persist_turn_item(thread_id, turn_id, transcript.AssistantMessage("aside"))
        assert index == 1
        gate.set()
        await runtime.wait_turn(thread_id, turn_id)
        completed = [e.event.item for e in item_events(taken(subscription)) if isinstance(e.event, items.ItemCompleted)]
    assert completed[1:] == [message(f"{turn_id}-message-2", "aside"), message(f"{turn_id}-message", "hallo")]


async def test_item_events_are_stored_as_the_host_gives_them_deltas_included():
    store = stores.MemoryThreadStore()
    async with opened(store=store) as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        record = partial(runtime.record_thread_item_event_kind, thread_id, "turn", NOW)
        given = [
            items.ItemStarted(message("m", "")),
            items.ItemDelta("m", items.AgentMessageText("a")),
            items.ItemDelta("m", items.AgentMessageText("b")),
            items.ItemCompleted(message("m", "ab")),
        ]
        got = [await record(kind) for kind in given]
        assert [event.event for event in got] == given
        assert [(event.seq, event.timestamp, event.checkpoint) for event in got] == [
            (n, NOW, False) for n in (1, 2, 3, 4)
        ]
        seen = taken(subscription)
        assert [envelope.event for envelope in seen] == got
        assert {envelope.source for envelope in seen} == {"host"}
    assert raw_records(store, thread_id) == got


async def test_a_delta_of_an_unknown_item_makes_one_in_progress_and_deltas_after_its_end_are_ignored():
    async with opened() as (runtime, _, thread_id):
        record = partial(runtime.record_thread_item_event_kind, thread_id, "turn", NOW)
        await record(items.ItemDelta("r", items.ReasoningSummaryText("why", 1)))
        await record(items.ItemDelta("t", items.ToolInputText("{")))
        progress = items.ItemStatus.IN_PROGRESS
        assert await view_of(runtime, thread_id) == (
            items.Reasoning("r", ("", "why"), (), progress),
            items.ToolExecution("t", "", "", "{", status=progress),
        )
        await record(items.ItemCompleted(items.Reasoning("r")))
        await record(items.ItemDelta("r", items.ReasoningSummaryText("late", 1)))
        shown = await view_of(runtime, thread_id)
    assert shown[0] == items.Reasoning("r", ("", "why"), (), items.ItemStatus.COMPLETED)


async def test_records_that_no_host_may_make_are_refused_and_store_nothing():
    store = stores.MemoryThreadStore()
    async with opened(store=store) as (runtime, _, thread_id):
        record = partial(runtime.record_thread_item_event_kind, thread_id)
        started = items.ItemStarted(message("m", ""))
        with pytest.raises(ValueError, match="ItemDiscarded"):
            await record("turn", NOW, items.ItemDiscarded("m"))
        with pytest.raises(TypeError, match="AgentMessage"):
            await record("turn", NOW, message("m", ""))
        with pytest.raises(ValueError, match="offset"):
            await record("turn", datetime(2026, 1, 1), started)  # noqa: DTZ001 - what is tested
        with pytest.raises(ValueError, match="turn id"):
            await record("", NOW, started)
        with pytest.raises(rt.InvalidRecord):
            await record("turn", NOW, items.ItemStarted(items.Raw("m", {"a set": {1}})))
        with pytest.raises(ValueError, match="turn id"):
            await runtime.persist_turn_item(thread_id, "n\0l", transcript.UserMessage("x"))
        with pytest.raises(TypeError, match="transcript item"):
            await runtime.persist_turn_item(thread_id, "turn", started)
        with pytest.raises(rt.InvalidRecord):
            await runtime.persist_turn_item(thread_id, "turn", transcript.ProviderMetadata({"nan": float("nan")}))
        with pytest.raises(rt.InvalidRecord):
            bad = transcript.ToolResult("c", "look", "x", display_payload={"bytes": b""})
            await runtime.persist_turn_item(thread_id, "turn", bad)
        assert raw_records(store, thread_id) == []


async def test_what_was_handed_in_may_be_changed_afterwards_and_changes_nothing():
    payload, raw, images = {"list": [1]}, {"list": [1]}, [transcript.Image("data:x")]
    async with opened() as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        await runtime.persist_turn_item(thread_id, "turn", transcript.ProviderMetadata(payload))
        await runtime.persist_turn_item(thread_id, "turn", transcript.UserMessage("x", images))
        await runtime.record_thread_item_event_kind(thread_id, "turn", NOW, items.ItemStarted(items.Raw("raw", raw)))
        payload["list"].append(2)
        raw["list"].append(2)
        images.clear()
        appended, said, *_, recorded = taken(subscription)
        assert appended.event.item.payload == {"list": [1]}
        assert said.event.item.images == (transcript.Image("data:x"),)
        assert recorded.event.event.item.payload == {"list": [1]}
        assert (await view_of(runtime, thread_id))[-1] == items.Raw("raw", {"list": [1]})


@pytest.mark.parametrize("gone", ["archived", "unknown", "\0", ""])
async def test_reads_of_a_thread_that_is_gone_are_empty_and_writes_are_refused(gone):
    store = stores.MemoryThreadStore()
    async with opened(store=store) as (runtime, _, thread_id):
        await runtime.persist_turn_item(thread_id, "turn", transcript.UserMessage("x"))
        await runtime.archive_thread(thread_id)
        where = thread_id if gone == "archived" else gone
        assert await runtime.latest_transcript_item_index(where, "turn") is None
        assert not await runtime.thread_item_exists(where, "turn", "turn-user")
        with pytest.raises(rt.ThreadNotFound):
            await runtime.persist_turn_item(where, "turn", transcript.UserMessage("y"))
        with pytest.raises(rt.ThreadNotFound):
            kind = items.ItemStarted(message("m", ""))
            await runtime.record_thread_item_event_kind(where, "turn", NOW, kind)
        await runtime.unarchive_thread(thread_id)
        assert len((await runtime.load_thread(thread_id)).events) == 1


# -- existence ---------------------------------------------------------------------------------------------------------


async def test_an_item_exists_if_it_is_stored_derived_or_live_under_that_very_turn():
    gate = trio.Event()
    async with opened([say("ha"), gate, DONE]) as (runtime, _, thread_id):
        kind = items.ItemStarted(message("mine", ""))
        await runtime.record_thread_item_event_kind(thread_id, "bare", NOW, kind)
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        exists = partial(runtime.thread_item_exists, thread_id)
        assert await exists("bare", "mine")
        assert await exists(turn_id, f"{turn_id}-user")
        assert await exists(turn_id, f"{turn_id}-message")
        assert not await exists(turn_id, "mine")
        assert not await exists("bare", f"{turn_id}-message")
        assert not await exists(turn_id, f"{turn_id}-message-2")
        gate.set()
        await runtime.wait_turn(thread_id, turn_id)
        assert await exists(turn_id, f"{turn_id}-message")
