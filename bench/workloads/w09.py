"""The first delta of a turn from a Chat Completions server on loopback, beside the same request by httpx alone."""

import time
from pathlib import Path

import httpx
import trio

from bench.contestant import MODEL, QUESTION
from bench.contestants import PEERS, best
from bench.loopback import serving
from bench.measure import MILLI, Budget, Measured, Scale, interleaved, median
from bench.ours import Ours

TITLE = "first delta over a loopback HTTP server"
BUDGETS = (Budget("added over raw httpx", 0.5, "ms"), Budget("added / what the best peer adds", 1.0))
RAW = "raw httpx on trio"
REQUEST = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "stream": True,
    "stream_options": {"include_usage": True},
}


FLOOR = (
    "before its request a turn hands over to the thread's actor, reads the new thread, stores the opening, begins the "
    "job and encodes the request, 0.9 ms in all on the memory store; then the stream is read under the turn's scopes, "
    "decoded, checked and published, each an object of its own."
)


def measure(scale: Scale, folder: Path) -> Measured:
    """Take turns over connections that are kept, without a store."""
    each = scale.of(30, 5)
    with serving() as url:
        callers = {one.name: (lambda one=one: one().first_deltas(url, each)) for one in (Ours, *PEERS)}
        callers[RAW] = lambda: trio.run(_raw, url, each)
        times = {name: median(values) for name, values in interleaved(scale.of(10, 2), **callers).items()}
    found = Measured()
    for name, value in times.items():
        found.figures[f"{name}, ms"] = value * MILLI
    added = times[Ours.name] - times[RAW]
    found.checks["added over raw httpx"] = added * MILLI
    found.checks["added / what the best peer adds"] = added / (best(times, PEERS) - times[RAW])
    return found


async def _raw(url: str, count: int) -> list[float]:
    times = []
    async with httpx.AsyncClient() as client:
        for _ in range(count + 1):
            began, first = time.perf_counter(), 0.0
            async with client.stream("POST", f"{url}/chat/completions", json=REQUEST) as response:
                async for piece in response.aiter_bytes():
                    if piece:
                        first = first or time.perf_counter()
            times.append(first - began)
    return times[1:]
