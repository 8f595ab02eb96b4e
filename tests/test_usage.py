from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from roder_trio.logic.usage import Ledger, ThreadTotals, merge
from roder_trio.schema.event import UsageRecorded
from roder_trio.schema.usage import MAX_TOKENS, ZERO_USAGE, Attempt, Purpose, TokenUsage

U = TokenUsage


def total(tokens: int) -> TokenUsage:
    return U(tokens, 0, tokens)


def record(attempt_id: str, usage: TokenUsage, report: int = 1, turn_id: str = "u", **more: Any) -> UsageRecorded:
    return UsageRecorded(
        attempt_id=attempt_id, report=report, turn_id=turn_id, usage=usage, purpose=Purpose.SAMPLING, **more
    )


def ledger(*records: UsageRecorded) -> Ledger:
    found = Ledger()
    for one in records:
        found.apply(one)
    return found


def attempt(attempt_id: str, turn_id: str = "u", thread_id: str = "t", **more: Any) -> Attempt:
    return Attempt(
        attempt_id=attempt_id,
        thread_id=thread_id,
        turn_id=turn_id,
        purpose=Purpose.SAMPLING,
        provider="p",
        model="m",
        **more,
    )


# -- TokenUsage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", range(6))
@pytest.mark.parametrize("value", [-1, True, 1.0, None, "1", 2**63])
def test_a_counter_is_an_integer_from_0_to_2_63_minus_1(field, value):
    counters: list[Any] = [5] * 6
    counters[field] = value
    with pytest.raises(ValueError, match="must be an integer"):
        U(*counters)


def test_parts_are_clamped_to_their_whole():
    assert (U(10, 2, 12, 15).cached_prompt_tokens, U(10, 2, 12, 15).cache_hit_rate) == (10, 1.0)
    assert (U(10, 2, 12, 8, 5).cached_prompt_tokens, U(10, 2, 12, 8, 5).cache_creation_prompt_tokens) == (8, 2)
    assert U(10, 2, 12, 0, 0, 7).reasoning_tokens == 2


def test_the_total_is_taken_as_given():
    assert U(10, 2, 99).total_tokens == 99


def test_an_empty_usage_has_no_tier_and_no_rate():
    assert U(0, 0, 0, service_tier="priority") == ZERO_USAGE
    assert ZERO_USAGE.is_empty
    assert ZERO_USAGE.cache_hit_rate is None
    assert U(0, 0, 0, 5, 5, 5) == ZERO_USAGE


FIRST = U(20, 4, 24, 2, 1, service_tier="priority")
SECOND = U(10, 2, 12, 3, 2, service_tier="default")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([FIRST, SECOND], U(30, 6, 36, 5, 3)),
        ([FIRST, SECOND, U(5, 1, 6, 1, service_tier="priority")], U(35, 7, 42, 6, 3)),
        (
            [U(1, 1, 2, service_tier="priority"), ZERO_USAGE, U(2, 1, 3, service_tier="priority")],
            U(3, 2, 5, service_tier="priority"),
        ),
        ([U(1, 1, 2, service_tier="priority"), U(2, 1, 3)], U(3, 2, 5)),
        ([U(MAX_TOKENS, 0, MAX_TOKENS), total(1)], U(MAX_TOKENS, 0, MAX_TOKENS)),
    ],
)
def test_sums_add_counters_and_keep_a_tier_that_all_parts_have(parts, expected):
    assert sum(parts, ZERO_USAGE) == expected


def test_the_rate_of_a_sum_is_the_rate_of_the_sums():
    assert (FIRST + SECOND).cache_hit_rate == 5 / 30


def test_a_usage_adds_to_nothing_else():
    with pytest.raises(TypeError):
        FIRST + 1


counters = st.integers(0, 50) | st.just(MAX_TOKENS)
tiers = st.sampled_from([None, "priority", "default"])
usages = st.builds(U, counters, counters, counters, counters, counters, counters, tiers)


@settings(deadline=None, max_examples=200)
@given(usages, usages, usages)
def test_addition_is_associative_and_commutative_with_the_zero_as_identity(a, b, c):
    assert ZERO_USAGE + a == a == a + ZERO_USAGE
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)


# -- readings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reports", "last", "records"),
    [
        ([4, 12], 12, 2),
        ([10, 20, 30], 30, 3),
        ([12, 0], 12, 1),
        ([12, 9], 9, 2),
        ([0], 0, 0),
        ([12, 12, 12], 12, 1),
        ([40, 70], 70, 2),
    ],
)
def test_the_last_report_of_an_attempt_is_its_reading(reports, last, records):
    totals = ThreadTotals()
    totals.open_attempt(attempt("a"))
    changes = [totals.observe("a", total(report)) for report in reports]
    assert totals.reading("a") == (records, total(last))
    assert sum(changes) == records
    assert totals.thread == totals.turn("u") == total(last)


