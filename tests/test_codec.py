import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any, get_args

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio import codec
from roder_trio.errors import InvalidRecord
from roder_trio.schema import event as events
from roder_trio.schema import item as items
from roder_trio.schema import transcript
from roder_trio.schema.event import EventEnvelope
from roder_trio.schema.goal import Goal, GoalCause, GoalStatus
from roder_trio.schema.ids import UNSET
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import (
    ExtensionStateRecord,
    GlobalScope,
    OpaqueRecord,
    Scope,
    StoreRepair,
    ThreadMetadata,
    ThreadScope,
    TurnScope,
    WorkspaceScope,
)
from roder_trio.schema.turn import TurnOutcome
from roder_trio.schema.usage import Purpose, TokenUsage

AT = datetime(2026, 10, 3, 0, 0, 1, tzinfo=UTC)


def envelope(event: Any, **changes: Any) -> EventEnvelope:
    fields = {"event_id": "5c1d", "seq": 12, "timestamp": AT, "source": "thread", "thread_id": "t1", "turn_id": "u1"}
    return EventEnvelope(event=event, **{**fields, **changes})


def item_event(event: Any, **changes: Any) -> ThreadItemEvent:
    fields = {"event_id": "77ab", "seq": 8, "timestamp": AT, "thread_id": "t1", "turn_id": "u1"}
    return ThreadItemEvent(event=event, **{**fields, **changes})


def state(value: Any, scope: Scope | None = None) -> ExtensionStateRecord:
    return ExtensionStateRecord(
        record_id="9e02", extension_id="x", key="k", schema_version=1, scope=scope or ThreadScope("t1"), value=value
    )


def goal(**changes: Any) -> Goal:
    fields = {"goal_id": "g", "thread_id": "t1", "objective": "o", "status": GoalStatus.ACTIVE}
    return Goal(**{**fields, "created_at": AT, "updated_at": AT, **changes})


def as_json(record: Any) -> Any:
    return json.loads(codec.encode_record(record))


# -- the form ----------------------------------------------------------------------------------------------------------


def test_an_envelope_is_written_with_its_tags_and_without_defaults():
    record = envelope(events.TurnCompleted(TokenUsage(20, 4, 24), "stop"))
    assert as_json(record) == {
        "type": "event",
        "event_id": "5c1d",
        "seq": 12,
        "timestamp": "2026-10-03T00:00:01.000000Z",
        "source": "thread",
        "thread_id": "t1",
        "turn_id": "u1",
        "event": {
            "type": "turn.completed",
            "usage": {"prompt_tokens": 20, "completion_tokens": 4, "total_tokens": 24},
            "finish_reason": "stop",
        },
    }


def test_an_item_event_is_written_with_class_names_as_tags():
    record = item_event(items.ItemCompleted(items.AgentMessage("m1", "done", status=items.ItemStatus.COMPLETED)))
    assert as_json(record) == {
        "type": "item_event",
        "event_id": "77ab",
        "seq": 8,
        "timestamp": "2026-10-03T00:00:01.000000Z",
        "thread_id": "t1",
        "turn_id": "u1",
        "event": {
            "type": "item_completed",
            "item": {"type": "agent_message", "id": "m1", "text": "done", "status": "completed"},
        },
    }


def test_extension_state_is_written_with_its_scope():
    assert as_json(state({})) == {
        "type": "extension_state",
        "record_id": "9e02",
        "extension_id": "x",
        "key": "k",
        "schema_version": 1,
        "scope": {"type": "thread", "thread_id": "t1"},
        "value": {},
    }


@pytest.mark.parametrize(
    ("scope", "written"),
    [
        (GlobalScope(), {"type": "global"}),
        (WorkspaceScope("/w"), {"type": "workspace", "workspace": "/w"}),
        (TurnScope("t1", "u1"), {"type": "turn", "thread_id": "t1", "turn_id": "u1"}),
    ],
)
def test_each_scope_has_its_tag(scope, written):
    assert as_json(state(1, scope))["scope"] == written
    assert codec.decode_record(codec.encode_record(state(1, scope))).scope == scope


