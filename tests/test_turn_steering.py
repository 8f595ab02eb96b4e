"""Steers: what each phase of a turn does with one, what is refused, and what is handed back."""

from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, providers, stores, testing, transcript
from roder_trio.providers.scripted import NEVER_ENDS as NEVER
from tests.injection import Injector, ProbeEngine, is_any
from tests.turn_support import DONE, CountingStore, call, failure, one_thread, say, settings, started, texts, used

BOUNDARY = inference.ProviderMetadata({"output": [{"type": "compaction", "id": "c", "encrypted_content": "e"}]})
CUT = failure("STREAM_INTERRUPTED")
BIG = "x" * 6000


# -- while the model speaks --------------------------------------------------------------------------------------------


async def test_a_steer_in_mid_text_keeps_the_text_and_asks_again_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    step = [inference.ReasoningDelta("r"), say("so f"), say("ar"), used(4), NEVER]
    store = CountingStore()
    async with one_thread(step, [say("done"), used(5), DONE], store=store) as scene:
        turn_id = await scene.start()
        await scene.wait_text("so far")
        await scene.steer(turn_id, "  and this  ")
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.text, outcome.usage) == ("completed", "done", rt.TokenUsage(9, 0, 9))
        assert outcome.undelivered_steers == ()
        history = await scene.history()
        assert history == [
            transcript.UserMessage("go"),
            transcript.ReasoningSummary("r"),
            transcript.AssistantMessage("so far", interrupted=True),
            transcript.UserMessage("and this"),
            transcript.AssistantMessage("done"),
        ]
        assert list(scene.engine.requests[1].transcript) == history[:-1]
        assert scene.engine.calls[0].closed == "cancelled"
        (accepted,) = scene.of(events.SteerAccepted)
        tagged = [e for e in scene.of(events.TranscriptItemAppended) if e.steer_id is not None]
        assert [(e.steer_id, e.item) for e in tagged] == [(accepted.steer_id, transcript.UserMessage("and this"))]
        assert scene.shown() == "so fardone"
        assert ["turn.item_appended", "turn.item_appended"] in store.appended
        assert trio.current_time() == 0


async def test_what_a_steer_cuts_off_is_an_interrupted_item(autojump_clock: trio.testing.MockClock) -> None:
    step = [say("text"), inference.ToolCallStarted("c1", "look"), inference.ToolCallDelta("c1", "{"), NEVER]
    async with one_thread([say("half"), NEVER], step, [inference.ReasoningDelta("hm"), NEVER], [DONE]) as scene:
        turn_id = await scene.start()
        for number in range(3):
            await trio.testing.wait_all_tasks_blocked()
            await scene.steer(turn_id, f"s{number}")
        await scene.wait(turn_id)
        assert texts(await scene.history()) == ["go", "half", "s0", "text", "s1", "s2"]
        changes = [e.event for e in scene.happened if hasattr(e, "event")]
        ended = {change.item_id: type(change).__name__ for change in changes}
        assert set(ended.values()) == {"ItemCompleted", "ItemDiscarded"}
        assert sum(name == "ItemDiscarded" for name in ended.values()) == 2
        halves = [
            c.item for c in changes if type(c).__name__ == "ItemCompleted" and getattr(c.item, "text", "") == "half"
        ]
        assert [item.status.value for item in halves] == ["interrupted"]


async def test_a_steer_while_the_stream_opens_preempts_it(autojump_clock: trio.testing.MockClock) -> None:
    class Deaf(providers.ScriptedEngine):
        @asynccontextmanager
        async def stream_turn(self, context: Any, request: Any) -> Any:
            async with super().stream_turn(context, request) as stream:
                if len(self.calls) == 1:
                    await trio.sleep_forever()
                yield stream

    async with one_thread(engine=Deaf([[DONE], [say("ok"), DONE]])) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        await scene.steer(turn_id, "more")
        assert (await scene.wait(turn_id)).text == "ok"
        assert texts(scene.engine.requests[1].transcript) == ["go", "more"]


