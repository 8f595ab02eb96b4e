"""Whole turns with the Anthropic engine over real sockets: pauses, compactions inside the stream, calls, cuts."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import roder_trio as rt
from roder_trio import events, items, providers, transcript
from roder_trio.testing import FakeProviderServer
from roder_trio.testing.server import Reply, Reset, Stall
from tests.anthropic_support import OVER, began, call, closed, opened, piece, stopped, text
from tests.chat import calls, chunk, fragment
from tests.tool_support import Worker
from tests.turn_support import Scene, folded_usage, settings, texts, well_paired

TOKEN = rt.TokenUsage
SEARCH = call(1, "s1", "web_search", '{"query":"x"}', kind="server_tool_use")
SEARCHED = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
ARRIVED = [opened(0, "web_search_tool_result", tool_use_id="s1", content=[]), closed(0)]
BLOCK = {"type": "compaction", "content": "what was"}
COMPACTION = [opened(0, "compaction", content=None), piece(0, "compaction", content="what was"), closed(0)]
CUT_OFF = "[The message above was cut off before it was finished.]"


def counted(prompt: int, completion: int) -> dict[str, int]:
    return {"input_tokens": prompt, "output_tokens": completion}


def answer(said: str = "done", prompt: int = 10, completion: int = 2) -> list[Any]:
    return [began(counted(prompt, 1)), *text(0, said), stopped("end_turn", {"output_tokens": completion}), OVER]


ANSWER = answer()
PAUSE = [began(counted(20, 1)), *text(0, "let me"), *SEARCH, stopped("pause_turn", {"output_tokens": 5}), OVER]


class Wire:
    """A runtime with one thread whose engine speaks to a server on loopback."""

    def __init__(self, server: FakeProviderServer, scene: Scene) -> None:
        self.server = server
        self.scene = scene

    def sent(self, number: int) -> list[tuple[str, list[Any]]]:
        """The messages of a request, each a role and its blocks, the texts as plain text."""
        messages = self.server.requests[number].json["messages"]
        return [(message["role"], [plain(block) for block in message["content"]]) for message in messages]


def plain(block: dict[str, Any]) -> Any:
    return block["text"] if block.keys() == {"type", "text"} else block


@asynccontextmanager
async def opened_wire(replies: Iterable[Any], *tools: rt.Tool, **config: Any) -> AsyncIterator[Wire]:
    options = settings(provider_retry_initial_backoff=0.0, default_model="m", **config)
    listed = [reply if isinstance(reply, Reply) else Reply.sse(*reply) for reply in replies]
    async with FakeProviderServer(listed).open() as server:
        acme = providers.Anthropic("acme", base_url=server.url)
        chat = providers.ChatCompletions("chat", base_url=f"{server.url}/v1")
        with trio.fail_after(30):
            async with rt.open_runtime(engines=[acme, chat], tools=list(tools), config=options) as runtime:
                thread = await runtime.create_thread()
                async with runtime.subscribe_events(thread_id=thread.thread_id) as subscription:
                    yield Wire(server, Scene(runtime, acme, thread.thread_id, subscription))


# -- pauses ------------------------------------------------------------------------------------------------------------


async def test_a_pause_goes_on_within_the_turn_with_no_new_message_of_the_user() -> None:
    rest = [began(counted(30, 1)), *ARRIVED, *text(1, "found"), stopped("end_turn"), OVER]
    async with opened_wire([PAUSE, rest, ANSWER], hosted_web_search="live") as wire:
        outcome = await wire.scene.run()
        assert (outcome.status, outcome.text, outcome.finish_reason) == ("completed", "found", "stop")
        assert outcome.usage == TOKEN(20, 5, 25) + TOKEN(30, 1, 31)
        assert wire.sent(0) == [("user", ["go"])]
        assert wire.sent(1) == [("user", ["go"]), ("assistant", ["let me", SEARCHED])]
        [search] = wire.server.requests[1].json["tools"]
        assert (search["type"], search["name"]) == ("web_search_20250305", "web_search")
        history = await wire.scene.history()
        assert texts(history) == ["go", "let me", "ProviderMetadata", "found", "ProviderMetadata"]
        shown = [event.event for event in wire.scene.happened if hasattr(event, "event")]
        hosted = [
            change.item
            for change in shown
            if isinstance(change, items.ItemCompleted) and isinstance(change.item, items.ToolExecution)
        ]
        assert [item.id.rpartition("-")[2] for item in hosted] == ["s1"]
        await wire.scene.run("more")
        assert wire.sent(2) == [
            ("user", ["go"]),
            ("assistant", ["let me", SEARCHED, FOUND, "found"]),
            ("user", ["more"]),
        ]


async def test_pauses_without_end_reach_the_limit_of_a_turn() -> None:
    async with opened_wire([PAUSE] * 4, max_model_calls_per_turn=3) as wire:
        outcome = await wire.scene.run()
        assert (outcome.status, outcome.error_kind) == ("failed", "reliability_limit")
        assert len(wire.server.requests) == 3
        assert outcome.usage == TOKEN(60, 15, 75)


async def test_a_steer_that_loses_a_hosted_result_leaves_its_call_behind() -> None:
    hanging = [
        began(counted(30, 1)),
        *ARRIVED,
        opened(1, "text", text=""),
        piece(1, "text", text="so far"),
    ]
    partly = Reply(steps=[*Reply.sse(*hanging).steps, Stall()])
    async with opened_wire([PAUSE, partly, ANSWER]) as wire:
        turn_id = await wire.scene.start()
        await wire.scene.wait_text("so far")
        await wire.scene.steer(turn_id, "stop searching")
        outcome = await wire.scene.wait(turn_id)
        assert (outcome.status, outcome.text) == ("completed", "done")
        assert wire.sent(2) == [
            ("user", ["go"]),
            ("assistant", ["let me", "so far"]),
            ("user", [CUT_OFF, "stop searching"]),
        ]
        assert outcome.usage == TOKEN(20, 5, 25) + TOKEN(30, 1, 31) + TOKEN(10, 2, 12)


# -- compaction inside the stream --------------------------------------------------------------------------------------


async def test_a_compaction_in_the_stream_is_billed_once_and_sent_first_from_then_on() -> None:
    iterations = [
        {"type": "compaction", **counted(50, 40), "cache_read_input_tokens": 9000},
        {"type": "message", **counted(70, 6)},
    ]
    last = {**counted(70, 6), "cache_read_input_tokens": 0, "iterations": iterations}
    frames = [began({**counted(50, 2), "cache_read_input_tokens": 9000}), *COMPACTION, *text(1, "ok")]
    async with opened_wire([[*frames, stopped("end_turn", last), OVER], ANSWER]) as wire:
        outcome = await wire.scene.run()
        expected = TOKEN(9120, 46, 9166, cached_prompt_tokens=9000)
        assert (outcome.usage, outcome.text) == (expected, "ok")
        snapshot = await wire.scene.snapshot()
        assert folded_usage(snapshot) == snapshot.metadata.usage == expected
        history = await wire.scene.history()
        assert texts(history) == ["go", "ProviderMetadata", "ok", "ProviderMetadata"]
        boundary, replay = history[1], history[3]
        assert boundary == transcript.ProviderMetadata({"provider": "acme", "output": [BLOCK]})
        assert [rt.compaction.is_boundary(item) for item in (boundary, replay)] == [True, False]
        assert replay.payload["output"] == [{"type": "text", "text": "ok"}]
        assert replay.payload["context_tokens"] == 76
        assert replay.payload["usage"]["iterations"] == iterations
        assert len(wire.scene.of(events.ContextCompactionRecorded)) == 1
        await wire.scene.run("more")
        assert wire.sent(1) == [("assistant", [BLOCK]), ("user", ["go"]), ("assistant", ["ok"]), ("user", ["more"])]
        assert wire.server.requests[1].headers["anthropic-beta"] == "compact-2026-01-12"


async def test_a_stop_for_compaction_goes_on_behind_the_boundary() -> None:
    paused = [began(counted(50, 2)), *COMPACTION, stopped("compaction", counted(50, 40)), OVER]
    async with opened_wire([paused, ANSWER]) as wire:
        outcome = await wire.scene.run()
        assert (outcome.status, outcome.text) == ("completed", "done")
        assert outcome.usage == TOKEN(50, 40, 90) + TOKEN(10, 2, 12)
        assert wire.sent(1) == [("assistant", [BLOCK]), ("user", ["go"])]
        said = [item for item in await wire.scene.history() if isinstance(item, transcript.UserMessage)]
        assert texts(said) == ["go"]


async def test_a_boundary_is_kept_though_the_stream_breaks_right_after_it() -> None:
    broken = Reply(steps=[*Reply.sse(began(counted(50, 2)), *COMPACTION).steps, Reset()])
    async with opened_wire([broken, ANSWER]) as wire:
        outcome = await wire.scene.run()
        assert (outcome.status, outcome.usage) == ("completed", TOKEN(50, 2, 52) + TOKEN(10, 2, 12))
        assert wire.sent(1) == [("assistant", [BLOCK]), ("user", ["go"])]
        assert sum(map(rt.compaction.is_boundary, await wire.scene.history())) == 1


async def test_a_compaction_that_brought_nothing_changes_no_window() -> None:
    empty = [began(), opened(0, "compaction", content=None), closed(0), *text(1, "ok"), stopped("end_turn"), OVER]
    async with opened_wire([empty, ANSWER]) as wire:
        await wire.scene.run()
        await wire.scene.run("more")
        assert wire.sent(1) == [("user", ["go"]), ("assistant", ["ok"]), ("user", ["more"])]


# -- calls -------------------------------------------------------------------------------------------------------------

THINKING = [
    opened(0, "thinking", thinking="", signature=""),
    piece(0, "thinking", thinking="hm"),
    piece(0, "signature", signature="sig"),
    closed(0),
]
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sig"}
CALLS = [*call(2, "c1", "look", '{"a":', "1}"), *call(3, "c2", "look")]
ROUND = [
    began(counted(20, 1)),
    *THINKING,
    *text(1, "let me look"),
    *CALLS,
    stopped("tool_use", {"output_tokens": 9}),
    OVER,
]


def used(id: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look", "input": given}


def result(id: str, said: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": said}], **more}


@pytest.mark.parametrize("split", [None, 1])
async def test_a_round_of_tools_goes_back_as_it_came(split: int | None) -> None:
    look = Worker()
    async with opened_wire([Reply.sse(*ROUND, split=split), ANSWER], look) as wire:
        outcome = await wire.scene.run(reasoning="low")
        assert (outcome.status, outcome.text) == ("completed", "done")
        assert outcome.usage == TOKEN(20, 9, 29) + TOKEN(10, 2, 12)
        assert look.arguments == [{"a": 1}, {}]
        assert wire.server.requests[0].json["thinking"] == {"type": "adaptive"}
        assert wire.sent(1) == [
            ("user", ["go"]),
            ("assistant", [THOUGHT, "let me look", used("c1", a=1), used("c2")]),
            ("user", [result("c1", "c1 of look"), result("c2", "c2 of look")]),
        ]
        history = await wire.scene.history()
        assert well_paired(history)
        assert texts(history)[:4] == ["go", "hm", "let me look", "ProviderMetadata"]


async def test_a_call_id_of_an_earlier_turn_is_given_to_a_new_call_under_another_id() -> None:
    async with opened_wire([ROUND, ANSWER, ROUND, ANSWER], Worker()) as wire:
        await wire.scene.run()
        await wire.scene.run("again")
        ids = [item.id for item in await wire.scene.history() if isinstance(item, transcript.ToolCall)]
        assert len(set(ids)) == 4
        blocks = [block for _, content in wire.sent(3) for block in content if isinstance(block, dict)]
        assert [block["id"] for block in blocks if block["type"] == "tool_use"] == ids
        assert [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"] == ids


async def test_a_call_that_was_cut_off_is_never_run() -> None:
    cut = [
        began(),
        opened(0, "tool_use", id="c1", name="look", input={}),
        piece(0, "input_json", partial_json='{"path":"a","conte'),
        stopped("max_tokens"),
        OVER,
    ]
    look = Worker()
    async with opened_wire([cut, ANSWER], look) as wire:
        outcome = await wire.scene.run()
        assert (outcome.status, look.runs) == ("completed", 0)
        [called] = [item for item in await wire.scene.history() if isinstance(item, transcript.ToolCall)]
        assert called.arguments == '{"path":"a","conte'
        (_, [back]), (_, [told]) = wire.sent(1)[1:]
        assert back == used("c1", _raw='{"path":"a","conte')
        assert told["is_error"]
        assert "the output was cut" in told["content"][0]["text"]


async def test_a_history_of_another_dialect_is_sent_in_our_own_words() -> None:
    first = [
        chunk(reasoning_content="why"),
        chunk(content="let me look"),
        calls(fragment(0, "call.1", "look", '{"a":1}')),
        chunk("tool_calls"),
        "[DONE]",
    ]
    second = [chunk(content="seen"), chunk("stop"), "[DONE]"]
    async with opened_wire([first, second, ANSWER], Worker()) as wire:
        assert (await wire.scene.run(provider="chat")).text == "seen"
        assert (await wire.scene.run("and now")).text == "done"
        assert wire.sent(2) == [
            ("user", ["go"]),
            ("assistant", ["let me look", used("call_1", a=1)]),
            ("user", [result("call_1", "call.1 of look")]),
            ("assistant", ["seen"]),
            ("user", ["and now"]),
        ]


# -- cuts --------------------------------------------------------------------------------------------------------------


async def test_a_text_that_a_steer_cuts_is_sent_with_its_note_and_the_steer() -> None:
    partly = Reply(steps=[*Reply.sse(began(counted(5, 1)), *text(0, "so ", "far")[:-1]).steps, Stall()])
    async with opened_wire([partly, ANSWER]) as wire:
        turn_id = await wire.scene.start()
        await wire.scene.wait_text("so far")
        await wire.scene.steer(turn_id, "and this")
        outcome = await wire.scene.wait(turn_id)
        assert (outcome.status, outcome.usage) == ("completed", TOKEN(5, 1, 6) + TOKEN(10, 2, 12))
        assert wire.sent(1) == [("user", ["go"]), ("assistant", ["so far"]), ("user", [CUT_OFF, "and this"])]


async def test_a_stream_cut_after_any_frame_is_made_again_and_runs_no_call_of_the_first() -> None:
    for cut in range(1, len(ROUND) - 2):
        look = Worker()
        broken = Reply(steps=[*Reply.sse(*ROUND[:cut]).steps, Reset()])
        async with opened_wire([broken, ROUND, ANSWER], look) as wire:
            outcome = await wire.scene.run()
            assert (outcome.status, look.runs) == ("completed", 2)
            assert outcome.usage == TOKEN(20, 1, 21) + TOKEN(20, 9, 29) + TOKEN(10, 2, 12)
            # a text that was followed by a call is whole, and stays
            whole = [("assistant", ["let me look"])] if cut > ROUND.index(CALLS[0]) else []
            assert wire.sent(1) == [*wire.sent(0), *whole]
            assert well_paired(await wire.scene.history())


async def test_an_answer_that_is_held_to_a_schema_is_read() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with opened_wire([answer('{"n": 1}')]) as wire:
        outcome = await wire.scene.run(output_type=schema)
        assert outcome.output == {"n": 1}
        wanted = wire.server.requests[0].json["output_config"]["format"]
        assert wanted["type"] == "json_schema"
        assert wanted["schema"]["properties"] == {"n": {"type": "integer"}}
