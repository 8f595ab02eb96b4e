"""Mailboxes, the requests in them, the ports of jobs, and restarting what crashed."""

import logging

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio.actors._cell import Mailbox, Request
from roder_trio.actors._supervisor import MAX_RESTARTS, RESTART_WINDOW, RestartsExhausted, flatten, supervise


class Asked:
    """A caller whose answer can be looked at."""

    def __init__(self, nursery: trio.Nursery, mailbox: Mailbox, payload: object) -> None:
        self.value: object = None
        self.error: Exception | None = None
        self.scope = trio.CancelScope()
        nursery.start_soon(self._ask, mailbox, payload)

    async def _ask(self, mailbox: Mailbox, payload: object) -> None:
        with self.scope:
            try:
                self.value = await mailbox.ask(payload)
            except rt.RoderTrioError as error:
                self.error = error


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


# -- requests ----------------------------------------------------------------------------------------------------------


async def test_requests_come_in_order_and_each_gets_its_answer(nursery: trio.Nursery) -> None:
    mailbox = Mailbox()
    first = Asked(nursery, mailbox, "one")
    await settle()
    second = Asked(nursery, mailbox, "two")
    await settle()
    assert mailbox.unanswered == 2
    for expected in ("one", "two"):
        request = await mailbox.take()
        assert request.payload == expected
        request.resolve(expected.upper())
        request.resolve("too late")
        request.reject(rt.ActorCrashed())
    await settle()
    assert (first.value, second.value, mailbox.unanswered) == ("ONE", "TWO", 0)
    assert mailbox.take_nowait() is None


async def test_a_queued_request_whose_caller_left_is_never_seen(nursery: trio.Nursery) -> None:
    mailbox = Mailbox()
    first, second = Asked(nursery, mailbox, "one"), Asked(nursery, mailbox, "two")
    await settle()
    for asked in (first, second):
        asked.scope.cancel()
    await settle()
    assert mailbox.unanswered == 0
    third = Asked(nursery, mailbox, "three")
    await settle()
    request = await mailbox.take()
    assert request.payload == "three"
    request.resolve(3)
    fourth = Asked(nursery, mailbox, "four")
    await settle()
    fourth.scope.cancel()
    await settle()
    assert mailbox.take_nowait() is None
    assert third.value == 3


async def test_a_request_in_hand_is_carried_out_though_its_caller_left(nursery: trio.Nursery) -> None:
    mailbox = Mailbox()
    asked = Asked(nursery, mailbox, "one")
    request = await mailbox.take()
    with request.held():
        asked.scope.cancel()
        await settle()
        assert not request.settled
        assert mailbox.unanswered == 1
        request.resolve("done")
    assert mailbox.unanswered == 0
    assert asked.value is None


async def test_a_request_in_hand_when_its_owner_fails_is_answered(nursery: trio.Nursery) -> None:
    mailbox = Mailbox()
    for error in (ZeroDivisionError("a bug"), KeyboardInterrupt()):
        asked = Asked(nursery, mailbox, "one")
        request = await mailbox.take()
        with pytest.raises(type(error)), request.held():
            raise error
        await settle()
        assert isinstance(asked.error, rt.ActorCrashed)
        assert asked.error.__cause__ is (error if isinstance(error, Exception) else None)


async def test_a_full_mailbox_makes_its_callers_wait(nursery: trio.Nursery) -> None:
    mailbox = Mailbox(1)
    Asked(nursery, mailbox, "one")
    await settle()
    waiting, leaving = Asked(nursery, mailbox, "two"), Asked(nursery, mailbox, "three")
    await settle()
    assert not mailbox.post("four")
    assert mailbox.unanswered == 3
    leaving.scope.cancel()
    await settle()
    assert mailbox.unanswered == 2
    for expected in ("one", "two"):
        request = await mailbox.take()
        assert request.payload == expected
        request.resolve(expected)
    await settle()
    assert waiting.value == "two"
    assert mailbox.post("five")
    assert (await mailbox.take()).payload == "five"


async def test_closing_answers_all_that_is_queued_and_refuses_the_rest(nursery: trio.Nursery) -> None:
    mailbox = Mailbox(2)
    asked = [Asked(nursery, mailbox, number) for number in range(3)]
    await settle()
    mailbox.close(rt.RuntimeClosed)
    await settle()
    assert [type(one.error) for one in asked].count(rt.RuntimeClosed) == 2
    assert [type(one.error) for one in asked].count(rt.ActorCrashed) == 1
    late = Asked(nursery, mailbox, "late")
    await settle()
    assert isinstance(late.error, rt.ActorCrashed)
    assert not mailbox.post("late")
    assert mailbox.unanswered == 0


