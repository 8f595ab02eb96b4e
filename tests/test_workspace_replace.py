"""One replacement in a text: found as it is or with white space compared loosely, and never more than once."""

import time

import hypothesis
import pytest
from hypothesis import strategies as st

from roder_trio.errors import ToolError
from roder_trio.tools.workspace.replace import replaced


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        ("a b", "a b", "c", "c"),
        ("if x:\n\treturn  1\n", "if x:\n    return 1", "pass", "pass\n"),
        ("\tfoo( a )\n", "    foo( a )", "    bar()", "\tfoo( a )\n".replace("foo( a )", "bar()")),
        ("x\n  foo   bar\n  baz\n", "foo bar\n", "", "x\n    baz\n"),
        ("x\n  foo   bar  \n  baz\n", "foo bar\n", "", "x\n    \n  baz\n"),
        ("  foo   bar", "  foo bar", "  new", "  new"),
        ("a\r\nb\nc\n", "b\nc", "x\ny", "a\r\nx\ny\n"),
        ("a\nb\n", "a\r\nb", "x\r\ny", "x\ny\n"),
        ("a", "a", "x\ny", "x\ny"),
    ],
)
def test_a_piece_is_found_as_it_is_or_with_white_space_compared_loosely(
    text: str, old: str, new: str, expected: str
) -> None:
    assert replaced(text, old, new) == expected


@pytest.mark.parametrize(
    ("text", "old", "count"),
    [
        ("a", "b", "0 times"),
        ("a", "  ", "0 times"),
        ("aaa", "aa", "2 times"),
        ("a  b a   b", "a b", "2 times"),
        ("foobar", "foo bar", "0 times"),
        ("x a b", "a  b ", "0 times"),
        ("a" * 2_000, "a", "1000 times or more"),
        ("a\tb", "", "empty"),
    ],
)
def test_a_piece_that_is_not_found_once_is_refused_with_the_count(text: str, old: str, count: str) -> None:
    with pytest.raises(ToolError, match=count):
        replaced(text, old, "new")


def test_a_loose_search_of_a_large_piece_in_a_large_text_takes_no_long_time() -> None:
    started = time.process_time()
    with pytest.raises(ToolError, match="0 times"):
        replaced("a  " * 1_000_000, "a " * 100_000 + "b", "")
    assert time.process_time() - started < 5


WORDS = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=5)
OTHERS = st.lists(st.sampled_from(["x", "xy"]), max_size=4)
SPACE = st.sampled_from([" ", "  ", "\n", "\t \n"])


@hypothesis.given(st.data(), OTHERS, WORDS, OTHERS)
def test_a_loose_piece_is_replaced_where_its_words_stand(
    data: st.DataObject, before: list[str], words: list[str], after: list[str]
) -> None:
    def spaced(some: list[str]) -> str:
        return "".join(word + data.draw(SPACE) for word in some)

    head, piece, tail = spaced(before), spaced(words), spaced(after)
    old = spaced(words).strip()
    expected = head + "new" + piece[len(piece.rstrip()) :] + tail
    assert replaced(head + piece + tail, old, "new") == expected


TEXT = st.text("ab \n", max_size=9)


@hypothesis.given(TEXT, st.text("ab \n", min_size=1, max_size=5), TEXT, st.text("xy\n", max_size=4))
def test_an_exact_piece_is_replaced_and_nothing_else_is_touched(head: str, old: str, tail: str, new: str) -> None:
    text = head + old + tail
    if sum(text.startswith(old, at) for at in range(len(text))) == 1:
        assert replaced(text, old, new) == head + new + tail
    else:
        with pytest.raises(ToolError, match="times, not once"):
            replaced(text, old, new)
