"""Laws of Responses streams: neither a split nor a repetition changes what is told."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from roder_trio.schema.inference import HostedToolCallCompleted, MessageDelta, ReasoningDelta, ToolCallCompleted
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
    events_of,
    frame,
    grown,
    message,
    payload,
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


SPOKEN = (MessageDelta, ReasoningDelta)
COMPLETIONS = (ToolCallCompleted, HostedToolCallCompleted)
WORDS = st.lists(st.sampled_from(["a", "é ", "\n", "日本"]), min_size=1, max_size=3)
SAID = st.lists(st.tuples(st.sampled_from(["message", "reasoning", "call", "custom", "hosted"]), WORDS), max_size=4)
HOW = st.sets(st.sampled_from(["added", "pieces", "repeated", "done"]), min_size=1)


def item_of(place: int, kind: str, words: list[str]) -> dict[str, Any]:
    id = f"i{place}"
    match kind:
        case "message":
            return message("".join(words), id=id)
        case "reasoning":
            return reasoning(*words, id=id)
        case "call":
            return call(id, f"call_{place}", "read", "".join(words))
        case "custom":
            return custom(id, f"call_{place}", "patch", "".join(words))
    return {"type": "web_search_call", "id": id, "action": words}


def frames_for(place: int, kind: str, words: list[str], how: set[str]) -> list[Any]:
    """The frames that tell of an item in these ways."""
    whole, named = item_of(place, kind, words), {"item_id": f"i{place}", "output_index": place}
    names = {"call": "function_call_arguments", "custom": "custom_tool_call_input", "message": "output_text"}
    field = {"call": "arguments", "custom": "input"}.get(kind, "text")
    name, joined = names.get(kind, ""), "".join(words)
    pieces = [frame(f"{name}.delta", **named, delta=word) for word in words]
    repeated = [frame(f"{name}.done", **named, **{field: joined})]
    if kind == "reasoning":
        name = "reasoning_summary_text"
        pieces = [frame(f"{name}.delta", **named, summary_index=n, delta=word) for n, word in enumerate(words)]
        repeated = [frame(f"{name}.done", **named, summary_index=n, text=word) for n, word in enumerate(words)]
    begun = {key: value for key, value in whole.items() if key not in ("content", "arguments", "input", "action")}
    begun |= {"summary": []} if kind == "reasoning" else {}
    return [
        *([added(begun, place)] if "added" in how or kind in ("call", "custom") else []),
        *(pieces if "pieces" in how else []),
        *(repeated if "repeated" in how else []),
        *([done(whole, place)] if "done" in how or kind == "hosted" else []),
    ]


def renamed(item: dict[str, Any]) -> dict[str, Any]:
    """An item under the other id that a server may give it at the end."""
    return item if item["type"] == "web_search_call" else item | {"id": f"new-{item['id']}"}


def told_by(events: list[Any]) -> Any:
    texts = {kind: "".join(event.text for event in events if isinstance(event, kind)) for kind in SPOKEN}
    calls = {
        kind: [(event.id, event.name, event.arguments) for event in events if isinstance(event, kind)]
        for kind in COMPLETIONS
    }
    return texts, calls, events[-1]


@settings(max_examples=150, deadline=None)
@given(SAID, st.lists(HOW, max_size=4), st.booleans())
def test_an_answer_is_told_once_in_whichever_ways_it_comes(
    answer: list[tuple[str, list[str]]], hows: list[set[str]], renames: bool
) -> None:
    output = [item_of(place, *item) for place, item in enumerate(answer)]
    told_ways = zip(answer, hows, strict=False)
    # only an item that began without a word of it could be told out of its order
    frames = [
        part
        for place, (item, how) in enumerate(told_ways)
        for part in frames_for(place, *item, how if how != {"added"} else {"done"})
    ]
    final = [renamed(item) if renames else item for item in output]
    assert told_by(events_of(*frames, ended(*final))) == told_by(events_of(ended(*output)))
    assert payload(events_of(*frames, ended(*final)))["output"] == final
