"""Whether a turn may begin: the checks in their order, waiting for a slot, and commands in every state of a thread."""

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import roder_trio as rt
from roder_trio import events, inference, providers, stores, testing, transcript
from roder_trio.providers.scripted import NEVER_ENDS
from roder_trio.schema.inference import InferenceCapabilities
from tests.turn_support import DONE, CountingStore, one_thread, say, settings, started, texts

NEVER = NEVER_ENDS
BOUNDARY = inference.ProviderMetadata({"output": [{"type": "compaction", "id": "c", "encrypted_content": "e"}]})
LEVELS = inference.ModelDescriptor(provider="scripted", id="m", supported_reasoning=("low", "high"))


class SlowCleanup(providers.ScriptedEngine):
    """Takes a second to close each stream, whatever the cause."""

    def __init__(self, *steps: Any, seconds: float = 1.0, **script: Any) -> None:
        super().__init__(steps, **script)
        self.seconds = seconds

    def stream_turn(self, context: Any, request: Any) -> Any:
        return _Slow(super().stream_turn(context, request), self.seconds)

    def compact_turn(self, context: Any, request: Any) -> Any:
        block = super().compact_turn(context, request)
        return None if block is None else _Slow(block, self.seconds)


class _Slow:
    def __init__(self, block: Any, seconds: float) -> None:
        self._block = block
        self._seconds = seconds

    async def __aenter__(self) -> Any:
        return await self._block.__aenter__()

    async def __aexit__(self, *exc: object) -> Any:
        with trio.CancelScope(shield=True):
            await trio.sleep(self._seconds)
        return await self._block.__aexit__(*exc)


# -- the checks --------------------------------------------------------------------------------------------------------


async def test_the_first_check_that_fails_is_the_one_that_is_raised(tmp_path: Path) -> None:
    """Each request fails all checks from its own on; the ones before it pass."""
    text_only = providers.ScriptedEngine(
        [[NEVER]], id="text", capabilities=InferenceCapabilities.text_only(), models=[LEVELS]
    )
    store = CountingStore()
    async with one_thread([NEVER], engine=text_only, store=store) as scene:
        running = await scene.start()
        before, seen = list(store.appended), len(scene.seen)
        wrong: dict[str, Any] = {"workspace": str(tmp_path / "none"), "provider": "none", "model": "m"}

        with pytest.raises(rt.EmptyMessage):
            await scene.start(" \n", **wrong)
        with pytest.raises(rt.BadWorkspace) as bad:
            await scene.start("go", **wrong)
        assert bad.value.workspace == str(tmp_path / "none")
        wrong["workspace"] = str(tmp_path)
        with pytest.raises(rt.UnknownProvider) as unknown:
            await scene.start("go", reasoning="extreme", images=["i"], **wrong)
        assert (unknown.value.provider, "text" in str(unknown.value)) == ("none", True)
        wrong["provider"] = None
        with pytest.raises(rt.UnsupportedOption) as option:
            await scene.start("go", images=["i"], **wrong)
        assert option.value.name == "images"
        with pytest.raises(rt.ThreadBusy) as busy:
            await scene.start("go", **wrong)
        assert (busy.value.turn_id, busy.value.automatic) == (running, False)
        with pytest.raises(rt.ThreadNotFound):
            await scene.runtime.start_turn("nowhere", " ", provider="none")
        await scene.runtime.drain_active_turns(60.0)
        with pytest.raises(rt.RuntimeDraining):
            await scene.runtime.start_turn("nowhere", " ", provider="none")
        with pytest.raises(rt.RuntimeDraining):
            await scene.start(" ", provider="none")
        assert (len(scene.of(events.TurnStarted)), len(scene.ends)) == (1, 1)
        assert len([e for e in scene.seen[seen:] if e.turn_id != running]) == 0
        assert len(store.appended) == len(before) + 1


