"""Subscriptions: what they filter, what they drop and say so, what a cancelled read loses (nothing), how they end."""

from collections import deque
from itertools import count

import pytest
import trio
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, items
from roder_trio.actors._reader import Filter
from roder_trio.actors._services import envelope
from roder_trio.actors.broadcast import EventBroadcast, is_terminal
from roder_trio.schema.event import Lagged
from tests.event_support import DONE, NOW, kinds, opened, say, taken

numbers = count(1)


def a_broadcast():
    return EventBroadcast(lambda missed: envelope(Lagged(missed)))


def delta(thread_id="t", turn_id="u"):
    kind = items.ItemDelta(f"item-{next(numbers)}", items.AgentMessageText("x"))
    event = items.ThreadItemEvent(event_id="e", timestamp=NOW, thread_id=thread_id, turn_id=turn_id, event=kind)
    return envelope(event, thread_id, turn_id)


def end(thread_id="t", turn_id="u"):
    return envelope(events.TurnCompleted(), thread_id, turn_id)


async def rest(subscription):
    """All that can be read without waiting."""
    seen = []
    while subscription.buffered or subscription._missed:
        seen.append(await anext(subscription))
    return seen


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        (Filter(), "all"),
        (Filter(thread_id="t"), "turn.completed item.delta"),
        (Filter(thread_id="other"), ""),
        (Filter(turn_id="u"), "turn.completed item.delta"),
        (Filter(turn_id="v"), ""),
        (Filter(thread_id="t", turn_id="u", kinds=("item",)), "item.delta"),
        (Filter(thread_id="t", turn_id="v", kinds=("item",)), ""),
        (Filter(kinds=("turn",)), "turn.completed"),
        (Filter(kinds=("turn.completed",)), "turn.completed"),
        (Filter(kinds=("tur", "turn.complete", "completed")), ""),
        (Filter(kinds=("sink", "item")), "item.delta sink.failed"),
        (Filter(without=("sink.failed",)), "turn.completed item.delta"),
    ],
)
def test_a_filter_joins_its_parts_and_a_kind_stands_for_all_below_it(wanted, passes):
    told = [end(), delta(), envelope(events.SinkFailed("s", "broken"))]
    found = [event.kind for event in told if wanted.matches(event)]
    assert found == ([event.kind for event in told] if passes == "all" else passes.split())


async def test_what_a_filter_drops_takes_no_buffer_and_no_lag():
    broadcast = a_broadcast()
    with broadcast.subscribed(Filter(thread_id="t"), 4) as subscription:
        for _ in range(20_000):
            broadcast.publish(delta(thread_id="b"))
        broadcast.publish(delta())
        assert [event.kind for event in await rest(subscription)] == ["item.delta"]


async def test_the_runtime_takes_one_kind_or_many(autojump_clock):
    async with opened([say("a"), DONE]) as (runtime, _, thread_id):  # noqa: SIM117 - the three read better apart
        async with (
            runtime.subscribe_events(kinds="turn") as one,
            runtime.subscribe_events(kinds=iter(["item.delta", "turn.started"])) as two,
            runtime.subscribe_events(turn_id="unknown") as none,
        ):
            await runtime.run_turn(thread_id, "hello")
            assert kinds(taken(one)) == ["turn.started", "turn.item_appended", "turn.item_appended", "turn.completed"]
            assert kinds(taken(two)) == ["turn.started", "item.delta"]
            assert taken(none) == []


@pytest.mark.parametrize("buffer", [0, -1, 1.5, True, None, "many"])
async def test_a_buffer_is_a_positive_integer(buffer, autojump_clock):
    async with opened() as (runtime, _, thread_id):
        with pytest.raises(ValueError, match="buffer"):
            async with runtime.subscribe_events(buffer=buffer):
                raise AssertionError
        with pytest.raises(ValueError, match="buffer"):
            async with runtime.thread_view(thread_id, buffer=buffer):
                raise AssertionError


# -- lag and overrun ---------------------------------------------------------------------------------------------------


async def test_a_full_buffer_drops_its_oldest_and_says_how_many_first():
    broadcast = a_broadcast()
    deltas = [delta() for _ in range(10)]
    with broadcast.subscribed(Filter(), 4) as subscription:
        for event in [*deltas, last := end()]:
            broadcast.publish(event)
        lagged, *left = await rest(subscription)
        assert lagged.event == Lagged(7)
        assert (lagged.thread_id, lagged.seq) == (None, 0)
        assert left == [*deltas[7:], last]
        broadcast.publish(last)
        assert await rest(subscription) == [last]


async def test_missed_counts_from_one_notice_to_the_next():
    broadcast = a_broadcast()
    with broadcast.subscribed(Filter(), 1) as subscription:
        broadcast.publish(delta())
        broadcast.publish(delta())
        assert (await anext(subscription)).event == Lagged(1)
        broadcast.publish(delta())
        broadcast.publish(newest := delta())
        assert [event.event for event in await rest(subscription)] == [Lagged(2), newest.event]


