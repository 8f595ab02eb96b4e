"""Whole turns over real sockets: streams that break off, interrupts in a row, callers at once, a round of tools."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, providers, transcript
from roder_trio.providers import _http
from roder_trio.providers._http import SharedClient
from roder_trio.providers.chat_completions import decode
from roder_trio.testing import FakeProviderServer
from roder_trio.testing.server import Reply, Reset
from tests.chat import calls, chunk, fragment, sse, usage
from tests.loopback import wait_tasks
from tests.turn_support import Scene, settings, well_paired

TOKEN = rt.TokenUsage
ANSWER = [
    chunk(content="One ") | {"usage": usage(10, 1)["usage"]},
    chunk(content="two "),
    chunk(content="three."),
    chunk("stop"),
    usage(10, 3),
    "[DONE]",
]
TEXT = "One two three."
ROUND = [
    chunk(content="Let me add.") | {"usage": usage(20, 1)["usage"]},
    calls(fragment(0, "call_a", "add", "")),
    calls(fragment(0, arguments='{"a": 1, ')),
    calls(fragment(0, arguments='"b": 2}')),
    calls(fragment(1, "call_b", "add", '{"a": "x"}')),
    chunk("tool_calls"),
    usage(20, 9),
    "[DONE]",
]


@rt.tool(effects={"read"})
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    await trio.lowlevel.checkpoint()
    return a + b


class Wire:
    """A runtime with one thread whose engine speaks to a server on loopback."""

    def __init__(self, server: FakeProviderServer, client: httpx.AsyncClient, scene: Scene) -> None:
        self.server = server
        self.client = client
        self.scene = scene

    @property
    def in_use(self) -> int:
        """How many requests hold a place in the pool."""
        return len(self.client._transport._pool._requests)  # type: ignore[attr-defined]

    def sent(self, number: int) -> list[dict[str, Any]]:
        """The messages of a request, without those of the system."""
        messages = self.server.requests[number].json["messages"]
        return [message for message in messages if message["role"] not in ("system", "developer")]


@asynccontextmanager
async def opened(replies: Iterable[Reply], tools: Iterable[rt.Tool] = (), **config: Any) -> AsyncIterator[Wire]:
    options = settings(provider_retry_initial_backoff=0.0, default_model="m", **config)
    async with FakeProviderServer(replies).open() as server, SharedClient() as client:
        engine = providers.ChatCompletions("acme", base_url=f"{server.url}/v1")
        with trio.fail_after(120):
            async with rt.open_runtime(engines=[engine], tools=list(tools), http=client, config=options) as runtime:
                thread = await runtime.create_thread()
                async with runtime.subscribe_events(thread_id=thread.thread_id) as subscription:
                    yield Wire(server, client, Scene(runtime, engine, thread.thread_id, subscription))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection and no answer is given up because the machine is slow."""
    monkeypatch.setattr(_http, "CLOSE_GRACE", 60.0)
    monkeypatch.setattr(decode, "AFTER_FINISH", 60.0)


# -- a stream that breaks off ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("breaks", [False, True], ids=["ended", "reset"])
async def test_a_stream_cut_after_any_chunk_is_made_again_and_its_text_stands_once(breaks: bool) -> None:
    for cut in range(ANSWER.index("[DONE]")):
        ending = [Reset()] if breaks else []
        steps = [*(sse(frame) for frame in ANSWER[:cut]), *ending]
        async with opened([Reply(steps=steps, close=True), Reply.sse(*ANSWER)]) as wire:
            outcome = await wire.scene.run()
            assert (outcome.status, outcome.text) == ("completed", TEXT)
            history = await wire.scene.history()
            assert [item for item in history if not isinstance(item, transcript.ProviderMetadata)] == [
                transcript.UserMessage("go"),
                transcript.AssistantMessage(TEXT),
            ]
            retried = len(wire.server.requests) == 2
            assert retried == (len(wire.scene.of(events.RetryScheduled)) == 1)
            assert retried or cut >= ANSWER.index(chunk("stop"))
            assert wire.scene.shown() == TEXT
            attempts = [TOKEN(10, 1, 11)] if cut else []
            expected = sum([*attempts, TOKEN(10, 3, 13)], TOKEN(0, 0, 0)) if retried else outcome.usage
            assert outcome.usage == expected
            assert retried or expected in (TOKEN(10, 1, 11), TOKEN(10, 3, 13))
            if retried:
                assert wire.sent(0) == wire.sent(1)
            assert wire.in_use == 0


async def test_a_stream_cut_within_its_calls_runs_none_of_them() -> None:
    for cut in range(1, ROUND.index(chunk("tool_calls"))):
        steps = [sse(frame) for frame in ROUND[:cut]]
        replies = [Reply(steps=[*steps, Reset()]), Reply.sse(*ROUND), Reply.sse(*ANSWER)]
        async with opened(replies, [add]) as wire:
            outcome = await wire.scene.run()
            assert (outcome.status, outcome.text) == ("completed", TEXT)
            assert outcome.usage == TOKEN(20, 1, 21) + TOKEN(20, 9, 29) + TOKEN(10, 3, 13)
            history = await wire.scene.history()
            assert well_paired(history)
            assert len([item for item in history if isinstance(item, transcript.ToolCall)]) == 2
            assert wire.scene.kinds.count("tool.started") == 1
            assert len(wire.server.requests) == 3


# -- interrupts in a row -----------------------------------------------------------------------------------------------


