"""Metadata and turns as folds of a log: `MetadataFold`, `fold_metadata`, `turns_of`."""

from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import add

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.logic.thread.metadata import MetadataFold, derived_title, fold_metadata
from roder_trio.logic.thread.record import turns_of
from roder_trio.schema import transcript
from roder_trio.schema.event import (
    EventEnvelope,
    GoalUpdated,
    ThreadMetadataChanged,
    TranscriptItemAppended,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
    Unknown,
    UsageRecorded,
)
from roder_trio.schema.goal import Goal, GoalCause, GoalStatus
from roder_trio.schema.item import AgentMessageText, ItemDelta, ThreadItemEvent
from roder_trio.schema.thread import ExtensionStateRecord, GlobalScope, OpaqueRecord, ThreadMetadata
from roder_trio.schema.turn import TurnStatus
from roder_trio.schema.usage import MAX_TOKENS, ZERO_USAGE, Purpose, TokenUsage

START = datetime(2026, 1, 1, tzinfo=UTC)
METADATA = ThreadMetadata(thread_id="t", created_at=START, updated_at=START)


def at(seconds):
    return START + timedelta(seconds=seconds)


def record(event, seconds=1, turn="u"):
    return EventEnvelope(
        event_id=f"e{id(event)}", timestamp=at(seconds), source="turn", thread_id="t", turn_id=turn, event=event
    )


def item(item, seconds=1, turn="u"):
    return record(TranscriptItemAppended(0, item), seconds, turn)


def user(text, seconds=1, turn="u"):
    return item(transcript.UserMessage(text), seconds, turn)


def usage(attempt, report, *tokens, **fields):
    tier = fields.pop("tier", None)
    return record(
        UsageRecorded(
            attempt_id=attempt,
            report=report,
            turn_id="u",
            usage=TokenUsage(*tokens, service_tier=tier),
            purpose=Purpose.SAMPLING,
            **fields,
        )
    )


def goal(objective):
    value = Goal(
        goal_id="g", thread_id="t", objective=objective, status=GoalStatus.ACTIVE, created_at=START, updated_at=START
    )
    return record(GoalUpdated(value, GoalCause.HOST))


# -- M1 to M5 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], START),
        ([user("a", 5)], at(5)),
        ([user("a", 5), user("b", 3)], at(5)),
        ([user("a", -1e9)], START),
        ([record(Unknown("newer", {}), 4)], at(4)),
        ([record(TurnStarted("p", "m"), 4)], at(4)),
    ],
)
def test_updated_at_is_the_latest_timestamp_and_never_falls(records, expected):
    assert fold_metadata(METADATA, records).updated_at == expected


def test_an_item_event_moves_the_date_and_state_and_opaque_records_move_nothing():
    delta = ThreadItemEvent(
        event_id="i",
        timestamp=at(7),
        thread_id="t",
        turn_id="u",
        event=ItemDelta("i", AgentMessageText("x")),
    )
    state = ExtensionStateRecord(
        record_id="r", extension_id="x", key="k", scope=GlobalScope(), schema_version=1, value=1
    )
    assert fold_metadata(METADATA, [delta]).updated_at == at(7)
    assert fold_metadata(METADATA, [state, OpaqueRecord("newer", {})]) is METADATA


def test_only_user_and_assistant_messages_count():
    said = [
        user("a"),
        item(transcript.AssistantMessage("b")),
        item(transcript.ToolCall("c", "tool", "{}")),
        item(transcript.ToolResult("c", "tool", "out")),
        item(transcript.ErrorNote("no")),
        record(TurnCompleted()),
    ]
    assert fold_metadata(METADATA, said).message_count == 2


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("  hi\n there ", "hi there"),
        ("", None),
        (" \n\t ", None),
        ("x" * 72, "x" * 72),
        ("x" * 73, "x" * 71 + "…"),
        (" ".join("a" * 100), "a " * 35 + "a…"),
        ("🙂" * 80, "🙂" * 71 + "…"),
        ("a\u2028b", "a b"),
    ],
)
def test_a_title_is_one_line_of_at_most_72_code_points(text, title):
    assert derived_title(text) == title


@pytest.mark.parametrize(
    ("records", "title"),
    [
        ([user("  hi\n there "), item(transcript.AssistantMessage("x")), user("later")], "hi there"),
        ([user("  "), user("second")], "second"),
        ([goal("objective"), user("later")], "objective"),
        ([user("first"), goal("objective")], "first"),
        ([item(transcript.UserMessage("", [transcript.Image("data:,")]))], None),
        ([item(transcript.AssistantMessage("answer"))], None),
    ],
)
def test_a_blank_title_becomes_the_first_text_of_a_user_or_goal(records, title):
    assert fold_metadata(METADATA, records).title == title


def test_a_given_title_stays_and_a_blank_one_is_replaced():
    assert fold_metadata(attrs.evolve(METADATA, title="Given"), [user("x")]).title == "Given"
    assert fold_metadata(attrs.evolve(METADATA, title=" "), [user("\n")]).title == " "
    assert fold_metadata(attrs.evolve(METADATA, title=" "), [user("x")]).title == "x"


