"""Threads and records for the checks of stores.

Rules of the room: no clock and no global randomness; ids are unique within one `Sample`.
"""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from roder_trio.schema import transcript
from roder_trio.schema.event import (
    EventEnvelope,
    GoalUpdated,
    ThreadEvent,
    ThreadMetadataChanged,
    TranscriptItemAppended,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
    Unknown,
    UsageRecorded,
)
from roder_trio.schema.goal import Goal, GoalCause, GoalStatus
from roder_trio.schema.item import AgentMessage, AgentMessageText, ItemCompleted, ItemDelta, ThreadItemEvent
from roder_trio.schema.thread import ExtensionStateRecord, Record, ThreadMetadata, ThreadScope
from roder_trio.schema.usage import Purpose, TokenUsage

START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """A moment after the start of all samples."""
    return START + timedelta(seconds=seconds)


class Sample:
    """Makes records for one thread, each with an id of its own."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.made = 0
        self.seq = 0
        self.item_seq = 0

    def metadata(self, seconds: float = 0, **fields: Any) -> ThreadMetadata:
        """The metadata of the new thread, created at `seconds`."""
        return ThreadMetadata(thread_id=self.thread_id, created_at=at(seconds), updated_at=at(seconds), **fields)

    def record_id(self) -> str:
        """A record id that this sample didn't give before."""
        self.made += 1
        return f"{self.thread_id}/{self.made}"

    def envelope(
        self, event: ThreadEvent | Unknown, turn: str | None = "turn", seconds: float | None = None
    ) -> EventEnvelope:
        """An envelope with the next seq; usage records have none."""
        self.seq += not isinstance(event, UsageRecorded)
        seq = 0 if isinstance(event, UsageRecorded) else self.seq
        record_id = self.record_id()
        return EventEnvelope(
            event_id=record_id,
            seq=seq,
            timestamp=at(self.made if seconds is None else seconds),
            source="thread",
            thread_id=self.thread_id,
            turn_id=turn,
            event=event,
        )

    def item(self, item: transcript.TranscriptItem, turn: str = "turn", seconds: float | None = None) -> EventEnvelope:
        """A record of a transcript item, without an item that is derived from it."""
        return self.envelope(TranscriptItemAppended(0, item), turn, seconds)

    def user(self, text: str, turn: str = "turn", seconds: float | None = None) -> EventEnvelope:
        """A record of a user message."""
        return self.item(transcript.UserMessage(text), turn, seconds)

    def usage(
        self, attempt: str, report: int, prompt: int, completion: int, total: int, *, turn: str = "turn", **fields: Any
    ) -> EventEnvelope:
        """A record of an attempt's running total."""
        usage = TokenUsage(prompt, completion, total)
        event = UsageRecorded(
            attempt_id=attempt, report=report, turn_id=turn, usage=usage, purpose=Purpose.SAMPLING, **fields
        )
        return self.envelope(event, turn)

    def goal(self, objective: str) -> EventEnvelope:
        """A record of a goal."""
        goal = Goal(
            goal_id="goal",
            thread_id=self.thread_id,
            objective=objective,
            status=GoalStatus.ACTIVE,
            created_at=START,
            updated_at=START,
        )
        return self.envelope(GoalUpdated(goal, GoalCause.HOST), None)

    def delta(self, text: str, turn: str = "turn") -> ThreadItemEvent:
        """A recorded delta of an item."""
        return self._item_event(ItemDelta(f"{turn}-message", AgentMessageText(text)), turn)

    def completed(self, text: str, turn: str = "turn") -> ThreadItemEvent:
        """A recorded completion of an item."""
        return self._item_event(ItemCompleted(AgentMessage(f"{turn}-message", text)), turn)

    def _item_event(self, event: ItemDelta | ItemCompleted, turn: str) -> ThreadItemEvent:
        self.item_seq += 1
        record_id = self.record_id()
        return ThreadItemEvent(
            event_id=record_id,
            seq=self.item_seq,
            timestamp=at(self.made),
            thread_id=self.thread_id,
            turn_id=turn,
            event=event,
        )

    def state(self, key: str, value: Any) -> ExtensionStateRecord:
        """A host's value beside the thread."""
        return ExtensionStateRecord(
            record_id=self.record_id(),
            extension_id="check",
            key=key,
            scope=ThreadScope(self.thread_id),
            schema_version=1,
            value=value,
        )

    def texts(self, *texts: str, turn: str = "turn") -> list[Record]:
        """A batch of assistant messages."""
        return [self.item(transcript.AssistantMessage(text), turn) for text in texts]

    def any_batch(self, random: random.Random, known: list[Record]) -> list[Record]:
        """A random batch, some of it known before; what is new is added to `known`."""
        batch: list[Record] = []
        for _ in range(random.randrange(5)):
            if known and random.random() < 0.2:  # noqa: PLR2004
                batch.append(random.choice(known))
            else:
                batch.append(self.any_record(random))
                known.append(batch[-1])
        return batch

    def any_record(self, random: random.Random) -> Record:
        """A random record."""
        turn = f"turn-{random.randrange(4)}"
        text = random.choice(["", "  \n", "hello there", "ein Übergang\u2028\x00", "x" * 100, '{"quotes": "\\"}'])
        number = random.randrange(50)
        makers = (
            lambda: self.user(text, turn),
            lambda: self.item(transcript.AssistantMessage(text, phase=random.choice([None, "commentary"])), turn),
            lambda: self.item(transcript.ToolCall(f"call-{number}", "tool", '{ "a":1}'), turn),
            lambda: self.item(transcript.ProviderMetadata({"deep": [{"n": number, "none": None}]}), turn),
            lambda: self.envelope(TurnStarted("provider", "model"), turn),
            lambda: self.envelope(TurnCompleted(TokenUsage(number, 1, number + 1), "stop"), turn),
            lambda: self.envelope(TurnFailed(text, "internal"), turn),
            lambda: self.envelope(TurnInterrupted("user"), turn),
            lambda: self.usage(f"attempt-{random.randrange(3)}", number, number, 1, number + 1, turn=turn),
            lambda: self.envelope(ThreadMetadataChanged(title=random.choice([None, text]), labels={"a": text}), None),
            lambda: self.envelope(Unknown("newer.kind", {"type": "newer.kind", "n": [number]}), turn),
            lambda: self.delta(text, turn),
            lambda: self.completed(text, turn),
            lambda: self.state(f"key-{number % 3}", {"value": text}),
        )
        record: Record = random.choice(makers)()
        return record
