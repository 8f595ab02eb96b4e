"""One schedule from its first life to the last look at what it left, and the counts of that."""

from collections.abc import Mapping
from pathlib import Path

import attrs
import trio

from roder_trio.testing import CrashPoint, Victims
from tests.soak import laws, life
from tests.soak.diary import Account, read_diary
from tests.soak.schedule import Life, Schedule
from tests.soak.storage import Storage


@attrs.frozen
class Counts:
    """What was done and seen. That nothing is doubled or lost is checked, not counted: a violation raises."""

    schedules: int = 0
    lives: int = 0
    kills: int = 0
    threads: int = 0
    """Threads that were read after a death, and at the end."""
    records: int = 0
    """Records in them at the end."""
    restarts: int = 0
    """Turns that were open at a death, each ended once."""

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(mine + more for mine, more in zip(attrs.astuple(self), attrs.astuple(other), strict=True)))

    def __str__(self) -> str:
        return ", ".join(f"{number:,} {name}" for name, number in attrs.asdict(self).items())


class Trial:
    """Runs the lives of one schedule on a new storage; diaries lie in `folder`. Its methods block.

    Raises AssertionError, or what a store or a runtime raises, at the first violation.
    """

    def __init__(self, victims: Victims, storage: Storage, folder: Path) -> None:
        self._victims = victims
        self._storage = storage
        self._folder = folder
        self._accounts: list[Account] = []
        self._threads: dict[str, str] = {}
        self._left: Mapping[str, laws.Left] = {}
        self._cut_off: set[str] = set()
        self._read = 0

    def run(self, schedule: Schedule) -> Counts:
        """Run it and return its counts."""
        kills = sum([self._live(number, one) for number, one in enumerate(schedule.lives)])
        restarts = self._end()
        records = sum(len(found.ids) for found in self._left.values())
        return Counts(1, len(schedule.lives), kills, self._read, records, restarts)

    def _live(self, number: int, one: Life) -> bool:
        """Run one life and look at what it left; True if it died."""
        diary = self._folder / f"{number}.diary"
        point = CrashPoint(one.kill.place, one.kill.number)
        died = self._victims.run(life.run, point, self._storage, one, self._threads, diary)
        account = read_diary(diary)
        self._accounts.append(account)
        self._threads.update(account.threads)
        there = self._storage.bury()
        left = trio.run(laws.read_all, self._storage.reader()) if there else {}
        laws.check_left(self._left, account, set(self._threads.values()), left)
        self._check_strangers(left)
        self._left = left
        self._cut_off |= laws.open_in(left)
        self._read += len(left)
        return died

    def _check_strangers(self, left: Mapping[str, laws.Left]) -> None:
        """A thread that nobody was told of was being made at a death, and holds nothing."""
        strangers = left.keys() - self._threads.values()
        assert not any(left[thread_id].ids for thread_id in strangers)
        assert len(strangers) <= sum(account.creations for account in self._accounts) - len(self._threads)

    def _end(self) -> int:
        if not self._left and not self._storage.bury():
            return 0
        restarts = trio.run(laws.check_end, self._storage.owner(), self._left, self._cut_off)
        healed = trio.run(laws.read_all, self._storage.reader())
        trio.run(laws.check_unchanged, self._storage.owner(), healed)
        assert trio.run(laws.read_all, self._storage.reader()) == healed, "a second start writes nothing"
        laws.check_runs(self._accounts, healed)
        self._left = healed
        self._read += len(healed)
        return restarts
