"""What hosts can read of a thread, taken at once, so that two runtimes can be compared."""

from typing import Any

import attrs

import roder_trio as rt
from roder_trio import goals, items
from tests.log_laws import terminals
from tests.turn_support import settings

COMPACTING = settings(default_provider="mock", default_model="mock", auto_compact_token_limit=1_000)


def opened(engine: rt.InferenceEngine, store: rt.ThreadStore) -> Any:
    return rt.open_runtime(engines=[engine], store=store, config=COMPACTING)


@attrs.frozen
class Reads:
    """What is known of a thread in memory, as hosts can read it."""

    goal: goals.Goal | None
    shown: tuple[items.ThreadItem, ...]
    indices: dict[str, int | None]
    outcomes: dict[str, rt.TurnOutcome]
    used: rt.TokenUsage


async def reads(runtime: rt.Runtime, thread: str, snapshot: rt.ThreadSnapshot) -> Reads:
    async with runtime.thread_view(thread) as view:
        shown = view.items
    return Reads(
        goal=await runtime.thread_goal_get(thread),
        shown=shown,
        indices={t.turn_id: await runtime.latest_transcript_item_index(thread, t.turn_id) for t in snapshot.turns},
        outcomes={turn: await runtime.wait_turn(thread, turn) for turn in terminals(snapshot.events)},
        used=runtime._core.accounting.totals(thread).thread,
    )


def buffered(subscription: Any) -> list[rt.EventEnvelope]:
    """What a subscriber has not read yet, read now."""
    return [subscription.take() for _ in range(subscription.buffered)]


async def loaded(runtime: rt.Runtime, thread: str) -> rt.ThreadSnapshot:
    snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    return snapshot