def test_a_report_replaces_the_reading_as_a_whole():
    assert merge(FIRST, SECOND) == SECOND
    assert merge(SECOND, ZERO_USAGE) == SECOND
    assert merge(ZERO_USAGE, SECOND) == SECOND
    assert merge(ZERO_USAGE, ZERO_USAGE) == ZERO_USAGE
    smaller = U(1, 0, 1)
    assert merge(FIRST, smaller) == smaller


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_the_highest_report_of_an_attempt_counts_and_attempts_add():
    found = ledger(record("a1", U(3, 1, 4)), record("a1", U(10, 2, 12), 2), record("a2", U(5, 1, 6)))
    assert found.thread == U(15, 3, 18)
    found.apply(record("a1", U(10, 2, 12), 2))
    found.apply(record("a1", ZERO_USAGE, 3))
    assert found.thread == U(15, 3, 18)


def test_turns_and_goals_have_sums_of_their_own():
    found = ledger(
        record("a", total(1), turn_id="u", goal_id="g"),
        record("b", total(2), turn_id="v", goal_id="g"),
        record("c", total(4), turn_id="v"),
    )
    assert (found.thread, found.turn("u"), found.turn("v"), found.turn("w")) == (
        total(7),
        total(1),
        total(6),
        ZERO_USAGE,
    )
    assert (found.goal("g"), found.goal("h")) == (3, 0)


def test_a_copy_from_a_thread_below_counts_for_its_goal_alone():
    found = ledger(record("a", total(7), goal_id="g", origin_thread_id="child"), record("b", total(1), goal_id="g"))
    assert (found.thread, found.turn("u"), found.goal("g")) == (total(1), total(1), 8)


records = st.builds(
    record,
    st.sampled_from(["a", "b", "c"]),
    st.just(ZERO_USAGE),
    st.integers(1, 4),
).map(lambda r: attrs.evolve(r, usage=U(r.report, 0, len(r.attempt_id) + r.report, service_tier=f"{r.report % 2}")))


@settings(deadline=None, max_examples=150)
@given(st.lists(records, max_size=8), st.randoms(use_true_random=False))
def test_a_ledger_is_the_same_in_any_order_and_with_repetitions(told, random):
    again = [*told, *(random.choice(told) for _ in range(3) if told)]
    random.shuffle(again)
    assert sorted(ledger(*again), key=str) == sorted(ledger(*told), key=str)
    assert ledger(*again).thread == ledger(*told).thread


# -- the board ---------------------------------------------------------------------------------------------------------


def test_totals_hold_closed_and_open_attempts():
    totals = ThreadTotals()
    totals.hand_over(ledger(record("old", total(100), turn_id="v", goal_id="g")))
    totals.open_attempt(attempt("a", goal_id="g"))
    totals.open_attempt(attempt("b"))
    totals.observe("a", total(24))
    totals.observe("b", total(4))
    assert (totals.thread, totals.turn("u"), totals.turn("v"), totals.goal("g")) == (
        total(128),
        total(28),
        total(100),
        124,
    )
    totals.close_attempt("a")
    totals.close_attempt("a")
    assert totals._open
    totals.close_attempt("b")
    assert not totals._open
    assert (totals.thread, totals.turn("u"), totals.goal("g"), totals.goal("h")) == (total(128), total(28), 124, 0)


def test_an_attempt_that_reported_nothing_leaves_nothing():
    totals = ThreadTotals()
    totals.hand_over(Ledger())
    totals.open_attempt(attempt("a", goal_id="g"))
    totals.observe("a", ZERO_USAGE)
    totals.close_attempt("a")
    assert (totals.thread, totals.turn("u"), totals.goal("g")) == (ZERO_USAGE, ZERO_USAGE, 0)


def test_an_observation_of_an_attempt_that_is_not_open_is_refused():
    totals = ThreadTotals()
    assert not totals.observe("a", total(5))
    assert totals.reading("a") == (0, ZERO_USAGE)
    assert totals.thread == ZERO_USAGE


def test_opening_twice_keeps_the_reading():
    totals = ThreadTotals()
    totals.open_attempt(attempt("a"))
    totals.observe("a", total(5))
    totals.open_attempt(attempt("a"))
    assert totals.reading("a") == (1, total(5))


def test_an_attempt_below_is_charged_to_the_goal_that_it_names_here():
    totals = ThreadTotals()
    totals.hand_over(Ledger())
    totals.open_charge(attempt("a", thread_id="child", goal_id="own"), "g")
    totals.observe("a", total(7))
    assert (totals.thread, totals.turn("u"), totals.goal("g"), totals.goal("own")) == (ZERO_USAGE, ZERO_USAGE, 7, 0)
    totals.close_attempt("a")
    assert (totals.thread, totals.turn("u"), totals.goal("g")) == (ZERO_USAGE, ZERO_USAGE, 7)


