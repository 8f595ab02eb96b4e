"""No split of a Responses stream changes what it says."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chat import sse
from tests.responses import (
    BEGINS,
    added,
    arguments_done,
    boundary,
    call,
    custom,
    decode,
    done,
    ended,
    grown,
    message,
    reasoning,
    summary,
    text,
    usage,
)

TEXTS = st.sampled_from(["Hi", " ", "\n", "héé", "日本", "\u2028", "😀", '"}'])
ITEMS = st.sampled_from(
    [
        message("said", phase="commentary"),
        reasoning("a", "b"),
        call("fc_1", "call_1", "read", '{"a":"é"}'),
        call("fc_2", "call_1", "read", ""),
        call("fc_3", "call_2", "read"),
        custom("ctc_1", "call_3", "patch", "***"),
        {"type": "web_search_call", "id": "ws_1", "action": {"q": "x"}},
        {"type": "tool_search_output", "id": "o"},
        boundary(),
    ]
)
PLACES = st.integers(0, 2)
FRAMES = st.one_of(
    st.builds(text, TEXTS, st.sampled_from(["m1", "m2", ""])),
    st.builds(summary, TEXTS, PLACES, st.sampled_from(["rs_a", "rs_b"])),
    # a call whose end contradicts its deltas is the one thing that the grammar can't take
    st.builds(grown, st.sampled_from(["fc_3"]), TEXTS),
    st.builds(arguments_done, st.sampled_from(["fc_1", "fc_2"]), st.just('{"a":"é"}')),
    st.builds(added, ITEMS, st.none() | PLACES),
    st.builds(done, ITEMS, st.none() | PLACES),
    st.sampled_from([*BEGINS, {"type": "odd"}, {"error": {"message": "no"}}]),
)
ENDS = st.one_of(
    st.builds(lambda items: ended(*items, usage=usage(3, 2, 5)), st.lists(ITEMS, max_size=4)),
    st.just(ended(state="incomplete", incomplete_details={"reason": "max_output_tokens"})),
    st.just(ended(state="failed", error={"code": "server_error"}, usage=usage(3, 0, 3))),
    st.just("[DONE]"),
)


def outcome(pieces: list[bytes]) -> Any:
    events, failure = decode(pieces)
    return events, failure and (failure.kind, failure.message)


@settings(max_examples=150, deadline=None)
@given(st.lists(FRAMES, max_size=8), ENDS, st.data())
def test_any_split_of_any_stream_gives_equal_events(frames: list[Any], end: Any, data: st.DataObject) -> None:
    raw = sse(*frames, end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert outcome(pieces) == outcome([raw])