async def test_a_refusal_stores_and_publishes_nothing() -> None:
    store = CountingStore()
    async with one_thread([DONE], store=store) as scene:
        for options in ({"provider": "none"}, {"workspace": "/does/not/exist"}):
            with pytest.raises(rt.CommandRefused):
                await scene.start(**options)
        with pytest.raises(rt.EmptyMessage):
            await scene.run("   ")
        with pytest.raises(rt.EmptyMessage):
            async with scene.runtime.turn(scene.id, ""):
                raise AssertionError("the block must not run")
        assert (store.appended, scene.seen) == ([], [])
        assert (await scene.run()).status == "completed"


@pytest.mark.parametrize("workspace", ["", "relative", "tests", "/does/not/exist", __file__])
async def test_a_workspace_must_be_an_absolute_existing_directory(workspace: str) -> None:
    async with one_thread([DONE]) as scene:
        if workspace:
            with pytest.raises(rt.BadWorkspace):
                await scene.run(workspace=workspace)
        else:
            assert (await scene.run(workspace=workspace)).status == "completed"


async def test_a_workspace_comes_from_the_argument_or_the_thread_or_the_config(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    engine = providers.ScriptedEngine([[DONE]] * 9)
    async with rt.open_runtime(engines=[engine], config=settings(workspace=str(gone))) as runtime:
        thread = await runtime.create_thread()
        with pytest.raises(rt.BadWorkspace):
            await runtime.run_turn(thread.thread_id, "go")
        assert (await runtime.run_turn(thread.thread_id, "go", workspace=str(tmp_path))).status == "completed"
        home = await runtime.create_thread(workspace=str(tmp_path))
        assert (await runtime.run_turn(home.thread_id, "go")).status == "completed"
        gone.mkdir()
        assert (await runtime.run_turn(thread.thread_id, "go")).status == "completed"


async def test_provider_model_and_reasoning_are_chosen_each_by_itself(autojump_clock: trio.testing.MockClock) -> None:
    first, second = (providers.ScriptedEngine([[DONE]] * 9, id=name) for name in ("first", "second"))
    config = settings(default_model="of config", default_reasoning="low", default_provider="second")
    async with rt.open_runtime(engines=[first, second], config=config) as runtime:
        plain = await runtime.create_thread()
        named = await runtime.create_thread(provider="first", reasoning="high")

        async def choice(thread: rt.ThreadMetadata, **asked: Any) -> tuple[str, str, str | None]:
            await runtime.run_turn(thread.thread_id, "go", **asked)
            call = [*first.calls, *second.calls][-1] if "second" in asked.values() else None
            request = (call or max([*first.calls, *second.calls], key=lambda c: order[id(c)])).request
            return request.model.provider, request.model.model, request.reasoning.level

        order: dict[int, int] = {}
        for engine in (first, second):
            original = engine.stream_turn

            def noted(context: Any, request: Any, engine: Any = engine, original: Any = original) -> Any:
                block = original(context, request)
                order[id(engine.calls[-1])] = len(order)
                return block

            engine.stream_turn = noted  # type: ignore[method-assign]
        assert await choice(plain) == ("second", "of config", "low")
        assert await choice(plain, model="mine") == ("second", "mine", "low")
        assert await choice(named) == ("first", "of config", "high")
        assert await choice(named, provider="second") == ("second", "of config", "high")
        assert await choice(named, reasoning="none") == ("first", "of config", "none")


async def test_reasoning_that_the_model_does_not_know_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([DONE], [DONE], models=[LEVELS]) as scene:
        await scene.runtime.list_models()
        assert (await scene.run()).status == "completed"
        with pytest.raises(rt.UnsupportedOption) as option:
            await scene.run(reasoning="extreme")
        assert option.value.name == "reasoning"
        assert (await scene.run(reasoning="high")).status == "completed"


async def test_an_engine_without_any_model_needs_one_to_be_named(autojump_clock: trio.testing.MockClock) -> None:
    class Bare(providers.ScriptedEngine):
        async def list_models(self) -> Any:
            await trio.lowlevel.checkpoint()
            return ()

    async with one_thread(engine=Bare([[DONE]])) as scene:
        with pytest.raises(rt.UnsupportedOption) as option:
            await scene.run()
        assert option.value.name == "model"
        assert (await scene.run(model="any")).status == "completed"


async def test_arguments_of_a_wrong_type_are_told_at_the_edge(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([DONE]) as scene:
        with pytest.raises(TypeError, match="text"):
            await scene.start(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="OutputOptions"):
            await scene.start("go", output={"max_tokens": 3})
        assert scene.seen == []


# -- waiting for the slot ----------------------------------------------------------------------------------------------


async def test_a_start_on_a_thread_that_closes_down_waits_for_its_slot(autojump_clock: trio.testing.MockClock) -> None:
    engine = SlowCleanup([say("a"), NEVER], [say("b"), DONE])
    async with one_thread(engine=engine) as scene:
        first = await scene.start("one")
        await scene.wait_text("a")
        await scene.interrupt(first)
        second = await scene.start("two")
        assert isinstance(scene.ends[0], events.TurnInterrupted)
        assert trio.current_time() == pytest.approx(1.0)
        assert (await scene.wait(second)).text == "b"
        assert [(e.turn_id, e.kind) for e in scene.seen if e.kind.startswith("turn.") and "item" not in e.kind] == [
            (first, "turn.started"),
            (first, "turn.interrupt_requested"),
            (first, "turn.interrupted"),
            (second, "turn.started"),
            (second, "turn.completed"),
        ]


async def test_the_second_that_waits_may_still_be_refused(autojump_clock: trio.testing.MockClock) -> None:
    engine = SlowCleanup([NEVER], [NEVER])
    async with one_thread(engine=engine) as scene, trio.open_nursery() as nursery:
        first = await scene.start("one")
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(first)
        admitted: list[str] = []
        refused: list[rt.ThreadBusy] = []

        async def start(message: str) -> None:
            try:
                admitted.append(await scene.start(message))
            except rt.ThreadBusy as error:
                refused.append(error)

        await started(nursery, lambda: start("two"))
        await started(nursery, lambda: start("three"))
        await scene.wait(first)
        await trio.testing.wait_all_tasks_blocked()
        assert [error.turn_id for error in refused] == admitted
        assert texts(await scene.history()) == ["one", "two"]
        await scene.interrupt(admitted[0])


async def test_a_start_waits_for_a_manual_compaction(autojump_clock: trio.testing.MockClock) -> None:
    engine = SlowCleanup([say("a"), DONE], [say("b"), DONE], compact=[[BOUNDARY, DONE]])
    async with one_thread(engine=engine) as scene, trio.open_nursery() as nursery:
        await scene.run("one")
        results: list[Any] = []

        async def compact() -> None:
            results.append(await scene.runtime.compact_thread(scene.id))

        await started(nursery, compact)
        assert (await scene.run("two")).text == "b"
        assert results[0].compacted
        kinds = [kind for kind in scene.kinds if kind in ("turn.started", "compaction.recorded")]
        assert kinds == ["turn.started", "compaction.recorded", "turn.started"]


async def test_a_compaction_is_refused_while_a_turn_runs_and_waits_while_one_closes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    engine = SlowCleanup([say("a"), NEVER], compact=[[BOUNDARY, DONE]])
    async with one_thread(engine=engine) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        with pytest.raises(rt.ThreadBusy) as busy:
            await scene.runtime.compact_thread(scene.id)
        assert busy.value.turn_id == turn_id
        await scene.interrupt(turn_id)
        assert (await scene.runtime.compact_thread(scene.id)).compacted
        assert scene.kinds.index("turn.interrupted") < scene.kinds.index("compaction.started")


async def test_a_withdrawn_request_leaves_nothing(autojump_clock: trio.testing.MockClock) -> None:
    engine = SlowCleanup([NEVER], [say("b"), DONE])
    async with one_thread(engine=engine) as scene:
        first = await scene.start("one")
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(first)
        with trio.move_on_after(0.5) as scope:
            await scene.start("withdrawn")
        assert scope.cancelled_caught
        await scene.wait(first)
        await trio.testing.wait_all_tasks_blocked()
        assert texts(await scene.history()) == ["one"]
        assert (await scene.run("two")).text == "b"


async def test_a_request_that_was_taken_goes_on_without_its_caller(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(number: int, thread_id: str, records: Any) -> None:
        await trio.sleep(1)

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=slow)
    async with one_thread([say("a"), DONE], store=store) as scene:
        with trio.move_on_after(0.5) as scope:
            await scene.start("one")
        assert scope.cancelled_caught
        await scene.wait_for(lambda scene: bool(scene.ends))
        assert isinstance(scene.ends[0], events.TurnCompleted)


async def test_a_drain_refuses_those_who_wait(autojump_clock: trio.testing.MockClock) -> None:
    engine = SlowCleanup([NEVER], seconds=3.0)
    async with one_thread(engine=engine) as scene, trio.open_nursery() as nursery:
        first = await scene.start("one")
        await trio.testing.wait_all_tasks_blocked()
        await scene.interrupt(first)
        refused: list[str] = []

        async def start() -> None:
            with pytest.raises(rt.RuntimeDraining):
                await scene.start("two")
            refused.append("turn")

        async def compact() -> None:
            with pytest.raises(rt.RuntimeDraining):
                await scene.runtime.compact_thread(scene.id)
            refused.append("compaction")

        await started(nursery, start)
        await started(nursery, compact)
        outcome = await scene.runtime.drain_active_turns(0.5)
        assert sorted(refused) == ["compaction", "turn"]
        assert outcome == rt.DrainOutcome("deadline_exceeded", (), (first,))


# -- every command in every state --------------------------------------------------------------------------------------


async def test_commands_on_an_idle_thread(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), DONE], [DONE]) as scene:
        outcome = await scene.run()
        seen = len(scene.seen)
        with pytest.raises(rt.NoActiveTurn):
            await scene.steer(outcome.turn_id)
        await scene.interrupt(outcome.turn_id)
        await scene.interrupt("never was")
        assert await scene.wait(outcome.turn_id) == outcome
        with pytest.raises(rt.UnknownTurn):
            await scene.wait("never was")
        assert len(scene.seen) == seen


