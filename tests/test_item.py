import gc
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.logic.item import (
    ItemFold,
    ItemNumbers,
    derive,
    event_count,
    fold_items,
    id_base,
    merge,
    message_base,
    project,
    project_turn,
    steps,
)
from roder_trio.schema import item as items
from roder_trio.schema import transcript
from roder_trio.schema.event import EventEnvelope, TranscriptItemAppended, TurnCompleted
from roder_trio.schema.item import (
    ItemCompleted,
    ItemDelta,
    ItemDiscarded,
    ItemStarted,
    ItemStatus,
    ThreadItemEvent,
)

AT = datetime(2026, 10, 3, tzinfo=UTC)
OPEN, DONE, FAILED, CUT = (
    ItemStatus.IN_PROGRESS,
    ItemStatus.COMPLETED,
    ItemStatus.FAILED,
    ItemStatus.INTERRUPTED,
)


def appended(item: Any, item_id: str | None, item_seq: int, event_id: str = "e", **changes: Any) -> EventEnvelope:
    event = TranscriptItemAppended(0, item, item_id, item_seq)
    fields = {"event_id": event_id, "seq": 1, "timestamp": AT, "source": "turn", "thread_id": "t", "turn_id": "u"}
    return EventEnvelope(event=event, **{**fields, **changes})


def stored(kind: Any, seq: int = 0, event_id: str = "s", turn_id: str = "u") -> ThreadItemEvent:
    return ThreadItemEvent(event_id=event_id, seq=seq, timestamp=AT, thread_id="t", turn_id=turn_id, event=kind)


def whole(item: Any) -> tuple[Any, ...]:
    return (ItemStarted(attrs.evolve(item, status=OPEN)), ItemCompleted(attrs.evolve(item, status=DONE)))


# -- projection --------------------------------------------------------------------------------------------------------

IMAGE = transcript.Image("data:x")
OPAQUE_BOUNDARY = transcript.ProviderMetadata({"output": [{"type": "message"}, {"type": "compaction"}]})
PROJECTIONS = [
    (transcript.UserMessage("hi", (IMAGE,)), "user", whole(items.UserMessage("i", "hi", (IMAGE,)))),
    (transcript.AssistantMessage("a"), "message", (ItemCompleted(items.AgentMessage("i", "a", None, DONE)),)),
    (
        transcript.AssistantMessage("a", "final_answer"),
        "message",
        (ItemCompleted(items.AgentMessage("i", "a", "final_answer", DONE)),),
    ),
    (
        transcript.AssistantMessage("a", "commentary", interrupted=True),
        "message-commentary",
        (ItemCompleted(items.AgentMessage("i", "a", "commentary", CUT)),),
    ),
    (transcript.ReasoningSummary("r"), "reasoning", (ItemCompleted(items.Reasoning("i", ("r",), (), DONE)),)),
    (
        transcript.ToolCall("c", "read", "{}"),
        "tool-c",
        (ItemStarted(items.ToolExecution("i", "c", "read", "{}", status=OPEN)),),
    ),
    (
        transcript.ToolResult("c", "read", "out"),
        "tool-c",
        (ItemCompleted(items.ToolExecution("i", "c", "read", output="out", status=DONE)),),
    ),
    (
        transcript.ToolResult("c", None, "no", is_error=True),
        "tool-c",
        (ItemCompleted(items.ToolExecution("i", "c", None, error="no", status=FAILED)),),
    ),
    (transcript.ContextCompaction("sum"), "compaction", whole(items.Compaction("i", "sum"))),
    (OPAQUE_BOUNDARY, "compaction", whole(items.Compaction("i", ""))),
    (transcript.ErrorNote("bad"), "error", whole(items.Error("i", "bad"))),
    (transcript.ProviderMetadata({"output": [{"type": "message"}]}), None, ()),
    (transcript.ProviderMetadata({"output": "compaction"}), None, ()),
    (transcript.ProviderMetadata([]), None, ()),
    (transcript.OpaqueItem("hologram", {}), None, ()),
]


