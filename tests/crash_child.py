"""What the victims of the crash sweep do: run a flow, and write down what they had been told as their last act."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio

from roder_trio import items
from roder_trio.testing import Crash, FaultyStore
from tests.crash_flows import FLOWS, PATIENCE, jsonl, opened


def write_down(told: Path, subscription: Any, billed: int, records: Sequence[Any]) -> None:
    """Write what was published and reported, and what the append under way holds."""
    durable = []
    while subscription is not None and subscription.buffered:
        envelope = subscription.take()
        if envelope.event.seq if isinstance(envelope.event, items.ThreadItemEvent) else envelope.event.durable:
            durable.append([envelope.event_id, envelope.kind])
    text = {"durable": durable, "billed": billed, "kinds": [record.kind for record in records]}
    told.write_text(json.dumps(text))


async def live(crash: Crash, flow_name: str, folder: Path) -> None:
    """Run a flow on a new thread, with a store whose appends are points of the crash."""
    flow = FLOWS[flow_name]
    engine = flow.engine()
    subscription: Any = None

    async def remember(number: int, thread_id: str, records: Sequence[Any]) -> None:
        crash.last_words = lambda: write_down(folder / "told", subscription, engine.billed.total_tokens, records)

    store = FaultyStore(crash.around(jsonl(folder / "store")), before=remember)
    with trio.fail_after(PATIENCE):
        async with opened(flow, engine, store) as runtime, runtime.subscribe_events() as subscription:
            thread = await runtime.create_thread()
            await flow.run(runtime, engine, thread.thread_id)


def run(crash: Crash, flow_name: str, folder: Path) -> None:
    """The victim."""
    trio.run(partial(live, crash, flow_name, folder))