def test_the_tag_comes_first_and_a_record_is_one_line():
    text = codec.encode_record(envelope(events.TurnStarted("p", "line one\nline two")))
    assert text.startswith(b'{"type":"event",')
    assert b"\n" not in text


def test_null_reads_as_absent_where_the_default_is_none():
    value = as_json(envelope(events.TurnCompleted()))
    value["event"] |= {"usage": None, "finish_reason": None}
    assert codec.decode_record(value).event == events.TurnCompleted()


def test_metadata_changes_tell_kept_fields_from_cleared_ones():
    event = events.ThreadMetadataChanged(title=None, tool_allowlist=("a",), labels=MappingProxyType({"k": "v"}))
    written = as_json(envelope(event))["event"]
    assert written == {
        "type": "thread.metadata_changed",
        "title": None,
        "tool_allowlist": ["a"],
        "labels": {"k": "v"},
    }
    read = codec.decode_record(codec.encode_record(envelope(event))).event
    assert read == event
    assert read.provider is UNSET


def test_derived_values_are_ignored_when_read_and_never_written():
    value = as_json(envelope(events.TurnCompleted(TokenUsage(10, 2, 12, 5))))
    assert "kind" not in value
    assert "cache_hit_rate" not in value["event"]["usage"]
    value |= {"kind": "something.else", "from_the_future": [1]}
    value["event"]["usage"]["cache_hit_rate"] = 7
    assert codec.decode_record(value) == envelope(events.TurnCompleted(TokenUsage(10, 2, 12, 5)))


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2026-10-03T00:00:01Z", AT),
        ("2026-10-03T00:00:01.5Z", AT.replace(microsecond=500_000)),
        ("2026-10-03T02:00:01.123456789+02:00", AT.replace(microsecond=123_456)),
        ("2026-10-02T19:30:01.000-04:30", AT),
    ],
)
def test_a_time_is_read_with_any_offset_and_precision(text, read):
    value = as_json(envelope(events.TurnCompleted())) | {"timestamp": text}
    found = codec.decode_record(value)
    assert found.timestamp == read
    assert found.timestamp.tzinfo is UTC


@pytest.mark.parametrize("text", ["2026-10-03T00:00:01", "2026-10-03", "2026-13-03T00:00:01Z", "now", 5, None])
def test_a_time_without_an_offset_is_damage(text):
    value = as_json(envelope(events.TurnCompleted())) | {"timestamp": text}
    with pytest.raises(codec.DecodeError, match=r"\$\.timestamp"):
        codec.decode_record(value)


def test_a_time_of_another_zone_is_written_as_utc():
    record = envelope(events.TurnCompleted(), timestamp=AT.astimezone(timezone(timedelta(hours=2))))
    assert as_json(record)["timestamp"] == "2026-10-03T00:00:01.000000Z"


def test_a_naive_time_is_refused():
    with pytest.raises(InvalidRecord):
        codec.encode_record(envelope(events.TurnCompleted(), timestamp=datetime(2026, 1, 1)))  # noqa: DTZ001


# -- what can't be encoded ---------------------------------------------------------------------------------------------


def itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


NOT_JSON = [float("nan"), float("inf"), b"x", {1}, itself(), {1: "a"}, {"a": object()}, AT, 1j, {"deep": [(b"",)]}]


@pytest.mark.parametrize("value", NOT_JSON, ids=lambda value: type(value).__name__)
def test_what_is_no_json_is_refused(value):
    with pytest.raises(InvalidRecord):
        codec.check_json(value)
    with pytest.raises(InvalidRecord):
        codec.encode_record(state(value))
    with pytest.raises(InvalidRecord):
        codec.encode_record(envelope(events.TranscriptItemAppended(0, transcript.ProviderMetadata({"v": value}))))


def test_json_passes_the_check():
    codec.check_json({"a": [1, 2.5, None, True, ("x",)], "b": MappingProxyType({})})


def test_json_nests_as_deep_as_the_limit_and_no_deeper():
    value: Any = 1
    for _ in range(200):
        value = [value]
    assert codec.decode_record(codec.encode_record(state(value))).value == value
    with pytest.raises(InvalidRecord):
        codec.check_json([value])


