"""What holds of a thread after the process that worked on it was killed: before it is opened again, and after."""

import roder_trio as rt
from roder_trio import events, items
from roder_trio.goals import Goal, GoalStatus
from roder_trio.transcript import AssistantMessage
from tests.log_laws import goal_of, open_turns, terminals, tokens_of_goal, total, transcript_of

SETTLES_FIRST = ("turn.completed", "turn.failed", "turn.interrupted", "compaction.recorded", "compaction.failed")
"""What is never stored before all usage that was seen is."""


async def loaded(runtime: rt.Runtime, thread: str) -> rt.ThreadSnapshot:
    snapshot = await runtime.load_thread(thread)
    assert snapshot is not None
    return snapshot


async def check_waiters(runtime: rt.Runtime, healed: rt.ThreadSnapshot) -> None:
    """Who asks for a turn's outcome gets what is stored."""
    assert healed.metadata is not None
    for turn, (end,) in terminals(healed.events).items():
        outcome = await runtime.wait_turn(healed.metadata.thread_id, turn)
        assert outcome.usage == end.event.usage  # type: ignore[union-attr]


def check_closing(left: rt.ThreadSnapshot, healed: rt.ThreadSnapshot) -> None:
    """The log only grew, and only by what closes the turn that was open."""
    assert healed.events[: len(left.events)] == left.events
    added = healed.events[len(left.events) :]
    ends = [envelope for envelope in added if isinstance(envelope.event, events.TurnInterrupted)]
    assert [envelope.turn_id for envelope in ends] == open_turns(left.events)
    assert all(envelope.event.reason == "runtime_restart" for envelope in ends)  # type: ignore[union-attr]
    assert total(healed.events) == total(left.events)
    cut_off = [item for item in transcript_of(healed) if isinstance(item, AssistantMessage) and item.interrupted]
    for text in saved_text(left):
        assert AssistantMessage(text, interrupted=True) in cut_off, "what checkpoints held open is in the history"


def saved_text(left: rt.ThreadSnapshot) -> list[str]:
    """The texts of messages that were open, as far as checkpoints hold them."""
    texts: dict[str, str] = {}
    for recorded in left.item_events:
        match recorded.event:
            case items.ItemDelta(item_id, items.AgentMessageText(text)) if recorded.checkpoint:
                texts[item_id] = texts.get(item_id, "") + text
            case items.ItemCompleted() | items.ItemDiscarded() as ended:
                texts.pop(ended.item_id, None)
    return list(texts.values())


def check_goal(left: rt.ThreadSnapshot, goal: Goal | None) -> None:
    stored = goal_of(left.events)
    if stored is None:
        assert goal is None
        return
    assert goal is not None
    assert goal.goal_id == stored.goal_id
    assert goal.tokens_used == tokens_of_goal(left.events, stored.goal_id)
    expected = stored.status
    if expected is GoalStatus.ACTIVE and goal.remaining_tokens == 0:
        expected = GoalStatus.BUDGET_LIMITED
    elif expected is GoalStatus.ACTIVE and open_turns(left.events):
        expected = GoalStatus.PAUSED
    assert goal.status is expected
