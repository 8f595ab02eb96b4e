"""Text that is still being written: when parts of it are stored, what readers see of that, what becomes of it."""

import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import inference, items, stores, transcript
from roder_trio.schema.command import Checkpoint
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
    opened,
    raw_records,
    say,
    shown,
    taken,
    think,
    view_of,
)

OPEN, DONE_WITH = items.ItemStatus.IN_PROGRESS, items.ItemStatus.COMPLETED


def watched(appends):
    """A store that notes when each checkpoint came, and what text it holds."""

    async def note(number, thread_id, records):
        parts = [r.event.delta.delta for r in records if is_part(r) and isinstance(r.event, items.ItemDelta)]
        if parts:
            appends.append((round(trio.current_time() - began, 3), "".join(parts)))

    began = trio.current_time()
    store = counted()
    store.before = note
    return store


def is_part(record):
    return isinstance(record, items.ThreadItemEvent) and record.checkpoint


def parts_of(store, thread_id):
    return [record for record in raw_records(store, thread_id) if is_part(record)]


# -- when --------------------------------------------------------------------------------------------------------------


async def test_open_text_is_stored_half_a_second_after_the_first_that_is_not(autojump_clock):
    store = watched(appends := [])
    step = [say("a"), 0.2, say("b"), 0.4, say("c"), 0.1, say("d"), 3, say("e"), 0.4, say("f"), DONE]
    async with opened(step, store=store) as (runtime, _, thread_id):
        assert (await runtime.run_turn(thread_id, "hello")).text == "abcdef"
        await trio.sleep(10)
    assert appends == [(0.5, "ab"), (1.1, "cd")]


async def test_each_thread_has_its_own_time(autojump_clock):
    store = watched(appends := [])
    async with opened([say("a"), 9, DONE], [0.2, say("b"), 9, DONE], store=store) as (runtime, _, first):
        for thread_id in (first, (await runtime.create_thread()).thread_id):
            await runtime.start_turn(thread_id, "hello")
        await trio.sleep(5)
        assert appends == [(0.5, "a"), (0.7, "b")]


async def test_the_interval_is_a_setting(autojump_clock):
    store = watched(appends := [])
    config = rt.RuntimeConfig(delta_checkpoint_interval=2.0)
    async with opened([say("a"), 1, say("b"), 2, DONE], store=store, config=config) as (runtime, _, thread_id):
        await runtime.run_turn(thread_id, "hello")
    assert appends == [(2.0, "ab")]


async def test_much_text_is_stored_at_once_at_4_kib_and_then_at_double_that(autojump_clock):
    store = watched(appends := [])
    async with opened([*[say("x" * 512)] * 80, trio.Event()], store=store) as (runtime, _, thread_id):
        await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        now = [len(text) for at, text in appends if at == 0]
        assert len(now) == 3
        for size, least in zip(now, (4096, 8192, 16384), strict=True):
            assert least <= size <= least + 3 * 512
        await trio.sleep(0.6)
        assert sum(len(text) for _, text in appends) == 80 * 512


async def test_the_size_is_that_of_the_bytes(autojump_clock):
    store = watched(appends := [])
    async with opened([say("é" * 2047), say("é"), trio.Event()], store=store) as (runtime, _, thread_id):
        await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        assert appends == [(0, "é" * 2048)]


async def test_reasoning_and_half_calls_are_not_stored(autojump_clock):
    store = watched(appends := [])
    step = [think("r" * 9000), *call(arguments="{" + "x" * 9000)[:-1], trio.Event()]
    async with opened(step, store=store) as (runtime, _, thread_id):
        await runtime.start_turn(thread_id, "hello")
        await trio.sleep(5)
        assert appends == []


