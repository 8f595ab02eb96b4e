"""Public list prices: what is listed for exactly this provider and model, tier and moment, and nothing else."""

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest
import trio

import roder_trio as rt
from roder_trio.providers import prices
from roder_trio.providers.catalog import Catalog

genai_prices = pytest.importorskip("genai_prices", reason="needs the extra 'prices'")

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
MILLION = 1_000_000


def usage(prompt: int = 0, completion: int = 0, *parts: int, tier: str | None = None) -> rt.TokenUsage:
    return rt.TokenUsage(prompt, completion, prompt + completion, *parts, service_tier=tier)


def charge(provider: str, model: str, counted: rt.TokenUsage, at: datetime = AT) -> Decimal | None:
    return prices.charge(provider, model, counted, at)


def test_every_provider_with_a_public_list_is_one_of_the_catalog_and_of_the_package() -> None:
    listed = {provider.id for provider in prices._providers()}
    assert set(prices.PROVIDERS.values()) <= listed
    assert all(prices.has_prices_of(id) for id in prices.PROVIDERS)
    assert set(prices.PROVIDERS) <= {row.id for row in Catalog.load().providers}


def test_a_listed_model_costs_what_the_package_says() -> None:
    counted = usage(20_000, 1_000, 8_000)
    given = genai_prices.Usage(input_tokens=20_000, cache_read_tokens=8_000, output_tokens=1_000)
    expected = genai_prices.calc_price(given, "gpt-5-mini", provider_id="openai", genai_request_timestamp=AT)
    assert charge("openai", "gpt-5-mini", counted) == expected.total_price > 0
    assert charge("anthropic", "claude-sonnet-4-5", usage(10, 10, 2, 2)) is not None
    assert charge("gemini", "gemini-2.5-pro", usage(10, 10, 2)) is not None


def test_a_large_prompt_has_the_price_of_its_size() -> None:
    small = charge("gemini", "gemini-2.5-pro", usage(100_000))
    large = charge("gemini", "gemini-2.5-pro", usage(400_000))
    assert small is not None
    assert large is not None
    assert large > 4 * small


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "no-such-model"),
        ("nobody", "gpt-5-mini"),
        ("my-openai-proxy", "gpt-5-mini"),
        ("ollama", "llama3"),
        ("openai", "claude-sonnet-4-5"),
    ],
)
def test_nothing_is_matched_by_likeness(provider: str, model: str) -> None:
    assert charge(provider, model, usage(10, 1)) is None


def test_a_tier_without_a_price_of_its_own_is_unknown() -> None:
    plain = charge("openai", "gpt-5-mini", usage(MILLION))
    flex = charge("openai", "gpt-5-mini", usage(MILLION, tier="flex"))
    assert plain == charge("openai", "gpt-5-mini", usage(MILLION, tier="default"))
    assert plain is not None
    assert flex is not None
    assert flex < plain
    assert charge("openai", "gpt-5-mini", usage(MILLION, tier="flex"), datetime(2025, 9, 1, tzinfo=UTC)) is None
    assert charge("openai", "gpt-5-mini", usage(MILLION, tier="scale")) is None
    assert charge("anthropic", "claude-sonnet-4-5", usage(10, tier="standard")) is not None
    assert charge("anthropic", "claude-sonnet-4-5", usage(10, tier="priority")) is None


def test_tokens_that_the_list_has_no_price_for_leave_all_of_it_unknown() -> None:
    assert charge("openai", "gpt-5-mini", usage(10)) is not None
    assert charge("openai", "gpt-5-mini", usage(10, 0, 0, 5)) is None


def test_a_model_that_charges_for_more_than_tokens_is_unknown() -> None:
    (listed,) = [row for row in prices._providers() if row.id == "perplexity"]
    (model,) = [row for row in listed.models if row.id == "sonar"]
    assert not prices._has_all(model.get_prices(AT), usage(10, 1))


def test_the_price_is_that_of_the_moment() -> None:
    by_night = datetime(2026, 11, 1, 20, tzinfo=UTC)
    counted = usage(MILLION)
    assert charge("deepseek", "deepseek-chat", counted) != charge("deepseek", "deepseek-chat", counted, by_night)


async def test_loading_takes_a_worker_thread_once() -> None:
    await prices.load()
    with trio.CancelScope() as scope:
        scope.cancel()
        await prices.load()
    assert scope.cancelled_caught


def test_the_package_is_not_imported_before_a_cost_is_asked() -> None:
    script = (
        "import sys, trio, roder_trio.providers.prices as prices\n"
        "import roder_trio.runtime\n"
        "assert prices.has_prices_of('openai') and 'genai_prices' not in sys.modules\n"
        "trio.run(prices.load)\n"
        "assert 'genai_prices.data' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_a_package_that_is_broken_knows_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    prices._providers.cache_clear()
    monkeypatch.setitem(sys.modules, "genai_prices.data", None)
    try:
        assert charge("openai", "gpt-5-mini", usage(10)) is None
    finally:
        prices._providers.cache_clear()


def test_a_list_that_is_not_what_it_was_knows_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "_context", lambda info, tier, at: info.no_such_field)
    assert charge("openai", "gpt-5-mini", usage(10)) is None


def test_without_the_package_nobody_has_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    prices._installed.cache_clear()
    monkeypatch.setattr(prices, "find_spec", lambda name: None)
    try:
        assert not prices.has_prices_of("openai")
    finally:
        prices._installed.cache_clear()
