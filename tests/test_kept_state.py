"""What a kept state holds and leaves out, when it is refused, and what a summary lets go of."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.codec import state as codec
from roder_trio.errors import InvalidRecord
from roder_trio.logic.boundary import is_boundary, retained_before
from roder_trio.logic.thread.facts import FROM_LOG
from roder_trio.logic.thread.hydration import Hydration, fold_tail
from roder_trio.logic.thread.reading import shown_items, stored_outcome
from roder_trio.logic.thread.state import HeldText
from roder_trio.logic.usage import ClosedUsage, Ledger, ThreadTotals
from roder_trio.logic.window import History
from roder_trio.schema import command as c
from roder_trio.schema.event import (
    ApprovalRequested,
    EventEnvelope,
    ExternalToolRequested,
    GoalTimeRecorded,
    GoalUpdated,
    TranscriptItemAppended,
    TurnCompleted,
    TurnStarted,
    UsageRecorded,
)
from roder_trio.schema.goal import Goal, GoalCause, GoalStatus
from roder_trio.schema.item import (
    AgentMessage,
    AgentMessageText,
    ItemCompleted,
    ItemDelta,
    ItemDiscarded,
    ItemStarted,
    ItemStatus,
)
from roder_trio.schema.thread import ExtensionStateRecord, OpaqueRecord, ThreadScope
from roder_trio.schema.transcript import (
    AssistantMessage,
    ContextCompaction,
    Image,
    OpaqueItem,
    ProviderMetadata,
    UserMessage,
)
from roder_trio.schema.usage import Attempt, Purpose, TokenUsage
from tests.kept_states import TARGETS, continued, fingerprint, held_by, whole
from tests.test_window import any_items
from tests.thread_support import (
    ANSWER,
    AT,
    CALL,
    RESULT,
    THREAD,
    USER,
    Desk,
    envelope,
    item_event,
    laden,
    metadata,
    snapshot_of,
)

SUMMARY = ContextCompaction("so far", retained_count=1)


def recorded(attempt_id, tokens=1, report=1, turn_id="u", goal_id=None, origin=None, tier=None):
    usage = TokenUsage(tokens, 0, tokens, service_tier=tier)
    return UsageRecorded(
        attempt_id=attempt_id, report=report, turn_id=turn_id, goal_id=goal_id, usage=usage,
        purpose=Purpose.SAMPLING, origin_thread_id=origin,
    )  # fmt: skip


def used(*events):
    """Envelopes of usage, as accounting writes them."""
    return [envelope(event, event.turn_id, 0, f"{event.attempt_id}:{event.report}") for event in events]


def turns(count, *, summary=False):
    """The log of that many turns, each with a question and an answer, the last perhaps with a summary behind it."""
    desk = Desk()
    for number in range(count):
        desk.start(f"u{number}", f"question {number}")
        desk.do(c.FinalStep(f"u{number}", (AssistantMessage(f"answer {number}"),), "stop"))
        desk.do(c.JobEnded(f"u{number}", c.Finished()))
    if summary:
        desk.do(c.PersistItem(f"u{count - 1}", SUMMARY))
    return desk


# -- the text ----------------------------------------------------------------------------------------------------------


def test_a_state_laden_with_all_kinds_of_things_comes_back():
    desk = laden()
    desk.do(c.SetState("r", "host", "key", {"a": [1]}, 2))
    hydration = continued(desk.records, len(desk.records))
    assert fingerprint(hydration) == fingerprint(whole(desk.records))
    assert hydration.state.checkpoints == {
        "u-message": HeldText("u", AgentMessage("u-message", "so far", status=ItemStatus.IN_PROGRESS))
    }


def test_each_part_of_a_state_comes_back():
    opaque = ProviderMetadata({"output": [{"type": "compaction", "encrypted_content": "x"}]})
    goal = Goal(goal_id="g", thread_id=THREAD, objective="x", status=GoalStatus.ACTIVE, created_at=AT, updated_at=AT)
    said = [UserMessage("look", (Image("https://x/y.png"),)), CALL, RESULT, SUMMARY, opaque]
    events = [
        ("bare", TranscriptItemAppended(0, ANSWER)),
        *(("old", TranscriptItemAppended(index, item)) for index, item in enumerate(said)),
        ("old", TurnCompleted()),
        (None, GoalUpdated(goal, GoalCause.HOST, 5, 6.0)),
        (None, GoalTimeRecorded("g", "old", 2.0)),
        ("u", TurnStarted("one", "m", automatic=True)),
        ("u", TranscriptItemAppended(0, AssistantMessage("so far"))),
    ]
    records = [envelope(event, turn_id, seq) for seq, (turn_id, event) in enumerate(events, 1)]
    records += [
        item_event(ItemStarted(AgentMessage("own", "")), seq, turn_id) for seq, turn_id in ((1, "u"), (2, "bare"))
    ]
    hydration = continued(records, len(records))
    assert fingerprint(hydration) == fingerprint(whole(records))
    state, history = hydration.state, hydration.state.history
    assert (history.dropped, history.earlier, history.has_images) == (3, said[0], True)
    assert list(history.request()) == [opaque, said[0], AssistantMessage("so far")]
    assert (set(state.call_ids), state.opening_tokens, state.opening_time, state.goal_time) == ({"c1"}, 5, 6.0, 2.0)
    assert set(state.numbers.known()) == {("u", "own"), ("bare", "own")}
    assert state.turns["u"].answer == "so far"
    assert state.open_turn is not None
    assert state.open_turn.automatic
    assert not state.turns["bare"].started


def test_pending_requests_come_back_in_order():
    asks = [ApprovalRequested("p", "c1", "look", "{}", "because"), ExternalToolRequested("x", "c2", "look", "{}")]
    records = [envelope(event, "u", seq) for seq, event in enumerate([TurnStarted("one", "m"), *asks], 1)]
    turn = continued(records, 3).state.open_turn
    assert turn is not None
    assert (list(turn.pending.items()), set(turn.asked)) == ([("p", asks[0]), ("x", asks[1])], {"c2"})


def test_what_is_shown_and_how_turns_ended_is_left_to_the_log():
    text = codec.encode_state(whole(turns(3).records))
    state = codec.decode_state(text, metadata()).state
    assert "answer 1" in text, "the history is there"
    assert '"completed"' not in text
    assert "stop" not in text
    assert state.items is None
    assert {(entry.answer, entry.terminal, entry.in_log) for entry in state.turns.values()} == {(None, None, True)}


def test_the_text_is_one_line_of_json_that_names_its_version():
    text = codec.encode_state(whole(turns(1).records))
    assert json.loads(text)["fold_version"] == codec.FOLD_VERSION
    assert "\n" not in text


def test_a_lone_surrogate_and_an_item_of_a_newer_version_are_kept_as_records_keep_them():
    newer = OpaqueItem("later", {"type": "later", "a": [1, {"b": None}]})
    events = [TranscriptItemAppended(0, UserMessage("\ud800")), TranscriptItemAppended(1, newer)]
    hydration = continued([envelope(event, "u", seq) for seq, event in enumerate(events, 1)], 2)
    assert hydration.state.history.items == [UserMessage("\ufffd"), newer]


def other_version(value):
    value["fold_version"] += 1


def no_counter(value):
    del value["next_seq"]


def odd_request(value):
    started = {"type": "turn.started", "provider": "a", "model": "b"}
    value["open_turn"] = {"turn_id": "u0", "provider": "one", "model": "m", "pending": [started]}


def half_a_model(value):
    value["last_model"] = ["one"]


def turn_from_nowhere(value):
    value["open_turn"] = {"turn_id": "nowhere", "provider": "one", "model": "m"}


def negative_usage(value):
    value["usage"] = {"thread": {"prompt_tokens": -1, "completion_tokens": 0, "total_tokens": 0}}


def message_of_nobody(value):
    value["items"][0][0] = "x"


def message_without_text(value):
    value["items"][0][1] = 5


def ids_of_no_turn(value):
    value["own_item_ids"].append(0)


def ids_from_nowhere(value):
    value["own_item_ids"][0] = 9


@pytest.mark.parametrize(
    "damage",
    [
        other_version,
        no_counter,
        odd_request,
        half_a_model,
        turn_from_nowhere,
        negative_usage,
        message_of_nobody,
        message_without_text,
        ids_of_no_turn,
        ids_from_nowhere,
    ],
)
def test_a_text_of_another_version_or_that_can_not_be_read_is_no_state(damage):
    value = json.loads(codec.encode_state(whole(turns(1).records)))
    assert codec.decode_state(json.dumps(value), metadata()) is not None
    damage(value)
    assert codec.decode_state(json.dumps(value), metadata()) is None


def test_turns_alike_cost_a_text_little_more_than_their_words():
    few, many = [json.loads(codec.encode_state(whole(turns(count).records))) for count in (1, 3)]
    assert few["items"] == [["u", "question 0"], ["a", "answer 0"]]
    assert (few["endings"], few["own_item_ids"]) == ([["user", "message"]], [0])
    assert (many["endings"], many["own_item_ids"]) == (few["endings"], [0, 0, 0])


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"fold_version":1}', b"\xff\xfe"])
def test_what_is_no_document_is_no_state(text):
    assert codec.decode_state(text, metadata()) is None


def test_a_state_with_a_payload_that_is_no_json_is_refused():
    record = envelope(TranscriptItemAppended(0, ProviderMetadata({"a": {1, 2}})), "u", 1)
    with pytest.raises(InvalidRecord, match="can't be encoded"):
        codec.encode_state(whole([record]))


# -- continuing it -----------------------------------------------------------------------------------------------------


def test_the_metadata_is_that_of_now():
    kept = codec.decode_state(codec.encode_state(whole([])), metadata(title="now"))
    assert fold_tail(kept, metadata(title="later"), []).state.metadata.title == "later"


def test_values_of_a_host_and_records_of_newer_versions_continue_a_state():
    value = ExtensionStateRecord(
        record_id="r", extension_id="x", key="k", scope=ThreadScope(THREAD), schema_version=1, value=1
    )
    kept = codec.decode_state(codec.encode_state(whole([])), metadata())
    state = fold_tail(kept, metadata(), [value, OpaqueRecord("later", {"type": "later"})]).state
    assert state.extensions == {("x", "k"): value}


@pytest.mark.parametrize("seq", [0, 1])
def test_an_item_event_with_a_number_from_before_sends_to_the_whole_log(seq):
    records = [item_event(ItemStarted(AgentMessage("m1", "")), 1), item_event(ItemStarted(AgentMessage("m2", "")), seq)]
    assert continued(records, 1) is None
    assert continued(records[:1], 1) is not None


def test_a_later_reading_of_a_closed_attempt_sends_to_the_whole_log():
    """Which only happens if an append landed after its turn had given it up."""
    many = used(*[recorded(f"a{number}", turn_id="old") for number in range(codec.NEWEST_READINGS + 1)])
    late, new = used(recorded("a0", 5, 2, "old")), used(recorded("b", 5, 2))
    assert continued([*many, *late], len(many)) is None
    assert fingerprint(continued([*many, *new], len(many))) == fingerprint(whole([*many, *new]))
    known = used(recorded(f"a{codec.NEWEST_READINGS}", 5, 2, "old"))
    assert fingerprint(continued([*many, *known], len(many))) == fingerprint(whole([*many, *known]))


def test_the_open_turns_attempts_are_never_closed():
    begun = envelope(TurnStarted("one", "m"), "u", 1)
    mine = used(*[recorded(f"a{number}") for number in range(100)])
    later = used(recorded("a0", 7, 2))
    records = [begun, *mine, *later]
    assert fingerprint(continued(records, 101)) == fingerprint(whole(records))
    assert continued(records, 101).ledger.turn("u").total_tokens == 106


def calls_of(function):
    """How many Python functions are called."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_continuing_a_state_costs_the_same_however_long_the_thread_is():
    costs = []
    for count in (5, 300):
        desk = turns(count, summary=True)
        cut = len(desk.records)
        desk.start("new")
        desk.do(c.FinalStep("new", (ANSWER,), "stop"))
        desk.do(c.PersistItem("new", SUMMARY))
        kept = codec.decode_state(codec.encode_state(whole(desk.records[:cut])), metadata())
        costs.append(calls_of(lambda kept=kept, tail=desk.records[cut:]: fold_tail(kept, metadata(), tail)))
    assert costs[0] == costs[1]


