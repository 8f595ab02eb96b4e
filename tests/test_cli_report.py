"""Threads, usage and failures in words."""

from decimal import Decimal
from typing import Any

import pytest

import roder_trio as rt
from roder_trio import transcript
from roder_trio.cli.cost import cost_words, dollars, with_cost
from roder_trio.cli.failure import failure_words
from roder_trio.cli.report import item_words, usage_cells, usage_words
from roder_trio.schema.cost import NO_COST


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (transcript.UserMessage("hi"), "> hi"),
        (transcript.UserMessage("hi", (transcript.Image("data:x"),)), "> hi [1 images]"),
        (transcript.AssistantMessage("yes"), "yes"),
        (transcript.AssistantMessage("ye", interrupted=True), "ye [cut off]"),
        (transcript.ReasoningSummary("hm"), "(reasoning) hm"),
        (transcript.ToolCall("c", "look", "{}"), "(call) look {}"),
        (transcript.ToolResult("c", "look", "seen"), "(result) seen"),
        (transcript.ToolResult("c", "look", "dark", is_error=True), "(error) dark"),
        (transcript.ContextCompaction("all of it"), "(compacted) all of it"),
        (transcript.ErrorNote("no network"), "(failed) no network"),
        (transcript.ProviderMetadata({"a": 1}), None),
    ],
)
def test_each_item_that_a_person_can_read_has_words(item: Any, words: str | None) -> None:
    assert item_words(item) == words


def test_usage_names_only_the_parts_that_are_there() -> None:
    assert usage_words(None) == "no tokens counted"
    assert usage_words(rt.TokenUsage(5, 3, 8)) == "5 prompt + 3 completion = 8 tokens"
    full = rt.TokenUsage(50, 30, 80, cached_prompt_tokens=10, cache_creation_prompt_tokens=5, reasoning_tokens=20)
    words = "50 prompt + 30 completion = 80 tokens (10 cached, 5 cache creation, 20 reasoning)"
    assert usage_words(full) == words
    assert usage_cells(full, NO_COST) == ("50", "10", "30", "20", "80", "$0.00")
    assert usage_cells(None, None) == ("0", "0", "0", "0", "0", "")
    assert usage_cells(None, rt.Cost(None, Decimal(0)))[-1] == "at least $0.00"


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ("0", "$0.00"),
        ("0.0123", "$0.0123"),
        ("0.5", "$0.5000"),
        ("0.00001234", "$0.000012"),
        ("1", "$1.00"),
        ("1234.567", "$1,234.57"),
    ],
)
def test_an_amount_is_told_in_cents_or_as_finely_as_it_is_small(amount: str, words: str) -> None:
    assert dollars(Decimal(amount)) == words


def test_a_cost_is_told_as_far_as_it_is_known() -> None:
    known, partly, unknown = rt.Cost(Decimal(2), Decimal(2)), rt.Cost(None, Decimal(2)), rt.Cost(None, Decimal(0))
    assert [cost_words(cost) for cost in (known, partly, unknown)] == ["$2.00", "at least $2.00", "at least $0.00"]
    assert with_cost("3 tokens", partly) == "3 tokens, at least $2.00"
    assert with_cost("3 tokens", None) == "3 tokens"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (rt.ThreadNotFound("t"), "There is no active thread 't'; it is unknown or archived."),
        (OSError(13, "Permission denied", "/store"), "Permission denied (/store)"),
        (OSError("odd"), "odd"),
        (RuntimeError("odd"), "unexpected RuntimeError: odd"),
        (ExceptionGroup("g", [OSError("a"), ExceptionGroup("g", [OSError("a"), OSError("b")])]), "a; a; b"),
        (ExceptionGroup("g", [OSError("a"), OSError("a")]), "a"),
    ],
)
def test_a_failure_is_one_line_of_what_happened(error: Exception, words: str) -> None:
    assert failure_words(error) == words