@pytest.mark.parametrize(("item", "base", "kinds"), PROJECTIONS, ids=str)
def test_each_transcript_item_has_its_projection(item, base, kinds):
    assert id_base(item) == base
    assert project(item, "i") == kinds
    assert event_count(item) == len(kinds)


@pytest.mark.parametrize(
    ("phase", "base"),
    [(None, "message"), ("", "message"), ("final_answer", "message"), ("plan", "message-plan")],
)
def test_commentary_has_a_base_of_its_own(phase, base):
    assert message_base(phase) == base


# -- derived events ----------------------------------------------------------------------------------------------------


def test_a_user_text_and_an_answer_derive_three_numbered_events():
    log = [
        appended(transcript.UserMessage("hi"), "u-user", 2, "e1"),
        appended(transcript.AssistantMessage("yo"), "u-message", 3, "e2"),
    ]
    derived = merge((), log)
    assert [(event.seq, event.event_id, event.kind) for event in derived] == [
        (1, "e1:started", "item.started"),
        (2, "e1:completed", "item.completed"),
        (3, "e2:completed", "item.completed"),
    ]
    assert {(event.thread_id, event.turn_id, event.timestamp) for event in derived} == {("t", "u", AT)}
    assert not any(event.checkpoint for event in derived)


@pytest.mark.parametrize(
    "envelope",
    [
        appended(transcript.UserMessage("hi"), None, 0),
        appended(transcript.UserMessage("hi"), "u-user", 0),
        appended(transcript.UserMessage("hi"), None, 4),
        appended(transcript.UserMessage("hi"), "u-user", 2, turn_id=None),
        appended(transcript.UserMessage("hi"), "u-user", 2, thread_id=None),
        appended(transcript.ProviderMetadata({}), "x", 4),
        attrs.evolve(appended(transcript.UserMessage("hi"), "u-user", 2), event=TurnCompleted()),
    ],
)
def test_a_record_without_pins_and_other_events_derive_nothing(envelope):
    assert derive(envelope) == ()
    assert merge((), [envelope]) == ()


def test_a_projection_with_more_events_than_numbers_keeps_the_last_ones():
    assert [event.seq for event in derive(appended(transcript.UserMessage("hi"), "u-user", 1))] == [1]


def test_merging_goes_by_seq_and_takes_each_event_once():
    log = [appended(transcript.UserMessage("hi"), "u-user", 2, "e1")]
    host = stored(ItemStarted(items.Error("x", "m")), 3)
    mixture = (*merge((host,), log), host)
    assert merge(mixture, [*log, *log]) == (*derive(log[0]), host)


def test_of_two_with_one_number_the_stored_one_wins_then_the_pinned_last_one():
    one = appended(transcript.AssistantMessage("one"), "u-message", 4, "e1")
    two = appended(transcript.UserMessage("two"), "u-user", 5, "e2")
    assert [event.event_id for event in merge((), [two, one])] == ["e1:completed", "e2:completed"]
    host = stored(ItemDiscarded("z"), 4, "host")
    assert [event.event_id for event in merge([host], [two, one])] == ["host", "e2:completed"]


def test_a_bare_turn_is_shown_by_projecting_it():
    told = [
        transcript.UserMessage("hi"),
        transcript.ToolCall("c", "read", "{}"),
        transcript.ToolResult("c", None, "out"),
        transcript.ProviderMetadata({}),
        transcript.UserMessage("more"),
    ]
    fold = ItemFold()
    for kind in project_turn("u", told):
        fold.apply(kind)
    assert fold.items() == (
        items.UserMessage("u-user", "hi", status=DONE),
        items.ToolExecution("u-tool-c", "c", "read", "{}", "out", status=DONE),
        items.UserMessage("u-user-2", "more", status=DONE),
    )


# -- fold --------------------------------------------------------------------------------------------------------------

M, R, X = "m", "r", "x"


def text(delta: str, phase: str | None = None, item_id: str = M) -> ItemDelta:
    return ItemDelta(item_id, items.AgentMessageText(delta, phase))


def thought(delta: Any) -> ItemDelta:
    return ItemDelta(R, delta)


def folded(*kinds: Any) -> tuple[Any, ...]:
    return fold_items((), [stored(kind) for kind in kinds])