@pytest.mark.parametrize(
    "event",
    [
        events.TurnStarted("p", "m", automatic=0),
        events.TurnStarted("p", "m", automatic=1),
        events.TurnStarted(5, "m"),
        events.TranscriptItemAppended(True, transcript.UserMessage("x")),
        events.TranscriptItemAppended(0, transcript.UserMessage("x"), item_seq=False),
        events.TranscriptItemAppended(0, items.AgentMessage("m", "x")),
        events.TranscriptItemAppended(0, transcript.ProviderMetadata([1])),
        events.GoalTimeRecorded("g", "u", float("nan")),
        events.GoalTimeRecorded("g", "u", True),
        events.GoalUpdated(goal(), GoalCause.HOST, opening_time=False),
        events.GoalUpdated(goal(), "host"),
        events.GoalUpdated(goal(), GoalStatus.ACTIVE),
        transcript.OpaqueItem("x", {}),
        "turn.started",
    ],
    ids=str,
)
def test_a_field_of_another_type_is_refused(event):
    with pytest.raises(InvalidRecord):
        codec.encode_record(envelope(event))


@pytest.mark.parametrize("record", ["text", None, 5, {"type": "event"}, events.TurnCompleted()])
def test_what_is_no_record_is_refused(record):
    with pytest.raises(InvalidRecord):
        codec.encode_record(record)


# -- text and numbers --------------------------------------------------------------------------------------------------


def test_a_lone_surrogate_becomes_the_replacement_character():
    record = envelope(events.TranscriptItemAppended(0, transcript.UserMessage("a\ud800b\x00é")))
    text = codec.encode_record(record)
    assert "é".encode() in text
    assert codec.decode_record(text).event.item.text == "a\ufffdb\x00é"


def test_a_pair_of_surrogates_that_came_in_two_pieces_becomes_its_character():
    assert codec.decode_record(codec.encode_record(state("\ud83d" + "\ude00"))).value == "\U0001f600"


@pytest.mark.parametrize("number", [2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**60, 12345678901234567890])
def test_integers_of_any_size_survive(number):
    text = codec.encode_record(state({"n": number, "text": "1" * 30, "float": 0.1234567890123456789}))
    assert codec.decode_record(text).value == {"n": number, "text": "1" * 30, "float": 0.1234567890123456789}


@pytest.mark.parametrize("text", [b'{"type"', b"", b"NaN", b'{"a":1e999}', b'"\\ud800"', b"\xff", "\ud800"])
def test_text_that_is_no_json_is_damage(text):
    with pytest.raises(codec.DecodeError):
        codec.parse_json(text)
    with pytest.raises(codec.DecodeError):
        codec.decode_record(text)


# -- what can't be read ------------------------------------------------------------------------------------------------


def changed(record: Any, *path: str, to: Any) -> Any:
    value = as_json(record)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if to is UNSET:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return value


STARTED = envelope(events.TurnStarted("p", "m"))
USED = envelope(
    events.UsageRecorded(attempt_id="a", report=1, turn_id="u", usage=TokenUsage(1, 1, 2), purpose=Purpose.SAMPLING)
)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (changed(STARTED, "event_id", to=UNSET), "'event_id' is missing @ $.event_id"),
        (changed(STARTED, "seq", to=True), "$.seq"),
        (changed(STARTED, "event", "provider", to=UNSET), "$.event.provider"),
        (changed(STARTED, "event", "automatic", to=1), "$.event.automatic"),
        (changed(STARTED, "event", "model", to=None), "$.event.model"),
        (changed(STARTED, "event", to=[]), "$.event"),
        (changed(STARTED, "event", "type", to=UNSET), "$.event"),
        (changed(STARTED, "type", to=5), "$"),
        (changed(USED, "event", "usage", "prompt_tokens", to=-1), "$.event.usage"),
        (changed(USED, "event", "usage", "prompt_tokens", to=1.0), "$.event.usage.prompt_tokens"),
        (changed(USED, "event", "purpose", to="unheard"), "$.event.purpose"),
        (changed(USED, "event", "ancestors", to="x"), "$.event.ancestors"),
        (changed(USED, "event", "ancestors", to=[{"thread_id": "t"}]), "$.event.ancestors"),
        (
            changed(
                envelope(events.TranscriptItemAppended(0, transcript.ProviderMetadata({}))),
                "event",
                "item",
                "payload",
                to=[],
            ),
            "$.event.item.payload",
        ),
        ([], "$"),
        ("x", "not JSON"),
    ],
)
def test_damage_names_the_field(value, where):
    with pytest.raises(codec.DecodeError) as caught:
        codec.decode_record(value)
    assert where in str(caught.value)


