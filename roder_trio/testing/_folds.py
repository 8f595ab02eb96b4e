"""Checks of what a store makes of records: metadata (`M1` to `M5`), turns (`P1` to `P3`), unknown types (`E5`).

Rules of the room: as in `_check`; expectations are written out, not computed by the folds that stores use.
"""

from collections.abc import Callable
from typing import Any

from roder_trio.ports import ThreadStore
from roder_trio.schema import transcript
from roder_trio.schema.event import (
    EventEnvelope,
    TerminalEvent,
    ThreadMetadataChanged,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
    Unknown,
)
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import Record, ThreadMetadata, TurnRecord
from roder_trio.schema.turn import TurnStatus
from roder_trio.schema.usage import TokenUsage
from roder_trio.testing._check import Check, Verify, append_each, expect, loaded, new_thread
from roder_trio.testing._sample import START, Sample, at

MakeRecords = Callable[[Sample], list[Record]]


def _metadata_check(read: Callable[[ThreadMetadata], Any], *cases: tuple[MakeRecords, Any]) -> Check:
    """A check that logs give the metadata, as `read`, that each case says."""

    async def check(store: ThreadStore, prefix: str) -> Verify:
        wanted: dict[ThreadId, Any] = {}
        for number, (make, expected) in enumerate(cases):
            sample = await new_thread(store, f"{prefix}-{number}")
            await append_each(store, sample, make(sample))
            wanted[sample.thread_id] = expected

        async def verify(store: ThreadStore) -> None:
            for thread_id, expected in wanted.items():
                metadata = (await loaded(store, thread_id)).metadata
                expect(None if metadata is None else read(metadata), expected, f"case {thread_id[-1]}")

        return verify

    return check


UPDATED_AT = _metadata_check(
    lambda metadata: metadata.updated_at,
    (lambda sample: [sample.user("a", seconds=5), sample.user("b", seconds=3)], at(5)),
    (lambda sample: [sample.user("a", seconds=-1e9)], START),
    (lambda sample: [sample.state("k", 1)], START),
)
MESSAGE_COUNT = _metadata_check(
    lambda metadata: metadata.message_count,
    (
        lambda sample: [
            sample.user("a"),
            sample.item(transcript.AssistantMessage("b")),
            sample.item(transcript.ToolCall("c", "tool", "{}")),
            sample.item(transcript.ToolResult("c", "tool", "out")),
            sample.item(transcript.ReasoningSummary("thought")),
            sample.delta("text"),
        ],
        2,
    ),
)
TITLE = _metadata_check(
    lambda metadata: metadata.title,
    (lambda sample: [sample.user("  hi\n there "), sample.user("later")], "hi there"),
    (lambda sample: [sample.user(" \n"), sample.user("x" * 73)], "x" * 71 + "…"),
    (lambda sample: [sample.user("y" * 72)], "y" * 72),
    (lambda sample: [sample.goal("the objective"), sample.user("later")], "the objective"),
    (lambda sample: [sample.item(transcript.UserMessage("", [transcript.Image("data:,")]))], None),
)
USAGE = _metadata_check(
    lambda metadata: metadata.usage,
    (
        lambda sample: [
            sample.usage("a1", 1, 3, 1, 4),
            sample.usage("a1", 2, 10, 2, 12),
            sample.usage("a2", 1, 5, 1, 6),
        ],
        TokenUsage(15, 3, 18),
    ),
    (lambda sample: [sample.usage("a1", 1, 3, 1, 4), sample.usage("a1", 2, 0, 0, 0)], TokenUsage(3, 1, 4)),
    (lambda sample: [sample.usage("a1", 1, 3, 1, 4, origin_thread_id="child")], None),
    (lambda sample: [sample.usage("a1", 1, 0, 0, 0)], None),
)
CHANGED = _metadata_check(
    lambda metadata: (metadata.title, metadata.model, metadata.provider, dict(metadata.labels)),
    (
        lambda sample: [
            sample.envelope(ThreadMetadataChanged(title="Set", model="m", labels={"a": "1", "b": "2"}), None),
            sample.envelope(ThreadMetadataChanged(model=None, provider="p", labels={"c": "3"}), None),
        ],
        ("Set", None, "p", {"c": "3"}),
    ),
    (
        lambda sample: [
            sample.envelope(ThreadMetadataChanged(title="Set"), None),
            sample.envelope(ThreadMetadataChanged(title=None), None),
        ],
        (None, None, None, {}),
    ),
)


