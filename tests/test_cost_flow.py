"""What turns, threads and goals cost: while they run, after a restart, with retries, models inside and wire costs."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, goals, inference, providers, stores, transcript
from roder_trio.logic.turn import Step
from roder_trio.providers import prices
from roder_trio.providers.scripted import NEVER_ENDS
from roder_trio.schema.cost import NO_COST
from tests.cost_support import KNOWN, PARTLY, ROW, record
from tests.ledger_support import as_if_killed, boundary, item
from tests.turn_support import DONE, Scene, failure, one_thread, say, settings, used

AGAIN = inference.ProviderMetadata({"end_turn": False})
STEP = [inference.Usage(ROW), say("hi"), DONE]
ROUND = [inference.Usage(ROW), say("on"), AGAIN, DONE]
TWICE = Decimal("0.0692")
CATALOG = """
[models.scripted.scripted]
context_window = 100_000
price = { prompt = 2, cached = 0.2, creation = 2.5, completion = 8 }
[models.scripted.other]
price = { prompt = 10, completion = 50 }
[models.scripted.dear]
"""


class Loads(stores.MemoryThreadStore):
    """A memory store that counts its loads."""

    count = 0

    async def load_thread(self, thread_id: str) -> rt.ThreadSnapshot | None:
        self.count += 1
        return await super().load_thread(thread_id)


class Ends(rt.Hook):
    """Remembers the outcomes that it is told of."""

    def __init__(self) -> None:
        self.outcomes: list[rt.TurnOutcome] = []

    async def turn_ended(self, outcome: rt.TurnOutcome) -> None:
        self.outcomes.append(outcome)


Priced = Callable[..., Any]


@pytest.fixture
def priced(tmp_path: Path) -> Priced:
    """Opens a scene whose model has the prices of the table."""
    path = tmp_path / "models.toml"
    path.write_text(CATALOG, encoding="utf-8")

    @asynccontextmanager
    async def open_scene(*steps: Any, store: Any = None, **more: Any) -> AsyncIterator[Scene]:
        config = attrs.evolve(more.pop("config", settings()), catalog=str(path))
        store = store or Loads()
        async with one_thread(*steps, store=store, config=config, **more) as scene:
            scene.store = store
            yield scene

    return open_scene


def cost_of(outcome: rt.TurnOutcome) -> rt.Cost:
    return rt.Cost(outcome.cost, outcome.known_cost)


async def again(priced: Priced, scene: Scene, turn_id: str) -> rt.TurnOutcome:
    """The outcome as a new process reads it: one load to hydrate, one for the cost."""
    store = Loads()
    held = scene.store._active[scene.id]
    await store.create_thread(held.created)
    await store.append(scene.id, list(held.records))
    async with priced(store=store) as other:
        store.count = 0
        outcome = await other.runtime.wait_turn(scene.id, turn_id)
        assert store.count == 2
        return outcome


async def test_a_turn_costs_what_its_attempts_cost_and_nothing_is_loaded_for_that(
    priced: Priced, autojump_clock: MockClock
) -> None:
    async with priced(ROUND, STEP) as scene:
        loads = scene.store.count
        outcome = await scene.run()
        assert (outcome.cost, outcome.known_cost) == (TWICE, TWICE)
        assert cost_of(await scene.wait(outcome.turn_id)) == cost_of(outcome)
        assert scene.store.count == loads + 1
        assert await again(priced, scene, outcome.turn_id) == outcome


async def test_the_charges_of_a_turn_long_ago_are_read_from_the_log(
    priced: Priced, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roder_trio.actors._desk.MAX_ENDED", 1)
    async with priced(ROUND, STEP, STEP) as scene:
        first, second = await scene.run(), await scene.run()
        loads = scene.store.count
        assert await scene.wait(second.turn_id) == second
        assert scene.store.count == loads
        assert await scene.wait(first.turn_id) == first
        assert scene.store.count == loads + 1


async def test_a_turn_before_a_summary_is_charged_by_the_load_that_tells_its_end(
    priced: Priced, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roder_trio.actors._desk.MAX_ENDED", 1)
    async with priced(STEP, STEP, STEP) as scene:
        first = await scene.run()
        summary = transcript.ContextCompaction("all of it")
        await scene.runtime.persist_turn_item(scene.id, "host", summary)
        await scene.run()
        loads = scene.store.count
        assert await scene.wait(first.turn_id) == first
        assert scene.store.count == loads + 1


async def test_the_handle_of_a_turn_and_the_hooks_know_its_cost(priced: Priced, autojump_clock: MockClock) -> None:
    path, ends = None, Ends()
    async with priced(STEP) as scene:
        path = scene.runtime._core.services.config
        async with scene.runtime.turn(scene.id, "go") as turn:
            pass
        assert turn.outcome.cost == KNOWN.usd
    engine = providers.ScriptedEngine([STEP])
    async with rt.open_runtime(engines=[engine], hooks=[ends], config=path) as runtime:
        thread = await runtime.create_thread()
        outcome = await runtime.run_turn(thread.thread_id, "go")
    assert ends.outcomes == [outcome]
    assert cost_of(outcome) == KNOWN


async def test_a_failed_attempt_and_its_retry_are_both_charged(priced: Priced, autojump_clock: MockClock) -> None:
    async with priced([inference.Usage(ROW), failure()], STEP) as scene:
        outcome = await scene.run()
        assert outcome.cost == TWICE
        assert await again(priced, scene, outcome.turn_id) == outcome


async def test_each_try_of_a_fallback_has_the_price_of_its_own_provider_and_model(
    priced: Priced, autojump_clock: MockClock
) -> None:
    spent = [inference.Usage(ROW), failure("QUOTA_EXCEEDED")]
    first = providers.ScriptedEngine([spent])
    second = providers.ScriptedEngine([[used(1_000, 100), say("hi"), DONE]], id="second")
    async with priced(engine=providers.fallback(first, second)) as scene:
        outcome = await scene.run()
        assert cost_of(outcome) == PARTLY
        assert [r.provider for r in scene.of(events.UsageRecorded)] == ["scripted", "second"]
        assert await again(priced, scene, outcome.turn_id) == outcome


async def test_an_interrupted_turn_costs_what_it_used(priced: Priced, autojump_clock: MockClock) -> None:
    async with priced([inference.Usage(ROW), say("hi"), NEVER_ENDS]) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        await scene.interrupt(turn_id)
        outcome = await scene.wait(turn_id)
        assert (outcome.status, cost_of(outcome)) == ("interrupted", KNOWN)
        assert await again(priced, scene, outcome.turn_id) == outcome


async def test_a_turn_that_a_crash_cut_costs_what_the_log_holds(priced: Priced, autojump_clock: MockClock) -> None:
    async with priced([inference.Usage(ROW), say("hi"), NEVER_ENDS]) as scene:
        turn_id = await scene.start()
        await wait_all_tasks_blocked()
        killed = await as_if_killed(scene.store, scene.id)
        async with priced(store=killed) as other:
            outcome = await other.runtime.wait_turn(scene.id, turn_id)
            assert (outcome.reason, cost_of(outcome)) == ("runtime_restart", KNOWN)
            killed_again = await as_if_killed(killed, scene.id)
        async with priced(store=killed_again) as third:
            assert await third.runtime.wait_turn(scene.id, turn_id) == outcome


async def test_a_model_without_a_price_leaves_a_turn_unknown(priced: Priced, autojump_clock: MockClock) -> None:
    async with priced(STEP, STEP) as scene:
        await scene.run()
        outcome = await scene.run(model="dear")
        assert (outcome.cost, outcome.known_cost) == (None, 0)
        assert await scene.runtime.thread_cost(scene.id) == PARTLY
        assert await again(priced, scene, outcome.turn_id) == outcome


async def test_a_compaction_in_a_turn_is_part_of_its_cost(priced: Priced, autojump_clock: MockClock) -> None:
    compact = [[inference.Usage(ROW), boundary(), DONE]]
    config = settings(auto_compact_token_limit=1)
    async with priced(STEP, compact=compact, config=config) as scene:
        outcome = await scene.run()
        assert outcome.cost == TWICE
        assert await again(priced, scene, outcome.turn_id) == outcome


async def test_a_manual_compaction_is_part_of_the_threads_cost_alone(priced: Priced, autojump_clock: MockClock) -> None:
    async with priced(STEP, compact=[[inference.Usage(ROW), boundary(), DONE]]) as scene:
        outcome = await scene.run()
        await scene.runtime.compact_thread(scene.id)
        assert cost_of(await scene.wait(outcome.turn_id)) == KNOWN
        assert (await scene.runtime.thread_cost(scene.id)).usd == TWICE


async def test_what_is_used_under_a_turns_id_after_its_end_is_not_the_turns(
    priced: Priced, autojump_clock: MockClock
) -> None:
    async with priced(STEP, compact=[[inference.Usage(ROW), boundary(), DONE]]) as scene:
        outcome = await scene.run()
        history = await scene.history()
        await scene.runtime.compact_with_provider(scene.id, outcome.turn_id, "scripted", "scripted", history)
        assert cost_of(await scene.wait(outcome.turn_id)) == KNOWN
        assert cost_of(await again(priced, scene, outcome.turn_id)) == KNOWN
        assert (await scene.runtime.thread_cost(scene.id)).usd == TWICE


# -- what the wire tells -----------------------------------------------------------------------------------------------


def told(usage: dict[str, Any], **more: Any) -> inference.ProviderMetadata:
    return inference.ProviderMetadata({"model": "scripted", "usage": usage, **more})


async def test_a_cost_of_the_wire_is_kept_with_its_attempt_and_wins(priced: Priced, autojump_clock: MockClock) -> None:
    metadata = told({"cost": 0.05, "prompt_tokens": 3})
    async with priced([inference.Usage(ROW), say("hi"), metadata, DONE]) as scene:
        outcome = await scene.run()
        assert cost_of(outcome) == rt.Cost(Decimal("0.05"), Decimal("0.05"))
        (stored,) = [item for item in await scene.history() if isinstance(item, transcript.ProviderMetadata)]
        attempt_id = scene.engine.calls[0].context.attempt_id
        assert stored.payload == {**metadata.payload, "attempt_id": attempt_id}
        assert (await scene.runtime.thread_cost(scene.id)).usd == Decimal("0.05")
        assert await again(priced, scene, outcome.turn_id) == outcome


async def test_tokens_of_another_model_inside_an_attempt_have_that_models_price(
    priced: Priced, autojump_clock: MockClock
) -> None:
    entry = {"type": "advisor_message", "model": "other", "input_tokens": 1_000, "output_tokens": 100}
    usage = ROW + rt.TokenUsage(1_000, 100, 1_100)
    step = [inference.Usage(usage), say("hi"), told({"iterations": [entry]}), DONE]
    async with priced(step) as scene:
        outcome = await scene.run()
        assert outcome.cost == KNOWN.known_usd + Decimal("0.01") + Decimal("0.005")
        assert await again(priced, scene, outcome.turn_id) == outcome


async def test_metadata_that_tells_no_cost_is_stored_as_it_came(priced: Priced, autojump_clock: MockClock) -> None:
    metadata = told({"input_tokens": 3})
    async with priced([inference.Usage(ROW), say("hi"), metadata, DONE]) as scene:
        await scene.run()
        assert transcript.ProviderMetadata(metadata.payload) in await scene.history()


async def test_a_cost_told_by_a_compaction_is_kept_with_its_attempt(priced: Priced, autojump_clock: MockClock) -> None:
    compacted = inference.ProviderMetadata({**boundary().payload, "usage": {"cost": 0.5}})
    config = settings(auto_compact_token_limit=1)
    async with priced(STEP, compact=[[inference.Usage(ROW), compacted, DONE]], config=config) as scene:
        outcome = await scene.run()
        assert outcome.cost == Decimal("0.5") + KNOWN.known_usd
        assert await again(priced, scene, outcome.turn_id) == outcome


def test_a_step_keeps_what_tells_its_cost_also_beside_nothing_but_a_boundary() -> None:
    step = Step("one", "known", "a1")
    metadata = told({"cost": 1}, output=[item()])
    stored = step.absorb(metadata)
    assert [part.payload["output"] for part in stored] == [[item()]]
    (rest,) = step.held
    assert rest.payload == {**metadata.payload, "output": [], "attempt_id": "a1"}


# -- threads and goals -------------------------------------------------------------------------------------------------


async def test_a_threads_cost_takes_one_load_and_is_the_sum_of_its_turns(
    priced: Priced, autojump_clock: MockClock
) -> None:
    async with priced(STEP, STEP) as scene:
        assert await scene.runtime.thread_cost(scene.id) == NO_COST
        await scene.run()
        await scene.run()
        loads = scene.store.count
        assert (await scene.runtime.thread_cost(scene.id)).usd == TWICE
        assert scene.store.count == loads + 1
        with pytest.raises(rt.ThreadNotFound):
            await scene.runtime.thread_cost("nobody")
        with pytest.raises(rt.ThreadNotFound):
            await scene.runtime.thread_cost("nobody", goal=True)


async def test_a_goals_cost_holds_its_attempts_and_the_copies_of_threads_below_by_price(
    priced: Priced, autojump_clock: MockClock
) -> None:
    async with priced(STEP, STEP) as scene:
        await scene.run()
        assert await scene.runtime.thread_cost(scene.id, goal=True) == NO_COST
        await scene.runtime.thread_goal_set(scene.id, goals.GoalPatch(objective="prove it"))
        await scene.run()
        assert await scene.runtime.thread_cost(scene.id, goal=True) == KNOWN
        goal = await scene.runtime.thread_goal_get(scene.id)
        copied = record("below", goal_id=goal.goal_id, origin_thread_id="child", provider="scripted", model="scripted")
        await scene.store.append(scene.id, [attrs.evolve(copied, thread_id=scene.id, turn_id=None)])
        assert (await scene.runtime.thread_cost(scene.id, goal=True)).usd == TWICE
        assert (await scene.runtime.thread_cost(scene.id)).usd == TWICE
        await scene.runtime.thread_goal_clear(scene.id)
        assert await scene.runtime.thread_cost(scene.id, goal=True) == NO_COST


# -- storage -----------------------------------------------------------------------------------------------------------


class NoUsage(Loads):
    """A store that never stores usage."""

    async def append(self, thread_id: str, records: Any) -> None:
        if any(record.kind == "usage.recorded" for record in records):
            raise rt.StorageError("no usage")
        await super().append(thread_id, records)


async def test_usage_that_could_not_be_stored_costs_nothing_as_its_turn_says(
    priced: Priced, autojump_clock: MockClock
) -> None:
    async with priced(STEP, store=NoUsage()) as scene:
        outcome = await scene.run()
        assert (outcome.error_kind, outcome.usage, cost_of(outcome)) == ("storage", None, NO_COST)


async def test_the_outcome_of_a_thread_that_is_gone_by_then_has_no_known_cost(
    priced: Priced, autojump_clock: MockClock
) -> None:
    class Gone(stores.MemoryThreadStore):
        async def load_thread(self, thread_id: str) -> rt.ThreadSnapshot | None:
            snapshot, self.loaded = await super().load_thread(thread_id), getattr(self, "loaded", 0) + 1
            return snapshot if self.loaded == 1 else None

    async with priced(STEP) as scene:
        outcome = await scene.run()
        held = scene.store._active[scene.id]
        gone = Gone()
        await gone.create_thread(held.created)
        await gone.append(scene.id, list(held.records))
    async with priced(store=gone) as other:
        found = await other.runtime.wait_turn(scene.id, outcome.turn_id)
        assert (found.usage, found.cost, found.known_cost) == (outcome.usage, None, 0)


# -- public lists ------------------------------------------------------------------------------------------------------


async def test_a_model_of_the_public_lists_has_their_price_unless_the_catalog_has_one(tmp_path: Path) -> None:
    pytest.importorskip("genai_prices", reason="needs the extra 'prices'")
    path = tmp_path / "models.toml"
    path.write_text("[models.openai.gpt-5]\nprice = { prompt = 1 }\n", encoding="utf-8")
    usage = rt.TokenUsage(1_000, 0, 1_000)
    engine = providers.ScriptedEngine([[inference.Usage(usage), say("hi"), DONE]] * 3, id="openai")
    async with rt.open_runtime(engines=[engine], config=rt.RuntimeConfig(catalog=str(path))) as runtime:
        thread = await runtime.create_thread()
        listed = await runtime.run_turn(thread.thread_id, "go", model="gpt-5-mini")
        assert listed.cost == prices.charge("openai", "gpt-5-mini", usage, thread.created_at)
        own = await runtime.run_turn(thread.thread_id, "go", model="gpt-5")
        assert own.cost == Decimal("0.001")
        unknown = await runtime.run_turn(thread.thread_id, "go", model="no-such-model")
        assert unknown.cost is None
        assert listed.cost is not None
        assert await runtime.thread_cost(thread.thread_id) == rt.Cost(None, listed.cost + own.cost)


async def test_a_cancelled_question_for_a_cost_changes_nothing(priced: Priced, autojump_clock: MockClock) -> None:
    async with priced(STEP) as scene:
        await scene.run()
        with trio.CancelScope() as scope:
            scope.cancel()
            await scene.runtime.thread_cost(scene.id)
        assert scope.cancelled_caught
        assert await scene.runtime.thread_cost(scene.id) == KNOWN
        assert scene.of(events.TurnCompleted)
