"""Appends that fail, are slow or end unknown, at each place of one turn: what is stored, and what is known."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, goals, stores
from roder_trio.testing import FaultyStore
from tests.flow_engines import TwoRounds
from tests.log_laws import check_log, terminals, total
from tests.thread_reads import loaded, opened, reads

pytestmark = pytest.mark.unmeasured

# -- one turn, and what may befall its appends -------------------------------------------------------------------------


async def despite_faults(call: Callable[[], Awaitable[Any]]) -> Any:
    """What a call returns; None if the store or the actor failed under it."""
    try:
        return await call()
    except (rt.StorageError, rt.ActorCrashed, rt.NoActiveTurn):
        return None


async def steered_turn(runtime: rt.Runtime, engine: TwoRounds, thread: str) -> str | None:
    """A turn of two rounds with a goal, a steer and a native compaction, by a caller who goes on whatever fails."""
    patch = goals.GoalPatch(objective="go on", token_budget=42)
    await despite_faults(lambda: runtime.thread_goal_set(thread, patch))
    turn: str | None = await despite_faults(lambda: runtime.start_turn(thread, "Inspect the evidence"))
    if turn is None:
        return None
    await engine.stalled.wait()
    await despite_faults(lambda: runtime.steer_turn(thread, turn, "be brief"))
    if engine.sampling_calls == 1:
        await wait_all_tasks_blocked()
        await despite_faults(lambda: runtime.steer_turn(thread, turn, "be brief"))
    await despite_faults(lambda: runtime.interrupt_turn(thread, turn) if still_stalls(engine) else done())
    await despite_faults(lambda: runtime.wait_turn(thread, turn))
    return turn


def still_stalls(engine: TwoRounds) -> bool:
    return engine.sampling_calls == 1 and engine.compaction_calls == 0


async def done() -> None:
    await trio.lowlevel.checkpoint()


SLOW = 60.0
"""Seconds of a slow append: longer than any grace."""
Faults = Callable[[FaultyStore, int], None]


class Always(dict[int, Exception]):
    """The error for every number from `first` on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number >= self.first

    def __getitem__(self, number: int) -> Exception:
        return rt.StorageError("the disk is gone")


def once(store: FaultyStore, number: int) -> None:
    store.fail = {number: rt.StorageError("the disk was full")}


def for_ever(store: FaultyStore, number: int) -> None:
    store.fail = Always(number)


def unknown_and_not_stored(store: FaultyStore, number: int) -> None:
    store.fail = {number: rt.AppendOutcomeUnknown("no answer")}


def unknown_but_stored(store: FaultyStore, number: int) -> None:
    store.fail_after = {number: rt.AppendOutcomeUnknown("no answer")}


def a_bug(store: FaultyStore, number: int) -> None:
    store.fail = {number: RuntimeError("a bug in the store")}


def slow(store: FaultyStore, number: int) -> None:
    async def before(now: int, thread_id: str, records: Sequence[Any]) -> None:
        await trio.sleep(SLOW if now == number else 0)

    store.before = before


@pytest.mark.parametrize("faults", [once, for_ever, unknown_and_not_stored, unknown_but_stored, a_bug, slow])
async def test_a_turn_survives_a_fault_at_any_append(autojump_clock, faults: Faults):
    number = 0
    reached = True
    while reached:
        number += 1
        store = FaultyStore(stores.MemoryThreadStore())
        faults(store, number)
        with trio.fail_after(300):
            reached = await survive(store, number, faults)
    assert number > 10, "the turn makes appends"


async def survive(store: FaultyStore, number: int, faults: Faults) -> bool:
    """Run the turn on a faulty store, mend the store, compare; False if the fault lay behind the turn's end."""
    engine = TwoRounds()
    async with opened(engine, store) as runtime:
        thread = (await runtime.create_thread()).thread_id
        began = trio.current_time()
        await steered_turn(runtime, engine, thread)
        assert trio.current_time() - began < 2 or faults in (for_ever, slow), "nothing waits for a grace to end"
        reached = store.appends >= number
        store.fail, store.fail_after = {}, {}
        await trio.sleep(SLOW if faults is slow else 0)  # what was under way may land after its turn failed
        snapshot = await loaded(runtime, thread)
        check_log(snapshot, settled=faults is not slow)
        check_end(snapshot, engine, faults)
        live = await reads(runtime, thread, snapshot)
        assert live.used == total(snapshot.events)
    async with opened(engine, store.inner) as again:
        assert await loaded(again, thread) == snapshot
        assert await reads(again, thread, snapshot) == live
        engine.sampling_calls = 1
        outcome = await again.run_turn(thread, "and now?")
        assert outcome.status == "completed"
        check_log(await loaded(again, thread))
    return reached


def check_end(snapshot: rt.ThreadSnapshot, engine: TwoRounds, faults: Faults) -> None:
    ends = [end.event for _, (end,) in terminals(snapshot.events).items()]
    for end in ends:
        match end:
            case events.TurnFailed(error_kind=kind):
                assert kind == "storage"
            case events.TurnInterrupted(reason=reason):
                assert reason in ("runtime_restart", "user")
    # what outlasts the deadline of usage is given up, with its turn
    given_up = faults is for_ever or (faults is slow and any(isinstance(end, events.TurnFailed) for end in ends))
    assert given_up or total(snapshot.events) == engine.billed, "no usage is lost"
