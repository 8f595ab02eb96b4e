"""An interrupt of a turn that streams: until its terminal event is durable and shown, with text and usage stored."""

import time
from pathlib import Path

import trio

import roder_trio as rt
from bench.contestant import QUESTION, new_database
from bench.contestants import PEERS
from bench.measure import MILLI, Budget, Measured, Scale, durable_appends, interleaved, median
from bench.ours import CONFIG, BenchEngine
from roder_trio import inference

TITLE = "interrupt to durable terminal event"
BUDGETS = (Budget("an interrupt less 3 durable appends", 0.5, "ms"),)
USAGE = rt.TokenUsage(20, 4, 24)
TEXT = "What was said so far."


FLOOR = (
    "the engine's block is left, the text so far stored, the usage, then the end, one after another; some of these "
    "appends hold several records, those that they are compared with one."
)


def measure(scale: Scale, folder: Path) -> Measured:
    """Take turns: interrupts, and durable appends in the same rounds."""
    each = scale.of(20, 4)
    times = interleaved(
        scale.of(10, 2),
        interrupt=lambda: trio.run(_interrupts, new_database(folder), each),
        append=lambda: durable_appends(new_database(folder), each),
    )
    one, append = median(times["interrupt"]), median(times["append"])
    found = Measured(checks={"an interrupt less 3 durable appends": (one - 3 * append) * MILLI})
    found.figures |= {"interrupt, ms": one * MILLI, "durable append, ms": append * MILLI}
    for peer in PEERS:
        found.note(f"{peer.name} can't run it: {peer.interrupt}.")
    return found


async def _interrupts(path: Path, count: int) -> list[float]:
    engine = BenchEngine(lambda: (inference.Usage(USAGE), inference.MessageDelta(TEXT)), hangs=True)
    times, store = [], rt.stores.SqliteThreadStore(path)
    async with rt.open_runtime(engines=[engine], store=store, config=CONFIG) as runtime:
        for _ in range(count):
            thread = (await runtime.create_thread()).thread_id
            engine.entered = trio.Event()
            async with runtime.subscribe_events(thread_id=thread, kinds=("turn.interrupted",)) as ends:
                turn = await runtime.start_turn(thread, QUESTION)
                await engine.entered.wait()
                began = time.perf_counter()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(runtime.interrupt_turn, thread, turn)
                    await anext(ends)
                    times.append(time.perf_counter() - began)
            outcome = await runtime.wait_turn(thread, turn)
            assert (outcome.status, outcome.text, outcome.usage) == ("interrupted", TEXT, USAGE), outcome
    return times
