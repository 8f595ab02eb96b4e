"""Live items: what a stream has begun, lent to decisions, closed when they are stored."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.logic.item import ItemFold, ItemNumbers, id_base, project
from roder_trio.logic.live import FIRST_CHECKPOINT, LiveItems
from roder_trio.logic.thread.draft import OpenText
from roder_trio.logic.turn import Step
from roder_trio.schema import inference
from roder_trio.schema.item import (
    AgentMessage,
    AgentMessageText,
    ItemCompleted,
    ItemDelta,
    ItemDiscarded,
    ItemStarted,
    ItemStatus,
    Reasoning,
    ReasoningSummaryText,
    ToolExecution,
    ToolInputText,
)
from roder_trio.schema.transcript import AssistantMessage, ReasoningSummary, ToolCall
from tests.test_turn_step import DONE, SAY, THINK, runs_of, stream_events

OPEN, COMPLETED = ItemStatus.IN_PROGRESS, ItemStatus.COMPLETED
BEGIN, CALL = inference.ToolCallStarted, inference.ToolCallCompleted
HOSTED, HOSTED_DONE = inference.HostedToolCallStarted, inference.HostedToolCallCompleted


def grown(*events: inference.InferenceEvent, turn_id: str = "u") -> tuple[LiveItems, list[Any]]:
    """Live items that took these events, and what was shown of them."""
    live = LiveItems(ItemNumbers())
    return live, [kind for event in events for kind in live.absorb(turn_id, event)]


def message(id: str, text: str = "", phase: str | None = None) -> AgentMessage:
    return AgentMessage(id, text, phase, OPEN)


# -- growth ------------------------------------------------------------------------------------------------------------


def test_text_opens_an_item_that_grows():
    live, shown = grown(SAY("a"), SAY("b", "final_answer"))
    assert shown == [
        ItemStarted(message("u-message")),
        ItemDelta("u-message", AgentMessageText("a")),
        ItemDelta("u-message", AgentMessageText("b")),
    ]
    assert list(live) == [message("u-message", "ab")]
    assert ("u", "u-message") in live
    assert ("v", "u-message") not in live


def test_a_repeated_start_of_a_call_shows_nothing_new():
    live, shown = grown(BEGIN("c1", "look"), BEGIN("c1", "look"), HOSTED("h", "search"), HOSTED("h", "search"))
    assert (len(shown), len(list(live))) == (2, 2)


def test_a_call_that_stands_in_the_log_is_not_opened_again():
    numbers = ItemNumbers()
    numbers.see("u", "u-tool-c1")
    live = LiveItems(numbers)
    assert live.absorb("u", BEGIN("c1", "look")) == ()
    assert live.absorb("v", BEGIN("c1", "look")) != ()


def test_reasoning_and_commentary_have_items_of_their_own():
    live, shown = grown(THINK("r"), SAY("a", "commentary"), SAY("b"))
    assert shown[:2] == [
        ItemStarted(Reasoning("u-reasoning", status=OPEN)),
        ItemDelta("u-reasoning", ReasoningSummaryText("r")),
    ]
    assert list(live) == [
        Reasoning("u-reasoning", ("r",), status=OPEN),
        message("u-message-commentary", "a", "commentary"),
        message("u-message", "b"),
    ]


def test_a_call_shows_its_input_as_the_model_writes_it():
    live, shown = grown(
        BEGIN("c1", "look"), inference.ToolCallDelta("c1", '{"a'), inference.ToolCallDelta("c1", '":1}'),
        CALL("c1", "look", '{"a":1}'),
    )  # fmt: skip
    started = ToolExecution("u-tool-c1", "c1", "look", status=OPEN)
    assert shown == [
        ItemStarted(started),
        ItemDelta("u-tool-c1", ToolInputText('{"a')),
        ItemDelta("u-tool-c1", ToolInputText('":1}')),
    ]
    assert list(live) == [ToolExecution("u-tool-c1", "c1", "look", '{"a":1}', status=OPEN)]
    assert list(grown(BEGIN("c1", "look"))[0]) == [started]


@pytest.mark.parametrize(
    "event",
    [
        SAY(""),
        THINK(""),
        inference.ToolCallDelta("c1", "{"),
        inference.ToolCallDelta("c1", ""),
        CALL("c1", "look", "{}"),
        HOSTED_DONE("h", "search", "{}"),
        inference.ProviderMetadata({}),
        DONE,
    ],
)
def test_what_says_nothing_shows_nothing(event):
    live, shown = grown(event)
    assert (shown, list(live), live.has_unsaved_text) == ([], [], False)


def test_a_call_of_the_provider_is_live_from_its_start_to_its_end():
    live, shown = grown(HOSTED("h", "search"), HOSTED_DONE("h", "search", "{}"))
    ended = ToolExecution("u-hosted-h", "h", "search", "{}", status=COMPLETED)
    assert shown == [
        ItemStarted(ToolExecution("u-hosted-h", "h", "search", status=OPEN)),
        ItemCompleted(ended),
    ]
    assert list(live) == [ended]


@pytest.mark.parametrize(
    "between",
    [
        [SAY("a")],
        [SAY("a", "commentary")],
        [BEGIN("c1", "look")],
        [HOSTED("h", "search")],
    ],
)
def test_an_event_of_another_item_closes_reasoning_for_deltas(between):
    live, _ = grown(THINK("r"), *between, THINK("s"), THINK("t"))
    reasoning = [item for item in live if isinstance(item, Reasoning)]
    assert [(item.id, item.summary) for item in reasoning] == [("u-reasoning", ("r",)), ("u-reasoning-2", ("st",))]


@pytest.mark.parametrize("between", [inference.ToolCallDelta("c1", "{"), HOSTED_DONE("h", "search", "{}"), SAY("b")])
def test_also_the_growth_or_end_of_an_older_item_closes_reasoning(between):
    live, _ = grown(SAY("a"), BEGIN("c1", "look"), HOSTED("h", "search"), THINK("r"), between, THINK("s"))
    assert [item.id for item in live if isinstance(item, Reasoning)] == ["u-reasoning", "u-reasoning-2"]


@pytest.mark.parametrize("between", [inference.ProviderMetadata({}), CALL("c1", "look", "{}"), SAY("")])
def test_what_shows_nothing_leaves_reasoning_open(between):
    live, _ = grown(THINK("r"), between, THINK("s"))
    assert list(live) == [Reasoning("u-reasoning", ("rs",), status=OPEN)]


def test_a_message_goes_on_behind_other_items():
    live, _ = grown(SAY("a"), THINK("r"), SAY("b"))
    assert list(live) == [message("u-message", "ab"), Reasoning("u-reasoning", ("r",), status=OPEN)]


def test_turns_do_not_share_items():
    live = LiveItems(ItemNumbers())
    for turn_id in ("u", "v", "u"):
        live.absorb(turn_id, SAY(turn_id))
    assert list(live) == [message("u-message", "uu"), message("v-message", "v")]
    assert live.take("w", "message") is None


# -- what decisions take -----------------------------------------------------------------------------------------------


def test_a_completed_item_takes_the_oldest_open_one_of_its_kind():
    live, _ = grown(THINK("r"), SAY("a"), THINK("s"))
    assert live.take("u", "reasoning") == "u-reasoning"
    assert live.take("u", "reasoning") == "u-reasoning-2"
    assert live.take("u", "reasoning") is None
    live.confirm()
    assert list(live) == [message("u-message", "a")]


def test_what_a_failed_append_took_is_open_again():
    live, _ = grown(SAY("a"), THINK("r"))
    before = list(live)
    assert live.take("u", "message") == "u-message"
    assert live.leave("u", hosted=True) == ["u-reasoning"]
    live.give_back()
    assert list(live) == before
    assert live.take("u", "message") == "u-message"


def test_text_behind_a_completed_item_opens_the_next():
    live, _ = grown(SAY("a"))
    live.take("u", "message")
    assert live.absorb("u", THINK("r"))[0] == ItemStarted(Reasoning("u-reasoning", status=OPEN))
    assert live.absorb("u", SAY("b"))[0] == ItemStarted(message("u-message-2"))
    live.confirm()
    assert [item.id for item in live] == ["u-reasoning", "u-message-2"]


def test_a_step_leaves_all_but_the_calls_of_the_provider():
    live, _ = grown(SAY("a"), HOSTED("h", "search"), BEGIN("c1", "look"))
    live.absorb("v", SAY("b"))
    live.take("u", "message")
    assert live.leave("u", hosted=False) == ["u-tool-c1"]
    live.confirm()
    assert live.leave("u", hosted=True) == ["u-hosted-h"]
    live.confirm()
    assert list(live) == [message("v-message", "b")]


def test_the_id_of_a_dropped_item_is_not_given_again():
    live, _ = grown(SAY("a"))
    live.leave("u", hosted=False)
    live.confirm()
    assert live.absorb("u", SAY("b"))[0] == ItemStarted(message("u-message-2"))


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_text_that_is_not_stored_is_offered_until_it_is():
    live, _ = grown(THINK("r"), SAY("a", "commentary"), SAY("b", "commentary"))
    offer = [OpenText("u", "u-message-commentary", "ab", "commentary", first=True)]
    assert live.has_unsaved_text
    assert live.unsaved() == offer
    live.give_back()
    assert live.unsaved() == offer
    live.absorb("u", SAY("c", "commentary"))
    live.confirm()
    assert live.unsaved() == [OpenText("u", "u-message-commentary", "c", "commentary", first=False)]
    live.confirm()
    assert not live.has_unsaved_text
    assert live.unsaved() == []


def test_only_messages_are_offered():
    live, _ = grown(THINK("r"), BEGIN("c1", "look"), inference.ToolCallDelta("c1", "{"))
    assert not live.has_unsaved_text
    assert live.unsaved() == []


@pytest.mark.parametrize(("text", "count"), [("x", FIRST_CHECKPOINT), ("é", FIRST_CHECKPOINT // 2)])
def test_a_checkpoint_is_due_at_a_size_that_doubles(text, count):
    live, _ = grown(SAY(text * (count - 1)))
    assert not live.checkpoint_due
    live.absorb("u", SAY(text))
    for factor in (2, 4):
        assert live.checkpoint_due
        live.unsaved()
        live.confirm()
        assert not live.checkpoint_due
        live.absorb("u", SAY(text * (count * factor - 1)))
        assert not live.checkpoint_due
        live.absorb("u", SAY(text))


def test_a_checkpoint_of_less_does_not_double_the_size():
    live, _ = grown(SAY("a"))
    live.unsaved()
    live.confirm()
    live.absorb("u", SAY("x" * FIRST_CHECKPOINT))
    assert live.checkpoint_due


def test_other_items_make_no_checkpoint_due():
    live, _ = grown(SAY("x" * FIRST_CHECKPOINT), THINK("r"))
    assert not live.checkpoint_due
    assert live.has_unsaved_text


def test_lone_surrogates_have_a_size():
    live, _ = grown(SAY("\ud800"))
    assert live.unsaved() == [OpenText("u", "u-message", "\ud800", None, first=True)]


# -- laws --------------------------------------------------------------------------------------------------------------


@given(st.lists(stream_events, max_size=20), st.booleans())
@settings(max_examples=200)
def test_what_a_view_shows_at_the_end_is_what_is_stored(events, ends_well):
    """A step and the live items in step: each item that is stored completes one that is shown, the rest is dropped."""
    numbers = ItemNumbers()
    step, live, view = Step("one"), LiveItems(numbers), ItemFold()
    stored = []

    def store(items: Any) -> None:
        for item in items:
            base = id_base(item)
            if base is not None:
                item_id = live.take("u", base)
                assert item_id is not None or isinstance(item, ToolCall), "all text that is stored was shown"
                item_id = item_id or numbers.take("u", base)
                for kind in project(item, item_id):
                    view.apply(kind)
            stored.append(item)
        live.confirm()

    for event in events:
        store(step.absorb(event))
        for kind in live.absorb("u", event):
            view.apply(kind)
        assert {item.id: item for item in live}.items() <= {item.id: item for item in view.items()}.items()
    store(step.final_items() if ends_well else step.unfinished())
    for item_id in live.leave("u", hosted=True):
        view.apply(ItemDiscarded(item_id))
    live.confirm()
    assert list(live) == []

    texts = [item.text for item in stored if isinstance(item, AssistantMessage | ReasoningSummary)]
    shown = [item.text if isinstance(item, AgentMessage) else "".join(item.summary)
             for item in view.items() if isinstance(item, AgentMessage | Reasoning)]  # fmt: skip
    assert sorted(shown) == sorted(texts)
    said = [text for sort, text in runs_of(events) if text.strip()]
    assert texts == said or (not ends_well and texts == said[:-1])


@given(st.lists(st.tuples(st.text(max_size=3), st.sampled_from(["store", "fail", "wait"])), max_size=15))
@settings(max_examples=100)
def test_checkpoints_hold_the_text_once_whatever_fails(steps):
    live, said, saved = LiveItems(ItemNumbers()), "", ""
    for text, fate in steps:
        live.absorb("u", SAY(text))
        said += text
        offered = "".join(part.text for part in live.unsaved()) if fate != "wait" else ""
        if fate == "store":
            live.confirm()
            saved += offered
            assert saved == said
            assert not live.has_unsaved_text
        else:
            live.give_back()
        assert said.startswith(saved)