async def test_who_watches_is_told_of_each_answer_and_each_withdrawal(nursery: trio.Nursery) -> None:
    told: list[int] = []
    mailbox = Mailbox(on_settled=lambda: told.append(mailbox.unanswered))
    first = Asked(nursery, mailbox, "one")
    second = Asked(nursery, mailbox, "two")
    await settle()
    (await mailbox.take()).resolve(1)
    for asked in (first, second):
        asked.scope.cancel()
    await settle()
    assert told == [1, 0]


async def test_an_answer_that_is_there_needs_no_waiting() -> None:
    request = Request("one", lambda: None)
    request.resolve(1)
    assert await request.answer() == 1
    await trio.lowlevel.checkpoint()


# -- ports -------------------------------------------------------------------------------------------------------------


async def test_a_port_that_closes_answers_what_is_under_way_and_refuses_the_rest(nursery: trio.Nursery) -> None:
    mailbox = Mailbox()
    port = mailbox.open_port()
    crashed: list[str] = []

    async def report(name: str) -> None:
        try:
            await port.report(name)
        except rt.ActorCrashed:
            crashed.append(name)

    nursery.start_soon(report, "in hand")
    request = await mailbox.take()
    nursery.start_soon(report, "queued")
    await settle()
    with request.held():
        port.close()
        await settle()
        assert sorted(crashed) == ["in hand", "queued"]
    await report("later")
    with pytest.raises(rt.ActorCrashed):
        await port.deliver("later")
    assert sorted(crashed) == ["in hand", "later", "queued"]
    assert mailbox.take_nowait() is None
    assert mailbox.unanswered == 0
    outside = Asked(nursery, mailbox, "from outside")
    (await mailbox.take()).resolve("served")
    await settle()
    assert outside.value == "served"


async def test_a_report_that_is_delivered_is_handled_though_nobody_waits(nursery: trio.Nursery) -> None:
    mailbox = Mailbox()
    port = mailbox.open_port()
    await port.deliver("the end")
    request = await mailbox.take()
    assert request.payload == "the end"
    request.resolve(None)
    assert mailbox.unanswered == 0


async def test_a_report_is_delivered_at_once_if_there_is_room(nursery: trio.Nursery) -> None:
    mailbox = Mailbox(1)
    port = mailbox.open_port()
    assert port.deliver_nowait("first")
    assert not port.deliver_nowait("second")
    assert mailbox.unanswered == 1
    nursery.start_soon(port.deliver, "second")
    await settle()
    assert [(await mailbox.take()).payload for _ in range(2)] == ["first", "second"]
    port.close()
    assert mailbox.unanswered == 0
    with pytest.raises(rt.ActorCrashed):
        port.deliver_nowait("late")


async def test_a_port_holds_no_report_that_was_answered(nursery: trio.Nursery) -> None:
    mailbox = Mailbox()
    port = mailbox.open_port()
    for number in range(100):
        await port.deliver(number)
        (await mailbox.take()).resolve(None)
    await port.deliver("last")
    assert [request.payload for request in port._pending] == ["last"]


async def test_a_caller_that_was_cancelled_before_it_asked_asks_nothing(nursery: trio.Nursery) -> None:
    mailbox = Mailbox()
    with trio.CancelScope() as scope:
        scope.cancel()
        await mailbox.ask("one")
    assert scope.cancelled_caught
    assert mailbox.take_nowait() is None
    assert mailbox.unanswered == 0


# -- supervision -------------------------------------------------------------------------------------------------------


async def test_what_crashes_is_run_again(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        await trio.lowlevel.checkpoint()
        if runs <= MAX_RESTARTS:
            raise ZeroDivisionError("a bug")

    await supervise("it", run)
    assert runs == MAX_RESTARTS + 1


async def test_one_crash_too_many_within_the_window_is_raised(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    crashes = 0

    async def run() -> None:
        nonlocal crashes
        crashes += 1
        if crashes <= 2 * MAX_RESTARTS:
            await trio.sleep(RESTART_WINDOW / MAX_RESTARTS)
        raise ExceptionGroup("several", [ZeroDivisionError("a bug")])

    with pytest.raises(RestartsExhausted, match="4 times in 60 s") as exhausted:
        await supervise("it", run)
    assert isinstance(exhausted.value.__cause__, ZeroDivisionError)
    assert crashes > 2 * MAX_RESTARTS


async def test_a_cancel_is_no_crash(autojump_clock: trio.testing.MockClock) -> None:
    with trio.move_on_after(1.0) as scope:
        await supervise("it", trio.sleep_forever)
    assert scope.cancelled_caught


async def test_the_error_that_is_meant_is_found_in_a_group() -> None:
    bug = ZeroDivisionError("a bug")
    assert flatten(bug) is bug
    assert flatten(ExceptionGroup("outer", [ExceptionGroup("inner", [bug])])) is bug
    found: list[BaseException] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            found.append(flatten(BaseExceptionGroup("both", [cancelled, bug])))
            found.append(flatten(BaseExceptionGroup("one", [cancelled])))
            raise
    assert found[0] is bug
    assert isinstance(found[1], trio.Cancelled)
