"""Directories of threads as Roder leaves them, made for tests."""

import json
from datetime import UTC, datetime, timedelta

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def at(seconds):
    """A moment as Roder writes it, with nanoseconds."""
    return (START + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.123456789Z")


def usage(prompt, completion, cached=0, created=0):
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "cached_prompt_tokens": cached,
        "cache_creation_prompt_tokens": created,
    }


class RoderThread:
    """Builds one thread directory; seqs restart as Roder's do with each process."""

    def __init__(self, folder, thread_id="thread-1"):
        self.folder = folder / thread_id
        self.folder.mkdir(parents=True)
        self.thread_id = thread_id
        self.made = 0
        self.seq = 0
        self.lines = {"events": [], "item_events": [], "extension_state": []}

    def event(self, tag, content=None, turn_id="turn-1", **fields):
        """A line of `events.jsonl`."""
        self.made += 1
        self.seq += 1
        event = {
            "event_id": f"{self.thread_id}-{self.made}",
            "seq": self.seq,
            "timestamp": at(self.made),
            "source": "engine",
            "kind": "some.kind",
            "thread_id": self.thread_id,
            "turn_id": turn_id,
            "event": tag if content is None else {tag: content},
        }
        self.lines["events"].append(json.dumps({**event, **fields}))
        return self

    def append(self, tag, content, turn_id="turn-1"):
        """A transcript item."""
        return self.event("TranscriptItemAppended", {"item": {tag: content}}, turn_id)

    def restart(self):
        self.seq = 0
        return self

    def item(self, seq, event, /, turn_id="turn-1", **fields):
        """A line of `item_events.jsonl`."""
        value = {
            "seq": seq,
            "eventId": f"{self.thread_id}-item-{len(self.lines['item_events'])}",
            "threadId": self.thread_id,
            "turnId": turn_id,
            "timestamp": at(seq),
            "event": event,
        }
        self.lines["item_events"].append(json.dumps({**value, **fields}))
        return self

    def state(self, key, value, scope="Global"):
        state = {"extension_id": "memory", "key": key, "scope": scope, "schema_version": 2, "value": value}
        self.lines["extension_state"].append(json.dumps(state))
        return self

    def file(self, name, value):
        (self.folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
        return self

    def metadata(self, **fields):
        told = {
            "thread_id": self.thread_id,
            "title": "A title",
            "workspace": "/srv/project",
            "provider": "openai",
            "model": "gpt",
            "tool_allowlist": ["read"],
            "developer_instructions": "be brief",
            "parent_thread_id": None,
            "forked_from_turn_id": None,
            "created_at": at(0),
            "updated_at": at(500),
            "message_count": 2,
            "usage": None,
            "runner": {"kind": "local"},
        }
        return self.file("metadata.json", {**told, **fields})

    def write(self):
        for name, lines in self.lines.items():
            if lines:
                self.file(f"{name}.jsonl", "".join(f"{line}\n" for line in lines))
        return self

    def turn(self, turn_id="turn-1", told=None, end="TurnCompleted", **fields):
        """A whole turn: a question, an answer, an end that tells the usage."""
        self.event("TurnStarted", {"provider": "openai", "model": "gpt"}, turn_id)
        self.append("UserMessage", {"text": "question", "images": []}, turn_id)
        self.append("AssistantMessage", {"text": "answer", "phase": None}, turn_id)
        return self.event(end, {"usage": told, **fields}, turn_id)


def moment(text):
    return datetime.fromisoformat(text).astimezone(UTC)


def events_of(snapshot):
    return [envelope.event for envelope in snapshot.events]


GOAL = {
    "threadId": "thread-1",
    "objective": "finish it",
    "status": "budgetLimited",
    "tokenBudget": 50,
    "tokensUsed": 60,
    "timeUsedSeconds": 7.5,
    "createdAt": at(3),
    "updatedAt": at(9),
}


def started(item):
    return {"type": "itemStarted", "item": item}


def completed(item):
    return {"type": "itemCompleted", "item": item}
