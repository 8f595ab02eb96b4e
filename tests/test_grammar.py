"""The check of a stream's form finds each offence."""

from typing import Any

import pytest

from roder_trio.schema.inference import (
    Completed,
    Failed,
    HostedToolCallCompleted,
    HostedToolCallStarted,
    MessageDelta,
    ProviderMetadata,
    ReasoningDelta,
    ToolCallCompleted,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from roder_trio.schema.usage import TokenUsage
from roder_trio.testing import check_grammar

TEXT, END = MessageDelta("a"), Completed("stop")
REPLAY = ProviderMetadata({"dialect": "d"})
USAGE = Usage(TokenUsage(1, 1, 2))
START, DELTA, DONE = ToolCallStarted("1", "f"), ToolCallDelta("1", "{}"), ToolCallCompleted("1", "f", "{}")
HOSTED, HOSTED_DONE = HostedToolCallStarted("h", "s"), HostedToolCallCompleted("h", "s", "{}")


@pytest.mark.parametrize(
    "events",
    [
        [END],
        [TEXT, USAGE, USAGE, REPLAY, END],
        [ProviderMetadata({"kind": "request_repair"}), TEXT, END],
        [START, DELTA, DONE, END],
        [START, DONE, HOSTED, HOSTED_DONE, END],
        [START, ToolCallStarted("2", "g"), DONE, ToolCallCompleted("2", "g", ""), END],
    ],
)
def test_a_well_formed_stream_passes(events: list[Any]) -> None:
    check_grammar(events)


def test_a_failed_stream_may_leave_calls_open() -> None:
    check_grammar([TEXT, START, DELTA], ValueError())
    check_grammar([], ValueError())


@pytest.mark.parametrize(
    "events",
    [
        [],
        [TEXT],
        [END, TEXT],
        [END, END],
        [REPLAY, TEXT, END],
        [REPLAY, REPLAY, END],
        [MessageDelta(""), END],
        [ReasoningDelta(""), END],
        [START, ToolCallDelta("1", ""), DONE, END],
        [START, END],
        [DONE, END],
        [DELTA, START, DONE, END],
        [START, DONE, DELTA, END],
        [START, START, DONE, END],
        [START, DONE, DONE, END],
        [ToolCallStarted("", "f"), END],
        [START, ToolCallCompleted("1", "g", ""), END],
        [START, DELTA, ToolCallCompleted("1", "f", "{"), END],
        [START, ToolCallStarted("2", "g"), ToolCallCompleted("2", "g", ""), DONE, END],
        [HOSTED, HOSTED, END],
        [HOSTED_DONE, END],
        [HOSTED, HOSTED_DONE, HOSTED_DONE, END],
        [Failed("x"), END],
    ],
)
def test_a_malformed_stream_is_found_out(events: list[Any]) -> None:
    with pytest.raises(AssertionError):
        check_grammar(events)


def test_a_failed_stream_does_not_complete() -> None:
    with pytest.raises(AssertionError):
        check_grammar([END], ValueError())