async def test_terminal_events_are_kept_and_a_newcomer_that_is_none_is_dropped_instead():
    broadcast = a_broadcast()
    with broadcast.subscribed(Filter(), 2) as subscription:
        ends = [end(), end()]
        for event in [delta(), *ends, delta()]:
            broadcast.publish(event)
        lagged, *left = await rest(subscription)
        assert lagged.event == Lagged(2)
        assert left == ends


async def test_one_terminal_event_too_many_ends_the_subscription_after_the_buffered_ones():
    broadcast = a_broadcast()
    with broadcast.subscribed(Filter(), 2) as subscription:
        ends = [end(), end()]
        for event in [*ends, end(), delta()]:
            broadcast.publish(event)
        assert await rest(subscription) == ends
        for _ in range(2):
            with pytest.raises(rt.SubscriptionOverrun):
                await anext(subscription)


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 6), st.integers(0, 8))
@examples(max_examples=150)
def test_what_is_read_and_what_is_missed_is_all_that_was_published(terminals, limit, read_every):
    """The buffer never exceeds its limit, order is kept, and no terminal event is lost without an overrun."""
    broadcast = a_broadcast()
    subscription = broadcast.subscription(Filter(), limit)
    published, seen, missed = [], deque(), 0

    def read():
        nonlocal missed
        while subscription.buffered or subscription._missed:
            event = subscription.take()
            if isinstance(event.event, Lagged):
                missed += event.event.missed
            else:
                seen.append(event)

    for number, terminal in enumerate(terminals, 1):
        event = end() if terminal else delta()
        if not subscription.ended:
            published.append(event)
        broadcast.publish(event)
        assert subscription.buffered <= limit
        if read_every and number % read_every == 0:
            read()
    read()
    overran = subscription._overrun
    assert len(seen) + missed + overran == len(published)
    positions = [published.index(event) for event in seen]
    assert positions == sorted(positions)
    lost = [event for event in published if is_terminal(event) and event not in seen]
    assert lost == ([published[-1]] if overran else [])


@pytest.mark.unmeasured
async def test_a_subscriber_that_never_reads_holds_its_buffer_and_delays_nothing(autojump_clock):
    deltas = [say("x")] * 40_000
    async with opened([*deltas, DONE]) as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        assert (await runtime.run_turn(thread_id, "hello")).text == "x" * 40_000
        assert subscription.buffered == 16_384
        first = await anext(subscription)
        assert isinstance(first.event, Lagged)
        assert first.event.missed > 20_000
        assert kinds(taken(subscription))[-1] == "turn.completed"


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_a_cancelled_read_loses_nothing_and_doubles_nothing(autojump_clock):
    """The reads of a whole turn are cancelled at every chance."""
    steps = [part for number in range(50) for part in (say(f"{number} "), 0.01)]
    async with opened([*steps, DONE]) as (runtime, _, thread_id):  # noqa: SIM117 - the pair reads better apart
        async with runtime.subscribe_events() as read, runtime.subscribe_events() as buffered:
            await runtime.start_turn(thread_id, "hello")
            seen, cancelled = [], 0
            while not seen or not is_terminal(seen[-1]):
                for deadline in (0, 0, 0.001, 0.01):
                    with trio.move_on_after(deadline) as scope:
                        seen.append(await anext(read))
                    cancelled += scope.cancelled_caught
                    if seen and is_terminal(seen[-1]):
                        break
            assert cancelled > 100
            assert seen == taken(buffered)


async def test_a_reader_of_a_full_buffer_lets_others_run_every_64_events(autojump_clock, nursery):
    broadcast, ran = a_broadcast(), 0

    async def run() -> None:
        nonlocal ran
        while True:
            ran += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(run)
    with broadcast.subscribed(Filter()) as subscription:
        for _ in range(640):
            broadcast.publish(delta())
        for _ in range(640):
            await anext(subscription)
    assert 9 <= ran <= 12


async def test_a_reader_that_takes_its_time_lets_others_run_after_each_event(autojump_clock):
    broadcast = a_broadcast()
    with broadcast.subscribed(Filter()) as subscription:
        for _ in range(3):
            broadcast.publish(delta())
        await anext(subscription)
        for _ in range(2):
            await trio.sleep(0.002)
            scheduled = trio.lowlevel.current_task()._schedule_points
            await anext(subscription)
            assert trio.lowlevel.current_task()._schedule_points > scheduled


async def test_a_reader_of_a_full_buffer_hears_a_cancel_at_its_next_read(autojump_clock):
    broadcast = a_broadcast()
    with broadcast.subscribed(Filter()) as subscription:
        published = [delta() for _ in range(3)]
        for event in published:
            broadcast.publish(event)
        seen = [await anext(subscription)]
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(subscription)
        assert scope.cancelled_caught
        assert [*seen, *await rest(subscription)] == published


