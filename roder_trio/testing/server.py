"""An HTTP server on loopback that answers as a script says, for tests of engines.

One reply is used up by each request, in order. A reply's steps are bytes to send, or things to do instead.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import orjson
import trio

_STREAM = {"Content-Type": "text/event-stream"}


@attrs.frozen
class Stall:
    """Send nothing for a while; `seconds` infinite: until the peer hangs up."""

    seconds: float = float("inf")


@attrs.frozen
class Reset:
    """Break the connection off."""


Step = bytes | Stall | Reset | trio.Event


@attrs.frozen(kw_only=True)
class Reply:
    """One scripted answer. `split` cuts each piece of bytes into pieces of that many; None leaves it.

    The body is sent in chunks. With `keep_open` its end is never sent; with `close` the connection is closed after it.
    `status` None sends nothing but the steps, as raw bytes.
    """

    status: int | None = 200
    headers: Mapping[str, str] = attrs.field(factory=lambda: _STREAM)
    steps: Sequence[Step] = ()
    split: int | None = None
    keep_open: bool = False
    close: bool = False

    @classmethod
    def sse(cls, *frames: Any, **options: Any) -> "Reply":
        """Return a reply of one `data` event a frame; a str is sent as it is, everything else as JSON."""
        texts = (frame if isinstance(frame, str) else orjson.dumps(frame).decode() for frame in frames)
        return cls(steps=[f"data: {text}\n\n".encode() for text in texts], **options)


@attrs.frozen
class Received:
    """One request as it came; `connection` numbers the connection it came over."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)


class FakeProviderServer:
    """The server. `requests`, `connections` and `hang_ups` tell what happened so far."""

    def __init__(self, replies: Iterable[Reply] = ()) -> None:
        self.replies = list(replies)
        self.requests: list[Received] = []
        self.connections = 0
        self.hang_ups = 0
        """Connections that the peer closed before an answer was finished."""
        self.port = 0
        self._changed = trio.Event()

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator["FakeProviderServer"]:
        """Serve while the block runs."""
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, self._serve, 0, host="127.0.0.1"))
            self.port = listeners[0].socket.getsockname()[1]
            yield self
            nursery.cancel_scope.cancel()

    async def wait_hang_ups(self, count: int = 1) -> None:
        """Wait until the peer hung up on `count` answers."""
        await self._wait(lambda: self.hang_ups >= count)

    async def wait_requests(self, count: int = 1) -> None:
        """Wait until `count` requests came."""
        await self._wait(lambda: len(self.requests) >= count)

    async def _wait(self, condition: Any) -> None:
        await trio.lowlevel.checkpoint()
        while not condition():
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        number = self.connections
        await trio.lowlevel.checkpoint()
        buffer = bytearray()
        try:
            while (request := await _receive(stream, buffer, number)) is not None:
                self.requests.append(request)
                self._tell()
                reply = self.replies.pop(0) if self.replies else Reply(status=500, headers={})
                if not await self._answer(stream, reply):
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._hung_up()

    def _hung_up(self) -> None:
        self.hang_ups += 1
        self._tell()

    async def _answer(self, stream: trio.SocketStream, reply: Reply) -> bool:
        """Send one reply; return whether the connection can be used again."""
        await trio.lowlevel.checkpoint()
        if reply.status is not None:
            lines = [f"HTTP/1.1 {reply.status} Reply", *(f"{name}: {value}" for name, value in reply.headers.items())]
            await stream.send_all(("\r\n".join([*lines, "Transfer-Encoding: chunked"]) + "\r\n\r\n").encode())
        for step in reply.steps:
            if not await self._step(stream, step, reply):
                return False
        if reply.keep_open:
            await self._step(stream, Stall(), reply)
            return False
        if reply.status is not None:
            await stream.send_all(b"0\r\n\r\n")
        return not (reply.close or reply.status is None)

    async def _step(self, stream: trio.SocketStream, step: Step, reply: Reply) -> bool:
        await trio.lowlevel.checkpoint()
        match step:
            case bytes():
                size = reply.split or max(len(step), 1)
                for start in range(0, len(step), size):
                    piece = step[start : start + size]
                    head = b"" if reply.status is None else f"{len(piece):x}\r\n".encode()
                    await stream.send_all(head + piece + (head and b"\r\n"))
            case trio.Event():
                await step.wait()
            case Stall():
                with trio.move_on_after(step.seconds):
                    if not await stream.receive_some():
                        self._hung_up()
                        return False
            case Reset():
                # a linger of 0 seconds makes the close a reset
                stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return False
        return True


async def _receive(stream: trio.SocketStream, buffer: bytearray, number: int) -> Received | None:
    """Return the next request; None if the peer closed before it had sent a whole one."""
    await trio.lowlevel.checkpoint()
    while b"\r\n\r\n" not in buffer:
        if not (data := await _more(stream)):
            return None
        buffer += data
    head, _, rest = bytes(buffer).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", "0"))
    body = bytearray(rest)
    while len(body) < length:
        if not (data := await _more(stream)):
            return None
        body += data
    buffer[:] = body[length:]
    method, path, _ = first.split(" ", 2)
    return Received(method, path, headers, bytes(body[:length]), number)


async def _more(stream: trio.SocketStream) -> bytes:
    """Return the next bytes; none if the peer closed, in whatever way."""
    try:
        return await stream.receive_some()
    except trio.BrokenResourceError:
        return b""  # noqa: ASYNC910 - what failed was a checkpoint
