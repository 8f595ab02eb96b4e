"""Failures of engines: which are tried again and when, which end the turn and how, and the limits of a turn."""

import logging
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, providers, stores, testing, transcript
from roder_trio.providers.scripted import NEVER_ENDS as NEVER
from tests.turn_support import DONE, call, failure, folded_usage, history_of, one_thread, say, settings, texts, used

AGAIN = inference.ProviderMetadata({"end_turn": False})
CUT = failure("STREAM_INTERRUPTED")


def delays(scene: Any) -> list[float]:
    return [event.delay for event in scene.of(events.RetryScheduled)]


# -- what is tried again -----------------------------------------------------------------------------------------------


async def test_a_turn_survives_two_lost_streams_and_counts_all_their_usage(
    autojump_clock: trio.testing.MockClock,
) -> None:
    steps = ([say("fi"), used(7, 1), CUT], [used(7), CUT], [say("fine"), used(7, 2), DONE])
    async with one_thread(*steps) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.text, outcome.usage) == ("completed", "fine", rt.TokenUsage(21, 3, 24))
        assert len(scene.of(events.InferenceStarted)) == 3
        assert len({event.attempt_id for event in scene.of(events.InferenceStarted)}) == 3
        scheduled = scene.of(events.RetryScheduled)
        assert [(e.attempt, e.max_attempts, e.error_kind) for e in scheduled] == [
            (1, 3, "stream_interrupted"),
            (2, 3, "stream_interrupted"),
        ]
        assert 1.0 <= scheduled[0].delay < 1.25
        assert 2.0 <= scheduled[1].delay < 2.5
        assert trio.current_time() == pytest.approx(sum(delays(scene)))
        assert len(scene.ends) == 1


async def test_text_of_a_failed_attempt_is_discarded_and_the_request_is_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    steps = ([inference.ReasoningDelta("r"), say("half a "), CUT], [say("whole"), DONE])
    async with one_thread(*steps) as scene:
        await scene.run()
        assert await scene.history() == [
            transcript.UserMessage("go"),
            transcript.ReasoningSummary("r"),
            transcript.AssistantMessage("whole"),
        ]
        assert texts(scene.engine.requests[1].transcript) == ["go", "r"]
        discarded = [kind for kind in scene.kinds if kind == "item.discarded"]
        assert len(discarded) == 1
        assert scene.shown() == "whole"
        assert scene.kinds.index("item.discarded") < scene.kinds.index("retry.scheduled")


async def test_a_retry_is_announced_before_its_sleep(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([CUT], [DONE]) as scene:
        await scene.start()
        await scene.wait_for(lambda scene: bool(scene.of(events.RetryScheduled)))
        assert trio.current_time() == 0
        assert len(scene.engine.calls) == 1


async def test_the_budget_is_spent_in_a_row_only(autojump_clock: trio.testing.MockClock) -> None:
    steps = ([CUT], [CUT], [*call("c1"), DONE], [CUT], [CUT], [say("done"), DONE])
    async with one_thread(*steps) as scene:
        assert (await scene.run()).text == "done"
        assert [event.attempt for event in scene.of(events.RetryScheduled)] == [1, 2, 1, 2]


async def test_the_last_failure_of_a_series_stands(autojump_clock: trio.testing.MockClock) -> None:
    steps = ([CUT], [used(3), CUT], [say("so far"), used(4), failure("RATE_LIMITED")])
    async with one_thread(*steps) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind, outcome.usage) == (
            "failed",
            "rate_limited",
            rt.TokenUsage(7, 0, 7),
        )
        assert outcome.error == "the engine fails with rate_limited"
        assert outcome.text == "so far"
        assert (await scene.history())[1:] == [
            transcript.AssistantMessage("so far", interrupted=True),
            transcript.ErrorNote("the engine fails with rate_limited"),
        ]
        assert len(scene.engine.calls) == 3
        assert scene.ends == [events.TurnFailed(outcome.error, "rate_limited", outcome.usage)]


