"""What a native compaction asks its provider for: as the next step would ask, with the window as it stands."""

import attrs
import pytest

import roder_trio as rt
from roder_trio import inference, transcript
from roder_trio.logic.window import leave_out_images
from roder_trio.schema.inference import ModelDescriptor
from roder_trio.schema.usage import Purpose
from tests.ledger_support import boundary, compact_directly, persist, with_goal
from tests.turn_support import DONE, settings


async def test_the_request_is_that_of_the_next_step_without_what_a_compaction_can_not_use(autojump_clock):
    config = settings(auto_compact_token_limit=1, instructions="be brief", default_service_tier="flex")
    async with with_goal([DONE], compact=[[boundary(), DONE]] * 3, config=config) as scene:
        await scene.runtime.update_thread(scene.id, developer_instructions="stay polite", reasoning="high")
        await scene.run(developer_context="the sky is blue")
        asked, sampled = scene.engine.compact_requests[0], scene.engine.requests[0]
        assert asked.model == sampled.model
        assert asked.instructions == sampled.instructions
        system, developer, context = attrs.astuple(asked.instructions)
        assert (system, context) == ("be brief", "the sky is blue")
        assert developer.startswith("stay polite\n\n# Goal")
        assert (asked.reasoning, asked.tools, asked.tool_choice.mode) == (sampled.reasoning, sampled.tools, "auto")
        assert asked.output.response_format is None
        assert (asked.runtime.auto_compact_token_limit, asked.runtime.service_tier) == (None, "flex")
        assert (asked.runtime.prompt_cache_key, asked.runtime.deadline_remaining) == (scene.id, None)
        [call] = [call for call in scene.engine.calls if call.kind == "compact"]
        assert call.context.purpose is Purpose.NATIVE_COMPACTION


@pytest.mark.parametrize(
    ("hint", "developer"), [(None, "polite"), ("  ", "polite"), (" keep the proof ", "polite\n\nkeep the proof")]
)
@pytest.mark.parametrize("way", ["manual", "direct"])
async def test_the_hint_stands_behind_the_developer_instructions(autojump_clock, hint, developer, way):
    async with with_goal(compact=[[boundary(), DONE]], config=settings(instructions="brief")) as scene:
        await persist(scene)
        await scene.runtime.update_thread(scene.id, developer_instructions="polite")
        if way == "manual":
            await scene.runtime.compact_thread(scene.id, hint)
        else:
            history = await scene.history()
            await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", history, hint)
        [request] = scene.engine.compact_requests
        assert request.instructions == inference.Instructions("brief", developer)


async def test_a_hint_without_developer_instructions_stands_alone(autojump_clock):
    async with with_goal(compact=[[boundary(), DONE]]) as scene:
        await persist(scene)
        await scene.runtime.compact_thread(scene.id, "keep it")
        [request] = scene.engine.compact_requests
        assert request.instructions.developer == "keep it"


@pytest.mark.parametrize(("known", "level"), [(("low", "high"), "high"), (("low",), None), ((), "high")], ids=str)
async def test_a_direct_compaction_asks_as_the_threads_next_turn_would(autojump_clock, known, level):
    row = ModelDescriptor(provider="scripted", id="m", supported_reasoning=known)
    still = settings(goals=rt.GoalConfig(auto_continue=False))
    async with with_goal(compact=[[boundary(), DONE]], models=[row], config=still) as scene:
        await persist(scene)
        await scene.runtime.update_thread(
            scene.id, reasoning="high", tool_allowlist=["get_goal"], developer_instructions="stay polite"
        )
        assert await compact_directly(scene) is None
        [request] = scene.engine.compact_requests
        assert [tool.name for tool in request.tools] == ["get_goal"]
        assert request.reasoning == inference.ReasoningOptions(level is not None, level)
        assert request.instructions.developer == "stay polite"


async def test_notes_stand_for_images_that_the_engine_does_not_take(autojump_clock):
    seen = transcript.UserMessage("look", (transcript.Image("data:image/png;base64,AAAA"),))
    blind = attrs.evolve(inference.InferenceCapabilities.agent(), image_input=False)
    for capabilities in (blind, attrs.evolve(blind, image_input=True)):
        async with with_goal(compact=[[boundary(), DONE]], capabilities=capabilities) as scene:
            await persist(scene, (seen,))
            assert await compact_directly(scene) is None
            [[asked]] = [request.transcript for request in scene.engine.compact_requests]
            assert asked == (seen if capabilities.image_input else transcript.UserMessage(leave_out_images("look", 1)))
