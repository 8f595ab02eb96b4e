"""The diary of a life: what it was about to do and what it was told, written down so that no death can lose it.

Rules of the room: a line is one write of the process, so it is there or, at the very end, torn; it's written before
what it announces and after what it confirms.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from roder_trio.events import UsageRecorded


class Diary:
    """Writes the lines of one life."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._appends = 0

    def write(self, *line: Any) -> None:
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def announce(self, thread_id: str, records: Sequence[Any], billed: int) -> int:
        """Write that an append is about to be handed over, with what its thread's engines have reported.

        Returns its number, under which it is confirmed.
        """
        used = [[event.attempt_id, event.report, event.usage.total_tokens] for event in map(_usage, records) if event]
        ids = [record.record_id for record in records]
        self._appends += 1
        self.write("append", self._appends, thread_id, ids, [record.kind for record in records], used, billed)
        return self._appends


def _usage(record: Any) -> UsageRecorded | None:
    event = getattr(record, "event", None)
    return event if isinstance(event, UsageRecorded) else None


@attrs.define
class Append:
    """One append as the diary knows it."""

    number: int
    thread_id: str
    ids: list[str]
    kinds: list[str]
    used: list[tuple[str, int, int]]
    billed: int
    """What the thread's engines had reported by then."""
    counted: int = 0
    """What of that was known to be stored by then."""
    is_stored: bool = False


@attrs.frozen
class Said:
    """How much of a turn's text had been shown at a time."""

    thread_id: str
    turn_id: str
    length: int
    at: float


@attrs.define
class Account:
    """What the diary of one life says."""

    appends: list[Append] = attrs.field(factory=list)
    said: list[Said] = attrs.field(factory=list)
    threads: dict[str, str] = attrs.field(factory=dict)
    """The threads that were made, by their slots."""
    creations: int = 0
    clock: float = 0.0
    runs: list[str] = attrs.field(factory=list)
    """The calls whose tools ran."""

    def counted(self, thread_id: str) -> int:
        """What the stored records say that the thread's attempts of this life used."""
        return fold_used(append for append in self.appends if append.is_stored and append.thread_id == thread_id)


def fold_used(appends: Iterable[Append]) -> int:
    """The tokens of all attempts: of each, what its highest report says."""
    newest: dict[str, tuple[int, int]] = {}
    for append in appends:
        for attempt_id, report, tokens in append.used:
            newest[attempt_id] = max(newest.get(attempt_id, (0, 0)), (report, tokens))
    return sum(tokens for _, tokens in newest.values())


def read_diary(path: Path) -> Account:
    """What a life wrote down; a life that died at once may have written nothing."""
    account = Account()
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for line in lines:
        _take(account, json.loads(line))
    return account


def _take(account: Account, line: list[Any]) -> None:
    kind, *rest = line
    match kind:
        case "append":
            append = Append(*rest)
            append.counted = account.counted(append.thread_id)
            account.appends.append(append)
        case "stored":
            (number,) = rest
            account.appends[number - 1].is_stored = True
        case "creating":
            account.creations += 1
        case "thread":
            slot, thread_id = rest
            account.threads[slot] = thread_id
        case "said":
            account.said.append(Said(*rest))
        case "clock":
            (account.clock,) = rest
        case "ran":
            account.runs += rest
        case _:
            raise AssertionError(f"an unknown line of a diary: {kind!r}")