@pytest.mark.parametrize("budget", [-1, 0, 1])
async def test_a_budget_below_two_is_one_attempt(autojump_clock: trio.testing.MockClock, budget: int) -> None:
    async with one_thread([CUT], config=settings(provider_retry_max_attempts=budget)) as scene:
        assert (await scene.run()).status == "failed"
        assert len(scene.engine.calls) == 1


@pytest.mark.parametrize(
    ("kind", "tries"),
    [
        ("TRANSPORT", 3),
        ("STREAM_INTERRUPTED", 3),
        ("RATE_LIMITED", 3),
        ("SERVER_OVERLOADED", 3),
        ("TIMEOUT", 3),
        ("INVALID_REQUEST", 1),
        ("AUTHENTICATION", 1),
        ("QUOTA_EXCEEDED", 1),
        ("USAGE_LIMIT", 1),
        ("CONTENT_FILTER", 1),
        ("CANCELLED", 1),
        ("PROTOCOL", 1),
    ],
)
async def test_each_kind_of_failure_is_named_and_retried_or_not(
    autojump_clock: trio.testing.MockClock, kind: str, tries: int
) -> None:
    async with one_thread(*[failure(kind)] * 3) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", kind.lower())
        assert len(scene.engine.calls) == tries


async def test_the_servers_word_on_retrying_wins_over_the_kind(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([failure("INVALID_REQUEST", should_retry=True)], [say("ok"), DONE]) as scene:
        assert (await scene.run()).text == "ok"
    async with one_thread([failure("TRANSPORT", should_retry=False)]) as scene:
        assert (await scene.run()).error_kind == "transport"


async def test_a_stream_that_just_ends_is_interrupted_whatever_it_said(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("all"), used(5)], [say("all"), used(5), DONE]) as scene:
        outcome = await scene.run()
        assert (outcome.text, outcome.usage) == ("all", rt.TokenUsage(10, 0, 10))
        assert [event.error_kind for event in scene.of(events.RetryScheduled)] == ["stream_interrupted"]


async def test_a_failure_on_entering_the_block_is_one_of_the_stream(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(CUT, [say("ok"), DONE]) as scene:
        assert (await scene.run()).text == "ok"


async def test_notices_of_an_engine_that_retries_by_itself_spend_the_budget(
    autojump_clock: trio.testing.MockClock,
) -> None:
    notice = inference.ProviderMetadata({"kind": "reliability_retry_attempt"})
    async with one_thread([notice, CUT], [CUT], [say("never"), DONE]) as scene:
        assert (await scene.run()).status == "failed"
        assert [event.attempt for event in scene.of(events.RetryScheduled)] == [2]
    async with one_thread([notice, notice, notice, CUT]) as scene:
        assert (await scene.run()).status == "failed"
        assert len(scene.engine.calls) == 1


# -- a server's advice -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("advice", "waits"), [(5.0, 5.0), (120.0, 120.0), (0.25, None)])
async def test_advice_wins_where_it_is_later(
    autojump_clock: trio.testing.MockClock, advice: float, waits: float | None
) -> None:
    async with one_thread([failure("RATE_LIMITED", retry_after=advice)], [say("ok"), DONE]) as scene:
        assert (await scene.run()).text == "ok"
        (delay,) = delays(scene)
        assert delay == waits or (waits is None and 1.0 <= delay < 1.25)
        assert trio.current_time() == pytest.approx(delay)


async def test_advice_that_is_too_long_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([failure("RATE_LIMITED", retry_after=300.0)]) as scene:
        assert (await scene.run()).error_kind == "rate_limited"
        assert (delays(scene), trio.current_time()) == ([], 0)


async def test_advice_that_ends_past_the_deadline_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    steps = ([failure("RATE_LIMITED", retry_after=5.0)],)
    async with one_thread(*steps, config=settings(turn_deadline=4.0)) as scene:
        assert (await scene.run()).error_kind == "rate_limited"
        assert trio.current_time() == 0


async def test_advice_counts_from_when_it_was_read(autojump_clock: trio.testing.MockClock) -> None:
    """The engine takes three of the five seconds to close its stream."""

    class Slow(providers.ScriptedEngine):
        @asynccontextmanager
        async def stream_turn(self, context: Any, request: Any) -> Any:
            async with super().stream_turn(context, request) as stream:
                try:
                    yield stream
                finally:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(3.0)

    steps = [[failure("RATE_LIMITED", retry_after=5.0)], [say("ok"), DONE]]
    async with one_thread(engine=Slow(steps)) as scene:
        assert (await scene.run()).text == "ok"
        assert trio.current_time() == pytest.approx(5.0 + 3.0)


# -- what is not tried again -------------------------------------------------------------------------------------------


async def test_an_engine_that_gives_up_is_a_protocol_failure(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), used(2), inference.Failed("can't go on"), say("b")]) as scene:
        outcome = await scene.run()
        assert (outcome.error_kind, outcome.error, outcome.text) == ("protocol", "can't go on", "a")
        assert outcome.usage == rt.TokenUsage(2, 0, 2)
        assert scene.engine.active == 0


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), ExceptionGroup("several", [ExceptionGroup("more", [ValueError("a bug")])])]
)
@pytest.mark.parametrize("opening", [True, False])
async def test_any_other_exception_of_an_engine_ends_the_turn_as_engine_error(
    autojump_clock: trio.testing.MockClock, error: Exception, opening: bool
) -> None:
    async with one_thread(error if opening else [say("a"), used(2), error]) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "engine_error")
        assert outcome.error is not None
        assert "a bug" in outcome.error
        assert outcome.text == ("" if opening else "a")
        assert len(scene.engine.calls) == 1


