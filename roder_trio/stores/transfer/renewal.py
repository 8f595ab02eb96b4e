"""A thread under another id: its id and those of its records, renewed the same way each time.

Rules of the room: pure, JSON values in and out. The ids of turns, items, attempts and goals are of one thread only and
stay; so do those of other threads. What hosts and providers keep in a record is not looked into.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid5

import attrs

from roder_trio.codec.text import dump
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import ThreadMetadata

_NAMESPACE = UUID("6d0a3f1e-5c0b-4a86-9d63-0f1f7f1c2a54")


@attrs.frozen
class Renewal:
    """From one thread id to another; the same one renews nothing."""

    old: ThreadId
    new: ThreadId

    def metadata(self, metadata: ThreadMetadata) -> ThreadMetadata:
        """The metadata of the new thread."""
        return attrs.evolve(metadata, thread_id=self.new)

    def record(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The record of the new thread that stands for one of the old."""
        if self.old == self.new:
            return dict(value)
        renewed = self._named(value)
        for key in ("event_id", "record_id"):
            if isinstance(value.get(key), str):
                renewed[key] = self.record_id(value[key])
        if isinstance(value.get("scope"), dict):
            renewed["scope"] = self._named(value["scope"])
        event = value.get("event")
        if isinstance(event, dict):
            renewed["event"] = self._event(event)
        return renewed

    def record_id(self, old: str) -> str:
        """The id of the record that stands for the one with this id."""
        return str(uuid5(_NAMESPACE, dump([self.new, old]).decode()))

    def _event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        renewed = dict(event)
        if event.get("type") == "goal.updated" and isinstance(event.get("goal"), dict):
            renewed["goal"] = self._named(event["goal"])
        if event.get("type") == "usage.recorded":
            renewed = self._named(event, "origin_thread_id")
            if "ancestors" in event:
                renewed["ancestors"] = [self._named(ancestor) for ancestor in event["ancestors"]]
        return renewed

    def _named(self, value: Mapping[str, Any], key: str = "thread_id") -> dict[str, Any]:
        return {**value, key: self.new} if value.get(key) == self.old else dict(value)