def test_a_cleared_title_may_be_derived_again():
    clear = record(ThreadMetadataChanged(title=None))
    assert fold_metadata(METADATA, [user("one"), clear]).title is None
    assert fold_metadata(METADATA, [user("one"), clear, user("two")]).title == "two"


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], None),
        ([usage("a", 1, 0, 0, 0)], None),
        ([usage("a1", 1, 3, 1, 4), usage("a1", 2, 10, 2, 12), usage("a2", 1, 5, 1, 6)], TokenUsage(15, 3, 18)),
        ([usage("a", 2, 10, 2, 12), usage("a", 1, 3, 1, 4)], TokenUsage(10, 2, 12)),
        ([usage("a", 1, 10, 2, 12), usage("a", 1, 99, 99, 198)], TokenUsage(10, 2, 12)),
        ([usage("a", 1, 12, 0, 12), usage("a", 2, 0, 0, 0)], TokenUsage(12, 0, 12)),
        ([usage("a", 1, 12, 0, 12), usage("a", 2, 9, 0, 9)], TokenUsage(9, 0, 9)),
        ([usage("a", 1, 3, 1, 4, origin_thread_id="child")], None),
        (
            [usage("a", 1, 3, 1, 4, tier="flex"), usage("b", 1, 1, 1, 2, tier="flex")],
            TokenUsage(4, 2, 6, 0, 0, 0, "flex"),
        ),
        ([usage("a", 1, 3, 1, 4, tier="flex"), usage("b", 1, 1, 1, 2)], TokenUsage(4, 2, 6)),
        (
            [usage("a", 1, 3, 1, 4, tier="flex"), usage("b", 1, 1, 1, 2), usage("b", 2, 1, 1, 2, tier="flex")],
            TokenUsage(4, 2, 6, 0, 0, 0, "flex"),
        ),
    ],
)
def test_usage_is_the_sum_of_the_last_reports_of_attempts(records, expected):
    assert fold_metadata(METADATA, records).usage == expected


tokens = st.builds(
    TokenUsage,
    *[st.integers(0, 50) | st.just(MAX_TOKENS)] * 3,
    *[st.integers(0, 9)] * 3,
    service_tier=st.sampled_from([None, "flex", "priority"]),
)
reports = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), tokens), max_size=12)


def recorded(attempt, report, total, number):
    event = UsageRecorded(attempt_id=attempt, report=report, turn_id="u", usage=total, purpose=Purpose.SUMMARY)
    return attrs.evolve(record(event), event_id=f"e{number}")


@settings(max_examples=150)
@given(reports, st.integers(0, 12))
def test_the_fold_equals_the_sum_and_may_go_on_from_any_point(given_reports, cut):
    last = {}
    for attempt, report, total in given_reports:
        if not total.is_empty and report > last.get(attempt, (0,))[0]:
            last[attempt] = (report, total)
    expected = reduce(add, [total for _, total in last.values()], ZERO_USAGE)
    records = [recorded(*entry, number) for number, entry in enumerate(given_reports)]
    whole = MetadataFold(METADATA)
    for one in records[:cut]:
        whole.absorb(one)
    # saturated counters can't be taken apart again, so only sums that didn't saturate go on from what is stored
    counters = [total.total_tokens + total.prompt_tokens + total.completion_tokens for _, total in last.values()]
    resumed = MetadataFold(whole.metadata, whole.attempts)
    for one in records[cut:]:
        whole.absorb(one)
        resumed.absorb(one)
    found = whole.metadata.usage or ZERO_USAGE
    assert found.total_tokens == expected.total_tokens
    assert found.prompt_tokens == expected.prompt_tokens
    assert found.service_tier == expected.service_tier
    if sum(counters) < MAX_TOKENS:
        assert found == expected
        assert resumed.metadata == whole.metadata


def test_a_fold_that_starts_from_a_sum_needs_only_the_attempts_that_change():
    before = attrs.evolve(METADATA, usage=TokenUsage(30, 6, 36))
    fold = MetadataFold(before, {"a": (1, TokenUsage(10, 2, 12))})
    fold.absorb(usage("a", 2, 20, 2, 22))
    assert fold.metadata.usage == TokenUsage(40, 6, 46)
    assert fold.attempts == {"a": (2, TokenUsage(20, 2, 22))}


def test_a_sum_that_the_known_attempts_explain_leaves_nothing_over():
    before = attrs.evolve(METADATA, usage=TokenUsage(10, 2, 12))
    fold = MetadataFold(before, {"a": (1, TokenUsage(10, 2, 12))})
    fold.absorb(usage("a", 2, 20, 2, 22))
    assert fold.metadata.usage == TokenUsage(20, 2, 22)