async def test_a_typed_failure_inside_a_group_decides(autojump_clock: trio.testing.MockClock) -> None:
    group = ExceptionGroup("several", [ValueError("other"), ExceptionGroup("inner", [CUT])])
    async with one_thread([say("a"), group], [say("ok"), DONE]) as scene:
        assert (await scene.run()).text == "ok"
        assert [event.error_kind for event in scene.of(events.RetryScheduled)] == ["stream_interrupted"]


async def test_an_engine_that_raises_before_it_gives_a_block_fails_the_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Broken(providers.ScriptedEngine):
        def stream_turn(self, context: Any, request: Any) -> Any:
            raise LookupError("no such model")

    async with one_thread(engine=Broken()) as scene:
        outcome = await scene.run()
        assert (outcome.error_kind, outcome.usage) == ("engine_error", None)
        assert "no such model" in str(outcome.error)
        assert not scene.runtime._core.accounting.has_open_attempts(scene.id)


async def test_an_engine_that_raises_while_it_leaves_after_completed_has_completed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Grumpy(providers.ScriptedEngine):
        @asynccontextmanager
        async def stream_turn(self, context: Any, request: Any) -> Any:
            async with super().stream_turn(context, request) as stream:
                yield stream
            raise RuntimeError("could not close")

    async with one_thread(engine=Grumpy([[say("a"), DONE]])) as scene:
        assert (await scene.run()).text == "a"


@pytest.mark.parametrize("report", [None, 17, {"prompt_tokens": 3}])
async def test_a_report_that_is_no_usage_is_a_protocol_failure(
    autojump_clock: trio.testing.MockClock, report: Any
) -> None:
    async with one_thread([say("a"), used(2), inference.Usage(report), used(9), DONE]) as scene:
        outcome = await scene.run()
        assert (outcome.error_kind, outcome.usage) == ("protocol", rt.TokenUsage(2, 0, 2))
        assert scene.engine.calls[0].closed == "left"


