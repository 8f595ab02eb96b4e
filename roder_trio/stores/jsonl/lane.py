"""Which threads have a lane, with the journal that holds their ids in memory, and for how long.

Rules of the room: a claimed thread has one until it is released. Others keep theirs for the next call, but only so
many: whoever looks through a whole store must not hold all of it in memory. A lane that is in use is never dropped.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from roder_trio.schema.ids import ThreadId
from roder_trio.stores._lane import Lane

MAX_UNCLAIMED = 64
"""Lanes of threads that nobody claimed, those that were used last."""


class Lanes:
    """The lanes of a store; `make` makes one."""

    def __init__(self, make: Callable[[ThreadId], Lane]) -> None:
        self._make = make
        self._claimed: dict[ThreadId, Lane] = {}
        self._unclaimed: OrderedDict[ThreadId, Lane] = OrderedDict()

    def __len__(self) -> int:
        return len(self._claimed) + len(self._unclaimed)

    def get(self, thread_id: ThreadId) -> Lane:
        """Return the lane of a thread, which is to be used at once."""
        lane = self._claimed.get(thread_id)
        if lane is None:
            lane = self._unclaimed.pop(thread_id, None) or self._make(thread_id)
            self._unclaimed[thread_id] = lane
            self._drop_idle()
        return lane

    def claim(self, thread_id: ThreadId) -> None:
        """Keep the lane of a thread until it is released."""
        if thread_id not in self._claimed:
            lane = self.get(thread_id)
            del self._unclaimed[thread_id]
            self._claimed[thread_id] = lane

    def release(self, thread_id: ThreadId) -> Lane | None:
        """Drop the lane of a thread; returns it, kept still, if it is in use."""
        lane = self._claimed.pop(thread_id, None) or self._unclaimed.pop(thread_id, None)
        if lane is None or not lane.busy:
            return None
        # a second lane beside it would let two workers use one file
        self._unclaimed[thread_id] = lane
        return lane

    def _drop_idle(self) -> None:
        surplus = max(0, len(self._unclaimed) - MAX_UNCLAIMED)
        for thread_id, lane in list(islice(self._unclaimed.items(), surplus)):
            if not lane.busy:
                del self._unclaimed[thread_id]