async def test_images_alone_are_a_steer(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([NEVER], [DONE]) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        await scene.steer(turn_id, " ", images=["https://x/y.png"])
        await scene.wait(turn_id)
        assert (await scene.history())[1] == transcript.UserMessage("", (transcript.Image("https://x/y.png"),))


async def test_several_steers_are_taken_in_one_round_oldest_first(autojump_clock: trio.testing.MockClock) -> None:
    hold = trio.Event()

    class Slow(providers.ScriptedEngine):
        """Closes its first stream late, so that steers gather."""

        @asynccontextmanager
        async def stream_turn(self, context: Any, request: Any) -> Any:
            async with super().stream_turn(context, request) as stream:
                try:
                    yield stream
                finally:
                    if len(self.calls) == 1:
                        with trio.CancelScope(shield=True):
                            await hold.wait()

    async with one_thread(engine=Slow([[say("a"), NEVER], [DONE]])) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        for text in ("one", "two", "three"):
            await scene.steer(turn_id, text)
        hold.set()
        await scene.wait(turn_id)
        assert texts(await scene.history()) == ["go", "a", "one", "two", "three"]
        assert len(scene.engine.requests) == 2


async def test_a_steer_gives_a_series_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    steps = ([CUT], [CUT], [say("a"), NEVER], [CUT], [CUT], [say("ok"), DONE])
    async with one_thread(*steps) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        await scene.steer(turn_id)
        assert (await scene.wait(turn_id)).text == "ok"
        assert [event.attempt for event in scene.of(events.RetryScheduled)] == [1, 2, 1, 2]


# -- while it waits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("advice", [None, 60.0])
async def test_a_steer_during_back_off_is_sent_at_once_with_a_new_budget(
    autojump_clock: trio.testing.MockClock, advice: float | None
) -> None:
    config = settings(provider_retry_initial_backoff=60.0, provider_retry_max_backoff=60.0)
    steps = ([failure("RATE_LIMITED", retry_after=advice)], [CUT], [CUT], [say("ok"), DONE])
    async with one_thread(*steps, config=config) as scene:
        turn_id = await scene.start()
        await scene.wait_for(lambda scene: bool(scene.of(events.RetryScheduled)))
        await scene.steer(turn_id, "now")
        await trio.testing.wait_all_tasks_blocked()
        assert (len(scene.engine.requests), trio.current_time()) == (2, 0)
        assert texts(scene.engine.requests[1].transcript) == ["go", "now"]
        assert (await scene.wait(turn_id)).text == "ok"
        assert len(scene.engine.requests) == 4


async def test_a_steer_while_a_failed_stream_closes_needs_no_back_off(autojump_clock: trio.testing.MockClock) -> None:
    for end in (CUT, failure("AUTHENTICATION"), ValueError("a bug")):

        class Slow(providers.ScriptedEngine):
            @asynccontextmanager
            async def stream_turn(self, context: Any, request: Any) -> Any:
                async with super().stream_turn(context, request) as stream:
                    try:
                        yield stream
                    finally:
                        if len(self.calls) == 1:
                            with trio.CancelScope(shield=True):
                                await trio.sleep(1.0)

        async with one_thread(engine=Slow([[say("half"), end], [say("ok"), DONE]])) as scene:
            turn_id = await scene.start()
            await scene.wait_text("half")
            await trio.testing.wait_all_tasks_blocked()
            await scene.steer(turn_id, "more")
            assert (await scene.wait(turn_id)).text == "ok"
            assert texts(await scene.history()) == ["go", "half", "more", "ok"]
            assert scene.of(events.RetryScheduled) == []


async def test_a_steer_that_comes_while_a_failed_step_is_stored_ends_the_back_off_before_it_begins(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The actor takes the steer with the report of the failed step."""

    async def slow(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "usage.recorded" for record in records):
            await trio.sleep(1.0)

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=slow)
    config = settings(provider_retry_initial_backoff=60.0, provider_retry_max_backoff=60.0)
    async with one_thread([used(3), CUT], [say("ok"), DONE], store=store, config=config) as scene:
        turn_id = await scene.start()
        await trio.sleep(0.5)
        await scene.steer(turn_id, "more")
        assert (await scene.wait(turn_id)).text == "ok"
        assert trio.current_time() < 60


async def test_a_steer_that_was_queued_before_the_report_of_a_failed_step_needs_no_back_off(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The actor is busy while the stream fails: it takes the steer, then the report, which takes the steer along."""
    hold = trio.Event()

    async def slow(number: int, thread_id: str, records: Any) -> None:
        if any(not hasattr(record, "event") for record in records):
            await hold.wait()

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=slow)
    config = settings(provider_retry_initial_backoff=60.0, provider_retry_max_backoff=60.0)
    steps = ([say("half"), 1.0, CUT], [CUT], [CUT], [say("ok"), DONE])
    async with one_thread(*steps, store=store, config=config) as scene, trio.open_nursery() as nursery:
        turn_id = await scene.start()
        await scene.wait_text("half")
        await started(nursery, lambda: scene.runtime.set_state(scene.id, "host", "key", 1))
        await started(nursery, lambda: scene.steer(turn_id, "more"))
        await trio.sleep(2.0)
        hold.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(scene.engine.calls) == 2
        assert texts(scene.engine.requests[1].transcript) == ["go", "more"]
        assert [event.attempt for event in scene.of(events.RetryScheduled)] == [1]
        assert (await scene.wait(turn_id)).text == "ok"


async def test_a_steer_preempts_a_compaction_which_is_decided_afresh(autojump_clock: trio.testing.MockClock) -> None:
    steps = ([say(BIG), *call("c1"), DONE], [say("ok"), DONE])
    compact = ([used(3), NEVER], [used(4), BOUNDARY, DONE])
    async with one_thread(*steps, compact=compact, config=settings(auto_compact_token_limit=1000)) as scene:
        turn_id = await scene.start()
        await scene.wait_for(lambda scene: len(scene.engine.compact_requests) == 1)
        await trio.testing.wait_all_tasks_blocked()
        await scene.steer(turn_id, "more")
        outcome = await scene.wait(turn_id)
        assert (outcome.text, outcome.usage) == ("ok", rt.TokenUsage(7, 0, 7))
        assert [event.reason for event in scene.of(events.ContextCompactionCancelled)] == ["new_input"]
        assert transcript.UserMessage("more") in list(scene.engine.compact_requests[1].transcript)
        assert len(scene.of(events.ContextCompactionRecorded)) == 1


async def test_a_steer_during_a_batch_waits_for_it(autojump_clock: trio.testing.MockClock) -> None:
    """Results of unknown tools are ready at once, so their append is what the steer waits for."""
    stored = trio.Event()

    async def slow(number: int, thread_id: str, records: Any) -> None:
        if any(isinstance(getattr(r.event, "item", None), transcript.ToolResult) for r in records):
            stored.set()
            await trio.sleep(1.0)

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=slow)
    answer = [say("ok"), DONE]
    async with one_thread([*call("c1"), DONE], answer, answer, store=store) as scene:
        turn_id = await scene.start()
        await stored.wait()
        await scene.steer(turn_id, "more")
        assert (await scene.wait(turn_id)).text == "ok"
        kinds = [type(item).__name__ for item in await scene.history() if not getattr(item, "interrupted", False)]
        assert kinds == ["UserMessage", "ToolCall", "ToolResult", "UserMessage", "AssistantMessage"]


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " \n\t"])
async def test_a_blank_steer_does_nothing_in_any_state(autojump_clock: trio.testing.MockClock, text: str) -> None:
    async with one_thread([say("a"), NEVER]) as scene:
        await scene.steer("unknown", text)
        await scene.runtime.steer_turn("nowhere", "unknown", text)
        turn_id = await scene.start()
        await scene.wait_text("a")
        seen = len(scene.seen)
        await scene.steer(turn_id, text)
        assert len(scene.seen) == seen
        await scene.interrupt(turn_id)
        await scene.wait(turn_id)
        await scene.steer(turn_id, text)


