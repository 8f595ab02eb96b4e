from itertools import pairwise

import attrs
import pytest
import trio
import trio.testing

from roder_trio.logic.boundary import is_boundary
from roder_trio.logic.compaction import Commit, Staging, step
from roder_trio.logic.window import History
from roder_trio.providers.offline import Offline
from roder_trio.schema.inference import (
    Completed,
    EngineTarget,
    InferenceCapabilities,
    InferenceRequest,
    Instructions,
    MessageDelta,
    ModelChoice,
    OutputRequest,
    TurnContext,
    Usage,
)
from roder_trio.schema.transcript import (
    AssistantMessage,
    ContextCompaction,
    ErrorNote,
    ProviderMetadata,
    ToolResult,
    UserMessage,
)
from roder_trio.schema.usage import TokenUsage

CONTEXT = TurnContext(thread_id="thread", turn_id="turn", attempt_id="attempt")


def asking(*items, **fields):
    return InferenceRequest(model=ModelChoice("offline", "offline"), transcript=items, **fields)


async def answer(request, engine=None):
    async with (engine or Offline()).stream_turn(CONTEXT, request) as stream:
        return [event async for event in stream]


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, MessageDelta))


async def compacted(*items, engine=None):
    """Compact `items` and return the boundary, as the runtime would commit it."""
    async with (engine or Offline()).compact_turn(CONTEXT, asking(*items)) as stream:
        staging, verdicts = Staging(), []
        async for event in stream:
            staging, verdict = step(staging, event)
            verdicts.append(verdict)
    assert isinstance(verdicts[-1], Commit)
    return verdicts[-1].item


async def test_the_answer_repeats_the_last_message_and_says_how_to_get_a_real_model():
    events = await answer(asking(UserMessage("first"), AssistantMessage("yes"), UserMessage("say  it\nagain")))
    text = text_of(events)
    assert "You said: say  it\nagain" in text
    for name in ("OPENAI_API_KEY", "RODER_TRIO_PROVIDER", "--provider", "ollama"):
        assert name in text
    assert events[-1] == Completed("stop")
    assert events == await answer(asking(UserMessage("first"), AssistantMessage("yes"), UserMessage("say  it\nagain")))


async def test_the_answer_streams_word_by_word_with_running_totals():
    events = await answer(asking(UserMessage("one two three"), instructions=Instructions("sys", "dev", "ctx")))
    words = [event.text for event in events if isinstance(event, MessageDelta)]
    assert all(len(word.split()) == 1 for word in words)
    readings = [event.usage for event in events if isinstance(event, Usage)]
    assert readings[0] == TokenUsage(6, 0, 6)
    assert all(before.completion_tokens < after.completion_tokens for before, after in pairwise(readings))
    completion = -(-len(text_of(events).encode()) // 4)
    assert readings[-1] == TokenUsage(6, completion, 6 + completion)
    sent = 0
    for event in events:
        if isinstance(event, MessageDelta):
            sent += len(event.text.encode())
        elif isinstance(event, Usage):
            assert event.usage.completion_tokens == -(-sent // 4)


async def test_a_turn_without_text_gets_an_answer_too():
    assert text_of(await answer(asking())).startswith("You said nothing.")


async def test_a_limit_of_tokens_cuts_the_answer():
    events = await answer(asking(UserMessage("hello"), output=OutputRequest(max_tokens=3)))
    assert text_of(events) == "You said:"
    assert events[-1] == Completed("length")
    assert events[-2].usage == TokenUsage(2, 3, 5)


async def test_a_cancel_lands_between_two_events_and_the_usage_seen_is_known():
    with trio.CancelScope() as scope:
        async with Offline().stream_turn(CONTEXT, asking(UserMessage("abcd"))) as stream:
            assert stream.settle() is None
            with trio.testing.assert_checkpoints():
                first = await anext(stream)
            assert stream.settle() == first.usage == TokenUsage(1, 0, 1)
            scope.cancel()
            await anext(stream)
    assert scope.cancelled_caught


async def test_a_compaction_gives_one_boundary_that_only_this_engine_takes():
    engine = Offline()
    boundary = await compacted(
        UserMessage("build it"), AssistantMessage("built"), ErrorNote("no"), ToolResult("c", "t", "x" * 500)
    )
    assert is_boundary(boundary)
    history = History([UserMessage("build it"), boundary])
    assert history.head(engine.target) == 1
    assert history.head(EngineTarget("chat_completions", "openai", "https://api.openai.com/v1")) is None
    assert history.head(Offline("other").target) is None
    (item,) = boundary.payload["compacted_input"]
    assert item["encrypted_content"].splitlines() == [
        "user: build it",
        "assistant: built",
        f"tool: {'x' * 120}...",
    ]


async def test_what_was_compacted_is_said_later_and_the_active_message_is_not_lost():
    engine = Offline()
    log = [UserMessage("build it"), AssistantMessage("built")]
    history = History([*log, await compacted(*log)])
    text = text_of(await answer(asking(*history.request(engine.target))))
    assert "You said: build it" in text
    assert "user: build it\nassistant: built" in text
    history.append(UserMessage("and now?"))
    text = text_of(await answer(asking(*history.request(engine.target))))
    assert "You said: and now?" in text
    again = await compacted(*history.window(engine.target))
    assert again.payload["output"][0]["encrypted_content"] == "user: build it\nassistant: built\nuser: and now?"


async def test_a_digest_counts_as_prompt_and_keeps_the_newest_lines_that_fit():
    log = [AssistantMessage(f"{number:03} " + "x" * 200) for number in range(100)]
    boundary = await compacted(*log)
    (item,) = boundary.payload["output"]
    digest = item["encrypted_content"]
    assert len(digest) <= 4_000
    assert digest.splitlines()[-1].startswith("assistant: 099")
    assert "last_user_message" not in item
    events = await answer(asking(boundary))
    assert events[0].usage.prompt_tokens == -(-len(digest) // 4)


async def test_nothing_said_can_be_compacted_too():
    boundary = await compacted()
    assert boundary.payload["output"][0]["encrypted_content"]


async def test_boundaries_of_others_are_not_read():
    foreign = ProviderMetadata({"dialect": "other", "output": [{"type": "compaction", "encrypted_content": "sealed"}]})
    text = text_of(await answer(asking(foreign, UserMessage("hi"))))
    assert "sealed" not in text
    assert "compacted before" not in text
    summary = ContextCompaction("the summary")
    assert "compacted before:\nthe summary" in text_of(await answer(asking(summary, UserMessage("hi"))))


async def test_a_request_for_a_summary_gets_the_seven_parts():
    request = asking(UserMessage("goal text"), AssistantMessage("done so far"))
    text = text_of(await answer(attrs.evolve(request, metadata={"compaction_summary": True})))
    labels = ["goal", "constraints", "progress", "decisions", "files_and_artifacts", "open_questions", "next_steps"]
    positions = [text.index(f"\n{label}: ") for label in labels]
    assert positions == sorted(positions)
    assert "\ngoal: goal text" in text
    assert "assistant: done so far" in text


async def test_there_is_one_model():
    engine = Offline("mine")
    (model,) = await engine.list_models()
    assert (model.provider, model.id, model.context_window) == ("mine", "offline", 32_000)
    assert engine.capabilities == InferenceCapabilities.text_only()
    assert not engine.requires_native_compaction


@pytest.mark.parametrize("said", ["", " ", "a b  c \n"])
async def test_words_joined_are_the_text(said):
    text = text_of(await answer(asking(UserMessage(said))))
    assert text.startswith(f"You said: {said}" if said else "You said nothing.")
