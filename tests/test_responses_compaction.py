"""Whole turns with a Responses server: compaction at its endpoint and inside an answer, steers, freeform tools."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import roder_trio as rt
from roder_trio import events, providers, stores
from roder_trio.logic.pairing import CUT_OFF
from roder_trio.providers._http import SharedClient
from roder_trio.schema.inference import Completed
from roder_trio.testing import FakeProviderServer
from roder_trio.testing.server import Reply, Reset
from tests.chat import sse, told
from tests.responses import (
    added,
    boundary,
    custom,
    decode_compaction,
    done,
    ended,
    given,
    message,
    said,
    text,
    usage,
)
from tests.test_loopback_turns import Wire
from tests.turn_support import Scene, settings

# -- the answer of a compaction


def test_a_compaction_gives_its_usage_its_output_unchanged_and_the_end() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    output = [{"type": "message", "role": "user", "content": [image]}, boundary()]
    answer = {"id": "c1", "object": "response.compaction", "output": output, "usage": usage(30, 10, 40)}
    expected = [
        told(30, 10, 40),
        {
            "dialect": "openai_responses",
            "provider": "acme",
            "base_url": "http://localhost/v1",
            "model": "m",
            "output": output,
            "compacted_input": output,
        },
        Completed(None, "c1"),
    ]
    for body, kind in ((json.dumps(answer).encode(), "application/json"), (sse(answer), "text/event-stream")):
        events, failure = decode_compaction(body, kind)
        assert failure is None
        assert [events[0], events[1].payload, events[2]] == expected
    twice, _ = decode_compaction(sse(answer, answer), "text/event-stream")
    assert len(twice) == 3


def test_a_compaction_may_fail_inside_its_answer() -> None:
    body = json.dumps({"error": {"code": "server_error"}, "usage": usage(1, 0, 1)}).encode()
    events, failure = decode_compaction(body)
    assert (events, failure and failure.kind.name) == ([told(1, 0, 1)], "SERVER_OVERLOADED")
    for data, kind in (("7", "STREAM_INTERRUPTED"), ("{odd", "PROTOCOL")):
        events, failure = decode_compaction(sse(data, data), "text/event-stream")
        assert (events, failure and failure.kind.name) == ([], kind)


# -- with a runtime over a real server

LIMIT = 500
LONG = "w" * 4_000
KEPT = [given("long ago"), boundary()]
IN_BAND: dict[str, Any] = {"auto_compact_token_limit": None}
JSON = {"Content-Type": "application/json"}
TOKEN = rt.TokenUsage
ROW = '[models.acme."m"]\ncontext_window = 100_000\nsupports = ["compaction", "tools"]\n'


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    """A file that says of the model that its server compacts."""
    path = tmp_path / "catalog.toml"
    path.write_text(ROW)
    return str(path)


@asynccontextmanager
async def opened(
    *replies: Reply, store: rt.ThreadStore | None = None, tools: list[rt.Tool] | None = None, **config: Any
) -> AsyncIterator[Wire]:
    config.setdefault("auto_compact_token_limit", LIMIT)
    options = settings(provider_retry_initial_backoff=0.0, default_model="m", **config)
    async with FakeProviderServer(replies).open() as server, SharedClient() as client:
        engine = providers.OpenAIResponses("acme", base_url=f"{server.url}/v1")
        with trio.fail_after(30):
            async with rt.open_runtime(
                engines=[engine], store=store, http=client, config=options, tools=tools or []
            ) as runtime:
                thread = await runtime.create_thread()
                async with runtime.subscribe_events(thread_id=thread.thread_id) as subscription:
                    yield Wire(server, client, Scene(runtime, engine, thread.thread_id, subscription))


def answer(text: str, *before: dict[str, Any], **fields: Any) -> Reply:
    return Reply.sse(ended(*before, message(text), usage=usage(20, 2, 22), **fields))


def compacted(*output: Any) -> Reply:
    body = {"id": "c1", "output": list(output), "usage": usage(30, 10, 40)}
    return Reply(headers=JSON, steps=[json.dumps(body).encode()])


def refused(status: int) -> Reply:
    return Reply(status=status, headers=JSON, steps=[b'{"detail": "no such thing"}'])


def inputs(wire: Wire) -> list[Any]:
    return [sent.json["input"] for sent in wire.server.requests]


async def test_a_thread_is_compacted_by_its_server_and_goes_on_from_what_that_gave() -> None:
    async with opened(answer(LONG), compacted(*KEPT), answer("short"), answer("again")) as wire:
        scene = wire.scene
        await scene.run("first")
        outcome = await scene.run("second")
        assert (outcome.text, outcome.usage) == ("short", TOKEN(30, 10, 40) + TOKEN(20, 2, 22))
        assert [sent.path for sent in wire.server.requests] == [
            "/v1/responses",
            "/v1/responses/compact",
            "/v1/responses",
        ]
        first, compaction, second = inputs(wire)
        assert first == [given("first")]
        assert compaction == [given("first"), message(LONG), given("second")]
        # the message that the turn is about is said again, since the boundary doesn't hold it
        assert second == [*KEPT, given("second")]
        [recorded] = scene.of(events.ContextCompactionRecorded)
        assert recorded.strategy == "native"
        await scene.run("third")
        assert inputs(wire)[3] == [*KEPT, given("second"), message("short"), given("third")]


async def test_where_the_server_has_no_such_endpoint_the_turn_goes_on_by_other_means() -> None:
    async with opened(answer(LONG), refused(404), answer("short"), answer("short")) as wire:
        await wire.scene.run("first")
        outcome = await wire.scene.run("second")
        assert (outcome.status, outcome.text) == ("completed", "short")
        paths = [sent.path for sent in wire.server.requests]
        assert (paths[1], paths.count("/v1/responses/compact")) == ("/v1/responses/compact", 1)
        recorded = wire.scene.of(events.ContextCompactionRecorded)
        assert "native" not in [event.strategy for event in recorded]


async def test_a_stream_cut_right_after_its_boundary_keeps_it_and_the_next_request_starts_with_it(catalog: str) -> None:
    told = [added({"type": "compaction", "id": "cmp_1"}), done(boundary())]
    cut = Reply(steps=[*map(sse, told), Reset()])
    async with opened(answer("a"), cut, answer("short"), **IN_BAND, catalog=catalog) as wire:
        await wire.scene.run("first")
        outcome = await wire.scene.run("second")
        assert (outcome.status, outcome.text, outcome.usage) == ("completed", "short", TOKEN(20, 2, 22))
        assert [sent.path for sent in wire.server.requests] == ["/v1/responses"] * 3
        assert wire.server.requests[1].json["context_management"] == [
            {"type": "compaction", "compact_threshold": 90_000}
        ]
        assert inputs(wire)[1:] == [[given("first"), message("a"), given("second")], [boundary(), given("second")]]
        [recorded] = wire.scene.of(events.ContextCompactionRecorded)
        assert recorded.strategy == "in_band"
        boundaries = [item for item in await wire.scene.history() if rt.compaction.is_boundary(item)]
        assert [item.payload["output"] for item in boundaries] == [[boundary()]]


@pytest.mark.parametrize("place", [0, 1])
async def test_a_boundary_inside_an_answer_heads_all_later_requests_also_after_a_restart(
    place: int, catalog: str
) -> None:
    parts = [message("said", phase=None)]
    parts.insert(place, boundary())
    told = [done(part, at) for at, part in enumerate(parts)]
    store = stores.MemoryThreadStore()
    async with opened(
        Reply.sse(*told, ended(*parts)),
        answer("b"),
        **IN_BAND,
        catalog=catalog,
        store=store,
    ) as wire:
        assert (await wire.scene.run("first")).text == "said"
        await wire.scene.run("second")
        after = [given("first"), *parts[1:]] if place == 0 else [given("first")]
        expected = [boundary(), *after, given("second")]
        assert inputs(wire)[1] == expected
        thread_id = wire.scene.id
    async with opened(answer("c"), **IN_BAND, catalog=catalog, store=store) as wire:
        await wire.scene.runtime.run_turn(thread_id, "third")
        assert inputs(wire)[0] == [*expected, message("b"), given("third")]


async def test_a_steer_in_mid_text_is_sent_behind_what_was_said_and_the_note() -> None:
    spoken = Reply(steps=[sse(text("so f"))], keep_open=True)
    async with opened(spoken, answer("well"), **IN_BAND) as wire:
        turn_id = await wire.scene.start("ask")
        await wire.scene.wait_text("so f")
        await wire.scene.steer(turn_id, "rather this")
        await wire.scene.wait(turn_id)
        assert inputs(wire)[1] == [given("ask"), said("so f"), given(CUT_OFF), given("rather this")]


class Patch(rt.Tool):
    """A freeform tool that notes what it is given."""

    spec = rt.ToolSpec(
        name="patch",
        description="Applies a patch.",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        effects={"read"},
        freeform_field="text",
    )

    def __init__(self) -> None:
        self.given: list[Any] = []

    async def run(self, context: rt.ToolContext, arguments: Any) -> rt.ToolOutput:
        await trio.lowlevel.checkpoint()
        self.given.append(arguments)
        return rt.ToolOutput("applied")


async def test_a_freeform_tool_is_run_with_its_text_and_answers_in_kind() -> None:
    asked = custom("ctc_1", "call_1", "patch", "*** patch", status="completed")
    patch = Patch()
    async with opened(Reply.sse(done(asked), ended(asked)), answer("done"), **IN_BAND, tools=[patch]) as wire:
        assert (await wire.scene.run("ask")).text == "done"
        assert patch.given == [{"text": "*** patch"}]
        [tool] = wire.server.requests[0].json["tools"]
        assert tool == {"type": "custom", "name": "patch", "description": "Applies a patch."}
        output = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "applied"}
        assert inputs(wire)[1] == [given("ask"), asked, output]
