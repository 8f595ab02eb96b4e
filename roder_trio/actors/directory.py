"""Which threads are in memory: found by id, admitted on demand, evicted when idle, least recently used first."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio

from roder_trio.actors._resident import ResidentThread
from roder_trio.actors._services import Services
from roder_trio.errors import RuntimeClosed
from roder_trio.logic.thread.decide import answer_of_no_thread
from roder_trio.schema.ids import is_valid_id

MAX_LOOKS = 32
"""Threads in use that one admission looks at for one to evict; more would make it dearer the more of them there are."""


class Directory:
    """All resident threads of a runtime."""

    def __init__(self, services: Services, nursery: trio.Nursery) -> None:
        self._services = services
        self._nursery = nursery
        self._limit = services.config.max_resident_threads
        self._threads: OrderedDict[str, ResidentThread] = OrderedDict()
        self._departing: dict[str, ResidentThread] = {}

    def __len__(self) -> int:
        return len(self._threads)

    def __iter__(self) -> Iterator[ResidentThread]:
        """All threads in memory, those that are leaving included."""
        return iter([*self._threads.values(), *self._departing.values()])

    async def ask(self, thread_id: str, payload: Any) -> Any:
        """Send a request to a thread, making it resident, and wait for the answer.

        Cancelling withdraws a request that is still queued; later it abandons the answer only. Raises what the thread
        answers, ActorCrashed if its actor failed with the request in hand, RuntimeClosed.
        """
        if not is_valid_id(thread_id):
            await trio.lowlevel.checkpoint()
            return answer_of_no_thread(str(thread_id), payload)
        thread = await self._resident(thread_id)
        return await thread.mailbox.ask(payload)

    def get(self, thread_id: str) -> ResidentThread | None:
        """Return the thread if it is in memory."""
        return self._threads.get(thread_id)

    def lose(self, thread_id: str) -> None:
        """The store says that another owner may write the thread: it leaves memory at once."""
        thread = self._threads.get(thread_id)
        if thread is not None:
            thread.lose()

    @contextmanager
    def pinned(self, thread: ResidentThread) -> Iterator[None]:
        """Keep a thread in memory."""
        thread.pins += 1
        try:
            yield
        finally:
            thread.pins -= 1

    async def resident(self, thread_id: str) -> ResidentThread:
        """Return the thread, making it resident; it begins to read its log only when asked. Raises RuntimeClosed."""
        await trio.lowlevel.checkpoint()
        return await self._resident(thread_id)

    async def _resident(self, thread_id: str) -> ResidentThread:
        while True:
            if self._services.lifecycle.closed:
                raise RuntimeClosed
            leaving = self._departing.get(thread_id)
            if leaving is not None:
                await leaving.wait_gone()
                self.forget(leaving)
                continue
            thread = self._threads.get(thread_id)
            if thread is not None:
                self._threads.move_to_end(thread_id)
                return thread
            return self._admit(thread_id)

    def _admit(self, thread_id: str) -> ResidentThread:
        thread = ResidentThread(thread_id, self._services, self)
        self._threads[thread_id] = thread
        self._nursery.start_soon(thread.run, name="roder_trio.thread")
        if len(self._threads) > self._limit:
            self._evict_idle(but=thread)
        return thread

    def forget(self, thread: ResidentThread) -> None:
        """A thread has left."""
        if self._departing.get(thread.thread_id) is thread:
            del self._departing[thread.thread_id]

    def _evict_idle(self, but: ResidentThread) -> None:
        """Evict as many as are too many; those found in use count as used just now."""
        looks = 0
        while len(self._threads) > self._limit and looks < min(MAX_LOOKS, len(self._threads)):
            thread = next(iter(self._threads.values()))
            if thread is not but and thread.is_idle:
                thread.evict()
            else:
                self._threads.move_to_end(thread.thread_id)
                looks += 1

    def depart(self, thread: ResidentThread) -> None:
        """A thread takes no more requests; who asks for it waits until it has left."""
        del self._threads[thread.thread_id]
        self._departing[thread.thread_id] = thread

    # -- drain and exit ----------------------------------------------------------------------------------------------

    def interrupt_turns(self, reason: str) -> set[str]:
        """Interrupt every turn that can still be reached, and refuse turns that wait for a slot; return whose turns."""
        interrupted = set()
        for thread in self:
            thread.refuse_waiting_turns()
            job = thread.job
            if job is not None and job.is_turn and job.cancel(reason):
                interrupted.add(job.turn_id)
        return interrupted

    def cancel_compactions(self, reason: str) -> None:
        """Interrupt every manual compaction."""
        for thread in self:
            if thread.job is not None and not thread.job.is_turn:
                thread.job.cancel(reason)

    @property
    def running_turns(self) -> set[str]:
        """The ids of all turns whose job isn't gone."""
        return {thread.job.turn_id for thread in self if thread.job is not None and thread.job.is_turn}

    @property
    def is_quiet(self) -> bool:
        """Whether no thread has a job or an unanswered request."""
        return all(thread.job is None and not thread.mailbox.unanswered for thread in self)

    async def close(self) -> None:
        """Make all threads leave memory, and wait until they have. Cancelled, they leave all the same."""
        for thread in list(self._threads.values()):
            thread.evict()
        for thread in list(self._departing.values()):
            await thread.wait_gone()
        await trio.lowlevel.checkpoint()
