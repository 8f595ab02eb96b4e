"""States that are kept as text and continued, compared with what the whole log gives."""

from collections.abc import Sequence
from typing import Any

import trio

from roder_trio.codec import state as codec
from roder_trio.logic.thread.hydration import Hydration, fold_snapshot, fold_tail
from roder_trio.logic.thread.state import ThreadState
from roder_trio.logic.usage import ThreadTotals
from roder_trio.schema.inference import EngineTarget
from roder_trio.schema.thread import Record, ThreadMetadata, ThreadSnapshot
from roder_trio.stores import MemoryThreadStore
from tests.thread_support import metadata, parts, snapshot_of

TARGETS = (None, EngineTarget("responses", "one", "https://one"), EngineTarget("chat", "two", "https://two"))
READ_FROM_THE_LOG = ("items", "turns", "known")
"""What a kept state may leave to the log; `known` is compared whole."""


def fingerprint(hydration: Hydration) -> dict[str, Any]:
    """All that a thread's owner decides by, in a form that compares."""
    state, ledger = hydration.state, hydration.ledger
    compared = {name: part for name, part in parts(state).items() if name not in READ_FROM_THE_LOG}
    history = state.history
    totals = ThreadTotals()
    totals.hand_over(ledger)
    goal_ids = {"g"} if state.goal is None else {"g", state.goal.goal_id}
    return {
        **compared,
        "turns": [(turn_id, entry.count, entry.started, entry.ended) for turn_id, entry in state.turns.items()],
        "answer": None if state.open_turn is None else state.turns[state.open_turn.turn_id].answer,
        "ids": (set(state.numbers.known()), state.numbers._highest),
        "by target": [
            (history.window(to), history.request(to), history.sums(to), history.baseline(to), history.places(to))
            for to in TARGETS
        ],
        "images": history.has_images,
        "usage": (ledger.thread, totals.thread, {id: (ledger.goal(id), totals.goal(id)) for id in goal_ids}),
        "turn's usage": None if state.open_turn is None else ledger.turn(state.open_turn.turn_id),
    }


def whole(records: Sequence[Record], base: ThreadMetadata | None = None) -> Hydration:
    """What the whole log gives."""
    snapshot = snapshot_of(base or metadata(), records)
    assert snapshot.metadata is not None
    return fold_snapshot(snapshot, snapshot.metadata)


def continued(records: Sequence[Record], *cuts: int, base: ThreadMetadata | None = None) -> Hydration | None:
    """The log's state by states that were kept at these positions, each made from the one before."""
    hydration: Hydration | None = whole(records[: cuts[0]], base)
    for cut, end in zip(cuts, [*cuts[1:], len(records)], strict=True):
        assert hydration is not None
        now = snapshot_of(base or metadata(), records[:end]).metadata
        assert now is not None
        kept = codec.decode_state(codec.encode_state(hydration), now)
        assert kept is not None
        hydration = fold_tail(kept, now, records[cut:end])
        if hydration is None:
            return None
    return hydration


def held_by(state: ThreadState) -> int:
    """How many things a state holds that could grow with its thread, apart from ids and counts."""
    shown = 0 if state.items is None else len(state.items.items())
    answers = [entry for entry in state.turns.values() if entry.answer or entry.terminal]
    return len(state.history.items) + shown + len(answers)


class KeepingStore(MemoryThreadStore):
    """Keeps a state of a thread when asked to, or after every append, and hydrates from it; counts what is read."""

    def __init__(self, *, always: bool = False) -> None:
        super().__init__()
        self.always = always
        self.loads = 0
        self.states = 0
        self.kept: dict[str, tuple[int, str]] = {}

    async def load_thread(self, thread_id: str) -> ThreadSnapshot | None:
        self.loads += 1
        return await super().load_thread(thread_id)

    async def append(self, thread_id: str, records: Sequence[Record]) -> None:
        await super().append(thread_id, records)
        if self.always:
            self.keep(thread_id)

    def keep(self, thread_id: str) -> None:
        records = self._active[thread_id].records
        self.kept[thread_id] = (len(records), codec.encode_state(whole(records, self._active[thread_id].created)))

    async def load_state(self, thread_id: str) -> Hydration | None:
        thread, (position, text) = self._active.get(thread_id), self.kept.get(thread_id, (0, ""))
        kept = None if thread is None else codec.decode_state(text, thread.metadata)
        if thread is None or kept is None:
            return await super().load_state(thread_id)
        await trio.lowlevel.checkpoint()
        self.states += 1
        continued = fold_tail(kept, thread.metadata, thread.records[position:])
        return continued or await super().load_state(thread_id)
