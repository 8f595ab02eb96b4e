"""Finds a model server on this machine by asking the ports where such servers usually listen.

Only the loopback address is asked, with one plain request for the list of models, all ports at once and within a third
of a second. What answers with anything else than such a list is some other program.
"""

import json
from collections.abc import Sequence

import attrs
import trio

HOST = "127.0.0.1"
PATIENCE = 0.3
"""Seconds for all ports together; a local server answers within milliseconds."""
MAX_ANSWER = 256 * 1024
"""Bytes after which an answer is no list of models."""


@attrs.frozen
class LocalServer:
    """Where a kind of server listens unless told otherwise."""

    provider: str
    port: int

    @property
    def base_url(self) -> str:
        """The root of its OpenAI-compatible methods."""
        return f"http://{HOST}:{self.port}/v1"


LOCAL_SERVERS = (
    LocalServer("ollama", 11434),
    LocalServer("lmstudio", 1234),
    LocalServer("llamacpp", 8080),
    LocalServer("vllm", 8000),
)


@attrs.frozen
class FoundServer:
    """A server that answered, with the first model that it lists."""

    provider: str
    base_url: str
    model: str


async def find_local_server(servers: Sequence[LocalServer] = LOCAL_SERVERS) -> FoundServer | None:
    """Return the first of `servers`, in their order, that lists a model; None if none does in time."""
    models: dict[LocalServer, str] = {}
    with trio.move_on_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(_ask, server, models)
    found = next((server for server in servers if server in models), None)
    if found is None:
        return None  # noqa: ASYNC910 - leaving the nursery was a checkpoint
    return FoundServer(found.provider, found.base_url, models[found])  # noqa: ASYNC910 - as above


async def _ask(server: LocalServer, models: dict[LocalServer, str]) -> None:
    # HTTP/1.0: an answer in one piece, ended by the server's hang-up.
    request = f"GET /v1/models HTTP/1.0\r\nHost: {HOST}:{server.port}\r\nAccept: application/json\r\n\r\n"
    answer = b""
    try:
        async with await trio.open_tcp_stream(HOST, server.port) as stream:
            await stream.send_all(request.encode("ascii"))
            async for chunk in stream:
                answer += chunk
                model = first_model(answer)
                if model is not None:
                    models[server] = model
                    return
                if len(answer) > MAX_ANSWER:
                    return
    except (OSError, trio.BrokenResourceError):
        return  # noqa: ASYNC910 - nobody listens there, or hung up: finding out was a checkpoint


def first_model(answer: bytes) -> str | None:
    """Return the first model's id of a complete HTTP answer with a list of models, else None."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    if status[1:2] != [b"200"]:
        return None
    try:
        listing = json.loads(body[body.find(b"{") : body.rfind(b"}") + 1])
    except (ValueError, RecursionError):
        return None
    rows = listing.get("data") if isinstance(listing, dict) else None
    ids = [row.get("id") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return next((name for name in ids if isinstance(name, str) and name), None)
