"""A record is read quickly, and read again to tell where it is wrong: both must say the same of every value."""

import copy
from collections.abc import Iterator
from typing import Any

import cattrs
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.codec.converter import converter, quick
from roder_trio.codec.text import REFUSALS
from roder_trio.schema.item import ThreadItemEvent
from roder_trio.schema.thread import ExtensionStateRecord, StoredRecord
from tests.test_codec import EVENTS, as_json, envelope, json_values, of_type

RECORDS = st.one_of(
    *[of_type(cls).map(envelope) for cls in EVENTS], of_type(ThreadItemEvent), of_type(ExtensionStateRecord)
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container inside a value, with each of its keys or indexes."""
    if isinstance(value, dict | list):
        for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from places(part)


def read_by(reader: cattrs.Converter, value: Any) -> Any:
    try:
        return reader.structure(value, StoredRecord)
    except (cattrs.BaseValidationError, *REFUSALS):
        return None


@settings(deadline=None, max_examples=100)
@given(RECORDS, json_values, st.data())
def test_both_readers_agree_on_records_with_a_value_changed_or_left_out(record, other, data):
    value = as_json(record)
    assert read_by(quick, value) == record
    container, key = data.draw(st.sampled_from(list(places(value))))
    if data.draw(st.booleans()):
        container[key] = other
    else:
        del container[key]
    before = copy.deepcopy(value)
    assert read_by(quick, value) == read_by(converter, value)
    assert value == before
