"""LangGraph as a contestant: a graph of one node that calls a fake chat model, with its SQLite saver.

A graph may store its state after each step or once, at the end of a run; each way is a contestant.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from bench.contestant import ANSWER, MODEL, QUESTION, Contestant, file_bytes, new_database

USAGE = {"input_tokens": 20, "output_tokens": 4, "total_tokens": 24}


class _Instant(FakeListChatModel):
    """The fake model, without the worker thread that its answer would take on an event loop."""

    async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(ANSWER, usage_metadata=USAGE))])


def _graph(model: Any, saver: Any = None) -> Any:
    async def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("call", call)
    graph.add_edge(START, "call")
    graph.add_edge("call", END)
    return graph.compile(checkpointer=saver)


class LangGraph(Contestant):
    """A graph that stores each step while the next one runs, which is its default."""

    name = "langgraph"
    durability = "power, each step"
    interrupt = "a cancelled run stores neither the text that was shown nor its usage"
    mode = "async"

    def turns(self, count: int) -> list[float]:
        """As of a contestant."""
        return asyncio.run(_turns(_graph(_Instant(responses=[ANSWER])), count))

    def stored_turns(self, count: int, folder: Path) -> list[float]:
        """As of a contestant."""
        return asyncio.run(_stored(self.mode, count, new_database(folder)))

    def thread(self, turns: int, folder: Path) -> tuple[list[float], int]:
        """As of a contestant."""
        path = new_database(folder)
        times = asyncio.run(_stored(self.mode, turns, path, one_thread=True))
        return times, file_bytes(path)

    def first_deltas(self, base_url: str, count: int) -> list[float]:
        """As of a contestant."""
        return asyncio.run(_first_deltas(base_url, count))


class LangGraphExit(LangGraph):
    """A graph that stores its state once, at the end of each run."""

    name = "langgraph, stored at exit"
    durability = "power, at the end of a turn only"
    mode = "exit"


async def _timed_turn(graph: Any, **options: Any) -> float:
    began = time.perf_counter()
    state = await graph.ainvoke({"messages": [("user", QUESTION)]}, **options)
    spent = time.perf_counter() - began
    assert state["messages"][-1].content == ANSWER, state
    return spent


async def _turns(graph: Any, count: int) -> list[float]:
    return [await _timed_turn(graph) for _ in range(count + 1)][1:]


async def _stored(mode: str, count: int, path: Path, *, one_thread: bool = False) -> list[float]:
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        await saver.setup()
        graph, times = _graph(_Instant(responses=[ANSWER]), saver), []
        for number in range(count + (not one_thread)):
            config = {"configurable": {"thread_id": "thread" if one_thread else f"thread-{number}"}}
            times.append(await _timed_turn(graph, config=config, durability=mode))
    return times if one_thread else times[1:]


async def _first_deltas(base_url: str, count: int) -> list[float]:
    async with httpx.AsyncClient() as client:  # its own one would be shared with the event loops before
        model = ChatOpenAI(model=MODEL, base_url=base_url, api_key="none", streaming=True, http_async_client=client)
        graph, times = _graph(model), []
        for _ in range(count + 1):
            began, first = time.perf_counter(), 0.0
            async for message, _ in graph.astream({"messages": [("user", QUESTION)]}, stream_mode="messages"):
                if message.content:
                    first = first or time.perf_counter()
            times.append(first - began)
    return times[1:]
