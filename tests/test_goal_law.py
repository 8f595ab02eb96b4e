"""The goal that a log gives is the live one, counters included, whatever a host, a model and its turns did to it."""

import json
from collections import Counter
from typing import Any

import attrs
import hypothesis
import pytest
import trio
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, goals
from tests.goal_support import BUSY, Cause, Status
from tests.ledger_support import AGAIN, Cold, as_if_killed, cold, patch, with_goal
from tests.log_laws import tokens_of_goal
from tests.turn_support import DONE, STILL, Scene, call, failure, say, settings, used

statuses = st.sampled_from([None, "active", "paused", "blocked", "usage_limited", "complete"])
patches = st.fixed_dictionaries(
    {},
    optional={
        "objective": st.sampled_from(["x", "y"]),
        "status": statuses,
        "token_budget": st.sampled_from([None, 5, 20, 60]),
    },
)
actions = st.one_of(
    patches.map(lambda values: ("set", values)),
    st.just(("clear", None)),
    st.integers(0, 30).map(lambda tokens: ("report", tokens)),
    st.sampled_from(["round", "retry", "steer"]).map(lambda name: (name, None)),
    st.sampled_from(["done", "done", "fail", "limit", "interrupt", "kill"]).map(lambda name: (name, None)),
    st.sampled_from(["go on", "stop the last", "drain"]).map(lambda name: (name, None)),
    st.sampled_from(["complete", "blocked", "paused", "active"]).map(
        lambda status: ("update_goal", {"status": status})
    ),
    st.sampled_from([{"objective": "z"}, {"objective": "z", "token_budget": 9}]).map(lambda v: ("create_goal", v)),
    st.floats(0.1, 5).map(lambda seconds: ("sleep", seconds)),
)


@attrs.define
class Play:
    """Turns whose streams do what the test says, step by step; some begin by themselves."""

    scene: Scene
    orders: trio.MemorySendChannel[Any]
    calls: int = 0

    @property
    def turn_id(self) -> str | None:
        """The turn that runs."""
        job = None if self.scene.resident is None else self.scene.resident.job
        return None if job is None else job.turn_id

    async def act(self, name: str, value: Any) -> None:
        scene = self.scene
        match name:
            case "set":
                await patch(scene, **value)
            case "clear":
                await scene.runtime.thread_goal_clear(scene.id)
            case "sleep":
                await trio.sleep(value)
            case "go on":
                await scene.runtime.continue_goal(scene.id)
            case "stop the last":
                for turn_id in [envelope.turn_id for envelope in scene.seen if envelope.event in scene.ends][-1:]:
                    await scene.interrupt(str(turn_id))
            case "drain":
                await scene.runtime.drain_active_turns(60)
                scene.runtime.resume_accepting_turns()
            case _:
                await self.in_turn(name, value)
        await wait_all_tasks_blocked()

    async def in_turn(self, name: str, value: Any) -> None:
        scene, turn_id = self.scene, self.turn_id or await self.scene.start()
        if name == "steer":
            await wait_all_tasks_blocked()
            await scene.steer(turn_id)
        elif name == "interrupt":
            await scene.interrupt(turn_id)
        elif name != "kill":
            for part in self.parts(name, value):
                self.orders.send_nowait(part)
        if name in ("done", "fail", "limit", "interrupt"):
            await scene.wait(turn_id)

    def parts(self, name: str, value: Any) -> list[Any]:
        match name:
            case "report":
                return [used(value)]
            case "round":
                return [say("x"), AGAIN, DONE]
            case "retry":
                return [failure()]
            case "done":
                return [DONE]
            case "fail" | "limit":
                return [failure("AUTHENTICATION" if name == "fail" else "USAGE_LIMIT")]
        self.calls += 1
        return [*call(f"c{self.calls}", name, json.dumps(value)), DONE]


