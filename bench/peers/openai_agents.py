"""The OpenAI Agents SDK as a contestant: a model that answers at once, and either of its SQLite sessions."""

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agents
from agents.extensions.memory import AsyncSQLiteSession
from agents.testing.model import assistant_message
from openai import AsyncOpenAI

from bench.contestant import ANSWER, MODEL, QUESTION, Contestant, file_bytes, new_database

agents.set_tracing_disabled(True)

NewSession = Callable[[str, Path], Any]


class _Instant(agents.Model):
    """Answers at once and records nothing; the scripted model of the SDK copies each request."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    async def get_response(self, *args: Any, **options: Any) -> agents.ModelResponse:
        message = assistant_message(ANSWER, item_id=f"message-{next(self._numbers)}")
        usage = agents.Usage(requests=1, input_tokens=20, output_tokens=4, total_tokens=24)
        return agents.ModelResponse(output=[message], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError("turns of this model are not streamed")


class OpenAIAgents(Contestant):
    """An agent with the session that runs SQLite in worker threads."""

    name = "openai-agents"
    durability = "power, both writes of a turn"
    interrupt = "a cancelled run stores neither the text that was shown nor its usage"

    @staticmethod
    def new_session(name: str, path: Path) -> Any:
        """A session of the SDK."""
        return agents.SQLiteSession(name, path)

    def turns(self, count: int) -> list[float]:
        """As of a contestant."""
        return asyncio.run(_turns(count))

    def stored_turns(self, count: int, folder: Path) -> list[float]:
        """As of a contestant."""
        return asyncio.run(_stored_turns(self.new_session, count, new_database(folder)))

    def thread(self, turns: int, folder: Path) -> tuple[list[float], int]:
        """As of a contestant."""
        path = new_database(folder)
        times = asyncio.run(_thread(self.new_session, turns, path))
        return times, file_bytes(path)

    def first_deltas(self, base_url: str, count: int) -> list[float]:
        """As of a contestant."""
        return asyncio.run(_first_deltas(base_url, count))


class OpenAIAgentsAsync(OpenAIAgents):
    """An agent with the session on aiosqlite."""

    name = "openai-agents, aiosqlite"

    @staticmethod
    def new_session(name: str, path: Path) -> Any:
        """A session of the SDK."""
        return AsyncSQLiteSession(name, path)


async def _turns(count: int) -> list[float]:
    agent = agents.Agent(name="bench", model=_Instant())
    return [await _timed_turn(agent, None) for _ in range(count + 1)][1:]


async def _timed_turn(agent: agents.Agent[Any], session: Any) -> float:
    began = time.perf_counter()
    result = await agents.Runner.run(agent, QUESTION, session=session)
    spent = time.perf_counter() - began
    assert result.final_output == ANSWER, result
    return spent


async def _stored_turns(new_session: NewSession, count: int, path: Path) -> list[float]:
    agent, times = agents.Agent(name="bench", model=_Instant()), []
    for number in range(count + 1):
        began = time.perf_counter()
        session = new_session(f"thread-{number}", path)
        await _timed_turn(agent, session)
        times.append(time.perf_counter() - began)
        await _close(session)
    return times[1:]


async def _thread(new_session: NewSession, turns: int, path: Path) -> list[float]:
    agent = agents.Agent(name="bench", model=_Instant())
    session = new_session("thread", path)
    times = [await _timed_turn(agent, session) for _ in range(turns)]
    await _close(session)
    return times


async def _close(session: Any) -> None:
    closing = session.close()
    if closing is not None:
        await closing


async def _first_deltas(base_url: str, count: int) -> list[float]:
    client = AsyncOpenAI(base_url=base_url, api_key="none")
    model = agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
    agent, times = agents.Agent(name="bench", model=model), []
    for _ in range(count + 1):
        began, first = time.perf_counter(), 0.0
        result = agents.Runner.run_streamed(agent, QUESTION)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                first = first or time.perf_counter()
        times.append(first - began)
    await client.close()
    return times[1:]
