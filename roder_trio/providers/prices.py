"""Public list prices, from the package genai-prices (the extra `prices`), as they were when tokens were used.

The package is imported when it is first needed, in a worker thread, and reads nothing but its own data. Nothing is
matched by likeness: a provider is one of `PROVIDERS`, a model is one that the package lists for that very provider, and
a service tier or a kind of tokens that it has no price for leaves all of it unknown. So does a package that is broken.
"""

import functools
import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING

import trio

from roder_trio.logic.cost import PLAIN_TIERS
from roder_trio.schema.usage import TokenUsage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider

log = logging.getLogger(__name__)

PACKAGE = "genai_prices"
PROVIDERS: Mapping[str, str] = {
    "openai": "openai",
    "chat": "openai",
    "anthropic": "anthropic",
    "gemini": "google",
    "openrouter": "openrouter",
    "groq": "groq",
    "deepseek": "deepseek",
    "mistral": "mistral",
    "xai": "x-ai",
    "together": "together",
    "fireworks": "fireworks",
    "cerebras": "cerebras",
}
"""The package's names of the catalog's providers."""
_APART = ("output_reasoning_mtok", "requests_kcount")
"""Prices of what isn't one of the buckets that tokens are counted in."""


@functools.cache
def _installed() -> bool:
    return find_spec(PACKAGE) is not None


def has_prices_of(provider: str) -> bool:
    """Say if the package is installed and may list this provider of the catalog."""
    return provider in PROVIDERS and _installed()


def is_loaded() -> bool:
    """Say if the package is imported with its data."""
    return f"{PACKAGE}.data" in sys.modules


async def load() -> None:
    """Import the package with its data, once. A cancel is heard after that."""
    if is_loaded():
        await trio.lowlevel.checkpoint()
        return
    await trio.to_thread.run_sync(_providers)


def charge(provider: str, model: str, usage: TokenUsage, at: datetime) -> Decimal | None:
    """Return what tokens cost at that time, in US dollars; None if that isn't known. Call it after `load`."""
    try:
        return _charge(provider, model, usage, at)
    except Exception:
        log.warning("the price of %s at %s could not be read from the public lists", model, provider, exc_info=True)
        return None


def _charge(provider: str, model: str, usage: TokenUsage, at: datetime) -> Decimal | None:
    listed = next((row for row in _providers() if row.id == PROVIDERS.get(provider)), None)
    info = None if listed is None else listed.find_model(model)
    if listed is None or info is None:
        return None
    context = _context(info, usage.service_tier, at)
    if context is None or not _has_all(info.get_prices(at, context), usage):
        return None
    from genai_prices import Usage  # noqa: PLC0415 - a cost was asked for

    counted = Usage(
        input_tokens=usage.prompt_tokens,
        cache_read_tokens=usage.cached_prompt_tokens,
        cache_write_tokens=usage.cache_creation_prompt_tokens,
        output_tokens=usage.completion_tokens,
    )
    price = info.calc_price(counted, listed, genai_request_timestamp=at, price_context=context)
    return price.total_price


@functools.cache
def _providers() -> "Sequence[Provider]":
    try:
        from genai_prices.data import providers  # noqa: PLC0415 - a cost was asked for
    except Exception:
        log.warning(
            "the public lists of prices can't be read; costs that only they could tell stay unknown", exc_info=True
        )
        return ()
    return providers


def _context(info: "ModelInfo", tier: str | None, at: datetime) -> dict[str, str] | None:
    """Return what selects the prices of a service tier; None if the model has none for it at that time."""
    wanted = {"service_tier": tier} if tier is not None else {}
    for variant in info.price_variants or ():
        if variant.when == wanted and (variant.constraint is None or variant.constraint.active(at)):
            return wanted
    return {} if tier in PLAIN_TIERS else None


def _has_all(price: "ModelPrice", usage: TokenUsage) -> bool:
    """Say if each bucket that holds tokens has a price of its own, and nothing else is charged."""
    cached, creation = usage.cached_prompt_tokens, usage.cache_creation_prompt_tokens
    asked = {
        "input_mtok": usage.prompt_tokens - cached - creation,
        "cache_read_mtok": cached,
        "cache_write_mtok": creation,
        "output_mtok": usage.completion_tokens,
    }
    known = all(getattr(price, name) is not None for name, count in asked.items() if count)
    return known and all(getattr(price, name) is None for name in _APART)
