"""Metadata, a host's own state beside a thread, and what a closed runtime says."""

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import roder_trio as rt
from roder_trio import events, stores, transcript
from roder_trio.schema.thread import GlobalScope, ThreadScope
from tests.event_support import DONE, NOW, counted, metadata, opened, raw_records, say


async def test_updating_a_thread_stores_one_event_of_what_was_given():
    store = stores.MemoryThreadStore()
    async with opened(store=store) as (runtime, _, thread_id):
        changed = await runtime.update_thread(thread_id, title="t", labels={"k": "v"}, provider="scripted", model="m")
        assert (changed.title, changed.labels, changed.provider, changed.model) == ("t", {"k": "v"}, "scripted", "m")
        assert changed == await runtime.load_metadata(thread_id)
        (record,) = raw_records(store, thread_id)
        wanted = events.ThreadMetadataChanged(title="t", labels={"k": "v"}, provider="scripted", model="m")
        assert record.event == wanted
        assert await runtime.update_thread(thread_id) == changed
        changed = await runtime.update_thread(thread_id, title=None, labels={}, tool_allowlist=["look"])
        assert (changed.title, changed.labels, changed.tool_allowlist) == (None, {}, ("look",))
        assert len(raw_records(store, thread_id)) == 2
        await runtime.persist_turn_item(thread_id, "turn", transcript.UserMessage("a new title"))
        assert (await runtime.load_metadata(thread_id)).title == "a new title"


async def test_an_update_is_checked_like_a_creation():
    store = counted()
    async with opened(store=store) as (runtime, _, thread_id):
        with pytest.raises(rt.UnknownProvider):
            await runtime.update_thread(thread_id, provider="nobody")
        with pytest.raises(ValueError, match="label"):
            await runtime.update_thread(thread_id, labels={"": "x"})
        for missing in ("unknown", ""):
            with pytest.raises(rt.ThreadNotFound):
                await runtime.update_thread(missing, title="x")
            with pytest.raises(rt.ThreadNotFound):
                await runtime.update_thread(missing)
        with pytest.raises(rt.UnknownProvider):
            await runtime.create_thread(provider="nobody")
        with pytest.raises(ValueError, match="workspace"):
            await runtime.create_thread(workspace="relative")
        assert store.appends == 0


async def test_a_thread_that_goes_while_it_is_updated_is_not_found():
    class Vanishing(stores.MemoryThreadStore):
        async def load_metadata(self, thread_id):
            await trio.lowlevel.checkpoint()

    async with opened(store=Vanishing()) as (runtime, _, thread_id):
        with pytest.raises(rt.ThreadNotFound):
            await runtime.update_thread(thread_id, title="x")


async def test_a_running_turn_keeps_what_it_began_with():
    gate = trio.Event()
    async with opened([gate, say("a"), DONE], [DONE]) as (runtime, engine, thread_id):
        turn_id = await runtime.start_turn(thread_id, "hello")
        await wait_all_tasks_blocked()
        await runtime.update_thread(thread_id, model="other", developer_instructions="be brief")
        gate.set()
        await runtime.wait_turn(thread_id, turn_id)
        await runtime.run_turn(thread_id, "again")
        first, second = engine.requests
        assert (first.model.model, first.instructions.developer) == ("scripted", None)
        assert second.model.model == "other"
        assert "be brief" in second.instructions.developer


