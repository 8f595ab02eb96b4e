"""Processes that are killed at a chosen point, for the tests of what a store leaves behind.

`check_crashes` tries every point of some appends to a store. For points of your own, such as each write of a file, have
a function of yours call `Crash.reach` there, and run it as a victim until it has no more points:

    def write_all(crash, path):
        for number in range(10):
            crash.reach("write")
            write_one(path, number)

    with open_victims() as victims:
        for number in itertools.count(1):
            if not victims.run(write_all, CrashPoint("write", number), path):
                break
            look_at(path)

Rules of the room: a victim dies as of SIGKILL, with nothing flushed or closed; the kernel lives on, so this is no test
of a loss of power. Targets and their arguments are pickled, so a target is a function of a module. Needs `os.fork`.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import trio

from roder_trio.ports import ThreadStore
from roder_trio.schema.ids import ThreadId
from roder_trio.schema.thread import Record
from roder_trio.testing._check import expect, ids, loaded, told
from roder_trio.testing._sample import Sample
from roder_trio.testing._steps import StepWatch
from roder_trio.testing._victims import Job, encode
from roder_trio.testing.faulty import FaultyStore

MakeStore: TypeAlias = Callable[[str], ThreadStore]

THREAD = "crash"
BATCHES = (("one",), ("two", "three"), ("four",))
VICTIM_SECONDS = 60.0
"""A victim that lives longer hangs."""
ENDED = "the process that victims are forked from has ended; what it printed tells why"


@attrs.frozen
class CrashPoint:
    """Where a victim dies: when it reaches this point for the `number`th time, counted from 1.

    A store around which `Crash.around` was put reaches "before" each append, "in" it at each of its checkpoints, and
    "after" its write before it returns.
    """

    name: str
    number: int = 1


class Crash:
    """What a victim is given: it tells where it has come, and dies at its point."""

    def __init__(self, point: CrashPoint) -> None:
        self._point = point
        self._reached = 0
        self.last_words: Callable[[], None] | None = None
        """Called just before the death, by a test that wants to know what was known then."""

    def reach(self, name: str) -> None:
        """Die here, if this is the point."""
        if name != self._point.name:
            return
        self._reached += 1
        if self._reached == self._point.number:
            if self.last_words is not None:
                self.last_words()
            os.kill(os.getpid(), signal.SIGKILL)
            while True:  # the signal is on its way
                signal.pause()

    def around(self, store: ThreadStore) -> ThreadStore:
        """The same store, that reaches points in its appends."""
        return _Victim(store, self)


class _Victim(FaultyStore):
    def __init__(self, inner: ThreadStore, crash: Crash) -> None:
        super().__init__(inner)
        self._crash = crash

    async def append(self, thread_id: ThreadId, records: Sequence[Record]) -> None:
        self._crash.reach("before")
        watch = StepWatch(lambda _: self._crash.reach("in"), trio.lowlevel.current_task())
        trio.lowlevel.add_instrument(watch)
        try:
            await super().append(thread_id, records)
        finally:
            trio.lowlevel.remove_instrument(watch)
        self._crash.reach("after")


class Victims:
    """Runs functions in processes of their own, forked from one that is kept warm. Its methods block."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._send(sys.path)

    def run(self, target: Callable[..., None], point: CrashPoint, *arguments: Any) -> bool:
        """Run `target(crash, *arguments)`; True if it died at the point, False if it ended.

        A target that bounds the size of its files (RLIMIT_FSIZE, and SIGXFSZ at its default) dies in mid-write.
        Raises AssertionError if it fails, or hangs for 60 seconds.
        """
        if target.__module__ == "__main__":
            raise ValueError("a victim's target must be a function of a module that can be imported")
        self._send(Job(_live, (target, point, arguments), VICTIM_SECONDS))
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(ENDED)
        code = int(line)
        if code not in (0, -signal.SIGKILL, -signal.SIGXFSZ):
            how = f"hung for {VICTIM_SECONDS:g} s" if code == -signal.SIGALRM else f"failed with exit code {code}"
            raise AssertionError(f"the victim at {point} {how}; what it printed tells more")
        return code != 0

    def _send(self, value: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(value))
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise AssertionError(ENDED) from error


