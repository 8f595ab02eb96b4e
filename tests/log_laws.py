"""What holds of every log, whatever failed, was cancelled or crashed while it was written."""

from collections.abc import Iterable, Sequence

import roder_trio as rt
from roder_trio import compaction, events, goals, transcript
from roder_trio.schema.event import (
    TERMINAL_EVENTS,
    ContextCompactionCancelled,
    ContextCompactionFailed,
    ContextCompactionRecorded,
    ContextCompactionStarted,
    UsageRecorded,
)
from roder_trio.schema.transcript import TranscriptItem

ZERO = rt.TokenUsage(0, 0, 0)


def readings(log: Iterable[rt.EventEnvelope]) -> dict[str, UsageRecorded]:
    """The record that counts of each attempt, by attempt."""
    found: dict[str, UsageRecorded] = {}
    for envelope in log:
        record = envelope.event
        if isinstance(record, UsageRecorded):
            known = found.get(record.attempt_id)
            if known is None or known.report < record.report:
                found[record.attempt_id] = record
    return found


def total(log: Iterable[rt.EventEnvelope], *, turn_id: str | None = None) -> rt.TokenUsage:
    """What a log says was used, by all attempts or by those of one turn."""
    counted = (record for record in readings(log).values() if turn_id in (None, record.turn_id))
    return sum((record.usage for record in counted), ZERO)


def tokens_of_goal(log: Iterable[rt.EventEnvelope], goal_id: str) -> int:
    return sum(record.usage.total_tokens for record in readings(log).values() if record.goal_id == goal_id)


def terminals(log: Iterable[rt.EventEnvelope]) -> dict[str, list[rt.EventEnvelope]]:
    """The terminal events of each started turn, in order of start."""
    found: dict[str, list[rt.EventEnvelope]] = {}
    for envelope in log:
        assert envelope.turn_id is not None or not isinstance(envelope.event, (events.TurnStarted, *TERMINAL_EVENTS))
        if isinstance(envelope.event, events.TurnStarted):
            assert envelope.turn_id not in found, "a turn starts once"
            found[str(envelope.turn_id)] = []
        elif isinstance(envelope.event, TERMINAL_EVENTS):
            found[str(envelope.turn_id)].append(envelope)
    return found


def open_turns(log: Iterable[rt.EventEnvelope]) -> list[str]:
    return [turn_id for turn_id, ends in terminals(log).items() if not ends]


def transcript_of(snapshot: rt.ThreadSnapshot) -> list[TranscriptItem]:
    return [item for turn in snapshot.turns for item in turn.items]


def goal_of(log: Sequence[rt.EventEnvelope]) -> goals.Goal | None:
    """The goal as it was last stored."""
    goal: goals.Goal | None = None
    for envelope in log:
        if isinstance(envelope.event, events.GoalUpdated):
            goal = envelope.event.goal
        elif isinstance(envelope.event, events.GoalCleared):
            goal = None
    return goal


def check_log(snapshot: rt.ThreadSnapshot, *, settled: bool = True) -> None:
    """Check the log of a thread on which nothing runs.

    `settled` says that no append of usage failed for good: else a record may have landed behind its terminal event.
    """
    log = snapshot.events
    check_numbers(snapshot)
    check_usage(snapshot, settled=settled)
    for turn_id, ends in terminals(log).items():
        assert len(ends) == 1, f"turn {turn_id} has {len(ends)} terminal events"
    for turn in snapshot.turns:
        if turn.turn_id in terminals(log):
            check_pairs(turn.items)
    check_compactions(snapshot)


def check_numbers(snapshot: rt.ThreadSnapshot) -> None:
    numbered = [envelope.seq for envelope in snapshot.events if envelope.seq]
    assert numbered == list(range(1, len(numbered) + 1)), "the actor's events are numbered without a gap"
    item_seqs = [event.seq for event in snapshot.item_events]
    assert item_seqs == list(range(1, len(item_seqs) + 1)), "item events are numbered without a gap"
    ids = [envelope.event_id for envelope in snapshot.events]
    assert len(set(ids)) == len(ids), "no record is stored twice"


def check_usage(snapshot: rt.ThreadSnapshot, *, settled: bool) -> None:
    assert snapshot.metadata is not None
    assert (snapshot.metadata.usage or ZERO) == total(snapshot.events), "the metadata is the fold of the records"
    for position, envelope in enumerate(snapshot.events):
        if settled and isinstance(envelope.event, TERMINAL_EVENTS):
            until_then = total(snapshot.events[:position], turn_id=envelope.turn_id)
            assert (envelope.event.usage or ZERO) == until_then, "a terminal event carries the fold of its turn"


def check_pairs(items: Iterable[TranscriptItem]) -> None:
    waiting: list[str] = []
    for item in items:
        if isinstance(item, transcript.ToolCall):
            waiting.append(item.id)
        elif isinstance(item, transcript.ToolResult):
            assert item.id in waiting, f"result {item.id} has no call"
            waiting.remove(item.id)
    assert not waiting, f"calls without a result: {waiting}"


def check_compactions(snapshot: rt.ThreadSnapshot) -> None:
    ends = (ContextCompactionRecorded, ContextCompactionFailed, ContextCompactionCancelled)
    told = [envelope.event for envelope in snapshot.events]
    started = [event.compaction_id for event in told if isinstance(event, ContextCompactionStarted)]
    ended = [event.compaction_id for event in told if isinstance(event, ends)]
    assert sorted(started) == sorted(ended), "each compaction has one end"
    recorded = [event for event in told if isinstance(event, ContextCompactionRecorded)]
    boundaries = [item for item in transcript_of(snapshot) if compaction.is_boundary(item)]
    assert len(recorded) == len(boundaries), "a boundary stands in the log if and only if its compaction was recorded"
