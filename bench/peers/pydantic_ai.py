"""Pydantic AI as a contestant: an agent with its test model. It ships a conversation store in memory alone."""

import asyncio
import time

import pydantic_ai
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider

from bench.contestant import ANSWER, MODEL, QUESTION, Contestant


class PydanticAI(Contestant):
    """An agent, run without a store."""

    name = "pydantic-ai"
    interrupt = "a cancelled run stores nothing: it ships no durable store"

    def turns(self, count: int) -> list[float]:
        """As of a contestant."""
        return asyncio.run(_turns(count))

    def first_deltas(self, base_url: str, count: int) -> list[float]:
        """As of a contestant."""
        return asyncio.run(_first_deltas(base_url, count))


async def _turns(count: int) -> list[float]:
    agent, times = pydantic_ai.Agent(TestModel(custom_output_text=ANSWER)), []
    for _ in range(count + 1):
        began = time.perf_counter()
        result = await agent.run(QUESTION)
        times.append(time.perf_counter() - began)
        assert result.output == ANSWER, result
    return times[1:]


async def _first_deltas(base_url: str, count: int) -> list[float]:
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base_url, api_key="none"))
    agent, times = pydantic_ai.Agent(model), []
    for _ in range(count + 1):
        began, first = time.perf_counter(), 0.0
        async with agent.run_stream(QUESTION) as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                first = first or time.perf_counter()
        times.append(first - began)
    return times[1:]
