import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.logic.boundary import counts_for, is_boundary, trim_to_last_boundary
from roder_trio.logic.estimate import IMAGE_TOKENS, Sums, byte_length, estimate, sums
from roder_trio.logic.window import History, Window, active_user_message, last_user_message, without_images
from roder_trio.schema.inference import EngineTarget
from roder_trio.schema.transcript import (
    AssistantMessage,
    ContextCompaction,
    ErrorNote,
    Image,
    OpaqueItem,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    TranscriptItem,
    UserMessage,
)

MINE = EngineTarget("openai_responses", "openai", "https://a.test/v1")
THEIRS = EngineTarget("anthropic", "anthropic", "https://b.test")
OPAQUE_ITEM = {"type": "compaction", "encrypted_content": "opaque"}
SEED_HISTORY = [
    UserMessage("preserve original goal"),
    ToolCall("read-proof", "read_file", '{"path":"proof.txt"}'),
    ToolResult("read-proof", "read_file", "original tool evidence"),
]


def opaque(target: EngineTarget | None = None, **payload: Any) -> ProviderMetadata:
    named = (
        {"dialect": target.dialect, "provider": target.provider, "base_url": target.base_url}
        if target is not None
        else {}
    )
    return ProviderMetadata({"output": [OPAQUE_ITEM], **named, **payload})


def history_of(*items: TranscriptItem) -> History:
    history = History()
    for item in items:
        history.append(item)
    return history


# -- estimates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (UserMessage("äb", (Image("u"), Image("v"))), (3, 3_200)),
        (AssistantMessage("four"), (4, 0)),
        (ReasoningSummary("why"), (3, 0)),
        (ToolCall("long-id", "read", "{}"), (6, 0)),
        (ToolResult("long-id", "read", "result", images=(Image("u"),)), (6, 1_600)),
        (ToolResult("long-id", "read", "result", is_error=True, images=(Image("u"),)), (6, 1_600)),
        (ContextCompaction("sum"), (3, 0)),
        (ContextCompaction("sum", active_request=UserMessage("ab", (Image("u"),))), (5, 1_600)),
        (ErrorNote("bad"), (3, 0)),
        (ProviderMetadata({"end_turn": False, "note": "text"}), (0, 0)),
        (OpaqueItem("later", {"text": "text"}), (0, 0)),
    ],
)
def test_each_kind_of_item_has_its_bytes_and_its_surcharge(item, expected):
    found = sums(item)
    assert (found.bytes, found.surcharge + IMAGE_TOKENS * found.tool_images) == expected


def test_images_of_results_cost_nothing_with_an_engine_that_takes_none():
    result = ToolResult("c", "read", "12345678", images=(Image("u"),))
    asked = UserMessage("", (Image("u"),))
    assert estimate([result, asked], images=False) == 2 + 1_600
    assert estimate([result, asked]) == 2 + 3_200


@pytest.mark.parametrize(
    ("payload", "tokens"),
    [
        ({"compacted_input": [OPAQUE_ITEM]}, 5),
        ({"compacted_input": [OPAQUE_ITEM], "output": [{"type": "reasoning", "encrypted_content": "x" * 400}]}, 5),
        ({"compacted_input": [{"a": {"b": ["äää", 1, None, True]}}]}, 2),
        ({"compacted_input": ({"image_url": "data:" + "x" * 9_000},)}, 1_600),
        ({"compacted_input": [{"image_url": {"url": "u" * 100}}, {"image_url": None}]}, 1_600),
        ({"compacted_input": None, "output": [OPAQUE_ITEM]}, 2),
        ({"output": [OPAQUE_ITEM]}, 2),
        ({"output": [OPAQUE_ITEM, dict(OPAQUE_ITEM)]}, 2),
        ({"output": [{"type": "reasoning", "id": "a", "encrypted_content": "x" * 9}] * 2}, 3),
        (
            {
                "output": [
                    {"type": "reasoning", "id": "a", "encrypted_content": "x" * 9},
                    {"type": "compaction_summary", "id": "b", "encrypted_content": "x" * 4},
                    {"type": "reasoning", "id": "c", "encrypted_content": None},
                    {"type": "message", "text": "free"},
                    "no mapping",
                ]
            },
            4,
        ),
        ({"output": "compaction"}, 0),
    ],
)
def test_opaque_metadata_is_a_surcharge(payload, tokens):
    assert sums(ProviderMetadata(payload)) == Sums(0, tokens)