async def test_one_checkpoint_at_a_time_is_on_its_way_and_nobody_waits_for_it(autojump_clock):
    store, appends, entered, release = counted(), [], trio.Event(), trio.Event()

    async def hold(number, thread_id, records):
        if is_part(records[0]):
            appends.append(len(records[-1].event.delta.delta))
            entered.set()
            await release.wait()

    store.before = hold
    step = [*[say("x" * 4096)] * 20, trio.Event()]
    async with opened(step, store=store) as (runtime, engine, thread_id):  # noqa: SIM117 - one line would be too long
        async with runtime.subscribe_events(kinds="item.delta") as subscription:
            turn_id = await runtime.start_turn(thread_id, "hello")
            await entered.wait()
            await wait_all_tasks_blocked()
            assert engine.calls[0].delivered == 20
            assert subscription.buffered == 20
            assert len(appends) == 1
            release.set()
            await trio.sleep(2)
            assert len(appends) == 2
            assert sum(appends) == 20 * 4096
            await runtime.interrupt_turn(thread_id, turn_id)


async def test_text_that_comes_while_a_checkpoint_is_under_way_is_stored_by_the_next(autojump_clock):
    """Nothing but the clock asks for it: no further delta comes."""
    store, appends = counted(), []

    async def slow(number, thread_id, records):
        if is_part(records[0]):
            appends.append(records[-1].event.delta.delta)
            await trio.sleep(2)

    store.before = slow
    async with opened([say("a"), 1, say("b"), 100, DONE], store=store) as (runtime, _, thread_id):
        await runtime.start_turn(thread_id, "hello")
        await trio.sleep(6)
        assert appends == ["a", "b"]


async def test_a_checkpoint_that_fails_is_carried_by_the_next(autojump_clock):
    store = watched(appends := [])
    async with opened([say("a"), 0.6, say("b"), 100, DONE], store=store) as (runtime, _, thread_id):
        await runtime.start_turn(thread_id, "hello")
        store.fail = {store.appends + 1: rt.StorageError("full"), store.appends + 2: rt.StorageError("full")}
        await trio.sleep(5)
        assert [text for _, text in appends] == ["a", "ab", "ab"]
        assert [record.seq for record in parts_of(store, thread_id)] == [3, 4]


async def test_a_checkpoint_finds_its_way_when_the_mailbox_is_full(autojump_clock, nursery):
    """There is no room for it; it comes as soon as the next text does."""
    store, release = counted(), trio.Event()

    async def hold(number, thread_id, records):
        if records[0].event.kind == "item.started" and not is_part(records[0]):
            await release.wait()

    store.before = hold
    gate = trio.Event()
    async with opened([gate, say("x" * 5000), trio.Event()], store=store) as (runtime, _, thread_id):
        await runtime.start_turn(thread_id, "hello")
        kind = items.ItemStarted(message("m", ""))
        nursery.start_soon(runtime.record_thread_item_event_kind, thread_id, "t", NOW, kind)
        await wait_all_tasks_blocked()
        for _ in range(1100):
            nursery.start_soon(runtime.thread_item_exists, thread_id, "t", "m")
        await wait_all_tasks_blocked()
        gate.set()
        await wait_all_tasks_blocked()
        release.set()
        await trio.sleep(1)
        assert len(parts_of(store, thread_id)) == 2


async def test_a_turn_that_ends_before_its_time_stores_no_part_of_it(autojump_clock):
    store = counted()
    async with opened([say("a"), 0.4, DONE], store=store) as (runtime, _, thread_id):
        await runtime.run_turn(thread_id, "hello")
        appends = store.appends
        await trio.sleep(2)
        assert store.appends == appends
        assert parts_of(store, thread_id) == []


async def test_a_late_reminder_reads_no_thread():
    """A checkpoint that reaches a thread which isn't in memory has nothing to store."""
    store = counted()
    async with opened(store=store) as (runtime, _, thread_id):
        assert await runtime._core.directory.ask(thread_id, Checkpoint()) is None
        await wait_all_tasks_blocked()
        assert store.loads == 0
        assert runtime._core.directory.get(thread_id) is None


async def test_a_crash_with_open_text_leaves_no_reminder_behind(autojump_clock):
    store = counted()
    async with opened([say("a"), trio.Event()], store=store) as (runtime, _, thread_id):
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        store.fail = {store.appends + 1: rt.AppendOutcomeUnknown("who knows")}
        await trio.sleep(0.5)
        assert (await runtime.wait_turn(thread_id, turn_id)).reason == "runtime_restart"
        loads, appends = store.loads, store.appends
        await trio.sleep(5)
        assert (store.loads, store.appends) == (loads, appends)