async def test_commands_on_a_running_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), NEVER]) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        with pytest.raises(rt.ThreadBusy):
            await scene.start("two")
        with pytest.raises(rt.NoActiveTurn):
            await scene.steer("another turn")
        await scene.interrupt("another turn")
        assert texts(await scene.history()) == ["go"]
        assert scene.ends == []
        await scene.interrupt(turn_id)
        assert (await scene.wait(turn_id)).reason == "user"


async def test_commands_while_the_turn_finishes(autojump_clock: trio.testing.MockClock) -> None:
    """The final append hangs: the turn is out of reach, and ends well."""
    hold = trio.Event()
    held = trio.Event()

    async def slow(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "turn.completed" for record in records):
            held.set()
            await hold.wait()

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=slow)
    async with one_thread([say("a"), DONE], store=store) as scene, trio.open_nursery() as nursery:
        turn_id = await scene.start()
        await held.wait()
        refused: list[type] = []

        async def refuse(function: Any, *args: Any) -> None:
            try:
                await function(*args)
            except rt.CommandRefused as error:
                refused.append(type(error))

        await started(nursery, lambda: refuse(scene.steer, turn_id))
        await started(nursery, lambda: refuse(scene.interrupt, turn_id))
        assert scene.resident.job.cause is None
        hold.set()
        outcome = await scene.wait(turn_id)
        await trio.testing.wait_all_tasks_blocked()
        assert (outcome.status, outcome.text) == ("completed", "a")
        assert refused == [rt.NoActiveTurn]
        assert scene.of(events.TurnInterruptRequested) == []