def test_lone_surrogates_have_a_length():
    assert byte_length("\ud800a") == 4


def test_the_table_of_estimates():
    asked = UserMessage("Inspect the evidence")
    said = AssistantMessage("evidence " * 2_000)
    signal = ProviderMetadata({"end_turn": False})
    assert estimate([asked]) == 5
    assert estimate([asked, said, signal]) == 4_505
    assert estimate(SEED_HISTORY) == 19
    history = history_of(asked)
    before = history.sums()
    history.append(said)
    history.append(signal)
    assert (history.estimate(), (history.sums() - before).tokens()) == (4_505, 4_500)


# -- views -------------------------------------------------------------------------------------------------------------


def test_a_window_is_frozen_while_its_list_grows():
    items: list[TranscriptItem] = [UserMessage("a"), AssistantMessage("b")]
    window = Window(items)
    items.append(UserMessage("c"))
    assert len(window) == 2
    assert list(window) == items[:2] == window
    assert window[-1] == AssistantMessage("b")
    assert window[0] == UserMessage("a")
    assert list(window[1:]) == [AssistantMessage("b")]
    assert list(window[::-1]) == items[1::-1]
    assert list(reversed(window)) == items[1::-1]
    assert UserMessage("c") not in window
    for index in (2, -3):
        with pytest.raises(IndexError):
            window[index]


def test_a_window_equals_any_sequence_of_the_same_items():
    window = Window([UserMessage("a")])
    assert window == [UserMessage("a")]
    assert (UserMessage("a"),) == window
    assert window == Window([UserMessage("a"), UserMessage("b")], 1)
    assert window != [UserMessage("b")]
    assert window != []
    assert window != "a"
    assert window != 1
    assert repr(window) == f"Window({[UserMessage('a')]!r})"
    with pytest.raises(TypeError):
        hash(window)


@given(st.lists(st.integers()), st.integers(0, 10), st.slices(8))
def test_a_slice_of_a_window_is_that_of_its_items(numbers, length, part):
    length = min(length, len(numbers))
    assert list(Window(numbers, length)[part]) == numbers[:length][part]


def test_a_history_shares_its_list_and_is_small():
    history = history_of(*SEED_HISTORY)
    window = history.window()
    assert window == SEED_HISTORY == history.request()
    assert window._items is history.items
    history.append(AssistantMessage("more"))
    assert len(window) == 3
    assert len(history) == len(history.window()) == 4
    assert not hasattr(history, "__dict__")
    assert sum(map(sys.getsizeof, [History(), [], []])) < 300
    assert history == History(history.items) != History()
    assert history != history.items
    assert repr(History()) == "History([])"


# -- boundaries --------------------------------------------------------------------------------------------------------

U, A = UserMessage("U"), AssistantMessage("A")
N = opaque()


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], []),
        ([U, A], [U, A]),
        ([U, A, N, U], [N, U]),
        (
            [U, A, ContextCompaction("B", retained_count=1), U],
            [ContextCompaction("B", retained_count=1), A, U],
        ),
        (
            [U, A, ContextCompaction("1", retained_count=1), U, ContextCompaction("2", retained_count=2), A],
            [ContextCompaction("2", retained_count=2), A, U, A],
        ),
        ([U, ProviderMetadata({"output": "compaction"})], [U, ProviderMetadata({"output": "compaction"})]),
        ([U, ContextCompaction("B", retained_count=9)], [ContextCompaction("B", retained_count=9), U]),
    ],
)
def test_the_table_of_windows(items, expected):
    assert trim_to_last_boundary(items) == expected
    assert history_of(*items).window() == expected
    assert History(items).window() == expected


def test_an_opaque_boundary_counts_only_for_the_target_that_it_names():
    assert counts_for(opaque(THEIRS), None)
    assert counts_for(opaque(THEIRS), THEIRS)
    assert not counts_for(opaque(THEIRS), MINE)
    assert counts_for(opaque(), MINE)
    assert counts_for(opaque(provider="openai"), MINE)
    assert not counts_for(opaque(provider="openai"), THEIRS)
    assert counts_for(ContextCompaction("B"), MINE)
    assert not counts_for(U, None)
    assert not is_boundary(U)


