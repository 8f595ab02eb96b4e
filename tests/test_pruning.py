"""Pruning: which old results windows show as notices, what that saves, and that nothing is lost by it."""

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.logic import pruning
from roder_trio.logic.compaction import Compact, Nothing, Prune, decide
from roder_trio.logic.estimate import Sums, estimate, sums
from roder_trio.logic.thread.facts import VIEW
from roder_trio.logic.window import History
from roder_trio.schema import command as c
from roder_trio.schema.event import ContextPruned
from roder_trio.schema.transcript import (
    AssistantMessage,
    ContextCompaction,
    Image,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    UserMessage,
)
from tests.kept_states import continued, fingerprint, whole
from tests.thread_support import Desk

USER = UserMessage("x" * 40)


def pair(number: int, size: int, name: str = "read_file") -> list[Any]:
    """A call of 29 bytes, and a result of one line of `size` bytes."""
    return [ToolCall(f"c{number}", name, "a" * (29 - len(name))), ToolResult(f"c{number}", name, "r" * size)]


def pairs(*sizes: int) -> list[Any]:
    return [USER, *[item for number, size in enumerate(sizes) for item in pair(number, size)]]


def total(window: list[Any]) -> Sums:
    return sum(map(sums, window), Sums())


# -- which, and whether it is worth it ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threshold", "sizes", "tokens", "places", "saved", "expected"),
    [
        (115_200, (120_000,) * 4, 120_039, [2, 4], 59_973, Prune()),
        (115_200, (60_000,) * 4, 60_039, [2], 14_986, Nothing()),
        (50_000, (120_000, 60_000, 60_000, 60_000), 75_039, [2], 29_986, Prune()),
        (40_000, (120_000, 60_000, 60_000, 60_000), 75_039, [2], 29_986, Compact()),
        (75_039, (120_000, 60_000, 60_000, 60_000), 75_039, [2], 29_986, Prune()),
        (45_053, (120_000, 60_000, 60_000, 60_000), 75_039, [2], 29_986, Compact()),
        (45_054, (120_000, 60_000, 60_000, 60_000), 75_039, [2], 29_986, Prune()),
    ],
)
def test_the_examples(threshold, sizes, tokens, places, saved, expected):
    window = pairs(*sizes)
    assert estimate(window) == tokens
    assert pruning.old_results(window) == places
    saving = pruning.saving(window, places, total(window))
    assert (saving.before, saving.tokens) == (tokens, saved)
    for place in places:
        window[place] = pruning.pruned(window[place])
    assert estimate(window) == saving.after
    prunes = saving.suffices(tokens, threshold)
    found = decide("auto", threshold=threshold, size=tokens, estimate=tokens, prunes=lambda: prunes)
    assert found == expected


def test_a_notice_tells_name_bytes_and_lines():
    result = ToolResult("c", "read_file", "r" * 120_000)
    assert pruning.notice(result) == "[tool output pruned: read_file, 120000 bytes, 1 lines]"
    assert len(pruning.notice(result)) == 54
    for text, lines in (("a\nb", 2), ("a\nb\n", 2), ("", 1), ("\n", 1), ("é", 1)):
        expected = f"[tool output pruned: look, {len(text.encode())} bytes, {lines} lines]"
        assert pruning.notice(ToolResult("c", "look", text)) == expected


def test_a_pruned_result_keeps_its_id_its_name_and_whether_it_was_an_error():
    result = ToolResult("c", "look", "r" * 99, is_error=True, display_payload={"a": 1}, images=(Image("https://x/y"),))
    assert pruning.pruned(result) == ToolResult("c", "look", pruning.notice(result), is_error=True)


def test_a_result_that_is_no_longer_than_its_notice_is_left_alone():
    notice = len("[tool output pruned: look, 50 bytes, 1 lines]")
    window = [ToolResult("a", "look", "r" * notice), ToolResult("b", "look", "r" * (notice + 1)), AssistantMessage("x")]
    assert pruning.results_before_newest_step(window) == [1]


def test_a_notice_is_never_pruned_again():
    once = pruning.pruned(ToolResult("a", "read_file", "r" * 120_000))
    assert len(pruning.notice(once)) < len(once.result)
    assert pruning.results_before_newest_step([once, AssistantMessage("x")]) == []


def test_images_of_results_protect_only_where_the_engine_takes_them():
    seen = ToolResult("b", "look", "", images=(Image("https://x/y"),) * 25)
    window = [ToolResult("a", "look", "r" * 99), seen]
    assert (pruning.old_results(window, images=True), pruning.old_results(window, images=False)) == ([0], [])


@pytest.mark.parametrize(("size", "places"), [(4 * 39_999, []), (4 * 39_999 + 1, [0])])
def test_the_item_that_crosses_the_protected_tokens_is_protected_itself(size, places):
    window = [ToolResult("a", "look", "r" * 99), UserMessage("r" * size)]
    assert pruning.old_results(window) == places
    assert pruning.old_results([ToolResult("a", "look", "r" * 400_000)]) == []


OLD, NEW = pair(1, 99), pair(2, 99)
BOTH = [NEW[0], attrs.evolve(NEW[0], id="c3"), NEW[1], attrs.evolve(NEW[1], id="c3")]


