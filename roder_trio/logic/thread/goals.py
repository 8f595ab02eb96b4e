"""What happens to a thread's goal: commands of the host, its budget, and what a turn's end makes of it."""

from collections.abc import Iterable
from typing import Final

import attrs

from roder_trio.logic.goal import prompt, rules
from roder_trio.logic.goal.tool import GoalAnswer
from roder_trio.logic.thread.draft import Draft, Emit
from roder_trio.logic.thread.facts import Decision, Facts
from roder_trio.logic.thread.state import OpenTurn, ThreadState
from roder_trio.schema.command import AskGoal, ClearGoal, SetGoal
from roder_trio.schema.event import GoalCleared, GoalTimeRecorded, GoalUpdated, TerminalEvent, TurnCompleted
from roder_trio.schema.goal import Goal, GoalCause, GoalPatch, GoalStatus

MAX_EMPTY_TURNS: Final = 3
"""Automatic turns in a row that may do nothing; the last of them blocks the goal."""


def read_goal(state: ThreadState, facts: Facts) -> Goal | None:
    """Return the goal as it reads now: with its counters, and limited from the token on that exhausts its budget."""
    goal = state.goal
    if goal is None:
        return None
    tokens = state.opening_tokens + facts.totals.goal(goal.goal_id)
    seconds = state.opening_time + state.goal_time + _running_stretch(state, facts)
    return rules.read(goal, tokens, seconds)


def set_goal(state: ThreadState, command: SetGoal, facts: Facts, *, cause: GoalCause = GoalCause.HOST) -> Decision:
    """Create or change the goal."""
    before = read_goal(state, facts)
    after = rules.patch(before, command.patch, command.goal_id, state.metadata.thread_id, facts.now)
    if after is None:
        return Decision()
    same = before is not None and before.goal_id == after.goal_id
    opening = (state.opening_tokens, state.opening_time) if same else (0, 0.0)
    update = Emit(GoalUpdated(after, cause, *opening))
    stays = after.status in (GoalStatus.ACTIVE, GoalStatus.BUDGET_LIMITED) and same
    drafts = (update,) if stays else (*_time(state, facts), update)
    return Decision(drafts, reply=after)


def pause_goal(state: ThreadState, facts: Facts) -> Decision:
    """Pause the goal for a host that stopped its work between two turns; nothing if it isn't active."""
    goal = read_goal(state, facts)
    if goal is None or goal.status is not GoalStatus.ACTIVE:
        return Decision()
    return attrs.evolve(set_goal(state, SetGoal(goal.goal_id, GoalPatch(status=GoalStatus.PAUSED)), facts), reply=None)


def ask_goal(state: ThreadState, report: AskGoal, facts: Facts) -> Decision:
    """Let the model read or move the goal; one that is refused changes nothing."""
    before = read_goal(state, facts)
    if report.patch is None:
        return Decision(reply=GoalAnswer(before))
    if report.creates and before is not None and before.status is not GoalStatus.COMPLETE:
        return Decision(reply=GoalAnswer(before, "there is an unfinished goal already; only the user can replace it"))
    if not report.creates and before is None:
        return Decision(reply=GoalAnswer(None, "there is no goal"))
    wanted = report.patch.status
    if before is not None and not report.creates and wanted is before.status is GoalStatus.COMPLETE:
        return Decision(reply=GoalAnswer(before))
    changed = set_goal(state, SetGoal(report.goal_id, report.patch), facts, cause=GoalCause.MODEL)
    return attrs.evolve(changed, reply=GoalAnswer(changed.reply, completed=wanted is GoalStatus.COMPLETE))


def goal_note(state: ThreadState, facts: Facts) -> str | None:
    """Return what a request of the open turn says of the goal; None if there is nothing to say."""
    turn, goal = state.open_turn, read_goal(state, facts)
    if turn is None:
        return None
    if turn.stopped is not None:
        return prompt.stopped_text(turn.stopped.status, turn.stopped.cause)
    if goal is None or turn.goal_id != goal.goal_id:
        return None
    text = prompt.goal_text if goal.status is GoalStatus.ACTIVE else prompt.wrap_up_text
    return text(goal, facts.policy_mode)


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
    attached = turn.goal_id == goal.goal_id
    status, cause = rules.outcome(goal, terminal) if attached else None, GoalCause.TURN_OUTCOME
    if attached and goal.status is GoalStatus.ACTIVE and _is_idle_again(state, turn, terminal):
        status, cause = GoalStatus.BLOCKED, GoalCause.EMPTY_TURNS
    if status is not None and status is not goal.status:
        changed = attrs.evolve(goal, status=status, updated_at=facts.now)
        return (*drafts, Emit(GoalUpdated(changed, cause, state.opening_tokens, state.opening_time)))
    if goal.status is GoalStatus.BUDGET_LIMITED and state.goal is not None and state.goal.status is GoalStatus.ACTIVE:
        return (*drafts, _limited(state, goal))
    return drafts


def goes_on(state: ThreadState, facts: Facts, drafts: Iterable[Draft]) -> bool:
    """Whether the goal is still active once a turn that completes with `drafts` has ended, and goes on by itself."""
    goal = read_goal(state, facts)
    stays = not any(isinstance(draft, Emit) and isinstance(draft.event, GoalUpdated) for draft in drafts)
    return facts.config.goals.auto_continue and stays and goal is not None and goal.status is GoalStatus.ACTIVE


def _is_idle_again(state: ThreadState, turn: OpenTurn, terminal: TerminalEvent) -> bool:
    """Whether this is one automatic turn too many that completes without having done anything."""
    empty = isinstance(terminal, TurnCompleted) and turn.automatic and not turn.worked
    return empty and state.empty_turns + 1 >= MAX_EMPTY_TURNS


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
