"""Turns whose old results are pruned: when that suffices, what the model sees, what a restart reads."""

import pytest

import roder_trio as rt
from roder_trio import events, stores, transcript
from roder_trio.providers.scripted import ScriptedEngine
from tests.ledger_support import (
    AGAIN,
    boundary,
    cold,
    compactions,
    ends_of,
    persist,
    sealed,
    skips,
    with_goal,
)
from tests.summary_support import DRAFT, TASK, drafts, quick, results, sampled, shown
from tests.turn_support import DONE, history_of, say, used


async def test_old_results_are_pruned_where_that_suffices(autojump_clock):
    store = stores.MemoryThreadStore()
    history = (TASK, *results(*(120_000,) * 4))
    async with with_goal([AGAIN, DONE], [DONE], store=store, config=quick(115_200)) as scene:
        await persist(scene, history)
        assert (await scene.run()).status == "completed"
        assert [shown(request) for request in sampled(scene)] == [[54, 54, 120_000, 120_000]] * 2
        (pruned,) = scene.of(events.ContextPruned)
        assert pruned.items == (("bare", 2), ("bare", 4))
        assert pruned.tokens_before - pruned.tokens_after >= 20_000
        assert (compactions(scene), (await scene.history())[:9]) == ([], list(history))
    engine = ScriptedEngine([[DONE]])
    async with rt.open_runtime(engines=[engine], store=store, config=quick(115_200)) as runtime:
        await runtime.run_turn(scene.id, "cold")
        assert shown(engine.requests[0]) == [54, 54, 120_000, 120_000]


async def test_a_real_count_is_forgotten_once_results_were_pruned(autojump_clock):
    steps = [used(200_000), say("x"), AGAIN, DONE], [say("y"), AGAIN, DONE], [DONE]
    async with with_goal(*steps, config=quick(160_000)) as scene:
        await persist(scene, (TASK, *results(*(120_000,) * 4)))
        await scene.run()
        assert len(scene.of(events.ContextPruned)) == 1
        assert (compactions(scene), len(sampled(scene))) == ([], 3)


@pytest.mark.parametrize("why", ["too little", "required", "manual"])
async def test_nothing_is_pruned_where_that_would_not_do(autojump_clock, why):
    required = why == "required"
    script = {"compact": [[boundary(), DONE]], "requires_native_compaction": required}
    async with with_goal([DONE], config=quick(115_200 if required else 40_000), **script) as scene:
        history = (TASK, *results(120_000, *(120_000 if required else 60_000,) * 3))
        await persist(scene, history)
        await (scene.runtime.compact_thread(scene.id) if why == "manual" else scene.run())
        assert (scene.of(events.ContextPruned), list(ends_of(scene).values())) == ([], [["Recorded"]])
        (request,) = scene.engine.compact_requests
        assert shown(request) == [len(entry.result) for entry in history if isinstance(entry, transcript.ToolResult)]


async def test_a_window_just_behind_its_boundary_is_neither_pruned_nor_compacted(autojump_clock):
    async with with_goal([DONE], config=quick(8_000)) as scene:
        await persist(scene, (TASK, sealed(7_300), *results(2_800)))
        await scene.run()
        assert (skips(scene), scene.of(events.ContextPruned)) == (["hysteresis"], [])


async def test_a_pruned_window_is_summarised_as_it_is_shown(autojump_clock):
    async with with_goal([DONE], DRAFT, [DONE], config=quick(115_200)) as scene:
        await persist(scene, (TASK, *results(*(120_000,) * 4)))
        await scene.run()
        await scene.runtime.compact_thread(scene.id)
        assert (
            "result of read_file: [tool output pruned: read_file, 120000 bytes" in drafts(scene)[0].transcript[0].text
        )
    assert len(history_of((await cold(scene.store, scene.id)).snapshot)[2].result) == 120_000