FOLDS = [
    # started
    ([ItemStarted(items.AgentMessage(M, ""))], [items.AgentMessage(M, "")]),
    (
        [text("a"), ItemStarted(items.AgentMessage(M, "b", status=OPEN)), text("c")],
        [items.AgentMessage(M, "bc", None, OPEN)],
    ),
    (
        [ItemDelta(X, items.ToolInputText("{")), ItemStarted(items.ToolExecution(X, "c", "n", "{}", status=OPEN))],
        [items.ToolExecution(X, "c", "n", "{}", status=OPEN)],
    ),
    # deltas
    ([text("a", "plan"), text("b")], [items.AgentMessage(M, "ab", "plan", OPEN)]),
    ([text("a"), text("b", "plan"), text("c", "other")], [items.AgentMessage(M, "abc", "plan", OPEN)]),
    ([ItemCompleted(items.AgentMessage(M, "a", None, DONE)), text("b")], [items.AgentMessage(M, "a", None, DONE)]),
    (
        [thought(items.ReasoningText(*part)) for part in (("a", 2), ("b",), ("c", -1))],
        [items.Reasoning(R, (), ("bc", "", "a"), OPEN)],
    ),
    (
        [thought(items.ReasoningSummaryText("a")), thought(items.ReasoningSummaryPartAdded(1))],
        [items.Reasoning(R, ("a", ""), (), OPEN)],
    ),
    (
        [ItemDelta(X, items.ToolInputText("a")), ItemDelta(X, items.ToolInputText("b"))],
        [items.ToolExecution(X, "", "", "ab", status=OPEN)],
    ),
    # of another type
    (
        [text("a", item_id=X), text("z"), ItemDelta(X, items.ReasoningSummaryText("b"))],
        [items.Reasoning(X, ("b",), (), OPEN), items.AgentMessage(M, "z", None, OPEN)],
    ),
    ([thought(items.ReasoningText("a")), text("b", item_id=R)], [items.AgentMessage(R, "b", None, OPEN)]),
    ([text("a"), ItemDelta(M, items.ToolInputText("b"))], [items.ToolExecution(M, "", "", "b", status=OPEN)]),
    (
        [ItemCompleted(items.Error(X, "e", DONE)), text("b", item_id=X)],
        [items.Error(X, "e", DONE)],
    ),
    # completed
    ([ItemCompleted(items.AgentMessage(M, "a", None, CUT))], [items.AgentMessage(M, "a", None, CUT)]),
    ([ItemCompleted(items.AgentMessage(M, "a"))], [items.AgentMessage(M, "a", None, DONE)]),
    ([text("a"), ItemCompleted(items.AgentMessage(M, "b", None, DONE))], [items.AgentMessage(M, "b", None, DONE)]),
    (
        [
            thought(items.ReasoningSummaryText("s")),
            thought(items.ReasoningText("c")),
            ItemCompleted(items.Reasoning(R)),
        ],
        [items.Reasoning(R, ("s",), ("c",), DONE)],
    ),
    (
        [thought(items.ReasoningSummaryText("s")), ItemCompleted(items.Reasoning(R, ("new",), ("x",)))],
        [items.Reasoning(R, ("new",), ("x",), DONE)],
    ),
    (
        [
            ItemStarted(items.ToolExecution(X, "c", "n", "in", "out", "err", OPEN)),
            ItemCompleted(items.ToolExecution(X, "c", None, status=DONE)),
        ],
        [items.ToolExecution(X, "c", "n", "in", "out", "err", DONE)],
    ),
    (
        [
            ItemStarted(items.ToolExecution(X, "c", "n", "in", "out", "err", OPEN)),
            ItemCompleted(items.ToolExecution(X, "c", "n2", "in2", "out2", "err2", FAILED)),
        ],
        [items.ToolExecution(X, "c", "n2", "in2", "out2", "err2", FAILED)],
    ),
    # discarded
    ([text("a"), ItemDiscarded(M)], []),
    ([ItemDiscarded(M)], []),
    ([text("a"), text("b", item_id=X), ItemDiscarded(M), text("c")],
     [items.AgentMessage(X, "b", None, OPEN), items.AgentMessage(M, "c", None, OPEN)]),
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "expected"), FOLDS, ids=range(len(FOLDS)))
def test_item_events_fold_by_the_table(kinds, expected):
    assert folded(*kinds) == tuple(expected)


