"""A view: its snapshot and the events after it are the thread's items at every moment, whatever happens between."""

from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, inference, items, stores, transcript
from tests.event_support import (
    AT_ONCE,
    DONE,
    NOW,
    call,
    counted,
    kinds,
    lost,
    message,
    opened,
    say,
    shown,
    think,
    view_of,
)
from tests.injection import Injector, is_any

OPEN = items.ItemStatus.IN_PROGRESS
LONG = [part for _ in range(250) for part in (say("abcd"),)]


def buffered(view):
    """All that the view can give without waiting."""
    seen = []
    while view._kept or view._buffer:
        seen.append(view._kept.popleft() if view._kept else view._buffer.popleft())
    return seen


@asynccontextmanager
async def viewed(*steps, buffer=1000, **options):
    """A runtime with one thread, and a view of it."""
    async with (
        opened(*steps, **options) as (runtime, _, thread_id),
        runtime.thread_view(thread_id, buffer=buffer) as view,
    ):
        yield runtime, thread_id, view


async def read(view, count):
    return [await anext(view) for _ in range(count)]


async def test_a_view_is_the_items_so_far_then_their_events_and_the_terminal_ones():
    gate = trio.Event()
    async with opened([think("r"), say("ha"), gate, say("llo"), DONE]) as (runtime, _, thread_id):
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        async with runtime.thread_view(thread_id) as view:
            assert [type(item).__name__ for item in view.items] == ["UserMessage", "Reasoning", "AgentMessage"]
            assert view.items[2] == message(f"{turn_id}-message", "ha", OPEN)
            gate.set()
            seen = await read(view, 3)
            assert kinds(seen) == ["item.delta", "item.completed", "turn.completed"]
            assert shown(view.items, seen) == await view_of(runtime, thread_id)


STEPS = [
    [think("r"), say("a", "commentary"), say("b", "commentary"), say("c"), *call(), DONE],
    [say("lost"), lost()],
    [
        think("s"),
        inference.HostedToolCallStarted("h", "search"),
        inference.HostedToolCallCompleted("h", "search", "{}"),
        say("d"),
        say("e"),
        DONE,
    ],
]
"""A turn with all that can be shown: phases, a call, a stream that is tried again, a hosted call."""


async def join(runtime, thread_id, joined, result):
    """Show the thread from the moment that `joined` is set until nothing happens any more."""
    await joined.wait()
    async with runtime.thread_view(thread_id) as view:
        current = view.items
        with trio.move_on_after(1):
            async for envelope in view:
                current = shown(current, [envelope])
        result.append(current)


async def test_a_view_joined_at_any_moment_of_a_turn_ends_with_the_same_items(autojump_clock):
    """At every step of every task a reader joins; what it shows in the end is what a fresh runtime shows."""
    for number in range(1, 1000):
        store, result, joined = stores.MemoryThreadStore(), [], trio.Event()
        async with (
            opened(*STEPS, store=store, config=AT_ONCE) as (runtime, _, thread_id),
            trio.open_nursery() as nursery,
        ):
            with Injector(number, joined.set, is_any, "after").watching() as injector:
                nursery.start_soon(join, runtime, thread_id, joined, result)
                turn_id = (await runtime.run_turn(thread_id, "hello")).turn_id
            joined.set()
        async with opened(store=store, thread=False) as (runtime, _, _):
            cold = await view_of(runtime, thread_id)
        assert [item.id for item in cold] == [f"{turn_id}-{base}" for base in ORDER]
        assert result == [cold], f"joined at step {number}"
        if not injector.fired:
            break
    assert number > 40


ORDER = ["user", "reasoning", "message-commentary", "message", "tool-c1", "reasoning-2", "message-3"]


