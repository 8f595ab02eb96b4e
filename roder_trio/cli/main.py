"""The program `roder-trio`: talks to a model in threads that stay on disk, and shows them.

Exit codes: 0 the turn completed or the chat's input ended, 1 the turn failed or was interrupted or the command could
not be carried out, 2 the command was called wrongly. Answers and results go to stdout, everything else to stderr.
"""

import signal
import sys
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError
from rich.console import Console
from rich.text import Text

import roder_trio as rt
from roder_trio.cli.chat import converse
from roder_trio.cli.compaction import compact
from roder_trio.cli.conversation import open_conversation
from roder_trio.cli.cost import costs_of, told_cost
from roder_trio.cli.failure import DONE, FAILED, UsageError, explained
from roder_trio.cli.goal import Budget, goal_patch
from roder_trio.cli.goal import goal as goal_commands
from roder_trio.cli.keyboard import Keyboard, is_attended
from roder_trio.cli.location import open_stored
from roder_trio.cli.models import models
from roder_trio.cli.options import DEFAULTS, Options, Store
from roder_trio.cli.pursuit import pursue
from roder_trio.cli.report import THREAD_HEADINGS, USAGE_HEADINGS, thread_cells, turn_words, usage_cells
from roder_trio.cli.signals import open_interrupts
from roder_trio.cli.store import store as store_commands
from roder_trio.cli.terminal import Terminal, one_line

PAGE, MOST = 50, 500


def _misuse(error: CycloptsError) -> Text:
    words = str(error)
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        words = f"unexpected argument {error.unused_tokens[0]!r}; quote a text of several words"
    return Text(f"roder-trio: {one_line(words)}", style="red")


app = App(
    name="roder-trio",
    help="Talk to a language model in threads that stay on disk.",
    backend="trio",
    error_console=Console(stderr=True, soft_wrap=True),
    error_formatter=_misuse,
)
threads = App(name="threads", help="Show the threads on disk.")
app.command(threads)
app.command(models)
app.command(store_commands)
app.command(goal_commands)
app.command(compact)


@app.command
async def run(
    prompt: str | None = None,
    /,
    *,
    goal: Annotated[str | None, Parameter(help="Work, turn after turn, until this is reached.")] = None,
    budget: Budget = None,
    options: Options = DEFAULTS,
) -> int:
    """Send PROMPT and stream the answer, or work on a goal, which may begin with PROMPT.

    Ctrl-C interrupts it and keeps what was said; a second one ends the program. Tools work in the workspace; those that
    change something ask at the terminal, and are refused where there is none. A goal ends when it is complete, blocked
    or out of budget, and an interrupt pauses it: `roder-trio goal resume` goes on.
    """
    terminal, keyboard = Terminal.standard(), Keyboard()
    attended = is_attended() and not options.json
    async with open_interrupts() as interrupts:
        with explained(terminal, "run the turn") as result:
            said = (prompt or "").strip() or None
            patch = None if goal is None else goal_patch(goal, budget, status="active")
            _check_run(said, goal, budget)
            async with open_conversation(terminal, interrupts, options, keyboard, attended=attended) as conversation:
                async with conversation.answering(keyboard):
                    if patch is None:
                        done = await conversation.say(prompt or "")
                    else:
                        done = await pursue(conversation, patch, said)
                terminal.note(f"thread: {conversation.thread_id}")
            result.code = DONE if done else FAILED
    return result.code


def _check_run(prompt: str | None, goal: str | None, budget: int | None) -> None:
    if goal is None and budget is not None:
        raise UsageError("--budget is that of a goal; give --goal too")
    if goal is None and prompt is None:
        raise UsageError("the prompt is empty; say what to ask: roder-trio run PROMPT")


