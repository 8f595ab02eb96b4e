"""The calls on one thing, one at a time and in call order, each in a worker thread.

Rules of the room: a call is handed over through a channel without a buffer, so a caller that is cancelled while it
waits was never heard, and one that was heard waits for the outcome. The task that takes the calls lives as long as
there are any. What waits together goes to the worker together.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import trio

from roder_trio.errors import AppendOutcomeUnknown, StorageError


@attrs.define(eq=False)
class Job:
    """One call: `work` is what the lane's worker understands; then `value` or `error` is its outcome."""

    work: Any
    value: Any = None
    error: Exception | None = None
    done: trio.Event = attrs.field(factory=trio.Event)


class Lane:
    """Hands jobs to `perform`, which runs in a worker thread, sets their outcomes, and raises nothing.

    `settled` is called on the event loop after each run, before its callers wake.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        limiter: trio.CapacityLimiter,
        perform: Callable[[Sequence[Job]], None],
        settled: Callable[[], None],
    ) -> None:
        self._nursery = nursery
        self._limiter = limiter
        self._perform = perform
        self._settled = settled
        self._send, self._receive = trio.open_memory_channel[Job](0)
        self.busy = False

    async def call(self, work: Any, bound: float) -> Any:
        """Run a job that changes something and return its value.

        Cancelled while it waits for its turn, nothing happened; from then on it is shielded. Raises StorageError if
        its turn doesn't come within `bound` seconds, AppendOutcomeUnknown if it isn't done within `bound`
        seconds after that, and the job's error.
        """
        job = Job(work)
        self._start()
        with trio.move_on_after(bound) as waiting:
            await self._send.send(job)
        if waiting.cancelled_caught:
            raise StorageError(f"The store was busy for {bound:g} s with the call before; nothing was stored.")
        with trio.move_on_after(bound, shield=True):
            await job.done.wait()
        if not job.done.is_set():
            raise AppendOutcomeUnknown(f"The store did not answer within {bound:g} s; it may still store this.")
        return self._outcome(job)

    async def ask(self, work: Any) -> Any:
        """Run a job that only reads and return its value. Raises the job's error.

        Cancelled, the answer is abandoned.
        """
        job = Job(work)
        self._start()
        await self._send.send(job)
        await job.done.wait()
        return self._outcome(job)

    @staticmethod
    def _outcome(job: Job) -> Any:
        if job.error is not None:
            raise job.error
        return job.value

    def _start(self) -> None:
        if not self.busy:
            self.busy = True
            self._nursery.start_soon(self._drain)

    async def _drain(self) -> None:  # noqa: ASYNC910 - a task of its own, which ends when nothing waits
        with trio.CancelScope(shield=True):  # noqa: ASYNC912 - what was accepted is finished
            while jobs := self._waiting():
                await trio.to_thread.run_sync(self._perform, jobs, limiter=self._limiter)
                self._settled()
                for job in jobs:
                    job.done.set()
                    # the next caller wakes a tick later, so that they return in call order
                    await trio.lowlevel.checkpoint()
            self.busy = False

    def _waiting(self) -> list[Job]:
        jobs: list[Job] = []
        while True:
            try:
                jobs.append(self._receive.receive_nowait())
            except trio.WouldBlock:
                return jobs


def run_call(work: Callable[[], Any], job: Job) -> None:
    """Run one call in a worker and set its outcome; whatever it raises is a `StorageError` to who waits."""
    try:
        job.value = work()
    except StorageError as error:
        job.error = error
    except Exception as error:  # a bug must not hang those that wait
        job.error = StorageError(f"The store failed: {error!r}.")
        job.error.__cause__ = error
