"""Models and money on the command line: what can be asked for, and what it cost."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import roder_trio as rt
from roder_trio import goals, inference, providers, stores
from roder_trio.cli.cost import cost_of_goal, costs_of, told_cost
from roder_trio.cli.models import model_cells
from roder_trio.inference import ModelDescriptor
from roder_trio.testing import FakeProviderServer
from roder_trio.testing.server import Reply
from tests.dialects import DIALECTS, Dialect
from tests.loopback import STREAM, delta, ending, serving
from tests.test_cli import Capture, call, thread_of
from tests.turn_support import DONE, say, settings

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own store, and an environment without any key."""
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("RODER_TRIO_PROVIDER", "offline")
    monkeypatch.setenv("RODER_TRIO_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


def listing(*rows: dict[str, Any]) -> list[bytes]:
    body = json.dumps({"data": rows}).encode()
    return [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body), body]


async def test_models_of_a_server_are_listed(capsys: Capture) -> None:
    async with serving(listing({"id": "big/model", "context_length": 9_000, "name": "Big"}, {"id": "m"})) as server:
        assert await call("models", "list", "--base-url", server.base_url) == 0
    out, err = capsys.readouterr()
    heading, big, small = out.splitlines()
    assert heading.split() == ["model", "window", "output", "reasoning", "name"]
    assert big.split() == ["big/model", "9000", "Big"]
    assert small.split() == ["m"]
    assert err == "custom: named by the flags\n"


@pytest.mark.parametrize(
    ("provider", "model"),
    [("anthropic", "claude-sonnet-5-5"), ("gemini", "gemini-2.5-flash"), ("openai", "gpt-5"), ("chat", "gpt-5-mini")],
)
async def test_without_a_key_the_known_models_are_listed(capsys: Capture, provider: str, model: str) -> None:
    assert await call("models", "list", "--provider", provider) == 0
    assert model in [line.split()[0] for line in capsys.readouterr().out.splitlines()]


async def test_the_one_who_would_answer_is_the_one_whose_models_are_listed(capsys: Capture) -> None:
    assert await call("models", "list") == 0
    out, err = capsys.readouterr()
    assert "offline" in out
    assert err == "offline: named by RODER_TRIO_PROVIDER\n"
    assert await call("models", "list", "--provider", "nobody") == 2
    assert "there is no provider 'nobody'" in capsys.readouterr().err


def test_hidden_models_are_not_listed() -> None:
    rows = [
        ModelDescriptor(provider="p", id="seen", max_output_tokens=5),
        ModelDescriptor(provider="p", id="h", hidden=True),
    ]
    assert list(model_cells(rows)) == [("seen", "", "5", "", "")]


PROVIDERS = {"chat_completions": "chat", "openai_responses": "openai", "anthropic": "anthropic", "gemini": "gemini"}


@pytest.mark.parametrize("dialect", DIALECTS, ids=PROVIDERS.values())
async def test_a_turn_is_asked_of_the_provider_that_is_named(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, dialect: Dialect
) -> None:
    monkeypatch.setenv("ACME_KEY", "acme-hidden-key")
    async with FakeProviderServer([Reply(steps=[dialect.sse(dialect.text("Yes."))])]).open() as server:
        flags = ("--provider", PROVIDERS[dialect.name], "--base-url", server.url + dialect.base)
        assert await call("run", "hello", *flags, "--api-key-env", "ACME_KEY") == 0
    out, err = capsys.readouterr()
    assert out == "Yes.\n"
    assert "usage: 30 prompt + 3 completion = 33 tokens, $0.0000" in err
    assert server.requests[0].path.endswith(dialect.path)
    assert "acme-hidden-key" in server.requests[0].headers[dialect.key_header]
    assert "acme-hidden-key" not in err


async def test_what_is_known_of_a_cost_is_told_with_the_usage(capsys: Capture) -> None:
    assert await call("run", "hello") == 0
    err = capsys.readouterr().err
    assert "tokens, $0.00; the thread: " in err
    thread = thread_of(err)
    assert await call("threads", "show", thread) == 0
    assert "tokens, $0.00]" in capsys.readouterr().out
    assert await call("threads", "list", "--cost") == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split()[-1] == "cost"
    assert row.split()[-1] == "$0.00"
    async with serving([STREAM, delta("One."), ending(10, 2)]) as server:
        flags = ("--base-url", server.base_url, "--model", "m", "--thread", thread)
        assert await call("run", "again", *flags) == 0
    assert "usage: 10 prompt + 2 completion = 12 tokens, at least $0.00; the thread: " in capsys.readouterr().err
    assert await call("threads", "list", "--cost") == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("  at least $0.00")


async def test_a_thread_of_which_a_part_has_no_price_costs_at_least_the_rest() -> None:
    usage = rt.TokenUsage(1_000_000, 0, 1_000_000)
    told = inference.ProviderMetadata({"usage": {"cost": 1.5}})
    steps = [[inference.Usage(usage), say("hi"), told, DONE], [inference.Usage(usage), say("hi"), DONE]]
    async with rt.open_runtime(engines=[providers.ScriptedEngine(steps)], store=stores.MemoryThreadStore()) as runtime:
        thread = await runtime.create_thread()
        first = await runtime.run_turn(thread.thread_id, "go")
        second = await runtime.run_turn(thread.thread_id, "go")
        snapshot = await runtime.load_thread(thread.thread_id)
        assert snapshot is not None
        costs = await costs_of(snapshot)
        assert costs.whole == rt.Cost(None, Decimal("1.5"))
        assert costs.turns[first.turn_id] == rt.Cost(Decimal("1.5"), Decimal("1.5"))
        assert costs.turns[second.turn_id] == rt.Cost(None, Decimal(0))
        assert await told_cost(runtime, thread.thread_id) == "at least $1.50"
        assert await told_cost(runtime, "gone") == ""


async def test_a_goal_costs_what_was_charged_to_it() -> None:
    told = inference.ProviderMetadata({"usage": {"cost": 1.5}})
    step = [inference.Usage(rt.TokenUsage(5, 0, 5)), say("hi"), told, DONE]
    engine = providers.ScriptedEngine([step, step])
    async with rt.open_runtime(engines=[engine], store=stores.MemoryThreadStore(), config=settings()) as runtime:
        thread = (await runtime.create_thread()).thread_id
        await runtime.run_turn(thread, "go")
        goal = await runtime.thread_goal_set(thread, goals.GoalPatch(objective="prove it"))
        await runtime.run_turn(thread, "go")
        snapshot = await runtime.load_thread(thread)
        assert snapshot is not None
        assert goal is not None
        assert (await costs_of(snapshot)).whole.usd == 3
        assert (await cost_of_goal(snapshot, goal.goal_id)).usd == Decimal("1.5")
        assert await runtime.thread_cost(thread, goal=True) == await cost_of_goal(snapshot, goal.goal_id)
