"""When a summary follows a native compaction that came to nothing, and when it never does."""

import pytest

import roder_trio as rt
from tests.ledger_support import (
    boundary,
    compact_calls,
    ends_of,
    meta,
    persist,
    with_goal,
)
from tests.summary_support import (
    DRAFT,
    LONG,
    OVERFLOW,
    SHORT,
    U40,
    drafts,
    quick,
    summaries,
)
from tests.turn_support import DONE, failure

UNSUPPORTED = failure("INVALID_REQUEST", cause="compaction_unsupported")
DECLINED = {
    "none": None,
    "unsupported": UNSUPPORTED,
    "late": [U40, UNSUPPORTED],
    "window": [U40, boundary(), OVERFLOW],
    "request": failure("REQUEST_TOO_LARGE"),
}


@pytest.mark.parametrize("native", DECLINED.values(), ids=DECLINED)
@pytest.mark.parametrize("way", ["manual", "auto", "overflow"])
async def test_a_summary_follows_a_native_compaction_that_can_not_be(autojump_clock, native, way):
    first = [OVERFLOW] if way == "overflow" else []
    config = quick(None if way == "overflow" else 1_000)
    async with with_goal(*first, DRAFT, [DONE], compact=[native], config=config) as scene:
        await persist(scene, LONG)
        await (scene.runtime.compact_thread(scene.id) if way == "manual" else scene.run())
        (made,) = summaries(await scene.history())
        assert (made.summary, compact_calls(scene), len(drafts(scene))) == (SHORT, 1, 1)
        assert list(ends_of(scene).values()) == [["Recorded"]]
        billed = 80 if isinstance(native, list) else 40
        assert (await meta(scene)).total_tokens == billed


@pytest.mark.parametrize("kind", ["AUTHENTICATION", "INVALID_REQUEST", "QUOTA_EXCEEDED", "PROTOCOL", "CONTENT_FILTER"])
@pytest.mark.parametrize("way", ["manual", "auto"])
async def test_no_summary_follows_any_other_failure(autojump_clock, kind, way):
    async with with_goal([DONE], compact=[failure(kind)], config=quick()) as scene:
        await persist(scene, LONG)
        if way == "auto":
            await scene.run()
        else:
            with pytest.raises(rt.ProviderFailure):
                await scene.runtime.compact_thread(scene.id)
        assert (drafts(scene), list(ends_of(scene).values())) == ([], [["Failed"]])


@pytest.mark.parametrize("native", [*DECLINED.values()], ids=DECLINED)
@pytest.mark.parametrize("way", ["manual", "auto", "direct"])
async def test_an_engine_that_requires_its_own_compaction_never_writes_a_summary(autojump_clock, native, way):
    script = {"compact": [native], "requires_native_compaction": True, "config": quick()}
    async with with_goal(**script) as scene:
        await persist(scene, LONG)
        if way == "auto":
            assert (await scene.run()).status == "failed"
        else:
            history = await scene.history()
            with pytest.raises(rt.ProviderFailure):
                await (
                    scene.runtime.compact_thread(scene.id)
                    if way == "manual"
                    else scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", history)
                )
        assert (scene.engine.requests, compact_calls(scene)) == ([], 1)


@pytest.mark.parametrize("native", [OVERFLOW, failure("REQUEST_TOO_LARGE")])
async def test_a_compaction_in_the_callers_task_never_falls_back(autojump_clock, native):
    async with with_goal(compact=[native], config=quick()) as scene:
        await persist(scene, LONG)
        with pytest.raises(rt.ProviderFailure):
            await scene.runtime.compact_with_provider(scene.id, "bare", "scripted", "m", await scene.history())
        assert drafts(scene) == []
