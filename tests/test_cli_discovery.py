"""A model server on this machine is found, and nothing else is taken for one."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from roder_trio.cli.discovery import FoundServer, LocalServer, find_local_server, first_model

MODELS = json.dumps({"object": "list", "data": [{"id": "first"}, {"id": "second"}]}).encode()
FOUND = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + MODELS


@asynccontextmanager
async def serving(answer: bytes, *, hang: bool = False, pieces: int = 1) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server on loopback that gives `answer` to everyone; yields its port and the requests it got."""
    requests: list[bytes] = []

    async def handle(stream: trio.SocketStream) -> None:
        requests.append(await stream.receive_some())
        size = max(1, len(answer) // pieces)
        try:
            for start in range(0, len(answer), size):
                await stream.send_all(answer[start : start + size])
            if hang:
                await trio.sleep_forever()
        except trio.BrokenResourceError:
            return
        finally:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, handle, 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        yield listeners[0].socket.getsockname()[1], requests
        nursery.cancel_scope.cancel()


async def unused_port() -> int:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port: int = listener.socket.getsockname()[1]
        return port


async def test_a_server_that_lists_models_is_found_with_its_first_one() -> None:
    async with serving(FOUND) as (port, requests):
        found = await find_local_server([LocalServer("ollama", port)])
    assert found == FoundServer("ollama", f"http://127.0.0.1:{port}/v1", "first")
    assert requests[0].startswith(b"GET /v1/models HTTP/1.0\r\n")


async def test_an_answer_in_pieces_from_a_server_that_does_not_hang_up_is_understood() -> None:
    async with serving(FOUND, hang=True, pieces=7) as (port, _):
        found = await find_local_server([LocalServer("vllm", port)])
    assert found is not None


async def test_the_order_of_the_servers_decides_not_their_speed() -> None:
    async with serving(FOUND) as (one, _), serving(FOUND) as (two, _):
        found = await find_local_server([LocalServer("b", two), LocalServer("a", one)])
    assert found is not None
    assert found.provider == "b"


async def test_nobody_is_found_where_nobody_listens() -> None:
    assert await find_local_server([LocalServer("ollama", await unused_port())]) is None


async def test_a_silent_server_costs_no_more_than_the_patience_for_all() -> None:
    async with serving(b"", hang=True) as (silent, _), serving(FOUND) as (port, _):
        started = trio.current_time()
        found = await find_local_server([LocalServer("silent", silent), LocalServer("ollama", port)])
    assert found is not None
    assert found.provider == "ollama"
    assert trio.current_time() - started < 2


async def test_an_endless_answer_is_given_up() -> None:
    async with serving(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 1_000_000, hang=True) as (port, _):
        assert await find_local_server([LocalServer("ollama", port)]) is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage",
        b"HTTP/1.1 404 Not Found\r\n\r\n" + MODELS,
        b"HTTP/1.1 200 OK\r\n\r\n<html>hello {there}</html>",
        b"HTTP/1.1 200 OK\r\n\r\n" + MODELS[:-1],
        b'HTTP/1.1 200 OK\r\n\r\n{"data": []}',
        b'HTTP/1.1 200 OK\r\n\r\n{"data": {"id": "x"}}',
        b'HTTP/1.1 200 OK\r\n\r\n{"data": ["x", {"id": 3}, {"id": ""}]}',
        b"HTTP/1.1 200 OK\r\n\r\n" + b'{"a":' * 100_000 + b"}" * 100_000,
        b"HTTP/1.1 200 OK\r\n\r\n{\xff}",
    ],
)
def test_what_is_no_list_of_models_is_some_other_program(answer: bytes) -> None:
    assert first_model(answer) is None