def test_the_request_leaves_out_boundaries_of_another_target_and_the_window_does_not():
    foreign = opaque(THEIRS)
    history = history_of(U, foreign, A)
    assert trim_to_last_boundary(history.items, MINE) == [U, foreign, A] == history.window(MINE)
    assert history.request(MINE) == [U, A]
    history.append(U)
    assert history.window(MINE) == [U, foreign, A, U]
    assert history.request(MINE) == [U, A, U]
    assert history.window(THEIRS) == [foreign, A, U]
    assert history.request(THEIRS) == [foreign, U, A, U]
    assert history.head(MINE) is None
    assert history.head(THEIRS) == 1


def test_the_window_of_another_target_goes_back_to_the_last_boundary_that_counts():
    summary, foreign = ContextCompaction("B", retained_count=1), opaque(THEIRS)
    history = history_of(U, A, summary, U, foreign, A)
    assert history.window(MINE) == [summary, A, U, foreign, A]
    assert history.request(MINE) == [summary, A, U, A]
    assert history.baseline(MINE) == estimate([summary, A])
    assert history.baseline(THEIRS) == estimate([foreign])
    assert history.boundaries == [2, 4]


def test_targets_with_the_same_head_share_one_window():
    history = history_of(U, N, A)
    assert history.window(MINE)._items is history.window(THEIRS)._items


def test_a_summary_is_followed_by_the_request_that_it_names():
    summary = ContextCompaction("B", retained_count=1, active_request=UserMessage("ask"))
    history = history_of(UserMessage("ask"), A, summary, U)
    assert history.window() == [summary, A, U]
    assert history.request() == [summary, UserMessage("ask"), A, U]
    assert active_user_message(history) == UserMessage("ask")
    assert history.baseline() == 2
    assert active_user_message(history_of(U, ContextCompaction("B"))) is None


@pytest.mark.parametrize(
    ("asked", "boundary", "repeated"),
    [
        (UserMessage("look"), opaque(compacted_input=[OPAQUE_ITEM]), True),
        (UserMessage("look"), opaque(), True),
        (UserMessage("look"), opaque(compacted_input=[OPAQUE_ITEM, {"content": [{"text": "please look!"}]}]), False),
        (UserMessage("look"), opaque(compacted_input=({"look": "key only"},)), True),
        (UserMessage(" ", (Image("u"),)), opaque(compacted_input=[{"text": "a b"}]), True),
    ],
)
def test_an_opaque_boundary_is_followed_by_the_user_message_that_it_does_not_hold(asked, boundary, repeated):
    history = history_of(UserMessage("older"), asked, A, boundary, A)
    assert active_user_message(history) == (asked if repeated else None)
    assert history.request() == ([boundary, asked, A] if repeated else [boundary, A])
    assert history.window() == [boundary, A]


def test_a_log_without_a_user_message_or_boundary_repeats_none():
    assert active_user_message(history_of(A, N)) is None
    assert active_user_message(history_of(U, A)) is None
    assert last_user_message([U, A, UserMessage("b"), A]) == UserMessage("b")
    assert last_user_message([A]) is None


def test_the_baseline_stays_while_the_window_grows():
    history = history_of(U, A)
    assert history.baseline() is None
    boundary = opaque(compacted_input=[OPAQUE_ITEM])
    history.append(boundary)
    assert (history.baseline(), history.estimate()) == (5, 5)
    history.append(UserMessage("x" * 400))
    assert (history.baseline(), history.estimate()) == (5, 105)
    history.append(ToolResult("c", "t", "", images=(Image("u"),)))
    assert history.estimate() == 1_705
    assert history.estimate(images=False) == 105


# -- laws --------------------------------------------------------------------------------------------------------------

texts = st.text(max_size=6)
images = st.lists(st.builds(Image, texts), max_size=2)
plain_items = st.one_of(
    st.builds(UserMessage, texts, images),
    st.builds(AssistantMessage, texts),
    st.builds(ReasoningSummary, texts),
    st.builds(ErrorNote, texts),
    st.just(ProviderMetadata({"end_turn": False})),
)
boundaries = st.one_of(
    st.builds(
        ContextCompaction,
        texts,
        retained_count=st.integers(0, 5),
        active_request=st.none() | st.builds(UserMessage, texts, images),
    ),
    st.builds(opaque, st.sampled_from([None, MINE, THEIRS])),
    st.builds(lambda text: opaque(compacted_input=[OPAQUE_ITEM, text]), texts),
)
targets = st.sampled_from([None, MINE, THEIRS])
calls = st.builds(ToolCall, texts, texts, texts)
results = st.builds(ToolResult, texts, st.none(), texts, images=images)
any_items = st.one_of(plain_items, plain_items, calls, results, boundaries)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(any_items, st.lists(targets, max_size=2)), max_size=25))
def test_the_window_kept_as_items_come_is_that_computed_from_the_log(steps):
    history = History()
    views: list[tuple[Window, list[TranscriptItem]]] = []
    for item, asked in steps:
        history.append(item)
        for target in asked:
            expected = trim_to_last_boundary(history.items, target)
            window = history.window(target)
            assert window == expected
            assert history.estimate(target) == estimate(expected)
            assert history.estimate(target, images=False) == estimate(expected, images=False)
            views.append((window, expected))
    assert all(window == expected for window, expected in views)
    cold = History(history.items)
    for target in (None, MINE, THEIRS):
        assert cold.window(target) == history.window(target)
        assert cold.request(target) == history.request(target)
        assert cold.baseline(target) == history.baseline(target)
        assert cold.sums(target) == history.sums(target)


