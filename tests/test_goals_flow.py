"""A thread's goal through the runtime: what a host may ask, what turns charge to it, and what their ends make of it."""

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import codec, events, goals, inference, stores, transcript
from roder_trio.providers.scripted import NEVER_ENDS
from roder_trio.runtime import opening
from roder_trio.testing import FaultyStore
from tests.ledger_support import as_if_killed, boundary, cold, goal_of, meta, patch, total, used_and_status, with_goal
from tests.turn_support import DONE, Scene, failure, one_thread, say, settings, used

AGAIN = inference.ProviderMetadata({"end_turn": False})
Status = goals.GoalStatus


def budget(tokens: int) -> goals.GoalPatch:
    return goals.GoalPatch(objective="prove it", token_budget=tokens)


def goal_events(scene: Scene) -> list[Any]:
    return scene.of(events.GoalUpdated, events.GoalCleared, events.GoalTimeRecorded)


async def same_when_cold(scene: Scene) -> None:
    """The goal of a new process is the live one, counters included."""
    live = await scene.runtime.thread_goal_get(scene.id)
    assert (await cold(scene.store, scene.id)).goal == live


# -- host operations ---------------------------------------------------------------------------------------------------


async def test_a_goal_is_created_with_a_fresh_id_and_trimmed(autojump_clock):
    async with with_goal(goal=goals.GoalPatch(objective=" x ", token_budget=42)) as scene:
        goal = await goal_of(scene)
        assert (goal.objective, goal.status, goal.tokens_used, goal.token_budget) == ("x", Status.ACTIVE, 0, 42)
        assert (goal.thread_id, goal.time_used, goal.remaining_tokens) == (scene.id, 0.0, 42)
        assert goal.created_at == goal.updated_at
        [updated] = goal_events(scene)
        assert (updated.cause, updated.goal) == (goals.GoalCause.HOST, goal)
        await same_when_cold(scene)


async def test_without_a_goal_nothing_but_an_objective_makes_one(autojump_clock):
    async with one_thread() as scene:
        assert await patch(scene) is None
        assert await patch(scene, status="active", token_budget=5) is None
        assert await scene.runtime.thread_goal_get(scene.id) is None
        assert await scene.runtime.thread_goal_clear(scene.id) is False
        assert goal_events(scene) == []
        goal = await patch(scene, objective="x", status="paused")
        assert goal.status is Status.PAUSED


async def test_a_thread_that_is_not_there_has_no_goal(autojump_clock):
    async with with_goal() as scene:
        await scene.runtime.archive_thread(scene.id)
        for thread_id in (scene.id, "nobody", ""):
            assert await scene.runtime.thread_goal_get(thread_id) is None
            assert await scene.runtime.thread_goal_clear(thread_id) is False
            with pytest.raises(rt.ThreadNotFound):
                await scene.runtime.thread_goal_set(thread_id, goals.GoalPatch(objective="x"))


@pytest.mark.parametrize(
    "values",
    [
        {"objective": "  "},
        {"objective": "x" * 4001},
        {"objective": 3},
        {"token_budget": 0},
        {"token_budget": -1},
        {"token_budget": True},
        {"token_budget": 1.5},
        {"token_budget": "5"},
        {"status": "done"},
        {"status": "budget_limited"},
    ],
    ids=str,
)
async def test_a_bad_patch_changes_nothing(autojump_clock, values):
    async with with_goal(goal=budget(42)) as scene:
        before = await goal_of(scene)
        with pytest.raises(ValueError):
            await patch(scene, **values)
        assert (await goal_of(scene), len(goal_events(scene))) == (before, 1)


async def test_what_is_no_patch_is_refused(autojump_clock):
    async with with_goal() as scene:
        with pytest.raises(TypeError, match="GoalPatch"):
            await scene.runtime.thread_goal_set(scene.id, {"objective": "x"})