# -- newer versions ----------------------------------------------------------------------------------------------------


def test_an_unknown_event_is_kept_as_it_was_read():
    value = as_json(STARTED) | {"event": {"b": 1, "type": "turn.teleported", "a": {"y": 1, "x": 2}}}
    record = codec.decode_record(value)
    assert record.kind == "turn.teleported"
    assert record.event == events.Unknown("turn.teleported", value["event"])
    assert json.dumps(as_json(record)["event"]) == json.dumps(value["event"])


def test_an_unknown_transcript_item_is_kept_as_it_was_read():
    item = {"b": 1, "type": "hologram", "a": None}
    value = changed(envelope(events.TranscriptItemAppended(0, transcript.UserMessage("x"))), "event", "item", to=item)
    record = codec.decode_record(value)
    assert record.event.item == transcript.OpaqueItem("hologram", item)
    assert json.dumps(as_json(record)["event"]["item"]) == json.dumps(item)


@pytest.mark.parametrize(
    "value",
    [
        {"z": 1, "type": "lease", "a": 2**70},
        changed(item_event(items.ItemDiscarded("m")), "event", "type", to="item_renamed"),
        changed(item_event(items.ItemCompleted(items.Error("m", "x"))), "event", "item", "type", to="hologram"),
        changed(state(1), "scope", "type", to="galaxy"),
    ],
)
def test_a_record_with_an_unknown_type_is_kept_as_it_was_read(value):
    record = codec.decode_record(json.dumps(value).encode())
    assert record == OpaqueRecord(value["type"], value)
    assert json.dumps(as_json(record)) == json.dumps(value)


def test_a_record_that_is_damaged_beside_an_unknown_type_is_damage():
    value = changed(item_event(items.ItemDiscarded("m")), "event", "type", to="item_renamed")
    with pytest.raises(codec.DecodeError):
        codec.decode_record(value | {"seq": "8"})


def test_an_opaque_value_made_by_hand_gets_its_tag_first():
    written = codec.encode_record(envelope(events.Unknown("roder.Thing", {"a": 1})))
    assert b'"event":{"type":"roder.Thing","a":1}' in written


@pytest.mark.parametrize("payload", [{"type": "other"}, {"a": b""}, [1]])
def test_an_opaque_value_that_would_read_as_something_else_is_refused(payload):
    with pytest.raises(InvalidRecord):
        codec.encode_record(envelope(events.Unknown("roder.Thing", payload)))


def test_an_old_form_is_read_through_its_upcaster(monkeypatch):
    stored = {"type": "turn.begun", "engine": "p", "model": "m"}
    old = codec.Upcaster(
        applies=lambda value: "engine" in value,
        rewrite=lambda value: {"type": "turn.started", "provider": value["engine"], "model": value["model"]},
    )
    monkeypatch.setitem(codec.UPCASTERS, "turn.begun", (old,))
    assert codec.decode_record(as_json(STARTED) | {"event": stored}) == STARTED
    present = {"type": "turn.begun", "provider": "p"}
    assert codec.decode_record(as_json(STARTED) | {"event": present}).event == events.Unknown("turn.begun", present)


# -- metadata ----------------------------------------------------------------------------------------------------------


def metadata(**changes: Any) -> ThreadMetadata:
    return ThreadMetadata(**{"thread_id": "t1", "created_at": AT, "updated_at": AT, **changes})