def test_an_event_whose_number_is_folded_already_is_ignored():
    fold = ItemFold()
    for seq in (7, 8, 8, 7, 5, 5, 10, 10, 9, 10, 11, 3):
        fold.apply(stored(text(f"{seq} "), seq))
    assert fold.items() == (items.AgentMessage(M, "7 8 5 10 9 11 3 ", None, OPEN),)


def test_events_without_a_number_are_all_folded():
    fold = ItemFold()
    for _ in range(3):
        fold.apply(stored(text("a")))
    assert fold.items()[0].text == "aaa"


ids = st.sampled_from([M, R, X])
statuses = st.sampled_from([None, *ItemStatus])
words = st.sampled_from(["a", "bb", ""])
lists = st.lists(words, max_size=2).map(tuple)
optional = st.none() | words
thread_items = st.one_of(
    st.builds(items.AgentMessage, ids, words, optional, statuses),
    st.builds(items.Reasoning, ids, lists, lists, statuses),
    st.builds(items.ToolExecution, ids, words, optional, optional, optional, optional, statuses),
    st.builds(items.Error, ids, words, statuses),
)
deltas = st.one_of(
    st.builds(items.AgentMessageText, words, optional),
    st.builds(items.ReasoningText, words, st.integers(-1, 2)),
    st.builds(items.ReasoningSummaryText, words, st.integers(-1, 2)),
    st.builds(items.ReasoningSummaryPartAdded, st.integers(-1, 2)),
    st.builds(items.ToolInputText, words),
)
kinds = st.one_of(
    st.builds(ItemStarted, thread_items),
    st.builds(ItemCompleted, thread_items),
    st.builds(ItemDiscarded, ids),
    st.builds(ItemDelta, ids, deltas),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(kinds, max_size=12), st.integers(0, 12))
def test_folding_a_prefix_then_the_rest_is_folding_all(told, cut):
    events = [stored(kind, seq) for seq, kind in enumerate(told, 1)]
    assert fold_items(fold_items((), events[:cut]), events[cut:]) == fold_items((), events)


@settings(deadline=None, max_examples=100)
@given(st.lists(kinds, max_size=8), st.data())
def test_an_overlap_of_events_changes_nothing(told, data):
    events = [stored(kind, seq) for seq, kind in enumerate(told, 1)]
    cut = data.draw(st.integers(0, len(events)))
    back = data.draw(st.integers(0, cut))
    assert fold_items((), events[:cut] + events[back:]) == fold_items((), events)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 30)))
def test_numbers_are_recognised_in_any_order(seqs):
    fold = ItemFold()
    for seq in seqs:
        fold.apply(stored(text("a"), seq))
    assert "".join(item.text for item in fold.items()) == "a" * len(set(seqs))


transcript_items = st.one_of(
    st.builds(transcript.UserMessage, words),
    st.builds(transcript.AssistantMessage, words, optional, st.booleans()),
    st.builds(transcript.ReasoningSummary, words),
    st.builds(transcript.ToolCall, ids, words, words),
    st.builds(transcript.ToolResult, ids, optional, words, st.booleans()),
    st.builds(transcript.ContextCompaction, words),
    st.builds(transcript.ProviderMetadata, st.just({"a": 1})),
)


def logged(told: list[Any], numbers: Iterator[int]) -> list[EventEnvelope]:
    """Records of transcript items whose item events have the next of the numbers."""
    ids, log = ItemNumbers(), []
    for index, item in enumerate(told):
        base = id_base(item)
        if base is not None:
            *_, seq = [next(numbers) for _ in range(event_count(item))]
            log.append(appended(item, ids.take("u", base), seq, f"e{index}"))
    return log


@settings(deadline=None, max_examples=100)
@given(st.lists(transcript_items, max_size=8), st.randoms(use_true_random=False))
def test_derived_events_have_all_numbers_whatever_the_order_of_the_records(told, random):
    log, seq = logged(told, count(1)), sum(map(event_count, told))
    events = merge((), log)
    assert [event.seq for event in events] == list(range(1, seq + 1))
    random.shuffle(log)
    assert merge((), log) == events
    assert fold_items((), events) == fold_items((), [stored(kind) for kind in project_turn("u", told)])