TABLE: list[tuple[int, int | None, str, dict[str, Any], str, int | None]] = [
    (42, 42, "active", {"token_budget": 100}, "budget_limited", 100),
    (42, 42, "active", {"token_budget": 100, "status": "active"}, "active", 100),
    (42, 42, "active", {"status": "active"}, "budget_limited", 42),
    (42, 42, "active", {"status": "paused"}, "budget_limited", 42),
    (42, 42, "active", {"status": "blocked"}, "budget_limited", 42),
    (42, 42, "active", {"status": "complete"}, "complete", 42),
    (42, 42, "active", {"status": "usage_limited"}, "usage_limited", 42),
    (42, 42, "active", {"token_budget": None}, "budget_limited", None),
    (42, 42, "active", {"token_budget": None, "status": "active"}, "active", None),
    (50, 100, "active", {"token_budget": 50}, "budget_limited", 50),
    (50, 100, "active", {"token_budget": 40}, "budget_limited", 40),
    (50, 100, "active", {"token_budget": None}, "active", None),
    (50, 100, "active", {"objective": "y"}, "active", 100),
    (50, 100, "active", {}, "active", 100),
    (50, 100, "active", {"status": "blocked"}, "blocked", 100),
    (50, 100, "paused", {"token_budget": 40}, "paused", 40),
    (50, 100, "paused", {"token_budget": 40, "status": "active"}, "budget_limited", 40),
    (50, 100, "blocked", {"status": "active"}, "active", 100),
    (50, 100, "usage_limited", {"status": "active"}, "active", 100),
    (50, 100, "complete", {"token_budget": 60}, "complete", 60),
]


@pytest.mark.parametrize(("tokens", "limit", "status", "change", "after", "limit_after"), TABLE, ids=str)
async def test_a_patch_of_a_goal(autojump_clock, monkeypatch, tokens, limit, status, change, after, limit_after):
    moments = (datetime(2026, 10, 3, tzinfo=UTC) + timedelta(seconds=number) for number in count(1))
    monkeypatch.setattr(opening, "utc_now", lambda: next(moments))
    goal = goals.GoalPatch(objective="x", token_budget=limit)
    async with with_goal([used(tokens), DONE], goal=goal) as scene:
        await scene.run()
        if status != "active":
            await patch(scene, status=status)
        before, known = await goal_of(scene), len(goal_events(scene))
        answer = await patch(scene, **change)
        goal = await goal_of(scene)
        assert answer == goal
        assert (goal.goal_id, goal.tokens_used, goal.status.value) == (before.goal_id, tokens, after)
        assert (goal.token_budget, goal.objective) == (limit_after, change.get("objective", "x"))
        assert goal.updated_at > before.updated_at
        assert goal.created_at == before.created_at
        assert [event.cause for event in goal_events(scene)[known:]] == [goals.GoalCause.HOST]
        await same_when_cold(scene)


async def test_an_objective_for_a_complete_goal_makes_a_new_one(autojump_clock):
    async with with_goal([used(50), DONE], [used(7), DONE], goal=budget(100)) as scene:
        await scene.run()
        old = await patch(scene, status="complete")
        new = await patch(scene, objective="y")
        assert new.goal_id != old.goal_id
        assert (new.objective, new.tokens_used, new.token_budget, new.status) == ("y", 0, None, Status.ACTIVE)
        assert new.time_used == 0.0
        await scene.run()
        assert await used_and_status(scene) == (7, "active")
        assert await meta(scene) == total(57)
        await same_when_cold(scene)


async def test_clearing_removes_the_goal_once(autojump_clock):
    async with with_goal() as scene:
        goal = await goal_of(scene)
        assert await scene.runtime.thread_goal_clear(scene.id) is True
        assert await scene.runtime.thread_goal_clear(scene.id) is False
        assert goal_events(scene)[1:] == [events.GoalCleared(goal.goal_id, goals.GoalCause.HOST)]
        await same_when_cold(scene)


async def test_a_goal_that_can_not_be_stored_is_not_there(autojump_clock):
    store = FaultyStore(stores.MemoryThreadStore(), fail={2: rt.StorageError("no")})
    async with with_goal(store=store) as scene:
        before = await goal_of(scene)
        with pytest.raises(rt.StorageError):
            await patch(scene, objective="y")
        assert (await goal_of(scene), len(goal_events(scene))) == (before, 1)


async def test_a_goal_survives_the_archive(autojump_clock):
    async with with_goal([used(5), DONE]) as scene:
        await scene.run()
        goal = await goal_of(scene)
        await scene.runtime.archive_thread(scene.id)
        await scene.runtime.unarchive_thread(scene.id)
        assert await goal_of(scene) == goal


