"""A thread that goes on in another dialect: what was said there is told here, what was hidden there stays there."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import roder_trio as rt
from roder_trio import transcript
from roder_trio.testing import FakeProviderServer
from roder_trio.testing.server import Received, Reply
from tests import anthropic_support as wire
from tests import responses
from tests.dialects import ANTHROPIC, CALL_TOKENS, DIALECTS, RESPONSES, TEXT_TOKENS, Dialect, strings
from tests.turn_support import settings, well_paired

PAIRS = list(itertools.permutations(DIALECTS, 2))
every_pair = pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a.name}-{b.name}" for a, b in PAIRS])
LONG = "first " + "evidence " * 400
PER_TEXT, PER_STEP = (rt.TokenUsage(*tokens, sum(tokens)) for tokens in (TEXT_TOKENS, CALL_TOKENS))


@rt.tool(effects={"read"})
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    await trio.lowlevel.checkpoint()
    return a + b


class Talk:
    """One thread, and two engines that speak to one scripted server."""

    def __init__(self, runtime: rt.Runtime, server: FakeProviderServer, thread_id: str) -> None:
        self.runtime = runtime
        self.server = server
        self.id = thread_id

    async def turn(self, dialect: Dialect, message: str, *answers: Any) -> list[Received]:
        """Run a turn on an engine that gives these answers; return the requests it made, each well formed."""
        begun = len(self.server.requests)
        self.server.replies += [Reply(steps=[dialect.sse(frames)]) for frames in answers]
        outcome = await self.runtime.run_turn(self.id, message, provider=f"my-{dialect.name}", model="m")
        assert outcome.status == "completed", outcome
        made = self.server.requests[begun:]
        assert len(made) == len(answers)
        for request in made:
            assert request.path.endswith(dialect.path)
            dialect.check(request.json)
            told = "\n".join(strings(request.json))
            assert not [other.name for other in DIALECTS if other is not dialect and other.marker in told]
        return made

    async def history(self) -> list[Any]:
        snapshot = await self.runtime.load_thread(self.id)
        assert snapshot is not None
        return [item for turn in snapshot.turns for item in turn.items]


@asynccontextmanager
async def talking(first: Dialect, second: Dialect, **options: Any) -> AsyncIterator[Talk]:
    async with FakeProviderServer().open() as server:
        engines = [first.engine(server.url, **options), second.engine(server.url)]
        with trio.fail_after(30):
            async with rt.open_runtime(engines=engines, tools=[add], config=settings()) as runtime:
                thread = await runtime.create_thread(provider=engines[0].id, model="m")
                yield Talk(runtime, server, thread.thread_id)


def text_of(request: Received) -> str:
    return "\n".join(strings(request.json))


async def work(talk: Talk, dialect: Dialect, message: str) -> list[Received]:
    """A turn with reasoning, text and a call, under an id that not every wire would take."""
    return await talk.turn(dialect, message, dialect.step("call.1:x"), dialect.text(f"It is 3, says {dialect.name}."))


async def check_usage(talk: Talk, texts: int, steps: int) -> None:
    metadata = await talk.runtime.load_metadata(talk.id)
    assert metadata is not None
    none = rt.TokenUsage(0, 0, 0)
    assert metadata.usage == sum([PER_TEXT] * texts + [PER_STEP] * steps, none)
    assert well_paired(await talk.history())


@every_pair
async def test_a_thread_goes_on_in_another_dialect_and_comes_back(first: Dialect, second: Dialect) -> None:
    async with talking(first, second) as talk:
        own = await work(talk, first, LONG)
        _, result = await work(talk, second, "second")
        [back] = await talk.turn(first, "third", first.text("Yes."))
        [other] = await talk.turn(second, "fourth", second.text("Yes."))
        for request in (result, back, other):
            told = text_of(request)
            for said in (LONG, f"says {first.name}", "second", "Let me add."):
                assert told.count(said) == (2 if said == "Let me add." else 1)
            assert "add" in told
        assert f"says {second.name}" in text_of(back)
        # what a dialect hid is its own again when the thread is back
        for request, dialect in ((own[1], first), (back, first), (result, second), (other, second)):
            assert (dialect.marker in text_of(request)) == (dialect.name != "chat_completions")
        await check_usage(talk, texts=4, steps=2)


@every_pair
async def test_a_summary_is_what_the_other_dialect_is_told(first: Dialect, second: Dialect) -> None:
    async with talking(first, second, **({"native_compaction": False} if first is RESPONSES else {})) as talk:
        await work(talk, first, LONG)
        await talk.turn(first, "second", first.text("Yes."))
        await summarised(talk, first)
        _, told = map(text_of, await work(talk, second, "third"))
        [back] = await talk.turn(first, "fourth", first.text("Yes."))
        for text in (told, text_of(back)):
            assert text.count("Context summary:\nwhat was found") == 1
            assert "evidence" not in text
            assert first.marker not in text
            assert text.count("second") == 1
        await check_usage(talk, texts=5, steps=2)


async def summarised(talk: Talk, dialect: Dialect) -> None:
    """Have the thread compacted by a summary that the dialect's engine writes."""
    talk.server.replies.append(Reply(steps=[dialect.sse(dialect.text("what was found"))]))
    result = await talk.runtime.compact_thread(talk.id)
    assert (result.compacted, result.strategy) == (True, "llm")
    request = talk.server.requests[-1]
    assert request.path.endswith(dialect.path)
    assert "evidence" in text_of(request)