async def test_a_hosts_state_is_kept_beside_the_thread_and_is_its_own():
    store, value, gate = stores.MemoryThreadStore(), {"list": [1]}, trio.Event()
    async with opened([gate, DONE], store=store) as (runtime, _, thread_id):
        turn_id = await runtime.start_turn(thread_id, "hello")
        assert await runtime.get_state(thread_id, "x", "k") is None
        await runtime.set_state(thread_id, "x", "k", {"old": 1})
        await runtime.set_state(thread_id, "x", "k", value, schema_version=2)
        await runtime.set_state(thread_id, "y", "k", [None])
        value["list"].append(2)
        (await runtime.get_state(thread_id, "x", "k"))["list"].append(3)
        assert await runtime.get_state(thread_id, "x", "k") == {"list": [1]}
        gate.set()
        await runtime.wait_turn(thread_id, turn_id)
    async with opened(store=store, thread=False) as (runtime, _, _):
        assert await runtime.get_state(thread_id, "x", "k") == {"list": [1]}
        assert await runtime.get_state(thread_id, "y", "k") == [None]
        records = (await runtime.load_thread(thread_id)).extension_states
        assert [(record.extension_id, record.schema_version) for record in records] == [("x", 1), ("x", 2), ("y", 1)]
        assert {record.scope.thread_id for record in records} == {thread_id}


async def test_state_that_is_no_json_or_of_no_thread_is_refused():
    store = counted()
    async with opened(store=store) as (runtime, _, thread_id):
        for bad in ({1}, b"x", float("nan"), {"k": object()}):
            with pytest.raises(rt.InvalidRecord):
                await runtime.set_state(thread_id, "x", "k", bad)
        with pytest.raises(rt.ThreadNotFound):
            await runtime.set_state("unknown", "x", "k", 1)
        with pytest.raises(rt.ThreadNotFound):
            await runtime.get_state("unknown", "x", "k")
        assert store.appends == 0


async def test_state_of_wider_scopes_does_not_disturb_a_threads_own():
    store = stores.MemoryThreadStore()
    await store.create_thread(metadata("t"))
    own = rt.ExtensionStateRecord(
        record_id="1", extension_id="x", key="k", scope=ThreadScope("t"), schema_version=1, value="mine"
    )
    await store.append("t", [own, attrs.evolve(own, record_id="2", scope=GlobalScope(), value="everyone's")])
    async with opened(store=store, thread=False) as (runtime, _, _):
        assert await runtime.get_state("t", "x", "k") == "mine"


async def test_the_methods_of_a_closed_runtime_say_so():
    async with opened() as (runtime, _, thread_id):
        pass
    calls = [
        runtime.create_thread(),
        runtime.update_thread(thread_id, title="x"),
        runtime.load_thread(thread_id),
        runtime.load_metadata(thread_id),
        runtime.list_threads(),
        runtime.archive_thread(thread_id),
        runtime.delete_thread(thread_id),
        runtime.unarchive_thread(thread_id),
        runtime.get_state(thread_id, "x", "k"),
        runtime.set_state(thread_id, "x", "k", object()),
        runtime.list_models(),
        runtime.persist_turn_item(thread_id, "turn", None),
        runtime.latest_transcript_item_index(thread_id, "turn"),
        runtime.record_thread_item_event_kind(thread_id, "turn", NOW, None),
        runtime.thread_item_exists(thread_id, "turn", "x"),
        runtime.compact_with_provider(thread_id, "turn", "nobody", "m", []),
    ]
    for call in calls:
        with pytest.raises(rt.RuntimeClosed):
            await call


async def test_requests_that_wait_when_the_runtime_closes_are_told(autojump_clock):
    """One is in the actor's hand, so its outcome isn't known; the others were never looked at."""
    store, told = counted(), []

    async def hang(thread_id):
        await trio.sleep_forever()

    async def ask(runtime, thread_id):
        with pytest.raises((rt.RuntimeClosed, rt.ActorCrashed)) as caught:
            await runtime.latest_transcript_item_index(thread_id, "turn")
        told.append(type(caught.value).__name__)

    store.load_state = hang
    async with trio.open_nursery() as nursery, opened(store=store) as (runtime, _, thread_id):
        for _ in range(3):
            nursery.start_soon(ask, runtime, thread_id)
            await wait_all_tasks_blocked()
    assert sorted(told) == ["ActorCrashed", "RuntimeClosed", "RuntimeClosed"]