# -- what readers see --------------------------------------------------------------------------------------------------


async def test_checkpoints_are_numbered_item_events_that_are_not_published(autojump_clock):
    store = stores.MemoryThreadStore()
    step = [say("a", "commentary"), 1, say("b", "commentary"), 1, say("c", "commentary"), DONE]
    async with opened(step, store=store) as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        turn_id = (await runtime.run_turn(thread_id, "hello")).turn_id
        seen = taken(subscription)
        snapshot = await runtime.load_thread(thread_id)
        warm = await view_of(runtime, thread_id)
    item_id = f"{turn_id}-message-commentary"
    started, first, second = parts_of(store, thread_id)
    assert started.event == items.ItemStarted(message(item_id, "", OPEN, "commentary"))
    assert first.event == items.ItemDelta(item_id, items.AgentMessageText("a", "commentary"))
    assert second.event == items.ItemDelta(item_id, items.AgentMessageText("b", "commentary"))
    assert [(event.kind, event.seq) for event in durable(seen)] == [
        ("item.started", 1),
        ("item.completed", 2),
        ("item.completed", 6),
    ]
    assert not any(event.checkpoint for event in item_events(seen))
    assert kinds(seen).count("item.delta") == 3
    assert [event.seq for event in snapshot.item_events] == [1, 2, 3, 4, 5, 6]
    assert warm[1] == message(item_id, "abc", phase="commentary")
    async with opened(store=store, thread=False) as (runtime, _, _):
        assert await view_of(runtime, thread_id) == warm


async def test_a_view_joined_behind_a_checkpoint_shows_the_text_once(autojump_clock):
    step = [say("a"), 1, say("b"), gate := trio.Event(), say("c"), DONE]
    async with opened(step) as (runtime, _, thread_id):
        turn_id = await runtime.start_turn(thread_id, "hello")
        await trio.sleep(1.1)
        async with runtime.thread_view(thread_id) as view:
            assert view.items[1] == message(f"{turn_id}-message", "ab", OPEN)
            gate.set()
            seen = [await anext(view) for _ in range(3)]
            assert shown(view.items, seen)[1] == message(f"{turn_id}-message", "abc")


# -- what becomes of it ------------------------------------------------------------------------------------------------


async def discarded(step, store=None):
    """Run a step that fails and is tried again; return the discards that were published, and the log."""
    store = store or stores.MemoryThreadStore()
    async with opened([*step, lost()], [say("again"), DONE], store=store, config=AT_ONCE) as (runtime, _, thread_id):
        async with runtime.subscribe_events() as subscription:
            turn_id = (await runtime.run_turn(thread_id, "hello")).turn_id
            seen = taken(subscription)
        warm = await view_of(runtime, thread_id)
    async with opened(store=store, thread=False) as (runtime, _, _):
        assert await view_of(runtime, thread_id) == warm
    assert [item.text for item in warm] == ["hello", "again"]
    assert warm[1].id == f"{turn_id}-message-2"
    told = [event for event in item_events(seen) if isinstance(event.event, items.ItemDiscarded)]
    return told, [r for r in raw_records(store, thread_id) if isinstance(r, items.ThreadItemEvent)], seen


async def test_an_item_that_is_discarded_before_any_checkpoint_leaves_nothing_in_the_log(autojump_clock):
    told, log, _ = await discarded([say("a")])
    assert [event.seq for event in told] == [0]
    assert log == []


async def test_an_item_that_is_discarded_after_a_checkpoint_gets_a_stored_discard_before_the_retry(autojump_clock):
    told, log, seen = await discarded([say("a"), 1, say("b")])
    assert log[-1] == told[0]
    assert [event.kind for event in log] == ["item.started", "item.delta", "item.discarded"]
    assert [event.seq for event in log] == [3, 4, 5]
    order = kinds(seen)
    assert order.index("item.discarded") < order.index("retry.scheduled")
    assert {envelope.source for envelope in seen if envelope.kind == "item.discarded"} == {"turn"}


