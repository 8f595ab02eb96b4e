"""Each flow is killed with SIGKILL at every one of its appends, then its thread is opened again and used."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import roder_trio as rt
from roder_trio import events, items, stores
from roder_trio.goals import Goal, GoalStatus
from roder_trio.testing import CrashPoint, Victims, open_victims
from roder_trio.transcript import AssistantMessage
from tests import crash_child
from tests.crash_flows import FLOWS, PATIENCE, Flow, jsonl, opened
from tests.log_laws import check_log, goal_of, open_turns, terminals, tokens_of_goal, total, transcript_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the sweep forks its victims")

SETTLES_FIRST = ("turn.completed", "turn.failed", "turn.interrupted", "compaction.recorded", "compaction.failed")
"""What is never stored before all usage that was seen is."""


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


async def loaded(runtime: rt.Runtime, thread: str) -> rt.ThreadSnapshot:
    snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    return snapshot


async def check_waiters(runtime: rt.Runtime, healed: rt.ThreadSnapshot) -> None:
    """Who asks for a turn's outcome gets what is stored."""
    assert healed.metadata is not None
    for turn, (end,) in terminals(healed.events).items():
        outcome = await runtime.wait_turn(healed.metadata.thread_id, turn)
        assert outcome.usage == end.event.usage  # type: ignore[union-attr]


def check_told(left: rt.ThreadSnapshot, told: dict[str, Any]) -> None:
    """Whatever was published as durable is there, and no token more than the engine reported."""
    stored = {envelope.event_id for envelope in left.events} | {event.event_id for event in left.item_events}
    lost = [entry for entry in told["durable"] if entry[0] not in stored]
    assert not lost
    counted = total(left.events).total_tokens
    assert counted <= told["billed"]
    if any(kind in SETTLES_FIRST for kind in told["kinds"]):
        assert counted == told["billed"], "usage is settled before anything ends"


def check_closing(left: rt.ThreadSnapshot, healed: rt.ThreadSnapshot) -> None:
    """The log only grew, and only by what closes the turn that was open."""
    assert healed.events[: len(left.events)] == left.events
    added = healed.events[len(left.events) :]
    ends = [envelope for envelope in added if isinstance(envelope.event, events.TurnInterrupted)]
    assert [envelope.turn_id for envelope in ends] == open_turns(left.events)
    assert all(envelope.event.reason == "runtime_restart" for envelope in ends)  # type: ignore[union-attr]
    assert total(healed.events) == total(left.events)
    cut_off = [item for item in transcript_of(healed) if isinstance(item, AssistantMessage) and item.interrupted]
    for text in saved_text(left):
        assert AssistantMessage(text, interrupted=True) in cut_off, "what checkpoints held open is in the history"


def saved_text(left: rt.ThreadSnapshot) -> list[str]:
    """The texts of messages that were open, as far as checkpoints hold them."""
    texts: dict[str, str] = {}
    for recorded in left.item_events:
        match recorded.event:
            case items.ItemDelta(item_id, items.AgentMessageText(text)) if recorded.checkpoint:
                texts[item_id] = texts.get(item_id, "") + text
            case items.ItemCompleted() | items.ItemDiscarded() as ended:
                texts.pop(ended.item_id, None)
    return list(texts.values())


def check_goal(left: rt.ThreadSnapshot, goal: Goal | None) -> None:
    stored = goal_of(left.events)
    if stored is None:
        assert goal is None
        return
    assert goal is not None
    assert goal.goal_id == stored.goal_id
    assert goal.tokens_used == tokens_of_goal(left.events, stored.goal_id)
    expected = stored.status
    if expected is GoalStatus.ACTIVE and goal.remaining_tokens == 0:
        expected = GoalStatus.BUDGET_LIMITED
    elif expected is GoalStatus.ACTIVE and open_turns(left.events):
        expected = GoalStatus.PAUSED
    assert goal.status is expected


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
