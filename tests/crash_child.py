"""A warm process that forks one child for each case; the child runs a flow and kills itself at an append.

Cases come as lines of JSON on standard input, how each child ended goes to standard output. What the child had been
told until then it writes beside the store, as its last act.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import trio

from roder_trio import items
from roder_trio.testing import FaultyStore
from tests.crash_flows import FLOWS, PATIENCE, jsonl, opened


def die(told: Path, subscription: Any, billed: int, records: Sequence[Any]) -> NoReturn:
    """Write down what was published and reported, then end as no handler can notice."""
    durable = []
    while subscription is not None and subscription.buffered:
        envelope = subscription.take()
        if envelope.event.seq if isinstance(envelope.event, items.ThreadItemEvent) else envelope.event.durable:
            durable.append([envelope.event_id, envelope.kind])
    text = {"durable": durable, "billed": billed, "kinds": [record.kind for record in records]}
    told.write_text(json.dumps(text))
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


async def run(flow_name: str, folder: str, append: int, when: str) -> None:
    """Run a flow on a new thread, with a store that kills the process at that append, before or after its write."""
    flow = FLOWS[flow_name]
    engine = flow.engine()
    subscription: Any = None

    async def hook(number: int, thread_id: str, records: Sequence[Any]) -> None:
        if number == append:
            die(Path(folder, "told"), subscription, engine.billed.total_tokens, records)

    store = FaultyStore(jsonl(Path(folder, "store")), **{when: hook})
    with trio.fail_after(PATIENCE):
        async with opened(flow, engine, store) as runtime, runtime.subscribe_events() as subscription:
            thread = await runtime.create_thread()
            await flow.run(runtime, engine, thread.thread_id)


def main() -> None:
    for line in sys.stdin:
        case = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                trio.run(run, case["flow"], case["folder"], case["append"], case["when"])
                code = 0
            except BaseException:  # noqa: ASYNC103  # no task is left that could be cancelled
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
