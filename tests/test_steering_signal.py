"""The signal that preempts work when new input comes."""

import pytest
import trio
import trio.testing

import roder_trio as rt


async def test_a_signal_that_nobody_notifies_disturbs_nothing(autojump_clock: trio.testing.MockClock) -> None:
    signal = rt.SteeringSignal()
    assert not signal.pending
    with signal.preemptible():
        await trio.sleep(1)
    with signal.watch() as scope:
        await trio.sleep(1)
    assert not scope.cancel_called


async def test_a_notification_preempts_the_body_and_is_seen_then(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    signal = rt.SteeringSignal()

    async def notify() -> None:
        await trio.sleep(1)
        signal.notify()

    nursery.start_soon(notify)
    with pytest.raises(rt.CompactionPreempted), signal.preemptible():
        await trio.sleep(10)
    assert trio.current_time() == 1
    assert not signal.pending
    with signal.preemptible():
        await trio.lowlevel.checkpoint()


async def test_an_unseen_notification_preempts_before_the_body_runs() -> None:
    signal = rt.SteeringSignal()
    signal.notify()
    signal.notify()
    with pytest.raises(rt.CompactionPreempted), signal.preemptible():
        raise AssertionError("the body must not run")
    assert not signal.pending
    await trio.lowlevel.checkpoint()


async def test_a_body_that_finished_uncancelled_keeps_its_result() -> None:
    signal = rt.SteeringSignal()
    with signal.preemptible():
        await trio.lowlevel.checkpoint()
        signal.notify()
        result = "finished"
    assert result == "finished"
    assert signal.pending


async def test_an_error_of_the_body_is_raised_as_it_is() -> None:
    signal = rt.SteeringSignal()
    with pytest.raises(LookupError), signal.preemptible():
        signal.notify()
        raise LookupError
    await trio.lowlevel.checkpoint()


async def test_a_cancel_from_outside_is_no_preemption(autojump_clock: trio.testing.MockClock) -> None:
    signal = rt.SteeringSignal()
    with trio.move_on_after(1) as scope, signal.preemptible():
        await trio.sleep(10)
    assert scope.cancelled_caught


async def test_an_unseen_notification_cancels_a_watch_on_entry_until_it_is_cleared() -> None:
    signal = rt.SteeringSignal()
    signal.notify()
    seen = signal.seen
    with signal.watch() as first:
        await trio.lowlevel.checkpoint()
    assert first.cancelled_caught
    signal.clear()
    assert signal.seen == seen + 1
    with signal.watch() as second:
        await trio.lowlevel.checkpoint()
    assert not second.cancel_called


async def test_one_notification_reaches_every_watch(nursery: trio.Nursery) -> None:
    signal = rt.SteeringSignal()
    cancelled: list[bool] = []

    async def watch() -> None:
        with signal.watch() as scope:
            await trio.sleep_forever()
        cancelled.append(scope.cancelled_caught)

    for _ in range(3):
        nursery.start_soon(watch)
    await trio.testing.wait_all_tasks_blocked()
    signal.notify()
    await trio.testing.wait_all_tasks_blocked()
    assert cancelled == [True] * 3
