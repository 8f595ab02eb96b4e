"""Following a thread: its stored events in order, each once, from the store and then as they are committed.

Nothing waits for a follower. One that is too slow forgets what it was given and reads pages of the store again, from
the last seq that it gave. What stands in the log without having been published, after an append whose outcome was
unknown, shows as a gap in the numbers and is read in the same way.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import trio

from roder_trio.actors._reader import Filter, Reader
from roder_trio.actors.broadcast import EventBroadcast
from roder_trio.errors import StorageError, ThreadNotFound
from roder_trio.schema.event import EventEnvelope

PAGE = 500
BUFFER = 1024

LoadEvents: TypeAlias = Callable[[str, int, int], Awaitable[Sequence[EventEnvelope]]]


class Follower(Reader):
    """One reader of a thread's stored events. Iterate over it in one task; a cancelled read loses nothing."""

    ends_with_thread = True

    def __init__(self, thread_id: str, after: int, load_events: LoadEvents) -> None:
        if type(after) is not int or after < 0:
            raise ValueError(f"after must be an integer of at least 0, not {after!r}")
        super().__init__(Filter(thread_id), BUFFER)
        self.thread_id = thread_id
        self._load_events = load_events
        self._read_up_to = after
        """The seq of the last event that was given or stands in `_page`."""
        self._end = after
        """Up to this seq events come from the store; those in the buffer follow it without a gap."""
        self._known = after
        """The last seq that was heard of."""
        self._page: deque[EventEnvelope] = deque()

    def offer(self, envelope: EventEnvelope) -> None:
        """Take an event if it is a stored one of the thread that wasn't heard of before."""
        if self._ended or not self.filter.matches(envelope) or envelope.seq <= self._known:
            return
        if envelope.seq == self._known + 1 and len(self._buffer) < self._limit:
            self._buffer.append(envelope)
            self._known = envelope.seq
            self._notify()
        else:
            self.advance(envelope.seq)

    def advance(self, seq: int) -> None:
        """The log holds events up to `seq`: if that is news, they are read from the store."""
        if seq > self._known:
            self._buffer.clear()
            self._known = self._end = seq
            self._notify()

    async def read_rest(self) -> None:
        """Read all that the store holds for this reader, for soon it can't be read any more. Raises StorageError."""
        while self._is_behind and not self._ended:
            await self._load_page()
        await trio.lowlevel.checkpoint()

    @property
    def _is_behind(self) -> bool:
        return self._read_up_to < self._end

    async def _read(self) -> EventEnvelope:
        """Return the next event. Cancelling loses nothing. Raises StorageError; the next read then tries again."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._page:
                envelope = self._page.popleft()
            elif self._is_behind:
                await self._load_page()
                continue
            elif self._buffer:
                envelope = self._buffer.popleft()
                self._read_up_to = self._end = envelope.seq
            elif self._ended:
                raise StopAsyncIteration
            else:
                await self._wait()
                continue
            return envelope

    async def _load_page(self) -> None:
        """Read the next page, unless another task did. Raises StorageError, ThreadNotFound if the store shows none."""
        start = self._read_up_to
        page = await self._load_events(self.thread_id, start, PAGE)
        for envelope in page:
            if self._read_up_to < envelope.seq <= self._end:
                self._page.append(envelope)
                self._read_up_to = envelope.seq
        if self._read_up_to == start:
            raise ThreadNotFound(self.thread_id)


def tell_last_seq(broadcast: EventBroadcast, thread_id: str, seq: int) -> None:
    """A thread's log was read: its followers learn of what was stored and never published."""
    for follower in broadcast.readers(Follower, thread_id):
        follower.advance(seq)


async def read_rest(broadcast: EventBroadcast, thread_id: str | None = None) -> None:
    """Have the followers of a thread, or of all, read what they lack, before the store shows it no more.

    Those that can't are told by their next read. Cancelling leaves the others without it.
    """
    for follower in broadcast.readers(Follower, thread_id):
        try:
            await follower.read_rest()
        except StorageError:
            continue
    await trio.lowlevel.checkpoint()
