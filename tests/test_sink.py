"""Sinks get everything in order, one event at a time; what one of them does disturbs nobody else."""

from functools import partial

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events
from tests.event_support import DONE, kinds, opened, say, taken


@attrs.define
class Sink(rt.EventSink):
    """Does `work` with each event and keeps it then; a value like any other, so it has no hash."""

    id: str
    work: object = None
    seen: list = attrs.field(factory=list)
    started: list = attrs.field(factory=list)

    async def emit(self, envelope):
        self.started.append(envelope)
        if self.work is not None:
            await self.work(envelope)
        self.seen.append(envelope)


async def fail(envelope):
    await trio.lowlevel.checkpoint()
    raise ValueError("no " * 200)


async def hang(envelope):
    await trio.sleep_forever()


async def slow(envelope):
    await trio.sleep(1)


async def spoil(envelope):
    """Its child fails when it is cancelled, so cancelling brings a group."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("spoiled")


def failures(seen):
    return [envelope.event for envelope in seen if isinstance(envelope.event, events.SinkFailed)]


async def test_each_sink_gets_every_event_in_order():
    sinks = [Sink("one"), Sink("two")]
    step = [say("a"), say("b"), DONE]
    async with opened(step, sinks=sinks) as (runtime, _, thread_id), runtime.subscribe_events() as subscription:
        await runtime.run_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        seen = taken(subscription)
    assert kinds(sinks[0].seen)[0] == "thread.created"
    assert sinks[0].seen[1:] == seen
    assert sinks[1].seen == sinks[0].seen


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (fail, ("ValueError: " + "no " * 200)[:300]),
        (hang, "the event took longer than 2 s"),
        (spoil, "ValueError: spoiled"),
    ],
)
async def test_a_sink_that_fails_is_told_of_and_stays_while_others_get_everything(autojump_clock, work, message):
    bad, good = Sink("bad", work), Sink("good")
    async with opened(sinks=[bad, good], thread=False) as (runtime, _, _), runtime.subscribe_events() as subscription:
        threads = [await runtime.create_thread() for _ in range(3)]
        await trio.sleep(7)
        seen = taken(subscription)
        bad.work = None
        await runtime.create_thread()
        await wait_all_tasks_blocked()
    assert failures(seen) == [events.SinkFailed("bad", message, 1)] * 3
    assert [envelope.event.metadata for envelope in bad.started[:3]] == threads
    assert kinds(bad.seen) == ["thread.created"]
    assert kinds(good.seen) == ["thread.created"] * 4


async def test_one_slow_sink_delays_neither_another_nor_a_thread(autojump_clock):
    late, prompt = Sink("late", slow), Sink("prompt")
    async with opened([*[say("a")] * 20, DONE], sinks=[late, prompt]) as (runtime, _, thread_id):
        began = trio.current_time()
        await runtime.run_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        assert trio.current_time() == began
        assert kinds(prompt.seen)[-1] == "turn.completed"
        assert len(late.started) == 1
        await trio.sleep(100)
        assert late.seen == prompt.seen


async def test_what_sinks_fail_at_goes_to_no_sink_and_takes_no_room_in_one(autojump_clock):
    bad, late = Sink("bad", fail), Sink("late", slow)
    async with opened([*[say("a")] * 230, DONE], sinks=[bad, late], config=patient()) as (runtime, _, thread_id):
        await runtime.run_turn(thread_id, "hello")
        await trio.sleep(1000)
        assert "sink.failed" not in {*kinds(bad.started), *kinds(late.started)}
        assert "subscription.lagged" not in kinds(late.seen)
        assert len(late.seen) == len(bad.started)


def patient(**deadlines):
    return rt.RuntimeConfig(deadlines=rt.Deadlines(**deadlines))


async def test_a_sink_that_falls_behind_gets_a_notice_like_any_reader(autojump_clock):
    late = Sink("late", slow)
    async with opened([*[say("a")] * 500, DONE], sinks=[late]) as (runtime, _, thread_id):
        await runtime.run_turn(thread_id, "hello")
        await trio.sleep(300)
        lagged = [envelope.event.missed for envelope in late.seen if envelope.kind == "subscription.lagged"]
        assert len(lagged) == 1
        assert len(late.seen) == 258
        assert kinds(late.seen)[-1] == "turn.completed"


async def test_the_exit_flushes_what_is_buffered(autojump_clock):
    late = Sink("late", partial(quick, 0.01))
    async with opened([*[say("a")] * 100, DONE], sinks=[late]) as (runtime, _, thread_id):
        await runtime.run_turn(thread_id, "hello")
        assert len(late.seen) < 100
    assert kinds(late.seen)[-1] == "turn.completed"
    assert runtime.shutdown_report.unflushed == {}
    assert runtime.shutdown_report.overruns == ()


async def quick(seconds, envelope):
    await trio.sleep(seconds)


async def test_what_can_not_be_flushed_in_time_is_counted_by_sink(autojump_clock):
    stuck, fine = Sink("stuck", hang), Sink("fine")
    config = patient(sink_timeout=100.0, sink_flush_grace=3.0)
    async with opened(sinks=[stuck, fine], config=config, thread=False) as (runtime, _, _):
        for _ in range(4):
            await runtime.create_thread()
        assert runtime.shutdown_report is None
        began = trio.current_time()
    assert trio.current_time() - began == 3.0
    assert runtime.shutdown_report.unflushed == {"stuck": 4}
    assert runtime.shutdown_report.overruns == ("sinks",)
    assert runtime.shutdown_report.status == "clean"
    assert len(fine.seen) == 4


async def test_the_terminal_events_of_the_exit_reach_the_sinks(autojump_clock):
    sink = Sink("one")
    async with opened([say("a"), trio.Event()], sinks=[sink]) as (runtime, _, thread_id):
        await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
    assert kinds(sink.seen)[-1] == "turn.interrupted"
    assert sink.seen[-1].event.reason == "shutdown"