async def test_a_turn_of_another_thread_takes_no_steer(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), NEVER]) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        other = await scene.runtime.create_thread()
        with pytest.raises(rt.NoActiveTurn) as refused:
            await scene.runtime.steer_turn(other.thread_id, turn_id, "more")
        assert refused.value.turn_id == turn_id
        assert scene.of(events.SteerAccepted) == []


async def test_only_so_many_steers_wait(autojump_clock: trio.testing.MockClock) -> None:
    hold = trio.Event()

    async def slow(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "usage.recorded" for record in records):
            await hold.wait()

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=slow)
    config = settings(max_pending_steers=3)
    async with one_thread([used(1), DONE], [DONE], store=store, config=config) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3):
            await scene.steer(turn_id, f"s{number}")
        with pytest.raises(rt.SteerQueueFull) as full:
            await scene.steer(turn_id, "one too many")
        assert full.value.limit == 3
        hold.set()
        await scene.wait(turn_id)
        assert texts(await scene.history()) == ["go", "s0", "s1", "s2"]


async def test_a_steer_that_cannot_be_stored_disturbs_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async def fail(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "turn.steer_accepted" for record in records):
            await trio.lowlevel.checkpoint()
            raise rt.StorageError("no room")

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=fail)
    async with one_thread([say("a"), 5.0, say("b"), DONE], store=store) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        with pytest.raises(rt.StorageError, match="no room"):
            await scene.steer(turn_id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.text) == ("completed", "ab")
        assert scene.of(events.SteerAccepted) == []


