"""The pure parts of the journal store: names of files, and the form of a journal."""

import json
import re
import unicodedata
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.errors import SchemaTooNew
from roder_trio.schema.ids import is_valid_id
from roder_trio.stores._frame import Damage, encode_batch, encode_header, read_journal
from roder_trio.stores.jsonl.names import file_name, thread_id_of

HEADER = encode_header("t")
CREATION = encode_batch(1, [b'{"type":"thread","metadata":{}}'])
ids = st.text(min_size=1, max_size=512).filter(is_valid_id)


# -- names


@pytest.mark.parametrize("plain", ["a", "0", "thread-1", "a_b", "5c1d0000-0000-4000-8000-000000000000", "a" * 100])
def test_a_plain_id_is_its_own_file_name(plain):
    assert file_name(plain) == plain


@pytest.mark.parametrize(
    "odd",
    [
        "A",
        "CON",
        "con",
        "nul",
        "com1",
        "lpt9",
        "../../x",
        "/abs",
        "a/b",
        ".",
        "..",
        "-a",
        "_a",
        "a.b",
        "a" * 101,
        "é",
        "~a",
    ],
)
def test_any_other_id_gets_a_safe_name(odd):
    assert re.fullmatch(r"~[a-z2-7]{1,99}|~~[0-9a-f]{64}", file_name(odd))


def test_ids_that_differ_in_case_or_accents_get_different_names():
    names = ["A", "a", "CON", "con", *(unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))]
    assert len({file_name(name).casefold() for name in names}) == len(names)


@settings(max_examples=300)
@given(ids)
def test_a_name_is_safe_and_tells_its_id_unless_it_is_a_hash(thread_id):
    name = file_name(thread_id)
    assert re.fullmatch(r"[a-z0-9~][a-z0-9_~-]{0,99}", name)
    assert thread_id_of(name) == (None if name.startswith("~~") else thread_id)


@settings(max_examples=200)
@given(st.lists(ids, min_size=2, max_size=8, unique=True))
def test_different_ids_have_different_names(thread_ids):
    assert len({file_name(thread_id) for thread_id in thread_ids}) == len(thread_ids)


@pytest.mark.parametrize("name", ["Foo", "con", "~", "~~ab", "~1", "~me", "~mfrgg===", "a.b", "~AAAA", "~74"])
def test_names_that_no_id_has_tell_none(name):
    assert thread_id_of(name) is None


# -- the form


def test_a_batch_is_one_line_with_number_and_checksum_of_the_array():
    records = [b'{"type":"event","text":"\xc3\xa9"}', b"{}"]
    line = encode_batch(12, records)
    array = b"[%b,%b]" % tuple(records)
    assert line == b'{"batch":12,"crc":"%08x","records":%b}\n' % (zlib.crc32(array), array)
    assert json.loads(line)["records"][0]["text"] == "é"


def test_a_journal_reads_back():
    second = encode_batch(2, [b'{"n":1}', b'{"n":123456789012345678901234567890}'])
    journal = read_journal(HEADER + CREATION + second)
    assert journal.thread_id == "t"
    assert journal.batches[1] == [{"n": 1}, {"n": 123456789012345678901234567890}]
    assert (journal.end, journal.tail) == (len(HEADER + CREATION + second), 0)


@settings(max_examples=100)
@given(st.data())
def test_a_journal_cut_anywhere_keeps_its_whole_batches(data):
    batches = [encode_batch(n, [b'{"n":%d}' % n] * data.draw(st.integers(0, 3))) for n in range(2, 6)]
    whole = HEADER + CREATION + b"".join(batches)
    cut = data.draw(st.integers(len(HEADER + CREATION), len(whole)))
    journal = read_journal(whole[:cut])
    ends = [len(HEADER + CREATION) + sum(map(len, batches[:n])) for n in range(5)]
    assert len(journal.batches) == 1 + max(n for n in range(5) if ends[n] <= cut)
    assert (journal.end, journal.end + journal.tail) == (max(end for end in ends if end <= cut), cut)


@pytest.mark.parametrize(
    "tail",
    [
        b"\0" * 512,
        b"\0" * 512 + b"\n",
        encode_batch(2, [b"{}"])[:-1],
        encode_batch(2, [b"{}"]).replace(b"{}", b"[]"),
        b"nonsense\n",
        b"nonsense\nmore\n",
        b'{"batch":2,"crc":"00000000","records":[]}\n',
        b'{"batch":2,"crc":"%08x","records":[1]}\n' % zlib.crc32(b"[1]"),
        b'{"batch":2,"crc":"%08x","records":[}\n' % zlib.crc32(b"["),
        b"\n",
    ],
)
def test_what_no_whole_batch_follows_is_a_torn_tail(tail):
    journal = read_journal(HEADER + CREATION + tail)
    assert (len(journal.batches), journal.end, journal.tail) == (1, len(HEADER + CREATION), len(tail))


@pytest.mark.parametrize(
    ("inner", "line"),
    [
        (b"nonsense\n", 3),
        (b"\0" * 100, 3),
        (encode_batch(2, [b"{}"])[:20], 3),
        (encode_batch(2, [b"{}"]).replace(b"{}", b"{ }"), 3),
        (b"", 3),
        (encode_batch(2, [b"{}"]) * 2, 4),
    ],
)
def test_what_a_whole_batch_follows_is_damage(inner, line):
    data = HEADER + CREATION + inner + encode_batch(3, [b"{}"])
    with pytest.raises(Damage) as damage:
        read_journal(data)
    assert damage.value.line == line
    assert data[: damage.value.offset].count(b"\n") == line - 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        HEADER,
        HEADER[:-1],
        HEADER + CREATION[:-1],
        b"nonsense\n" + CREATION,
        b"[]\n" + CREATION,
        b'{"format":"other","version":1,"thread_id":"t"}\n' + CREATION,
        b'{"format":"roder_trio.thread","version":"1","thread_id":"t"}\n' + CREATION,
        b'{"format":"roder_trio.thread","version":1}\n' + CREATION,
    ],
)
def test_a_journal_without_header_or_creation_is_damaged(data):
    with pytest.raises(Damage):
        read_journal(data)


def test_a_journal_of_a_later_version_is_refused():
    with pytest.raises(SchemaTooNew, match="version 2"):
        read_journal(b'{"format":"roder_trio.thread","version":2,"thread_id":"t"}\n' + CREATION)