OPAQUE = [(first, second) for first, second in PAIRS if first in (RESPONSES, ANTHROPIC)]


@pytest.mark.parametrize(("first", "second"), OPAQUE, ids=[f"{a.name}-{b.name}" for a, b in OPAQUE])
async def test_what_one_dialect_compacted_for_itself_is_told_in_full_to_another(
    first: Dialect, second: Dialect
) -> None:
    async with talking(first, second) as talk:
        await work(talk, first, LONG)
        await talk.turn(first, "second", first.text("Yes."))
        await compacted(talk, first)
        _, told = map(text_of, await work(talk, second, "third"))
        assert told.count(LONG) == 1
        assert told.count(f"says {first.name}") == 1
        assert "compaction" not in told
        [back] = await talk.turn(first, "fourth", first.text("Yes."))
        assert "evidence" not in text_of(back)
        assert text_of(back).count(first.marker) == 1
        assert f"says {second.name}" in text_of(back)


async def compacted(talk: Talk, dialect: Dialect) -> None:
    """Have the thread compacted by the provider, in the way that it has."""
    if dialect is RESPONSES:
        answer = {
            "id": "c1",
            "output": [responses.boundary(dialect.marker)],
            "usage": responses.usage(*TEXT_TOKENS, 33),
        }
        headers = {"Content-Type": "application/json"}
        talk.server.replies.append(Reply(headers=headers, steps=[json.dumps(answer).encode()]))
        result = await talk.runtime.compact_thread(talk.id)
        assert (result.compacted, result.strategy) == (True, "native")
        return
    block = [
        wire.opened(0, "compaction", content=None),
        wire.piece(0, "compaction", content=f"told by {dialect.marker}"),
        wire.closed(0),
    ]
    start, *_, stop, over = dialect.text("")
    await talk.turn(dialect, "compact", [start, *block, *wire.text(1, "Done."), stop, over])
    assert any(rt.compaction.is_boundary(item) for item in await talk.history())


@every_pair
async def test_an_interrupted_text_is_told_to_another_dialect_with_its_note(first: Dialect, second: Dialect) -> None:
    async with talking(first, second) as talk:
        talk.server.replies = [Reply(steps=[first.sse(first.begun("half of it"))], keep_open=True)]
        async with talk.runtime.turn(talk.id, "first", provider=f"my-{first.name}", model="m") as turn:
            async for envelope in turn:
                if envelope.kind == "item.delta":
                    await talk.runtime.interrupt_turn(talk.id, turn.turn_id)
        assert (await talk.history())[-1] == transcript.AssistantMessage("half of it", interrupted=True)
        [request] = await talk.turn(second, "second", second.text("Yes."))
        texts = list(strings(request.json))
        note = texts.index("[The message above was cut off before it was finished.]")
        assert texts.index("half of it") < note < texts.index("second")


@pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.name for dialect in DIALECTS])
async def test_a_steer_in_mid_text_is_sent_behind_the_text_so_far_and_its_note(dialect: Dialect) -> None:
    begun = Reply(steps=[dialect.sse(dialect.begun("half of it"))], keep_open=True)
    async with FakeProviderServer([begun, Reply(steps=[dialect.sse(dialect.text("Yes."))])]).open() as server:
        async with rt.open_runtime(engines=[dialect.engine(server.url)], config=settings()) as runtime:
            thread = (await runtime.create_thread()).thread_id
            async with runtime.turn(thread, "first") as turn:
                async for envelope in turn:
                    if envelope.kind == "item.delta" and len(server.requests) == 1:
                        await runtime.steer_turn(thread, turn.turn_id, "second")
        assert (turn.outcome.status, turn.outcome.text) == ("completed", "Yes.")
    _, request = server.requests
    dialect.check(request.json)
    said = ["first", "half of it", "[The message above was cut off before it was finished.]", "second"]
    assert [text for text in strings(request.json) if text in said] == said
