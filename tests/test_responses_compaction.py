"""Compaction by a Responses server: at its endpoint, and inside an answer."""

import json

from roder_trio.schema.inference import (
    Completed,
)
from tests.chat import sse, told
from tests.responses import (
    boundary,
    decode_compaction,
    usage,
)

# -- the answer of a compaction


def test_a_compaction_gives_its_usage_its_output_unchanged_and_the_end() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    output = [{"type": "message", "role": "user", "content": [image]}, boundary()]
    answer = {"id": "c1", "object": "response.compaction", "output": output, "usage": usage(30, 10, 40)}
    expected = [
        told(30, 10, 40),
        {
            "dialect": "openai_responses",
            "provider": "acme",
            "base_url": "http://localhost/v1",
            "model": "m",
            "output": output,
            "compacted_input": output,
        },
        Completed(None, "c1"),
    ]
    for body, kind in ((json.dumps(answer).encode(), "application/json"), (sse(answer), "text/event-stream")):
        events, failure = decode_compaction(body, kind)
        assert failure is None
        assert [events[0], events[1].payload, events[2]] == expected
    twice, _ = decode_compaction(sse(answer, answer), "text/event-stream")
    assert len(twice) == 3


def test_a_compaction_may_fail_inside_its_answer() -> None:
    body = json.dumps({"error": {"code": "server_error"}, "usage": usage(1, 0, 1)}).encode()
    events, failure = decode_compaction(body)
    assert (events, failure and failure.kind.name) == ([told(1, 0, 1)], "SERVER_OVERLOADED")
    for said, kind in (("7", "STREAM_INTERRUPTED"), ("{odd", "PROTOCOL")):
        events, failure = decode_compaction(sse(said, said), "text/event-stream")
        assert (events, failure and failure.kind.name) == ([], kind)
