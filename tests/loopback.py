"""A server on the loopback address that plays a script: what tests of HTTP over real sockets talk to."""

import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import attrs
import trio
import trio.testing

HANG = trio.sleep_forever
"""The part of an answer at which the server says no more and keeps the connection."""


@attrs.define
class Server:
    """A running server with the requests that it got."""

    port: int
    requests: list[bytes]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


async def _read_request(stream: trio.SocketStream) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = await stream.receive_some()
        if not chunk:
            return data
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = (int(lengths[0]) if lengths else 0) - len(body)
    while missing > 0:
        chunk = await stream.receive_some()
        if not chunk:
            break
        data += chunk
        missing -= len(chunk)
    return data


@asynccontextmanager
async def serving(*answers: Sequence[bytes | object]) -> AsyncIterator[Server]:
    """Give `answers[n]` to request n, the last one to all later ones: bytes are sent, at `HANG` nothing more is.

    After an answer the server hangs up.
    """
    requests: list[bytes] = []

    async def handle(stream: trio.SocketStream) -> None:
        try:
            requests.append(await _read_request(stream))
            for part in answers[min(len(requests), len(answers)) - 1]:
                if isinstance(part, bytes):
                    await stream.send_all(part)
                else:
                    await trio.sleep_forever()
        except trio.BrokenResourceError:
            return
        finally:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield Server(listeners[0].socket.getsockname()[1], requests)
        nursery.cancel_scope.cancel()


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port at which nobody listens, nor can begin to while the block runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def wait_tasks(count: int) -> None:
    """Wait until no more than `count` tasks live, and none of them has anything to do."""
    living = count + 1
    while living > count:
        await trio.testing.wait_all_tasks_blocked(0.001)
        living = trio.lowlevel.current_statistics().tasks_living


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def delta(text: str) -> bytes:
    """A frame of Chat Completions with a piece of the answer."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    return _frame({"choices": [choice]})


def ending(prompt: int, completion: int) -> bytes:
    """The last frames of an answer, with its usage."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    stop = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return _frame(stop) + _frame({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"


def call(name: str, arguments: str) -> bytes:
    """The frames of an answer that is one call of a tool, its end included."""
    return calls((name, arguments))


def calls(*wanted: tuple[str, str]) -> bytes:
    """The frames of an answer that is these calls, each a name and its arguments, the end included."""
    parts = [
        {"index": n, "id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(wanted)
    ]
    asked = {"choices": [{"index": 0, "delta": {"tool_calls": parts}}]}
    stop = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return _frame(asked) + _frame(stop) + _frame({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"


def _frame(value: dict[str, object]) -> bytes:
    base = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps(base | value).encode() + b"\n\n"


def refusal(status: str, message: str) -> bytes:
    """A whole answer that refuses a request."""
    body = json.dumps({"error": {"message": message, "type": "x", "code": "x"}}).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