@settings(deadline=None, max_examples=100)
@given(st.lists(transcript_items, max_size=6), st.lists(st.tuples(kinds, st.integers(0, 8)), max_size=4), st.booleans())
def test_what_follows_a_log_shows_what_its_item_events_give(told, host, between):
    log = logged(told, count(1, 3) if between else count(3))
    recorded = [stored(kind, seq) for kind, seq in host]
    events = merge(recorded, log)
    fold = ItemFold()
    fold.follow(steps(recorded, log))
    if between:
        assert fold.items() == fold_items((), events)
    more, late = logged(told, count(50)), stored(text("late"), 99)
    fold.follow(steps((), more))
    fold.apply(late)
    assert fold.items() == fold_items((), [*events, *merge((), more), late])


def test_a_log_without_numbers_that_meet_is_not_projected_until_someone_looks():
    log = logged([transcript.UserMessage("a"), transcript.AssistantMessage("b")], count(1))
    noted = steps([stored(text("c"), 4)], log)
    assert [(step.seq, isinstance(step, ThreadItemEvent)) for step in noted] == [(2, False), (3, False), (4, True)]
    assert steps([stored(text("c"), 3)], log) == merge([stored(text("c"), 3)], log)


# -- ids ---------------------------------------------------------------------------------------------------------------


def test_later_ids_of_a_base_are_numbered_within_their_turn():
    numbers = ItemNumbers()
    taken = [numbers.take("u", base) for base in ("user", "message", "tool-c", "message", "user", "message")]
    assert taken == ["u-user", "u-message", "u-tool-c", "u-message-2", "u-user-2", "u-message-3"]
    assert numbers.take("v", "message") == "v-message"


def test_calls_and_hosted_calls_have_no_number():
    numbers = ItemNumbers()
    assert [numbers.take("u", "tool-c"), numbers.take("u", "tool-c")] == ["u-tool-c"] * 2
    assert [numbers.take("u", "hosted-h"), numbers.take("u", "hosted-h")] == ["u-hosted-h"] * 2


@pytest.mark.parametrize(
    ("seen", "next_id"),
    [
        ([], "u-message"),
        (["u-message"], "u-message-2"),
        (["u-message-2"], "u-message-3"),
        (["u-message", "u-message-3"], "u-message-4"),
        (["u-message-3", "u-message-2"], "u-message-4"),
        (["u-message-x", "u-message-plan", "other-message-9", "9"], "u-message"),
        (["u-message-" + "9" * 30, "u-message-²"], "u-message"),
        (["u-message-plan-7"], "u-message"),
    ],
)
def test_the_next_number_is_above_those_in_the_log(seen, next_id):
    numbers = ItemNumbers()
    for item_id in seen:
        numbers.see("u", item_id)
    assert numbers.take("u", "message") == next_id


def test_a_number_that_was_given_is_not_given_again():
    numbers = ItemNumbers()
    assert numbers.take("u", "message") == "u-message"
    assert not numbers.knows("u", "u-message")
    assert numbers.take("u", "message") == "u-message-2"
    numbers.see("u", "u-message-3")
    assert numbers.take("u", "message") == "u-message-4"


def test_an_id_is_known_in_its_turn_only():
    numbers = ItemNumbers()
    numbers.see("u", "m")
    assert numbers.knows("u", "m")
    assert not numbers.knows("v", "m")
    assert not numbers.knows("u", "n")
    numbers.see("v", "m")
    numbers.see("w", "m")
    assert numbers.knows("u", "m")
    assert numbers.knows("v", "m")
    assert numbers.knows("w", "m")
    assert not numbers.knows("x", "m")


def test_an_idle_thread_holds_almost_nothing():
    held = [ItemNumbers(), ItemFold()]
    size = sum(
        sys.getsizeof(part)
        for whole in held
        for part in [whole, *gc.get_referents(whole)]
        if part not in (None, type(whole))
    )
    assert size < 1000