async def test_commands_while_the_turn_closes(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(engine=SlowCleanup([say("a"), NEVER])) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        await scene.interrupt(turn_id)
        with pytest.raises(rt.NoActiveTurn):
            await scene.steer(turn_id)
        await scene.interrupt(turn_id)
        assert len(scene.of(events.TurnInterruptRequested)) == 1
        assert texts(await scene.history()) == ["go"]
        assert (await scene.wait(turn_id)).reason == "user"


async def test_commands_while_a_compaction_runs(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), DONE], compact=[[NEVER]]) as scene, trio.open_nursery() as nursery:
        outcome = await scene.run()

        async def compact() -> None:
            with pytest.raises(rt.CompactionPreempted):
                await scene.runtime.compact_thread(scene.id)

        await started(nursery, compact)
        job = scene.resident.job
        with pytest.raises(rt.NoActiveTurn):
            await scene.steer(outcome.turn_id)
        with pytest.raises(rt.NoActiveTurn):
            await scene.steer(job.turn_id)
        await scene.interrupt(outcome.turn_id)
        assert texts(await scene.history()) == ["go", "a"]
        assert job.cause is None
        assert await scene.runtime.archive_thread(scene.id)


async def test_commands_on_an_archived_thread(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), DONE]) as scene:
        outcome = await scene.run()
        assert await scene.runtime.archive_thread(scene.id)
        runtime, id = scene.runtime, scene.id
        for thread_id in (id, "unknown", "", "x" * 600):
            with pytest.raises(rt.ThreadNotFound):
                await runtime.start_turn(thread_id, "go")
            with pytest.raises(rt.NoActiveTurn):
                await runtime.steer_turn(thread_id, outcome.turn_id, "more")
            with pytest.raises(rt.ThreadNotFound):
                await runtime.compact_thread(thread_id)
            await runtime.interrupt_turn(thread_id, outcome.turn_id)
            assert await runtime.archive_thread(thread_id) is False
            assert await runtime.load_thread(thread_id) is None
            assert await runtime.thread_goal_get(thread_id) is None
            assert await runtime.latest_transcript_item_index(thread_id, outcome.turn_id) is None
            assert await runtime.thread_item_exists(thread_id, outcome.turn_id, "x") is False
        assert await runtime.delete_thread(id) is True
        assert await runtime.delete_thread(id) is False
        assert [kind for kind in scene.kinds if kind.startswith("thread.")] == ["thread.archived", "thread.deleted"]


