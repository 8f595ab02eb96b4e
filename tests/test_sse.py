"""Server-sent events: the same frames however the bytes are cut."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.logic import sse
from roder_trio.logic.sse import Frame, SseDecoder


def read(*pieces: bytes) -> list[Frame]:
    decoder = SseDecoder()
    frames = [frame for piece in pieces for frame in decoder.feed(piece)]
    return frames + decoder.eof()


@pytest.mark.parametrize(
    ("stream", "frames"),
    [
        (b"data: a\n\ndata: b\n\n", [Frame(None, "a"), Frame(None, "b")]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\r\n", [Frame(None, "a"), Frame(None, "b"), Frame(None, "c")]),
        (b"\xef\xbb\xbfdata: a\n\n", [Frame(None, "a")]),
        (b"data: a\n\xef\xbb\xbfdata: b\n\n", [Frame(None, "a")]),
        (b": ping\n\ndata: a\n:data: b\n\n", [Frame(None, "a")]),
        (b"data:a\ndata:  b\ndata\n\n", [Frame(None, "a\n b\n")]),
        (b"event: x\n\ndata: a\n\n", [Frame(None, "a")]),
        (b"event: x\nid: 1\nretry: 5\nother: y\ndata: a\n\ndata: b\n\n", [Frame("x", "a"), Frame(None, "b")]),
        ("data: a\u2028b\u2029c\x85d\x0be\x0cf\n\n".encode(), [Frame(None, "a\u2028b\u2029c\x85d\x0be\x0cf")]),
        (b"data: a\n", [Frame(None, "a", tail=True)]),
        (b"data: a", [Frame(None, "a", tail=True)]),
        (b"data: a\r", [Frame(None, "a", tail=True)]),
        (b"data: a\r\r", [Frame(None, "a")]),
        (b"data:  \n", []),
        (b"event: x", []),
        (b"", []),
    ],
)
def test_a_stream_has_these_frames_whole_and_in_single_bytes(stream: bytes, frames: list[Frame]) -> None:
    assert read(stream) == frames
    assert read(*(bytes([byte]) for byte in stream)) == frames


def test_a_carriage_return_at_the_end_of_a_piece_waits_for_the_next_byte() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\n\r") == []
    assert decoder.feed(b"") == []
    assert decoder.feed(b"\ndata: b\n\n") == [Frame(None, "a"), Frame(None, "b")]


def test_bad_utf8_becomes_replacement_characters_and_is_counted() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: \xff\xef\xbf\xbd\n\n") == [Frame(None, "\ufffd\ufffd")]
    assert decoder.bad_bytes == 1


def test_comments_are_counted_as_signs_of_life() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b": ping\n: ping\n\n") == []
    assert decoder.comments == 2


@pytest.mark.parametrize("cut", [1, 5])
def test_a_line_that_is_too_long_is_a_failure_after_the_frames_before_it(
    cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_BYTES", 20)
    decoder = SseDecoder()
    stream = b"data: a\n\n" + b"data: " + b"x" * 30 + b"\n\ndata: b\n\n"
    frames = [frame for start in range(0, len(stream), cut) for frame in decoder.feed(stream[start : start + cut])]
    assert frames == [Frame(None, "a")]
    assert decoder.failure is not None
    assert decoder.failure.cause == "too_large"
    assert decoder.eof() == []


def test_an_event_of_many_lines_that_is_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_BYTES", 20)
    decoder = SseDecoder()
    decoder.feed(b"data: aaaa\n" * 3)
    assert decoder.failure is not None
    assert decoder.feed(b"\n\ndata: b\n\n") == []


def test_a_long_stream_in_single_bytes_gives_all_its_frames() -> None:
    stream = (b"data: " + b"x" * 1000 + b"\n\n") * 100
    decoder = SseDecoder()
    assert sum(len(decoder.feed(stream[at : at + 1])) for at in range(len(stream))) == 100


_LINES = st.lists(
    st.sampled_from(
        [b"data: x", b"data:", b"data: \xc3\xa4\xf0\x9f\x98\x80", b"event: e", b": c", b"", b"id: 1", b"data: \xff"]
    )
)


@given(_LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=150)
def test_a_stream_cut_anywhere_gives_equal_frames(lines: list[bytes], ending: bytes, cuts: list[int]) -> None:
    stream = b"".join(line + ending for line in lines)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert read(*pieces) == read(stream) == read(*(bytes([byte]) for byte in stream))
