"""A model server on this machine is found, and nothing else is taken for one."""

import json

import pytest
import trio
from trio.testing import MockClock

from roder_trio.cli import discovery
from roder_trio.cli.discovery import FoundServer, LocalServer, find_local_server, first_model
from tests.loopback import HANG, deaf_port, serving

MODELS = json.dumps({"object": "list", "data": [{"id": "first"}, {"id": "second"}]}).encode()
FOUND = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + MODELS


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough for any machine."""
    monkeypatch.setattr(discovery, "PATIENCE", 60)


@pytest.mark.usefixtures("patience")
async def test_a_server_that_lists_models_is_found_with_its_first_one() -> None:
    async with serving([FOUND]) as server:
        found = await find_local_server([LocalServer("ollama", server.port)])
    assert found == FoundServer("ollama", server.base_url, "first")
    assert server.requests[0].startswith(b"GET /v1/models HTTP/1.0\r\n")


@pytest.mark.usefixtures("patience")
async def test_an_answer_in_pieces_from_a_server_that_does_not_hang_up_is_understood() -> None:
    async with serving([*(FOUND[at : at + 20] for at in range(0, len(FOUND), 20)), HANG]) as server:
        found = await find_local_server([LocalServer("vllm", server.port)])
    assert found is not None


@pytest.mark.usefixtures("patience")
async def test_the_order_of_the_servers_decides_not_their_speed() -> None:
    async with serving([FOUND]) as one, serving([FOUND]) as two:
        found = await find_local_server([LocalServer("b", two.port), LocalServer("a", one.port)])
    assert found is not None
    assert found.provider == "b"


async def test_nobody_is_found_where_nobody_listens() -> None:
    with deaf_port() as port:
        assert await find_local_server([LocalServer("ollama", port)]) is None


async def test_a_silent_server_costs_no_more_than_the_patience_for_all(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    understood = trio.Event()
    found: list[FoundServer | None] = []

    def understand(answer: bytes) -> str | None:
        model = first_model(answer)
        if model is not None:
            understood.set()
        return model

    async def find(*servers: LocalServer) -> None:
        found.append(await find_local_server(servers))

    monkeypatch.setattr(discovery, "first_model", understand)
    async with serving([HANG]) as silent, serving([FOUND]) as server, trio.open_nursery() as nursery:
        nursery.start_soon(find, LocalServer("silent", silent.port), LocalServer("ollama", server.port))
        await understood.wait()
        mock_clock.jump(discovery.PATIENCE)
    assert found == [FoundServer("ollama", server.base_url, "first")]


@pytest.mark.usefixtures("patience")
async def test_an_endless_answer_is_given_up() -> None:
    async with serving([b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 1_000_000, HANG]) as server:
        assert await find_local_server([LocalServer("ollama", server.port)]) is None


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