@pytest.mark.parametrize("broken", [b'"done"', b'"Active"', b"null", b"7"])
async def test_a_stored_goal_that_can_not_be_read_is_damage_and_never_no_goal(autojump_clock, broken):
    async with with_goal() as scene:
        [stored] = [e for e in (await scene.snapshot()).events if isinstance(e.event, events.GoalUpdated)]
    text = codec.encode_record(stored)
    assert codec.decode_record(text) == stored
    with pytest.raises(codec.DecodeError, match="status"):
        codec.decode_record(text.replace(b'"active"', broken))


# -- budget ------------------------------------------------------------------------------------------------------------


async def test_an_exhausted_goal_reads_as_limited_at_once_and_the_next_commit_stores_that(autojump_clock):
    hold = trio.Event()
    async with with_goal([used(41), hold, used(42), NEVER_ENDS], goal=budget(42)) as scene:
        await scene.start()
        await wait_all_tasks_blocked()
        assert await used_and_status(scene) == (41, "active")
        hold.set()
        await wait_all_tasks_blocked()
        assert await used_and_status(scene) == (42, "budget_limited")
        assert len(goal_events(scene)) == 1
        await scene.runtime.persist_turn_item(scene.id, "other", transcript.UserMessage("a commit"))
        [_, limited] = goal_events(scene)
        assert (limited.cause, limited.goal.status, limited.goal.tokens_used) == (
            goals.GoalCause.BUDGET,
            Status.BUDGET_LIMITED,
            42,
        )


async def test_a_crash_between_exhausting_and_storing_changes_nothing_visible(autojump_clock):
    async with with_goal([used(42), NEVER_ENDS], goal=budget(42)) as scene:
        await scene.start()
        await wait_all_tasks_blocked()
        killed = await as_if_killed(scene.store, scene.id)
    again = await cold(killed, scene.id)
    assert (again.goal.tokens_used, again.goal.status) == (42, Status.BUDGET_LIMITED)
    kinds = [e.kind for e in again.snapshot.events if e.kind in ("goal.updated", "turn.interrupted")]
    assert kinds[-2:] == ["goal.updated", "turn.interrupted"]


async def test_a_smaller_report_lowers_the_tokens_but_not_what_was_stored_of_the_status(autojump_clock):
    holds = [trio.Event(), trio.Event()]
    steps = [used(50), holds[0], say("a", "commentary"), say("b"), holds[1], used(45), say("c"), NEVER_ENDS]
    async with with_goal(steps, goal=budget(48)) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        assert await used_and_status(scene) == (50, "budget_limited")
        holds[0].set()
        await wait_all_tasks_blocked()
        assert len(goal_events(scene)) == 2
        holds[1].set()
        await wait_all_tasks_blocked()
        assert await used_and_status(scene) == (45, "budget_limited")
        await scene.interrupt(turn_id)
        await scene.wait(turn_id)
        assert await used_and_status(scene) == (45, "budget_limited")
        await same_when_cold(scene)


async def test_a_smaller_report_before_any_commit_lets_the_goal_read_active_again(autojump_clock):
    hold = trio.Event()
    async with with_goal([used(50), hold, used(45), DONE], goal=budget(48)) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        assert await used_and_status(scene) == (50, "budget_limited")
        hold.set()
        await scene.wait(turn_id)
        assert await used_and_status(scene) == (45, "active")


async def test_the_terminal_commit_stores_time_then_status_then_the_end(autojump_clock):
    async with with_goal([used(42), 2.0, DONE], goal=budget(42)) as scene:
        await scene.run()
        assert scene.kinds[-3:] == ["goal.time_recorded", "goal.updated", "turn.completed"]


# -- attachment and charging -------------------------------------------------------------------------------------------


async def test_the_seed_sequence_of_readings(autojump_clock):
    holds = [trio.Event() for _ in range(4)]
    steps = [
        [used(24), holds[0], say("evidence " * 2_000), AGAIN, DONE],
        [used(6), holds[3], DONE],
    ]
    compact = [[used(4), holds[1], used(12), holds[2], boundary(), DONE]]
    config = settings(auto_compact_token_limit=1_000)
    async with with_goal(*steps, compact=compact, config=config, goal=budget(42)) as scene:
        turn_id = await scene.start()
        seen = []
        for hold in holds:
            await wait_all_tasks_blocked()
            seen.append((await goal_of(scene)).tokens_used)
            hold.set()
        assert seen == [24, 28, 36, 42]
        await scene.wait(turn_id)
        assert await used_and_status(scene) == (42, "budget_limited")