def _turns_check(make: Callable[[Sample], tuple[list[EventEnvelope], list[TurnRecord]]]) -> Check:
    async def check(store: ThreadStore, prefix: str) -> Verify:
        sample = await new_thread(store, prefix)
        records, wanted = make(sample)
        await append_each(store, sample, records)

        async def verify(store: ThreadStore) -> None:
            expect(list((await loaded(store, prefix)).turns), wanted, "the turns")

        return verify

    return check


def _mentions(sample: Sample) -> tuple[list[EventEnvelope], list[TurnRecord]]:
    thread_id = sample.thread_id
    records = [
        sample.usage("a1", 1, 1, 1, 2, turn="unmentioned"),
        sample.user("in b", "b", 1),
        sample.envelope(TurnStarted("p", "m"), "a", 2),
        sample.user("in a", "a", 3),
        sample.user("again in b", "b", 4),
    ]
    said = [[transcript.UserMessage(text) for text in texts] for texts in (("in b", "again in b"), ("in a",))]
    turns = [
        TurnRecord(thread_id=thread_id, turn_id="b", created_at=at(1), items=said[0]),
        TurnRecord(thread_id=thread_id, turn_id="a", created_at=at(2), items=said[1]),
    ]
    return records, turns


def _endings(sample: Sample) -> tuple[list[EventEnvelope], list[TurnRecord]]:
    records: list[EventEnvelope] = []
    turns: list[TurnRecord] = []
    endings: tuple[tuple[TerminalEvent, TurnStatus, str | None], ...] = (
        (TurnCompleted(None, "stop"), TurnStatus.COMPLETED, "stop"),
        (TurnFailed("error", "internal"), TurnStatus.FAILED, None),
        (TurnInterrupted("user"), TurnStatus.INTERRUPTED, None),
    )
    for number, (event, status, finish_reason) in enumerate(endings):
        records.append(sample.envelope(TurnStarted("p", "m"), f"turn-{number}", number * 10))
        records.append(sample.envelope(event, f"turn-{number}", number * 10 + 1))
        records.append(sample.envelope(TurnCompleted(None, "later"), f"turn-{number}", number * 10 + 2))
        turn = TurnRecord(
            thread_id=sample.thread_id,
            turn_id=f"turn-{number}",
            created_at=at(number * 10),
            completed_at=at(number * 10 + 1),
            finish_reason=finish_reason,
            status=status,
        )
        turns.append(turn)
    return records, turns


def _usages(sample: Sample) -> tuple[list[EventEnvelope], list[TurnRecord]]:
    usage = TokenUsage(3, 1, 4)
    records = [
        sample.envelope(TurnStarted("p", "m"), "ended", 1),
        sample.envelope(TurnStarted("p", "m"), "open", 2),
        sample.usage("a2", 1, 5, 5, 10, turn="open"),
        sample.envelope(TurnCompleted(usage), "ended", 3),
        sample.usage("a1", 9, 50, 50, 100, turn="ended"),
    ]
    ended = TurnRecord(
        thread_id=sample.thread_id,
        turn_id="ended",
        created_at=at(1),
        completed_at=at(3),
        usage=usage,
        status=TurnStatus.COMPLETED,
    )
    return records, [ended, TurnRecord(thread_id=sample.thread_id, turn_id="open", created_at=at(2))]


async def unknown_types(store: ThreadStore, prefix: str) -> Verify:
    """E5: what a newer version wrote comes back as it was."""
    sample = await new_thread(store, prefix)
    payload = {"type": "newer.kind", "z": 1, "a": [None, {"type": "turn.started"}]}
    records = [
        sample.envelope(Unknown("newer.kind", payload)),
        sample.item(transcript.OpaqueItem("newer_item", {"type": "newer_item", "z": 1, "a": 2})),
    ]
    await append_each(store, sample, records)

    async def verify(store: ThreadStore) -> None:
        expect(list((await loaded(store, prefix)).events), records, "events of unknown types")

    return verify


CHECKS: dict[str, Check] = {
    "M1 updated_at": UPDATED_AT,
    "M2 message_count": MESSAGE_COUNT,
    "M3 title": TITLE,
    "M4 usage": USAGE,
    "M5 changed metadata": CHANGED,
    "P1 mentions of turns": _turns_check(_mentions),
    "P2 ends of turns": _turns_check(_endings),
    "P3 usage of turns": _turns_check(_usages),
    "E5 unknown types": unknown_types,
}
