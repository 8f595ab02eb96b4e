from functools import partial
from itertools import repeat

import attrs
import pytest
import trio
import trio.testing

from roder_trio.errors import ProviderFailure, ProviderFailureKind
from roder_trio.providers.scripted import NEVER_ENDS, ScriptedEngine
from roder_trio.schema.inference import (
    Completed,
    EngineTarget,
    InferenceCapabilities,
    InferenceRequest,
    MessageDelta,
    ModelChoice,
    ModelDescriptor,
    TurnContext,
    Usage,
)
from roder_trio.schema.transcript import UserMessage
from roder_trio.schema.usage import TokenUsage

CONTEXT = TurnContext(thread_id="thread", turn_id="turn", attempt_id="attempt")
REQUEST = InferenceRequest(model=ModelChoice("scripted", "m"), transcript=[UserMessage("hello")])
HI, BYE, DONE = MessageDelta("hi"), MessageDelta("bye"), Completed("stop")
USAGE = Usage(TokenUsage(3, 1, 4))
LOST = ProviderFailure(ProviderFailureKind.STREAM_INTERRUPTED, "lost")


async def play(engine, request=REQUEST):
    async with engine.stream_turn(CONTEXT, request) as stream:
        return [event async for event in stream]


async def test_each_stream_plays_one_step_and_is_recorded():
    engine = ScriptedEngine([[HI, USAGE, DONE], BYE, ()])
    assert await play(engine) == [HI, USAGE, DONE]
    later = attrs.evolve(REQUEST, transcript=[])
    assert await play(engine, later) == [BYE]
    assert await play(engine) == []
    assert engine.requests == [REQUEST, later, REQUEST]
    assert [call.closed for call in engine.calls] == ["exhausted"] * 3
    assert [call.delivered for call in engine.calls] == [3, 1, 0]
    assert engine.calls[0].context is CONTEXT
    assert (engine.active, engine.most_active) == (0, 1)


async def test_parts_of_every_sort_can_be_mixed(autojump_clock):
    gate = trio.Event()
    asked = []

    def more(request):
        asked.append(request)
        return [BYE, [HI, lambda _: None], lambda _: (part for part in (USAGE, DONE))]

    engine = ScriptedEngine([[HI, gate, 2.5, 1, more]])
    started = trio.current_time()
    async with trio.open_nursery() as nursery, engine.stream_turn(CONTEXT, REQUEST) as stream:
        assert await anext(stream) == HI
        nursery.start_soon(partial(set_later, gate, 10))
        assert [event async for event in stream] == [BYE, HI, USAGE, DONE]
    assert trio.current_time() - started == 13.5
    assert asked == [REQUEST]


async def set_later(gate, seconds):
    await trio.sleep(seconds)
    gate.set()


async def test_an_exception_alone_is_raised_on_entering_and_one_in_a_list_from_the_iterator():
    engine = ScriptedEngine([LOST, [HI, LOST, BYE]])
    with pytest.raises(ProviderFailure):
        async with engine.stream_turn(CONTEXT, REQUEST):
            pytest.fail("the block was entered")
    async with engine.stream_turn(CONTEXT, REQUEST) as stream:
        assert await anext(stream) == HI
        with pytest.raises(ProviderFailure) as caught:
            await anext(stream)
        assert [event async for event in stream] == []
    assert caught.value is LOST
    assert [call.closed for call in engine.calls] == ["error", "exhausted"]


async def test_an_error_in_the_block_is_recorded():
    engine = ScriptedEngine([[HI], [HI, LOST]])
    with pytest.raises(ZeroDivisionError):
        async with engine.stream_turn(CONTEXT, REQUEST):
            raise ZeroDivisionError
    with pytest.raises(ProviderFailure):
        await play(engine)
    assert [call.closed for call in engine.calls] == ["error", "error"]


async def test_a_call_past_the_script_fails_with_a_clear_error():
    engine = ScriptedEngine([[DONE]], compact=[[DONE]])
    await play(engine)
    with pytest.raises(AssertionError, match=r"stream_turn ends before its call 2, of turn 'turn'"):
        await play(engine)
    async with engine.compact_turn(CONTEXT, REQUEST):
        pass
    with pytest.raises(AssertionError, match="compact_turn ends before its call 2"):
        async with engine.compact_turn(CONTEXT, REQUEST):
            pass
    assert engine.active == 0


