"""The four dialects beside each other: engines, scripted answers, and what a well-formed request of each is."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from roder_trio import providers
from roder_trio.providers._engine import HttpEngine
from tests import anthropic_support as anthropic
from tests import chat, gemini, responses

TEXT_TOKENS = (30, 3)
CALL_TOKENS = (20, 9)
ARGUMENTS = '{"a":1,"b":2}'

Frames = list[Any]


@attrs.frozen(kw_only=True)
class Dialect:
    """One dialect: how its engine is made, what a server that speaks it sends, and what it must be sent."""

    name: str
    engine_class: type[HttpEngine[Any]]
    base: str
    """What follows the server's address in a base URL."""
    path: str
    """What the path of a sampling request ends with."""
    key_header: str
    text: Callable[[str], Frames]
    """An answer that is one text."""
    step: Callable[[str], Frames]
    """An answer with reasoning, text and a call of `add`, under the id given where the wire has ids."""
    error: Callable[[int, str, str], Any]
    """The body of a refusal: status, code, message."""
    told: Callable[[Any], Any]
    """The frame that tells of an error inside a stream, from the body of a refusal."""
    check: Callable[[Any], None]
    """Asserts that a request's body is well formed."""

    @property
    def marker(self) -> str:
        """What the hidden part of this dialect's reasoning holds: no other one may ever get it."""
        return f"{self.name}-only"

    def engine(self, url: str, **options: Any) -> HttpEngine[Any]:
        options = {"default_model": "m", "base_url": f"{url}{self.base}", **options}
        return self.engine_class(f"my-{self.name}", **options)

    def begun(self, text: str) -> Frames:
        """Return the frames of an answer up to its text."""
        frames = self.text(text)
        return frames[: 1 + next(place for place, frame in enumerate(frames) if text in strings(frame))]

    def sse(self, frames: Frames) -> bytes:
        return anthropic.sse(*frames) if self.name == "anthropic" else chat.sse(*frames)


# -- Chat Completions


def _chat_text(text: str) -> Frames:
    prompt, completion = TEXT_TOKENS
    return [chat.chunk(content=text), chat.chunk("stop"), chat.usage(prompt, completion), "[DONE]"]


def _chat_step(id: str) -> Frames:
    details = [{"type": "reasoning.encrypted", "data": "chat_completions-only"}]
    return [
        chat.chunk(reasoning="thinking", reasoning_details=details),
        chat.chunk(content="Let me add."),
        chat.calls(chat.fragment(0, id, "add", ARGUMENTS)),
        chat.chunk("tool_calls"),
        chat.usage(*CALL_TOKENS),
        "[DONE]",
    ]


def _check_chat(body: Any) -> None:
    waiting: list[str] = []
    seen: set[str] = set()
    for message in body["messages"]:
        role, calls = message["role"], message.get("tool_calls", ())
        if role == "tool":
            assert message["tool_call_id"] == waiting.pop(0), "results follow their calls at once, in order"
            continue
        assert not waiting, "a call has no result"
        assert role in ("system", "user", "assistant")
        assert message["content"] or calls
        for call in calls:
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert call["id"] not in seen
            seen.add(call["id"])
            waiting.append(call["id"])
    assert not waiting, "a call has no result"


# -- Responses


def _responses_text(text: str) -> Frames:
    item = responses.message(text)
    counts = responses.usage(*TEXT_TOKENS, sum(TEXT_TOKENS))
    begun = [responses.added(responses.message()), responses.text(text)]
    return [*begun, responses.done(item), responses.ended(item, usage=counts)]


def _responses_step(id: str) -> Frames:
    output = [
        responses.reasoning("thinking", encrypted_content="openai_responses-only"),
        responses.message("Let me add."),
        responses.call("fc_1", id, "add", ARGUMENTS),
    ]
    items = [frame for place, item in enumerate(output) for frame in (responses.added(item, place),)]
    dones = [responses.done(item, place) for place, item in enumerate(output)]
    return [*items, *dones, responses.ended(*output, usage=responses.usage(*CALL_TOKENS, sum(CALL_TOKENS)))]


def _check_responses(body: Any) -> None:
    called: list[str] = []
    answered: list[str] = []
    for item in body["input"]:
        match item["type"]:
            case "message":
                assert item["role"] in ("user", "assistant", "developer")
                assert item["content"]
            case "function_call":
                assert isinstance(json.loads(item["arguments"]), dict)
                called.append(item["call_id"])
            case "function_call_output":
                assert item["call_id"] in called
                answered.append(item["call_id"])
            case kind:
                assert kind in ("reasoning", "compaction")
                assert item["encrypted_content"]
    assert sorted(called) == sorted(answered)
    assert len(set(called)) == len(called)


# -- Anthropic


def _anthropic_text(text: str) -> Frames:
    prompt, completion = TEXT_TOKENS
    begun = anthropic.began({"input_tokens": prompt, "output_tokens": 1})
    return [begun, *anthropic.text(0, text), anthropic.stopped("end_turn", {"output_tokens": completion}), _OVER]


