"""Laws of items over random turns: what was published, what is stored and what a fresh runtime shows are one thing."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, repeat

import attrs
import trio
from hypothesis import given, target
from hypothesis import settings as examples
from hypothesis import strategies as st
from trio.testing import MockClock

import roder_trio as rt
from roder_trio import inference, items, providers, stores, transcript
from roder_trio.logic.item import fold_items
from tests.event_support import AT_ONCE, DONE, NOW, by_id, durable, item_events, lost, say, shown, taken, think, view_of

LONG = "long " * 900
TEXTS = st.sampled_from(["a", "b ", "é", "\n", "c\n\n", LONG])
PARTS = st.one_of(
    st.builds(say, TEXTS, st.sampled_from([None, None, "", "final_answer", "commentary"])),
    st.builds(think, st.sampled_from(["r", "s ", " "])),
    st.sampled_from([0.3, 0.7]),
    st.sampled_from(["call", "half call", "hosted", "half hosted"]),
)
ENDINGS = st.sampled_from([DONE, DONE, DONE, "lost", "hang"])
STEPS = st.lists(st.tuples(st.lists(PARTS, max_size=6), ENDINGS), min_size=1, max_size=4)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 0.6]), st.sampled_from(["steer", "interrupt", "append", "start", "grow", "end"])
    ),
    max_size=5,
)
PLAIN = st.lists(
    st.one_of(
        st.builds(say, st.sampled_from(["a", "b", LONG]), st.sampled_from([None, "commentary"])),
        st.builds(think, st.just("r")),
        st.just(0.6),
    ),
    max_size=8,
)


def script(steps) -> Iterable[list]:
    """The parts of each step, calls written out with ids of their own."""
    for number, (parts, ending) in enumerate(steps):
        step = []
        for position, part in enumerate(parts):
            id = f"c{number}-{position}"
            match part:
                case "call" | "half call":
                    step += [inference.ToolCallStarted(id, "look"), inference.ToolCallDelta(id, "{")]
                    if part == "call":
                        step.append(inference.ToolCallCompleted(id, "look", "{}"))
                case "hosted" | "half hosted":
                    step.append(inference.HostedToolCallStarted(id, "search"))
                    if part == "hosted":
                        step.append(inference.HostedToolCallCompleted(id, "search", "{}"))
                case _:
                    step.append(part)
        yield [*step, {"lost": lost(), "hang": providers.scripted.NEVER_ENDS}.get(ending, ending)]


@attrs.frozen
class Told:
    """What was published of a thread, what its store holds, what views show before and after a restart."""

    published: list
    snapshot: rt.ThreadSnapshot
    warm: tuple
    cold: tuple


async def act(runtime, thread_id, turn_id, actions):
    """What users and hosts do meanwhile; in the end the turn is stopped if it hangs."""
    for number, (delay, action) in enumerate(actions):
        await trio.sleep(delay)
        kind = {
            "start": items.ItemStarted(items.Raw(f"host-{number}", {"n": number})),
            "grow": items.ItemDelta("host-text", items.AgentMessageText("x")),
            "end": items.ItemCompleted(items.AgentMessage("host-text", "whole")),
        }.get(action)
        if kind is not None:
            await runtime.record_thread_item_event_kind(thread_id, turn_id, NOW, kind)
        elif action == "append":
            item = transcript.AssistantMessage(f"host {number}")
            await runtime.persist_turn_item(thread_id, turn_id, item)
        elif action == "steer":
            with suppress(rt.NoActiveTurn):
                await runtime.steer_turn(thread_id, turn_id, "more")
        else:
            await runtime.interrupt_turn(thread_id, turn_id)
    with trio.move_on_after(20):
        await runtime.wait_turn(thread_id, turn_id)
    await runtime.interrupt_turn(thread_id, turn_id)


async def tell(turns) -> Told:
    store = stores.MemoryThreadStore()
    steps = chain(script(step for steps, _ in turns for step in steps), repeat([say("end"), DONE]))
    async with rt.open_runtime(engines=[providers.ScriptedEngine(steps)], store=store, config=AT_ONCE) as runtime:
        thread_id = (await runtime.create_thread()).thread_id
        async with runtime.subscribe_events(thread_id=thread_id) as subscription:
            for _, actions in turns:
                turn_id = await runtime.start_turn(thread_id, "hello")
                await act(runtime, thread_id, turn_id, actions)
                await runtime.wait_turn(thread_id, turn_id)
            published = taken(subscription)
        warm = await view_of(runtime, thread_id)
        snapshot = await runtime.load_thread(thread_id)
    async with rt.open_runtime(store=store) as runtime:
        return Told(published, snapshot, warm, await view_of(runtime, thread_id))


def told_of(turns) -> Told:
    return trio.run(tell, turns, clock=MockClock(autojump_threshold=0))


def check(told: Told) -> None:
    stored = told.snapshot.item_events
    assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
    numbered = [envelope.seq for envelope in told.snapshot.events if envelope.seq]
    assert numbered == list(range(1, len(numbered) + 1))
    assert [event for event in stored if not event.checkpoint] == durable(told.published)
    assert not any(event.checkpoint for event in item_events(told.published))
    ids = [event.event_id for event in stored] + [envelope.event_id for envelope in told.snapshot.events]
    assert len(set(ids)) == len(ids)
    assert fold_items((), stored) == told.warm == told.cold
    assert by_id(shown((), told.published)) == by_id(told.cold)
    assert by_id(fold_items((), durable(told.published))) == by_id(told.cold)


@given(st.lists(st.tuples(STEPS, ACTIONS), min_size=1, max_size=2))
@examples(max_examples=70)
def test_what_is_published_is_what_is_stored_is_what_is_shown(turns):
    told = told_of(turns)
    target(float(len(told.snapshot.item_events)))
    check(told)


@given(st.lists(PLAIN, min_size=1, max_size=3))
@examples(max_examples=40)
def test_items_that_are_open_one_after_the_other_keep_their_order(steps):
    """Where a host or a call comes in between, an item that was live before it may stand behind it after a restart."""
    told = told_of([([(parts, DONE) for parts in steps], [])])
    check(told)
    assert shown((), told.published) == told.cold