async def test_compactions_have_a_script_of_their_own():
    engine = ScriptedEngine([[HI, DONE]], compact=[None, [USAGE, DONE]])
    assert engine.compact_turn(CONTEXT, REQUEST) is None
    async with engine.compact_turn(CONTEXT, REQUEST) as stream:
        assert [event async for event in stream] == [USAGE, DONE]
    assert await play(engine) == [HI, DONE]
    assert engine.compact_requests == [REQUEST] * 2
    assert engine.requests == [REQUEST]
    without = ScriptedEngine()
    assert without.compact_turn(CONTEXT, REQUEST) is None
    assert without.compact_requests == [REQUEST]


async def test_a_script_may_be_endless():
    engine = ScriptedEngine(repeat([HI, DONE]), compact=repeat([DONE]))
    for _ in range(5):
        assert await play(engine) == [HI, DONE]
    async with engine.compact_turn(CONTEXT, REQUEST) as stream:
        assert [event async for event in stream] == [DONE]


async def test_a_stream_that_never_ends_is_cancelled(autojump_clock):
    engine = ScriptedEngine([[HI, USAGE, NEVER_ENDS, DONE]])
    seen = []
    with trio.move_on_after(1) as scope:
        async with engine.stream_turn(CONTEXT, REQUEST) as stream:
            assert stream.settle() is None
            async for event in stream:
                seen.append(event)
    assert scope.cancelled_caught
    assert seen == [HI, USAGE]
    assert stream.settle() == TokenUsage(3, 1, 4)
    assert engine.calls[0].closed == "cancelled"
    assert engine.active == 0


async def test_a_cancel_on_entering_is_recorded():
    engine = ScriptedEngine([[HI]])
    with trio.CancelScope() as scope:
        scope.cancel()
        await play(engine)
    assert engine.calls[0].closed == "cancelled"


@pytest.mark.parametrize("cancel_at", range(6))
async def test_a_cancel_can_land_before_each_event_and_loses_none(cancel_at):
    engine = ScriptedEngine([[HI, USAGE, BYE, DONE]])
    seen = []
    with trio.CancelScope() as scope:
        async with engine.stream_turn(CONTEXT, REQUEST) as stream:
            while True:
                if len(seen) == cancel_at:
                    scope.cancel()
                try:
                    seen.append(await anext(stream))
                except StopAsyncIteration:
                    break
    assert seen == [HI, USAGE, BYE, DONE][:cancel_at]
    assert engine.calls[0].delivered == len(seen)
    assert scope.cancelled_caught is (cancel_at < 5)


async def test_a_stream_left_early_is_told_apart_from_one_read_to_its_end():
    engine = ScriptedEngine([[HI, DONE], [HI, DONE, BYE]])
    async with engine.stream_turn(CONTEXT, REQUEST) as stream:
        assert await anext(stream) == HI
    async with engine.stream_turn(CONTEXT, REQUEST) as stream:
        assert [await anext(stream), await anext(stream)] == [HI, DONE]
    assert [call.closed for call in engine.calls] == ["left", "exhausted"]
    assert engine.calls[1].delivered == 2


async def test_streams_that_are_open_at_once_are_counted():
    engine = ScriptedEngine([[NEVER_ENDS]] * 3)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(play, engine)
        await trio.testing.wait_all_tasks_blocked()
        assert (engine.active, engine.most_active) == (3, 3)
        assert {call.closed for call in engine.calls} == {None}
        nursery.cancel_scope.cancel()
    assert (engine.active, engine.most_active) == (0, 3)


async def test_what_cannot_be_played_is_a_type_error():
    with pytest.raises(TypeError, match="'text'"):
        await play(ScriptedEngine([["text"]]))


async def test_each_event_is_preceded_by_a_checkpoint():
    engine = ScriptedEngine([[HI, [USAGE], DONE]])
    async with engine.stream_turn(CONTEXT, REQUEST) as stream:
        for _ in range(3):
            with trio.testing.assert_checkpoints():
                await anext(stream)


async def test_what_an_engine_says_of_itself_can_be_set():
    target = EngineTarget("d", "p", "u")
    row = ModelDescriptor(provider="mine", id="big", context_window=1_000)
    engine = ScriptedEngine(
        id="mine",
        capabilities=InferenceCapabilities.text_only(),
        requires_native_compaction=True,
        models=[row],
        target=target,
    )
    assert (engine.id, engine.requires_native_compaction, engine.target) == ("mine", True, target)
    assert engine.capabilities == InferenceCapabilities.text_only()
    assert await engine.list_models() == (row,)
    plain = ScriptedEngine()
    assert plain.capabilities == InferenceCapabilities.agent()
    assert [model.id for model in await plain.list_models()] == ["scripted"]
    assert plain.use_client(None) is None
