"""One thread directory of Roder, read whole: what the thread is created with, and its records in log order.

Rules of the room: blocks, in a worker thread; only reads. Every id that Roder doesn't give follows from the place of
what it names, so that reading again gives the same.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

import attrs

from roder_trio import codec
from roder_trio.logic.thread.metadata import MetadataFold
from roder_trio.schema.event import EventEnvelope, UsageRecorded
from roder_trio.schema.ids import ThreadId, is_valid_id
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import ExtensionStateRecord, StoredRecord, ThreadMetadata
from roder_trio.schema.usage import ZERO_USAGE, Purpose, TokenUsage
from roder_trio.stores._batch import checked_batch, fault_of, grouped
from roder_trio.stores.roder.event import EventReader
from roder_trio.stores.roder.goal import derived_id, goal_of, moment
from roder_trio.stores.roder.item import fold_items
from roder_trio.stores.roder.text import JsonObject, RoderDamage, Value, read_first, read_good_values, read_values
from roder_trio.stores.roder.transcript import COUNTERS, given, untagged

METADATA, EVENTS, ITEM_EVENTS = "metadata.json", "events.jsonl", "item_events.jsonl"
EXTENSION_STATE, GOAL = "extension_state.jsonl", "goal.json"
REST = "import:rest"
"""The attempt, and the turn, of what Roder counted beyond the turns."""

_UNKNOWN = "unknown"


@attrs.frozen
class RoderThread:
    """A thread as it is to be stored."""

    created: ThreadMetadata
    batches: Sequence[Sequence[StoredRecord]]
    """The records in log order, in groups for one append each."""
    warnings: Sequence[str]

    @property
    def thread_id(self) -> ThreadId:
        """The id that Roder gave the thread."""
        return self.created.thread_id


def is_thread_directory(path: Path) -> bool:
    """Whether a folder holds a thread of Roder."""
    return any((path / name).is_file() for name in (METADATA, EVENTS, ITEM_EVENTS))


def read_thread(path: Path) -> RoderThread:
    """Read a thread directory. Raises RoderDamage, InvalidRecord, OSError."""
    warnings: list[str] = []
    told = read_first(path / METADATA)
    events = read_values(path / EVENTS, warnings.append)
    items = read_values(path / ITEM_EVENTS, warnings.append)
    thread_id = _thread_id(path, told, events, items)
    metadata = told or {}
    reader = EventReader(thread_id, _named(metadata, "provider"), _named(metadata, "model"))
    records = _read_events(reader, events)
    completions = fold_items(thread_id, ITEM_EVENTS, items, warnings.append)
    created = _created(thread_id, metadata, [*records, *completions], warnings.append)
    records += _rest(created, records, metadata.get("usage"), warnings.append)
    records += _goal(thread_id, path, created.updated_at, reader)
    records += completions
    records += _states(thread_id, path, warnings.append)
    checked_batch(thread_id, records)  # type: ignore[arg-type]  # opaque ones are records too
    missing = _count_of(metadata) - _folded(created, records).message_count
    batches = grouped(records, lambda record: len(codec.encode_record(record)))
    return RoderThread(attrs.evolve(created, message_count=max(0, missing)), tuple(batches), warnings)


def _named(metadata: JsonObject, key: str) -> str:
    value = metadata.get(key)
    return value if isinstance(value, str) and value else _UNKNOWN


def _count_of(metadata: JsonObject) -> int:
    count = metadata.get("message_count")
    return count if type(count) is int else 0


def _thread_id(path: Path, told: JsonObject | None, events: Sequence[Value], items: Sequence[Value]) -> ThreadId:
    """Whose directory it is: what the metadata say, else an event, else its name."""
    named: list[Any] = [(told or {}).get("thread_id")]
    named += [entry.value.get("thread_id") for entry in events]
    named += [entry.value.get("threadId") for entry in items]
    return str(next((thread_id for thread_id in named if is_valid_id(thread_id)), path.name))


def _read_events(reader: EventReader, events: Sequence[Value]) -> list[StoredRecord]:
    records: list[StoredRecord] = []
    for entry in events:
        try:
            records += reader.read(entry.value)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise RoderDamage(EVENTS, entry.line, str(error)) from error
    return records


# -- metadata ----------------------------------------------------------------------------------------------------------


def _created(
    thread_id: ThreadId, told: JsonObject, records: Sequence[StoredRecord], warn: Callable[[str], None]
) -> ThreadMetadata:
    """What the thread is created with: Roder's metadata, dates of the records where it has none. Raises RoderDamage."""
    times = [record.timestamp for record in records if isinstance(record, EventEnvelope | ThreadItemEvent)]
    workspace = told.get("workspace")
    if isinstance(workspace, str) and not PurePath(workspace.strip()).is_absolute():
        warn(f"the workspace {workspace!r} is no absolute path and was left out")
        workspace = None
    names = ("title", "provider", "model", "tool_allowlist", "developer_instructions", "parent_thread_id")
    fields = {name: told.get(name) for name in (*names, "forked_from_turn_id")}
    dates = {
        "created_at": moment(told.get("created_at")) or _date(times, min),
        "updated_at": moment(told.get("updated_at")) or _date(times, max),
    }
    try:
        return codec.decode_metadata({"thread_id": thread_id, **given(**fields, **dates, workspace=workspace)})
    except codec.DecodeError as error:
        raise RoderDamage(METADATA, 1, str(error)) from error


