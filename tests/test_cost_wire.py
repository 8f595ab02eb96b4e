"""Costs of whole turns over real sockets: what a server says that it charges, and models that it ran inside."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import trio

import roder_trio as rt
from roder_trio import providers, stores
from roder_trio.providers.chat_completions import decode
from roder_trio.testing import FakeProviderServer
from roder_trio.testing.server import Reply
from tests.anthropic_support import OVER, began, stopped, text
from tests.chat import chunk

PRICES = """
[models.acme.m]
price = { prompt = 3, cached = 0.3, creation = 3.75, completion = 15 }
[models.acme.large]
price = { prompt = 5, completion = 25 }
"""
CACHED = {"cache_read_input_tokens": 9_000, "cache_creation_input_tokens": 0}
ITERATIONS = [
    {"type": "compaction", "input_tokens": 50, "output_tokens": 40, **CACHED},
    {"type": "message", "model": "m-2026-11-01", "input_tokens": 70, "output_tokens": 6, "cache_read_input_tokens": 0},
    {"type": "advisor_message", "model": "large", "input_tokens": 5, "output_tokens": 1},
]
ADVISED = [
    began({"input_tokens": 50, "output_tokens": 2, **CACHED}),
    *text(0, "done"),
    stopped(
        "end_turn",
        {"input_tokens": 70, "output_tokens": 6, "cache_read_input_tokens": 0, "iterations": ITERATIONS},
    ),
    OVER,
]
CHARGED = [
    chunk(content="done"),
    chunk("stop"),
    {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10, "cost": 0.00125}},
    "[DONE]",
]


@pytest.mark.parametrize(
    ("kind", "frames", "expected"),
    [
        (providers.ChatCompletions, CHARGED, Decimal("0.00125")),
        (
            providers.Anthropic,
            ADVISED,
            (120 * 3 + 9_000 * Decimal("0.3") + 46 * 15 + 5 * 5 + 1 * 25) / 1_000_000,
        ),
    ],
)
async def test_a_turn_costs_what_the_wire_tells_live_and_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, frames: list[Any], expected: Decimal
) -> None:
    monkeypatch.setattr(decode, "AFTER_FINISH", 60.0)  # a slow machine has time to tell the cost
    path, store = tmp_path / "models.toml", stores.MemoryThreadStore()
    path.write_text(PRICES, encoding="utf-8")
    config = rt.RuntimeConfig(catalog=str(path), default_model="m")
    async with FakeProviderServer([Reply.sse(*frames)]).open() as server:
        engine = kind("acme", base_url=f"{server.url}/v1" if kind is providers.ChatCompletions else server.url)
        with trio.fail_after(30):
            async with rt.open_runtime(engines=[engine], store=store, config=config) as runtime:
                thread = await runtime.create_thread()
                outcome = await runtime.run_turn(thread.thread_id, "go")
    assert (outcome.status, outcome.cost, outcome.known_cost) == ("completed", expected, expected)
    async with rt.open_runtime(store=store, config=config) as runtime:
        assert await runtime.wait_turn(thread.thread_id, outcome.turn_id) == outcome
        assert await runtime.thread_cost(thread.thread_id) == rt.Cost(expected, expected)