async def test_a_checkpoint_that_is_only_on_its_way_counts_for_the_discard(autojump_clock):
    told, log, _ = await discarded([say("x" * 5000)])
    assert log[-1] == told[0]
    assert len(log) == 3


async def test_a_checkpoint_that_failed_does_not_count_for_the_discard(autojump_clock):
    store = counted()
    store.fail = {2: rt.StorageError("full")}
    told, log, _ = await discarded([say("x" * 5000)], store)
    assert [event.seq for event in told] == [0]
    assert log == []


async def test_an_interrupted_text_is_completed_in_place_under_the_id_of_its_checkpoints(autojump_clock):
    store = stores.MemoryThreadStore()
    async with opened([say("a"), 1, say("b"), trio.Event()], store=store) as (runtime, _, thread_id):
        turn_id = await runtime.start_turn(thread_id, "hello")
        await trio.sleep(1.1)
        await runtime.persist_turn_item(thread_id, "other", transcript.UserMessage("later"))
        await runtime.interrupt_turn(thread_id, turn_id)
        await runtime.wait_turn(thread_id, turn_id)
        warm = await view_of(runtime, thread_id)
    interrupted = message(f"{turn_id}-message", "ab", items.ItemStatus.INTERRUPTED)
    assert [item.id for item in warm] == [f"{turn_id}-user", f"{turn_id}-message", "other-user"]
    assert warm[1] == interrupted
    async with opened(store=store, thread=False) as (runtime, _, _):
        assert await view_of(runtime, thread_id) == warm


# -- calls that the provider runs --------------------------------------------------------------------------------------


async def test_a_hosted_call_is_shown_while_its_turn_runs_and_never_stored():
    store = stores.MemoryThreadStore()
    step = [
        inference.HostedToolCallStarted("h1", "search"),
        inference.HostedToolCallCompleted("h1", "search", '{"q": 1}'),
        say("found"),
        DONE,
    ]
    async with opened(step, store=store) as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        turn_id = (await runtime.run_turn(thread_id, "hello")).turn_id
        seen = taken(subscription)
        assert [item.id for item in await view_of(runtime, thread_id)] == [f"{turn_id}-user", f"{turn_id}-message"]
    item_id = f"{turn_id}-hosted-h1"
    hosted = [event for event in item_events(seen) if event.event.item_id == item_id]
    assert [event.event for event in hosted] == [
        items.ItemStarted(items.ToolExecution(item_id, "h1", "search", status=OPEN)),
        items.ItemCompleted(
            items.ToolExecution(item_id, "h1", "search", '{"q": 1}', status=items.ItemStatus.COMPLETED)
        ),
        items.ItemDiscarded(item_id),
    ]
    assert {event.seq for event in hosted} == {0}
    assert kinds(seen)[-2:] == ["item.discarded", "turn.completed"]
    assert not any(item_id in repr(record) for record in raw_records(store, thread_id))


async def test_a_hosted_call_stays_through_a_retry_and_goes_when_the_turn_is_interrupted(autojump_clock):
    hosted = inference.HostedToolCallStarted("h1", "search")
    steps = [[hosted, say("a"), lost()], [hosted, say("b"), trio.Event()]]
    async with opened(*steps, config=AT_ONCE) as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        turn_id = await runtime.start_turn(thread_id, "hello")
        await trio.sleep(1)
        assert await runtime.thread_item_exists(thread_id, turn_id, f"{turn_id}-hosted-h1")
        await runtime.interrupt_turn(thread_id, turn_id)
        await runtime.wait_turn(thread_id, turn_id)
        told = [(e.kind, e.event.item_id) for e in item_events(taken(subscription)) if "hosted" in e.event.item_id]
        assert [kind for kind, _ in told] == ["item.started", "item.discarded"]
        assert not await runtime.thread_item_exists(thread_id, turn_id, f"{turn_id}-hosted-h1")
