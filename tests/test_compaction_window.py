"""What requests hold behind a boundary, the provider's own boundaries included."""

import roder_trio as rt
from roder_trio import inference, transcript
from roder_trio.logic.estimate import estimate
from roder_trio.providers.scripted import ScriptedEngine
from tests.ledger_support import (
    AGAIN,
    COMMIT,
    GO,
    HISTORY,
    boundary,
    compact_calls,
    compactions,
    ends_of,
    item,
    limit,
    persist,
    stored_boundary,
    with_goal,
)
from tests.turn_support import DONE, failure, say, settings


def text(tokens: int, *, besides: str = "go") -> transcript.UserMessage:
    """A message that, together with `besides`, is estimated at this many tokens."""
    return transcript.UserMessage("x" * (4 * tokens - len(besides)))


async def test_the_boundary_heads_the_next_request_and_the_active_message_stands_behind_it(autojump_clock):
    async with with_goal([say("a"), DONE], [say("b"), DONE], compact=[COMMIT], config=limit(1_000)) as scene:
        await persist(scene, (text(1_000),))
        await scene.run()
        [request] = scene.engine.requests
        assert list(request.transcript) == [stored_boundary(), GO]
        await scene.run("more")
        request = scene.engine.requests[1]
        assert list(request.transcript) == [
            stored_boundary(),
            GO,
            transcript.AssistantMessage("a"),
            transcript.UserMessage("more"),
        ]
        before = list(request.transcript)
    engine = ScriptedEngine([[DONE]])
    async with rt.open_runtime(engines=[engine], store=scene.store) as runtime:
        await runtime.run_turn(scene.id, "cold")
    expected = [*before, transcript.AssistantMessage("b"), transcript.UserMessage("cold")]
    assert list(engine.requests[0].transcript) == expected


async def test_a_message_that_the_boundary_holds_is_not_repeated(autojump_clock):
    found = [item(), {"type": "message", "content": [{"text": "please go on"}]}]
    compact = [[inference.ProviderMetadata({"output": found[:1], "compacted_input": found}), DONE]]
    async with with_goal([DONE], compact=compact, config=limit(1)) as scene:
        await scene.run("go")
        [request] = scene.engine.requests
        assert len(request.transcript) == 1


async def test_a_failed_second_compaction_leaves_the_first_boundary_at_the_head(autojump_clock):
    compact = [[boundary("a"), DONE], [boundary("b"), inference.Failed("no")]]
    steps = [say("x" * 4_000), AGAIN, DONE], [DONE]
    async with with_goal(*steps, compact=compact, config=limit(500)) as scene:
        await persist(scene, (text(500),))
        await scene.run()
        assert list(ends_of(scene).values()) == [["Recorded"], ["Failed"]]
        assert scene.engine.compact_requests[1].transcript[0] == stored_boundary("a")
        assert scene.engine.requests[1].transcript[0] == stored_boundary("a")


def in_band(id: str = "a") -> inference.Compaction:
    return inference.Compaction("completed", id, item(id))


def band_boundary(id: str = "a") -> transcript.ProviderMetadata:
    return transcript.ProviderMetadata({"provider": "scripted", "output": [item(id)]})


async def test_a_compaction_in_the_stream_is_stored_at_once_also_if_the_stream_breaks(autojump_clock):
    steps = [inference.Compaction("started"), say("before"), in_band(), say("after"), failure()], [say("again"), DONE]
    async with with_goal(*steps, config=settings(provider_retry_initial_backoff=0.0)) as scene:
        assert (await scene.run()).text == "again"
        history = await scene.history()
        assert history == [
            GO,
            transcript.AssistantMessage("before"),
            band_boundary(),
            transcript.AssistantMessage("again"),
        ]
        assert list(scene.engine.requests[1].transcript) == [band_boundary(), GO]
        [recorded] = compactions(scene)
        assert (recorded.compaction_id, recorded.strategy, recorded.item_count) == ("a", "in_band", 1)
        assert recorded.estimated_tokens == estimate([band_boundary()])
        assert compact_calls(scene) == 0


async def test_the_same_boundary_in_the_replay_metadata_is_taken_out_with_all_before_it(autojump_clock):
    replay = inference.ProviderMetadata({"output": [{"type": "reasoning", "id": "r"}, item(), {"type": "message"}]})
    async with with_goal([in_band(), say("x"), replay, DONE]) as scene:
        await scene.run()
        kept = transcript.ProviderMetadata({"output": [{"type": "message"}]})
        assert await scene.history() == [GO, band_boundary(), transcript.AssistantMessage("x"), kept]
        assert len(compactions(scene)) == 1


async def test_a_different_boundary_in_the_replay_metadata_is_a_further_one(autojump_clock):
    replay = inference.ProviderMetadata({"output": [item("a"), item("b"), {"type": "message"}]})
    async with with_goal([in_band(), replay, DONE], [DONE]) as scene:
        await scene.run()
        history = await scene.history()
        assert history[1:3] == [band_boundary("a"), band_boundary("b")]
        assert [event.compaction_id for event in compactions(scene)] == ["a", "b"]
        await scene.run("more")
        assert scene.engine.requests[1].transcript[0] == band_boundary("b")


async def test_a_boundary_without_a_name_is_told_under_its_turn(autojump_clock):
    unnamed = {"type": "compaction", "encrypted_content": "x"}
    async with with_goal([inference.Compaction("completed", None, unnamed), DONE]) as scene:
        outcome = await scene.run()
        assert [event.compaction_id for event in compactions(scene)] == [f"in-band-{outcome.turn_id}"]


async def test_compactions_in_the_stream_that_did_not_finish_are_nothing(autojump_clock):
    steps = [inference.Compaction("started", "a"), inference.Compaction("failed", "a"), say("x"), DONE]
    async with with_goal(steps) as scene:
        await scene.run()
        assert (await scene.history(), compactions(scene)) == ([GO, transcript.AssistantMessage("x")], [])


async def test_a_boundary_of_another_provider_is_left_out_of_the_request(autojump_clock):
    foreign = transcript.ProviderMetadata({"output": [item()], "provider": "other"})
    target = inference.EngineTarget("dialect", "scripted", "https://here")
    async with with_goal([DONE], target=target) as scene:
        await persist(scene, (HISTORY[0], foreign))
        await scene.run()
        assert list(scene.engine.requests[0].transcript) == [HISTORY[0], GO]