class OrderedEngine(rt.InferenceEngine):
    """Streams what a channel brings."""

    id = "ordered"
    default_model = "m"

    def __init__(self) -> None:
        self.send, self.receive = trio.open_memory_channel[Any](100)

    def stream_turn(self, context: Any, request: Any) -> Any:
        return _Ordered(self.receive)


class _Ordered:
    def __init__(self, receive: Any) -> None:
        self._receive = receive

    async def __aenter__(self) -> Any:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(self, *error: object) -> None:
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        part = await self._receive.receive()
        if isinstance(part, Exception):
            raise part
        return part


async def play(script: list[tuple[str, Any]], goals_config: rt.GoalConfig) -> None:
    engine = OrderedEngine()
    config = settings(stream_idle_timeout=None, provider_retry_max_attempts=10_000, goals=goals_config)
    async with with_goal(engine=engine, config=config) as scene:
        game = Play(scene, engine.send)
        for name, value in script:
            await game.act(name, value)
            if game.turn_id is None:
                check_log(await cold(scene.store, scene.id), await scene.runtime.thread_goal_get(scene.id))
            if name == "kill":
                killed = await as_if_killed(scene.store, scene.id)
                before = await scene.runtime.thread_goal_get(scene.id)
                compare_killed(before, (await cold(killed, scene.id)).goal)
        check_turns(scene)


def check_log(again: Cold, live: goals.Goal | None) -> None:
    """The goal that a log gives is the live one; what attempts used that were begun for it is what it used.

    A turn that began with a goal which nobody changed meanwhile was charged to it whole.
    """
    assert again.goal == live
    log = again.snapshot.events
    if live is not None:
        assert live.tokens_used == tokens_of_goal(log, live.goal_id)
    goal_id: str | None = None
    attached: dict[str, str] = {}
    for envelope in log:
        match envelope.event:
            case events.GoalUpdated(goal, cause):
                goal_id = goal.goal_id if goal.status is Status.ACTIVE else None
                attached = attached if cause is Cause.BUDGET else {}
            case events.GoalCleared():
                goal_id, attached = None, {}
            case events.TurnStarted() if goal_id is not None:
                attached = {str(envelope.turn_id): goal_id}
            case events.UsageRecorded() as record if record.turn_id in attached:
                assert record.goal_id == attached[record.turn_id]


def check_turns(scene: Scene) -> None:
    """No turn began by itself while the goal was not active, and each that began ended at most once."""
    active, ends = True, Counter(str(envelope.turn_id) for envelope in scene.seen if envelope.event in scene.ends)
    for event in scene.happened:
        if isinstance(event, events.GoalUpdated | events.GoalCleared):
            active = isinstance(event, events.GoalUpdated) and event.goal.status is Status.ACTIVE
        elif isinstance(event, events.TurnStarted) and event.automatic:
            assert active
    assert set(ends.values()) <= {1}


def compare_killed(before: goals.Goal | None, after: goals.Goal | None) -> None:
    """A killed process has lost time at most, and perhaps the last reading; an attached goal is paused."""
    assert (before is None) == (after is None)
    if before is None or after is None:
        return
    assert (after.goal_id, after.objective, after.token_budget) == (
        before.goal_id,
        before.objective,
        before.token_budget,
    )
    assert after.time_used <= before.time_used
    if after.tokens_used == before.tokens_used and before.status is Status.ACTIVE:
        assert after.status in (Status.PAUSED, Status.ACTIVE)
    elif after.tokens_used == before.tokens_used:
        assert after.status is before.status


@pytest.mark.parametrize("goals_config", [STILL, BUSY], ids=["goals that wait", "goals that go on"])
@hypothesis.settings(max_examples=25)
@hypothesis.given(script=st.lists(actions, max_size=25))
def test_the_fold_of_all_events_is_the_live_goal(goals_config, script):
    trio.run(play, script, goals_config, clock=MockClock(autojump_threshold=0))
