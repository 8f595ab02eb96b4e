"""What a schedule of the soak is: the lives of one store one after another, what is done in each, and where it dies.

Rules of the room: pure data and pure choices. A schedule comes from its name alone, so whatever went wrong comes again.
"""

from collections.abc import Iterator
from itertools import count, islice
from random import Random

import attrs

from tests.soak.flows import FAMILIES, FLOWS

APPENDS = ("before", "after")
"""Places around an append as its caller sees it."""
WRITES = ("mid", "cut", "wrote")
"""Places inside a write of the store: nothing of it is final yet, a part of it is out, all of it is."""
PLACES = ("before", *WRITES, "after")
TICK = "tick"
"""A place between two steps of any two tasks."""
MAX_WRITES = 40
MAX_TICKS = 2500
SEEDS_AT_ONCE = 10
"""Random schedules in one task."""
SLOTS = 2
"""Threads of each family."""


@attrs.frozen
class Kill:
    """Where a life dies: at a place, when it is reached for the `number`th time; a cut leaves this share of a write."""

    place: str
    number: int
    share: float = 0.5


NOWHERE = Kill("nowhere", 1)


@attrs.frozen
class Session:
    """One runtime: its family of flows, and which flow runs on which of its threads, all at once."""

    family: str
    work: tuple[tuple[int, str], ...]


@attrs.frozen
class Life:
    """One process: a few sessions, and the place where it dies."""

    sessions: tuple[Session, ...]
    kill: Kill = NOWHERE


@attrs.frozen
class Schedule:
    """Lives on one storage."""

    name: str
    lives: tuple[Life, ...]


def family_of(flow: str) -> str:
    """The family that a flow belongs to."""
    return next(name for name, family in FAMILIES.items() if flow in family.flows)


def swept(flow: str, place: str) -> Iterator[Schedule]:
    """A flow that dies at each number of a place, and then runs to its end; without an end."""
    session = Session(family_of(flow), ((0, flow),))
    for number in count(1):
        # the parts of a write that are cut off change from one to the next
        kill = Kill(place, number, (number * 0.37) % 1.0)
        yield Schedule(f"{flow}/{place}/{number}", (Life((session,), kill), Life((session,))))


def random_schedule(seed: int) -> Schedule:
    """Several lives in a row, with flows and deaths by chance."""
    chance = Random(seed)
    lives = [Life(_sessions(chance), _kill(chance)) for _ in range(chance.randint(2, 4))]
    return Schedule(f"random/{seed}", tuple(lives))


def _sessions(chance: Random) -> tuple[Session, ...]:
    return tuple(_session(chance) for _ in range(chance.randint(1, 2)))


def _session(chance: Random) -> Session:
    family = chance.choice(list(FAMILIES))
    slots = chance.sample(range(SLOTS), chance.randint(1, SLOTS))
    return Session(family, tuple((slot, chance.choice(FAMILIES[family].flows)) for slot in slots))


def _kill(chance: Random) -> Kill:
    place = chance.choice((*PLACES, TICK))
    most = MAX_TICKS if place == TICK else MAX_WRITES
    # early deaths are as likely as late ones: half of those that are left are in the first fifth
    number = 1 + int(most * chance.random() ** 2)
    return Kill(place, number, chance.random())


@attrs.frozen
class Task:
    """Schedules that one worker runs: the sweep of a flow at a place, one schedule of it, or those of some seeds."""

    flow: str = ""
    place: str = ""
    number: int | None = None
    seeds: range = range(0)

    @classmethod
    def named(cls, name: str) -> "Task":
        """The task of a schedule's name, or of a flow and a place."""
        kind, _, rest = name.partition("/")
        if kind == "random":
            return cls(seeds=range(int(rest), int(rest) + 1))
        place, _, number = rest.partition("/")
        if kind not in FLOWS or place not in PLACES:
            raise ValueError(f"{name!r} names no schedule; give random/SEED, FLOW/PLACE or FLOW/PLACE/NUMBER")
        return cls(kind, place, int(number) if number else None)

    def schedules(self) -> Iterator[Schedule]:
        """Its schedules; a sweep has no end of its own."""
        if self.flow:
            first = 0 if self.number is None else self.number - 1
            yield from islice(swept(self.flow, self.place), first, self.number)
        for seed in self.seeds:
            yield random_schedule(seed)

    def ends_with(self, kills: int) -> bool:
        """Whether a schedule with so many deaths was the last: a flow that came to its end has no more appends."""
        return bool(self.flow) and not kills


def tasks_of(seeds: range, *, sweeps: bool = True) -> list[Task]:
    """A whole soak."""
    swept_flows = [Task(flow, place) for flow in FLOWS for place in PLACES] if sweeps else []
    return swept_flows + [
        Task(seeds=seeds[first : first + SEEDS_AT_ONCE]) for first in range(0, len(seeds), SEEDS_AT_ONCE)
    ]