async def test_an_engine_that_asks_for_everything_again_cannot_hide_a_failure_in_its_cleanup(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """`settle` may raise; that is logged, and the cause of the end stays."""
    caplog.set_level(logging.CRITICAL)

    class Stream:
        def __init__(self, inner: Any, answer: Any) -> None:
            self._inner, self._answer = inner, answer

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            return await self._inner.__anext__()

        def settle(self) -> Any:
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer

    class Engine(providers.ScriptedEngine):
        answer: Any = None

        @asynccontextmanager
        async def stream_turn(self, context: Any, request: Any) -> Any:
            async with super().stream_turn(context, request) as stream:
                yield Stream(stream, self.answer)

    for answer, total in ((None, 2), (ValueError("no"), 2), ("nonsense", 2), (rt.TokenUsage(5, 0, 5), 5)):
        engine = Engine([[say("a"), used(2), NEVER]])
        engine.answer = answer
        async with one_thread(engine=engine) as scene:
            turn_id = await scene.start()
            await scene.wait_text("a")
            await trio.testing.wait_all_tasks_blocked()
            await scene.interrupt(turn_id)
            outcome = await scene.wait(turn_id)
            assert (outcome.status, outcome.usage) == ("interrupted", rt.TokenUsage(total, 0, total))


@pytest.mark.parametrize("event", [say(5), inference.ReasoningDelta([1]), inference.ProviderMetadata(None)])  # type: ignore[arg-type]
async def test_an_event_that_holds_nonsense_ends_the_turn_and_leaves_the_stream_in_order(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, event: Any
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with one_thread([say("a"), event, say("b"), DONE], [say("ok"), DONE]) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) in [("failed", "internal"), ("failed", "protocol")]
        assert scene.engine.calls[0].closed == "left"
        assert (await scene.run()).text == "ok"


async def test_a_bug_of_the_runtime_ends_one_turn_only(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with one_thread([say("a"), 5.0, DONE], [say("b"), DONE]) as scene:
        other = await scene.runtime.create_thread()
        first = await scene.start()
        await scene.wait_text("a")

        def broken(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("a bug")

        monkeypatch.setattr("roder_trio.actors.turn.next_request", broken)
        outcome = await scene.runtime.run_turn(other.thread_id, "go")
        assert (outcome.status, outcome.error_kind) == ("failed", "internal")
        assert "a bug" in str(outcome.error)
        monkeypatch.undo()
        assert (await scene.wait(first)).text == "a"
        assert (await scene.runtime.run_turn(other.thread_id, "go")).text == "b"


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [[NEVER], [say("a"), 299.0, say("b"), NEVER]])
async def test_a_stream_without_events_for_too_long_times_out(
    autojump_clock: trio.testing.MockClock, step: list[Any]
) -> None:
    async with one_thread(step, config=settings(provider_retry_max_attempts=1)) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "timeout")
        assert trio.current_time() == pytest.approx(300.0 if len(step) == 1 else 599.0)
        assert outcome.text == ("" if len(step) == 1 else "ab")


async def test_an_engine_that_does_not_open_its_stream_times_out(autojump_clock: trio.testing.MockClock) -> None:
    class Deaf(providers.ScriptedEngine):
        deaf = True

        @asynccontextmanager
        async def stream_turn(self, context: Any, request: Any) -> Any:
            if self.deaf:
                self.deaf = False
                await trio.sleep_forever()
            async with super().stream_turn(context, request) as stream:
                yield stream

    async with one_thread(engine=Deaf([[say("ok"), DONE]]), config=settings(stream_idle_timeout=7.0)) as scene:
        assert (await scene.run()).text == "ok"
        (retry,) = scene.of(events.RetryScheduled)
        assert retry.error_kind == "timeout"
        assert trio.current_time() == pytest.approx(7.0 + retry.delay)


async def test_without_an_idle_timeout_a_stream_may_be_silent_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([1e6, say("a"), DONE], config=settings(stream_idle_timeout=None)) as scene:
        assert (await scene.run()).text == "a"


@pytest.mark.parametrize(
    ("steps", "asked"),
    [
        ([[say("a"), NEVER]], 1),
        ([[say("a"), CUT]], 1),
        ([[*call("c"), DONE], [say("a"), NEVER]], 2),
        ([[say("a"), AGAIN, DONE], [NEVER]], 2),
    ],
)
async def test_the_deadline_ends_whatever_goes_on(
    autojump_clock: trio.testing.MockClock, steps: list[Any], asked: int
) -> None:
    config = settings(turn_deadline=10.0, provider_retry_initial_backoff=60.0, provider_retry_max_backoff=60.0)
    async with one_thread(*steps, config=config) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "deadline_timeout")
        assert "10 s" in str(outcome.error)
        assert trio.current_time() == pytest.approx(10.0)
        assert len(scene.engine.calls) == asked
        history = await scene.history()
        assert history[-1] == transcript.ErrorNote(str(outcome.error))
        assert scene.engine.calls[0].context.deadline == pytest.approx(10.0)
        assert scene.engine.requests[0].runtime.deadline_remaining == pytest.approx(10.0)