# -- a summary lets go -------------------------------------------------------------------------------------------------


def test_a_thread_with_summaries_grows_by_ids_and_counts_alone():
    held, texts = [], []
    desk = Desk()
    for number in range(60):
        desk.start(f"u{number:02}", "question")
        desk.do(c.FinalStep(f"u{number:02}", (AssistantMessage("a long answer " * 50),), "stop"))
        desk.do(c.JobEnded(f"u{number:02}", c.Finished()))
        if number % 10 == 9:
            desk.do(c.PersistItem(f"u{number:02}", SUMMARY))
            held.append(held_by(desk.state))
            texts.append(len(codec.encode_state(whole(desk.records))))
    assert held == [2] * 6
    assert texts[-1] - texts[0] < 50 * 60
    assert len(desk.state.history) == 126
    assert list(desk.state.history.window()) == [SUMMARY, AssistantMessage("a long answer " * 50)]


def test_an_opaque_boundary_lets_nothing_go():
    desk = turns(2)
    before = held_by(desk.state)
    desk.do(c.PersistItem("u1", ProviderMetadata({"output": [{"type": "compaction", "encrypted_content": "x"}]})))
    assert held_by(desk.state) == before + 2


def test_the_answer_of_the_open_turn_outlasts_a_summary():
    desk = turns(1)
    desk.start("u")
    desk.do(c.StepEnded("u", (AssistantMessage("so far"),)))
    desk.do(c.PersistItem("u", SUMMARY))
    desk.do(c.FinalStep("u", (), "stop"))
    assert desk.do(c.WaitTurn("u")).text == "so far"
    assert desk.do(c.WaitTurn("u0")) is FROM_LOG


