"""Summaries: what stays, what a model is asked, what is accepted, and the text that needs no model."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.logic import summary
from roder_trio.logic.boundary import is_boundary, trim_to_last_boundary
from roder_trio.logic.estimate import estimate
from roder_trio.logic.turn import summary_request
from roder_trio.logic.window import History
from roder_trio.schema.config import RuntimeConfig
from roder_trio.schema.inference import Instructions, ModelChoice
from roder_trio.schema.transcript import (
    AssistantMessage,
    ContextCompaction,
    ErrorNote,
    Image,
    ProviderMetadata,
    ReasoningSummary,
    ToolCall,
    ToolResult,
    UserMessage,
)
from tests.turn_support import well_paired

OPAQUE = ProviderMetadata({"output": [{"type": "compaction", "id": "k", "encrypted_content": "sealed"}]})
FOREIGN = ProviderMetadata({"provider": "other", "output": [{"type": "compaction", "encrypted_content": "x"}]})


def user(size: int) -> UserMessage:
    return UserMessage("u" * size)


def said(size: int) -> AssistantMessage:
    return AssistantMessage("a" * size)


def pair(size: int, id: str = "c") -> list[Any]:
    """A call and its result, of this many bytes together."""
    return [ToolCall(id, "look", "{}"), ToolResult(id, "look", "r" * (size - 6))]


def divided(window: list[Any], threshold: int, **more: Any) -> summary.Split:
    return summary.split(window, summary.kept_tokens(threshold, estimate(window)), **more)


# -- what stays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threshold", "tokens", "keep"),
    [(1_000, 9, 250), (8_000, 9, 2_000), (0, 400, 100), (900_000, 9, 20_000), (3, 9, 0)],
)
def test_a_fourth_of_the_threshold_stays_else_of_the_window_but_never_too_much(threshold, tokens, keep):
    assert summary.kept_tokens(threshold, tokens) == keep


def test_the_first_example():
    first, answer, asked, last = user(400), said(2_000), user(40), said(800)
    window = [first, answer, asked, *pair(1_600), last]
    split = divided(window, 1_000)
    assert (estimate(window), split.tail, split.active_request) == (1_210, (last,), asked)
    assert split.head == (first, answer, *pair(1_600))
    assert estimate(split.head) == 1_000
    boundary = split.boundary("s" * 800, "llm")
    assert boundary == ContextCompaction("s" * 800, "llm", 1, asked)
    assert estimate([boundary, *split.tail]) == 410


def test_the_second_example():
    window = [user(400), *[item for number in range(20) for item in pair(2_000, str(number))]]
    split = divided(window, 8_000)
    boundary = split.boundary("s" * 2_400, "llm")
    assert (estimate(window), boundary.retained_count, boundary.active_request) == (10_100, 8, window[0])
    assert (split.head, estimate(split.head)) == (tuple(window[1:33]), 8_000)
    assert estimate([boundary, *split.tail]) == 2_700


def test_a_message_alone_leaves_nothing_to_summarise():
    assert divided([user(6_000)], 1_000) == summary.Split((), (), user(6_000))
    assert divided([], 1_000) == summary.Split((), (), None)


@pytest.mark.parametrize("size", [40, 400])
def test_a_summary_that_is_no_shorter_than_its_head_can_not_shrink_the_window(size):
    split = divided([said(40), user(6_000)], 1_000)
    assert (split.head, split.active_request) == ((said(40),), user(6_000))
    assert not summary.shrinks("s" * size, split.head)
    assert summary.shrinks("s" * 36, split.head)
    assert not summary.shrinks("", split.head)


CALLS = [ToolCall("a", "look", "x" * 94), ToolCall("b", "look", "x" * 94)]
RESULTS = [ToolResult("a", "look", "x" * 100), ToolResult("b", "look", "x" * 100)]
OLDER = ContextCompaction("older", "llm", 0, UserMessage("before"))
BARE = ContextCompaction("older", "llm", 1)


@pytest.mark.parametrize(
    ("window", "keep", "head", "tail", "active"),
    [
        ([user(4), *CALLS, *RESULTS], 100, 0, 5, False),
        ([user(4), *CALLS, *RESULTS], 99, 0, 4, True),
        ([user(4), *CALLS, *RESULTS], 98, 4, 0, True),
        ([user(396), *CALLS, *RESULTS], 198, 0, 5, False),
        ([user(4), *CALLS, *RESULTS, said(4)], 60, 4, 1, True),
        ([said(4), user(4), said(4)], 1_000, 1, 2, False),
        ([said(4), *CALLS, *RESULTS, said(4)], 99, 5, 1, False),
        ([said(4), user(4), said(4)], 1, 1, 1, True),
        ([user(4), said(4), user(4)], 0, 2, 0, True),
        ([OLDER, said(4), said(4)], 1, 2, 1, True),
        ([BARE, said(4), said(4)], 1, 2, 1, False),
        ([BARE, user(4), said(4)], 9, 1, 2, False),
        ([OPAQUE, said(4), said(4)], 1, 2, 1, True),
    ],
)
def test_where_a_window_is_divided(window, keep, head, tail, active):
    split = summary.split(window, keep, said=UserMessage("before"))
    assert (len(split.head), len(split.tail)) == (head, tail)
    asked = [item for item in window if isinstance(item, UserMessage)]
    newest = asked[-1] if asked else UserMessage("before")
    assert split.active_request == (newest if active else None)


def test_a_boundary_of_another_engine_is_neither_kept_nor_counted():
    window = [user(4), said(400), said(4), FOREIGN, said(4)]
    split = summary.split(window, 10)
    assert (split.head, split.tail) == ((said(400),), (said(4), said(4)))
    log = [*window, split.boundary("s", "llm")]
    assert trim_to_last_boundary(log) == [log[-1], said(4), said(4)]


def test_images_of_results_take_up_room_only_where_the_engine_takes_them():
    seen = [ToolCall("c", "look", "{}"), ToolResult("c", "look", "", images=(Image("https://x/y"),))]
    window = [user(4), said(4), *seen]
    assert summary.split(window, 100, images=True).tail == ()
    assert summary.split(window, 100, images=False) == summary.Split((), tuple(window), None)


def test_dividing_a_long_window_costs_no_more_than_reading_it_once():
    class Counted(list):
        read = 0

        def __getitem__(self, index):
            if isinstance(index, int):
                Counted.read += 1
            return super().__getitem__(index)

    window = Counted([user(4), *[said(8)] * 4_000])
    assert len(summary.split(window, 5_000).tail) == 2_500
    assert Counted.read < 3 * len(window)


# -- what a model is given ---------------------------------------------------------------------------------------------


def test_every_item_is_one_line_and_only_the_opaque_says_nothing():
    items = [
        UserMessage(" look\n\tthere ", (Image("https://x/y"),)),
        UserMessage("", (Image("https://x/y"),) * 2),
        AssistantMessage("so"),
        ReasoningSummary("why"),
        ToolCall("c", "grep", '{"a":\n1}'),
        ToolResult("c", "grep", "found\nit"),
        ToolResult("d", "grep", "no", is_error=True),
        OLDER,
        OPAQUE,
        ErrorNote("broken"),
    ]
    assert summary.render(items) == [
        "user: look there [with 1 image]",
        "user:  [with 2 images]",
        "assistant: so",
        "reasoning: why",
        'call grep: {"a": 1}',
        "result of grep: found it",
        "error of grep: no",
        "summary of what came before: older",
    ]


@pytest.mark.parametrize(
    ("item", "prefix", "limit"),
    [
        (UserMessage, "user: ", 2_000),
        (AssistantMessage, "assistant: ", 2_000),
        (lambda text: ToolCall("c", "f", text), "call f: ", 1_200),
        (lambda text: ToolResult("c", "f", text), "result of f: ", 1_200),
        (ContextCompaction, "summary of what came before: ", 1_200),
    ],
)
@pytest.mark.parametrize("letter", ["x", "é", "語", "🙂"])
def test_a_long_line_is_cut_between_characters(item, prefix, limit, letter):
    size = len(letter.encode())
    whole = letter * (limit // size)
    assert summary.render([item(whole)]) == [prefix + whole]
    (cut,) = summary.render([item(whole + letter)])
    text = cut.removeprefix(prefix)
    assert limit - size < len(text.encode()) <= limit
    assert text == letter * ((limit - 3) // size) + "..."


@pytest.mark.parametrize(
    ("lines", "context_window", "expected"),
    [
        (["x" * 1_999] * 4, 2_000, [2, 2]),
        (["x" * 2_000] * 4, 2_000, [1, 1, 1, 1]),
        (["x" * 9_000, "y"], 2_000, [1, 1]),
        (["x" * 31_999] * 3, None, [2, 1]),
        ([], None, []),
    ],
)
def test_a_chunk_is_at_most_half_of_the_models_window(lines, context_window, expected):
    found = summary.chunks(lines, context_window)
    assert [len(chunk) for chunk in found] == expected
    assert [line for chunk in found for line in chunk] == lines


@settings(deadline=None)
@given(st.lists(st.text(max_size=900)), st.integers(0, 500))
def test_chunks_hold_every_line_in_order(lines, context_window):
    found = summary.chunks(lines, context_window)
    assert [line for chunk in found for line in chunk] == lines
    for chunk in found:
        assert len("\n".join(chunk).encode()) <= 4 * (context_window // 2) or len(chunk) == 1


def test_a_chunk_that_is_too_large_is_halved_down_to_one_line_which_is_skipped():
    assert summary.halves(("a", "b", "c")) == [("a",), ("b", "c")]
    assert summary.halves(("a", "b")) == [("a",), ("b",)]
    assert summary.halves(("a",)) == []


def test_a_question_holds_the_summary_so_far_the_hint_and_the_lines_in_order():
    text = summary.question(("user: a", "assistant: b"), "what was before", " the proof ")
    assert (
        text.index("what was before") < text.index("Keep above all: the proof\n") < text.index("user: a\nassistant: b")
    )
    assert "Keep" not in summary.question(("user: a",), None, "  ")
    assert summary.question(("user: a",), None, None).count("\n\n") == 1


def test_the_instructions_ask_for_every_part_of_a_state():
    for label in (
        "goal",
        "constraints",
        "progress",
        "decisions",
        "files_and_artifacts",
        "open_questions",
        "next_steps",
    ):
        assert label in summary.INSTRUCTIONS
    assert "state_snapshot" in summary.INSTRUCTIONS


def test_a_request_for_a_summary_holds_nothing_of_the_turn_but_its_model_and_thread():
    request = summary_request(ModelChoice("one", "m"), "the question", RuntimeConfig(), thread_id="t")
    assert (request.model, request.instructions) == (ModelChoice("one", "m"), Instructions(summary.INSTRUCTIONS))
    assert (list(request.transcript), request.tools) == ([UserMessage("the question")], ())
    assert (request.tool_choice.mode, request.runtime.prompt_cache_key) == ("none", "t")
    assert request.metadata["compaction_summary"] is True
    assert request.runtime.auto_compact_token_limit is None
    assert request.output.response_format is None


# -- without a model ---------------------------------------------------------------------------------------------------


def test_a_text_without_a_model_is_a_bullet_for_each_entry():
    head = [
        OLDER,
        UserMessage("a"),
        ReasoningSummary("why"),
        *pair(9),
        AssistantMessage("b\nc"),
        OPAQUE,
        ErrorNote("x"),
    ]
    assert summary.deterministic(head).splitlines() == [
        "- summary of what came before: older",
        "- user: a",
        "- result of look: rrr",
        "- assistant: b c",
    ]
    assert summary.deterministic([ReasoningSummary("why")]) == ""


@pytest.mark.parametrize("letter", ["x", "語"])
def test_a_bullet_is_cut_between_characters(letter):
    (bullet,) = summary.deterministic([AssistantMessage(letter * 999)]).splitlines()
    assert 240 - len(letter.encode()) < len(bullet.encode()) <= 240
    assert bullet.endswith(letter + "...")


def test_of_too_many_bullets_the_first_of_a_user_and_the_newest_stay():
    head = [said(9), UserMessage("the task"), *[AssistantMessage(f"{n:04} " + "x" * 300) for n in range(200)]]
    text = summary.deterministic(head)
    first, count, *newest = text.splitlines()
    assert first == "- user: the task"
    assert count == f"- [{len(head) - 1 - len(newest)} entries left out]"
    assert [line[13:17] for line in newest] == [f"{n:04}" for n in range(200 - len(newest), 200)]
    assert 16_384 - 241 <= len(text.encode()) <= 16_384


def test_a_first_user_among_the_newest_stands_where_it_stood():
    head = [*[said(300)] * 190, UserMessage("the task"), said(9), UserMessage("more")]
    count, *newest = summary.deterministic(head).splitlines()
    assert count == f"- [{len(head) - len(newest)} entries left out]"
    assert newest[-3:] == ["- user: the task", "- assistant: aaaaaaaaa", "- user: more"]
    assert newest.count("- user: the task") == 1


def test_without_a_user_among_them_the_newest_bullets_stay():
    text = summary.deterministic([AssistantMessage("x" * 300)] * 200)
    assert text.startswith("- [1")
    assert len(text.encode()) <= 16_384


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.builds(UserMessage, st.text()), st.integers(0, 600).map(said)), max_size=300))
def test_a_text_without_a_model_never_grows_past_its_limit(head):
    text = summary.deterministic(head)
    assert len(text.encode("utf-8", "replace")) <= 16_384
    assert text.count("\n") <= len(head)


# -- laws --------------------------------------------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> list[Any]:
    """Random transcripts: messages, notes, boundaries, steps with parallel calls, calls inside of calls."""
    log: list[Any] = [UserMessage("first")]
    for number, kind in enumerate(
        draw(st.lists(st.sampled_from(["user", "said", "calls", "nested", "note", "summary", "opaque"]), max_size=14))
    ):
        size = draw(st.sampled_from([0, 3, 40, 400]))
        match kind:
            case "user":
                log.append(UserMessage(f"{number} " + "u" * size, draw(st.sampled_from([(), (Image("https://x/y"),)]))))
            case "said":
                log.append(AssistantMessage("a" * size))
            case "note":
                log.append(draw(st.sampled_from([ErrorNote("n" * size), ReasoningSummary("r" * size)])))
            case "calls" | "nested":
                ids = [f"{number}-{part}" for part in range(draw(st.integers(1, 3)))]
                log += [ToolCall(id, "look", "{}") for id in ids]
                answered = list(reversed(ids)) if kind == "nested" else ids
                log += [ToolResult(id, "look", "r" * size) for id in answered]
            case "summary":
                split = summary.split(History(log).window(), size, said=History(log).said)
                log.append(split.boundary("s" * size, "llm"))
            case "opaque":
                kept = draw(st.sampled_from([[], [{"type": "message", "content": History(log).said.text}]]))
                item = {"type": "compaction", "encrypted_content": f"{number}"}
                log.append(ProviderMetadata({"output": [item], "compacted_input": [item, *kept]}))
    return log


@settings(max_examples=200, deadline=None)
@given(logs(), st.integers(0, 600), st.booleans())
def test_whatever_is_summarised_requests_are_well_paired_and_hold_the_active_message(log, keep, images):
    before = History(log)
    window, asked = list(before.window()), before.said
    split = summary.split(window, keep, images, before.said)
    assert estimate(split.tail, images) <= keep
    kept = [item for item in window if not is_boundary(item)][-len(split.tail) :] if split.tail else []
    assert list(split.tail) == kept
    lost = [item for item in window if item not in (*split.head, *split.tail)]
    assert lost in ([], [split.active_request])
    log.append(split.boundary("s", "llm"))
    after = History(log)
    assert list(after.window()) == [log[-1], *split.tail]
    request = list(after.request())
    assert request.count(asked) == 1
    assert well_paired(request)
    if summary.shrinks("s", split.head, images) and estimate(after.window(), images) < estimate(window, images):
        later = summary.split(after.window(), keep, images, after.said)
        assert later.active_request in (asked, None)
    live = History()
    for index, item in enumerate(log):
        live.append(item, ("u", index))
        if isinstance(item, ContextCompaction):
            live.drop_summarised()
    assert (list(live.window()), list(live.request())) == (list(after.window()), request)
    assert (live.sums(), live.baseline(), live.said) == (after.sums(), after.baseline(), after.said)


@given(logs())
def test_dividing_again_what_a_summary_left_keeps_the_active_message(log):
    history = History(log)
    for keep in (400, 40, 0):
        split = summary.split(history.window(), keep, said=history.said)
        history.append(split.boundary(f"kept {keep}", "llm"))
        assert history.said == History(log).said
        assert list(history.request()).count(history.said) == 1
