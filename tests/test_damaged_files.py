"""Files that are cut, changed byte by byte, or lack a part: a prefix of whole batches is read, or an error tells it."""

from functools import partial

import pytest

from roder_trio import stores
from tests.soak import damage

pytestmark = pytest.mark.unmeasured


@pytest.fixture
def journal(tmp_path):
    path = damage.make_journal(tmp_path / "store")
    return path, partial(stores.JsonlThreadStore, tmp_path / "store", durability="process")


@pytest.fixture
def log(tmp_path):
    (tmp_path / "store").mkdir()
    path = damage.make_log(tmp_path / "store")
    return path, partial(stores.SqliteThreadStore, tmp_path / "store" / "agent.db", durability="process")


def last_line(whole: bytes) -> int:
    return whole.rindex(b"\n", 0, -1) + 1


def test_a_journal_cut_anywhere_in_its_last_batch_keeps_the_others_and_tells_it(journal):
    whole = journal[0].read_bytes()
    found = damage.check_damages(*journal, damage.cuts(whole, last_line(whole) + 1, step=5))
    assert list(found) == ["prefix, told"]


def test_a_journal_with_a_flipped_bit_is_corrupt_or_keeps_what_is_before_and_tells_it(journal):
    whole = journal[0].read_bytes()
    found = damage.check_damages(*journal, damage.flips(whole, step=23))
    assert set(found) <= {"CorruptRecord", "SchemaTooNew", "prefix, told"}
    assert found["CorruptRecord"] > found["prefix, told"] > 5


def test_a_journal_that_lacks_a_line_is_corrupt(journal):
    whole = journal[0].read_bytes()
    found = damage.check_damages(*journal, damage.without_lines(whole))
    assert found == {"CorruptRecord": len(damage.BATCHES)}


def test_zeros_behind_a_journal_are_set_aside_and_told(journal):
    found = damage.check_damages(*journal, damage.tails(journal[0].read_bytes()))
    assert list(found) == ["prefix, told"]


def test_a_log_of_sqlite_cut_anywhere_holds_whole_batches(log):
    whole = log[0].read_bytes()
    found = damage.check_damages(*log, damage.cuts(whole, step=499))
    assert set(found) <= {"whole", "prefix", "gone"}
    assert found["prefix"] > found["gone"]


def test_a_log_of_sqlite_with_a_flipped_bit_holds_whole_batches(log):
    whole = log[0].read_bytes()
    found = damage.check_damages(*log, damage.flips(whole, step=1999))
    assert set(found) <= {"whole", "prefix", "gone"}


def test_zeros_behind_a_log_of_sqlite_are_passed_over(log):
    found = damage.check_damages(*log, damage.tails(log[0].read_bytes()))
    assert list(found) == ["whole"]