@pytest.mark.parametrize("required", [True, False])
async def test_a_compaction_that_overshoots_limits_and_its_failure_does_not_overwrite_that(autojump_clock, required):
    compact = [[used(40), failure()], [used(40), failure()]]
    config = settings(auto_compact_token_limit=1, provider_retry_max_attempts=2, provider_retry_initial_backoff=0.0)
    script = {"compact": compact, "requires_native_compaction": required}
    async with with_goal([DONE], config=config, goal=budget(42), **script) as scene:
        outcome = await scene.run()
        assert outcome.status == ("failed" if required else "completed")
        assert outcome.usage == total(80)
        assert await used_and_status(scene) == (80, "budget_limited")


async def test_a_turn_that_started_paused_pays_from_the_request_after_the_resume_on(autojump_clock):
    hold = trio.Event()
    async with with_goal([used(10), hold, say("x"), AGAIN, DONE], [used(5), DONE]) as scene:
        await patch(scene, status="paused")
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await patch(scene, status="active")
        hold.set()
        assert (await scene.wait(turn_id)).usage == total(15)
        assert await used_and_status(scene) == (5, "active")
        await same_when_cold(scene)


async def test_a_goal_created_in_mid_turn_pays_from_the_next_request_on(autojump_clock):
    hold = trio.Event()
    steps = [used(25), hold, say("x"), AGAIN, DONE], [used(30), DONE]
    async with one_thread(*steps, store=stores.MemoryThreadStore()) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await patch(scene, objective="x")
        hold.set()
        assert (await scene.wait(turn_id)).usage == total(55)
        assert await used_and_status(scene) == (30, "active")


@pytest.mark.parametrize("status", ["paused", "blocked", "usage_limited", "complete"])
async def test_a_goal_that_stops_in_mid_turn_pays_the_request_in_flight_and_nothing_after(autojump_clock, status):
    hold = trio.Event()
    async with with_goal([used(10), hold, used(30), say("x"), AGAIN, DONE], failure("AUTHENTICATION")) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await patch(scene, status=status)
        hold.set()
        assert (await scene.wait(turn_id)).usage == total(30)
        assert await used_and_status(scene) == (30, status)
        await same_when_cold(scene)


@pytest.mark.parametrize("replaced", [True, False])
async def test_usage_under_a_goal_that_is_gone_counts_for_no_other(autojump_clock, replaced):
    hold = trio.Event()
    async with with_goal([used(10), hold, used(30), say("x"), AGAIN, DONE], [used(7), DONE]) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        old = await goal_of(scene)
        if replaced:
            await patch(scene, status="complete")
        else:
            await scene.runtime.thread_goal_clear(scene.id)
        new = await patch(scene, objective="y")
        assert new.goal_id != old.goal_id
        hold.set()
        assert (await scene.wait(turn_id)).usage == total(37)
        assert await used_and_status(scene) == (7, "active")
        board = scene.runtime._core.accounting.totals(scene.id)
        assert board.goal(old.goal_id) == 30
        await same_when_cold(scene)


async def test_a_cleared_goal_is_charged_nothing_more_and_its_turn_changes_none(autojump_clock):
    hold = trio.Event()
    async with with_goal([used(10), hold, used(30), say("x"), AGAIN, DONE], failure("AUTHENTICATION")) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.runtime.thread_goal_clear(scene.id)
        hold.set()
        assert (await scene.wait(turn_id)).status == "failed"
        assert await scene.runtime.thread_goal_get(scene.id) is None
        await same_when_cold(scene)


async def test_a_failed_attempt_is_charged_like_any_other(autojump_clock):
    steps = [used(30), failure()], [used(20), failure()], [used(10), DONE]
    async with with_goal(*steps, config=settings(provider_retry_initial_backoff=0.0)) as scene:
        await scene.run()
        assert await used_and_status(scene) == (60, "active")