async def test_a_deadline_and_an_interrupt_together_are_an_interrupt(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), NEVER], config=settings(turn_deadline=10.0)) as scene:
        turn_id = await scene.start()
        await trio.sleep_until(10.0)
        await scene.interrupt(turn_id)
        assert (await scene.wait(turn_id)).status in ("interrupted", "failed")
        assert len(scene.ends) == 1


async def test_a_deadline_does_not_cover_the_final_append(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "turn.completed" for record in records):
            await trio.sleep(8.0)

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=slow)
    async with one_thread([say("a"), 4.0, DONE], store=store, config=settings(turn_deadline=5.0)) as scene:
        assert (await scene.run()).status == "completed"


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_retries_count_as_model_calls(autojump_clock: trio.testing.MockClock) -> None:
    steps = ([*call("c"), DONE], [CUT], [CUT])
    async with one_thread(*steps, config=settings(max_model_calls_per_turn=2)) as scene:
        outcome = await scene.run()
        assert outcome.error_kind == "reliability_limit"
        assert len(scene.engine.calls) == 2
        assert (await scene.run()).error_kind == "stream_interrupted" or len(scene.engine.calls) > 2


async def test_counters_are_new_in_each_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(*[[DONE]] * 3, config=settings(max_model_calls_per_turn=1)) as scene:
        for _ in range(3):
            assert (await scene.run()).status == "completed"


# -- the store fails ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 3])
async def test_a_report_that_cannot_be_stored_fails_the_turn(
    autojump_clock: trio.testing.MockClock, number: int
) -> None:
    """The append of an item, and the final one; the end itself can be stored."""
    step = [say("a"), inference.ReasoningDelta("r"), DONE]
    store = testing.FaultyStore(stores.MemoryThreadStore(), fail={number: rt.StorageError("no room")})
    async with one_thread(step, store=store) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind, outcome.error) == ("failed", "storage", "no room")
        assert [type(item) for item in await scene.history()][-1] is transcript.ErrorNote
        assert len(scene.ends) == 1


async def test_an_append_that_takes_too_long_fails_the_turn(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(number: int, thread_id: str, records: Any) -> None:
        if number == 2:
            await trio.sleep(11.0)

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=slow)
    async with one_thread([say("a"), inference.ReasoningDelta("r"), DONE], store=store) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "storage")
        assert trio.current_time() == pytest.approx(11.0)
        assert [text for text in texts(await scene.history()) if text == "a"] == ["a"]


async def test_a_final_append_that_succeeds_late_stands(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "turn.completed" for record in records):
            await trio.sleep(11.0)

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=slow)
    async with one_thread([say("a"), DONE], store=store) as scene:
        assert (await scene.run()).status == "completed"
        await trio.testing.wait_all_tasks_blocked()
        assert len(scene.ends) == 1
        assert scene.resident.job is None