async def test_a_steer_is_durable_before_it_cancels_anything(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "turn.steer_accepted" for record in records):
            await trio.sleep(1.0)

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=slow)
    async with one_thread([say("a"), 0.5, say("b"), NEVER], [DONE], store=store) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        await scene.steer(turn_id, "more")
        await scene.wait(turn_id)
        assert texts(await scene.history()) == ["go", "ab", "more"]


# -- handed back -------------------------------------------------------------------------------------------------------


async def hold_usage(release: trio.Event) -> rt.ThreadStore:
    async def slow(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "usage.recorded" for record in records):
            await release.wait()

    return testing.FaultyStore(stores.MemoryThreadStore(), before=slow)


async def test_an_interrupt_hands_back_what_was_not_delivered(autojump_clock: trio.testing.MockClock) -> None:
    release = trio.Event()
    store = await hold_usage(release)
    async with one_thread([say("a"), used(1), DONE], store=store) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        await scene.steer(turn_id, "one")
        await scene.steer(turn_id, "two")
        await scene.interrupt(turn_id)
        release.set()
        outcome = await scene.wait(turn_id)
        assert outcome.status == "interrupted"
        assert outcome.undelivered_steers == tuple(scene.of(events.SteerAccepted))
        assert [steer.message.text for steer in outcome.undelivered_steers] == ["one", "two"]
        assert scene.ends[0].undelivered_steers == outcome.undelivered_steers
        assert texts(await scene.history()) == ["go", "a"]


async def test_a_failure_hands_back_what_was_not_delivered(autojump_clock: trio.testing.MockClock) -> None:
    release = trio.Event()
    store = await hold_usage(release)
    config = settings(turn_deadline=1.0)
    async with one_thread([say("a"), used(1), DONE], store=store, config=config) as scene:
        turn_id = await scene.start()
        await trio.testing.wait_all_tasks_blocked()
        await scene.steer(turn_id, "one")
        await trio.sleep(2.0)
        release.set()
        outcome = await scene.wait(turn_id)
        assert (outcome.status, outcome.error_kind) == ("failed", "deadline_timeout")
        assert [steer.message.text for steer in outcome.undelivered_steers] == ["one"]


# -- the race with the end ---------------------------------------------------------------------------------------------


async def test_a_steer_near_the_end_is_delivered_or_refused_at_every_step(
    autojump_clock: trio.testing.MockClock,
) -> None:
    refused = delivered = 0
    for number in count(1):
        engine = ProbeEngine([[say("a"), used(1), DONE], [say("b"), DONE]])
        told = trio.Event()
        injector = Injector(number, told.set, is_any)
        async with one_thread(engine=engine) as scene, trio.open_nursery() as nursery:
            await scene.history()
            accepted = None

            async def steer(scene: Any = scene, told: trio.Event = told) -> None:
                nonlocal accepted
                await told.wait()
                job = scene.resident.job
                try:
                    await scene.steer("none" if job is None else job.turn_id, "steered")
                    accepted = True
                except rt.NoActiveTurn:
                    accepted = False

            nursery.start_soon(steer)
            with injector.watching():
                outcome = await scene.run()
            told.set()
            await trio.testing.wait_all_tasks_blocked()
            assert accepted is not None
            assert (outcome.status, outcome.text) == ("completed", "b" if accepted else "a")
            assert (transcript.UserMessage("steered") in await scene.history()) is accepted
            assert len(engine.requests) == 1 + accepted
            refused, delivered = refused + (not accepted), delivered + accepted
        if not injector.fired:
            break
    assert refused > 1
    assert delivered > 3