async def test_an_archive_interrupts_the_turn_and_waits_for_its_end(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(engine=SlowCleanup([say("a"), NEVER])) as scene:
        turn_id = await scene.start()
        await scene.wait_text("a")
        assert await scene.runtime.archive_thread(scene.id)
        assert scene.ends == [events.TurnInterrupted("archive")]
        assert scene.kinds[-2:] == ["turn.interrupted", "thread.archived"]
        with pytest.raises(rt.ThreadNotFound):
            await scene.wait(turn_id)
        assert await scene.runtime.load_thread(scene.id) is None
        assert await scene.runtime.unarchive_thread(scene.id)
        assert (await scene.wait(turn_id)).reason == "archive"
        assert texts(await scene.history()) == ["go", "a"]


async def test_an_archive_waits_for_a_turn_that_finishes(autojump_clock: trio.testing.MockClock) -> None:
    held = trio.Event()

    async def slow(number: int, thread_id: str, records: Any) -> None:
        if any(record.kind == "turn.completed" for record in records):
            held.set()
            await trio.sleep(1)

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=slow)
    async with one_thread([say("a"), DONE], store=store) as scene:
        await scene.start()
        await held.wait()
        assert await scene.runtime.delete_thread(scene.id)
        assert isinstance(scene.ends[0], events.TurnCompleted)
        assert scene.kinds[-2:] == ["thread.archived", "thread.deleted"]


