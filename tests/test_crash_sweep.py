"""Each flow is killed with SIGKILL at every one of its appends, then its thread is opened again and used."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import roder_trio as rt
from roder_trio import stores
from roder_trio.goals import Goal
from roder_trio.testing import CrashPoint, Victims, open_victims
from tests import crash_child
from tests.crash_flows import FLOWS, PATIENCE, Flow, jsonl, opened
from tests.crash_laws import SETTLES_FIRST, check_closing, check_goal, check_waiters, loaded
from tests.log_laws import check_log, total

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="the sweep forks its victims"), pytest.mark.unmeasured]


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    with open_victims() as warm:
        yield warm


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("flow", FLOWS)
def test_a_kill_at_any_append_loses_nothing_that_was_told(victims: Victims, tmp_path: Path, flow: str, when: str):
    for append in range(1, 100):
        folder = tmp_path / str(append)
        folder.mkdir()
        if not victims.run(crash_child.run, CrashPoint(when, append), flow, folder):
            break
        told = json.loads((folder / "told").read_text())
        trio.run(check, FLOWS[flow], folder / "store", told)
    assert append > 4, "the flow makes appends"


async def check(flow: Flow, folder: Path, told: dict[str, Any]) -> None:
    with trio.fail_after(PATIENCE):
        left = await read(folder)
        assert left.metadata is not None
        thread = left.metadata.thread_id
        async with opened(flow, flow.engine(), jsonl(folder)) as runtime:
            healed = await loaded(runtime, thread)
            goal = await runtime.thread_goal_get(thread)
            await check_waiters(runtime, healed)
        check_log(healed)
        check_told(left, told)
        check_closing(left, healed)
        check_goal(left, goal)
        await check_again(flow, folder, thread, healed, goal)


async def read(folder: Path) -> rt.ThreadSnapshot:
    """What the dead process left, as it left it."""
    store = stores.JsonlThreadStore(folder, read_only=True)
    async with store.open():
        (found,) = (await store.list_threads()).threads
        snapshot = await store.load_thread(found.thread_id)
    assert snapshot is not None
    return snapshot


def check_told(left: rt.ThreadSnapshot, told: dict[str, Any]) -> None:
    """Whatever was published as durable is there, and no token more than the engine reported."""
    stored = {envelope.event_id for envelope in left.events} | {event.event_id for event in left.item_events}
    lost = [entry for entry in told["durable"] if entry[0] not in stored]
    assert not lost
    counted = total(left.events).total_tokens
    assert counted <= told["billed"]
    if any(kind in SETTLES_FIRST for kind in told["kinds"]):
        assert counted == told["billed"], "usage is settled before anything ends"


async def check_again(flow: Flow, folder: Path, thread: str, healed: rt.ThreadSnapshot, goal: Goal | None) -> None:
    """A second start writes nothing and reads the same; the flow then runs to its end on the same thread."""
    (journal,) = (folder / "threads").iterdir()
    stored = journal.read_bytes()
    engine = flow.engine()
    async with opened(flow, engine, jsonl(folder)) as runtime:
        assert await loaded(runtime, thread) == healed
        assert await runtime.thread_goal_get(thread) == goal
        assert journal.read_bytes() == stored
        await flow.run(runtime, engine, thread)
        after = await loaded(runtime, thread)
    check_log(after)
    assert total(after.events) == total(healed.events) + engine.billed