def test_metadata_survives_with_all_its_fields():
    full = metadata(
        title="x", workspace=" /w ", tool_allowlist=["a"], labels={"k": "v"}, message_count=2, usage=TokenUsage(1, 2, 3)
    )
    assert codec.decode_metadata(codec.encode_metadata(full)) == full


def test_rewritten_metadata_keeps_unknown_keys_and_replaces_known_ones():
    previous = json.loads(codec.encode_metadata(metadata(title="old"))) | {"color": {"r": 1}}
    written = json.loads(codec.encode_metadata(metadata(message_count=3), previous))
    assert written["color"] == {"r": 1}
    assert "title" not in written
    assert codec.decode_metadata(written) == metadata(message_count=3)


def test_metadata_has_upcasters_too(monkeypatch):
    old = codec.Upcaster(lambda value: "name" in value, lambda value: {**value, "title": value["name"]})
    monkeypatch.setitem(codec.UPCASTERS, "thread_metadata", (old,))
    assert codec.decode_metadata(json.loads(codec.encode_metadata(metadata())) | {"name": "x"}).title == "x"


def test_metadata_that_is_wrong_is_refused_both_ways():
    with pytest.raises(TypeError, match="title must be text, not int"):
        metadata(title=5)
    with pytest.raises(InvalidRecord):
        codec.encode_metadata(metadata(message_count="5"))
    with pytest.raises(codec.DecodeError, match=r"\$\.created_at"):
        codec.decode_metadata(b'{"thread_id":"t","updated_at":"2026-10-03T00:00:01Z"}')
    with pytest.raises(codec.DecodeError):
        codec.decode_metadata([])
    with pytest.raises(codec.DecodeError, match=r"absolute"):
        codec.decode_metadata(json.loads(codec.encode_metadata(metadata())) | {"workspace": "here"})


# -- output ------------------------------------------------------------------------------------------------------------


def test_to_json_shows_members_of_unions_with_their_tags():
    assert codec.to_json(items.Error("e", "x")) == {"type": "error", "id": "e", "message": "x"}
    assert codec.to_json((transcript.ToolCall("c", "n", "{}"),)) == [
        {"type": "tool_call", "id": "c", "name": "n", "arguments": "{}"}
    ]
    assert codec.to_json(goal(tokens_used=3))["tokens_used"] == 3
    assert codec.to_json(GoalStatus.ACTIVE) == "active"
    assert codec.to_json(AT) == "2026-10-03T00:00:01.000000Z"
    assert codec.to_json({"a": (1,)}) == {"a": [1]}
    outcome = TurnOutcome("u", "completed", "hi", None, cost=Decimal("0.10"))
    assert codec.to_json(outcome) == {
        "turn_id": "u",
        "status": "completed",
        "text": "hi",
        "usage": None,
        "cost": "0.10",
    }
    with pytest.raises(InvalidRecord):
        codec.to_json(object())


LIVE = [
    events.ThreadCreated(metadata()),
    events.StorageRepaired((StoreRepair("/p", 3),)),
    events.Lagged(7),
    events.ItemsReset((items.AgentMessage("m", "x"), items.Raw("r", {"a": 1}))),
    events.RetryScheduled(1, 3, 0.5, "transport"),
    events.ThreadRecovered(("u1",)),
    item_event(items.ItemDelta("m", items.AgentMessageText("x")), seq=0),
    item_event(items.ItemStarted(items.Error("e", "x"))),
]


@pytest.mark.parametrize("event", LIVE, ids=lambda event: event.kind)
def test_live_events_have_a_line_too(event):
    line = codec.event_json(envelope(event))
    assert json.loads(line)["event"]["type"] == event.kind
    assert codec.decode_record(line).event == event


@pytest.mark.parametrize("event", [events.ThreadCreated({"a": 1}), events.StorageRepaired((5,))])
def test_a_live_event_that_holds_something_else_is_refused(event):
    with pytest.raises(InvalidRecord):
        codec.event_json(envelope(event))