async def test_a_reader_beside_a_fast_stream_keeps_pace(autojump_clock):
    deltas = [say("x")] * 6000
    async with opened([*deltas, DONE]) as (runtime, _, thread_id), runtime.subscribe_events(buffer=3000) as read:
        await runtime.start_turn(thread_id, "hello")
        seen = [await anext(read)]
        while not is_terminal(seen[-1]):
            seen.append(await anext(read))
    assert kinds(seen).count("item.delta") == 6000


@pytest.mark.parametrize("buffered", [0, 1])
async def test_two_tasks_can_not_read_one_subscription(nursery, buffered):
    """Neither while one waits, nor while it is about to take the one event that is there."""
    broadcast = a_broadcast()
    with broadcast.subscribed(Filter(), 4) as subscription:
        for _ in range(buffered):
            broadcast.publish(delta())
        seen = []

        async def read():
            try:
                seen.append((await anext(subscription)).kind)
            except trio.BusyResourceError:
                seen.append("busy")

        nursery.start_soon(read)
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        broadcast.publish(delta())
        await wait_all_tasks_blocked()
        assert sorted(seen) == ["busy", "item.delta"]
        broadcast.publish(delta())
        assert (await anext(subscription)).kind == "item.delta"


async def test_all_readers_see_one_order(autojump_clock):
    async with opened([say("a"), DONE], [say("b"), DONE]) as (runtime, _, first):
        second = (await runtime.create_thread()).thread_id
        async with runtime.subscribe_events() as one, runtime.subscribe_events() as two:
            async with trio.open_nursery() as nursery:
                for thread_id in (first, second):
                    nursery.start_soon(runtime.run_turn, thread_id, "hello")
            seen = taken(one)
            assert seen == taken(two)
    for thread_id in (first, second):
        seqs = [event.seq for event in seen if event.thread_id == thread_id and event.seq]
        assert seqs == sorted(seqs)


# -- beginning and end -------------------------------------------------------------------------------------------------


async def test_a_subscription_begins_with_its_block_and_has_no_past(autojump_clock):
    async with opened([say("a"), DONE], [say("b"), DONE]) as (runtime, _, thread_id):
        await runtime.run_turn(thread_id, "before")
        async with runtime.subscribe_events(thread_id=thread_id) as subscription:
            assert subscription.buffered == 0
            turn_id = await runtime.start_turn(thread_id, "now")
            await runtime.wait_turn(thread_id, turn_id)
            assert {event.turn_id for event in taken(subscription)} == {turn_id}


async def test_leaving_the_block_unregisters_at_once_and_a_reader_gets_the_rest(autojump_clock):
    async with opened() as (runtime, _, _):
        async with runtime.subscribe_events() as subscription:
            await runtime.create_thread()
        await runtime.create_thread()
        assert kinds([event async for event in subscription]) == ["thread.created"]
        assert not runtime._core.broadcast.has_readers
        runtime._core.broadcast.unregister(subscription)


async def test_a_reader_that_is_left_waiting_by_its_block_ends(nursery, autojump_clock):
    async with opened() as (runtime, _, _):
        seen = []

        async def read(subscription):
            seen.extend([event async for event in subscription])
            seen.append("end")

        async with runtime.subscribe_events() as subscription:
            nursery.start_soon(read, subscription)
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert seen == ["end"]


async def test_a_closed_broadcast_gives_new_readers_nothing():
    broadcast = a_broadcast()
    early = broadcast.subscription(Filter(), 4)
    broadcast.publish(delta())
    broadcast.end()
    late = broadcast.subscription(Filter(), 4)
    broadcast.publish(delta())
    assert [event.kind async for event in early] == ["item.delta"]
    assert [event async for event in late] == []


async def test_a_closed_runtime_takes_no_subscriber(autojump_clock):
    async with opened() as (runtime, _, thread_id):
        pass
    with pytest.raises(rt.RuntimeClosed):
        async with runtime.subscribe_events():
            raise AssertionError
    with pytest.raises(rt.RuntimeClosed):
        async with runtime.thread_view(thread_id):
            raise AssertionError


async def test_a_thread_that_leaves_memory_and_comes_back_ends_no_subscription(autojump_clock):
    config = rt.RuntimeConfig(max_resident_threads=1)
    async with opened([say("a"), DONE], config=config) as (runtime, _, thread_id):
        other = (await runtime.create_thread()).thread_id
        async with runtime.subscribe_events(thread_id=thread_id) as subscription:
            await runtime.load_thread(thread_id)
            await runtime.load_thread(other)
            assert runtime._core.directory.get(thread_id) is None
            await runtime.run_turn(thread_id, "hello")
            assert kinds(taken(subscription))[-1] == "turn.completed"


def test_a_broadcast_knows_whose_events_are_wanted():
    broadcast = a_broadcast()
    assert not broadcast.has_readers
    assert not broadcast.wants("t")
    with broadcast.subscribed(Filter(thread_id="t")):
        assert broadcast.has_readers
        assert broadcast.wants("t")
        assert not broadcast.wants("other")
        with broadcast.subscribed(Filter(turn_id="u")):
            assert broadcast.wants("other")
