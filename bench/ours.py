"""roder_trio as a contestant, and the engines that its workloads are measured with."""

import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

import roder_trio as rt
from bench.contestant import ANSWER, MODEL, QUESTION, Contestant, file_bytes, new_database
from roder_trio import inference, items, providers, stores

REPLY = (
    inference.Usage(rt.TokenUsage(20, 4, 24)),
    inference.MessageDelta(ANSWER),
    inference.Completed("stop"),
)
CONFIG = rt.RuntimeConfig(default_model=MODEL)


class BenchEngine(rt.InferenceEngine):
    """Gives the events that `answer` makes for each request, without recording anything; then it ends, or hangs.

    An event costs a checkpoint only if `yields`: a real engine has many events in a piece of the body.
    """

    id = "bench"
    capabilities = rt.InferenceCapabilities.agent()

    def __init__(
        self, answer: Callable[[], Iterable[Any]] = lambda: REPLY, *, hangs: bool = False, yields: bool = True
    ) -> None:
        self.active = 0
        self.began = 0.0
        """When the latest request came."""
        self.entered = trio.Event()
        self._answer = answer
        self._hangs = hangs
        self._yields = yields

    def stream_turn(self, context: Any, request: Any) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Answer a request."""
        self.began = time.perf_counter()
        return self._stream()

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[AsyncIterator[Any]]:
        self.active += 1
        await trio.lowlevel.checkpoint()
        try:
            yield _Stream(iter(self._answer()), self)
        finally:
            self.active -= 1

    async def end(self) -> None:
        """What follows the last event."""
        if self._hangs:
            self.entered.set()
            await trio.sleep_forever()
        raise StopAsyncIteration

    async def pause(self) -> None:
        """What comes before an event."""
        if self._yields:
            await trio.lowlevel.checkpoint()


class _Stream:
    def __init__(self, events: Iterator[Any], engine: BenchEngine) -> None:
        self._events = events
        self._engine = engine

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> Any:
        await self._engine.pause()
        for event in self._events:
            return event
        return await self._engine.end()


class Ours(Contestant):
    """roder_trio on its SQLite store."""

    name = "roder_trio"
    durability = "power, each of three appends"

    def turns(self, count: int) -> list[float]:
        """As of a contestant, with the memory store."""
        return trio.run(_new_threads, stores.MemoryThreadStore(), count)

    def stored_turns(self, count: int, folder: Path) -> list[float]:
        """As of a contestant."""
        return trio.run(_new_threads, stores.SqliteThreadStore(new_database(folder)), count)

    def thread(self, turns: int, folder: Path) -> tuple[list[float], int]:
        """As of a contestant."""
        path = new_database(folder)
        times = trio.run(_one_thread, stores.SqliteThreadStore(path), turns)
        return times, file_bytes(path)

    def at_once(self, threads: int, turns: int, folder: Path) -> float:
        """Seconds a turn of trivial turns on threads that run side by side, each turn on a new thread."""
        return trio.run(_at_once, stores.SqliteThreadStore(new_database(folder)), threads, turns)

    def first_deltas(self, base_url: str, count: int) -> list[float]:
        """As of a contestant, with the memory store."""
        return trio.run(_first_deltas, base_url, count)


async def _trivial_turn(runtime: rt.Runtime) -> float:
    began = time.perf_counter()
    thread = await runtime.create_thread()
    outcome = await runtime.run_turn(thread.thread_id, QUESTION)
    spent = time.perf_counter() - began
    assert outcome.text == ANSWER, outcome
    return spent


async def _new_threads(store: rt.ThreadStore, count: int) -> list[float]:
    engine = providers.ScriptedEngine(itertools.repeat(REPLY))
    async with rt.open_runtime(engines=[engine], store=store, config=CONFIG) as runtime:
        await _trivial_turn(runtime)
        return [await _trivial_turn(runtime) for _ in range(count)]


async def _one_thread(store: rt.ThreadStore, turns: int) -> list[float]:
    engine, times = providers.ScriptedEngine(itertools.repeat(REPLY)), []
    async with rt.open_runtime(engines=[engine], store=store, config=CONFIG) as runtime:
        thread = (await runtime.create_thread()).thread_id
        for _ in range(turns):
            began = time.perf_counter()
            await runtime.run_turn(thread, QUESTION)
            times.append(time.perf_counter() - began)
    return times


async def _at_once(store: rt.ThreadStore, threads: int, turns: int) -> float:
    engine = providers.ScriptedEngine(itertools.repeat(REPLY))

    async def run() -> None:
        for _ in range(turns):
            await _trivial_turn(runtime)

    async with rt.open_runtime(engines=[engine], store=store, config=CONFIG) as runtime:
        await _trivial_turn(runtime)
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(threads):
                nursery.start_soon(run)
        return (time.perf_counter() - began) / (threads * turns)


async def _first_deltas(base_url: str, count: int) -> list[float]:
    engine = providers.ChatCompletions(id="local", base_url=base_url, api_key="none", default_model=MODEL)
    times = []
    async with rt.open_runtime(engines=[engine], config=CONFIG) as runtime:
        for _ in range(count + 1):
            thread = await runtime.create_thread()
            began = time.perf_counter()
            async with runtime.turn(thread.thread_id, QUESTION) as turn:
                times.append(await _first_text(turn) - began)
            assert turn.outcome.status == "completed", turn.outcome
    return times[1:]


async def _first_text(turn: rt.Turn) -> float:
    async for envelope in turn:
        match envelope.event:
            case items.ThreadItemEvent(event=items.ItemDelta(delta=items.AgentMessageText())):
                return time.perf_counter()
    raise AssertionError("the turn showed no text")
