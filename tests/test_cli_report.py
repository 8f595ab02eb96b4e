"""Threads, usage and failures in words."""

from typing import Any

import pytest

import roder_trio as rt
from roder_trio import transcript
from roder_trio.cli.failure import failure_words
from roder_trio.cli.report import item_words, usage_cells, usage_words


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
    assert usage_cells(full) == ("50", "10", "30", "20", "80")
    assert usage_cells(None) == ("0", "0", "0", "0", "0")


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