def test_a_dropped_attempt_goes_back_to_what_is_durable_and_a_late_record_still_counts():
    totals = ThreadTotals()
    totals.hand_over(Ledger())
    totals.open_attempt(attempt("a", goal_id="g"))
    for tokens in (10, 20, 30):
        totals.observe("a", total(tokens))
    totals.drop_attempt("a", 1, total(10))
    assert not totals._open
    assert (totals.thread, totals.turn("u"), totals.goal("g")) == (total(10), total(10), 10)
    totals.record_landed("a", 2, total(20))
    totals.record_landed("a", 1, total(10))
    totals.record_landed("b", 1, total(10))
    assert (totals.thread, totals.turn("u"), totals.goal("g")) == (total(20), total(20), 20)
    totals.begin_load()
    totals.hand_over(ledger(record("a", total(20), 2, goal_id="g")))
    totals.record_landed("a", 3, total(30))
    assert totals.thread == total(30)
    totals.drop_attempt("a", 9, total(99))
    assert totals.thread == total(30)


def test_a_load_that_begins_again_keeps_what_was_closed_since_the_last_began():
    totals = ThreadTotals()
    totals.open_attempt(attempt("a"))
    totals.observe("a", total(5))
    totals.close_attempt("a")
    totals.begin_load()
    assert totals.thread == total(5)
    totals.hand_over(ledger(record("a", total(5))))
    assert totals.thread == total(5)


def test_forgotten_turns_stay_in_the_thread():
    totals = ThreadTotals()
    totals.hand_over(ledger(*(record(name, total(1), turn_id=name) for name in "abc")))
    totals.forget_turn("a")
    totals.forget_turn("a")
    assert [totals.turn(name) for name in "abc"] == [ZERO_USAGE, total(1), total(1)]
    totals.forget_turns()
    assert [totals.turn(name) for name in "abc"] == [ZERO_USAGE, ZERO_USAGE, ZERO_USAGE]
    assert totals.thread == total(3)


def test_a_goal_that_is_full_stays_full():
    totals = ThreadTotals()
    totals.hand_over(ledger(record("a", total(MAX_TOKENS), goal_id="g"), record("b", total(1), goal_id="g")))
    totals.open_attempt(attempt("c", goal_id="g"))
    totals.observe("c", total(5))
    assert totals.goal("g") == MAX_TOKENS


@pytest.mark.parametrize("before", range(4))
def test_a_snapshot_is_merged_whenever_it_comes(before):
    totals = ThreadTotals()
    snapshot = ledger(record("old", total(100)), record("a", total(10), 1))
    steps = [
        lambda: totals.observe("a", total(10)),
        lambda: totals.observe("a", total(30)),
        lambda: totals.close_attempt("a"),
    ]
    totals.begin_load()
    totals.open_attempt(attempt("a"))
    for step in steps[:before]:
        step()
    totals.hand_over(snapshot)
    for step in steps[before:]:
        step()
    assert totals.thread == totals.turn("u") == total(130)


def test_a_snapshot_that_knows_more_of_an_attempt_wins():
    totals = ThreadTotals()
    for name in ("open", "closed"):
        totals.open_attempt(attempt(name))
        totals.observe(name, total(1))
    totals.close_attempt("closed")
    totals.hand_over(ledger(record("open", total(5), 2), record("closed", total(7), 2)))
    assert totals.reading("open") == (2, total(5))
    assert totals.thread == total(12)


class Board(RuleBasedStateMachine):
    """A thread whose log is written late, and which is loaded again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.totals = ThreadTotals()
        self.log: list[UsageRecorded] = []
        self.readings: dict[str, TokenUsage] = {}
        self.open: dict[str, tuple[int, TokenUsage]] = {}
        self.loading = True
        self.cut: list[UsageRecorded] | None = None

    @rule()
    def open_one(self):
        name = f"a{len(self.readings)}"
        self.readings[name] = ZERO_USAGE
        self.open[name] = (0, ZERO_USAGE)
        self.totals.open_attempt(attempt(name, goal_id="g"))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), usage=usages)
    def observe(self, data, usage):
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.totals.observe(name, usage)
        self.readings[name] = merge(self.readings[name], usage)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def write(self, data):
        name = data.draw(st.sampled_from(sorted(self.open)))
        report, usage = self.totals.reading(name)
        if report:
            self.log.append(record(name, usage, report, goal_id="g"))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle_and_close(self, data):
        name = data.draw(st.sampled_from(sorted(self.open)))
        report, usage = self.totals.reading(name)
        if report:
            self.log.append(record(name, usage, report, goal_id="g"))
        self.totals.close_attempt(name)
        del self.open[name]

    @rule()
    def begin(self):
        self.totals.begin_load()
        self.loading, self.cut = True, None

    @precondition(lambda self: self.loading and self.cut is None)
    @rule()
    def read_the_log(self):
        self.cut = list(self.log)

    @precondition(lambda self: self.cut is not None)
    @rule()
    def hand_over(self):
        self.totals.hand_over(ledger(*(self.cut or [])))
        self.loading, self.cut = False, None

    @invariant()
    def the_board_holds_all_that_was_observed(self):
        assert self.totals.thread == sum(self.readings.values(), ZERO_USAGE)
        expected = min(sum(usage.total_tokens for usage in self.readings.values()), MAX_TOKENS)
        assert self.totals.goal("g") == expected


Board.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=25)
test_the_board_holds_all_that_was_observed = Board.TestCase
