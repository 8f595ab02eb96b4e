"""An answer as it is shown while it comes."""

import io
from datetime import UTC, datetime
from typing import Any

from roder_trio import events, items
from roder_trio.cli.answer import SHORT, Answer
from roder_trio.cli.terminal import Terminal
from roder_trio.schema.event import EventEnvelope

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def envelope(event: Any) -> EventEnvelope:
    return EventEnvelope(event_id="e", timestamp=NOW, source="turn", thread_id="t", turn_id="u", event=event)


def item_event(event: Any) -> EventEnvelope:
    return envelope(items.ThreadItemEvent(event_id="e", timestamp=NOW, thread_id="t", turn_id="u", event=event))


def delta(text: str, item_id: str = "m") -> EventEnvelope:
    return item_event(items.ItemDelta(item_id, items.AgentMessageText(text)))


def completed(text: str, item_id: str = "m") -> EventEnvelope:
    return item_event(items.ItemCompleted(items.AgentMessage(item_id, text)))


def discarded(item_id: str = "m") -> EventEnvelope:
    return item_event(items.ItemDiscarded(item_id))


def shown(*envelopes: EventEnvelope) -> tuple[str, str]:
    """What is on stdout and on stderr after these events."""
    out, err = io.StringIO(), io.StringIO()
    answer = Answer(Terminal(out, err))
    for one in envelopes:
        answer.show(one)
    answer.close()
    return out.getvalue(), err.getvalue()


def test_deltas_are_printed_as_they_come_and_the_finished_text_not_again() -> None:
    assert shown(delta("Hel"), delta("lo"), completed("Hello")) == ("Hello\n", "")


def test_each_message_begins_a_line() -> None:
    assert shown(delta("a", "1"), delta("b", "2"), completed("a", "1"), completed("b", "2"))[0] == "a\nb\n"


def test_a_message_that_came_whole_is_printed_when_it_is_complete() -> None:
    assert shown(completed("Hello")) == ("Hello\n", "")
    assert shown(completed("Hello\n")) == ("Hello\n", "")
    assert shown(completed("")) == ("", "")


def test_what_was_missed_of_a_message_is_printed_when_it_is_complete() -> None:
    out, err = shown(delta("Hel"), envelope(events.Lagged(3)), completed("Hello"))
    assert out == "Hel\nlo\n"
    assert err.startswith("3 events were not shown")


def test_a_message_with_a_hole_in_what_was_shown_is_printed_again() -> None:
    assert shown(delta("Ho"), completed("Hello"))[0] == "Ho\nHello\n"


def test_an_answer_that_is_tried_again_starts_on_a_new_line() -> None:
    retry = envelope(events.RetryScheduled(1, 3, 1.5, "rate_limited"))
    out, err = shown(delta("Hel"), discarded(), retry, delta("Hello"), completed("Hello"))
    assert out == "Hel\nHello\n"
    assert err == "that answer broke off; it begins again\nthe provider failed (rate_limited); trying again in 1.5 s\n"


def test_other_events_are_not_shown() -> None:
    reasoning = item_event(items.ItemDelta("r", items.ReasoningSummaryText("hm")))
    assert shown(reasoning, discarded("unseen"), envelope(events.InferenceStarted("a", "p", "m"))) == ("", "")


def tool_event(kind: Any, seq: int = 1, **fields: Any) -> EventEnvelope:
    call = items.ToolExecution("c", "call_1", "shell", **fields)
    return envelope(
        items.ThreadItemEvent(event_id="e", seq=seq, timestamp=NOW, thread_id="t", turn_id="u", event=kind(call))
    )


def test_a_call_is_told_once_it_is_stored_and_again_when_it_ended() -> None:
    live = tool_event(items.ItemStarted, seq=0)
    stored = tool_event(items.ItemStarted, input='{"command":\n "ls"}')
    ended = tool_event(items.ItemCompleted, output="a\nb\n")
    out, err = shown(delta("Look: "), live, stored, ended, delta("There.", "n"))
    assert out == "Look: \nThere.\n"
    assert err == 'tool shell {"command": "ls"}\ntool shell: done, 2 lines\n'


def test_what_is_told_of_a_call_is_short_and_without_control_characters() -> None:
    stored = tool_event(items.ItemStarted, input="x" * 500)
    ended = tool_event(items.ItemCompleted, error="\x1b]0;title\x07no\n" + "y" * 500)
    first, second = shown(stored, ended)[1].splitlines()
    assert first == f"tool shell {'x' * (SHORT - 1)}…"
    assert second.startswith("tool shell: failed: ]0;titleno yyy")
    assert len(second) < 200


def test_the_lines_of_a_result_are_counted() -> None:
    assert shown(tool_event(items.ItemCompleted, output=""))[1] == "tool shell: done, 0 lines\n"
    assert shown(tool_event(items.ItemCompleted, output="a"))[1] == "tool shell: done, 1 line\n"


def test_a_compaction_is_told() -> None:
    assert "compacted" in shown(envelope(events.ContextCompactionStarted("c", "auto", 5, 1000)))[1]
