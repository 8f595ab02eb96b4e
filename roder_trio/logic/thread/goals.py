"""What happens to a thread's goal: commands of the host, its budget, and what a turn's end makes of it."""

import attrs

from roder_trio.logic import goal as rules
from roder_trio.logic.thread.draft import Draft, Emit
from roder_trio.logic.thread.facts import Decision, Facts
from roder_trio.logic.thread.state import ThreadState
from roder_trio.schema.command import ClearGoal, SetGoal
from roder_trio.schema.event import GoalCleared, GoalTimeRecorded, GoalUpdated, TerminalEvent
from roder_trio.schema.goal import Goal, GoalCause, GoalStatus


def read_goal(state: ThreadState, facts: Facts) -> Goal | None:
    """Return the goal as it reads now: with its counters, and limited from the token on that exhausts its budget."""
    goal = state.goal
    if goal is None:
        return None
    tokens = state.opening_tokens + facts.totals.goal(goal.goal_id)
    seconds = state.opening_time + state.goal_time + _running_stretch(state, facts)
    return rules.read(goal, tokens, seconds)


def set_goal(state: ThreadState, command: SetGoal, facts: Facts) -> Decision:
    """Create or change the goal."""
    before = read_goal(state, facts)
    after = rules.patch(before, command.patch, command.goal_id, state.metadata.thread_id, facts.now)
    if after is None:
        return Decision()
    same = before is not None and before.goal_id == after.goal_id
    opening = (state.opening_tokens, state.opening_time) if same else (0, 0.0)
    update = Emit(GoalUpdated(after, GoalCause.HOST, *opening))
    stays = after.status in (GoalStatus.ACTIVE, GoalStatus.BUDGET_LIMITED) and same
    drafts = (update,) if stays else (*_time(state, facts), update)
    return Decision(drafts, reply=after)


def clear_goal(state: ThreadState, command: ClearGoal, facts: Facts) -> Decision:
    """Remove the goal."""
    if state.goal is None:
        return Decision(reply=False)
    cleared = Emit(GoalCleared(state.goal.goal_id, GoalCause.HOST))
    return Decision((*_time(state, facts), cleared), reply=True)


def store_budget(state: ThreadState, facts: Facts, decision: Decision) -> Decision:
    """Add to a commit that an exhausted goal is limited, if that isn't stored yet."""
    if not decision.drafts or state.goal is None or state.goal.status is not GoalStatus.ACTIVE:
        return decision
    if any(isinstance(draft, Emit) and isinstance(draft.event, GoalUpdated | GoalCleared) for draft in decision.drafts):
        return decision
    goal = read_goal(state, facts)
    if goal is None or goal.status is not GoalStatus.BUDGET_LIMITED:
        return decision
    return attrs.evolve(decision, drafts=(_limited(state, goal), *decision.drafts))


def at_turn_end(state: ThreadState, facts: Facts, terminal: TerminalEvent) -> tuple[Draft, ...]:
    """Return the goal's part of the commit that ends the open turn: its time, then its status if that changes."""
    goal = read_goal(state, facts)
    turn = state.open_turn
    if goal is None or turn is None:
        return ()
    drafts = _time(state, facts)
    status = rules.outcome(goal, terminal) if turn.goal_id == goal.goal_id else None
    if status is not None and status is not goal.status:
        changed = attrs.evolve(goal, status=status, updated_at=facts.now)
        event = GoalUpdated(changed, GoalCause.TURN_OUTCOME, state.opening_tokens, state.opening_time)
        return (*drafts, Emit(event))
    if goal.status is GoalStatus.BUDGET_LIMITED and state.goal is not None and state.goal.status is GoalStatus.ACTIVE:
        return (*drafts, _limited(state, goal))
    return drafts


def _limited(state: ThreadState, goal: Goal) -> Emit:
    return Emit(GoalUpdated(goal, GoalCause.BUDGET, state.opening_tokens, state.opening_time))


def _running_stretch(state: ThreadState, facts: Facts) -> float:
    attached = state.open_turn is not None and state.goal is not None and state.open_turn.goal_id == state.goal.goal_id
    if not attached or facts.slot.attached_at is None:
        return 0.0
    return max(0.0, facts.time - facts.slot.attached_at)


def _time(state: ThreadState, facts: Facts) -> tuple[Draft, ...]:
    seconds = _running_stretch(state, facts)
    if seconds <= 0 or state.goal is None or state.open_turn is None:
        return ()
    return (Emit(GoalTimeRecorded(state.goal.goal_id, state.open_turn.turn_id, seconds)),)
