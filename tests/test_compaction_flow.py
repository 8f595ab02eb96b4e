"""When a turn compacts: thresholds, what a window must have grown by, what a failure means."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, inference, stores, transcript
from roder_trio.providers.scripted import ScriptedEngine
from roder_trio.schema.inference import ModelDescriptor
from tests.ledger_support import (
    AGAIN,
    COMMIT,
    COMPACT_ALWAYS,
    GO,
    cold,
    compact_calls,
    compact_directly,
    ends_of,
    goal_of,
    item,
    limit,
    meta,
    patch,
    persist,
    sealed,
    skips,
    with_goal,
)
from tests.turn_support import DONE, failure, say, settings, used


def text(tokens: int, *, besides: str = "go") -> transcript.UserMessage:
    """A message that, together with `besides`, is estimated at this many tokens."""
    return transcript.UserMessage("x" * (4 * tokens - len(besides)))


@pytest.mark.parametrize(
    ("threshold", "tokens", "due"),
    [(1_000, 5, False), (1_000, 999, False), (1_000, 1_000, True), (0, 100_000, False), (None, 100_000, False)],
)
async def test_the_threshold_of_the_config_is_reached_or_it_is_not(autojump_clock, threshold, tokens, due):
    config = settings(auto_compact_token_limit=threshold)
    async with with_goal([DONE], compact=[COMMIT], config=config) as scene:
        await persist(scene, (text(tokens),))
        await scene.run()
        assert (compact_calls(scene), skips(scene)) == (int(due), [])


def model(**fields: Any) -> ModelDescriptor:
    return ModelDescriptor(provider="scripted", id="m", **fields)


@pytest.mark.parametrize(
    ("row", "tokens", "due"),
    [
        ({}, 100_000, False),
        ({"context_window": 2_000}, 1_799, False),
        ({"context_window": 2_000}, 1_800, True),
        ({"context_window": 2_000, "auto_compact_token_limit": 500}, 500, True),
        ({"context_window": 2_000, "auto_compact_token_limit": 0}, 2_000, False),
        ({"context_window": 2_000, "supports": frozenset({"compaction"})}, 1_999, False),
        ({"context_window": 2_000, "supports": frozenset({"compaction"})}, 2_000, True),
    ],
)
async def test_without_a_limit_in_the_config_the_models_own_holds(autojump_clock, row, tokens, due):
    async with with_goal([DONE], compact=[COMMIT], models=[model(**row)]) as scene:
        await persist(scene, (text(tokens),))
        await scene.run()
        assert compact_calls(scene) == int(due)
        in_band = 1_800 if row.get("supports") else None
        assert scene.engine.requests[0].runtime.auto_compact_token_limit == in_band


async def test_an_engine_that_requires_a_compaction_uses_the_plain_threshold(autojump_clock):
    row = model(context_window=2_000, supports=frozenset({"compaction"}))
    script = {"compact": [COMMIT], "models": [row], "requires_native_compaction": True}
    async with with_goal([DONE], **script) as scene:
        await persist(scene, (text(1_800),))
        await scene.run()
        assert compact_calls(scene) == 1
        assert scene.engine.requests[0].runtime.auto_compact_token_limit is None


async def test_what_the_provider_counted_makes_a_window_larger_than_its_estimate(autojump_clock):
    steps = [used(990, 1), say("x" * 40), AGAIN, DONE], [DONE]
    async with with_goal(*steps, compact=[COMMIT], config=limit(1_000)) as scene:
        await scene.run()
        assert compact_calls(scene) == 1
        [started] = scene.of(events.ContextCompactionStarted)
        assert started.estimated_tokens == 11


async def test_a_count_from_before_a_boundary_in_the_stream_is_forgotten_though_that_stream_broke(autojump_clock):
    band = inference.Compaction("completed", "a", item() | {"encrypted_content": "s" * 80})
    steps = [used(990), AGAIN, DONE], [band, failure()], [AGAIN, DONE], [DONE]
    config = limit(1_000, provider_retry_initial_backoff=0.0)
    async with with_goal(*steps, compact=[COMMIT], config=config) as scene:
        assert (await scene.run()).status == "completed"
        assert (compact_calls(scene), skips(scene), len(scene.engine.requests)) == (0, [], 4)


async def test_a_count_from_before_a_boundary_of_a_host_is_forgotten(autojump_clock):
    hold = trio.Event()
    steps = [used(990), AGAIN, DONE], [hold, failure()], [DONE]
    config = limit(1_000, provider_retry_initial_backoff=0.0)
    async with with_goal(*steps, compact=[COMMIT] * 2, config=config) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await compact_directly(scene)
        await persist(scene, (text(200, besides=""),))
        hold.set()
        assert (await scene.wait(turn_id)).status == "completed"
        assert (compact_calls(scene), skips(scene), len(scene.engine.requests)) == (1, [], 3)


@pytest.mark.parametrize(
    ("threshold", "before", "tokens", "due"),
    [
        (8_000, 7_300, 8_050, False),
        (8_000, 7_300, 8_100, True),
        (115_200, 113_500, 118_499, False),
        (115_200, 113_500, 118_500, True),
    ],
)
async def test_a_window_must_have_grown_past_its_last_boundary(autojump_clock, threshold, before, tokens, due):
    steps = [AGAIN, DONE], [DONE]
    async with with_goal(*steps, compact=[COMMIT], config=limit(threshold)) as scene:
        await persist(scene, (GO, sealed(before), text(tokens - before)))
        await scene.run()
        assert compact_calls(scene) == int(due)
        assert skips(scene) == ([] if due else ["hysteresis"])
        again = await cold(scene.store, scene.id)
        assert again.fold == await meta(scene)


async def test_a_restart_does_not_change_the_decision(autojump_clock):
    store = stores.MemoryThreadStore()
    async with with_goal([DONE], config=limit(8_000), store=store) as scene:
        await persist(scene, (GO, sealed(7_300), text(750)))
        await scene.run()
        assert skips(scene) == ["hysteresis"]
    engine = ScriptedEngine([[DONE]], compact=[COMMIT])
    async with (
        rt.open_runtime(engines=[engine], store=store, config=limit(8_000)) as runtime,
        runtime.subscribe_events(kinds=["compaction"]) as seen,
    ):
        await runtime.run_turn(scene.id, "go")
        assert [seen.take().event.reason for _ in range(seen.buffered)] == ["hysteresis"]


async def test_a_long_turn_may_compact_often(autojump_clock):
    steps = [[say("x" * 4_000), AGAIN, DONE]] * 3
    async with with_goal(*steps, [DONE], compact=[COMMIT] * 4, config=limit(1_000)) as scene:
        await scene.run()
        assert compact_calls(scene) == 3
        assert all(len(request.transcript) == 2 for request in scene.engine.requests[1:])
        assert list(ends_of(scene).values()) == [["Recorded"]] * 3


async def test_a_boundary_that_left_too_much_ends_it_for_the_turn_and_not_for_the_next(autojump_clock):
    big = sealed(1_200).payload
    compact = [[inference.ProviderMetadata(big), DONE]] * 2
    steps = [[say("x" * 400), AGAIN, DONE]] * 3
    async with with_goal(*steps, [DONE], [DONE], compact=compact, config=limit(1_000)) as scene:
        await persist(scene, (text(1_000),))
        await scene.run()
        assert (compact_calls(scene), skips(scene)) == (1, ["failed_before"])
        assert transcript.ProviderMetadata(big) in await scene.history()
        await scene.run()
        assert compact_calls(scene) == 2


async def test_a_failed_compaction_ends_it_for_the_turn_and_not_for_the_next(autojump_clock):
    steps = [[say("a"), AGAIN, DONE]] * 3
    compact = [failure("AUTHENTICATION"), COMMIT]
    async with with_goal(*steps, [DONE], [DONE], compact=compact, config=COMPACT_ALWAYS) as scene:
        assert (await scene.run()).status == "completed"
        assert (compact_calls(scene), skips(scene)) == (1, ["failed_before"])
        await scene.run()
        assert list(ends_of(scene).values()) == [["Failed"], ["Recorded"]]


async def test_a_compaction_is_no_model_call_and_comes_before_the_step_is_announced(autojump_clock):
    async with with_goal([DONE], compact=[COMMIT], config=limit(1, max_model_calls_per_turn=1)) as scene:
        assert (await scene.run()).status == "completed"
        kinds = [kind for kind in scene.kinds if kind.startswith(("compaction", "inference"))]
        assert kinds == ["compaction.started", "compaction.recorded", "inference.started", "inference.completed"]


async def test_tokens_of_a_compaction_in_a_turn_are_charged_and_its_goal_is_the_current_one(autojump_clock):
    async with with_goal([used(10), say("x"), AGAIN, DONE], [DONE], compact=[COMMIT], config=limit(1)) as scene:
        await scene.run()
        assert (await goal_of(scene)).tokens_used == 50


async def test_pausing_a_goal_in_a_compaction_lets_its_next_attempt_go_uncharged(autojump_clock):
    hold = trio.Event()
    compact = [[used(30, 10), hold, failure()], COMMIT]
    async with with_goal([DONE], compact=compact, config=COMPACT_ALWAYS) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await patch(scene, status="paused")
        hold.set()
        assert (await scene.wait(turn_id)).usage.total_tokens == 80
        assert (await goal_of(scene)).tokens_used == 40