async def test_setting_and_clearing_never_start_or_stop_a_turn(autojump_clock):
    async with with_goal([used(1), NEVER_ENDS]) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await patch(scene, status="paused")
        await patch(scene, status="active")
        await scene.runtime.thread_goal_clear(scene.id)
        await patch(scene, objective="new")
        await wait_all_tasks_blocked()
        assert (len(scene.engine.calls), scene.ends) == (1, [])
        await scene.interrupt(turn_id)
        await scene.wait(turn_id)


# -- time --------------------------------------------------------------------------------------------------------------


def recorded_time(scene: Scene) -> list[float]:
    return [round(event.seconds, 6) for event in scene.of(events.GoalTimeRecorded)]


async def test_time_is_that_of_trios_clock_from_the_turns_start_to_its_end(autojump_clock):
    hold = trio.Event()
    async with with_goal([2.0, hold, 3.0, DONE], [1.0, DONE]) as scene:
        turn_id = await scene.start()
        await trio.sleep(2)
        await wait_all_tasks_blocked()
        assert round((await goal_of(scene)).time_used, 6) == 2.0
        hold.set()
        await scene.wait(turn_id)
        assert recorded_time(scene) == [5.0]
        await trio.sleep(100)
        assert round((await goal_of(scene)).time_used, 6) == 5.0
        await scene.run()
        assert recorded_time(scene) == [5.0, 1.0]
        assert round((await goal_of(scene)).time_used, 6) == 6.0
        await same_when_cold(scene)


async def test_time_stops_with_a_pause_and_goes_on_with_a_resume(autojump_clock):
    async with with_goal([10.0, DONE]) as scene:
        turn_id = await scene.start()
        await trio.sleep(1)
        await patch(scene, status="paused")
        await trio.sleep(4)
        assert round((await goal_of(scene)).time_used, 6) == 1.0
        await patch(scene, status="active")
        await scene.wait(turn_id)
        assert recorded_time(scene) == [1.0, 5.0]
        await same_when_cold(scene)


async def test_time_of_a_replaced_goal_is_not_the_new_ones(autojump_clock):
    async with with_goal([10.0, DONE]) as scene:
        turn_id = await scene.start()
        first = (await goal_of(scene)).goal_id
        await trio.sleep(1)
        await patch(scene, status="complete")
        await trio.sleep(1)
        second = (await patch(scene, objective="y")).goal_id
        await trio.sleep(3)
        await scene.runtime.thread_goal_clear(scene.id)
        third = (await patch(scene, objective="z")).goal_id
        await scene.wait(turn_id)
        times = [(event.goal_id, round(event.seconds, 6)) for event in scene.of(events.GoalTimeRecorded)]
        assert times == [(first, 1.0), (second, 3.0), (third, 5.0)]
        assert round((await goal_of(scene)).time_used, 6) == 5.0
        await same_when_cold(scene)


async def test_time_goes_on_when_the_budget_is_exhausted(autojump_clock):
    async with with_goal([used(50), 4.0, DONE], goal=budget(42)) as scene:
        await scene.run()
        assert round((await goal_of(scene)).time_used, 6) == 4.0
        assert (await goal_of(scene)).status is Status.BUDGET_LIMITED


async def test_a_crash_loses_at_most_the_running_stretch_and_no_compaction_takes_time(autojump_clock):
    async with with_goal([1.0, DONE], [NEVER_ENDS], compact=[[3.0, boundary(), DONE]]) as scene:
        await scene.run()
        await scene.runtime.compact_thread(scene.id)
        await scene.start()
        await trio.sleep(7)
        killed = await as_if_killed(scene.store, scene.id)
    assert round((await cold(killed, scene.id)).goal.time_used, 6) == 1.0


# -- how a turn's end changes the goal ---------------------------------------------------------------------------------


async def interrupted(scene: Scene) -> None:
    turn_id = await scene.start()
    await wait_all_tasks_blocked()
    await scene.interrupt(turn_id)
    await scene.wait(turn_id)


async def drained(scene: Scene) -> None:
    await scene.start()
    await wait_all_tasks_blocked()
    await scene.runtime.drain_active_turns(5)


async def left_by_its_caller(scene: Scene) -> None:
    with trio.move_on_after(1):
        await scene.run()


async def ran(scene: Scene) -> None:
    await scene.run()


