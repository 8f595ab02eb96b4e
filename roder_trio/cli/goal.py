"""The commands on a thread's goal: set, show, clear, resume.

Exit codes: 0 done, and for `resume` that the goal is complete; 1 it is not, or there is none; 2 called wrongly.
"""

from json import dumps
from typing import Annotated, Literal

from cyclopts import App, Parameter

import roder_trio as rt
from roder_trio import codec, goals
from roder_trio.cli.conversation import open_conversation
from roder_trio.cli.cost import cost_of_goal, with_cost
from roder_trio.cli.failure import DONE, FAILED, UsageError, explained
from roder_trio.cli.keyboard import Keyboard, is_attended
from roder_trio.cli.location import open_stored
from roder_trio.cli.options import MODEL_DEFAULTS, ModelOptions, Store
from roder_trio.cli.pursuit import pursue
from roder_trio.cli.report import goal_words
from roder_trio.cli.signals import open_interrupts
from roder_trio.cli.terminal import Terminal, escape_json
from roder_trio.logic.goal.rules import read
from roder_trio.logic.thread.hydration import fold_snapshot

Budget = Annotated[int | None, Parameter(help="How many tokens the goal may use in all.")]
NoBudget = Annotated[bool, Parameter(negative="", help="Let the goal use as many tokens as it takes.")]
Status = Annotated[Literal["active", "paused", "blocked", "complete"] | None, Parameter(help="How it stands.")]

goal = App(name="goal", help="Give a thread a goal, and work on it.")


@goal.command(name="set")
async def set_goal(
    thread: str,
    objective: str | None = None,
    /,
    *,
    budget: Budget = None,
    no_budget: NoBudget = False,
    status: Status = None,
    store: Store = None,
) -> int:
    """Give THREAD the goal OBJECTIVE, or change the one it has. No turn begins by that."""
    terminal = Terminal.standard()
    with explained(terminal, "set the goal") as result:
        patch = goal_patch(objective, budget, no_budget=no_budget, status=status)
        async with open_stored(terminal, store) as runtime:
            found = await runtime.thread_goal_set(thread, patch)
        if found is None:
            raise UsageError("the thread has no goal yet; say what it is to reach")
        terminal.line(f"{found.status.value}: {goal_words(found)}")
        result.code = DONE
    return result.code


@goal.command
async def show(
    thread: str,
    /,
    *,
    store: Store = None,
    json: Annotated[bool, Parameter(negative="", help="Print the goal as one line of JSON.")] = False,
) -> int:
    """Print the goal of THREAD: what it is, how it stands, what was used of its budget, and what that cost."""
    terminal = Terminal.standard()
    with explained(terminal, "show the goal") as result:
        async with open_stored(terminal, store, read_only=True) as runtime:
            snapshot = await runtime.load_thread(thread)
        if snapshot is None:
            raise rt.ThreadNotFound(thread)
        found = goal_in(snapshot)
        if json:
            terminal.line(escape_json(dumps(codec.to_json(found) if found else None, ensure_ascii=False)))
        elif found is not None:
            used = with_cost(goal_words(found), await cost_of_goal(snapshot, found.goal_id))
            terminal.line(f"{found.status.value}: {used}")
            terminal.line(found.objective)
        else:
            terminal.note("the thread has no goal")
        result.code = DONE if found is not None else FAILED
    return result.code


@goal.command
async def clear(thread: str, /, *, store: Store = None) -> int:
    """Take the goal of THREAD away. What it used stays counted."""
    terminal = Terminal.standard()
    with explained(terminal, "clear the goal") as result:
        async with open_stored(terminal, store) as runtime:
            cleared = await runtime.thread_goal_clear(thread)
        terminal.note("the goal was cleared" if cleared else "there is no goal to clear")
        result.code = DONE if cleared else FAILED
    return result.code


@goal.command
async def resume(
    thread: str, /, *, budget: Budget = None, no_budget: NoBudget = False, options: ModelOptions = MODEL_DEFAULTS
) -> int:
    """Make the goal of THREAD active, with another budget if one is given, and work on it.

    It ends when the goal is complete, blocked or out of budget. Ctrl-C interrupts the turn and pauses the goal.
    """
    terminal, keyboard = Terminal.standard(), Keyboard()
    attended = is_attended() and not options.json
    async with open_interrupts() as interrupts:
        with explained(terminal, "work on the goal") as result:
            patch = goal_patch(None, budget, no_budget=no_budget, status="active")
            chosen = options.on(thread)
            async with (
                open_conversation(terminal, interrupts, chosen, keyboard, attended=attended) as conversation,
                conversation.answering(keyboard),
            ):
                complete = await pursue(conversation, patch)
            result.code = DONE if complete else FAILED
    return result.code


def goal_patch(
    objective: str | None, budget: int | None, *, no_budget: bool = False, status: str | None = None
) -> goals.GoalPatch:
    """Make a change of a goal from what the command line says. Raises UsageError."""
    if no_budget and budget is not None:
        raise UsageError("--budget and --no-budget exclude each other")
    if budget is not None and budget < 1:
        raise UsageError("--budget must be a number of tokens above 0")
    try:
        tokens = goals.UNSET if budget is None and not no_budget else budget
        wanted = None if status is None else goals.GoalStatus(status)
        return goals.GoalPatch(objective=objective, status=wanted, token_budget=tokens)
    except ValueError as error:
        raise UsageError(str(error)) from error


def goal_in(snapshot: rt.ThreadSnapshot) -> goals.Goal | None:
    """Return the goal that a log tells of, with its counters."""
    assert snapshot.metadata is not None
    folded = fold_snapshot(snapshot, snapshot.metadata)
    state, found = folded.state, folded.state.goal
    if found is None:
        return None
    tokens = state.opening_tokens + folded.ledger.goal(found.goal_id)
    return read(found, tokens, state.opening_time + state.goal_time)