@pytest.mark.parametrize(
    ("window", "places"),
    [
        ([USER, *OLD, *NEW], [2]),
        ([USER, *OLD, *BOTH], [2]),
        ([USER, *OLD, *NEW, UserMessage("steer"), ProviderMetadata({"kind": "model_switch"})], [2]),
        ([USER, *OLD, AssistantMessage("a step without calls")], [2]),
        ([USER, *OLD, AssistantMessage("so"), ReasoningSummary("why"), *NEW], [2]),
        ([USER, *OLD], []),
        ([USER], []),
        ([], []),
    ],
)
def test_the_results_of_the_newest_step_are_never_pruned(window, places):
    assert pruning.results_before_newest_step(window) == places


# -- what the log keeps ------------------------------------------------------------------------------------------------


def turn_with(*sizes: int) -> Desk:
    desk = Desk()
    desk.start("u", "x" * 40)
    for item in [step for number, size in enumerate(sizes) for step in [pair(number, size)]]:
        desk.do(c.StepEnded("u", (item[0],)))
        desk.do(c.ToolResultsDone("u", (item[1],)))
    return desk


def test_pruning_is_stored_by_turn_and_index_and_the_log_keeps_the_results():
    desk = turn_with(*(120_000,) * 4)
    shared = desk.state.history.window()
    before = list(shared)
    reply = desk.do(c.PruneContext(turn_id="u", size=120_039, threshold=115_200))
    assert reply is VIEW
    assert desk.events[-1] == ContextPruned((("u", 2), ("u", 4)), 120_039, 60_066)
    history = desk.state.history
    assert (history.estimate(), len(history)) == (60_066, 9)
    assert [len(item.result) for item in history.window() if isinstance(item, ToolResult)] == [54, 54, 120_000, 120_000]
    assert list(shared) == before, "a window that was handed out stays as it was"
    stored = [event.item for event in desk.events if hasattr(event, "index")]
    assert [len(item.result) for item in stored if isinstance(item, ToolResult)] == [120_000] * 4
    cold = whole(desk.records).state.history
    assert (list(cold.window()), cold.sums()) == (list(history.window()), history.sums())


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_kept_state_holds_what_was_pruned_and_can_be_pruned_on(cut):
    desk = turn_with(*(120_000,) * 4)
    desk.do(c.PruneContext(turn_id="u", size=120_039, threshold=115_200))
    desk.do(c.StepEnded("u", (AssistantMessage("so"),)))
    desk.do(c.PruneContext(turn_id="u", all_old=True))
    assert desk.events[-1].items == (("u", 6), ("u", 8))
    cut = min(cut, len(desk.records))
    hydration = continued(desk.records, cut)
    assert hydration is not None
    assert fingerprint(hydration) == fingerprint(whole(desk.records))


@pytest.mark.parametrize(
    ("size", "threshold", "sizes"),
    [(120_039, 60_066, (120_000,) * 4), (60_039, 50_000, (60_000,) * 4), (9, 1, (9,))],
)
def test_nothing_is_stored_where_pruning_would_not_do(size, threshold, sizes):
    desk = turn_with(*sizes)
    count = len(desk.records)
    assert desk.do(c.PruneContext(turn_id="u", size=size, threshold=threshold)) is VIEW
    assert len(desk.records) == count


def test_a_second_pruning_finds_nothing_left():
    desk = turn_with(200, 200)
    for _ in range(2):
        desk.do(c.PruneContext(turn_id="u", all_old=True))
    assert [event for event in desk.events if isinstance(event, ContextPruned)] == [
        ContextPruned((("u", 2),), 125, desk.state.history.estimate())
    ]


def test_behind_a_summary_what_it_retains_can_be_pruned_and_what_it_replaced_can_not():
    history = History()
    for index, item in enumerate([USER, *OLD, *NEW, ContextCompaction("so far", retained_count=2)]):
        history.append(item, ("u", index))
    assert history.places() == {2: ("u", 4)}
    history.drop_summarised()
    assert (history.places(), history.dropped) == ({2: ("u", 4)}, 3)
    history.prune([("u", 2), ("u", 4), ("nobody", 9)])
    assert list(history.window())[2] == pruning.pruned(NEW[1])
    assert history.places() == {2: ("u", 4)}


def test_equal_results_are_told_apart_by_their_places():
    history, (ask, seen) = History(), pair(1, 200)
    for index, item in enumerate([USER, ask, seen, ask, seen, AssistantMessage("x")]):
        history.append(item, ("u", index))
    assert history.places() == {2: ("u", 2), 4: ("u", 4)}


# -- laws --------------------------------------------------------------------------------------------------------------

results = st.builds(
    lambda size, name, images: ToolResult("c", name, "r" * size, images=(Image("https://x/y"),) * images),
    st.sampled_from([0, 30, 60, 5_000, 100_000]),
    st.sampled_from(["look", "read_file"]),
    st.integers(0, 2),
)
windows = st.lists(
    st.one_of(results, st.builds(UserMessage, st.text(max_size=9)), st.just(AssistantMessage("a" * 999)))
)


@settings(max_examples=60, deadline=None)
@given(windows, st.booleans(), st.booleans())
def test_pruning_saves_what_it_says_and_only_once(window, images, forced):
    places = pruning.results_before_newest_step(window) if forced else pruning.old_results(window, images)
    saving = pruning.saving(window, places, total(window), images)
    after = [pruning.pruned(item) if place in places else item for place, item in enumerate(window)]
    assert (saving.before, saving.after) == (estimate(window, images), estimate(after, images))
    assert saving.tokens >= 0
    again = pruning.results_before_newest_step(after) if forced else pruning.old_results(after, images)
    assert not set(again) & set(places)
    assert [(item.id, item.name, item.is_error) for item in after if isinstance(item, ToolResult)] == [
        (item.id, item.name, item.is_error) for item in window if isinstance(item, ToolResult)
    ]