@settings(deadline=None, max_examples=100)
@given(st.lists(any_items, max_size=20), targets)
def test_trimming_twice_is_trimming_once(items, target):
    once = trim_to_last_boundary(items, target)
    assert trim_to_last_boundary(once, target) == once


@settings(deadline=None, max_examples=100)
@given(st.lists(any_items, max_size=20), targets)
def test_the_active_user_message_is_in_every_request(items, target):
    history = History(items)
    active = active_user_message(history, target)
    request = history.request(target)
    assert active is None or request[1] == active
    assert all(counts_for(item, target) for item in request if is_boundary(item))
    assert [item for item in request if is_boundary(item)] == [
        items[position] for position in [history.head(target)] if position is not None
    ]


@settings(deadline=None, max_examples=100)
@given(st.lists(any_items, max_size=12), st.lists(any_items, max_size=12))
def test_sums_of_parts_are_sums_of_the_whole(first, second):
    total = sum(map(sums, first + second), Sums())
    assert total - sum(map(sums, first), Sums()) == sum(map(sums, second), Sums())
    assert total.tokens() == estimate(first + second)


@st.composite
def paired_logs(draw):
    """A log in which calls and results stand together, boundaries between them, and cuts separate no pair."""
    items: list[TranscriptItem] = []
    depth: list[int] = [0]
    for number, kind in enumerate(draw(st.lists(st.sampled_from(["plain", "pair", "summary", "opaque"]), max_size=15))):
        if kind == "plain":
            items.append(draw(plain_items))
            depth.append(depth[-1] + 1)
        elif kind == "pair":
            items += [ToolCall(f"c{number}", "t", "{}"), ToolResult(f"c{number}", "t", "r")]
            depth.append(depth[-1] + 2)
        elif kind == "summary":
            cut = draw(st.sampled_from(depth))
            items.append(ContextCompaction("s", retained_count=depth[-1] - cut))
        else:
            items.append(draw(st.builds(opaque, targets)))
    return items


@settings(deadline=None, max_examples=100)
@given(paired_logs(), targets)
def test_windows_and_requests_are_well_paired(items, target):
    history = History(items)
    for sequence in (history.window(target), history.request(target)):
        called = [item.id for item in sequence if isinstance(item, ToolCall)]
        answered = [item.id for item in sequence if isinstance(item, ToolResult)]
        assert called == answered
        assert len(set(called)) == len(called)


IMAGE = Image("data:image/png;base64,AA==")


@pytest.mark.parametrize(
    ("item", "without"),
    [
        (UserMessage("look", (IMAGE,)), UserMessage("look\n[1 image was left out: this model takes no images.]")),
        (UserMessage("", (IMAGE, IMAGE)), UserMessage("[2 images were left out: this model takes no images.]")),
        (
            ToolResult("c", "see", "seen", images=(IMAGE,)),
            ToolResult("c", "see", "seen\n[1 image was left out: this model takes no images.]"),
        ),
        (
            ContextCompaction("so far", active_request=UserMessage("look", (IMAGE,))),
            ContextCompaction(
                "so far", active_request=UserMessage("look\n[1 image was left out: this model takes no images.]")
            ),
        ),
    ],
)
def test_a_note_stands_for_images_that_a_model_does_not_take(item: Any, without: Any) -> None:
    plain = AssistantMessage("fine")
    assert without_images([plain, item]) == [plain, without]
    history = History([plain])
    assert not history.has_images
    history.append(item)
    assert history.has_images
    assert History([item]).has_images
    assert not History([without, ContextCompaction("none")]).has_images