# -- every kind, there and back ----------------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(text, json_values, max_size=3)
counters = st.integers(0, 2**63 - 1)
st.register_type_strategy(TokenUsage, st.builds(TokenUsage, counters, counters, counters, counters, counters))
SPECIAL = {
    str: text,
    datetime: st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),  # noqa: DTZ001
    float: st.floats(allow_nan=False, allow_infinity=False),
    Any: json_values,
}


def build(cls: type) -> st.SearchStrategy[Any]:
    """Any instance of an attrs class, from the types of its fields."""
    fields = {f.alias: of_type(f.type) for f in attrs.fields(cls)}
    if cls in (events.ThreadCreated, events.StorageRepaired):
        only = {events.ThreadCreated: ("metadata", build(ThreadMetadata))}
        only[events.StorageRepaired] = ("repairs", of_type(tuple[StoreRepair, ...]))
        fields = dict([only[cls]])
    if cls is ThreadMetadata:
        fields |= {"workspace": st.none() | text.map(lambda value: "/" + value)}
        fields |= {"labels": st.dictionaries(text.filter(bool), text, max_size=2)}
    return st.builds(cls, **fields)


def of_type(cls: Any) -> st.SearchStrategy[Any]:
    if cls in SPECIAL:
        return SPECIAL[cls]
    origin, parts = getattr(cls, "__origin__", None), get_args(cls)
    if origin is tuple and Ellipsis not in parts:
        return st.tuples(*map(of_type, parts))
    if origin is tuple:
        return st.lists(st.deferred(lambda: of_type(parts[0])), max_size=2).map(tuple)
    if parts and "Mapping" in str(origin):
        return json_objects if parts[1] is Any else st.dictionaries(text, text, max_size=2)
    if "Literal" in str(origin):
        return st.sampled_from(parts)
    if parts:
        return st.one_of([of_type(part) for part in parts if part not in LEFT_OUT])
    return build(cls) if attrs.has(cls) and cls is not TokenUsage else st.from_type(cls)


LEFT_OUT = (events.Unknown, transcript.OpaqueItem)


@pytest.mark.parametrize("place", [["u"], ["u", 1, 2], ["u", "1"], "u1", []])
def test_a_place_that_is_no_turn_and_index_is_refused(place):
    record = codec.encode_record(envelope(events.ContextPruned((("u", 1),), 9, 5)))
    broken = json.loads(record)
    broken["event"]["items"] = [place]
    with pytest.raises(codec.DecodeError):
        codec.decode_record(json.dumps(broken))


EVENTS = [cls for cls in get_args(events.Event) if cls not in (*LEFT_OUT, ThreadItemEvent)]


@pytest.mark.parametrize("cls", EVENTS, ids=lambda cls: cls.kind)
def test_every_event_reads_as_it_was_written(cls):
    @settings(deadline=None, max_examples=15)
    @given(event=of_type(cls), seq=st.integers(0, 2**40))
    def check(event, seq):
        record = envelope(event, seq=seq)
        line = codec.encode_record(record)
        assert codec.decode_record(line) == record
        assert codec.encode_record(codec.decode_record(line)) == line

    check()


@settings(deadline=None, max_examples=100)
@given(record=of_type(ThreadItemEvent) | of_type(ExtensionStateRecord))
def test_every_other_record_reads_as_it_was_written(record):
    line = codec.encode_record(record)
    assert codec.decode_record(line) == record
    assert codec.encode_record(codec.decode_record(line)) == line


@settings(deadline=None, max_examples=60)
@given(found=build(ThreadMetadata))
def test_all_metadata_reads_as_it_was_written(found):
    assert codec.decode_metadata(codec.encode_metadata(found)) == found


@settings(deadline=None, max_examples=60)
@given(payload=json_objects, tag=text)
def test_opaque_values_read_as_they_were_written(payload, tag):
    value = {**payload, "type": f"newer.{tag}"}
    record = OpaqueRecord(value["type"], value)
    assert codec.decode_record(codec.encode_record(record)) == record
    inner = envelope(events.Unknown(value["type"], value))
    assert codec.decode_record(codec.encode_record(inner)) == inner