async def test_usage_that_cannot_be_stored_fails_the_turn_without_a_group(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also where the engine has a nursery of its own around the stream."""

    class Nursery(providers.ScriptedEngine):
        @asynccontextmanager
        async def stream_turn(self, context: Any, request: Any) -> Any:
            async with trio.open_nursery() as nursery, super().stream_turn(context, request) as stream:
                yield stream
                nursery.cancel_scope.cancel()

    class NoUsage(stores.MemoryThreadStore):
        async def append(self, thread_id: str, records: Any) -> None:
            if any(record.kind == "usage.recorded" for record in records):
                await trio.lowlevel.checkpoint()
                raise rt.StorageError("no room for usage")
            await super().append(thread_id, records)

    store = NoUsage()
    async with one_thread(engine=Nursery([[say("a"), used(3), DONE]]), store=store) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind, outcome.usage) == ("failed", "storage", None)
        assert "could not be stored" in str(outcome.error)
        snapshot = await scene.snapshot()
        assert folded_usage(snapshot) is None
        assert texts(history_of(snapshot))[:2] == ["go", "a"]


# -- a stream that doesn't close ---------------------------------------------------------------------------------------


class Sticky(providers.ScriptedEngine):
    """Hangs when its block is left, in each of its first `times` streams."""

    def __init__(self, *steps: Any, times: int = 1, shield: bool = False) -> None:
        super().__init__(steps)
        self.times = times
        self.shield = shield

    @asynccontextmanager
    async def stream_turn(self, context: Any, request: Any) -> Any:
        async with super().stream_turn(context, request) as stream:
            try:
                yield stream
            finally:
                self.times -= 1
                if self.times >= 0:
                    with trio.CancelScope(shield=self.shield):
                        await trio.sleep(60.0)


@pytest.mark.parametrize("shield", [False, True])
@pytest.mark.parametrize("step", [[say("a"), CUT], [say("a"), AGAIN, DONE], [say("a"), *call("c"), DONE]])
async def test_a_stream_that_does_not_close_in_time_is_never_followed_by_another(
    autojump_clock: trio.testing.MockClock, step: list[Any], shield: bool
) -> None:
    async with one_thread(engine=Sticky(step, [say("ok"), DONE], shield=shield)) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "cleanup_timeout")
        assert trio.current_time() == pytest.approx(60.0 if shield else 5.0)
        assert len(scene.engine.calls) == 1
        assert [item for item in await scene.history() if isinstance(item, transcript.ToolCall)] == [
            transcript.ToolCall("c", "look", "{}")
        ] * (len(step) == 4)
        assert (await scene.run()).text == "ok"


@pytest.mark.parametrize(("grace", "seconds"), [(1.0, 1.0), (6.0, 6.0), (10.0, 10.0), (60.0, 10.0)])
async def test_all_that_ends_a_step_has_one_grace(
    autojump_clock: trio.testing.MockClock, grace: float, seconds: float
) -> None:
    async def hang(number: int, thread_id: str, records: Sequence[Any]) -> None:
        await trio.sleep(100.0 if isinstance(records[0].event, events.UsageRecorded) else 0.0)

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=hang)
    engine = Sticky([say("a"), used(2), DONE])
    config = settings(close_step_grace=grace)
    async with one_thread(engine=engine, store=store, config=config) as scene:
        outcome = await scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "storage")
        assert trio.current_time() == pytest.approx(seconds)


async def test_a_stream_that_does_not_close_in_time_may_end_its_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(engine=Sticky([say("a"), DONE])) as scene:
        assert (await scene.run()).text == "a"
        assert trio.current_time() == pytest.approx(5.0)


async def test_a_steer_that_comes_while_a_stream_does_not_close_fails_the_turn_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for end in (DONE, NEVER):
        async with one_thread(engine=Sticky([say("a"), end], [say("never"), DONE])) as scene:
            began = trio.current_time()
            turn_id = await scene.start()
            await scene.wait_text("a")
            await trio.testing.wait_all_tasks_blocked()
            await scene.steer(turn_id, "steered")
            outcome = await scene.wait(turn_id)
            assert (outcome.status, outcome.error_kind) == ("failed", "cleanup_timeout")
            assert trio.current_time() - began == pytest.approx(5.0)
            assert len(scene.engine.calls) == 1
            delivered = "steered" in texts(await scene.history())
            assert delivered != bool(outcome.undelivered_steers)