async def test_two_hundred_interrupts_in_a_row_leave_nothing_open() -> None:
    hanging = Reply(steps=[sse(chunk(content="a"))], keep_open=True)
    async with opened([hanging] * 200) as wire:
        scene, server = wire.scene, wire.server
        await scene.history()  # the thread is resident now
        await trio.testing.wait_all_tasks_blocked()
        living = trio.lowlevel.current_statistics().tasks_living
        for number in range(200):
            requests = len(server.requests)
            turn_id = await scene.start(f"message {number:03}")
            if number % 3:
                await server.wait_requests(requests + 1)
            if number % 3 == 2:
                await scene.wait_for(lambda scene: scene.kinds[-1] == "item.delta")
            await scene.interrupt(turn_id)
            outcome = await scene.wait(turn_id)
            assert (outcome.status, outcome.reason) == ("interrupted", "user")
            assert outcome.text == "a" or number % 3 != 2
            assert wire.in_use == 0
        await server.wait_hang_ups(len(server.requests))
        await wait_tasks(living)
        server.replies = [Reply.sse(*ANSWER)]
        outcome = await scene.run("the last one")
        assert (outcome.status, outcome.text, outcome.usage) == ("completed", TEXT, TOKEN(10, 3, 13))
        said = [item.text for item in await scene.history() if isinstance(item, transcript.UserMessage)]
        assert said == [*(f"message {number:03}" for number in range(200)), "the last one"]
        sent = "\n".join(str(message["content"]) for message in wire.sent(-1) if message["role"] == "user")
        assert all(sent.count(text) == 1 for text in said)
        assert len(scene.ends) == 201


# -- callers at once ---------------------------------------------------------------------------------------------------


async def test_of_three_callers_at_once_one_runs_and_the_others_learn_who() -> None:
    gates = [trio.Event() for _ in range(3)]
    replies = [Reply(steps=[gate, *map(sse, answer_of(n))]) for n, gate in enumerate(gates)]
    async with opened(replies) as wire:
        scene = wire.scene
        won: dict[str, str] = {}
        refused: list[str] = []
        told: list[str] = []

        async def caller(message: str) -> None:
            while message not in won:
                try:
                    won[message] = await scene.start(message)
                except rt.ThreadBusy as busy:
                    refused.append(busy.turn_id)
                    await scene.wait(refused[-1])

        async with trio.open_nursery() as nursery:
            for message in ("a", "b", "c"):
                nursery.start_soon(caller, message)
            for number, gate in enumerate(gates):
                await wire.server.wait_requests(number + 1)
                await trio.testing.wait_all_tasks_blocked()
                assert len(won) == number + 1
                told += [list(won.values())[-1]] * (2 - number)
                assert refused == told
                gate.set()
        for turn_id in won.values():
            assert (await scene.wait(turn_id)).status == "completed"
        order = list(won)
        expected = [pair for n, text in enumerate(order) for pair in (text, f"answer {n}")]
        assert [item.text for item in await scene.history() if hasattr(item, "text")] == expected
        assert [message["content"] for message in wire.sent(2)] == expected[:-1]


def answer_of(number: int) -> list[Any]:
    return [chunk(content="answer "), chunk(content=str(number)), chunk("stop"), usage(1, 1), "[DONE]"]


# -- a round of tools --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [None, 1])
async def test_a_round_of_tools_travels_whole(split: int | None) -> None:
    async with opened([Reply.sse(*ROUND, split=split), Reply.sse(*ANSWER, split=split)], [add]) as wire:
        outcome = await wire.scene.run()
        assert (outcome.status, outcome.text, outcome.finish_reason) == ("completed", TEXT, "stop")
        assert outcome.usage == TOKEN(30, 12, 42)
        (offered,) = wire.server.requests[0].json["tools"]
        assert offered["function"]["name"] == "add"
        assert offered["function"]["parameters"]["required"] == ["a", "b"]
        user, assistant, first, second = wire.sent(1)
        assert (user["role"], user["content"]) == ("user", "go")
        assert (assistant["role"], assistant["content"]) == ("assistant", "Let me add.")
        assert [(c["id"], c["type"], c["function"]["name"]) for c in assistant["tool_calls"]] == [
            ("call_a", "function", "add"),
            ("call_b", "function", "add"),
        ]
        assert [c["function"]["arguments"] for c in assistant["tool_calls"]] == ['{"a": 1, "b": 2}', '{"a": "x"}']
        assert (first["role"], first["tool_call_id"], first["content"]) == ("tool", "call_a", "3")
        assert (second["role"], second["tool_call_id"]) == ("tool", "call_b")
        assert second["content"].startswith("invalid arguments: ")
        assert well_paired(await wire.scene.history())


async def test_a_call_that_was_interrupted_is_answered_in_the_next_request() -> None:
    running = trio.Event()

    @rt.tool(effects={"read"})
    async def wait() -> str:
        """Wait for ever."""
        running.set()
        await trio.sleep_forever()
        return ""

    first = [calls(fragment(0, "call_w", "wait", "{}")), chunk("tool_calls"), usage(2, 1), "[DONE]"]
    async with opened([Reply.sse(*first), Reply.sse(*ANSWER)], [wait]) as wire:
        turn_id = await wire.scene.start()
        await running.wait()
        await wire.scene.interrupt(turn_id)
        assert (await wire.scene.wait(turn_id)).status == "interrupted"
        assert (await wire.scene.run("and now")).text == TEXT
        user, assistant, result, again = wire.sent(1)
        assert [call["id"] for call in assistant["tool_calls"]] == ["call_w"]
        assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "call_w", "interrupted")
        assert [user["content"], again["content"]] == ["go", "and now"]