@app.command
async def chat(*, options: Options = DEFAULTS) -> int:
    """Talk with the model line by line, until the input ends.

    A line typed while the model speaks steers it. Ctrl-C interrupts it; a second one, or one at the prompt, ends the
    program. Where the input is no terminal each line is one turn, in order.
    """
    terminal, keyboard = Terminal.standard(), Keyboard()
    attended = is_attended() and not options.json
    async with open_interrupts() as interrupts:
        with explained(terminal, "go on with the chat") as result:
            async with open_conversation(terminal, interrupts, options, keyboard, attended=attended) as conversation:
                if options.thread and await conversation.runtime.load_metadata(options.thread) is None:
                    raise rt.ThreadNotFound(options.thread)
                await converse(conversation, keyboard, attended=attended)
                if conversation.thread_id:
                    terminal.note(f"thread: {conversation.thread_id}")
            result.code = DONE
    return result.code


@threads.command(name="list")
async def list_threads(
    *,
    limit: Annotated[int, Parameter(help="How many at most.")] = PAGE,
    cursor: Annotated[str | None, Parameter(help="Where the page before ended.")] = None,
    cost: Annotated[bool, Parameter(negative="", help="Read each log to tell what the thread cost.")] = False,
    store: Store = None,
) -> int:
    """List threads, the one that was used last first."""
    terminal = Terminal.standard()
    with explained(terminal, "list the threads") as result:
        if not 1 <= limit <= MOST:
            raise UsageError(f"--limit must be a number from 1 to {MOST}")
        async with open_stored(terminal, store, read_only=True) as runtime:
            page = await runtime.list_threads(limit=limit, cursor=cursor)
            rows = [thread_cells(row) for row in page.threads]
            if cost:
                rows = [(*cells, await told_cost(runtime, cells[0])) for cells in rows]
        terminal.table((*THREAD_HEADINGS, "cost") if cost else THREAD_HEADINGS, rows)
        for thread_id in page.damaged:
            terminal.note(f"thread {thread_id} is damaged and not listed")
        if page.next_cursor is not None:
            terminal.note(f"there are more: --cursor {page.next_cursor}")
        result.code = DONE
    return result.code


@threads.command
async def show(thread: str, /, *, store: Store = None) -> int:
    """Print what was said in THREAD."""
    terminal = Terminal.standard()
    with explained(terminal, "show the thread") as result:
        snapshot = await _load(terminal, thread, store)
        costs = await costs_of(snapshot)
        for turn in snapshot.turns:
            for line in turn_words(turn, costs.turns.get(turn.turn_id)):
                terminal.line(line)
        result.code = DONE
    return result.code


@threads.command
async def usage(thread: str, /, *, store: Store = None) -> int:
    """Print the tokens that THREAD used and what they cost, by turn and in total."""
    terminal = Terminal.standard()
    with explained(terminal, "show the usage") as result:
        snapshot = await _load(terminal, thread, store)
        total = snapshot.metadata.usage if snapshot.metadata else None
        costs = await costs_of(snapshot)
        rows = [
            (turn.turn_id, turn.status.value, *usage_cells(turn.usage, costs.turns.get(turn.turn_id)))
            for turn in snapshot.turns
        ]
        terminal.table(("turn", "status", *USAGE_HEADINGS), [*rows, ("all", "", *usage_cells(total, costs.whole))])
        result.code = DONE
    return result.code


async def _load(terminal: Terminal, thread: str, store: str | None) -> rt.ThreadSnapshot:
    async with open_stored(terminal, store, read_only=True) as runtime:
        snapshot = await runtime.load_thread(thread)
    if snapshot is None:
        raise rt.ThreadNotFound(thread)
    return snapshot


def main() -> None:
    """Run the program and exit with its code."""
    try:
        app(sys.argv[1:])
    except BaseExceptionGroup as group:
        # A Ctrl-C while the program leaves: the nurseries that it passed have wrapped it.
        if group.split(KeyboardInterrupt)[1] is not None:
            raise
        sys.exit(FAILED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C while Python itself leaves changes no exit code
