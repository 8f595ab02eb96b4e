"""A steer of a turn that streams: until the request that holds it is handed to the transport of an HTTP client."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import orjson
import trio

import roder_trio as rt
from bench.contestant import MODEL, QUESTION, new_database
from bench.measure import MILLI, Budget, Measured, Scale, durable_appends, interleaved, median
from bench.ours import CONFIG
from roder_trio import providers

TITLE = "steer to the new request on the wire"
BUDGETS = (Budget("a steer less 3 durable appends", 0.5, "ms"),)
CHUNK = {"model": MODEL, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "What was said so far."}}]}
STEER = "Rather look at the other one."


FLOOR = (
    "as an interrupt, and then the next request is built, encoded and sent; some of its appends hold "
    "several records, those that they are compared with one."
)


def measure(scale: Scale, folder: Path) -> Measured:
    """Take turns: steers, and durable appends in the same rounds."""
    each = scale.of(20, 4)
    times = interleaved(
        scale.of(10, 2),
        steer=lambda: trio.run(_steers, new_database(folder), each),
        append=lambda: durable_appends(new_database(folder), each),
    )
    one, append = median(times["steer"]), median(times["append"])
    found = Measured(checks={"a steer less 3 durable appends": (one - 3 * append) * MILLI})
    found.figures |= {"steer, ms": one * MILLI, "durable append, ms": append * MILLI}
    found.note("The broken-off stream is closed and its text stored, and the new request encoded, within this time.")
    return found


class _Wire(httpx.AsyncBaseTransport):
    """Answers each request with one delta and says no more; notes when a request came and what it held."""

    def __init__(self) -> None:
        self.at, self.body = 0.0, b""
        self.came = trio.Event()
        self.answered = trio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.at, self.body = time.perf_counter(), await request.aread()
        self.came.set()
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Body(self))


class _Body(httpx.AsyncByteStream):
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._said = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._said:
            self._said = True
            return b"data: " + orjson.dumps(CHUNK) + b"\n\n"
        self._wire.answered.set()
        await trio.sleep_forever()
        raise StopAsyncIteration


async def _steers(path: Path, count: int) -> list[float]:
    wire = _Wire()
    async with httpx.AsyncClient(transport=wire) as http:
        engine = providers.ChatCompletions(id="local", base_url="http://127.0.0.1/v1", api_key="none", http=http)
        store = rt.stores.SqliteThreadStore(path)
        async with rt.open_runtime(engines=[engine], store=store, config=CONFIG) as runtime:
            return [await _steer(runtime, wire) for _ in range(count)]


async def _steer(runtime: rt.Runtime, wire: _Wire) -> float:
    thread = (await runtime.create_thread()).thread_id
    wire.answered = trio.Event()
    turn = await runtime.start_turn(thread, QUESTION)
    await wire.answered.wait()
    wire.came = trio.Event()
    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.steer_turn, thread, turn, STEER)
        await wire.came.wait()
    spent = wire.at - began
    assert STEER.encode() in wire.body, wire.body
    await runtime.interrupt_turn(thread, turn)
    await runtime.wait_turn(thread, turn)
    return spent
