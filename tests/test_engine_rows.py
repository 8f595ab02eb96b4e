"""What is known of models: rows of the host, of the user's file, of the shipped catalog; who hears of them."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from trio.testing import MockClock

import roder_trio as rt
from roder_trio import inference, providers
from roder_trio.inference import ModelDescriptor
from roder_trio.providers.catalog import Catalog
from roder_trio.runtime.engines import EngineRegistry
from roder_trio.schema.cost import Price
from tests.tool_support import Worker
from tests.turn_support import DONE, say

SERVER = "http://localhost:9/v1"
USER = """
[models.openai."gpt-4o"]
context_window = 64_000
[models.mine.small]
context_window = 1_000
supports = ["structured"]
price = { prompt = 1, completion = 2 }
[providers.mine]
dialect = "chat_completions"
default_model = "small"
aliases = ["ours"]
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    path = tmp_path / "models.toml"
    path.write_text(USER, encoding="utf-8")
    return Catalog.load(str(path))


def window(registry: EngineRegistry, provider: str, model: str) -> int | None:
    row = registry.facts[provider].models.get(model)
    return None if row is None else row.context_window


class Listener(providers.ScriptedEngine):
    """Remembers the rows that it is handed."""

    heard: Sequence[ModelDescriptor] | None = None

    def use_models(self, rows: Sequence[ModelDescriptor]) -> None:
        self.heard = rows


def test_an_engine_is_handed_the_runtimes_rows_under_its_own_id(catalog: Catalog) -> None:
    mine, ours, other = Listener(id="mine"), Listener(id="ours"), Listener(id="other")
    EngineRegistry([mine, providers.fallback(ours, Listener(id="openai")), other], catalog)
    assert mine.heard == catalog.models_of("mine")
    assert ours.heard is not None
    assert [(row.provider, row.id) for row in ours.heard] == [("ours", "small")]
    assert other.heard is None


def test_an_engine_over_http_goes_by_the_users_rows_unless_it_was_given_some(catalog: Catalog) -> None:
    engine = providers.ChatCompletions()
    shipped = {row.id: row for row in engine.known_models}
    assert shipped["gpt-4o"].context_window == 128_000
    registry = EngineRegistry([engine], catalog)
    known = {row.id: row for row in engine.known_models}
    assert known["gpt-4o"].context_window == window(registry, "openai", "gpt-4o") == 64_000
    assert {**known, "gpt-4o": shipped["gpt-4o"]} == shipped
    given = providers.ChatCompletions(models=[ModelDescriptor(provider="openai", id="m", context_window=5)])
    registry = EngineRegistry([given], catalog)
    assert [row.id for row in given.known_models] == ["m"]
    assert window(registry, "openai", "m") == 5
    assert window(registry, "openai", "gpt-4o") == 64_000


def test_a_server_with_a_name_of_its_own_keeps_the_rows_of_its_address(catalog: Catalog) -> None:
    engine = providers.ChatCompletions("work", base_url="https://api.openai.com/v1")
    registry = EngineRegistry([engine], catalog)
    assert {row.provider for row in engine.known_models} == {"work"}
    assert window(registry, "work", "gpt-4o") == 128_000


async def test_a_server_lists_its_models_with_the_users_facts(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    engine = providers.ChatCompletions()
    registry = EngineRegistry([engine], catalog)
    listed = await registry.list_models("openai")
    assert {row.id: row.context_window for row in listed}["gpt-4o"] == 64_000


def test_rows_of_an_engine_come_before_the_catalogs(catalog: Catalog) -> None:
    own = [ModelDescriptor(provider="mine", id="small", context_window=7), ModelDescriptor(provider="mine", id="big")]
    registry = EngineRegistry([providers.ScriptedEngine(id="mine", models=own)], catalog)
    rows = registry.facts["mine"].models
    assert (window(registry, "mine", "small"), window(registry, "mine", "big")) == (7, None)
    assert sorted(rows) == ["big", "small"]
    assert len(rows) == 2
    assert "gpt-4o" in rows
    assert "no-such-model" not in rows


def test_a_price_is_that_of_the_engines_row_else_of_the_catalogs_row_of_exactly_this_model(catalog: Catalog) -> None:
    own = ModelDescriptor(provider="one", id="m", price=Price({"prompt": 3}))
    registry = EngineRegistry(
        [providers.ScriptedEngine(id="one", models=[own]), providers.ScriptedEngine(id="ours")], catalog
    )
    assert registry.price("one", "m") == own.price
    assert registry.price("ours", "small") == Price({"prompt": Decimal(1), "completion": Decimal(2)})
    assert registry.price("one", "small") is None
    assert registry.price("nobody", "m") is None


async def test_a_model_that_takes_no_tools_is_offered_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    path = tmp_path / "models.toml"
    path.write_text(USER, encoding="utf-8")
    boundary = {"type": "compaction", "id": "a", "encrypted_content": "sealed"}
    compacted = inference.ProviderMetadata({"output": [boundary], "compacted_input": [boundary]})
    engine = providers.ScriptedEngine([[say("hi"), DONE]] * 2, id="mine", compact=[[compacted, DONE]])
    config = rt.RuntimeConfig(catalog=str(path))
    async with rt.open_runtime(engines=[engine], tools=[Worker()], config=config) as runtime:
        thread = await runtime.create_thread()
        await runtime.run_turn(thread.thread_id, "go", model="small")
        await runtime.update_thread(thread.thread_id, model="small")
        await runtime.compact_thread(thread.thread_id)
        await runtime.run_turn(thread.thread_id, "go", model="unknown")
    assert [bool(request.tools) for request in engine.requests] == [False, True]
    assert [bool(request.tools) for request in engine.compact_requests] == [False]