def _live(target: Callable[..., None], point: CrashPoint, arguments: tuple[Any, ...]) -> None:
    target(Crash(point), *arguments)


@contextmanager
def open_victims() -> Iterator[Victims]:
    """Keep a process warm that victims are forked from, while the block is open. Blocks."""
    command = [sys.executable, "-m", "roder_trio.testing._victims"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - ours
        assert process.stdin is not None
        try:
            yield Victims(process)
        finally:
            with suppress(BrokenPipeError):  # what an ended process did not take
                process.stdin.close()


# -- the check of a store ----------------------------------------------------------------------------------------------


async def check_crashes(make_store: MakeStore) -> None:
    """Kill a process at every point of some appends to a store, and check what is left each time.

    `make_store(name)` makes a store that isn't open, on storage of its own for each name; it is called in the victims
    too, so it must be a function of a module, or a `functools.partial` of one. Acknowledged appends must be there, the
    one under way whole or absent, metadata in step, a repeat harmless, and the next append possible. Raises one
    AssertionError that lists every point that left something else. Cancelled, it leaves the storage that it made.
    """
    failures: list[str] = []
    with open_victims() as victims:
        for name, more_left in (("before", (0,)), ("in", (0, 1)), ("after", (1,))):
            number, died = 0, True
            while died:
                number += 1
                storage, point = f"{name}-{number}", CrashPoint(name, number)
                died, acknowledged = await trio.to_thread.run_sync(_try, victims, make_store, point, storage)
                counts = [acknowledged + more for more in (more_left if died else (0,))]
                try:
                    await _check_left(make_store(storage), counts)
                except Exception as error:  # whatever a store raises is its failure
                    failures.append(f"- killed {name} the write, {number}: {told(error)}")
    await trio.lowlevel.checkpoint()
    if failures:
        raise AssertionError(f"{len(failures)} crashes left something else:\n" + "\n".join(failures))


def _try(victims: Victims, make_store: MakeStore, point: CrashPoint, storage: str) -> tuple[bool, int]:
    """Whether the victim died, and how many appends had returned by then."""
    with tempfile.TemporaryDirectory() as folder:
        heard = Path(folder, "heard")
        died = victims.run(_append_batches, point, make_store, storage, heard)
        return died, heard.stat().st_size


def _append_batches(crash: Crash, make_store: MakeStore, storage: str, heard: Path) -> None:
    """Make a thread and append to it; each append that returned is a byte in the file `heard`."""
    descriptor = os.open(heard, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def main() -> None:
        store = crash.around(make_store(storage))
        async with store.open():
            sample = Sample(THREAD)
            await store.create_thread(sample.metadata())
            for texts in BATCHES:
                await store.append(THREAD, sample.texts(*texts))
                os.write(descriptor, b".")

    trio.run(main)


async def _check_left(store: ThreadStore, counts: Sequence[int]) -> None:
    """Check that one of these counts of batches is there, and go on from it."""
    sample = Sample(THREAD)
    batches = [sample.texts(*texts) for texts in BATCHES]
    whole = [[record.record_id for batch in batches[:count] for record in batch] for count in range(len(batches) + 1)]
    async with store.open():
        found = await ids(store, THREAD)
        if found not in [whole[count] for count in counts]:
            expect(found, whole[counts[-1]], "the log")
        metadata = (await loaded(store, THREAD)).metadata
        expect(None if metadata is None else metadata.message_count, len(found), "the count of messages")
        expect(await store.load_metadata(THREAD), metadata, "load_metadata")
        start = whole.index(found)
        for batch in batches[max(0, start - 1) :]:
            await store.append(THREAD, batch)
        expect(await ids(store, THREAD), whole[-1], "the log after a repeat and further appends")
