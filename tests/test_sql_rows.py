"""Records and threads as rows of a database: what an append makes of a row equals the fold of the whole log."""

import json
import random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio import codec
from roder_trio.errors import CorruptRecord, InvalidCursor, InvalidRecord
from roder_trio.logic.thread.metadata import fold_metadata
from roder_trio.schema import transcript
from roder_trio.schema.event import EventEnvelope, ThreadMetadataChanged, TranscriptItemAppended
from roder_trio.schema.thread import OpaqueRecord, ThreadScope, TurnScope
from roder_trio.schema.usage import TokenUsage
from roder_trio.stores._sql_record import (
    decode_creation,
    encode_creation,
    encode_rows,
    events_after,
    is_key,
    new_rows,
    read_log,
)
from roder_trio.stores._sql_thread import (
    ThreadRow,
    change_of,
    named_attempts,
    new_document,
    page_of,
    page_query,
    read_document,
)
from roder_trio.testing._sample import START, Sample


class Table:
    """The rows of one thread, as a database would keep them."""

    def __init__(self, metadata):
        self.thread_id = metadata.thread_id
        self.thread = ThreadRow(new_document(metadata))
        self.attempts = {}
        self.rows = []
        self.labels = dict(metadata.labels)

    def append(self, batch):
        rows = new_rows({row.record_id for row in self.rows}, encode_rows(batch))
        known = [self.attempts[name] for name in named_attempts(rows) if name in self.attempts]
        change = change_of(self.thread, read_document(self.thread_id, self.thread.document), rows, known)
        assert change.position == len(self.rows) + 1
        self.rows += change.rows
        self.thread = change.thread
        self.attempts.update({row.attempt_id: row for row in change.attempts})
        if change.labels is not None:
            self.labels = dict(change.labels)
        return change

    def bodies(self):
        return [(position, row.body) for position, row in enumerate(self.rows, start=1)]


def usage_record(sample, attempt, report, tokens, tier, origin):
    record = sample.usage(attempt, report, tokens, 1, tokens + 1, origin_thread_id=origin)
    counts = TokenUsage(tokens, 1, tokens + 1, service_tier=tier) if tokens else TokenUsage(0, 0, 0)
    return attrs.evolve(record, event=attrs.evolve(record.event, usage=counts))


readings = st.tuples(
    st.sampled_from("abc"),
    st.integers(1, 5),
    st.integers(0, 9),
    st.sampled_from([None, "flex", "priority"]),
    st.sampled_from([None, None, None, "child"]),
)