def _date(times: Sequence[datetime], choose: Callable[[Sequence[datetime]], datetime]) -> str | None:
    return choose(times).isoformat(timespec="microseconds") if times else None


def _folded(created: ThreadMetadata, records: Sequence[StoredRecord]) -> ThreadMetadata:
    fold = MetadataFold(created)
    for record in records:
        fold.absorb(record)
    return fold.metadata


# -- what follows the events -------------------------------------------------------------------------------------------


def _rest(
    created: ThreadMetadata,
    records: Sequence[StoredRecord],
    told: object,
    warn: Callable[[str], None],
) -> list[StoredRecord]:
    """A record of what the metadata count beyond the turns, if they count no less of anything that they count."""
    counted = _folded(created, records).usage or ZERO_USAGE
    given_counters = told if isinstance(told, dict) else {}
    beyond = {
        name: given_counters[name] - getattr(counted, name)
        for name in COUNTERS
        if type(given_counters.get(name)) is int
    }
    if any(tokens < 0 for tokens in beyond.values()):
        warn("the metadata count fewer tokens than the turns; what the turns say was kept")
        return []
    if not any(beyond.values()):
        return []
    usage = TokenUsage(**{**dict.fromkeys(COUNTERS, 0), **beyond})
    event = UsageRecorded(attempt_id=REST, report=1, turn_id=REST, usage=usage, purpose=Purpose.SAMPLING)
    rest = EventEnvelope(
        event_id=f"{REST}:1",
        timestamp=created.updated_at,
        source="accounting",
        thread_id=created.thread_id,
        event=event,
    )
    return [rest]


def _goal(thread_id: ThreadId, path: Path, now: datetime, reader: EventReader) -> list[StoredRecord]:
    """The goal as Roder keeps it beside the log. Raises RoderDamage."""
    told = read_first(path / GOAL)
    if told is None:
        return []
    dated = {"createdAt": now.isoformat(), "updatedAt": now.isoformat(), **given(**told)}
    reader.seq += 1
    record = {
        "type": "event",
        "event_id": derived_id(thread_id, GOAL),
        "seq": reader.seq,
        "timestamp": moment(dated["updatedAt"]),
        "source": "host",
        "thread_id": thread_id,
        "event": goal_of(thread_id, dated, GOAL),
    }
    try:
        return [codec.decode_record(record)]
    except codec.DecodeError as error:
        raise RoderDamage(GOAL, 1, str(error)) from error


def _states(thread_id: ThreadId, path: Path, warn: Callable[[str], None]) -> list[StoredRecord]:
    """The states of extensions; those that don't fit are counted in a warning."""
    records: list[StoredRecord] = []
    places: Counter[int] = Counter()
    bad = 0
    for entry in read_good_values(path / EXTENSION_STATE, warn):
        places[entry.line] += 1
        try:
            record = codec.decode_record(_state(thread_id, entry, places[entry.line]))
        except ValueError:
            bad += 1
            continue
        if isinstance(record, ExtensionStateRecord) and fault_of(thread_id, record) is None:
            records.append(record)
        else:
            bad += 1
    if bad:
        warn(f"{bad} values of {EXTENSION_STATE} don't fit and were skipped")
    return records


def _state(thread_id: ThreadId, entry: Value, place: int) -> JsonObject:
    """A record whose id follows from its line, and its place on it."""
    value = entry.value
    tag, content = untagged(value.get("scope"))
    return {
        **{key: value.get(key) for key in ("extension_id", "key", "value")},
        "type": "extension_state",
        "record_id": derived_id(thread_id, EXTENSION_STATE, entry.line, place),
        "schema_version": value.get("schema_version", 1),
        "scope": {**(content if isinstance(content, Mapping) else {}), "type": tag.lower()},
    }