def test_a_bare_turn_that_ends_after_a_summary_has_its_outcome_in_the_log():
    items = [ANSWER, SUMMARY, AssistantMessage("later")]
    events = [*(TranscriptItemAppended(index, item) for index, item in enumerate(items)), TurnCompleted()]
    records = [envelope(event, "v", seq) for seq, event in enumerate(events, 1)]
    desk = Desk(records)
    assert desk.do(c.WaitTurn("v")) is FROM_LOG
    assert stored_outcome(snapshot_of(metadata(), records), "v").text == "later"


def test_an_outcome_is_that_of_the_first_terminal_event_and_the_last_final_answer():
    desk = turns(2)
    desk.do(c.PersistItem("u0", AssistantMessage("aside", "commentary")))
    snapshot = snapshot_of(metadata(), [*desk.records, envelope(TurnCompleted(finish_reason="late"), "u0", 99)])
    for turn_id in ("u0", "u1"):
        assert stored_outcome(snapshot, turn_id) == desk.do(c.WaitTurn(turn_id))
    assert stored_outcome(snapshot, "other") is None


def test_what_is_shown_is_read_from_the_log_as_it_is_folded():
    desk = turns(2)
    desk.do(c.RecordItemEvent("bare", AT, ItemStarted(AgentMessage("own", "x"))))
    records = [*desk.records, envelope(TranscriptItemAppended(0, USER), "unshown", 99)]
    assert shown_items(snapshot_of(metadata(), records)) == whole(records).state.items.items()


