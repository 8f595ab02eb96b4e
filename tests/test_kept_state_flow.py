"""Threads that come back from kept states, and threads that a summary made forget: what is read again, and when."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, goals, inference, items, stores, transcript
from roder_trio.actors._stored import load_outcome
from roder_trio.codec import state as codec
from roder_trio.schema.usage import Attempt, Purpose
from tests.event_support import DONE, NOW, call, counted, kinds, lost, opened, say, shown, think, view_of
from tests.kept_states import KeepingStore
from tests.thread_reads import loaded, reads
from tests.turn_support import settings

SUMMARY = transcript.ContextCompaction("so far", retained_count=1)
USED = inference.Usage(rt.TokenUsage(3, 1, 4))
STEPS = [
    [USED, think("r"), say("a", "commentary"), say("b"), *call(), DONE],
    [say("lost"), lost()],
    [USED, say("c"), DONE],
]
AT_ONCE = settings(provider_retry_initial_backoff=0.0)


async def turns(runtime, thread_id, count):
    return [(await runtime.run_turn(thread_id, f"question {number}")).turn_id for number in range(count)]


async def summarised(runtime, thread_id):
    """Three turns, and a summary behind the second."""
    first = await turns(runtime, thread_id, 2)
    await runtime.persist_turn_item(thread_id, first[1], SUMMARY)
    return [*first, *await turns(runtime, thread_id, 1)]


def three():
    return [[USED, say(text), DONE] for text in "abc"]


# -- after a restart ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("summary", [False, True])
async def test_a_thread_that_comes_back_from_a_kept_state_reads_as_it_was(autojump_clock, summary):
    store = KeepingStore(always=True)
    async with opened(*STEPS, [say("d"), DONE], store=store, config=AT_ONCE) as (runtime, _, thread_id):
        await runtime.thread_goal_set(thread_id, goals.GoalPatch(objective="win", token_budget=100))
        first = await runtime.run_turn(thread_id, "hello")
        if summary:
            await runtime.persist_turn_item(thread_id, first.turn_id, SUMMARY)
        await runtime.run_turn(thread_id, "more")
        before = await reads(runtime, thread_id, await loaded(runtime, thread_id))
    plain = stores.MemoryThreadStore()
    plain._active = store._active
    for image in (store, plain):
        async with opened(store=image, thread=False) as (runtime, _, _):
            assert await reads(runtime, thread_id, await loaded(runtime, thread_id)) == before
    assert store.states == 1


async def test_only_what_is_shown_and_how_old_turns_ended_is_read_from_the_whole_log(autojump_clock):
    store = KeepingStore(always=True)
    async with opened(*three(), store=store) as (runtime, _, thread_id):
        first, *_ = await turns(runtime, thread_id, 2)
    store.loads = 0
    async with opened(*three(), store=store, thread=False) as (runtime, _, _):
        assert await runtime.thread_item_exists(thread_id, first, f"{first}-message")
        assert not await runtime.thread_item_exists(thread_id, first, "missing")
        assert await runtime.latest_transcript_item_index(thread_id, first) == 1
        assert await runtime.persist_turn_item(thread_id, first, transcript.UserMessage("x")) == 2
        delta = items.ItemDelta("own", items.AgentMessageText("x"))
        assert (await runtime.record_thread_item_event_kind(thread_id, first, NOW, delta)).seq == 9
        await runtime.thread_goal_set(thread_id, goals.GoalPatch(objective="win"))
        last = await runtime.run_turn(thread_id, "again")
        assert await runtime.wait_turn(thread_id, last.turn_id) == last
        assert (store.states, store.loads) == (1, 0)
        assert (await runtime.wait_turn(thread_id, first)).text == "a"
        assert store.loads == 1
        assert [item.id for item in await view_of(runtime, thread_id)][-1] == f"{last.turn_id}-message"
        assert store.loads == 2
        with pytest.raises(rt.UnknownTurn):
            await runtime.wait_turn(thread_id, "never")
        assert store.loads == 2


async def test_a_kept_state_of_another_version_is_no_loss(monkeypatch):
    store = KeepingStore(always=True)
    async with opened(*three(), store=store) as (runtime, _, thread_id):
        await turns(runtime, thread_id, 2)
        before = await reads(runtime, thread_id, await loaded(runtime, thread_id))
    monkeypatch.setattr(codec, "FOLD_VERSION", codec.FOLD_VERSION + 1)
    async with opened(store=store, thread=False) as (runtime, _, _):
        assert await reads(runtime, thread_id, await loaded(runtime, thread_id)) == before
    assert store.states == 0


async def test_a_turn_that_a_kill_cut_is_closed_from_a_kept_state(autojump_clock):
    """The state was kept in the middle of the turn, while its text was open."""
    store = KeepingStore(always=True)
    async with opened([USED, say("so far"), trio.Event()], store=store) as (runtime, _, thread_id):
        turn_id = await runtime.start_turn(thread_id, "hello")
        await trio.sleep(1)
        image = KeepingStore()
        await image.create_thread(store._active[thread_id].created)
        await image.append(thread_id, list(store._active[thread_id].records))
        image.kept = dict(store.kept)
    async with opened(store=image, thread=False) as (runtime, _, _):
        outcome = await runtime.wait_turn(thread_id, turn_id)
        assert (outcome.reason, outcome.text, outcome.usage) == ("runtime_restart", "so far", rt.TokenUsage(3, 1, 4))
        assert (image.states, image.loads) == (1, 1)  # the load tells what the turn cost


# -- after a summary ---------------------------------------------------------------------------------------------------


async def test_a_summary_makes_a_live_thread_read_again_what_it_let_go():
    store = counted()
    async with opened(*three(), store=store) as (runtime, _, thread_id):
        first, _, third = await summarised(runtime, thread_id)
        loads = store.loads
        assert (await runtime.wait_turn(thread_id, third)).text == "c"
        assert store.loads == loads
        assert (await runtime.wait_turn(thread_id, first)).text == "a"
        assert len(await view_of(runtime, thread_id)) == 7
        assert store.loads == loads + 2


async def test_the_live_thread_is_what_a_cold_start_makes(autojump_clock):
    store = stores.MemoryThreadStore()
    async with opened(*three(), store=store) as (runtime, _, thread_id):
        await summarised(runtime, thread_id)
        before = await reads(runtime, thread_id, await loaded(runtime, thread_id))
    async with opened(store=store, thread=False) as (runtime, _, _):
        assert await reads(runtime, thread_id, await loaded(runtime, thread_id)) == before


async def test_the_model_sees_the_summary_and_what_follows_live_and_after_a_restart():
    store = KeepingStore(always=True)
    async with opened(*three(), store=store) as (runtime, engine, thread_id):
        await summarised(runtime, thread_id)
        live = list(engine.requests[-1].transcript)
    assert [type(item).__name__ for item in live] == ["ContextCompaction", "AssistantMessage", "UserMessage"]
    async with opened([say("d"), DONE], store=store, thread=False) as (runtime, engine, _):
        await runtime.run_turn(thread_id, "question 1")
        assert list(engine.requests[0].transcript)[:3] == live


async def test_a_view_has_each_event_once_though_text_comes_while_the_log_is_read(autojump_clock, nursery):
    """The stream goes on while the actor reads; what it says is in the snapshot or in the events behind it."""
    store, gate, release, ready = counted(), trio.Event(), trio.Event(), trio.Event()
    steps = [*three()[:2], [say("so "), gate, say("far"), trio.Event()]]
    async with opened(*steps, store=store) as (runtime, _, thread_id):
        first = await turns(runtime, thread_id, 2)
        await runtime.persist_turn_item(thread_id, first[1], SUMMARY)
        turn_id = await runtime.start_turn(thread_id, "more")
        await wait_all_tasks_blocked()
        real, seen = store.load_thread, []

        async def load(thread_id):
            snapshot = await real(thread_id)
            ready.set()
            await release.wait()
            return snapshot

        async def follow():
            async with runtime.thread_view(thread_id) as view:
                current = view.items
                seen.append(current)
                async for envelope in view:
                    current = shown(current, [envelope])
                    seen.append(current)

        store.load_thread = load
        nursery.start_soon(follow)
        await ready.wait()
        gate.set()
        await wait_all_tasks_blocked()
        assert seen == []
        release.set()
        store.load_thread = real
        await wait_all_tasks_blocked()
        assert seen[0][-1] == items.AgentMessage(f"{turn_id}-message", "so far", None, items.ItemStatus.IN_PROGRESS)
        await runtime.interrupt_turn(thread_id, turn_id)
        await runtime.wait_turn(thread_id, turn_id)
        await wait_all_tasks_blocked()
        assert seen[-1] == await view_of(runtime, thread_id)


@pytest.mark.parametrize("waits", [False, True])
async def test_views_start_anew_after_a_crash_though_the_state_holds_no_items(autojump_clock, nursery, waits):
    store, seen = counted(), []
    async with (
        opened(*three()[:2], [think("r"), trio.Event()], store=store) as (runtime, _, thread_id),
        runtime.thread_view(thread_id) as view,
    ):
        first = await turns(runtime, thread_id, 2)
        await runtime.persist_turn_item(thread_id, first[1], SUMMARY)
        turn_id = await runtime.start_turn(thread_id, "more")
        await wait_all_tasks_blocked()
        while view.buffered:
            await anext(view)

        async def follow():
            async for envelope in view:
                seen.append(envelope)

        if waits:
            nursery.start_soon(follow)
            await wait_all_tasks_blocked()
        store.fail[store.appends + 1] = rt.AppendOutcomeUnknown("who knows")
        with pytest.raises(rt.AppendOutcomeUnknown):
            await runtime.persist_turn_item(thread_id, "other", transcript.UserMessage("x"))
        assert (await runtime.wait_turn(thread_id, turn_id)).reason == "runtime_restart"
        if not waits:
            nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        assert kinds(seen) == ["items.reset", "turn.interrupted"]
        assert isinstance(seen[0].event, events.ItemsReset)
        assert seen[0].event.items == await view_of(runtime, thread_id)


# -- what can't be read ------------------------------------------------------------------------------------------------


async def test_a_read_of_the_whole_log_that_fails_is_told_to_its_caller_alone():
    store = counted()
    async with opened(*three(), store=store) as (runtime, _, thread_id):
        first, *_ = await summarised(runtime, thread_id)
        real = store.load_thread

        async def broken(thread_id):
            await trio.lowlevel.checkpoint()
            raise rt.StorageError("down")

        store.load_thread = broken
        with pytest.raises(rt.StorageError, match="down"):
            await runtime.wait_turn(thread_id, first)
        with pytest.raises(rt.StorageError, match="down"):
            await view_of(runtime, thread_id)
        store.load_thread = real
        assert (await runtime.wait_turn(thread_id, first)).text == "a"


async def test_a_thread_that_another_way_has_archived_is_told_as_gone():
    store = stores.MemoryThreadStore()
    async with opened(*three(), store=store) as (runtime, _, thread_id):
        first, *_ = await summarised(runtime, thread_id)
        await store.archive_thread(thread_id)
        for asked in (runtime.wait_turn(thread_id, first), view_of(runtime, thread_id)):
            with pytest.raises(rt.ThreadNotFound):
                await asked


async def test_a_turn_whose_end_the_log_does_not_hold_is_unknown():
    async with opened(*three()) as (runtime, _, thread_id):
        with pytest.raises(rt.UnknownTurn):
            await load_outcome(runtime._core.services, thread_id, "turn")


async def test_an_attempt_that_is_still_open_is_not_counted_twice(monkeypatch):
    """The kept state has it in a sum, since many came after it; its actor crashed, and hydrates beside it."""
    monkeypatch.setattr(codec, "NEWEST_READINGS", 0)
    store = KeepingStore()
    async with opened(*three(), store=store) as (runtime, _, thread_id):
        await turns(runtime, thread_id, 1)
        accounting = runtime._core.services.accounting
        attempt = Attempt(
            attempt_id="direct", thread_id=thread_id, turn_id="bare", purpose=Purpose.NATIVE_COMPACTION,
            provider="scripted", model="m",
        )  # fmt: skip
        accounting.open(attempt)
        accounting.observe("direct", rt.TokenUsage(5, 0, 5))
        await accounting.drain()
        await turns(runtime, thread_id, 1)
        store.keep(thread_id)
        thread = runtime._core.directory.get(thread_id)
        loads, real = store.loads, store.append

        async def unknown(thread_id, records):
            store.append = real
            await trio.lowlevel.checkpoint()
            raise rt.AppendOutcomeUnknown("who knows")

        store.append = unknown
        with pytest.raises(rt.AppendOutcomeUnknown):
            await runtime.persist_turn_item(thread_id, "other", transcript.UserMessage("x"))
        await runtime.latest_transcript_item_index(thread_id, "other")
        assert (store.states, store.loads - loads, thread.job) == (1, 1, None)
        assert accounting.totals(thread_id).thread == rt.TokenUsage(11, 2, 13)
        accounting.observe("direct", rt.TokenUsage(7, 0, 7))
        await accounting.settle("direct")
        assert accounting.totals(thread_id).thread == rt.TokenUsage(13, 2, 15)
        assert (await runtime.load_metadata(thread_id)).usage == rt.TokenUsage(13, 2, 15)