def _anthropic_step(id: str) -> Frames:
    prompt, completion = CALL_TOKENS
    return [
        anthropic.began({"input_tokens": prompt, "output_tokens": 1}),
        anthropic.opened(0, "thinking", thinking="", signature=""),
        anthropic.piece(0, "thinking", thinking="thinking"),
        anthropic.piece(0, "signature", signature="anthropic-only"),
        anthropic.closed(0),
        *anthropic.text(1, "Let me add."),
        *anthropic.call(2, id, "add", ARGUMENTS),
        anthropic.stopped("tool_use", {"output_tokens": completion}),
        _OVER,
    ]


_OVER = anthropic.OVER


def _check_anthropic(body: Any) -> None:
    messages = body["messages"]
    # what stands for all that came before is the one thing that an assistant may begin with
    compacted = messages[0]["content"][0]["type"] == "compaction"
    roles = _alternating(*("assistant", "user") if compacted else ("user", "assistant"), length=len(messages))
    assert [message["role"] for message in messages] == roles
    assert messages[-1]["role"] == "user"
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        blocks = message["content"]
        assert blocks
        answers = [block["tool_use_id"] for block in blocks[: len(waiting)] if block["type"] == "tool_result"]
        assert answers == waiting, "all results of a message come first in the next"
        assert len([block for block in blocks if block["type"] == "tool_result"]) == len(waiting)
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert not seen & set(waiting)
        seen |= set(waiting)
        for block in blocks:
            assert block["type"] in ("text", "thinking", "tool_use", "tool_result", "compaction")
            assert block["type"] != "text" or block["text"].strip()
    assert not waiting
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", id) for id in seen)


# -- Gemini


def _gemini_text(text: str) -> Frames:
    prompt, completion = TEXT_TOKENS
    counts = gemini.counts(prompt, prompt + completion, candidates=completion)
    return [gemini.chunk(text), gemini.chunk(finish="STOP", usage=counts)]


def _gemini_step(id: str) -> Frames:
    prompt, completion = CALL_TOKENS
    counts = gemini.counts(prompt, prompt + completion, candidates=completion)
    call = gemini.call("add", json.loads(ARGUMENTS), thoughtSignature="gemini-only")
    return [gemini.chunk(gemini.thought("thinking")), gemini.chunk("Let me add.", call, finish="STOP", usage=counts)]


def _check_gemini(body: Any) -> None:
    contents = body["contents"]
    assert [content["role"] for content in contents] == _alternating("user", "model", length=len(contents))
    assert contents[-1]["role"] == "user"
    waiting: list[Any] = []
    for content in contents:
        parts = content["parts"]
        assert parts
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        assert [(answer.get("id"), answer["name"]) for answer in answers] == waiting
        assert all("functionResponse" in part for part in parts[: len(waiting)])
        calls = [part for part in parts if "functionCall" in part]
        waiting = [(part["functionCall"].get("id"), part["functionCall"]["name"]) for part in calls]
        assert not calls or calls[0]["thoughtSignature"], "the first call of a step has a signature"
    assert not waiting


# -- all


def _alternating(*roles: str, length: int) -> list[str]:
    return [roles[number % len(roles)] for number in range(length)]


def strings(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value, names included."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)
    elif isinstance(value, str):
        yield value


def _openai_error(status: int, code: str, message: str) -> Any:
    return {"error": {"message": message, "type": code, "code": code}}


def _anthropic_error(status: int, code: str, message: str) -> Any:
    return {"type": "error", "error": {"type": code, "message": message}}


def _gemini_error(status: int, code: str, message: str) -> Any:
    return {"error": {"code": status, "message": message, "status": code}}


CHAT = Dialect(
    name="chat_completions",
    engine_class=providers.ChatCompletions,
    base="/v1",
    path="/chat/completions",
    key_header="authorization",
    text=_chat_text,
    step=_chat_step,
    error=_openai_error,
    told=lambda body: body,
    check=_check_chat,
)
RESPONSES = Dialect(
    name="openai_responses",
    engine_class=providers.OpenAIResponses,
    base="/v1",
    path="/responses",
    key_header="authorization",
    text=_responses_text,
    step=_responses_step,
    error=_openai_error,
    told=lambda body: {"type": "error", **body},
    check=_check_responses,
)
ANTHROPIC = Dialect(
    name="anthropic",
    engine_class=providers.Anthropic,
    base="",
    path="/v1/messages",
    key_header="x-api-key",
    text=_anthropic_text,
    step=_anthropic_step,
    error=_anthropic_error,
    told=lambda body: body,
    check=_check_anthropic,
)
GEMINI = Dialect(
    name="gemini",
    engine_class=providers.Gemini,
    base="",
    path=":streamGenerateContent?alt=sse",
    key_header="x-goog-api-key",
    text=_gemini_text,
    step=_gemini_step,
    error=_gemini_error,
    told=lambda body: body,
    check=_check_gemini,
)
DIALECTS: Sequence[Dialect] = (CHAT, RESPONSES, ANTHROPIC, GEMINI)
