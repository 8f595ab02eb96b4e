"""Arguments of calls on every wire: what JSON can say comes and goes exact, what nests too deep does no harm."""

import json

import pytest

from roder_trio.providers._dialect import encode_json
from roder_trio.schema.inference import InferenceRequest, ModelChoice
from roder_trio.schema.transcript import ToolCall, ToolResult, UserMessage
from tests import anthropic_support as anthropic
from tests import chat, gemini, responses
from tests.dialects import DIALECTS, Dialect

LONG = 123456789012345678901234567890
SURROGATE = "\ud800"
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.name for dialect in DIALECTS])


def body_of(dialect: Dialect, arguments: str) -> str:
    engine = dialect.engine("http://localhost", api_key="k")
    items = (UserMessage("hi"), ToolCall("c", "add", arguments), ToolResult("c", "add", "3"))
    wanted = InferenceRequest(model=ModelChoice(engine.id, "m"), transcript=items)
    return encode_json(engine._post(wanted, engine.profile).body).decode()


@every_dialect
def test_an_integer_of_any_size_is_sent_as_it_is(dialect: Dialect) -> None:
    assert str(LONG) in body_of(dialect, f'{{"n":{LONG}}}')


@every_dialect
@pytest.mark.parametrize("depth", [201, 1100])
def test_arguments_that_nest_too_deep_are_sent_as_text(dialect: Dialect, depth: int) -> None:
    body = body_of(dialect, '{"a":' * depth + "1" + "}" * depth)
    dialect.check(json.loads(body))
    assert "_raw" in body


@pytest.mark.parametrize("more", [{}, {"half": SURROGATE}])
def test_an_integer_of_any_size_is_read_as_it_is(more: dict[str, str]) -> None:
    given = {"n": LONG, **more}
    output = responses.call("fc_1", "c", "f", given)  # type: ignore[arg-type]
    streams = [
        chat.events_of(chat.calls(chat.fragment(0, "c", "f", given), finish="tool_calls"), "[DONE]"),
        responses.events_of(responses.ended(output)),
        gemini.events_of(gemini.chunk(gemini.call("f", given), finish="STOP")),
        anthropic.events_of(
            anthropic.opened(0, "tool_use", id="c", name="f", input=given),
            anthropic.closed(0),
            anthropic.stopped("tool_use"),
            anthropic.OVER,
        ),
    ]
    for events in streams:
        [(_, _, arguments)] = chat.completed_calls(events)
        assert json.loads(arguments) == {"n": LONG, **dict.fromkeys(more, "\ufffd")}
