"""A SQLite store with a bit of its file turned: every read is what it was, or an error; and the sweep sees a lie."""

import pytest

from tests.soak import bitrot


@pytest.mark.parametrize("appends", [False, True])
def test_a_bit_that_turned_in_a_database_changes_nothing_that_is_read_untold(appends):
    found = bitrot.sweep(20 if appends else 150, seed=1, appends=appends)
    assert {"unseen", "CorruptRecord"} <= set(found)
    assert found["unseen"] < 0.9 * found.total()


def test_a_sweep_of_turned_bits_sees_a_record_that_changed(monkeypatch):
    monkeypatch.setattr("roder_trio.stores.sqlite.query.checksum", Anything)
    with pytest.raises(AssertionError, match="changed"):
        bitrot.sweep(200, seed=1, appends=False)


class Anything:
    """A checksum that fits every row."""

    def __init__(self, *_: object) -> None:
        pass

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None