@given(st.lists(st.one_of(st.sampled_from(["drop"]), any_items), max_size=25))
@settings(deadline=None, max_examples=150)
def test_no_window_changes_when_what_is_summarised_is_dropped(steps):
    complete, lean = History(), History()
    for step in steps:
        if step == "drop":
            held = lean.window()
            before = list(held)
            lean.drop_summarised()
            assert held == before
            continue
        if isinstance(step, ContextCompaction) and step.retained_count > len(
            [i for i in lean.items if not is_boundary(i)]
        ):
            continue  # only a host can write a summary that retains what an earlier one has left behind
        complete.append(step)
        lean.append(step)
        assert len(lean) == len(complete)
        assert lean.has_images == complete.has_images
        for target in TARGETS:
            assert lean.window(target) == complete.window(target)
            assert lean.request(target) == complete.request(target)
            assert lean.sums(target) == complete.sums(target)
            assert lean.baseline(target) == complete.baseline(target)


def test_a_history_drops_only_what_the_last_summary_does_not_retain():
    images = UserMessage("look", (Image("https://x/y.png"),))
    opaque = ProviderMetadata({"output": [{"type": "compaction", "encrypted_content": "x"}]})
    items = [images, ANSWER, opaque, USER, ContextCompaction("B", retained_count=2), ANSWER]
    history = History(items)
    history.drop_summarised()
    assert (history.items, history.dropped, history.earlier, len(history)) == (items[1:], 1, images, 6)
    assert history.boundaries == [1, 3]
    assert retained_before(history.items, 3) == [ANSWER, USER]
    assert history.has_images
    assert repr(history).endswith(", dropped=1)")
    assert history != History(items[1:])
    history.drop_summarised()
    assert (history.items, history.dropped, history.earlier) == (items[1:], 1, images)