async def test_a_start_that_waits_behind_an_archive_finds_no_thread(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread(engine=SlowCleanup([say("a"), NEVER])) as scene, trio.open_nursery() as nursery:
        await scene.start()
        await scene.wait_text("a")

        async def archive() -> None:
            assert await scene.runtime.archive_thread(scene.id)

        await started(nursery, archive)
        with pytest.raises(rt.ThreadNotFound):
            await scene.start("two")


async def test_commands_on_a_parked_thread(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread whose actor crashes four times in a minute refuses with the cause, and tries again a minute later."""
    caplog.set_level(logging.CRITICAL)

    async def broken(number: int, thread_id: str, records: Any) -> None:
        if broken_now:
            raise ZeroDivisionError("the store has a bug")

    broken_now = False
    store = testing.FaultyStore(stores.MemoryThreadStore(), before=broken)
    async with one_thread([say("a"), DONE], [say("b"), DONE], store=store) as scene:
        turn_id = (await scene.run()).turn_id
        broken_now = True
        for _ in range(4):
            with pytest.raises(rt.ActorCrashed):
                await scene.start()
        broken_now = False
        with pytest.raises(rt.ThreadFailed, match="ZeroDivisionError"):
            await scene.start()
        with pytest.raises(rt.ThreadFailed):
            await scene.runtime.load_thread(scene.id)
        with pytest.raises(rt.ThreadFailed):
            await scene.wait(turn_id)
        with pytest.raises(rt.ThreadFailed):
            await scene.runtime.compact_thread(scene.id)
        with pytest.raises(rt.NoActiveTurn):
            await scene.steer(turn_id)
        await scene.interrupt(turn_id)
        assert await scene.runtime.load_metadata(scene.id) is not None
        assert len((await scene.runtime.list_threads()).threads) == 1
        await trio.sleep(61)
        assert (await scene.run()).text == "b"


async def test_a_parked_thread_can_be_archived(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def broken(number: int, thread_id: str, records: Any) -> None:
        raise ZeroDivisionError("the store has a bug")

    store = testing.FaultyStore(stores.MemoryThreadStore(), before=broken)
    async with one_thread(store=store) as scene:
        for _ in range(4):
            with pytest.raises(rt.ActorCrashed):
                await scene.start()
        assert await scene.runtime.archive_thread(scene.id)
        with pytest.raises(rt.ThreadNotFound):
            await scene.start()


# -- the store fails ---------------------------------------------------------------------------------------------------


async def test_an_opening_that_cannot_be_stored_starts_nothing(autojump_clock: trio.testing.MockClock) -> None:
    store = testing.FaultyStore(stores.MemoryThreadStore(), fail={1: rt.StorageError("no room")})
    async with one_thread([say("a"), DONE], store=store) as scene:
        with pytest.raises(rt.StorageError, match="no room"):
            await scene.start()
        assert scene.seen == []
        assert (await scene.run()).text == "a"
        assert texts(await scene.history()) == ["go", "a"]


async def test_a_store_that_fails_while_a_thread_is_read_fails_those_who_ask_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Failing(stores.MemoryThreadStore):
        async def load_thread(self, thread_id: str) -> Any:
            if trio.current_time() < 5:
                await trio.lowlevel.checkpoint()
                raise rt.StorageError("unreachable")
            return await super().load_thread(thread_id)

    async with one_thread([say("a"), DONE], store=Failing()) as scene:
        for _ in range(6):
            with pytest.raises(rt.StorageError, match="unreachable"):
                await scene.start()
        await trio.sleep(5)
        assert (await scene.run()).text == "a"


async def test_a_turn_never_delays_another_thread(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([say("a"), NEVER], [say("b"), DONE]) as scene:
        await scene.start()
        await scene.wait_text("a")
        other = await scene.runtime.create_thread()
        assert (await scene.runtime.run_turn(other.thread_id, "go")).text == "b"


async def test_any_number_may_wait_for_a_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with one_thread([1.0, say("a"), DONE]) as scene, trio.open_nursery() as nursery:
        turn_id = await scene.start()
        outcomes: list[rt.TurnOutcome] = []

        async def wait() -> None:
            outcomes.append(await scene.wait(turn_id))

        for _ in range(5):
            await started(nursery, wait)
        with trio.move_on_after(0.5) as scope:
            await scene.wait(turn_id)
        assert scope.cancelled_caught
        outcomes.append(await scene.wait(turn_id))
        await trio.testing.wait_all_tasks_blocked()
        assert len(outcomes) == 6
        assert len(set(map(repr, outcomes))) == 1


async def test_images_of_older_messages_are_notes_for_an_engine_that_takes_none(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with one_thread([say("a"), DONE], capabilities=InferenceCapabilities.text_only()) as scene:
        picture = transcript.UserMessage("look", (transcript.Image("data:image/png;base64,AA=="),))
        await scene.runtime.persist_turn_item(scene.id, "before", picture)
        assert (await scene.run()).status == "completed"
        [request] = scene.engine.requests
        assert request.transcript[0] == transcript.UserMessage(
            "look\n[1 image was left out: this model takes no images.]"
        )
        assert (await scene.runtime.load_thread(scene.id)).turns[0].items == (picture,)