STALL = [used(5), NEVER_ENDS]
OUTCOMES: dict[str, tuple[Any, Any, str]] = {
    "completed": ([used(5), DONE], ran, "active"),
    "interrupted by the user": (STALL, interrupted, "paused"),
    "drained": (STALL, drained, "paused"),
    "left": (STALL, left_by_its_caller, "paused"),
    "usage limit": ([used(5), failure("USAGE_LIMIT")], ran, "usage_limited"),
    "quota": ([used(5), failure("QUOTA_EXCEEDED")], ran, "usage_limited"),
    "authentication": ([used(5), failure("AUTHENTICATION")], ran, "blocked"),
    "content filter": ([used(5), failure("CONTENT_FILTER")], ran, "blocked"),
    "retries used up": ([used(5), failure()], ran, "blocked"),
    "context window": ([used(5), failure("CONTEXT_WINDOW_EXCEEDED")], ran, "blocked"),
    "a bug of the engine": ([used(5), KeyError("x")], ran, "blocked"),
    "deadline": (STALL, ran, "blocked"),
    "limit of calls": ([used(5), say("x"), AGAIN, DONE], ran, "blocked"),
}


@pytest.mark.parametrize(("step", "act", "status"), OUTCOMES.values(), ids=OUTCOMES)
async def test_the_end_of_an_attached_turn(autojump_clock, step, act, status):
    config = settings(turn_deadline=3.0, max_model_calls_per_turn=1, provider_retry_max_attempts=1)
    async with with_goal(step, config=config) as scene:
        await act(scene)
        assert await used_and_status(scene) == (5, status)
        causes = [event.cause for event in scene.of(events.GoalUpdated)[1:]]
        assert causes == ([] if status == "active" else [goals.GoalCause.TURN_OUTCOME])
        kinds = [kind for kind in scene.kinds if kind.startswith(("goal.", "turn."))]
        if status != "active":
            assert kinds[-2] == "goal.updated"
        assert kinds[-1] == scene.ends[0].kind
        await same_when_cold(scene)


@pytest.mark.parametrize(
    ("step", "act", "status"),
    [
        ([used(50), failure("USAGE_LIMIT")], ran, "usage_limited"),
        ([used(50), failure("QUOTA_EXCEEDED")], ran, "usage_limited"),
        ([used(50), failure("AUTHENTICATION")], ran, "budget_limited"),
        ([used(50), NEVER_ENDS], interrupted, "budget_limited"),
        ([used(50), DONE], ran, "budget_limited"),
    ],
)
async def test_the_end_of_a_turn_that_exhausted_its_goal(autojump_clock, step, act, status):
    async with with_goal(step, goal=budget(42)) as scene:
        await act(scene)
        assert await used_and_status(scene) == (50, status)
        await same_when_cold(scene)


@pytest.mark.parametrize("status", ["paused", "blocked", "usage_limited", "complete"])
@pytest.mark.parametrize("step", [failure("USAGE_LIMIT"), failure("AUTHENTICATION"), [used(5), DONE]])
async def test_a_turn_that_is_not_attached_changes_nothing(autojump_clock, status, step):
    async with with_goal(step, goal=budget(4)) as scene:
        await patch(scene, status=status)
        count = len(goal_events(scene))
        await scene.run()
        assert await used_and_status(scene) == (0, status)
        assert len(goal_events(scene)) == count


async def test_shutdown_pauses_the_goal_and_a_restart_pauses_it_once(autojump_clock):
    async with with_goal([used(5), NEVER_ENDS]) as scene:
        await scene.start()
        await wait_all_tasks_blocked()
        killed = await as_if_killed(scene.store, scene.id)
    for store in (scene.store, killed, killed):
        again = await cold(store, scene.id)
        assert (again.goal.tokens_used, again.goal.status) == (5, Status.PAUSED)
        causes = [e.event.cause for e in again.snapshot.events if isinstance(e.event, events.GoalUpdated)]
        assert causes == [goals.GoalCause.HOST, goals.GoalCause.TURN_OUTCOME]


async def test_a_turn_of_another_goal_leaves_the_new_one_as_it_is(autojump_clock):
    async with with_goal([used(5), NEVER_ENDS]) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await patch(scene, status="complete")
        await patch(scene, objective="y", status="blocked")
        await scene.interrupt(turn_id)
        await scene.wait(turn_id)
        assert await used_and_status(scene) == (0, "blocked")