def test_a_history_without_a_summary_drops_nothing():
    history = History([USER, ANSWER])
    history.drop_summarised()
    assert history == History([USER, ANSWER])


# -- open text ---------------------------------------------------------------------------------------------------------

BEGUN = item_event(ItemStarted(AgentMessage("m", "", status=ItemStatus.IN_PROGRESS)), 1, checkpoint=True)


def more(seq, text, *, checkpoint=True):
    return item_event(ItemDelta("m", AgentMessageText(text)), seq, checkpoint=checkpoint)


def held(*events):
    return whole(events).state.checkpoints


def test_open_text_grows_by_its_checkpoints_and_by_what_a_host_adds():
    assert held(BEGUN, more(2, "a"), more(3, "b", checkpoint=False), more(4, "c")) == {
        "m": HeldText("u", AgentMessage("m", "abc", status=ItemStatus.IN_PROGRESS))
    }


def test_a_checkpoint_without_a_beginning_begins_the_item():
    assert held(more(1, "a")) == {"m": HeldText("u", AgentMessage("m", "a", status=ItemStatus.IN_PROGRESS))}


def test_text_of_an_item_that_a_host_has_ended_is_not_taken_up_again():
    ended = item_event(ItemCompleted(AgentMessage("m", "host's")), 3)
    assert held(BEGUN, more(2, "a"), ended) == {}
    assert held(BEGUN, more(2, "a"), ended, more(4, "b"), more(5, "c")) == {"m": HeldText("u", None)}
    assert held(BEGUN, more(2, "a"), item_event(ItemDiscarded("m"), 3)) == {}
    kept = continued([BEGUN, more(2, "a"), ended, more(4, "b"), more(5, "c")], 4)
    assert kept.state.checkpoints == {"m": HeldText("u", None)}


# -- usage as sums -----------------------------------------------------------------------------------------------------

readings = st.lists(
    st.builds(
        recorded,
        st.sampled_from("abcdef"),
        st.integers(0, 5),
        st.integers(1, 3),
        st.sampled_from(["u", "v"]),
        st.sampled_from([None, "g", "h"]),
        st.sampled_from([None, "child"]),
        st.sampled_from([None, "fast"]),
    ),
    max_size=12,
)


@given(readings, st.sampled_from([None, "u"]), st.integers(0, 4), readings)
def test_closing_attempts_changes_no_total(before, turn_id, newest, after):
    plain, closed = Ledger(), Ledger()
    for record in before:
        plain.apply(record)
        closed.apply(record)
    closed = closed.closing(turn_id, newest).closing(turn_id, newest)
    for record in after:
        if record.attempt_id not in closed.closed.attempts:
            plain.apply(record)
            closed.apply(record)
    totals, summed = ThreadTotals(), ThreadTotals()
    totals.hand_over(plain)
    summed.hand_over(closed)
    assert (summed.thread, closed.thread) == (totals.thread, plain.thread)
    assert [(summed.goal(id), closed.goal(id)) for id in "gh"] == [(totals.goal(id), plain.goal(id)) for id in "gh"]
    assert turn_id is None or closed.turn(turn_id) == plain.turn(turn_id)


def test_a_board_that_still_reads_an_attempt_can_not_take_it_as_part_of_a_sum():
    attempt = Attempt(
        attempt_id="a", thread_id=THREAD, turn_id="u", purpose=Purpose.SAMPLING, provider="one", model="m"
    )
    totals = ThreadTotals()
    closed = Ledger(ClosedUsage(thread=TokenUsage(1, 0, 1), attempts=frozenset({"a"})))
    assert not totals.needs_readings(closed)
    totals.open_attempt(attempt)
    assert totals.needs_readings(closed)
    assert not totals.needs_readings(Ledger())


def test_the_one_who_keeps_a_state_may_go_on_with_it():
    """Encoding changes nothing."""
    desk = laden()
    hydration = whole(desk.records)
    before = fingerprint(hydration)
    codec.encode_state(hydration)
    assert fingerprint(hydration) == before
    assert isinstance(hydration, Hydration)
    assert any(isinstance(record, EventEnvelope) for record in desk.records)
