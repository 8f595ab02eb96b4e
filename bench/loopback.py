"""A server of Chat Completions on the loopback address, in a process of its own: its first delta comes at once.

Run as `python -m bench.loopback`; it prints its base URL, serves, and ends with its standard input.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import trio

from bench.contestant import ANSWER, MODEL


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "one", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _usage() -> bytes:
    usage = {"prompt_tokens": 20, "completion_tokens": 4, "total_tokens": 24}
    body = {"id": "one", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [], "usage": usage}
    return b"data: " + orjson.dumps(body) + b"\n\n"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = _chunk({"role": "assistant", "content": ANSWER})
REST = (_chunk({"content": " More."}), _chunk({}, "stop"), _usage(), b"data: [DONE]\n\n")


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(stream: trio.SocketStream) -> None:
    buffer = b""
    while True:
        while b"\r\n\r\n" not in buffer:
            piece = await stream.receive_some()
            if not piece:
                return
            buffer += piece
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0].split(b":")[1]) if lengths else 0
        while len(buffer) < length:
            buffer += await stream.receive_some()
        buffer = buffer[length:]
        await stream.send_all(HEAD + _framed(FIRST))
        await stream.send_all(b"".join(map(_framed, REST)) + b"0\r\n\r\n")


async def _guarded(stream: trio.SocketStream) -> None:
    try:
        await _serve(stream)
    except trio.BrokenResourceError:
        return


async def main() -> None:
    """Serve until standard input ends."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, _guarded, 0)
        print(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/v1", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


@contextmanager
def serving() -> Iterator[str]:
    """The base URL of a server that runs as long as the block."""
    command = [sys.executable, "-m", "bench.loopback"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


if __name__ == "__main__":
    trio.run(main)