async def test_a_view_that_is_too_slow_starts_anew_with_one_reset_and_is_in_step_again(autojump_clock):
    gate, second = trio.Event(), trio.Event()
    step = [*[say("a")] * 1000, gate, say("b"), second, DONE]
    async with viewed(step, buffer=8) as (runtime, thread_id, view):
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        (reset,) = await read(view, 1)
        assert isinstance(reset.event, events.ItemsReset)
        assert reset.event.items[-1] == message(f"{turn_id}-message", "a" * 1000, OPEN)
        gate.set()
        seen = [reset, *await read(view, 1)]
        second.set()
        seen += await read(view, 2)
        assert kinds(seen) == ["items.reset", "item.delta", "item.completed", "turn.completed"]
        assert shown((), seen) == await view_of(runtime, thread_id)


async def test_terminal_events_that_fell_to_an_overflow_come_after_the_reset():
    async with viewed([*LONG, DONE], [*LONG, DONE], buffer=4) as (runtime, thread_id, view):
        first = (await runtime.run_turn(thread_id, "one")).turn_id
        second = (await runtime.run_turn(thread_id, "two")).turn_id
        seen = await read(view, 3)
        assert kinds(seen) == ["items.reset", "turn.completed", "turn.completed"]
        assert [event.turn_id for event in seen[1:]] == [first, second]
        assert seen[0].event.items == await view_of(runtime, thread_id)


async def test_an_overflow_while_the_reader_is_about_to_read_gives_the_reset_instead(nursery):
    """The buffer is forgotten between the reader's wake-up and its read."""
    async with viewed(buffer=1) as (_, thread_id, view):
        seen = []

        async def follow():
            seen.extend(await read(view, 1))

        nursery.start_soon(follow)
        await wait_all_tasks_blocked()
        for envelope in [an_event(thread_id, number) for number in (1, 2, 3)]:
            view.offer(envelope)
        await wait_all_tasks_blocked()
        assert kinds(seen) == ["items.reset"]


def an_event(thread_id, number, kind="item"):
    from roder_trio.actors._services import envelope

    change = items.ItemDelta(f"m{number}", items.AgentMessageText("x"))
    inner = items.ThreadItemEvent(event_id="e", timestamp=NOW, thread_id=thread_id, turn_id="turn", event=change)
    return envelope(inner, thread_id, "turn")


async def test_a_view_does_not_hear_of_other_threads_nor_of_other_kinds():
    async with opened([say("a"), DONE]) as (runtime, _, thread_id):
        other = (await runtime.create_thread()).thread_id
        async with runtime.thread_view(other) as view:
            await runtime.run_turn(thread_id, "hello")
            await runtime.persist_turn_item(other, "turn", transcript.UserMessage("x"))
            await runtime.update_thread(other, title="t")
            assert kinds(buffered(view)) == ["item.started", "item.completed"]


async def test_a_cancelled_read_of_a_view_loses_nothing(autojump_clock):
    step = [part for _ in range(30) for part in (say("a"), 0.01)]
    async with viewed([*step, DONE], buffer=5) as (runtime, thread_id, view):
        await runtime.start_turn(thread_id, "hello")
        current, done = view.items, False
        while not done:
            for seconds in (0, 0.001, 0.02):
                with trio.move_on_after(seconds):
                    envelope = await anext(view)
                    current = shown(current, [envelope])
                    done = done or envelope.kind == "turn.completed"
        assert current == await view_of(runtime, thread_id)


async def test_two_tasks_can_not_read_one_view(nursery):
    async with opened() as (runtime, _, thread_id), runtime.thread_view(thread_id) as view:
        nursery.start_soon(anext, view)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await anext(view)
        view.offer(an_event(thread_id, 1))


# -- crashes, eviction, the end ----------------------------------------------------------------------------------------


async def crash(runtime, store, thread_id):
    """Have the thread's incarnation end by an append whose outcome it can't know."""
    store.fail[store.appends + 1] = rt.AppendOutcomeUnknown("who knows")
    with pytest.raises(rt.AppendOutcomeUnknown):
        await runtime.persist_turn_item(thread_id, "other", transcript.UserMessage("x"))


