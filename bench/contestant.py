"""What every framework that is measured can be asked for; each call runs an event loop of its own."""

import abc
import itertools
from pathlib import Path
from typing import ClassVar

from bench.measure import Unable

QUESTION = "What is the answer?"
ANSWER = "A short answer."
MODEL = "bench-model"

_numbers = itertools.count(1)


def new_database(folder: Path) -> Path:
    """A path for a database that no one used before."""
    return folder / f"threads-{next(_numbers)}.db"


class Contestant(abc.ABC):
    """One framework, with one of its stores. A trivial turn is one question, one call of the model, one answer."""

    name: ClassVar[str]
    durability: ClassVar[str] = "none"
    """What a turn that returned survives, with the store of `stored_turns`."""
    interrupt: ClassVar[str] = ""
    """Why an interrupt that keeps text and usage can't be measured; empty if it can."""

    @abc.abstractmethod
    def turns(self, count: int) -> list[float]:
        """Seconds of trivial turns, each on a new thread, without a store or with one in memory."""

    def stored_turns(self, count: int, folder: Path) -> list[float]:
        """Seconds of trivial turns, each on a new thread, with the framework's SQLite store. Raises Unable."""
        raise Unable(f"{self.name} ships no SQLite store")

    def thread(self, turns: int, folder: Path) -> tuple[list[float], int]:
        """Seconds of each trivial turn of one stored thread, and the bytes of the store after them. Raises Unable."""
        raise Unable(f"{self.name} ships no SQLite store")

    @abc.abstractmethod
    def first_deltas(self, base_url: str, count: int) -> list[float]:
        """Seconds from the start of a turn to its first text from a Chat Completions server, without a store."""


def file_bytes(path: Path) -> int:
    """The size of a closed database, with what stands beside it."""
    return sum(one.stat().st_size for one in path.parent.glob(path.name + "*"))