@given(st.lists(st.lists(readings, max_size=3), max_size=8), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_rows_that_grow_append_by_append_say_what_the_fold_of_the_whole_log_says(batches, seed):
    sample = Sample("t")
    metadata = sample.metadata()
    table, log, chance = Table(metadata), [], random.Random(seed)
    for batch in batches:
        records = [usage_record(sample, *reading) for reading in batch] + sample.any_batch(chance, [])
        table.append(records)
        for record in records:
            if record not in log:
                log.append(record)
        document = read_document("t", table.thread.document)
        assert document.metadata == fold_metadata(metadata, log)
        assert table.labels == dict(document.metadata.labels)
    stored = read_log("t", table.bodies(), table.thread.last_position)
    assert [codec.encode_record(record) for record in stored] == [row.body.encode() for row in table.rows]
    assert table.thread.last_seq == max([one.seq for one in log if isinstance(one, EventEnvelope)], default=0)


def test_an_attempt_of_a_descendant_is_kept_apart_and_never_takes_the_place_of_an_own_one():
    sample = Sample("t")
    table = Table(sample.metadata())
    table.append([usage_record(sample, "a", 1, 5, None, "child")])
    assert table.attempts["a"].origin_thread_id == "child"
    assert read_document("t", table.thread.document).metadata.usage is None
    table.append([usage_record(sample, "a", 1, 3, None, None)])
    assert table.append([usage_record(sample, "a", 9, 7, None, "child")]).attempts == []
    assert table.attempts["a"].usage == TokenUsage(3, 1, 4)
    assert read_document("t", table.thread.document).metadata.usage == TokenUsage(3, 1, 4)


def test_a_copy_counts_by_its_highest_report_and_never_with_zeros():
    sample = Sample("t")
    table = Table(sample.metadata())
    for report, tokens in ((2, 5), (1, 9), (3, 0)):
        table.append([usage_record(sample, "a", report, tokens, None, "child")])
    assert (table.attempts["a"].report, table.attempts["a"].usage) == (2, TokenUsage(5, 1, 6))


def test_the_row_of_a_thread_counts_seqs_and_the_pinned_ones_of_items():
    sample = Sample("t")
    table = Table(sample.metadata())
    pinned = sample.envelope(TranscriptItemAppended(0, transcript.UserMessage("x"), "user", 7))
    table.append([sample.user("a"), pinned])
    assert table.thread == ThreadRow(table.thread.document, 2, 2, 7)
    table.append([attrs.evolve(sample.delta("x"), seq=12)])
    assert (table.thread.last_seq, table.thread.last_item_seq) == (2, 12)


def test_a_document_says_if_seqs_do_not_rise():
    sample = Sample("t")
    table = Table(sample.metadata())
    first, second = sample.user("a"), sample.user("b")
    table.append([second, sample.usage("a", 1, 1, 1, 2), sample.delta("x"), sample.user("c")])
    assert read_document("t", table.thread.document).is_ordered
    table.append([first])
    table.append([sample.user("d")])
    assert not read_document("t", table.thread.document).is_ordered


def test_a_document_keeps_the_keys_of_other_versions():
    sample = Sample("t")
    table = Table(sample.metadata(title="Old"))
    value = json.loads(table.thread.document)
    table.thread = attrs.evolve(table.thread, document=json.dumps({**value, "newer": {"z": 1, "a": [2]}}))
    table.append([sample.envelope(ThreadMetadataChanged(title="New"), None)])
    value = json.loads(table.thread.document)
    assert value["newer"] == {"z": 1, "a": [2]}
    assert value["title"] == "New"


def test_counts_of_tiers_that_can_not_be_read_are_done_without():
    sample = Sample("t")
    table = Table(sample.metadata(usage=TokenUsage(1, 1, 2)))
    value = json.loads(table.thread.document)
    table.thread = attrs.evolve(table.thread, document=json.dumps({**value, "usage_tiers": 3}))
    table.append([usage_record(sample, "a", 1, 2, None, None)])
    assert read_document("t", table.thread.document).metadata.usage == TokenUsage(3, 2, 5)


def test_rows_tell_kind_and_turn_of_each_record():
    sample = Sample("t")
    state = sample.state("k", 1)
    rows = encode_rows(
        [
            sample.user("a", "u"),
            sample.delta("b", "u"),
            state,
            attrs.evolve(state, scope=TurnScope("t", "u")),
            OpaqueRecord("newer", {"type": "newer", "event_id": "n"}),
            attrs.evolve(sample.user("c", "\ud800"), event_id="x\udfff"),
        ]
    )
    assert isinstance(state.scope, ThreadScope)
    assert [(row.kind, row.turn_id) for row in rows] == [
        ("turn.item_appended", "u"),
        ("item_event", "u"),
        ("extension_state", None),
        ("extension_state", "u"),
        ("newer", None),
        ("turn.item_appended", "\ufffd"),
    ]
    assert [row.record_id for row in rows[4:]] == ["n", "x\ufffd"]


def test_a_batch_may_take_64_mib():
    sample = Sample("t")
    big = sample.user("x" * 33 * 1024 * 1024)
    with pytest.raises(InvalidRecord, match="67108864"):
        encode_rows([big, big])


def test_a_key_is_an_id_in_unicode():
    assert is_key("é" * 512)
    assert not any(is_key(bad) for bad in ("", "x" * 513, "a\0", "\ud800", None, 3))


def test_a_creation_comes_back_as_it_was():
    metadata = Sample("t").metadata(title="T", labels={"a": "b"})
    assert decode_creation("t", encode_creation(metadata)) == metadata
    for bad in ("", "[]", "{}", '{"metadata":{}}'):
        with pytest.raises(CorruptRecord):
            decode_creation("t", bad)
    with pytest.raises(CorruptRecord, match="creates 't'"):
        decode_creation("other", encode_creation(metadata))


def test_a_log_with_a_gap_or_without_its_end_is_damaged():
    sample = Sample("t")
    bodies = list(enumerate([row.body for row in encode_rows(sample.texts("a", "b", "c"))], start=1))
    assert len(read_log("t", bodies, 3)) == 3
    assert len(read_log("t", bodies[1:], 3, after=1)) == 2
    assert read_log("t", [], 5, after=5) == []
    for rows, last, position in ((bodies[:2], 3, 3), (bodies[::2], 3, 2), (bodies[1:], 3, 1), (bodies, 2, 4)):
        with pytest.raises(CorruptRecord) as error:
            read_log("t", rows, last)
        assert error.value.position == position


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"thread_id":"other"}'])
def test_a_document_that_can_not_be_read_is_damage(text):
    with pytest.raises(CorruptRecord, match="its metadata"):
        read_document("t", text)