def test_a_tier_that_a_mixture_hid_comes_back_if_the_counts_of_tiers_are_given():
    whole = MetadataFold(METADATA)
    for one in (usage("a", 1, 1, 1, 2, tier="flex"), usage("b", 1, 1, 1, 2)):
        whole.absorb(one)
    assert whole.metadata.usage == TokenUsage(2, 2, 4)
    assert whole.tiers == {"flex": 1, None: 1}
    known = {"b": whole.attempts["b"]}
    resumed, blind = MetadataFold(whole.metadata, known, whole.tiers), MetadataFold(whole.metadata, known)
    for fold in (whole, resumed, blind):
        fold.absorb(usage("b", 2, 2, 2, 4, tier="flex"))
    assert resumed.metadata == whole.metadata
    assert resumed.metadata.usage == TokenUsage(3, 3, 6, service_tier="flex")
    assert blind.metadata.usage == TokenUsage(3, 3, 6)


def test_usage_given_at_creation_is_an_opening_balance():
    fold = MetadataFold(attrs.evolve(METADATA, usage=TokenUsage(3, 1, 4, service_tier="flex")))
    fold.absorb(usage("a", 1, 1, 1, 2, tier="flex"))
    assert fold.metadata.usage == TokenUsage(4, 2, 6, service_tier="flex")
    assert MetadataFold(METADATA, {"a": (1, ZERO_USAGE)}).metadata.usage is None
    assert MetadataFold(attrs.evolve(METADATA, usage=ZERO_USAGE)).metadata.usage == ZERO_USAGE


def test_attempts_known_as_empty_add_nothing():
    fold = MetadataFold(attrs.evolve(METADATA, usage=TokenUsage(3, 1, 4)), {"a": (1, ZERO_USAGE)})
    fold.absorb(user("x"))
    assert fold.metadata.usage == TokenUsage(3, 1, 4)


def test_changed_metadata_sets_just_the_fields_it_names():
    before = attrs.evolve(METADATA, title="T", model="m", labels={"a": "1"}, reasoning="low")
    change = ThreadMetadataChanged(model=None, provider="p", labels={"b": "2"}, tool_allowlist=("x",))
    after = fold_metadata(before, [record(change)])
    assert after == attrs.evolve(
        before, model=None, provider="p", labels={"b": "2"}, tool_allowlist=("x",), updated_at=at(1)
    )


def test_labels_that_no_thread_may_have_are_refused_and_change_nothing():
    fold = MetadataFold(METADATA)
    with pytest.raises(ValueError, match="label"):
        fold.absorb(record(ThreadMetadataChanged(title="x", labels={"": "v"})))
    assert fold.metadata is METADATA


def test_the_fold_tells_the_date_without_building_the_rest():
    fold = MetadataFold(METADATA)
    fold.absorb(user("x", 9))
    assert fold.updated_at == at(9)
    assert fold.metadata is fold.metadata


# -- P1 to P4 ----------------------------------------------------------------------------------------------------------


def test_turns_stand_in_the_order_of_their_first_mention_with_items_in_log_order():
    turns = turns_of(
        "t",
        [
            user("in b", 1, "b"),
            record(TurnStarted("p", "m"), 2, "a"),
            user("in a", 3, "a"),
            user("in b again", 4, "b"),
        ],
    )
    assert [(turn.turn_id, turn.created_at) for turn in turns] == [("b", at(1)), ("a", at(2))]
    assert [part.text for part in turns[0].items] == ["in b", "in b again"]
    assert {turn.thread_id for turn in turns} == {"t"}


def test_events_that_mention_no_turn_make_none():
    records = [usage("a", 1, 1, 1, 2), user("nowhere", turn=None), record(Unknown("newer", {}))]
    assert turns_of("t", records) == ()


@pytest.mark.parametrize(
    ("event", "status", "finish_reason"),
    [
        (TurnCompleted(TokenUsage(1, 1, 2), "stop"), TurnStatus.COMPLETED, "stop"),
        (TurnFailed("no", "internal", TokenUsage(1, 1, 2)), TurnStatus.FAILED, None),
        (TurnInterrupted("user", TokenUsage(1, 1, 2)), TurnStatus.INTERRUPTED, None),
    ],
)
def test_the_first_terminal_event_ends_a_turn(event, status, finish_reason):
    later = record(TurnCompleted(TokenUsage(9, 9, 18), "later"), 9)
    (turn,) = turns_of("t", [record(event, 2), later, user("after the end", 10)])
    assert (turn.status, turn.finish_reason, turn.completed_at) == (status, finish_reason, at(2))
    assert turn.usage == TokenUsage(1, 1, 2)
    assert turn.created_at == at(2)
    assert len(turn.items) == 1


def test_a_turn_without_an_end_is_open_and_has_no_usage():
    turns = turns_of(
        "t", [user("bare", turn="bare"), record(TurnStarted("p", "m"), turn="ran"), usage("a", 1, 1, 1, 2)]
    )
    assert [(turn.turn_id, turn.status, turn.usage, turn.completed_at) for turn in turns] == [
        ("bare", TurnStatus.OPEN, None, None),
        ("ran", TurnStatus.OPEN, None, None),
    ]