async def test_an_incarnation_that_restarts_gives_its_views_a_reset(autojump_clock):
    store = counted()
    steps = [[think("r"), trio.Event()], [say("b"), DONE]]
    async with viewed(*steps, store=store) as (runtime, thread_id, view), runtime.thread_view(thread_id) as idle:
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        await crash(runtime, store, thread_id)
        await runtime.wait_turn(thread_id, turn_id)
        await wait_all_tasks_blocked()
        seen = buffered(view)
        assert kinds(seen) == ["items.reset", "turn.interrupted"]
        assert [item.id for item in seen[0].event.items] == [f"{turn_id}-user"]
        await runtime.run_turn(thread_id, "again")
        seen += buffered(view)
        assert shown((), seen) == shown((), buffered(idle)) == await view_of(runtime, thread_id)


@pytest.mark.parametrize("fails", [1, 3])
async def test_views_are_reset_by_the_first_load_that_works_after_a_crash(autojump_clock, fails):
    store = counted()
    async with viewed([think("r"), trio.Event()], store=store) as (runtime, thread_id, view):
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        with failing_loads(store, fails):
            await crash(runtime, store, thread_id)
            await wait_all_tasks_blocked()
            for _ in range(fails - 1):
                with pytest.raises(rt.StorageError, match="down"):
                    await runtime.thread_item_exists(thread_id, "turn", "x")
        assert buffered(view) == []
        assert (await runtime.wait_turn(thread_id, turn_id)).reason == "runtime_restart"
        seen = await read(view, 2)
        assert kinds(seen) == ["items.reset", "turn.interrupted"]
        assert seen[0].event.items == await view_of(runtime, thread_id)


class failing_loads:
    """The next `count` loads of the store fail."""

    def __init__(self, store, count, error=None):
        self.store, self.count, self.real = store, count, store.load_state
        self.error = error or rt.StorageError("down")

    def __enter__(self):
        async def load(thread_id):
            if self.count:
                self.count -= 1
                await trio.lowlevel.checkpoint()
                raise self.error
            return await self.real(thread_id)

        self.store.load_state = load

    def __exit__(self, *raised):
        assert self.count == 0
        self.store.load_state = self.real


async def test_views_of_a_parked_thread_start_anew_when_it_works_again(autojump_clock):
    store = counted()
    async with viewed([think("r"), trio.Event()], store=store) as (runtime, thread_id, view):
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        for _ in range(4):
            await crash(runtime, store, thread_id)
            await wait_all_tasks_blocked()
        with pytest.raises(rt.ThreadFailed):
            await runtime.thread_item_exists(thread_id, "turn", "x")
        buffered(view)
        await trio.sleep(61)
        assert await runtime.thread_item_exists(thread_id, turn_id, f"{turn_id}-user")
        assert kinds(buffered(view)) == ["items.reset"]


async def test_a_view_whose_request_for_a_snapshot_meets_a_crash_asks_the_next_incarnation(autojump_clock):
    """The store has a bug, once: no error of its own kind, so the incarnation ends with the request in hand."""
    store, config = counted(), rt.RuntimeConfig(max_resident_threads=1)
    async with opened([*LONG, DONE], store=store, config=config) as (runtime, _, thread_id):
        other = (await runtime.create_thread()).thread_id
        async with runtime.thread_view(thread_id, buffer=2) as view:
            await runtime.run_turn(thread_id, "hello")
            await wait_all_tasks_blocked()
            await runtime.load_thread(other)
            with failing_loads(store, 1, RuntimeError("a bug")):
                seen = await read(view, 2)
            assert kinds(seen) == ["items.reset", "turn.completed"]
            assert seen[0].event.items == await view_of(runtime, thread_id)