def test_a_document_of_another_thread_is_damage():
    with pytest.raises(CorruptRecord, match="it is of thread 't'"):
        read_document("other", new_document(Sample("t").metadata()))


def test_a_page_of_events_tells_where_the_next_one_may_begin():
    sample = Sample("t")
    log = [sample.user("1"), sample.delta("x"), sample.usage("a", 1, 1, 1, 2), sample.user("2"), sample.user("3")]
    bodies = list(enumerate([row.body for row in encode_rows(log)], start=1))
    page = events_after("t", bodies, 0, 2)
    assert ([e.seq for e in page.events], page.position, page.seq) == ([1, 2], 4, 2)
    page = events_after("t", bodies[page.position :], 2, 2)
    assert ([e.seq for e in page.events], page.position, page.seq) == ([3], 5, 3)
    page = events_after("t", [], 3, 2)
    assert (page.events, page.position, page.seq) == ((), 0, 3)


def test_a_page_of_events_in_no_order_promises_nothing_of_the_next():
    sample = Sample("t")
    log = [sample.user("a"), sample.user("b")][::-1]
    page = events_after("t", list(enumerate([row.body for row in encode_rows(log)], start=1)), 0, 9)
    assert ([e.seq for e in page.events], page.seq) == ([2, 1], None)


@pytest.mark.parametrize("body", ["", "[]", '{"type":"event","seq":1}'])
def test_an_event_that_can_not_be_read_names_its_position(body):
    with pytest.raises(CorruptRecord) as error:
        events_after("t", [(7, body)], 0, 9)
    assert error.value.position == 7


def test_a_page_names_what_can_not_be_read_and_the_cursor_goes_on_from_its_last_row():
    rows = [(name, START, new_document(Sample(name).metadata())) for name in "dcb"]
    rows[1] = ("c", START, "{}")
    query = page_query("sql", limit=2, cursor=None, label=("k", "v"))
    assert query.rows == 3
    page = page_of(query, rows)
    assert [metadata.thread_id for metadata in page.threads] == ["d"]
    assert page.damaged == ("c",)
    assert page_query("sql", limit=2, cursor=page.next_cursor, label=("k", "v")).before == (START, "c")
    assert page_of(query, rows[:2]).next_cursor is None
    for other in ({"label": ("k", "w")}, {"archived": True}):
        with pytest.raises(InvalidCursor):
            page_query("sql", limit=2, cursor=page.next_cursor, **other)
    with pytest.raises(ValueError, match="limit"):
        page_query("sql", limit=0, cursor=None)
