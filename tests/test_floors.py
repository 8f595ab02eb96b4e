"""The package stands on its floors, and its code keeps the rules of structured concurrency."""

import pytest

from tests.floors import (
    Module,
    clock_breaks,
    concurrency_breaks,
    floor_breaks,
    library_breaks,
    parse,
    read_modules,
)
from tests.support import ROOT

MODULES = list(read_modules(ROOT / "roder_trio"))
CHECKS = [floor_breaks, library_breaks, clock_breaks, concurrency_breaks]

BROKEN = [
    ("schema.turn", "from roder_trio.logic import thread"),
    ("errors", "from roder_trio.schema.ids import ThreadId"),
    ("logic.thread.decide", "from roder_trio.ports import ThreadStore"),
    ("logic.thread.decide", "from ...codec import encode"),
    ("codec", "import roder_trio.ports"),
    ("ports", "from roder_trio import codec"),
    ("stores.jsonl", "from roder_trio.providers import offline"),
    ("providers._http", "from roder_trio.stores.memory import MemoryThreadStore"),
    ("providers._http", "from ..stores.memory import MemoryThreadStore"),
    ("stores.memory", "from roder_trio.actors.broadcast import EventBroadcast"),
    ("actors.turn", "from roder_trio.stores.memory import MemoryThreadStore"),
    ("actors.turn", "from roder_trio.providers.offline import Offline"),
    ("actors.thread.loop", "from roder_trio.runtime import Runtime"),
    ("actors.thread.loop", "import roder_trio"),
    ("actors.thread.loop", "from roder_trio import events"),
    ("runtime", "from roder_trio.cli.main import main"),
    ("runtime", "import roder_trio as rt"),
    ("testing.store", "from roder_trio.cli.main import main"),
    ("cellar.wine", "x = 1"),
    ("logic.retry", "import trio"),
    ("logic.retry", "import random"),
    ("logic.retry", "def f():\n    from time import monotonic"),
    ("logic.thread.fold", "from pathlib import Path"),
    ("schema.turn", "import trio"),
    ("stores.jsonl", "import cattrs"),
    ("runtime", "import httpx"),
    ("providers.chat_completions", "from httpx import AsyncClient"),
    ("runtime", "import asyncio"),
    ("actors.turn", "from contextvars import ContextVar"),
    ("logic.retry", "def f():\n    return datetime.now(UTC)"),
    ("logic.retry", "def f(p):\n    return open(p)"),
    ("actors.turn", "async def stream():\n    yield 1"),
    ("actors.turn", "@contextmanager\nasync def stream():\n    if x:\n        yield 1"),
    ("actors.turn", "lock = trio.Lock()"),
    ("actors.turn", "from trio import Event\nx = Semaphore(1)"),
    ("actors.turn", "limiter = trio.CapacityLimiter(1)"),
    ("actors.turn", "async def f(*, timeout=3): pass"),
    ("actors.turn", "trio.lowlevel.spawn_system_task(f)"),
    ("actors.turn", "try:\n    f()\nexcept:\n    raise"),
    ("actors.turn", "try:\n    f()\nexcept BaseException:\n    pass"),
    ("actors.turn", "try:\n    f()\nexcept trio.Cancelled:\n    pass"),
]

SOUND = [
    ("", "from roder_trio.runtime import open_runtime\nfrom roder_trio import events"),
    ("schema.goal", "from roder_trio.schema.ids import UNSET\nfrom roder_trio.errors import StorageError"),
    (
        "logic.thread.decide",
        "from roder_trio.logic import window\nfrom datetime import datetime\nfrom .fold import fold",
    ),
    ("codec", "import cattrs\nfrom roder_trio.logic import item"),
    ("stores.jsonl", "from roder_trio import codec, ports\nfrom roder_trio.stores._records import f"),
    ("stores.jsonl", "limiter = trio.CapacityLimiter(1)"),
    ("providers._http", "import httpx"),
    ("actors.turn", "from roder_trio.logic import turn\nfrom roder_trio.ports import ThreadStore"),
    ("runtime", "from roder_trio.stores.memory import MemoryThreadStore\nfrom roder_trio.actors import directory"),
    (
        "cli.main",
        "import roder_trio as rt\nfrom roder_trio import events, stores\nfrom roder_trio.cli.choice import choose",
    ),
    ("actors.turn", "@asynccontextmanager\nasync def opened():\n    yield 1"),
    ("actors.turn", "async def f():\n    def numbers():\n        yield 1\n    return list(numbers())"),
    ("actors.turn", "try:\n    f()\nexcept BaseException:\n    close()\n    raise"),
    ("actors.turn", "try:\n    f()\nexcept trio.Cancelled:\n    note()\n    raise"),
    ("actors.turn", "try:\n    f()\nexcept BaseExceptionGroup as group:\n    pass"),
]


def breaks(module: Module) -> list[str]:
    """What any of the checks finds in a module."""
    return [found for check in CHECKS for found in check(module)]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name or "roder_trio")
def test_a_module_keeps_to_its_floor_and_to_the_rules_of_concurrency(module: Module) -> None:
    assert breaks(module) == []


@pytest.mark.parametrize(("name", "source"), BROKEN)
def test_a_broken_rule_is_found(name: str, source: str) -> None:
    assert len(breaks(parse(name, source))) >= 1


@pytest.mark.parametrize(("name", "source"), SOUND)
def test_what_the_rules_allow_is_not_reported(name: str, source: str) -> None:
    assert breaks(parse(name, source)) == []


def test_every_module_of_the_package_is_read() -> None:
    names = {module.name for module in MODULES}
    assert {"", "errors", "schema.usage", "ports"} <= names