async def test_an_eviction_does_not_show_in_a_view_and_a_view_keeps_no_thread_in_memory():
    config = rt.RuntimeConfig(max_resident_threads=1)
    async with opened([say("a"), DONE], config=config) as (runtime, _, thread_id):
        other = (await runtime.create_thread()).thread_id
        async with runtime.thread_view(thread_id) as view:
            await runtime.load_thread(other)
            assert runtime._core.directory.get(thread_id) is None
            await runtime.run_turn(thread_id, "hello")
            seen = buffered(view)
            assert "items.reset" not in kinds(seen)
            assert shown(view.items, seen) == await view_of(runtime, thread_id)


@pytest.mark.parametrize("leave", ["archive_thread", "delete_thread"])
@pytest.mark.parametrize("behind", [False, True])
async def test_an_archive_or_a_delete_ends_a_view_after_what_is_buffered(leave, behind):
    step = [*LONG, trio.Event()]
    async with viewed(step, buffer=2 if behind else 1000) as (runtime, thread_id, view), runtime.subscribe_events():
        await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        assert await getattr(runtime, leave)(thread_id)
        seen = [event async for event in view]
        assert kinds(seen)[-1] == "turn.interrupted"
        assert (len(seen) == 1) is behind
        with pytest.raises(StopAsyncIteration):
            await anext(view)


async def test_a_view_that_falls_behind_as_its_thread_goes_ends(nursery):
    """The archive came by another way than this runtime's, so only the request for a new snapshot tells."""
    store = stores.MemoryThreadStore()
    config = rt.RuntimeConfig(max_resident_threads=1)
    async with viewed(store=store, config=config, buffer=1) as (runtime, thread_id, view):
        await runtime.load_thread((await runtime.create_thread()).thread_id)
        await store.archive_thread(thread_id)
        for number in range(3):
            view.offer(an_event(thread_id, number))
        assert [event async for event in view] == []


async def test_a_view_that_is_behind_when_the_runtime_is_left_ends(autojump_clock):
    seen = []

    async def follow(runtime, thread_id, ready):
        async with runtime.thread_view(thread_id, buffer=1) as view:
            ready.set()
            async for event in view:
                seen.append(event.kind)
                await trio.sleep(1)

    step = [*LONG, trio.Event()]
    async with trio.open_nursery() as nursery, opened(step) as (runtime, _, thread_id):
        nursery.start_soon(follow, runtime, thread_id, ready := trio.Event())
        await ready.wait()
        await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
    assert seen[-1] == "turn.interrupted"


async def test_a_missing_thread_has_no_view():
    async with opened() as (runtime, _, thread_id):
        await runtime.archive_thread(thread_id)
        for missing in (thread_id, "unknown", ""):
            with pytest.raises(rt.ThreadNotFound):
                async with runtime.thread_view(missing):
                    raise AssertionError
        assert not runtime._core.broadcast.has_readers


async def test_a_cancelled_entry_leaves_no_view_behind(nursery):
    """The thread is being read when the caller leaves; the actor answers later, to nobody."""
    store, release = counted(), trio.Event()
    real = store.load_state

    async def load(thread_id):
        await release.wait()
        return await real(thread_id)

    async with opened(store=store) as (runtime, _, thread_id):
        store.load_state = load
        scope = trio.CancelScope()

        async def enter():
            with scope:
                async with runtime.thread_view(thread_id):
                    raise AssertionError

        nursery.start_soon(enter)
        await wait_all_tasks_blocked()
        scope.cancel()
        await wait_all_tasks_blocked()
        release.set()
        await wait_all_tasks_blocked()
        assert runtime._core.directory.get(thread_id) is not None
        assert not runtime._core.broadcast.has_readers


async def test_leaving_a_view_unregisters_it():
    async with opened() as (runtime, _, thread_id):
        async with runtime.thread_view(thread_id) as view:
            assert runtime._core.broadcast.has_readers
        assert not runtime._core.broadcast.has_readers
        assert [event async for event in view] == []
